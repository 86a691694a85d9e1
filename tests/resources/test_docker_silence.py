"""A Docker engine that does not say what happened, or does not answer: what becomes of the job and its containers."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import pytest

from eps.cluster.api import Allocated, ContainerEvent, ContainerRequest, Exited, ResourceManager, Running
from eps.cluster.docker import engine as docker_engine
from eps.cluster.docker import resources as backend
from eps.cluster.docker.engine import MOST_CALLS, DockerEngine, Events
from eps.cluster.docker.resources import NUM_LAUNCHERS, DockerResourceManager, open_docker
from eps.cluster.docker.silence import EngineSilence, LaunchPatience
from eps.errors import ConfigError, ResourceError
from tests.docker_host import connect, no_engine, settings
from tests.fakes.docker_engine import IMAGE, FakeContainer, FakeDockerEngine
from tests.resources.docker_world import DEADLINE_S, Job, has_news, run, run_and_end, until, wait_for
from tests.resources.docker_world import engine as engine
from tests.resources.docker_world import impatient as impatient
from tests.resources.docker_world import job as job
from tests.resources.docker_world import manager as manager

#: The SDK leaves sockets open that it could not connect.
pytestmark = pytest.mark.filterwarnings("ignore:.*socket:ResourceWarning")


def test_an_end_that_was_not_heard_of_is_found(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager)
    run(manager, "c-2")
    engine.forgets = False
    engine.exits("c-1", 3, unheard=True)
    assert until(manager, Exited) == Exited("c-1", 3, "exited with code 3")
    engine.forgets = True
    engine.exits("c-2", 3, unheard=True)
    reason = "is gone: the Docker engine does not know it any more"
    assert until(manager, Exited, "c-2") == Exited("c-2", None, reason, taken=True)


class Supervisor:
    """Has the engine back at the third beat, if at all."""

    def __init__(self, engine: FakeDockerEngine, *, back: bool) -> None:
        self.engine, self.back, self.beats = engine, back, 0
        self.descriptor = os.eventfd(0)

    def fileno(self) -> int:
        return self.descriptor

    def beat(self, progress: int, patience_s: float = 0.0) -> None:
        self.beats += 1
        if self.back and self.beats == 3:
            self.engine.come_back()

    def close(self) -> None:
        os.close(self.descriptor)


def test_a_master_that_begins_while_the_engine_is_away_waits_for_it_as_long_as_a_job_does(
    engine: FakeDockerEngine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "ENGINE_PATIENCE_S", 0.0)
    engine.go_away()
    silent = Supervisor(engine, back=False)
    with pytest.raises(ResourceError, match=r"\(engine_timeout_s is 0\.1\): start it, then eps resume job"):
        patience = dataclasses.replace(settings(IMAGE), engine_timeout_s=0.1)
        open_docker(patience, job[0], 0, cast(ResourceManager, silent))
    silent.close()
    supervisor = Supervisor(engine, back=True)
    manager = open_docker(settings(IMAGE), job[0], 0, cast(ResourceManager, supervisor))
    manager.close()
    supervisor.close()
    assert supervisor.beats >= 3, "its supervisor would have taken it for one that hangs"


def test_an_engine_that_is_started_again_loses_containers_and_gives_new_ones(
    engine: FakeDockerEngine, manager: DockerResourceManager
) -> None:
    run(manager)
    engine.go_away()
    wait_for(lambda: manager.silent_s() > 0.0)
    manager.request(ContainerRequest("c-2", "worker"))
    engine.come_back()
    events: list[ContainerEvent] = []
    while {type(event) for event in events} < {Allocated, Running, Exited}:
        assert manager.wait(DEADLINE_S), events
        events += manager.poll()
    assert [e.container_id for e in events if isinstance(e, Exited)] == ["c-1"]
    wait_for(lambda: manager.silent_s() == 0.0)
    # The stream of events is a new one.
    wait_for(lambda: engine.asked.count("GET /events") >= 2)
    engine.exits("c-2", 5)
    assert until(manager, Exited, "c-2") == Exited("c-2", 5, "exited with code 5")


def test_a_silence_of_the_engine_is_told_once(
    engine: FakeDockerEngine,
    manager: DockerResourceManager,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    events = DockerEngine.events

    def counted(docker: DockerEngine, label: str, since_s: float) -> AbstractContextManager[Events]:
        asked.append(label)
        return events(docker, label, since_s)

    monkeypatch.setattr(DockerEngine, "events", counted)
    wait_for(lambda: "GET /events" in engine.asked)
    engine.go_away()
    wait_for(lambda: len(asked) >= 5)
    engine.come_back()
    wait_for(lambda: engine.asked.count("GET /events") >= 2)
    told = [record.getMessage() for record in caplog.records if "hears nothing" in record.getMessage()]
    assert told and len(told) == len(set(told))


def test_an_engine_that_hangs_has_been_silent_since_it_was_asked(
    engine: FakeDockerEngine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "TIMEOUT_S", 1.0)
    manager = connect(IMAGE, job[0])
    wait_for(lambda: "GET /events" in engine.asked)
    engine.hangs = "/containers/json"
    wait_for(lambda: manager.silent_s() > 0.0)
    assert manager.silent_s() >= 1.0
    manager.close()


def test_a_job_is_ended_in_time_while_a_question_hangs(
    engine: FakeDockerEngine, impatient: DockerResourceManager
) -> None:
    """An engine that is known to be silent is asked again, which may take longer than the job waits."""
    manager = impatient
    engine.hangs = "/containers/create"
    manager.request(ContainerRequest("c-1", "worker"))
    wait_for(lambda: engine.num_hanging == 1)
    assert until(manager, Allocated) == Allocated("c-1")
    engine.ignores = "/containers/json"
    wait_for(lambda: manager.silent_s() > 0.0)
    engine.hangs, engine.ignores = "/containers/json", ""
    wait_for(lambda: engine.num_hanging == 2)
    wait_for(lambda: has_news(manager))
    with pytest.raises(ResourceError, match=r"engine_timeout_s is 0\.2"):
        manager.poll()


def test_containers_outlive_a_silence_of_the_engine(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager)
    engine.go_away(with_containers=False)
    wait_for(lambda: manager.silent_s() > 0.0)
    engine.come_back()
    wait_for(lambda: engine.asked.count("GET /events") >= 2)
    engine.exits("c-1", 5)
    assert until(manager, Exited) == Exited("c-1", 5, "exited with code 5")


def test_a_container_waits_for_an_engine_as_long_as_it_is_wanted(
    engine: FakeDockerEngine, manager: DockerResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the job that loses its patience, not the container."""
    monkeypatch.setattr(backend, "ENGINE_PATIENCE_S", 0.0)
    engine.go_away()
    manager.request(ContainerRequest("c-1", "worker"))
    manager.request(ContainerRequest("c-2", "worker"))
    wait_for(lambda: manager.silent_s() > 0.0)
    manager.release("c-2")
    assert until(manager, (Running, Exited), "c-2").container_id == "c-2"
    engine.come_back()
    assert isinstance(until(manager, (Running, Exited)), Running)
    assert [each.labels["eps.container"] for each in engine.containers.values()] == ["c-1"]


