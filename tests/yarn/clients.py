"""The contract of YARN's clients, on a real cluster; runs in the process with Java."""

from __future__ import annotations

import getpass
import os
from typing import TYPE_CHECKING

import pytest
import requests

from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.types import ALL_STATES, Launch, Resource, Submission
from eps.errors import EpsError, JobNotFoundError
from eps.hadoop.conf import environment_configuration, resourcemanager_web_addresses
from tests.yarn.in_java import kill
from tests.yarn.unmanaged import wait_until

if TYPE_CHECKING:
    from eps.cluster.yarn.hadoop.client import HadoopClient

#: Its master never registers, so its state does not change.
WAITS = Submission("a client's test", Launch("exec sleep 1000"), Resource(128, 1), tags=("Kept",))


def opened(kind: str) -> HadoopClient | YarnClient:
    """Return Hadoop's own client, as an application master or as a process outside uses it."""
    from eps.cluster.yarn.hadoop.client import HadoopClient
    from eps.hadoop.session import HadoopSession

    return HadoopClient(HadoopSession()) if kind == "master" else YarnClient(environment_configuration())


def contract(kind: str) -> None:
    """Submit and query an application, and read the cluster."""
    client = opened(kind)
    try:
        assert client.user == os.environ.get("HADOOP_USER_NAME", getpass.getuser())
        # An insecure cluster issues no tokens.
        assert client.obtain_tokens() == b"" == client.obtain_tokens(["hdfs://127.0.0.1:8020"])
        application = client.new_application()
        with pytest.raises(JobNotFoundError):
            client.report(application.rpartition("_")[0] + "_9999")
        client.submit(application, WAITS)
        try:
            report = client.report(application)
            assert (report.application_id, report.name, report.application_type) == (application, WAITS.name, "EPS")
            # Some releases return the queue's full path.
            assert (report.user, report.queue.rpartition(".")[2]) == (client.user, "default")
            assert report.tags == ("kept",)
            assert not report.ended and report.final_status == "UNDEFINED"
            assert (report.host, report.rpc_port, report.finished_ms) == ("", -1, 0)
        finally:
            kill(application, "enough of it")
        wait_until(lambda: client.report(application).ended, f"{application} to end")
        report = client.report(application)
        assert (report.state, report.final_status) == ("KILLED", "KILLED") and "enough of it" in report.diagnostics
        _label(client)
        _refused(kind)
        _cluster(kind)
    finally:
        client.close()
        client.close()


def outside() -> None:
    """List and end applications, and read the queues."""
    client = YarnClient(environment_configuration())
    try:
        application = client.new_application()
        client.submit(application, WAITS)
        try:
            assert application in [r.application_id for r in client.applications(tags=("kept",))]
            assert not client.applications(tags=("no-such-tag",)) and not client.applications(application_type="OTHER")
        finally:
            client.kill(application)
        wait_until(lambda: client.report(application).ended, f"{application} to end")
        assert application in [r.application_id for r in client.applications(states=("KILLED",))]
        assert application not in [r.application_id for r in client.applications(states=("RUNNING",))]
        client.kill(application)
        queue = client.queue("default")
        assert queue is not None and (queue.name, queue.state) == ("default", "RUNNING")
        assert (round(queue.capacity, 3), round(queue.maximum_capacity, 3)) == (0.5, 1.0)
        assert "transient" in queue.labels or "*" in queue.labels
        # Two of the nodes have no label.
        most = {"": Resource(8192, 8), "transient": Resource(4096, 4)}
        assert (queue.largest, queue.most) == (Resource(4096, 4), most)
        assert queue.may_submit and queue.children == ()
        assert client.queue("no-such-queue") is None
    finally:
        client.close()


def _label(client: HadoopClient | YarnClient) -> None:
    """The master's label is not the application's, which would apply to all containers without a label."""
    application = client.new_application()
    client.submit(application, Submission("labelled", Launch("true"), Resource(128, 1), label="transient"))
    kill(application)
    (web,) = resourcemanager_web_addresses(environment_configuration())
    found = requests.get(f"{web}/ws/v1/cluster/apps/{application}", timeout=60.0).json()["app"]
    assert found["amNodeLabelExpression"] == "transient" and not found.get("appNodeLabelExpression"), found


def _refused(kind: str) -> None:
    client = opened(kind)
    with pytest.raises(EpsError) as found:
        client.submit(client.new_application(), Submission("x", Launch("true"), Resource(900_000, 1)))
    assert "\n" not in str(found.value) and "memory" in str(found.value)
    client.close()


def _cluster(kind: str) -> None:
    client = opened(kind)
    nodes = client.nodes()
    assert [node.node.partition(":")[0] for node in nodes] == ["127.0.0.11", "127.0.0.12", "127.0.0.13"]
    assert all(node.capacity == Resource(4096, 4) for node in nodes)
    assert [node.labels for node in nodes] == [(), (), ("transient",)]
    assert {node.state for node in nodes} == {"RUNNING"} and len(client.nodes(ALL_STATES)) >= 3
    client.close()
