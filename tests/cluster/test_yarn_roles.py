"""Containers by role: where a job's settings say, and as firmly; those that are not firm make room without a word."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.api import ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.yarn.allocation import Placement
from eps.cluster.yarn.application import MasterOrders
from eps.cluster.yarn.resources import YarnResourceManager
from eps.cluster.yarn.types import Execution, Resource
from eps.errors import ConfigError
from eps.job.yarn.am import template_of
from eps.spec.job_spec import JobSpec
from tests.cluster.test_yarn_manager import FAST, collect, name
from tests.fakes.yarn import FakeYarn

SPEC = JobSpec().with_settings(label="worker=transient", execution="worker=opportunistic")


def placements(spec: JobSpec) -> dict[str, Placement]:
    runtime: Any = SimpleNamespace(spec=spec)
    return dict(template_of(MasterOrders("hdfs://nn/shared", "python", {}, {}), runtime).placements)


def test_label_and_execution_are_those_of_the_role() -> None:
    size = Resource(1024, 1)
    assert placements(SPEC) == {
        "worker": Placement("transient", Execution.OPPORTUNISTIC, size=size),
        "server": Placement("", Execution.GUARANTEED, size=size),
    }
    everywhere = placements(JobSpec().with_settings(label="reliable"))
    assert set(everywhere.values()) == {Placement("reliable", Execution.GUARANTEED, size=size)}
    with pytest.raises(ConfigError, match="execution of the master is opportunistic"):
        JobSpec().with_settings(execution="opportunistic,master=opportunistic")


@pytest.fixture
def yarn() -> FakeYarn:
    """Two nodes, each with room for two containers; the second has a label."""
    found = FakeYarn({"n-1:1": Resource(2048, 2), "n-2:1": Resource(2048, 2)})
    found.labels["n-2:1"] = "transient"
    return found


@pytest.fixture
def manager(yarn: FakeYarn, no_leftovers: None) -> Iterator[YarnResourceManager]:
    runtime: Any = SimpleNamespace(spec=SPEC)
    template = template_of(MasterOrders("hdfs://nn/shared", "python", {}, {}), runtime)
    found = YarnResourceManager(*yarn.clients(), template, timing=FAST)
    yield found
    found.close()


def want(manager: YarnResourceManager, role: str, *numbers: int) -> None:
    for number in numbers:
        manager.request(ContainerRequest(name(number), role, env={"EPS_MASTER_ADDRESS": "h:1"}))


def test_what_a_role_asks_for_it_gets_and_nobody_elses(manager: YarnResourceManager, yarn: FakeYarn) -> None:
    want(manager, "worker", 1, 2)
    collect(manager, Running, 1, 2)
    grants = [yarn.named(name(number)).grant for number in (1, 2)]
    assert {grant.node for grant in grants} == {"n-2:1"}
    assert {grant.execution for grant in grants} == {Execution.OPPORTUNISTIC}
    # There is no third with the label, though the other node is empty.
    want(manager, "worker", 3)
    yarn.wait_for("the third to be asked for")
    assert [(ask.label, ask.execution) for ask in yarn.outstanding()] == [("transient", Execution.OPPORTUNISTIC)]
    assert manager.poll() == []


def test_a_worker_that_is_not_firm_makes_room_for_a_server_without_a_warning(
    manager: YarnResourceManager, yarn: FakeYarn
) -> None:
    want(manager, "worker", 1, 2)
    want(manager, "server", 3, 4)
    collect(manager, Running, 1, 2, 3, 4)
    want(manager, "server", 5)
    events = collect(manager, Running, 5)
    ended = [event for event in events if isinstance(event, Exited)]
    assert {event.container_id for event in ended} == {name(1), name(2)}
    assert {(event.code, event.reason) for event in ended} == {
        (None, "was ended to make room for a guaranteed container on n-2: it was opportunistic")
    }
    assert not [event for event in events if isinstance(event, EvictionWarning)]
    assert yarn.named(name(5)).grant.execution is Execution.GUARANTEED
