"""What a ResourceManager's REST interface answers, as a snapshot: answers of a real one, and odd ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.yarn.queues import counts_cores
from hscheduler.core.resources import Resources
from hscheduler.yarn.rest import (
    Answers,
    application_of,
    attempt_of,
    most_priority_in,
    names_of,
    of_queues,
    queues_of,
    same_moment,
    snapshot_of,
    with_marks,
)
from hscheduler.yarn.snapshot import Ask, Held, Queue, User
from tests.hscheduler.yarn_web import App, FakeWeb
from tests.hscheduler.yarn_world import container

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "yarn_rest.json").read_text(encoding="utf-8"))
EPS = frozenset({"eps", "root.eps"})


def answers(**changes: Any) -> Answers:
    """Return answers of a YARN in memory, with a job that runs and one that waits."""
    web = FakeWeb(App(1, members={container(1, 2): "n2:1"}), App(2, master="", asks=1))
    apps = web.look("apps", "", {"states": "ACCEPTED,RUNNING"})
    nodes, scheduler = web.look("nodes", ""), web.look("scheduler", "")
    found = Answers(apps, nodes, scheduler, {web.apps[0].id: web.apps[0].containers()}, taken_ms=5)
    return dataclasses.replace(found, **changes)


def test_answers_of_a_small_yarn() -> None:
    found = snapshot_of(answers(), EPS)
    job, late = found.applications
    assert (found.instance, found.taken_ms, found.counts_cores) == ("1700000000000", 5, True)
    assert [(n.node, n.partition, n.free) for n in found.nodes] == [
        ("n1:1", "", Resources(3, 3072)),
        ("n2:1", "", Resources(3, 3072)),
    ]
    assert (job.host, job.port, job.state, job.user) == ("n1", 40001, "RUNNING", "ada")
    assert job.containers == (
        Held(container(1, 1), "n1:1", Resources(1, 1024), True, 90_000, 0),
        Held(container(1, 2), "n2:1", Resources(1, 1024), False, 89_999, 0),
    )
    assert (late.asks, late.host, late.port) == ((Ask(True, 1, Resources(1, 1024)),), "", -1)
    assert late.tags == ("eps.workers=1", "eps.servers=1", "eps.worker=1024x1", "eps.server=1024x1")
    assert found.queues == (Queue("eps", "", Resources(2, 2048), Resources(8, 8192), False),)
    assert found.users == (User("eps", "ada", "", Resources(2, 2048), Resources(40, 40960)),)


def test_answers_of_a_real_resourcemanager() -> None:
    """Hadoop 3.5.0: a job of six containers of two cores that has all, another that waits for its master."""
    queues, unknown = names_of(queues_of(RECORDED["scheduler"]), ["default"])
    assert (queues, unknown) == ({"default", "root.default"}, [])
    found = snapshot_of(
        Answers(RECORDED["apps"], RECORDED["nodes"], RECORDED["scheduler"], RECORDED["containers"]), queues
    )
    job, late = sorted(found.applications, key=lambda a: a.application_id)
    attempts = {app["id"]: attempt_of(app) for app in of_queues(RECORDED["apps"], queues)}
    number = job.application_id.removeprefix("application_")
    assert attempts == {job.application_id: f"appattempt_{number}_000001", late.application_id: ""}
    assert (job.priority, late.priority) == (0, 0)
    overview = RECORDED["scheduler-overview"]
    assert counts_cores(RECORDED["scheduler"]["scheduler"]["schedulerInfo"], "")
    assert (most_priority_in(overview), most_priority_in({})) == (10, None), "a release that does not tell"
    assert (job.state, late.state) == ("RUNNING", "ACCEPTED")
    assert job.port > 0 and job.host.startswith("127.0.0.1")
    assert not job.asks and len(job.containers) == 6
    assert sum(held.is_master for held in job.containers) == 1
    assert {held.size for held in job.containers} == {Resources(2, 512)}
    assert {held.node for held in job.containers} <= {node.node for node in found.nodes}
    assert late.asks == (Ask(True, 1, Resources(1, 512)),)
    assert set(late.tags) == {"eps.workers=1", "eps.servers=1", "eps.worker=512x1", "eps.server=512x1"}
    assert sorted(node.partition for node in found.nodes) == ["", "", "transient"]
    assert sum(node.free.vcores for node in found.nodes) == 0
    used = {queue.partition: queue.used.vcores for queue in found.queues}
    assert sum(used.values()) == 12
    assert {queue.partition: queue.most.vcores for queue in found.queues} == {"": 8, "transient": 4}
    assert {user.partition: user.limit.vcores for user in found.users} == {"": 40, "transient": 20}


def test_what_yarn_keeps_for_an_application_that_waits_is_not_used_by_others() -> None:
    found = answers()
    apps = {"apps": {"app": [dict(app) for app in found.apps["apps"]["app"]]}}
    apps["apps"]["app"][1] |= {"reservedMB": 1024, "reservedVCores": 1}
    told = snapshot_of(dataclasses.replace(found, apps=apps), EPS)
    assert (told.queues[0].used, told.users[0].used) == (Resources(1, 1024), Resources(1, 1024))


def test_application_whose_master_is_started_again_asks_for_that_alone() -> None:
    app = {**App(1, master="", asks=1).document(), "runningContainers": 3}
    assert application_of(app).tags == ()
    assert application_of(app).asks[0].for_master


def test_unmanaged_application_asks_for_members() -> None:
    app = {**App(1, master="", asks=2).document(), "unmanagedApplication": True}
    assert application_of(app).asks == (Ask(False, 2, Resources(1, 1024)),)


def test_label_that_is_asked_for_and_lists_of_one() -> None:
    (request, _) = App(1, master="", asks=1).document()["resourceRequests"]
    app = {**App(1, master="").document(), "resourceRequests": {**request, "nodeLabelExpression": "gpu"}}
    assert application_of(app).asks[0].label == "gpu"
    found = answers()
    node = {**found.nodes["nodes"]["node"][0], "nodeLabels": ["gpu"]}
    told = snapshot_of(dataclasses.replace(found, nodes={"nodes": {"node": node}}), EPS)
    assert [n.partition for n in told.nodes] == ["gpu"]
    assert told.queues == (Queue("eps", "gpu", Resources(0, 0), Resources(0, 0), False),), "of it nothing is told"
    assert told.users == ()


def test_nodes_that_do_not_run_and_applications_that_are_over_are_not_there() -> None:
    found = answers()
    nodes = {"nodes": {"node": [{**found.nodes["nodes"]["node"][0], "state": "LOST"}]}}
    apps = {"apps": {"app": [{**found.apps["apps"]["app"][0], "state": "FINISHED"}]}}
    told = snapshot_of(dataclasses.replace(found, nodes=nodes, apps=apps), EPS)
    assert (told.nodes, told.applications, told.queues) == ((), (), ())
    assert snapshot_of(Answers({"apps": None}, {"nodes": None}, {}), EPS).nodes == ()


@pytest.mark.parametrize("change", [{"state": "RUNNING"}, {"allocatedMB": 7}, {"resourceRequests": []}])
def test_answers_between_which_something_happened_are_of_no_moment(change: dict[str, Any]) -> None:
    before = [App(2, master="", asks=1).document()]
    assert same_moment(before, [{**before[0], "memorySeconds": 9}])
    assert not same_moment(before, [{**before[0], **change}])
    assert not same_moment(before, [])


def test_queues_are_found_by_name_and_by_path() -> None:
    queues = {"root.a.eps": {}, "root.b.eps": {}, "root.b": {}}
    assert names_of(queues, ["eps"]) == ({"root.a.eps", "root.b.eps", "eps"}, [])
    assert names_of(queues, ["root.b", "x"]) == ({"root.b", "b"}, ["x"])


def test_containers_on_their_way_out_are_marked() -> None:
    found = with_marks(snapshot_of(answers(), EPS), frozenset({container(1, 2)}))
    assert [held.marked for held in found.applications[0].containers] == [False, True]