def test_what_is_done_without_the_engine_is_no_answer_of_it(
    engine: FakeDockerEngine, manager: DockerResourceManager, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the end of a launch that is not wanted any more: it must not begin the patience anew."""
    wait_for(lambda: "GET /events" in engine.asked)
    engine.go_away()
    wait_for(lambda: manager.silent_s() > 0.0)
    answers: list[float] = []
    scratch = job[0].scratch("c-1")
    scratch.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(EngineSilence, "on_answer", lambda silence, now_s: answers.append(now_s))
        manager.request(ContainerRequest("c-1", "worker"))
        manager.release("c-1")
        until(manager, Exited)
        wait_for(lambda: not scratch.exists())
        assert answers == []
    engine.come_back()
    wait_for(lambda: manager.silent_s() == 0.0 and engine.asked.count("GET /events") >= 2)


def test_a_job_that_waits_too_long_for_its_engine_hears_one_sentence(
    engine: FakeDockerEngine, impatient: DockerResourceManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager = impatient
    engine.go_away()
    manager.request(ContainerRequest("c-2", "worker"))
    assert until(manager, Allocated, "c-2") == Allocated("c-2")
    wait_for(lambda: has_news(manager))
    with pytest.raises(ResourceError) as found:
        assert manager.poll() == [], "who heard of an end would ask for another container"
    begins, ends = str(found.value).split(" s, and ")
    assert begins.startswith(f"the Docker engine at {engine.url} has not answered for ")
    assert ends == (
        "the job gets no further without it (engine_timeout_s is 0.2): start it, then eps resume job goes on from the "
        "latest checkpoint, or from the seed"
    )
    # Once it is over it stays over, also where the engine comes back.
    engine.come_back()
    with pytest.raises(ResourceError, match="goes on from the latest checkpoint"):
        manager.poll()
    manager.end_job(1, "failed", str(found.value))
    assert sum("gets no further" in record.getMessage() for record in caplog.records) == 1


def test_a_job_that_waits_for_no_container_does_without_the_engine(
    engine: FakeDockerEngine, impatient: DockerResourceManager
) -> None:
    manager = impatient
    run(manager)
    engine.go_away(with_containers=False)
    wait_for(lambda: manager.silent_s() > 0.5)
    assert manager.poll() == []
    engine.come_back()
    # Else a look may find the end before the stream of events is there, which knows how it ended.
    wait_for(lambda: engine.asked.count("GET /events") >= 2)
    wait_for(lambda: manager.silent_s() == 0.0)
    engine.exits("c-1", 5)
    assert until(manager, Exited) == Exited("c-1", 5, "exited with code 5")


@pytest.mark.parametrize("ignored", ["/containers/create", "-c-1/start"])
def test_a_launch_that_alone_is_not_answered_is_given_up(
    engine: FakeDockerEngine, impatient: DockerResourceManager, ignored: str
) -> None:
    manager = impatient
    engine.ignores = ignored
    manager.request(ContainerRequest("c-1", "worker"))
    news = until(manager, (Running, Exited))
    assert isinstance(news, Exited) and news.code is None
    begins, ends = news.reason.split("; other calls were answered in these ")
    assert begins.startswith(f"could not be launched: the Docker engine at {engine.url} does not answer: ")
    assert ends.endswith(" s (engine_timeout_s is 0.2): the engine's log may say why")
    # It is the container that was given up, not the engine.
    wait_for(lambda: not engine.containers)
    engine.ignores = ""
    assert run(manager, "c-2").container_id == "c-2"


def test_after_a_launch_that_failed_the_engine_is_asked_whether_it_is_there(
    engine: FakeDockerEngine, manager: DockerResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is ended cuts a launch off, answers a look still, and then nothing."""
    found: list[bool] = []
    on_failure = LaunchPatience.on_failure

    def noted(patience: LaunchPatience, asked_s: float, *, others_answered: bool) -> None:
        found.append(others_answered)
        on_failure(patience, asked_s, others_answered=others_answered)

    monkeypatch.setattr(LaunchPatience, "on_failure", noted)
    engine.ignores = "/containers/create"
    manager.request(ContainerRequest("c-1", "worker"))
    wait_for(lambda: len(found) >= 2)
    assert all(found) and manager.silent_s() == 0.0
    engine.go_away()
    wait_for(lambda: found[-2:] == [False, False] and manager.silent_s() > 0.0)
    engine.ignores = ""
    engine.come_back()
    assert isinstance(until(manager, (Running, Exited)), Running)


def test_a_launch_that_hangs_is_given_up_after_so_long_not_twice(
    engine: FakeDockerEngine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "LAUNCH_TIMEOUT_S", 0.5)
    patience = dataclasses.replace(settings(IMAGE), engine_timeout_s=0.5)
    manager = DockerResourceManager(DockerEngine(), patience, job[0])
    engine.hangs = "/containers/create"
    manager.request(ContainerRequest("c-1", "worker"))
    news = until(manager, (Running, Exited))
    assert isinstance(news, Exited) and news.reason.endswith("(engine_timeout_s is 0.5): the engine's log may say why")
    assert engine.asked.count("POST /containers/create") == 1
    manager.close()


def test_launches_that_hang_hold_up_no_end(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager)
    engine.hangs = "/containers/create"
    for number in range(2, 2 + MOST_CALLS):
        manager.request(ContainerRequest(f"c-{number}", "worker"))
    wait_for(lambda: engine.num_hanging >= NUM_LAUNCHERS)
    manager.release("c-1")
    assert until(manager, Exited) == Exited("c-1", None, "was ended by SIGTERM")


@pytest.mark.parametrize("lost", ["/containers/create", "-c-1/start", "-c-1/json"])
def test_a_launch_of_which_an_answer_is_lost_is_gone_on_with(
    engine: FakeDockerEngine, manager: DockerResourceManager, lost: str
) -> None:
    engine.loses = lost
    manager.request(ContainerRequest("c-1", "worker"))
    news = until(manager, (Running, Exited))
    assert isinstance(news, Running) and news.pid == engine.of("c-1").pid
    assert not engine.loses and engine.asked.count("POST /containers/create") == 2
    assert [event["Action"] for event in engine.history] == ["start"], "once"


def test_a_container_that_came_after_it_was_given_up_is_removed(
    engine: FakeDockerEngine, manager: DockerResourceManager
) -> None:
    config = run_and_end(engine, manager)
    name = "eps-job-late-c-1"
    engine.containers[name] = FakeContainer(name, config)
    wait_for(lambda: name not in engine.containers)


def test_no_engine_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    where = f"unix://{tmp_path}/nowhere.sock"
    monkeypatch.setenv("DOCKER_HOST", where)
    reason = f"the Docker engine at {where} does not answer: No such file or directory: start it, or set DOCKER_HOST"
    with no_engine(), pytest.raises(ResourceError, match=reason):
        connect(IMAGE, job[0])


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (errno.ECONNREFUSED, "Connection refused: start it, or set DOCKER_HOST to where it is"),
        (errno.EACCES, "Permission denied: its socket is for root and its group, docker as a rule"),
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
    with pytest.raises(ConfigError, match=r"need the package docker .*pip install '.\[docker\]'"):
        DockerEngine()
