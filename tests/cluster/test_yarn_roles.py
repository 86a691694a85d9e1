"""Containers by role: where a job's settings say, and as firmly; those that are not firm make room without a word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.api import ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.yarn.allocation import Placement
from eps.cluster.yarn.application import MasterOrders, resource_of
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


TIERS: dict[str, Any] = {
    "on": "yarn", "reliable": 1, "transient": 2, "splits": 12, "memory_mb": "256,server=512", "vcores": "1,server=2",
    "label": "reliable=ondemand,transient=spot",
}  # fmt: skip


def test_a_container_of_a_tier_has_room_for_both_roles_and_transient_ones_are_preempted_first() -> None:
    spec = JobSpec().with_settings(**TIERS, execution="transient=opportunistic", resource=("worker=yarn.io/gpu=1",))
    size = Resource(768, 3, (("yarn.io/gpu", 1),))
    assert placements(spec) == {
        "reliable": Placement("ondemand", Execution.GUARANTEED, priority=1, size=size),
        "transient": Placement("spot", Execution.OPPORTUNISTIC, priority=2, size=size),
    }
    assert spec.yarn.label_of("master") == "ondemand"
    assert spec.with_settings(label="any,transient=spot").yarn.label_of("master") == "any"
    assert spec.with_settings(label="transient=spot").yarn.label_of("master") == ""
    everywhere = placements(spec.with_settings(label="one"))
    assert {place.label for place in everywhere.values()} == {"one"}
    assert resource_of(spec.with_settings(resource=("yarn.io/gpu=1",)), "transient") == size, "one process has one"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"label": "transient=spot"}, "the job has no transient containers: add --reliable and --transient"),
        ({"execution": "transient=opportunistic"}, "the job has no transient containers"),
        ({**TIERS, "label": "worker=spot"}, "the job has no worker containers: name tiers instead"),
        ({**TIERS, "label": "spare=spot"}, "roles are worker, server, master; tiers are reliable, transient"),
        ({**TIERS, "memory_mb": "transient=2048"}, "must have a number from 1 on for a worker"),
        (
            {**TIERS, "execution": "opportunistic,master=guaranteed"},
            "reliable ones must be guaranteed: use transient=opportunistic",
        ),
        ({**TIERS, "max_containers": 2}, "1 reliable and 2 transient containers need 3: raise it"),
    ],
)
def test_placements_that_a_job_cannot_have_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        JobSpec().with_settings(**settings)


def test_a_label_may_have_the_name_of_a_role_or_tier() -> None:
    assert JobSpec().with_settings(label="transient").yarn.label_of("worker") == "transient"


def test_containers_of_a_tier_are_on_its_nodes_and_run_the_process_of_both_roles(no_leftovers: None) -> None:
    yarn = FakeYarn({"n-1:1": Resource(2048, 8), "n-2:1": Resource(2048, 8)})
    yarn.labels.update({"n-1:1": "ondemand", "n-2:1": "spot"})
    runtime: Any = SimpleNamespace(spec=JobSpec().with_settings(**TIERS))
    template = template_of(MasterOrders("hdfs://nn/shared", "python", {}, {}), runtime)
    with closing(YarnResourceManager(*yarn.clients(), template, timing=FAST)) as manager:
        for number, tier in enumerate(("reliable", "transient", "transient", "transient"), 1):
            manager.request(ContainerRequest(name(number), "server+worker", 768, 3, tier=tier))
        collect(manager, Running, 1, 2, 3)
        assert [yarn.named(name(number)).grant.node for number in (1, 2, 3)] == ["n-1:1", "n-2:1", "n-2:1"]
        launch = yarn.named(name(2)).launch
        assert launch is not None and launch.env["EPS_ROLE"] == "server+worker"
        assert "--entry server+worker=eps.job.member:run" in launch.command
        assert [(ask.label, ask.priority) for ask in yarn.outstanding()] == [("spot", 2)]
        yarn.preempt(name(2))
        (warning,) = collect(manager, EvictionWarning, 2)
        assert isinstance(warning, EvictionWarning) and warning.for_others
        yarn.take(name(3))
        ended = [event for event in collect(manager, Exited, 3) if isinstance(event, Exited)]
        assert [event.taken for event in ended] == [True]


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
