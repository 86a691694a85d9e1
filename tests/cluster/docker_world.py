"""A job's containers of a Docker engine that follows a script."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eps.cluster.api import ContainerEvent, ContainerRequest, Running
from eps.cluster.docker import resources as backend
from eps.cluster.docker.engine import DockerEngine
from eps.cluster.docker.resources import DockerResourceManager
from eps.storage.jobdir import JobDir, JobLock, create_job_dir
from tests.docker_host import connect, no_engine, settings
from tests.fakes.docker_engine import IMAGE, FakeDockerEngine

DEADLINE_S = 30.0

Job = tuple[JobDir, JobLock]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDockerEngine]:
    engine = FakeDockerEngine(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    # As often as a test can wait for.
    monkeypatch.setattr(backend, "LOOK_S", 0.02)
    monkeypatch.setattr(backend, "RETRY_S", 0.02)
    yield engine
    with no_engine():
        engine.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job, lock = create_job_dir("job", tmp_path)
    yield job, lock
    lock.close()


@pytest.fixture
def manager(engine: FakeDockerEngine, job: Job) -> Iterator[DockerResourceManager]:
    manager = connect(IMAGE, job[0])
    yield manager
    manager.close()


@pytest.fixture
def impatient(engine: FakeDockerEngine, job: Job) -> Iterator[DockerResourceManager]:
    """Give the manager of a job that soon has enough of an engine that does not answer."""
    patience = dataclasses.replace(settings(IMAGE), engine_timeout_s=0.2)
    manager = DockerResourceManager(DockerEngine(), patience, job[0])
    yield manager
    manager.close()


def wait_for(what: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def until(manager: DockerResourceManager, kind: type | tuple[type, ...], container_id: str = "c-1") -> ContainerEvent:
    """Return the first event of a kind about a container."""
    end_s = time.monotonic() + DEADLINE_S
    while manager.wait(end_s - time.monotonic()):
        for event in manager.poll():
            if isinstance(event, kind) and event.container_id == container_id:
                return event
    raise AssertionError(f"no {kind} of {container_id}")


def run(manager: DockerResourceManager, container_id: str = "c-1", **values: int) -> Running:
    manager.request(ContainerRequest(container_id, "worker", **values))
    event = until(manager, Running, container_id)
    assert isinstance(event, Running)
    return event
