"""Idle capacity, as an application master derives it from its headroom."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from eps.cluster.api import ContainerRequest, EvictionWarning
from eps.cluster.yarn.allocation import Allocation, Limits, Placement
from eps.cluster.yarn.application import MasterOrders
from eps.cluster.yarn.attempt import PREEMPTION_WAIT, Yarn, configuration
from eps.cluster.yarn.headroom import Headroom, Home, fitting
from eps.cluster.yarn.types import (
    AllocateResult,
    Completed,
    Grant,
    NodeChange,
    NodeUpdate,
    Preemption,
    Registration,
    Resource,
)
from eps.errors import ConfigError
from eps.job.yarn.am import template_of
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import Runtime
from tests.fakes.yarn import FakeYarn

QUIET_S = 10.0
SMALL, LARGE = Resource(512, 1), Resource(2048, 2)
FREE = Resource(4096, 4)
CONTAINER, NODE = "container_1700000000000_0001_01_000002", "node-1:1"


def allocation(*, counts_cores: bool = True, label: str = "", home: Home | None = None) -> Allocation:
    """Return one with a container of a worker that runs, on node-1."""
    places = {"worker": Placement(size=SMALL), "server": Placement(label, size=LARGE)}
    found = Allocation(places, Limits(quiet_s=QUIET_S), home=home)
    found.on_registered(Registration(Resource(8192, 8), counts_cores=counts_cores))
    found.request(ContainerRequest("container-0001", "worker", 512), 0.0)
    found.take_turn()
    beat(found, 0.0, None, granted=(Grant(CONTAINER, NODE, 1, SMALL),))
    found.on_started("container-0001")
    return found


def beat(
    found: Allocation,
    now_s: float,
    headroom: Resource | None = FREE,
    *,
    granted: tuple[Grant, ...] = (),
    completed: tuple[Completed, ...] = (),
    preempted: bool = False,
) -> dict[str, int]:
    """Process a heartbeat and return the idle capacity after it."""
    message = Preemption(negotiable=(CONTAINER,)) if preempted else None
    found.on_allocated(AllocateResult(granted, completed, preemption=message, headroom=headroom), now_s)
    return found.room(now_s)


def test_room_is_what_has_been_free_all_the_while() -> None:
    found = allocation()
    beat(found, 1.0)
    # Capacity that is free for a moment only goes to another application.
    more = [beat(found, at_s, Resource(8192, 8) if at_s == 15.0 else FREE) for at_s in (5.0, 11.0, 15.0, 16.0)]
    assert more[1:] == [{"worker": 4, "server": 2}] * 3
    assert beat(found, 17.0, Resource(1024, 1)) == {"worker": 1}
    # That it was less for a moment says that somebody was given room.
    assert beat(found, 18.0) == {"worker": 1}
    assert beat(found, 27.0)["worker"] == 1
    assert beat(found, 28.5) == {"worker": 4, "server": 2}


def test_nothing_is_room_before_it_was_watched_for_a_while() -> None:
    found = Headroom(QUIET_S)
    assert found.least(5.0) is None and found.quiet_for(5.0) == 0.0
    found.note(FREE, 5.0)
    assert found.least(14.9) is None
    assert found.least(15.0) == FREE


def test_while_somebody_is_given_room_there_is_none_nor_for_a_while_after_that() -> None:
    found = allocation()
    for at_s in range(1, 20):
        beat(found, float(at_s))
    assert found.room(19.0)["worker"] == 4
    beat(found, 20.0, preempted=True)
    during = [beat(found, 20.0 + at_s) for at_s in range(1, 30)]
    gone = beat(found, 50.0, completed=(Completed(CONTAINER, -100),))
    after = [beat(found, 50.0 + at_s) for at_s in range(1, 10)]
    assert [{}] * 39 == [*during, gone, *after]
    assert beat(found, 60.0) == {"worker": 4, "server": 2}


def test_cores_count_only_where_yarn_counts_them() -> None:
    found = allocation(counts_cores=False)
    assert [beat(found, at_s, Resource(4096, -3)) for at_s in (1.0, 12.0)][-1] == {"worker": 8, "server": 2}
    assert fitting(Resource(4096, -3), SMALL, True) == 0


@pytest.mark.parametrize("headroom", [None, Resource(64, 1)])
def test_where_yarn_tells_of_no_room_one_is_tried_after_a_longer_while(headroom: Resource | None) -> None:
    """Above its queue's share an application sees almost no headroom."""
    found = allocation()
    early = [beat(found, at_s, headroom) for at_s in (1.0, 12.0, 19.5)]
    assert early == [{}] * 3
    assert beat(found, 20.5, headroom) == {"worker": 1, "server": 1}


def test_of_nodes_with_a_label_yarn_tells_nothing() -> None:
    found = allocation(label="transient")
    assert [beat(found, at_s) for at_s in (1.0, 12.0)][-1] == {"worker": 4}
    assert beat(found, 20.5) == {"worker": 4, "server": 1}


