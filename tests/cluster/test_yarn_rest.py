"""The ResourceManager's web interface as a client of YARN, against real HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eps.cluster.yarn.rest import RestClient, refusal
from eps.cluster.yarn.types import Resource
from eps.errors import (
    AuthenticationError,
    ConfigError,
    EpsError,
    JobNotFoundError,
    PeerUnavailableError,
    ResourceError,
    RpcError,
)
from eps.hadoop.conf import HadoopConf
from tests.fakes.resourcemanager import FakeResourceManager, resourcemanager

pytest.importorskip("requests")

ID = "application_1700000000000_0007"
APP: dict[str, Any] = {
    "id": ID, "name": "a9a", "applicationType": "EPS", "user": "ada", "queue": "default", "state": "RUNNING",
    "finalStatus": "UNDEFINED", "diagnostics": " \n", "amRPCAddress": "127.0.0.11:4711",
    "trackingUrl": "http://rm:8088/proxy/x/", "progress": 25.0, "applicationTags": "one,two", "startedTime": 5,
    "finishedTime": 0,
}  # fmt: skip


@pytest.fixture
def rm() -> Iterator[FakeResourceManager]:
    with resourcemanager() as fake:
        yield fake


@pytest.fixture
def client(rm: FakeResourceManager) -> Iterator[RestClient]:
    client = RestClient(rm.conf)
    yield client
    client.close()


def test_a_report_says_where_the_master_listens(rm: FakeResourceManager, client: RestClient) -> None:
    rm.answers[f"GET apps/{ID}"] = (200, {"app": APP})
    report = client.report(ID)
    assert (report.host, report.rpc_port, report.progress, report.tags) == ("127.0.0.11", 4711, 0.25, ("one", "two"))
    assert not report.ended and report.diagnostics == ""
    rm.answers[f"GET apps/{ID}"] = (200, {"app": {**APP, "amRPCAddress": "N/A", "state": "KILLED"}})
    report = client.report(ID)
    assert (report.host, report.rpc_port, report.ended) == ("", -1, True)


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (
            404,
            {"RemoteException": {"message": "java.lang.Exception: app with id: x not found"}},
            JobNotFoundError,
            "not f",
        ),
        (403, {"RemoteException": {"message": "User ada may not"}}, ResourceError, "User ada may not"),
        (400, {"RemoteException": {"message": "Invalid resource request"}}, ResourceError, "Invalid resource request"),
        (
            403,
            {"RemoteException": {"message": "User eve does not have permission to submit a_1 to queue default"}},
            ConfigError,
            r"the queue refuses this user \(User eve .*\): choose another, or ask for the right to submit",
        ),
        (401, "<html>", AuthenticationError, "run kinit.*KRB5_CLIENT_KTNAME"),
        (500, "<html><b>oops</b></html>", EpsError, "answered 500"),
        (200, "not JSON", EpsError, "answered 200"),
    ],
)
def test_an_error_is_a_sentence(
    rm: FakeResourceManager, client: RestClient, status: int, body: Any, kind: type[EpsError], text: str
) -> None:
    rm.answers[f"GET apps/{ID}"] = (status, body)
    with pytest.raises(kind, match=text):
        client.report(ID)


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        (f"GET apps/{ID}", lambda client: client.report(ID)),
        ("GET apps", lambda client: client.applications()),
        ("GET nodes", lambda client: client.nodes()),
        ("GET scheduler", lambda client: client.queue("default")),
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        {"app": 1, "apps": 1, "nodes": 1, "scheduler": 1, "priority": "high"},
        {"app": {}, "apps": {"app": [[]]}, "nodes": {"node": [{}]}, "scheduler": {"schedulerInfo": {"queues": []}}},
    ],
)
def test_what_is_no_answer_of_a_resourcemanager_is_an_error_like_others(
    rm: FakeResourceManager, client: RestClient, path: str, ask: Callable[[RestClient], object], body: Any
) -> None:
    rm.answers[path] = (200, body)
    if path == "GET scheduler" and body["scheduler"] != 1:
        assert ask(client) is None, "there is no such queue"
        return
    with pytest.raises(RpcError, match="no ResourceManager"):
        ask(client)


def test_only_of_an_application_404_says_that_there_is_none(rm: FakeResourceManager, client: RestClient) -> None:
    for ask in (client.nodes, lambda: client.queue("default")):
        with pytest.raises(RpcError, match="answered 404") as caught:
            ask()
        assert not isinstance(caught.value, JobNotFoundError)
    rm.answers["GET nodes"] = (500, {"RemoteException": "oops"})
    with pytest.raises(RpcError, match="answered 500"):
        client.nodes()


def test_the_active_one_of_two_resourcemanagers_is_asked() -> None:
    with resourcemanager() as first, resourcemanager() as second:
        first.standby = True
        second.answers[f"GET apps/{ID}"] = (200, {"app": APP})
        values = {
            "yarn.resourcemanager.ha.enabled": "true",
            "yarn.resourcemanager.ha.rm-ids": "a,b",
            "yarn.resourcemanager.webapp.address.a": first.url.removeprefix("http://"),
            "yarn.resourcemanager.webapp.address.b": second.url.removeprefix("http://"),
        }
        client = RestClient(HadoopConf(values, "/etc/hadoop", {}))
        assert client.report(ID).state == client.report(ID).state == "RUNNING"
        second.standby = True
        with pytest.raises(PeerUnavailableError, match=r"standby.*yarn-site.xml"):
            client.report(ID)
        client.close()


def test_a_resourcemanager_that_is_not_there_is_named_with_the_file_that_says_so(rm: FakeResourceManager) -> None:
    conf = dataclasses.replace(rm.conf, values={"yarn.resourcemanager.webapp.address": "127.0.0.1:9"})
    client = RestClient(conf)
    with pytest.raises(PeerUnavailableError, match=r":9: .*refused.*yarn-site"):
        client.nodes()
    client.close()


def test_without_a_configuration_it_is_said_what_to_set() -> None:
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR"):
        RestClient(HadoopConf())


def test_nodes_and_queues(rm: FakeResourceManager, client: RestClient) -> None:
    node = {
        "id": "n2:8041", "nodeHTTPAddress": "n2:8042", "usedMemoryMB": 1024, "availMemoryMB": 3072,
        "usedVirtualCores": 1, "availableVirtualCores": 3, "nodeLabels": ["transient"], "numContainers": 1,
    }  # fmt: skip
    rm.answers["GET nodes"] = (200, {"nodes": {"node": [node, {**node, "id": "n1:8041"}]}})
    found = client.nodes()
    assert [n.node for n in found] == ["n1:8041", "n2:8041"]
    assert rm.asked[-1][2].endswith("states=RUNNING") and found[0].state == "RUNNING"
    rm.answers["GET nodes"] = (200, {"nodes": {"node": [{**node, "state": "DECOMMISSIONING"}]}})
    (leaving,) = client.nodes(("LOST", "DECOMMISSIONING"))
    assert leaving.state == "DECOMMISSIONING" and rm.asked[-1][2].endswith("states=LOST%2CDECOMMISSIONING")
    assert (found[0].capacity, found[0].labels) == (Resource(4096, 4), ("transient",))
    batch = {"queueName": "batch", "queuePath": "root.batch", "state": "STOPPED", "nodeLabels": ["*"]}
    root = {"queueName": "root", "queues": {"queue": [batch]}}
    rm.answers["GET scheduler"] = (200, {"scheduler": {"schedulerInfo": root}})
    queue = client.queue("batch")
    assert queue is not None and (queue.state, queue.labels) == ("STOPPED", ("*",))
    assert client.queue("root.batch") == queue and client.queue("nope") is None
    rm.answers["GET nodes"] = (200, {"nodes": None})
    assert client.nodes() == []


def queue_info(name: str, submit: str, *below: dict[str, Any], administer: str = " ") -> dict[str, Any]:
    """Return a queue as ``scheduler`` tells of it, with who may submit to it."""
    rights = [
        {"accessType": "ADMINISTER_QUEUE", "accessControlList": administer},
        {"accessType": "APPLICATION_MAX_PRIORITY", "accessControlList": "*"},
        {"accessType": "SUBMIT_APP", "accessControlList": submit},
    ]
    more = {"queues": {"queue": list(below)}} if below else {}
    return {"queueName": name, "queueAcls": {"queueAcl": rights}, **more}


def test_of_a_queue_it_is_known_what_it_grants_at_most(rm: FakeResourceManager, client: RestClient) -> None:
    parts = [
        {"partitionName": "", "effectiveMaxResource": {"memory": 4096, "vCores": 4}},
        {"partitionName": "transient", "effectiveMaxResource": {"memory": 2048, "vCores": 2}},
    ]
    largest = {"memory": 2048, "vCores": 4, "resourceInformations": {}}
    eps = {"queueName": "eps", "maximumAllocation": largest, "capacities": {"queueCapacitiesByPartition": parts}}
    root = {"queueName": "root", "queues": {"queue": [eps, {"queueName": "batch"}]}}
    rm.answers["GET scheduler"] = (200, {"scheduler": {"schedulerInfo": root}})
    queue = client.queue("eps")
    assert queue is not None and queue.largest == Resource(2048, 4) and queue.children == ()
    assert queue.most == {"": Resource(4096, 4), "transient": Resource(2048, 2)} and not queue.counts_cores
    batch, parent = (client.queue(name) for name in ("batch", "root"))
    assert batch is not None and (batch.largest, batch.most, batch.may_submit) == (None, {}, True)
    assert parent is not None and parent.children == ("eps", "batch")


@pytest.mark.parametrize(
    ("root", "queue", "may"),
    [
        (queue_info("root", "*"), queue_info("eps", " "), True),
        (queue_info("root", " "), queue_info("eps", "*"), True),
        (queue_info("root", " "), queue_info("eps", "eve,ada"), True),
        (queue_info("root", " "), queue_info("eps", "eve,ada staff"), True),
        # Who is in a group YARN does not tell.
        (queue_info("root", " "), queue_info("eps", "eve staff"), True),
        (queue_info("root", " "), queue_info("eps", " staff"), True),
        (queue_info("root", " ", administer="ada"), queue_info("eps", "eve"), True),
        (queue_info("root", " "), {"queueName": "eps"}, True),
        (queue_info("root", " "), queue_info("eps", "eve,adam "), False),
        (queue_info("root", "eve"), queue_info("eps", " "), False),
    ],
)
def test_who_may_not_submit_to_a_queue_is_known_by_its_lists(
    rm: FakeResourceManager, root: dict[str, Any], queue: dict[str, Any], may: bool
) -> None:
    info = {**root, "queues": {"queue": [queue]}}
    rm.answers["GET scheduler"] = (200, {"scheduler": {"schedulerInfo": info}})
    conf = dataclasses.replace(rm.conf, values={**rm.conf.values, "yarn.acl.enable": "true"})
    for given, expected in ((conf, may), (rm.conf, True)):
        client = RestClient(given)
        found = client.queue("eps")
        assert found is not None and found.may_submit == expected
        client.close()


def test_an_application_is_ended_with_a_reason(rm: FakeResourceManager, client: RestClient) -> None:
    rm.answers[f"PUT apps/{ID}/state"] = (202, {"state": "KILLED"})
    client.kill(ID, "its client is gone")
    assert rm.asked[-1][3] == {"state": "KILLED", "diagnostics": "its client is gone"}


def test_applications_are_listed_oldest_first(rm: FakeResourceManager, client: RestClient) -> None:
    rm.answers["GET apps"] = (
        200,
        {"apps": {"app": [{**APP, "startedTime": 9}, {**APP, "id": "a_1", "startedTime": 2}]}},
    )
    assert [app.application_id for app in client.applications(states=("RUNNING",), tags=("Sweep",))] == ["a_1", ID]
    assert "applicationTags=sweep" in rm.asked[-1][2] and "states=RUNNING" in rm.asked[-1][2]
    rm.answers["GET apps"] = (200, {"apps": None})
    assert client.applications() == []


def test_of_javas_words_the_sentence_is_left() -> None:
    said = "org.apache.hadoop.yarn.exceptions.YarnException: java.io.IOException: Failed to submit: no room\n\tat x.y"
    assert refusal(said) == "Failed to submit: no room"
    assert refusal("") == "no reason was given"
    assert refusal("Queue root.x: is full") == "Queue root.x: is full"
