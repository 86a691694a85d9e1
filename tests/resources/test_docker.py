"""Containers of a Docker engine: what is asked of it, and what becomes of what it says or does not say."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, ResourceError
from eps.resources import docker as backend
from eps.resources import docker_engine
from eps.resources.api import Allocated, ContainerEvent, ContainerRequest, Exited, Running
from eps.resources.docker import NUM_LAUNCHERS, DockerResourceManager
from eps.resources.docker_container import DockerSettings, JobLabels, build_container
from eps.resources.docker_engine import MOST_CALLS, DockerEngine, Events, Found
from eps.resources.engine_silence import EngineSilence, LaunchPatience
from eps.storage.jobdir import JobDir, JobLock, create_job_dir
from tests.docker_host import connect, image_of_nothing, no_engine, settings, why_no_docker
from tests.fakes.docker_engine import IMAGE, FakeContainer, FakeDockerEngine
from tests.fakes.resources import FakeResourceManager

DEADLINE_S = 30.0

#: The SDK leaves sockets open that it could not connect.
pytestmark = pytest.mark.filterwarnings("ignore:.*socket:ResourceWarning")

Job = tuple[JobDir, JobLock]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDockerEngine]:
    engine = FakeDockerEngine(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    # As often as a test can wait for.
    monkeypatch.setattr(backend, "LOOK_S", 0.05)
    monkeypatch.setattr(backend, "LOOK_AGAIN_S", 0.05)
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


def has_news(manager: DockerResourceManager) -> bool:
    """Let a job that gets no further beat; return whether there is something to hear."""
    manager.beat(7)
    return manager.wait(0.0)


def run(manager: DockerResourceManager, container_id: str = "c-1", **values: int) -> Running:
    manager.request(ContainerRequest(container_id, "worker", **values))
    event = until(manager, Running, container_id)
    assert isinstance(event, Running)
    return event


def run_and_end(engine: FakeDockerEngine, manager: DockerResourceManager) -> dict[str, Any]:
    """Run a container to its end; return what was asked of the engine."""
    run(manager)
    config = engine.of("c-1").config
    engine.exits("c-1", 0)
    until(manager, Exited)
    return config


# ---- what is asked for


def test_a_container_has_its_jobs_directory_its_limits_and_no_secret(job: Job) -> None:
    directory = job[0]
    request = ContainerRequest("c-1", "server", 512, 2, {"EPS_MASTER_ADDRESS": "127.0.0.1:7"})
    wanted = DockerSettings("eps", mounts=(Path("/data"),))
    config = build_container(request, wanted, JobLabels.of(directory), {"EPS_LOG": "debug", "SECRET": "x"})
    environment = dict(text.split("=", 1) for text in config["Env"])
    assert environment["EPS_ROLE"] == "server" and environment["EPS_CONTAINER_ID"] == "c-1"
    assert environment["EPS_JOB_DIR"] == str(directory.path) and environment["EPS_HOST"] == "127.0.0.1"
    assert environment["EPS_MASTER_ADDRESS"] == "127.0.0.1:7" and environment["EPS_LOG"] == "debug"
    assert "SECRET" not in environment
    host = config["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (512 << 20, 512 << 20, 2_000_000_000)
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in host["Mounts"]] == [
        ("/data", "/data", True),
        (str(directory.path), str(directory.path), False),
    ]
    assert host["NetworkMode"] == "host" and host["AutoRemove"]
    assert config["Labels"]["eps.job"] == str(directory.path) and config["Labels"]["eps.container"] == "c-1"
    assert directory.read_token() not in json.dumps(config)


def test_on_another_network_a_container_is_known_by_its_name(job: Job) -> None:
    labels = JobLabels.of(job[0])
    config = build_container(ContainerRequest("c-1", "worker"), DockerSettings("eps", "jobs"), labels, {})
    assert f"EPS_HOST={labels.name('c-1')}" in config["Env"]
    assert config["HostConfig"]["NetworkMode"] == "jobs"


def test_each_run_of_a_job_has_labels_of_its_own(job: Job) -> None:
    directory = job[0]
    first, again = JobLabels.of(directory), JobLabels.of(directory)
    directory.make_token()
    assert first == again != JobLabels.of(directory)


# ---- how containers end


@pytest.mark.parametrize(
    ("exit_code", "code", "reason"),
    [
        (0, 0, "exited with code 0"),
        (7, 7, "exited with code 7"),
        (128 + signal.SIGKILL, None, "was ended by SIGKILL"),
        (128 + signal.SIGSEGV, None, "was ended by SIGSEGV"),
        (255, 255, "exited with code 255"),
    ],
)
def test_an_exit_code_of_the_engine_is_a_code_or_a_signal(
    engine: FakeDockerEngine, manager: DockerResourceManager, exit_code: int, code: int | None, reason: str
) -> None:
    run(manager)
    engine.exits("c-1", exit_code)
    assert until(manager, Exited) == Exited("c-1", code, reason)


def test_what_needed_too_much_memory_says_so(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager, memory_mb=64)
    engine.runs_out_of_memory("c-1")
    reason = "was ended by SIGKILL: it needed more memory than its 64 MB"
    assert until(manager, Exited) == Exited("c-1", None, reason)


def test_what_a_container_said_last_is_told(engine: FakeDockerEngine, manager: DockerResourceManager, job: Job) -> None:
    run(manager)
    job[0].log("c-1").write_text("Traceback ...\nNo module named eps\n\n")
    engine.exits("c-1", 1)
    reason = "exited with code 1; the last line of its log: No module named eps"
    assert until(manager, Exited) == Exited("c-1", 1, reason)


def test_an_image_that_is_missing_is_named(engine: FakeDockerEngine, job: Job) -> None:
    manager = connect("nothing-of-that-name", job[0])
    manager.request(ContainerRequest("c-1", "worker"))
    reason = "could not be launched: No such image: nothing-of-that-name:latest"
    assert until(manager, Exited) == Exited("c-1", None, reason)
    assert engine.asked.count("POST /containers/create") == 1, "it was an answer"
    manager.close()
    docker = DockerEngine()
    with pytest.raises(ConfigError, match="image is 'nothing-of-that-name'"):
        docker.check_image("nothing-of-that-name")
    docker.check_image(IMAGE)
    docker.close()


def test_what_a_container_kept_is_removed_with_it(
    engine: FakeDockerEngine, manager: DockerResourceManager, job: Job
) -> None:
    scratch = job[0].scratch("c-1")
    run(manager)
    (scratch / "splits").mkdir(parents=True)
    engine.exits("c-1", 0)
    until(manager, Exited)
    wait_for(lambda: not scratch.exists())


# ---- an engine that does not say, or does not answer


def test_an_end_that_was_not_heard_of_is_found(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager)
    run(manager, "c-2")
    engine.forgets = False
    engine.exits("c-1", 3, unheard=True)
    assert until(manager, Exited) == Exited("c-1", 3, "exited with code 3")
    engine.forgets = True
    engine.exits("c-2", 3, unheard=True)
    reason = "is gone: the Docker engine does not know it any more"
    assert until(manager, Exited, "c-2") == Exited("c-2", None, reason)


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


# ---- the end of a job, and what is left of others


def test_the_end_of_a_job_leaves_no_container_and_tells_the_supervisor(engine: FakeDockerEngine, job: Job) -> None:
    supervisor = FakeResourceManager()
    manager = DockerResourceManager(DockerEngine(), settings(IMAGE), job[0], 1, supervisor)
    run(manager)
    manager.request(ContainerRequest("c-2", "worker"))
    manager.beat(3)
    manager.end_job(1, "failed", "it did")
    assert engine.containers == {}
    assert supervisor.beats[0] == 3 and supervisor.ended == (1, "failed", "it did")
    # What waited is not begun any more.
    assert until(manager, Exited, "c-2") == Exited("c-2", None, "was refused: the job is ending")
    assert engine.containers == {}
    manager.close()


def test_a_master_hears_that_its_supervisor_is_gone(engine: FakeDockerEngine, job: Job) -> None:
    supervisor = FakeResourceManager()
    manager = DockerResourceManager(DockerEngine(), settings(IMAGE), job[0], 0, supervisor)
    run(manager)
    supervisor.close()
    engine.exits("c-1", 0)
    assert until(manager, Exited) == Exited("c-1", 0, "exited with code 0")
    with pytest.raises(ResourceError):
        manager.poll()
    manager.close()


def test_containers_of_runs_that_are_over_are_removed(engine: FakeDockerEngine, job: Job, tmp_path: Path) -> None:
    other, other_lock = create_job_dir("other", tmp_path)
    over, over_lock = create_job_dir("over", tmp_path)
    managers = [connect(IMAGE, directory) for directory in (job[0], other, over)]
    for number, manager in enumerate(managers):
        run(manager, f"c-{number}")
        manager.close()
    before = {number: engine.of(f"c-{number}").name for number in range(3)}
    over_lock.close()
    # The next run of the job: its containers are others.
    job[0].make_token()
    manager = connect(IMAGE, job[0])
    assert manager.adopted == {}
    wait_for(lambda: set(engine.containers) == {before[1]})
    manager.close()
    other_lock.close()


def test_what_others_see_differently_is_left_alone(job: Job) -> None:
    labels = JobLabels.of(job[0])
    gone = {"eps.job": "/nowhere/job", "eps.instance": "x", "eps.boot": labels.boot}
    assert labels.is_stray(Found("eps-job-x-c-1", gone, True))
    assert not labels.is_stray(Found("eps-job-x-c-1", {**gone, "eps.boot": "another machine's"}, True))
    mine = {"eps.job": str(job[0].path), "eps.instance": labels.instance, "eps.boot": labels.boot}
    assert not labels.is_stray(Found("eps-job-y-c-1", mine, True))
    # Made by a job master that was killed before it could start it.
    assert labels.is_stray(Found("eps-job-y-c-1", mine, False))


# ---- a real engine


@pytest.fixture
def docker(tmp_path: Path, job: Job) -> Iterator[DockerResourceManager]:
    if why := why_no_docker():
        pytest.skip(why)
    manager = connect(image_of_nothing(), job[0])
    yield manager
    manager.close()


def told(manager: DockerResourceManager, job: Job, behaviour: str, memory_mb: int = 256) -> None:
    """Start a container; wait until one that stays has said that it is there."""
    manager.request(ContainerRequest("c-1", "worker", memory_mb, 1, {"EPS_TEST_BEHAVIOUR": behaviour}))
    if behaviour in ("stay", "ignore-sigterm"):
        log = job[0].log("c-1")
        wait_for(lambda: log.exists() and "here" in log.read_text())


def test_a_real_container_is_held_to_its_memory(docker: DockerResourceManager, job: Job) -> None:
    told(docker, job, "eat", 64)
    reason = "was ended by SIGKILL: it needed more memory than its 64 MB"
    assert until(docker, Exited) == Exited("c-1", None, reason)


def test_a_real_container_says_its_exit_code(docker: DockerResourceManager, job: Job) -> None:
    told(docker, job, "exit 7")
    assert until(docker, Exited) == Exited("c-1", 7, "exited with code 7")


@pytest.mark.parametrize(("behaviour", "by"), [("stay", "SIGTERM"), ("ignore-sigterm", "SIGKILL")])
def test_a_real_container_that_is_released_ends(
    docker: DockerResourceManager, job: Job, behaviour: str, by: str
) -> None:
    told(docker, job, behaviour)
    docker.release("c-1")
    assert until(docker, Exited) == Exited("c-1", None, f"was ended by {by}")


def test_a_real_container_ends_with_its_jobs_lock(docker: DockerResourceManager, job: Job) -> None:
    told(docker, job, "stay")
    # As a supervisor that is killed outright.
    job[1].close()
    last = "eps.container: the job has ended: nobody holds its lock"
    assert until(docker, Exited) == Exited("c-1", 1, f"exited with code 1; the last line of its log: {last}")
