"""A job and its containers while the Docker engine does not answer."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
from pathlib import Path

import pytest

from eps.cluster.api import NO_NEWS, Allocated, ContainerEvent, ContainerRequest, Exited, Running
from eps.cluster.docker import engine as docker_engine
from eps.cluster.docker.engine import DockerEngine
from eps.cluster.docker.resources import NUM_LAUNCHERS, DockerResourceManager, open_docker
from eps.errors import ConfigError, ResourceError
from tests.cluster.docker_world import DEADLINE_S, Job, run, until, wait_for
from tests.cluster.docker_world import engine as engine
from tests.cluster.docker_world import impatient as impatient
from tests.cluster.docker_world import job as job
from tests.cluster.docker_world import manager as manager
from tests.docker_host import connect, no_engine, settings
from tests.fakes.docker_engine import IMAGE, FakeContainer, FakeDockerEngine
from tests.fakes.resources import FakeResourceManager

#: The SDK leaves sockets open that it could not connect.
pytestmark = pytest.mark.filterwarnings("ignore:.*socket:ResourceWarning")

ADVICE = ": start it, then eps resume job restarts from the latest checkpoint, or from the seed if there is none"


@pytest.mark.parametrize("waits", [True, False], ids=["for a container", "for nothing"])
def test_an_engine_that_stays_away_ends_the_job_with_one_sentence(
    engine: FakeDockerEngine, impatient: DockerResourceManager, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    manager = impatient
    run(manager)
    engine.go_away(with_containers=False)
    if waits:
        manager.request(ContainerRequest("c-2", "worker"))
        assert until(manager, Allocated, "c-2") == Allocated("c-2")
    assert manager.wait(DEADLINE_S)
    with pytest.raises(ResourceError) as found:
        assert manager.poll() == [], "an end would have the job ask for another container"
    begins, ends = str(found.value).split(" s (engine_timeout_s is 0.2)")
    assert begins.startswith(f"the Docker engine at {engine.url} has not answered for ")
    assert ends == ADVICE
    # Once it is over it stays over, also where the engine comes back.
    engine.come_back()
    with pytest.raises(ResourceError, match="eps resume job"):
        manager.poll()
    manager.end_job(1, "failed", str(found.value))
    assert sum("eps resume" in record.getMessage() for record in caplog.records) == 1


def test_an_engine_that_hangs_has_been_silent_since_it_was_asked(
    engine: FakeDockerEngine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "TIMEOUT_S", 1.0)
    manager = connect(IMAGE, job[0])
    engine.hangs = "/containers/json"
    wait_for(lambda: manager.silent_s() > 0.0)
    assert manager.silent_s() >= 1.0
    engine.let_go()
    wait_for(lambda: manager.silent_s() == 0.0)
    manager.close()


def test_containers_outlive_a_silence_of_the_engine(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager)
    engine.go_away(with_containers=False)
    wait_for(lambda: manager.silent_s() > 0.0)
    engine.come_back()
    wait_for(lambda: manager.silent_s() == 0.0)
    assert manager.poll() == []
    engine.exits("c-1", 5)
    assert until(manager, Exited) == Exited("c-1", 5, "exited with code 5")


@pytest.mark.parametrize("kept", [False, True], ids=["forgotten", "ended"])
def test_an_engine_that_is_started_again_loses_containers_and_gives_new_ones(
    engine: FakeDockerEngine, manager: DockerResourceManager, kept: bool
) -> None:
    run(manager)
    if kept:
        engine.go_away(with_containers=False)
        engine.exits("c-1", 255)
    else:
        engine.go_away()
    wait_for(lambda: manager.silent_s() > 0.0)
    manager.request(ContainerRequest("c-2", "worker"))
    engine.come_back()
    events: list[ContainerEvent] = []
    while {type(event) for event in events} < {Allocated, Running, Exited}:
        assert manager.wait(DEADLINE_S), events
        events += manager.poll()
    # Not a failure of the container's own.
    assert [(e.container_id, e.taken) for e in events if isinstance(e, Exited)] == [("c-1", True)]
    engine.exits("c-2", 5)
    assert until(manager, Exited, "c-2") == Exited("c-2", 5, "exited with code 5")


def test_a_signal_waits_for_an_engine_that_is_away(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager)
    engine.go_away(with_containers=False)
    manager.release("c-1")
    wait_for(lambda: manager.silent_s() > 0.0)
    engine.come_back()
    assert until(manager, Exited).container_id == "c-1"


def test_a_launch_waits_for_an_engine_as_long_as_it_is_wanted(
    engine: FakeDockerEngine, manager: DockerResourceManager
) -> None:
    engine.go_away()
    manager.request(ContainerRequest("c-1", "worker"))
    manager.request(ContainerRequest("c-2", "worker"))
    wait_for(lambda: manager.silent_s() > 0.0)
    manager.release("c-2")
    assert until(manager, (Running, Exited), "c-2").container_id == "c-2"
    engine.come_back()
    assert isinstance(until(manager, (Running, Exited)), Running)
    assert [each.labels["eps.container"] for each in engine.containers.values()] == ["c-1"]


@pytest.mark.parametrize("ignored", ["/containers/create", "-c-1/start"])
def test_a_launch_that_alone_is_not_answered_is_given_up(
    engine: FakeDockerEngine, impatient: DockerResourceManager, ignored: str
) -> None:
    manager = impatient
    engine.ignores = ignored
    manager.request(ContainerRequest("c-1", "worker"))
    news = until(manager, (Running, Exited))
    assert isinstance(news, Exited) and news.code is None
    assert news.reason.startswith(f"could not be launched: the Docker engine at {engine.url} does not answer: ")
    # It is the container that was given up, not the engine.
    wait_for(lambda: not engine.containers)
    engine.ignores = ""
    assert run(manager, "c-2").container_id == "c-2"


def test_launches_that_hang_hold_up_no_end(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager)
    engine.hangs = "/containers/create"
    for number in range(2, 4 + NUM_LAUNCHERS):
        manager.request(ContainerRequest(f"c-{number}", "worker"))
    wait_for(lambda: engine.num_hanging >= NUM_LAUNCHERS)
    manager.release("c-1")
    assert until(manager, Exited) == Exited("c-1", None, "was ended by SIGHUP")


@pytest.mark.parametrize("lost", ["/containers/create", "-c-1/start", "-c-1/json"])
def test_a_launch_whose_answer_is_lost_is_made_again_and_starts_one_container(
    engine: FakeDockerEngine, manager: DockerResourceManager, lost: str
) -> None:
    engine.loses = lost
    manager.request(ContainerRequest("c-1", "worker"))
    news = until(manager, (Running, Exited))
    assert isinstance(news, Running) and news.pid == engine.of("c-1").pid
    assert not engine.loses and engine.asked.count("POST /containers/create") == 2
    assert engine.num_started == 1


def test_a_container_that_came_after_it_was_given_up_is_removed(
    engine: FakeDockerEngine, manager: DockerResourceManager
) -> None:
    run(manager)
    config = engine.of("c-1").config
    engine.exits("c-1", 0)
    until(manager, Exited)
    name = "eps-job-late-c-1"
    engine.containers[name] = FakeContainer(name, config, state="running")
    wait_for(lambda: name not in engine.containers)


# ---- a job master that begins


class Supervisor(FakeResourceManager):
    """Has the engine back at the third beat, if at all."""

    def __init__(self, engine: FakeDockerEngine, *, back: bool) -> None:
        super().__init__()
        self.engine, self.back = engine, back

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        super().beat(changes, patience_s, clock=clock)
        if self.back and len(self.beats) == 3:
            self.engine.come_back()


def test_a_master_that_begins_while_the_engine_is_away_waits_for_it_as_long_as_a_job_does(
    engine: FakeDockerEngine, job: Job
) -> None:
    engine.go_away()
    with pytest.raises(ResourceError, match=r"0\.1\): .*eps resume job"):
        patience = dataclasses.replace(settings(IMAGE), engine_timeout_s=0.1)
        open_docker(patience, job[0], 0, Supervisor(engine, back=False))
    supervisor = Supervisor(engine, back=True)
    open_docker(settings(IMAGE), job[0], 0, supervisor).close()
    assert len(supervisor.beats) == 3, "its supervisor would have taken it for one that hangs"


@pytest.mark.parametrize("hangs", ["/version", "/containers/json", "-c-1/json", "-c-2/json"])
def test_a_master_that_takes_over_waits_for_an_engine_that_hangs(
    engine: FakeDockerEngine, manager: DockerResourceManager, job: Job, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    run(manager, "c-1")
    run(manager, "c-2")
    manager.close()
    monkeypatch.setattr(docker_engine, "TIMEOUT_S", 0.2)
    engine.hangs = hangs
    supervisor = FakeResourceManager()
    beat = supervisor.beat

    def let_go(progress: int, patience_s: float = 0.0) -> None:
        beat(progress, patience_s)
        if len(supervisor.beats) == 2:
            engine.let_go()

    monkeypatch.setattr(supervisor, "beat", let_go)
    taken_over = open_docker(settings(IMAGE), job[0], 0, supervisor)
    assert set(taken_over.adopt({})) == {"c-1", "c-2"} and len(supervisor.beats) == 2
    taken_over.close()


# ---- no engine at all


def test_no_engine_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    where = f"unix://{tmp_path}/nowhere.sock"
    monkeypatch.setenv("DOCKER_HOST", where)
    reason = f"the Docker engine at {where} does not answer: No such file or directory: start it, or set DOCKER_HOST"
    with no_engine(), pytest.raises(ResourceError, match=reason):
        connect(IMAGE, job[0])


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (errno.ECONNREFUSED, "Connection refused: start it, or set DOCKER_HOST to its address"),
        (errno.EACCES, "Permission denied: use it as root or as a member of the group of its socket, usually docker"),
        (errno.EPIPE, "Broken pipe"),
    ],
)
def test_an_engine_that_cannot_be_reached_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, reason: int, told: str
) -> None:
    def refuse(*arguments: object, **values: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr("docker.api.APIClient", refuse)
    with pytest.raises(ResourceError, match=f"does not answer: {told}$"):
        DockerEngine()


def test_a_missing_sdk_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker.api", None)
    with pytest.raises(ConfigError, match=r"\[docker\]"):
        DockerEngine()
