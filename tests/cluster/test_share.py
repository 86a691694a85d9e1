"""One job's share of an application's containers: limits, names, and the containers of a new master."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from eps.cluster.api import WITHDRAWN, Allocated, ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.broker.share import (
    EndContainers,
    KillContainer,
    Order,
    ReleaseContainer,
    Share,
    WantContainer,
)
from eps.errors import ConfigError


def share(max_containers: int = 0, lease: int | None = None) -> Share:
    numbers = itertools.count(1)
    return Share("one", lambda: f"n-{next(numbers)}", lambda role: f"one/{role}", max_containers, lease)


def want(container_id: str, role: str = "worker") -> WantContainer:
    return WantContainer(ContainerRequest(container_id, role, 512, 2, {"A": "b"}))


def names(orders: list[Order]) -> list[str]:
    return [order.request.container_id for order in orders if isinstance(order, WantContainer)]


def started(found: Share, *container_ids: str) -> list[str]:
    """Have containers asked for, granted and started; return their names."""
    called = []
    for container_id in container_ids:
        (name,) = names(found.take(want(container_id)))
        found.on_event(Allocated(name), 0.0)
        found.on_event(Running(name, len(called) + 10, "h"), 0.0)
        called.append(name)
    found.events.clear()
    return called


def test_a_container_has_a_name_of_its_own_and_says_whose_it_is() -> None:
    (order,) = share().take(want("c-7", "server"))
    assert isinstance(order, WantContainer)
    env = {"A": "b", "EPS_ROLE": "server", "EPS_CONTAINER_ID": "c-7"}
    assert order.request == ContainerRequest("n-1", "one/server", 512, 2, env)


def test_events_are_told_under_the_jobs_own_id() -> None:
    found = share()
    found.take(want("c-7"))
    for event in (Allocated("n-1"), Running("n-1", 5, "h"), EvictionWarning("n-1", 3.0, "why"), Exited("n-1", 1, "x")):
        assert found.on_event(event, 0.0) == []
    assert found.events == [
        Allocated("c-7"), Running("c-7", 5, "h"), EvictionWarning("c-7", 3.0, "why"), Exited("c-7", 1, "x"),
    ]  # fmt: skip
    found.on_event(Exited("n-1", 1, "again"), 0.0)
    assert len(found.events) == 4


def test_what_is_beyond_the_lease_waits_until_it_grows() -> None:
    found = share(lease=0)
    assert found.take(want("c-1")) == [] and found.take(want("c-2")) == [] and found.take(want("c-3")) == []
    assert names(found.set_lease(2)) == ["n-1", "n-2"]
    assert found.set_lease(1) == [], "what is there stays until the job gives it back"
    assert found.on_event(Exited("n-1", 0, "x"), 0.0) == []
    assert names(found.on_event(Exited("n-2", 0, "x"), 0.0)) == ["n-3"]


def test_the_jobs_own_limit_holds_beside_the_lease() -> None:
    found = share(max_containers=1, lease=5)
    assert names(found.take(want("c-1"))) == ["n-1"] and found.take(want("c-2")) == []
    with pytest.raises(ConfigError, match="max_containers is -1"):
        share(max_containers=-1)


def test_what_waits_is_withdrawn_and_what_was_asked_for_is_given_back() -> None:
    found = share(lease=1)
    found.take(want("c-1"))
    found.take(want("c-2"))
    assert found.take(ReleaseContainer("c-2")) == []
    assert found.events == [Exited("c-2", None, WITHDRAWN)]
    assert found.take(ReleaseContainer("c-1")) == [ReleaseContainer("n-1")]
    assert found.take(KillContainer("c-1")) == [KillContainer("n-1")]
    assert found.take(ReleaseContainer("c-9")) == [] and found.take(KillContainer("c-9")) == []


def test_a_new_master_finds_what_runs_and_the_rest_is_given_back_unsaid() -> None:
    found = share(lease=3)
    (running,) = started(found, "c-1")
    found.take(want("c-2"))
    found.on_event(Allocated("n-2"), 0.0)
    found.take(want("c-3"))
    found.take(want("c-4"))
    adopted, orders = found.begin(0.0)
    assert adopted == {"c-1": 10} and orders == [ReleaseContainer("n-2"), ReleaseContainer("n-3")]
    for event in (Running("n-2", 7, "h"), Exited("n-2", None, "x"), Exited("n-3", None, "x")):
        assert found.on_event(event, 0.0) == []
    assert found.events == []
    assert found.end() == [ReleaseContainer(running)]
    found.on_event(Exited(running, 1, "y"), 0.0)
    assert found.events == [Exited("c-1", 1, "y")]


def test_a_new_master_is_warned_of_what_the_one_before_was_warned_of() -> None:
    found = share()
    one, two, three = started(found, "c-1", "c-2", "c-3")
    found.take(want("c-4"))
    found.on_event(Allocated("n-4"), 0.0)
    for warning in (EvictionWarning(one, 30.0, "first"), EvictionWarning(one, 10.0, "latest", True)):
        found.on_event(warning, 100.0)
    for name in (two, three, "n-4"):
        found.on_event(EvictionWarning(name, 2.0, "soon"), 100.0)
    found.on_event(Exited(three, 0, "x"), 101.0)
    found.begin(106.0)
    latest, late = EvictionWarning("c-1", 4.0, "latest", True), EvictionWarning("c-2", 0.0, "soon")
    assert found.events == [latest, late], "of what it has, the latest; and no time is less than none"
    found.begin(107.0)
    assert found.events == [dataclasses.replace(latest, deadline_s=3.0), late]


def test_what_a_new_master_gave_back_counts_until_it_has_ended() -> None:
    found = share(lease=1)
    found.take(want("c-1"))
    found.begin(0.0)
    assert found.take(want("c-2")) == []
    assert names(found.on_event(Exited("n-1", None, "x"), 0.0)) == ["n-2"]


def test_a_new_master_asks_by_the_same_id_for_what_was_waited_for() -> None:
    found = share(lease=3)
    started(found, "c-1")
    assert names(found.take(want("c-2"))) == ["n-2"]
    assert found.begin(0.0) == ({"c-1": 10}, [ReleaseContainer("n-2")])
    assert names(found.take(want("c-2"))) == ["n-3"]
    found.on_event(Exited("n-2", None, "given back"), 0.0)
    assert found.events == [], "that was of the request before"
    found.take(want("c-1"))
    assert found.events == [Exited("c-1", None, "was refused: its id was used before")]


def test_a_job_that_ends_gives_all_back_and_has_nothing_more() -> None:
    found = share(lease=2)
    started(found, "c-1", "c-2")
    found.take(want("c-3"))
    assert found.take(EndContainers()) == [ReleaseContainer("n-1"), ReleaseContainer("n-2")]
    assert found.on_event(Exited("n-1", None, "x"), 0.0) == []
    assert found.take(want("c-4")) == []
    assert [event for event in found.events if event.container_id in ("c-3", "c-4")] == [
        Exited("c-3", None, WITHDRAWN), Exited("c-4", None, "was refused: the job is ending"),
    ]  # fmt: skip


def test_an_id_is_used_once() -> None:
    found = share()
    found.take(want("c-1"))
    assert found.take(want("c-1")) == []
    assert found.events == [Exited("c-1", None, "was refused: its id was used before")]
