"""A sweep and a service whose jobs run on YARN: the cluster is YARN's, and every job is told where it runs."""

from __future__ import annotations

import dataclasses

import pytest

from eps.config import JobSpec
from eps.errors import ConfigError, EpsError, ResourceError
from eps.yarn.types import ClusterNode, Resource
from hscheduler.cli import build_parser
from hscheduler.commands.serve import placed_settings
from hscheduler.live.journal import Header
from hscheduler.live.scheduler import LiveSettings
from hscheduler.on_yarn import cluster_of, container_settings, placed
from hscheduler.service.main import ServiceSettings
from hscheduler.spec import ClusterSpec, Spec

pytest.importorskip("requests")
SMALL = ClusterSpec(container_memory="512MiB")


def node(number: int, memory_mb: int, vcores: int) -> ClusterNode:
    return ClusterNode(f"n{number}:1", "", Resource(memory_mb, vcores), Resource(0, 0), (), 0)


def test_the_cluster_is_that_of_the_resourcemanager_and_every_node_counts_as_the_smallest() -> None:
    found = cluster_of(SMALL, [node(1, 4096, 4), node(2, 8192, 2), node(3, 4000, 16)])
    assert (found.nodes, found.vcores, found.memory) == (3, 2, "4000MiB")
    assert [capacity.vcores for capacity in found.capacities().values()] == [2, 2, 2]
    assert container_settings(found) == {"on": "yarn", "memory_mb": "512", "vcores": "1"}
    spec = JobSpec(**container_settings(found))  # type: ignore[arg-type]
    assert spec.on == "yarn" and spec.number_by_role("memory_mb", "master") == 512


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [([], "no node that runs"), ([node(1, 500, 4)], "fits no node of 4 vcores and 500 MiB: set container_memory")],
)
def test_a_cluster_without_room_is_refused(nodes: list[ClusterNode], reason: str) -> None:
    with pytest.raises(ResourceError, match=reason):
        cluster_of(SMALL, nodes)


def test_a_sweep_of_this_host_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert placed(Spec(), None) == placed(Spec(), "local") == Spec()
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR is not set"):
        placed(Spec(), "yarn")
    with pytest.raises(ConfigError, match="on is 'mars', but must be one of local, docker, yarn"):
        placed(Spec(), "mars")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--container-memory", "1GiB"], "container_memory is for containers: add --on docker or --on yarn"),
        (["--on", "yarn", "--nodes", "3"], "nodes is 3, but on YARN the nodes are those of the cluster"),
        (["--on", "mars"], "on is 'mars', but must be one of local, docker, yarn"),
    ],
)
def test_a_service_is_told_one_cluster(flags: list[str], reason: str) -> None:
    with pytest.raises(EpsError, match=reason):
        placed_settings(build_parser().parse_args(["serve", *flags]))


def test_a_service_that_goes_on_knows_where_its_jobs_run() -> None:
    found = cluster_of(SMALL, [node(1, 4096, 4)])
    asked = ServiceSettings(nodes=1, vcores=4, memory="4096MiB", job_settings=container_settings(found))
    live = asked.live(None)
    assert live.job_settings == {"on": "yarn", "memory_mb": "512", "vcores": "1"}
    header = Header(nodes={"node-1": [4, 4096]}, tag="x", **dataclasses.asdict(live))
    again = ServiceSettings()
    assert again.live(header) == live
    assert again.cluster(header) == asked.cluster(None) == found
    assert ServiceSettings().live(None) == LiveSettings()
