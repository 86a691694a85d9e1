"""Jobs whose workers and servers are containers: a real engine, and an image with EPS (docker/README.md)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cluster.choice import check_backend
from eps.cluster.docker.engine import DockerEngine
from eps.errors import EpsError
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir
from eps.system.waits import wait_for
from hscheduler.live.placement import placed
from hscheduler.live.sweep import Sweep
from hscheduler.spec import Spec
from tests.conftest import lacks, require
from tests.docker_host import ROOT

TIMEOUT_S = 120.0
SMALL: dict[str, Any] = {"data": "sklearn:digits", "model": "softmax", "splits": 6, "partitions": 6}


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    require("docker")
    try:
        check_backend(JobSpec(on="docker"))
    except EpsError as error:
        lacks("docker", str(error))
    engine = DockerEngine()
    yield engine
    engine.close()


def containers(engine: DockerEngine, job: Path) -> list[str]:
    return [each.labels["eps.container"] for each in engine.find(f"eps.job={job}") if each.is_running]


def test_a_model_has_the_same_bits_in_containers(home: Path, engine: DockerEngine) -> None:
    settings = {**SMALL, "workers": 2, "servers": 1, "iterations": 60}
    here = eps.run(**settings, name="here")
    checkpoints = {"checkpoint_every": "5", "checkpoint_dir": str(home / "checkpoints")}
    changes = ("10:add-workers=1", "30:remove-workers=1")
    there = eps.run(**settings, **checkpoints, name="there", on="docker", at=changes)
    assert here["state"] == there["state"] == "finished"
    assert there["checkpoints"]["complete"] >= 1
    assert here["model_sha256"] == there["model_sha256"]
    # The engine may remove them late.
    wait_for(lambda: not containers(engine, home / "jobs" / "there"), TIMEOUT_S, "the containers to end")


def test_containers_outlive_the_job_master_and_end_with_the_supervisor(home: Path, engine: DockerEngine) -> None:
    directory = home / "jobs" / "endless"
    with eps.Job.start(name="endless", on="docker", workers=1, servers=1, iterations=1_000_000, **SMALL) as job:
        job.wait_until_trains(TIMEOUT_S)
        before = containers(engine, directory)
        assert len(before) == 2
        generation = job.status()["generation"]
        master = read_json(directory / "master.json")
        assert master is not None
        os.kill(master["pid"], signal.SIGKILL)
        wait_for(lambda: job.status()["generation"] > generation, TIMEOUT_S, "the next job master")
        clock = job.status()["clock"]
        wait_for(lambda: job.status()["clock"] > clock + 5, TIMEOUT_S, "training to go on")
        assert containers(engine, directory) == before
        os.kill(JobDir(directory).record().pid, signal.SIGKILL)
        wait_for(lambda: not containers(engine, directory), TIMEOUT_S, "the containers to end")
    # The job master's files stay, because no process was left to remove them.
    assert {left.name for left in (directory / "containers").iterdir()} <= {"master"}
    shutil.rmtree(directory / "containers")


def test_a_container_that_is_killed_is_replaced(home: Path, engine: DockerEngine) -> None:
    directory = home / "jobs" / "hit"
    with eps.Job.start(name="hit", on="docker", workers=2, servers=1, iterations=1_000_000, **SMALL) as job:
        job.wait_until_trains(TIMEOUT_S)
        before = {each.labels["eps.container"]: each for each in engine.find(f"eps.job={directory}")}
        victim = next(each for each in before.values() if each.labels["eps.role"] == "worker")
        # Like docker kill.
        engine.kill(victim.name, signal.SIGKILL)
        wait_for(lambda: set(containers(engine, directory)) - before.keys(), TIMEOUT_S, "another container")
        wait_for(lambda: "worker-3" in members(job) and len(members(job)) == 3, TIMEOUT_S, "another worker")
        clock = job.status()["clock"]
        wait_for(lambda: job.status()["clock"] > clock + 5, TIMEOUT_S, "training to go on")
        assert len(containers(engine, directory)) == 3
    # They end with the job's lock.
    wait_for(lambda: not containers(engine, directory), TIMEOUT_S, "the containers to end")


def test_transient_containers_are_stopped_and_killed_without_a_different_bit(home: Path, engine: DockerEngine) -> None:
    from docker.api import APIClient
    from docker.utils import kwargs_from_env

    settings = {"data": "sklearn:digits", "model": "softmax", "splits": 12, "batch_size": 200, "iterations": 1500}
    here = eps.run(**settings, name="here", workers=3, servers=1)
    tiers = {"reliable": 2, "transient": 2, "stage_rule": "2", "stretch_s": 0.001, "memory_mb": "256,server=512"}
    directory = home / "jobs" / "tiers"
    with eps.Job.start(name="tiers", on="docker", **tiers, **settings) as job:

        def owners() -> set[str]:
            return {m["container"] for m in job.status()["members"] if m["server_tier"] == "ActivePS"}

        wait_for(lambda: bool(owners()), TIMEOUT_S, "stage 2")
        here_now = engine.find(f"eps.job={directory}")
        found = {each.labels["eps.container"]: each.name for each in here_now if each.labels["eps.tier"] == "transient"}
        (stopped,) = owners()
        (killed,) = found.keys() - {stopped}
        client = APIClient(**kwargs_from_env(), version="auto")
        try:
            assert client.inspect_container(found[stopped])["HostConfig"]["Memory"] == 768 << 20
            # As docker stop: SIGTERM, and SIGKILL when the container's time is over.
            client.stop(found[stopped])
        finally:
            client.close()
        wait_for(lambda: job.status()["evictions"]["drained"] == 1, TIMEOUT_S, "the container to be drained")
        assert (job.status()["losses"], job.status()["tiers"]["rolled_back"]) == ([], 0)
        wait_for(lambda: owners() == {killed}, TIMEOUT_S, "stage 2 on the other container")
        engine.kill(found[killed], signal.SIGKILL)
        there = job.wait()
    assert there["model_sha256"] == here["model_sha256"] and there["ledger"]["lost"] == 0
    assert {loss["reason"] for loss in there["losses"]} == {"was ended by SIGKILL"}
    last = there["tiers"]["stages"][-1]
    assert (last["stage"], last["reliable"], last["transient"]) == (1, 2, 0)
    wait_for(lambda: not containers(engine, directory), TIMEOUT_S, "the containers to end")


def members(job: eps.Job) -> list[str]:
    return [str(member["name"]) for member in job.status()["members"]]


def test_ctrl_c_leaves_no_container(home: Path, engine: DockerEngine) -> None:
    words = ["--name", "stopped", "--workers", "2", "--servers", "1", "--iterations", "1000000"]
    words += [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    command = subprocess.Popen(
        [sys.executable, "-m", "eps", "run", "--on", "docker", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        directory = home / "jobs" / "stopped"
        wait_for(lambda: len(containers(engine, directory)) == 3, TIMEOUT_S, "the containers to run")
        command.send_signal(signal.SIGINT)
        assert command.wait(TIMEOUT_S) == 130
    finally:
        command.kill()
        command.wait()
    wait_for(lambda: not engine.find(f"eps.job={directory}"), TIMEOUT_S, "the containers to end")


def test_the_trials_of_a_sweep_run_in_containers(home: Path, engine: DockerEngine) -> None:
    tables = {
        "cluster": {"nodes": 2, "vcores": 4, "memory": "16GiB", "container_memory": "512MiB"},
        "sweep": {"trials": 3, "algorithm": "random", "threshold": 1, "feedback_iteration": 5, "seed": 3},
        "space": {"learning_rate": {"loguniform": [1e-3, 1]}},
        "job": {"data": "sklearn:digits", "model": "softmax", "workers": 2, "servers": 1, "iterations": 40},
    }
    found = Sweep(placed(Spec.of(tables), "docker"), "elastic").run()
    assert found["resources"] == {"leaked": 0}
    assert {trial["phase"] for trial in found["trials"]} <= {"finished", "killed"}, found["trials"]
    assert found["completed"] >= 1
    jobs = sorted((home / "jobs").glob("*-trial-*"))
    assert len(jobs) == 3
    assert {JobDir(job).record().runs_on for job in jobs} == {"docker"}
    left = lambda: [each.name for job in jobs for each in engine.find(f"eps.job={job}")]  # noqa: E731
    wait_for(lambda: not left(), TIMEOUT_S, "the containers to end")
