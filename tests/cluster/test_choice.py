"""The backend of a job's containers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.api import Allocated, ContainerRequest, Exited, ResourceManager, Running
from eps.cluster.choice import check_backend, open_resources
from eps.cluster.docker.resources import DockerResourceManager
from eps.errors import ConfigError, ResourceAwayError, ResourceError
from eps.job.client import Job
from eps.job.launch import PreparedJob, prepare_job
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.claims import read_owner
from eps.storage.jobdir import JobDir, create_job_dir
from eps.storage.locations import open_storage
from tests.docker_host import no_engine
from tests.fakes.docker_engine import IMAGE, FakeDockerEngine
from tests.fakes.resources import FakeResourceManager

DEADLINE_S = 30.0
ROWS = "1 1:1 2:0.5\n-1 2:1\n" * 12


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDockerEngine]:
    engine = FakeDockerEngine(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    yield engine
    engine.close()


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    data = tmp_path / "rows.libsvm"
    data.write_text(ROWS)
    return {"data": str(data), "iterations": 3, "on": "docker"}


def test_containers_are_processes_unless_others_are_asked_for(
    engine: FakeDockerEngine, settings: dict[str, Any]
) -> None:
    prepared = prepare_job(RunRequest.from_values({**settings, "on": "local"}))
    supervisor = FakeResourceManager()
    with prepared.lock:
        assert opened(prepared, supervisor) is supervisor
    assert engine.asked == []


def opened(prepared: PreparedJob, supervisor: FakeResourceManager, job: JobDir | None = None) -> ResourceManager:
    return open_resources(prepared.runtime, job or prepared.directory, supervisor, {})


def test_on_docker_a_container_has_the_image_and_the_data_of_its_job(
    engine: FakeDockerEngine, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "conf"))
    prepared = prepare_job(RunRequest.from_values(settings))
    with prepared.lock:
        manager = opened(prepared, FakeResourceManager())
        assert isinstance(manager, DockerResourceManager)
        manager.request(ContainerRequest("c-1", "worker"))
        while not any(isinstance(event, Running) for event in manager.poll()):
            assert manager.wait(DEADLINE_S)
        config = engine.of("c-1").config
        manager.close()
    assert config["Image"] == IMAGE == JobSpec().docker.image
    mounts = {each["Source"]: each["ReadOnly"] for each in config["HostConfig"]["Mounts"]}
    runtime, directory = prepared.runtime, prepared.directory
    assert mounts == {str(runtime.dataset_dir): True, str(tmp_path / "conf"): True, str(directory.path): False}
    assert f"HADOOP_CONF_DIR={tmp_path}/conf" in config["Env"]


def test_servers_in_containers_can_write_checkpoints_to_a_local_folder(
    engine: FakeDockerEngine, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints" / "job"
    checkpoints = {"checkpoint_every": "1", "checkpoint_dir": str(folder.parent)}
    prepared = prepare_job(RunRequest.from_values({**settings, **checkpoints, "name": "job"}))
    shutil.rmtree(folder.parent)
    with prepared.lock:
        manager = opened(prepared, FakeResourceManager())
        manager.request(ContainerRequest("c-1", "server"))
        while not any(isinstance(event, Running) for event in manager.poll()):
            assert manager.wait(DEADLINE_S)
        mounts = engine.of("c-1").config["HostConfig"]["Mounts"]
        manager.close()
    assert {"Type": "bind", "Source": str(folder), "Target": str(folder), "ReadOnly": False} in mounts
    assert read_owner(open_storage(folder)) == prepared.runtime.owner


def test_what_cannot_be_had_is_refused_before_there_is_a_job(
    engine: FakeDockerEngine, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_backend(JobSpec().with_settings(**settings))
    check_backend(JobSpec().with_settings(on="local", image="none"))
    with pytest.raises(ConfigError, match="image is 'none', but the Docker engine has no such image"):
        Job.start(**settings, image="none")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere.sock")
    with no_engine(), pytest.raises(ResourceAwayError, match=r"nowhere\.sock"):
        Job.start(**settings)
    assert not (tmp_path / "home" / "jobs").exists()


def test_a_job_that_cannot_be_had_any_more_is_not_resumed(
    engine: FakeDockerEngine, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_job(RunRequest.from_values({**settings, "name": "stopped"}))
    prepared.lock.close()
    before = prepared.directory.job_json.read_bytes()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere.sock")
    with no_engine(), pytest.raises(ResourceError, match=r"nowhere\.sock"):
        Job.resume("stopped")
    assert prepared.directory.job_json.read_bytes() == before and not prepared.directory.is_running()


def test_a_job_master_waits_for_an_engine_that_is_started_again(
    engine: FakeDockerEngine, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eps.cluster.docker import resources as docker

    job, lock = create_job_dir("job", tmp_path)
    prepared = prepare_job(RunRequest.from_values(settings))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            engine.come_back()

    monkeypatch.setattr(docker.time, "sleep", wait)
    engine.go_away()
    with lock, prepared.lock, no_engine():
        manager = opened(prepared, FakeResourceManager(), job)
        manager.close()
    assert len(waits) == 2


def test_a_job_whose_containers_cannot_be_launched_says_why(
    engine: FakeDockerEngine, settings: dict[str, Any], tmp_path: Path
) -> None:
    prepared = prepare_job(RunRequest.from_values({**settings, "image": "none"}))
    with prepared.lock:
        manager = opened(prepared, FakeResourceManager())
        manager.request(ContainerRequest("c-1", "worker"))
        events = []
        while len(events) < 2:
            assert manager.wait(DEADLINE_S)
            events += manager.poll()
        manager.close()
    reason = "could not be launched: No such image: none:latest"
    assert events == [Allocated("c-1"), Exited("c-1", None, reason)]
    assert prepared.directory.record().spec["image"] == "none"
