"""A sweep and a service with jobs in Docker containers: all jobs get these settings, and the image must exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hscheduler
from eps.errors import ConfigError, ResourceError
from hscheduler.cli import build_parser
from hscheduler.cli.commands.serve import settings_here
from hscheduler.live.placement import placed
from hscheduler.spec import ClusterSpec, Spec
from tests.docker_host import no_engine
from tests.fakes.docker_engine import FakeDockerEngine

pytest.importorskip("docker.api")
SPEC = Spec(ClusterSpec(nodes=2, container_memory="512MiB", container_vcores=2), job={"workers": 3})
SETTINGS = {"on": "docker", "memory_mb": "512", "vcores": "2"}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDockerEngine]:
    engine = FakeDockerEngine(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    yield engine
    with no_engine():
        engine.close()


def test_every_job_has_containers_of_the_size_that_the_scheduler_counts_with(engine: FakeDockerEngine) -> None:
    found = placed(SPEC, "docker")
    assert found.job == {"workers": 3, **SETTINGS} and found.cluster == SPEC.cluster
    assert placed(Spec(SPEC.cluster, job={"workers": 3, "on": "docker"}), None) == found
    job = found.job_spec()
    assert (job.containers.memory_of("server"), job.containers.vcores_of("worker")) == (512, 2)


def test_a_missing_image_is_reported_before_the_first_trial(engine: FakeDockerEngine) -> None:
    tables = {"job": {"on": "docker", "image": "nothing-of-that-name"}}
    with pytest.raises(ConfigError, match="'nothing-of-that-name'"):
        placed(Spec.of(tables), None)
    with pytest.raises(ConfigError, match="'nothing-of-that-name'"):
        hscheduler.sweep(tables)


def test_a_missing_engine_is_reported_before_the_first_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere.sock")
    with no_engine(), pytest.raises(ResourceError, match=r"nowhere\.sock"):
        placed(SPEC, "docker")


def test_a_service_passes_its_settings_to_its_jobs() -> None:
    flags = ["serve", "--on", "docker", "--nodes", "3", "--container-memory", "512MiB", "--container-vcores", "2"]
    found = settings_here(build_parser().parse_args(flags))
    assert (found.nodes, found.vcores, found.memory, found.job_settings) == (3, None, None, SETTINGS)


def test_the_size_of_a_container_is_that_of_a_local_service_too() -> None:
    flags = ["serve", "--memory", "2GiB", "--container-memory", "512MiB"]
    cluster = settings_here(build_parser().parse_args(flags)).cluster(None)
    assert (cluster.container_memory, cluster.container_vcores, cluster.memory) == ("512MiB", 1, "2GiB")
