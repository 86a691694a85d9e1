"""A sweep and a service with jobs on YARN: the nodes are YARN's, and all jobs get these settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from eps.cluster.yarn.application import resource_of
from eps.cluster.yarn.types import ClusterNode, Resource
from eps.errors import ConfigError, EpsError, ResourceError
from eps.hadoop.conf import HadoopConf
from eps.spec.job_spec import JobSpec
from hscheduler.cli import build_parser
from hscheduler.live.placement import cluster_of, container_settings, hosted, placed
from hscheduler.live.scheduler import LiveSettings
from hscheduler.record.api import Header
from hscheduler.service.main import ServiceSettings
from hscheduler.spec import ClusterSpec, Spec
from tests.fakes.yarn_client import FakeYarnClient

pytest.importorskip("requests")
SMALL = ClusterSpec(container_memory="512MiB")


def node(number: int, memory_mb: int, vcores: int) -> ClusterNode:
    return ClusterNode(f"n{number}:1", "", Resource(memory_mb, vcores), (), 0)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(4096, 4), (8192, 2), (4000, 16)], (2, 4, "4000MiB")),
        ([(65536, 16)] * 9 + [(1024, 2)], (9, 16, "65536MiB")),
        ([(4096, 4), (4096, 3)], (2, 3, "4096MiB")),
        ([(4096, 4), (300, 4)], (1, 4, "4096MiB")),
    ],
)
def test_nodes_count_with_the_size_that_holds_most_containers(
    sizes: list[tuple[int, int]], expected: tuple[int, int, str]
) -> None:
    found = cluster_of(SMALL, [node(number, *size) for number, size in enumerate(sizes)])
    assert (found.nodes, found.vcores, found.memory) == expected


def test_the_jobs_of_a_cluster_have_its_containers() -> None:
    found = cluster_of(SMALL, [node(1, 4096, 4)])
    assert container_settings(found) == {"on": "yarn", "memory_mb": "512", "vcores": "1"}
    spec = JobSpec().with_settings(**container_settings(found))
    assert spec.on == "yarn" and spec.containers.memory_of("master") == 512
    assert hosted(spec) == spec
    both = spec.with_settings(reliable=2)
    assert resource_of(both, "reliable") == Resource(1024, 2), "of a worker and a server"
    assert resource_of(hosted(both), "reliable") == Resource(512, 1), "the scheduler counts one container"


@pytest.mark.parametrize(
    ("nodes", "kind", "reason"),
    [
        ([], ResourceError, "no running node"),
        (
            [node(1, 500, 4)],
            ConfigError,
            "a container of 1 vcore and 512 MiB fits no node of 4 vcores and 500 MiB: set container_memory",
        ),
    ],
)
def test_a_cluster_without_room_is_refused(nodes: list[ClusterNode], kind: type[EpsError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        cluster_of(SMALL, nodes)


def test_a_local_sweep_contacts_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert placed(Spec(), None) == placed(Spec(), "local") == Spec()
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR"):
        placed(Spec(), "yarn")
    with pytest.raises(ConfigError, match=r"'mars', .*, docker, yarn"):
        placed(Spec(), "mars")


@pytest.fixture
def yarn(monkeypatch: pytest.MonkeyPatch) -> FakeYarnClient:
    """Return a YARN with nodes of at least 2048 MB and 4 cores."""
    found = FakeYarnClient()
    monkeypatch.setattr("hscheduler.live.placement.environment_configuration", HadoopConf)
    monkeypatch.setattr("hscheduler.live.placement.YarnClient", lambda conf: found)
    return found


JOB: dict[str, Any] = {"data": __file__, "workers": 1, "servers": 1}
TABLES: dict[str, Any] = {"sweep": {"trials": 2}, "space": {"l2": {"choice": [0.0, 1.0]}}, "job": JOB}


def sweep_of(**job: Any) -> Spec:
    return Spec.of({**TABLES, "cluster": {"container_memory": "512MiB"}, "job": {**JOB, **job}})


def test_a_sweep_of_trials_that_yarn_accepts_is_placed(yarn: FakeYarnClient, caplog: pytest.LogCaptureFixture) -> None:
    found = placed(sweep_of(workers=9, servers=4), "yarn")
    (said,) = caplog.messages
    assert "queue 'default' has at most 6144" in said, "once, and taken"
    assert "use fewer or smaller containers (container_memory in [cluster]), or another queue" in said
    assert (found.cluster.nodes, found.cluster.vcores, found.job["memory_mb"]) == (2, 4, "512")
    assert yarn.asked == ["nodes", "default", "nodes"], "for any number of points"


@pytest.mark.parametrize(
    ("told", "job", "reason"),
    [
        ({}, {"queue": "nope"}, "no trial can work: queue is 'nope', but the cluster has no queue of that name"),
        ({"state": "STOPPED"}, {}, "no trial can work: queue is 'default', but it is STOPPED"),
        ({"may_submit": False}, {}, "no trial can work: queue is 'default', but ada may not submit to it"),
        ({}, {"label": "gpu"}, "no trial can work: label is 'gpu', but queue 'default' allows only: transient"),
        (
            {"largest": Resource(256, 1)},
            {},
            "memory_mb is .512., which gives a master 512, but must give it at most 256: YARN grants at most",
        ),
    ],
)
def test_a_sweep_without_a_trial_that_yarn_accepts_is_refused(
    yarn: FakeYarnClient, told: dict[str, Any], job: dict[str, Any], reason: str
) -> None:
    yarn.tells(**told)
    with pytest.raises(ConfigError, match=reason):
        placed(sweep_of(**job), "yarn")


def test_a_sweep_with_some_trials_that_yarn_accepts_is_placed(yarn: FakeYarnClient) -> None:
    table = {key: value for key, value in JOB.items() if key != "workers"}
    spec = Spec.of({**TABLES, "cluster": {"container_memory": "512MiB"}, "job": table,
                    "space": {"label": {"choice": ["gpu", "transient"]}}})  # fmt: skip
    assert placed(spec, "yarn").cluster.nodes == 2


def test_a_restarted_service_knows_where_its_jobs_run() -> None:
    found = cluster_of(SMALL, [node(1, 4096, 4)])
    asked = ServiceSettings(nodes=1, vcores=4, memory="4096MiB", job_settings=container_settings(found))
    live = asked.live(None)
    assert live.job_settings == {"on": "yarn", "memory_mb": "512", "vcores": "1"}
    header = Header(nodes={"node-1": [4, 4096]}, tag="x", **dataclasses.asdict(live))
    again = ServiceSettings()
    assert again.live(header) == live
    assert again.cluster(header) == asked.cluster(None) == found
    assert ServiceSettings().live(None) == LiveSettings()


def test_the_help_of_sweep_names_what_sets_the_size_of_containers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["sweep", "--help"])
    said, asked = capsys.readouterr().out, ClusterSpec()
    assert f"container_vcores = {asked.container_vcores}" in said
    assert f'container_memory = "{asked.container_memory}"' in said
