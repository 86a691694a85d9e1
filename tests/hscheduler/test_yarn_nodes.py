"""Nodes that join and leave a cluster while a scheduler runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.yarn.types import ClusterNode, Resource
from eps.errors import PeerUnavailableError
from eps.spec.job_spec import JobSpec
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core.resources import Resources, Role
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.live.yarn_nodes import YarnNodes, machines_of
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings
from hscheduler.spec import ClusterSpec
from hscheduler.yarn.nodes import MISSING_S, Machine, Nodes
from tests.hscheduler.toy import request
from tests.hscheduler.world import World

SIZE, UNIT = Resources(4, 4096), Resources(1, 1024)
TIMEOUT_S = 30.0


def machine(number: int, state: str = "RUNNING", size: Resources = SIZE, port: int = 1) -> Machine:
    return Machine(f"h{number}:{port}", state, size)


def looked(number: int) -> Nodes:
    """Return this many slots with as many machines."""
    nodes = Nodes(SIZE, [f"node-{k}" for k in range(1, number + 1)])
    assert nodes.look([machine(k) for k in range(1, number + 1)], 0.0) == []
    return nodes


def test_a_decommissioned_machine_leaves_and_joins_at_once() -> None:
    nodes = looked(2)
    left = nodes.look([machine(1), machine(2, "DECOMMISSIONING")], 1.0)
    assert left == [e.NodeLeft("node-2", "node h2 is being decommissioned")]
    assert nodes.look([machine(1), machine(2, "DECOMMISSIONED")], 2.0) == [], "it is reported once"
    assert nodes.look([machine(1), machine(2)], 3.0) == [e.NodeCame("node-3", SIZE)]
    assert nodes.look([machine(1, "DECOMMISSIONED"), machine(2)], 4.0) == [
        e.NodeLeft("node-1", "node h1 was decommissioned")
    ]


@pytest.mark.parametrize(("state", "told"), [("LOST", "is lost"), ("UNHEALTHY", "is unhealthy"), ("", "is gone")])
def test_a_missing_machine_may_return_for_a_while(state: str, told: str) -> None:
    nodes = looked(2)
    found = [machine(1), *([machine(2, state)] if state else [])]
    assert nodes.look(found, 10.0) == nodes.look(found, 9.0 + MISSING_S) == []
    assert nodes.look([machine(1), machine(2)], 9.5 + MISSING_S) == []
    assert nodes.look(found, 20.0 + MISSING_S) == nodes.look(found, 19.0 + 2 * MISSING_S) == [], (
        "counted from the start"
    )
    assert nodes.look(found, 20.0 + 2 * MISSING_S) == [e.NodeLeft("node-2", f"node h2 {told}")]


def test_a_restarted_resourcemanager_loses_no_node() -> None:
    nodes = looked(3)
    for at_s in (1.0, 2.0, 3.0):
        assert nodes.look([], at_s) == []
    assert nodes.look([machine(2)], 4.0) == nodes.look([machine(k) for k in (1, 2, 3)], 30.0) == []


def test_a_nodemanager_restarted_on_another_port_is_the_same_machine() -> None:
    nodes = looked(2)
    assert nodes.look([machine(1), machine(2, "LOST")], 1.0) == []
    assert nodes.look([machine(1), machine(2, "LOST"), machine(2, port=7)], 2.0) == []
    assert nodes.look([machine(1), machine(2, port=7)], 100.0) == []


def test_more_machines_are_used_and_smaller_ones_are_not() -> None:
    nodes = looked(1)
    larger = machine(2, size=Resources(64, 1 << 20))
    assert nodes.look([machine(1), larger, machine(3, size=Resources(4, 4095))], 1.0) == [e.NodeCame("node-2", SIZE)]


def test_slots_of_a_restarted_scheduler_get_machines_and_the_rest_leave() -> None:
    nodes = Nodes(SIZE, ["node-1", "node-2", "node-7"])
    assert nodes.look([machine(1), machine(2)], 0.0) == []
    assert nodes.look([machine(1), machine(2)], MISSING_S) == [
        e.NodeLeft("node-7", "a node from before this service restarted is no longer in the cluster")
    ]


class Cluster:
    """Machines that a test changes; with None the cluster does not answer."""

    def __init__(self, *machines: Machine) -> None:
        self.machines: tuple[Machine, ...] | None = machines
        self.looks = 0
        self.looked = threading.Event()

    def __call__(self) -> tuple[Machine, ...]:
        self.looks += 1
        self.looked.set()
        if self.machines is None:
            raise PeerUnavailableError("no ResourceManager can be reached")
        return self.machines


def in_use(scheduler: LiveScheduler) -> list[str]:
    return scheduler.ask(scheduler.state.ledger.in_use)


CLUSTER = ClusterSpec(nodes=2, vcores=4, memory="4096MiB", container_memory="1024MiB")


@pytest.fixture
def scheduler(world: World) -> Iterator[LiveScheduler]:
    with LiveScheduler(CLUSTER.capacities(), LiveSettings("static")) as found:
        yield found


def test_a_scheduler_learns_of_nodes_while_it_runs(scheduler: LiveScheduler) -> None:
    cluster = Cluster(machine(1), machine(2))
    with YarnNodes(scheduler, CLUSTER, cluster, every_s=0.01) as nodes:
        nodes.look()
        cluster.machines = (machine(1), machine(2, "DECOMMISSIONED"), machine(3))
        wait_for(lambda: in_use(scheduler) == ["node-1", "node-3"], TIMEOUT_S, "the nodes that there are")
        cluster.machines = None
        before = cluster.looks
        wait_for(lambda: cluster.looks > before + 2, TIMEOUT_S, "reads without an answer")
        assert in_use(scheduler) == ["node-1", "node-3"]
        told = scheduler.ask(lambda: [decision.sentence for decision in scheduler.registry.timeline.decisions])
        assert told == ["node h2 was decommissioned: the cluster has 2 nodes left"]
    assert scheduler.look_at_cluster is None


def test_a_lost_container_is_not_freed_on_its_lost_node(scheduler: LiveScheduler) -> None:
    cluster = Cluster(machine(1), machine(2))
    with YarnNodes(scheduler, CLUSTER, cluster, every_s=3600.0) as nodes:
        nodes.look()
        scheduler.submit(e.JobSubmitted(request("t1", 5, 1, worker=UNIT, server=UNIT, master=UNIT)), JobSpec())
        scheduler.settle(TIMEOUT_S)
        cluster.machines = (machine(1), machine(2, "DECOMMISSIONING"))
        places = [c.container_id for c in scheduler.ask(lambda: scheduler.state.ledger.of_job("t1", Role.WORKER))][:3]
        scheduler._on_job_event(e.ContainersGone("t1", tuple(places), "its container is on node h2"))
        scheduler.settle(TIMEOUT_S)
        told = scheduler.ask(lambda: [decision.sentence for decision in scheduler.registry.timeline.decisions])
        assert told[1:] == [
            "node h2 is being decommissioned: the cluster has 1 node left",
            "t1 loses 3 workers: its container is on node h2",
        ]
        cluster.machines = (machine(1), machine(2))
        nodes.look()
        scheduler.settle(TIMEOUT_S)
        told = scheduler.ask(lambda: [decision.sentence for decision in scheduler.registry.timeline.decisions])
        assert told[3] == "t1 gets 3 workers again, which the cluster took (its container is on node h2)"


def test_a_service_resumes_with_the_nodes_of_its_record(world: World, tmp_path: Path) -> None:
    directory, cluster = ServiceDir(tmp_path / "service"), Cluster(machine(1), machine(2))
    yarn = {"on": "yarn", "memory_mb": "1024", "vcores": "1"}
    settings = ServiceSettings(nodes=2, vcores=4, memory="4096MiB", job_settings=yarn)
    with Service(directory, settings, machines=cluster) as service:
        service.leave()
    cluster.machines = (machine(1), machine(2, "DECOMMISSIONED"), machine(3), machine(4))
    # The nodes of the cluster now.
    with Service(directory, replace(settings, nodes=3), machines=cluster) as service:
        assert service._nodes is not None
        service._nodes.look()
        service.scheduler.settle(TIMEOUT_S)
        assert in_use(service.scheduler) == ["node-1", "node-2", "node-3"]
        service.leave()
    with closing(SqliteRecord(directory.record)) as record:
        assert [entry.event for entry in record.entries()] == [e.NodeCame("node-3", SIZE)]
        assert record.header is not None and list(record.header.nodes) == ["node-1", "node-2"]


def test_machines_have_their_state_and_capacity() -> None:
    node = ClusterNode("h1:1", "", Resource(4096, 4), (), 1, "UNHEALTHY")
    yarn: Any = SimpleNamespace(nodes=lambda states: [node])
    assert machines_of(yarn) == [machine(1, "UNHEALTHY")]
