"""Containers of a Docker engine: requests to the engine, and its answers, errors and silence."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from eps.cluster.api import ContainerRequest, Exited
from eps.cluster.docker.container import CHECK_IMAGE, DockerSettings, JobLabels, build_container
from eps.cluster.docker.engine import DockerEngine, Found
from eps.cluster.docker.resources import GONE, DockerResourceManager
from eps.core.evictions import NOTICE_S
from eps.errors import ConfigError, ResourceError
from eps.storage.jobdir import create_job_dir
from tests.cluster.docker_world import Job, run, until, wait_for
from tests.cluster.docker_world import engine as engine
from tests.cluster.docker_world import job as job
from tests.cluster.docker_world import manager as manager
from tests.conftest import require
from tests.docker_host import connect, image_of_nothing, settings
from tests.fakes.docker_engine import IMAGE, FakeContainer, FakeDockerEngine
from tests.fakes.resources import FakeResourceManager

#: The SDK leaves sockets open that it could not connect.
pytestmark = pytest.mark.filterwarnings("ignore:.*socket:ResourceWarning")


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
    assert host["NetworkMode"] == "host" and "AutoRemove" not in host
    assert config["Labels"]["eps.job"] == str(directory.path) and config["Labels"]["eps.container"] == "c-1"
    assert directory.read_token() not in json.dumps(config)


def test_a_container_of_a_tier_has_its_label_and_time_after_sigterm(job: Job) -> None:
    labels, settings = JobLabels.of(job[0]), DockerSettings("eps")
    request = ContainerRequest("c-1", "server+worker", tier="transient")
    config = build_container(request, settings, labels, {})
    assert (config["Labels"]["eps.role"], config["Labels"]["eps.tier"]) == ("server+worker", "transient")
    assert config["StopTimeout"] == NOTICE_S
    assert "eps.tier" not in build_container(ContainerRequest("c-2", "worker"), settings, labels, {})["Labels"]


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
    # What has ended does not stay in the engine.
    wait_for(lambda: not engine.containers)


def test_a_container_that_the_engine_does_not_know_any_more_was_taken(
    engine: FakeDockerEngine, manager: DockerResourceManager
) -> None:
    run(manager)
    engine.forgets("c-1")
    assert until(manager, Exited) == Exited("c-1", None, GONE, taken=True)


@pytest.mark.parametrize(("ignores", "by"), [(False, "SIGHUP"), (True, "SIGKILL")])
def test_a_container_that_is_released_is_ended_and_gets_sigkill_when_its_grace_is_over(
    engine: FakeDockerEngine, job: Job, ignores: bool, by: str
) -> None:
    manager = DockerResourceManager(DockerEngine(), dataclasses.replace(settings(IMAGE), grace_s=0.1), job[0])
    run(manager)
    engine.of("c-1").ignores_end = ignores
    manager.release("c-1")
    assert until(manager, Exited) == Exited("c-1", None, f"was ended by {by}")
    assert sum(call.endswith("c-1/kill") for call in engine.asked) == 1 + ignores
    manager.close()


def test_a_kill_is_not_taken_back_by_a_release(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    engine.hangs = "/start"
    manager.request(ContainerRequest("c-1", "worker"))
    wait_for(lambda: engine.num_hanging == 1)
    manager.kill("c-1")
    manager.release("c-1")
    engine.let_go()
    assert until(manager, Exited) == Exited("c-1", None, "was ended by SIGKILL")


def test_what_needed_too_much_memory_says_so(engine: FakeDockerEngine, manager: DockerResourceManager) -> None:
    run(manager, memory_mb=64)
    engine.runs_out_of_memory("c-1")
    reason = "was ended by SIGKILL: it needed more memory than its 64 MB"
    assert until(manager, Exited) == Exited("c-1", None, reason)


def test_what_a_container_said_last_is_told(engine: FakeDockerEngine, manager: DockerResourceManager, job: Job) -> None:
    run(manager)
    job[0].log("c-1").write_text("Traceback ...\nValueError: 7\n\n")
    engine.exits("c-1", 1)
    reason = "exited with code 1; the last line of its log: ValueError: 7"
    assert until(manager, Exited) == Exited("c-1", 1, reason)


@pytest.mark.parametrize(
    ("code", "last"),
    [
        (127, "eps: 1: exec: python3: not found"),
        (126, "eps: 1: exec: python3: Permission denied"),
        (1, "/usr/bin/python3: Error while finding module specification (ModuleNotFoundError: No module named 'eps')"),
    ],
)
def test_an_image_that_lacks_something_is_said_to(
    engine: FakeDockerEngine, manager: DockerResourceManager, job: Job, code: int, last: str
) -> None:
    run(manager)
    job[0].log("c-1").write_text(f"{last}\n")
    engine.exits("c-1", code)
    reason = f"exited with code {code}; the last line of its log: {last}; {CHECK_IMAGE}"
    assert until(manager, Exited) == Exited("c-1", code, reason)


def test_an_image_that_is_missing_is_named(engine: FakeDockerEngine, job: Job) -> None:
    manager = connect("nothing-of-that-name", job[0])
    manager.request(ContainerRequest("c-1", "worker"))
    reason = "could not be launched: No such image: nothing-of-that-name:latest"
    assert until(manager, Exited) == Exited("c-1", None, reason)
    assert engine.asked.count("POST /containers/create") == 1, "it was an answer"
    manager.close()
    docker = DockerEngine()
    with pytest.raises(ConfigError, match="'nothing-of-that-name'"):
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


# ---- the end of a job, and what is left of others


def test_the_end_of_a_job_leaves_no_container_and_tells_the_supervisor(engine: FakeDockerEngine, job: Job) -> None:
    supervisor = FakeResourceManager()
    manager = DockerResourceManager(DockerEngine(), settings(IMAGE), job[0], 1, supervisor)
    run(manager)
    manager.request(ContainerRequest("c-2", "worker"))
    manager.beat(3)
    manager.end_job(1, "failed", "it did")
    assert engine.containers == {}
    assert 3 in supervisor.beats and supervisor.ended == (1, "failed", "it did")
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
    for number, each in enumerate(managers):
        run(each, f"c-{number}")
        each.close()
    before = {number: engine.of(f"c-{number}").name for number in range(3)}
    over_lock.close()
    # The next run of the job: its containers are others.
    job[0].make_token()
    manager = connect(IMAGE, job[0])
    assert manager.adopt({}) == {}
    wait_for(lambda: set(engine.containers) == {before[1]})
    manager.close()
    other_lock.close()


def test_what_others_see_differently_is_left_alone(job: Job) -> None:
    labels = JobLabels.of(job[0])
    gone = {"eps.job": "/nowhere/job", "eps.instance": "x", "eps.boot": labels.boot}
    assert labels.is_stray(Found("eps-job-x-c-1", gone, "running"))
    assert labels.is_stray(Found("eps-job-x-c-1", gone, "exited"))
    assert not labels.is_stray(Found("eps-job-x-c-1", {**gone, "eps.boot": "another machine's"}, "running"))
    mine = {"eps.job": str(job[0].path), "eps.instance": labels.instance, "eps.boot": labels.boot}
    assert not labels.is_stray(Found("eps-job-y-c-1", mine, "running"))


def test_what_a_former_job_master_left_half_done_is_removed(
    engine: FakeDockerEngine, manager: DockerResourceManager, job: Job
) -> None:
    """It was killed while it made a container, and after a container had ended."""
    run(manager)
    config = engine.of("c-1").config
    manager.close()
    for container_id, state in (("c-2", "created"), ("c-3", "exited")):
        name = f"eps-job-{container_id}"
        labels = {**config["Labels"], "eps.container": container_id}
        engine.containers[name] = FakeContainer(name, {**config, "Labels": labels}, state=state)
    taken_over = connect(IMAGE, job[0])
    assert set(taken_over.adopt({})) == {"c-1"}
    wait_for(lambda: [each.labels["eps.container"] for each in engine.containers.values()] == ["c-1"])
    taken_over.close()


# ---- a real engine


@pytest.fixture
def docker(tmp_path: Path, job: Job) -> Iterator[DockerResourceManager]:
    require("docker")
    manager = connect(image_of_nothing(), job[0])
    yield manager
    manager.close()


def told(manager: DockerResourceManager, job: Job, behaviour: str, memory_mb: int = 256) -> None:
    """Start a container; wait until one that stays has said that it is there."""
    manager.request(ContainerRequest("c-1", "worker", memory_mb, 1, {"EPS_TEST_BEHAVIOUR": behaviour}))
    if behaviour in ("stay", "ignore-end"):
        log = job[0].log("c-1")
        wait_for(lambda: log.exists() and "here" in log.read_text())


def test_a_real_container_is_held_to_its_memory(docker: DockerResourceManager, job: Job) -> None:
    told(docker, job, "eat", 64)
    reason = "was ended by SIGKILL: it needed more memory than its 64 MB"
    assert until(docker, Exited) == Exited("c-1", None, reason)


def test_a_real_container_says_its_exit_code(docker: DockerResourceManager, job: Job) -> None:
    told(docker, job, "exit 7")
    assert until(docker, Exited) == Exited("c-1", 7, "exited with code 7")


@pytest.mark.parametrize(("behaviour", "by"), [("stay", "SIGHUP"), ("ignore-end", "SIGKILL")])
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
    last = "eps.cluster.container: the job has ended: its lock was released"
    assert until(docker, Exited) == Exited("c-1", 1, f"exited with code 1; the last line of its log: {last}")
