"""Other resources than memory and cores, rights, priority and lifetime: from a job's settings to what YARN is told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.api import ContainerRequest
from eps.cluster.yarn.allocation import Allocation
from eps.cluster.yarn.application import MasterOrders, resource_of, role_templates
from eps.cluster.yarn.checks import Cluster, check_job
from eps.cluster.yarn.hadoop import client as hadoop_client
from eps.cluster.yarn.hadoop import records
from eps.cluster.yarn.launch import LaunchTemplate, build_launch
from eps.cluster.yarn.types import Grant, Launch, Resource, Submission
from eps.errors import ConfigError
from eps.spec.job_spec import JobSpec
from tests.cluster.allocation_world import REGISTRATION, name
from tests.fakes.yarn_client import FakeYarnClient

GPU = ("yarn.io/gpu", 1)
ORDERS = MasterOrders("hdfs://nn/shared", "python", {}, {})


def test_a_resource_is_for_every_role_or_for_one() -> None:
    spec = JobSpec().with_settings(resource=("yarn.io/gpu=1", "worker=fpga=2", "master=yarn.io/gpu=0"))
    found = {role: resource_of(spec, role).others for role in ("worker", "server", "master")}
    assert found == {"worker": (("fpga", 2), GPU), "server": (GPU,), "master": ()}
    assert str(resource_of(spec, "server")) == "1024 MB and 1 vcore and 1 yarn.io/gpu"


def test_a_container_is_asked_for_with_what_its_role_has_and_says_who_may_see_it() -> None:
    spec = JobSpec().with_settings(resource=("worker=yarn.io/gpu=1",), acl=("view=ann,bob research", "modify=eve"))
    template = LaunchTemplate(role_templates(ORDERS, spec, {"worker": "w", "server": "s"}))
    allocation = Allocation(template.placements)
    allocation.on_registered(REGISTRATION)
    for number, role in ((1, "worker"), (2, "server")):
        allocation.request(ContainerRequest(name(number), role), 0.0)
    assert {ask.resource.others for ask in allocation.take_turn().asks} == {(GPU,), ()}
    grant = Grant("container_1_0001_01_000002", "n:1", 1, Resource(1024, 1))
    launch = build_launch(template, ContainerRequest(name(1), "worker"), grant)
    assert launch.access == {"view": "ann,bob research", "modify": "eve"}


@pytest.mark.parametrize(
    ("largest", "reason"),
    [
        (
            Resource(3072, 8),
            "resource gives a worker 2 yarn.io/gpu, but the cluster has no such resource: it has memory, vcores",
        ),
        (Resource(3072, 8, (("fpga", 1),)), "the cluster has no such resource: it has memory, vcores, fpga"),
        (
            Resource(3072, 8, (GPU,)),
            "resource gives a worker 2 yarn.io/gpu, but YARN grants at most 1 to one container",
        ),
    ],
)
def test_a_resource_that_the_cluster_has_not_is_refused(largest: Resource, reason: str) -> None:
    spec = JobSpec().with_settings(on="yarn", workers=1, servers=1, resource=("worker=yarn.io/gpu=2",))
    with pytest.raises(ConfigError, match=reason):
        check_job(Cluster(FakeYarnClient(largest=largest)), spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("largest", [Resource(3072, 8, (("yarn.io/gpu", 2),)), None])
def test_a_resource_that_the_cluster_has_or_does_not_tell_of_is_taken(largest: Resource | None) -> None:
    spec = JobSpec().with_settings(on="yarn", workers=1, servers=1, resource=("worker=yarn.io/gpu=2",))
    check_job(Cluster(FakeYarnClient(largest=largest)), spec)  # type: ignore[arg-type]


# ---- as Hadoop's records


class Map(dict[Any, Any]):
    """A map of Java."""

    def put(self, key: Any, value: Any) -> None:
        """Set a value."""
        self[key] = value


def test_hadoop_is_told_of_priority_and_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {}

    class Context:
        def __getattr__(self, name: str) -> Callable[[Any], None]:
            return lambda value: said.update({name: value})

    def record(name: str) -> Any:
        def new(*values: Any) -> Any:
            said[name] = values
            return Context() if name == "ApplicationSubmissionContext" else values

        return SimpleNamespace(newInstance=new, LIFETIME="LIFETIME")

    monkeypatch.setattr(hadoop_client, "record", record)
    monkeypatch.setattr(hadoop_client, "java", lambda name: Map)
    for function in ("java_launch", "java_resource", "java_application_id", "java_set", "jint", "jbool", "jlong"):
        monkeypatch.setattr(hadoop_client, function, lambda value: value)
    submission = Submission("x", Launch("true"), Resource(512, 1), priority=7, lifetime_s=59.5)
    hadoop_client._context("application_1_0001", submission)
    assert said["Priority"] == (7,)
    assert said["setApplicationTimeouts"] == {"LIFETIME": 60}


def test_hadoops_records_have_what_ours_have(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: dict[str, int] = {}
    resource = SimpleNamespace(setResourceValue=lambda name, number: set_to.update({name: number}))
    kinds = SimpleNamespace(VIEW_APP="VIEW_APP", MODIFY_APP="MODIFY_APP")

    def record(name: str) -> Any:
        if name == "ApplicationAccessType":
            return kinds
        return SimpleNamespace(newInstance=lambda *values: resource if name == "Resource" else values)

    class List(list[Any]):
        add = list.append

    monkeypatch.setattr(records, "record", record)
    monkeypatch.setattr(records, "java", lambda name: List if name.endswith("ArrayList") else Map)
    monkeypatch.setattr(records, "jlong", lambda value: value)
    monkeypatch.setattr(records, "jint", lambda value: value)
    assert records.java_resource(Resource(512, 1, (GPU,))) is resource and set_to == {"yarn.io/gpu": 1}
    launch = records.java_launch(Launch("true", access={"view": "ann", "modify": "bob ops"}))
    assert launch[-1] == {"VIEW_APP": "ann", "MODIFY_APP": "bob ops"}


def test_what_hadoop_has_beside_memory_and_cores_is_read() -> None:
    def information(name: str, value: int) -> Any:
        return SimpleNamespace(getName=lambda: name, getValue=lambda: value)

    told = [
        information("memory-mb", 512),
        information("vcores", 1),
        information("yarn.io/gpu", 1),
        information("fpga", 0),
    ]
    found = SimpleNamespace(getMemorySize=lambda: 512, getVirtualCores=lambda: 1, getResources=lambda: told)
    assert records.resource_of(found) == Resource(512, 1, (GPU,))