def test_what_was_asked_for_in_vain_is_left_alone_for_as_long_again() -> None:
    found = allocation()
    found.request(ContainerRequest("container-0002", "worker", 512), 1.0)
    found.take_turn()
    assert [beat(found, at_s) for at_s in (1.0, 12.0)][-1] == {"worker": 4, "server": 2}
    found.release("container-0002")
    assert [beat(found, at_s) for at_s in (13.0, 22.0)] == [{}, {}]
    assert beat(found, 23.5) == {"worker": 4, "server": 2}


@pytest.mark.parametrize("home", [NODE, "node-2:1"])
def test_while_the_node_of_the_master_goes_room_for_the_next_one_stays_free(home: str) -> None:
    found = allocation(home=Home(home, Resource(1024, 1)))
    leaving = AllocateResult(headroom=FREE, nodes=(NodeUpdate(home, NodeChange.DECOMMISSIONING, "", 60.0),))
    found.on_allocated(leaving, 1.0)
    warned = [event for event in found.take_events() if isinstance(event, EvictionWarning)]
    # What was drained from there is not asked for again before there is room besides.
    assert [event.for_others for event in warned] == [True] * (home == NODE)
    beat(found, 2.0, completed=(Completed(CONTAINER, -105),))
    assert [beat(found, at_s) for at_s in (3.0, 13.5)][-1] == {"worker": 3, "server": 1}
    assert beat(found, 13.6, Resource(1024, 1)) == {}
    # Where nothing is told of, the last container's worth is not tried.
    assert [beat(found, at_s, None) for at_s in (14.0, 60.0)] == [{}, {}]
    found.on_allocated(AllocateResult(headroom=FREE, nodes=(NodeUpdate(home, NodeChange.USABLE),)), 61.0)
    assert [beat(found, at_s) for at_s in (62.0, 72.0)][-1] == {"worker": 4, "server": 2}


def test_members_of_another_node_that_goes_are_asked_for_again_at_once() -> None:
    found = allocation(home=Home("node-2:1", Resource(1024, 1)))
    found.on_allocated(AllocateResult(nodes=(NodeUpdate(NODE, NodeChange.DECOMMISSIONING, "", 60.0),)), 1.0)
    assert [event.for_others for event in found.take_events() if isinstance(event, EvictionWarning)] == [False]


def test_the_master_of_a_job_has_its_home_where_a_node_manager_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JobSpec().with_settings(data="x", memory_mb="512,master=1024", vcores="1")
    monkeypatch.delenv("NM_HOST", raising=False)
    assert Yarn.home(spec) is None
    monkeypatch.setenv("NM_HOST", "node-1")
    monkeypatch.setenv("NM_PORT", "8041")
    assert Yarn.home(spec) == Home("node-1:8041", Resource(1024, 1))


def test_application_master_knows_what_its_containers_take() -> None:
    runtime = cast(
        Runtime,
        SimpleNamespace(spec=JobSpec().with_settings(data="x", memory_mb="512,server=2048", vcores="1,server=2")),
    )
    places = template_of(MasterOrders("hdfs://h/x", "python", {}, {}), runtime).placements
    assert (places["worker"].size, places["server"].size) == (SMALL, LARGE)


def limits_of(preemption_wait_ms: str) -> Limits:
    yarn = Yarn(*FakeYarn().clients(), preemption_wait_ms=preemption_wait_ms)
    return yarn.limits(JobSpec().with_settings(data="x", container_timeout_s=0.0, grow_back_s=4.0))


def test_how_long_room_must_be_free_is_a_setting() -> None:
    assert limits_of("8000") == Limits(quiet_s=4.0, preemption_s=8.0)
    with pytest.raises(ConfigError, match=r"grow_back_s is -1\.0, but must be at least 0"):
        JobSpec().with_settings(data="x", grow_back_s=-1.0)


def test_what_the_scheduler_is_told_goes_before_what_all_are_told_of_preemption(tmp_path: Path) -> None:
    def write(name: str, wait_ms: int, final: str = "") -> None:
        values = f"<name>{PREEMPTION_WAIT}</name><value>{wait_ms}</value>{final}"
        (tmp_path / name).write_text(f"<configuration><property>{values}</property></configuration>")

    (tmp_path / "core-site.xml").write_text("<configuration/>")
    assert configuration(str(tmp_path)).get(PREEMPTION_WAIT) == ""
    write("yarn-site.xml", 9000)
    assert configuration(str(tmp_path)).get(PREEMPTION_WAIT) == "9000"
    write("capacity-scheduler.xml", 8000)
    assert limits_of(configuration(str(tmp_path)).get(PREEMPTION_WAIT)).preemption_s == 8.0
    write("yarn-site.xml", 7000, "<final>true</final>")
    assert configuration(str(tmp_path)).get(PREEMPTION_WAIT) == "7000"
