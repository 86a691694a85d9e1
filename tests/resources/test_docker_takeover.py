"""A job master that takes over while the Docker engine hangs: its supervisor must not take it for one that does."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from eps.cluster.api import ResourceManager
from eps.cluster.docker import engine as docker_engine
from eps.cluster.docker import resources as backend
from eps.cluster.docker.engine import TIMEOUT_S, DockerEngine, EngineSilentError, Found
from eps.cluster.docker.resources import open_docker
from eps.cluster.supervisor.protocol import Beat
from eps.cluster.supervisor.state import LOOK_S, DeadlinePassed, Forked, Requested, Started, SupervisorState
from eps.errors import ResourceError
from tests.docker_host import connect, settings
from tests.fakes.docker_engine import IMAGE, FakeDockerEngine
from tests.resources.docker_world import Job, run
from tests.resources.docker_world import engine as engine
from tests.resources.docker_world import job as job


class Supervisor:
    """A supervisor by what it decides, on a clock of its own.

    Attributes
    ----------
    said : list of str
        What the master told it, and asked the engine, in order.
    now_s : float, seconds
        What the master has taken so far: nothing, but for what it waits, and for questions that are not answered.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now_s = 0.0
        self.descriptor = os.eventfd(0)
        self.state = SupervisorState()
        self.state.step(Started(), 0.0)
        self.state.step(Forked("master", 100), 0.0)

    def fileno(self) -> int:
        return self.descriptor

    def beat(self, progress: int, patience_s: float = 0.0) -> None:
        self.said.append("beat")
        self.state.step(Requested(Beat(progress, patience_s)), self.now_s)

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + LOOK_S)
            assert self.state.step(DeadlinePassed(), self.now_s) == [], f"killed after {self.now_s} s: {self.said}"

    @contextmanager
    def question(self, what: str) -> Iterator[None]:
        self.said.append(what)
        try:
            yield
        except EngineSilentError:
            self.pass_time(TIMEOUT_S + 0.5)
            raise


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """Have the backend ask under the eyes of a supervisor, and take its clock for the time."""
    found = Supervisor()

    class Watched(DockerEngine):
        def __init__(self) -> None:
            with found.question("version"):
                super().__init__()

        def find(self, label: str) -> list[Found]:
            with found.question("find"):
                return super().find(label)

        def pid(self, name: str) -> int:
            with found.question("pid"):
                return super().pid(name)

        def close(self) -> None:
            found.said.append("close")
            super().close()

    monkeypatch.setattr(backend, "DockerEngine", Watched)
    clock = SimpleNamespace(monotonic=lambda: found.now_s, sleep=found.pass_time, time=time.time)
    monkeypatch.setattr(backend, "time", clock)
    yield found
    os.close(found.descriptor)


@pytest.fixture
def taken_over(engine: FakeDockerEngine, job: Job) -> Job:
    """A job with two containers, whose master has ended."""
    former = connect(IMAGE, job[0])
    run(former, "c-1")
    run(former, "c-2")
    former.close()
    return job


def test_it_says_before_each_question_that_the_answer_may_take_long(taken_over: Job, supervisor: Supervisor) -> None:
    manager = open_docker(settings(IMAGE), taken_over[0], 0, cast(ResourceManager, supervisor))
    assert set(manager.adopted) == {"c-1", "c-2"}
    assert supervisor.said[:8] == ["beat", "version", "beat", "find", "beat", "pid", "beat", "pid"]
    manager.close()


@pytest.mark.parametrize("hangs", ["/version", "/containers/json", "-c-1/json", "-c-2/json"])
def test_it_outlives_its_patience_with_an_engine_that_hangs_and_then_ends_by_itself(
    engine: FakeDockerEngine,
    taken_over: Job,
    supervisor: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
    hangs: str,
) -> None:
    """Killed in the midst of it, the next master would have as long again, and the job never end."""
    monkeypatch.setattr(docker_engine, "TIMEOUT_S", 0.2)
    engine.hangs = hangs
    patience = dataclasses.replace(settings(IMAGE), engine_timeout_s=4.0 * TIMEOUT_S)
    with pytest.raises(ResourceError, match=r"answered for 123 s, .* \(engine_timeout_s is 120\): start it"):
        open_docker(patience, taken_over[0], 0, cast(ResourceManager, supervisor))
    assert supervisor.said.count("version") == 4
    # What a try has opened goes with it.
    assert supervisor.said.count("close") == supervisor.said.count("find")


def test_it_goes_on_when_an_engine_that_hung_is_back(
    engine: FakeDockerEngine, taken_over: Job, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "TIMEOUT_S", 0.2)
    engine.hangs = "/containers/json"
    pass_time = supervisor.pass_time

    def come_back(seconds: float) -> None:
        pass_time(seconds)
        monkeypatch.setattr(docker_engine, "TIMEOUT_S", TIMEOUT_S)
        engine.hangs = ""

    monkeypatch.setattr(supervisor, "pass_time", come_back)
    manager = open_docker(settings(IMAGE), taken_over[0], 0, cast(ResourceManager, supervisor))
    assert set(manager.adopted) == {"c-1", "c-2"}
    manager.close()
