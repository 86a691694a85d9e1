"""Bad input and crashed processes: a clear error, no hang, and no process is left."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eps
from eps.errors import ConfigError, DataError, TrainingError
from eps.storage.atomic import read_json
from eps.system.waits import wait_for
from tests.integration.conftest import processes_with
from tests.integration.test_operations import ENDLESS, TIMEOUT_S, wait_for_clock


def test_kill_of_the_supervisor_ends_every_process(home: Path) -> None:
    job = eps.Job.start(name="orphans", workers=2, servers=2, **ENDLESS)
    wait_for_clock(job, 1)
    members = {member["pid"] for member in job.status()["members"]}
    assert len(members) == 4 and members <= set(processes_with(str(home)))
    supervisor = job.directory.record().pid
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not processes_with(str(home)), TIMEOUT_S, "every process to end with its supervisor")
    assert job.wait(TIMEOUT_S)["state"] != "finished"


@pytest.mark.parametrize("role", ["worker", "server"])
def test_job_continues_without_a_crashed_member_and_reports_it(home: Path, role: str) -> None:
    with eps.Job.start(name="crash", workers=2, servers=2, **ENDLESS) as job:
        wait_for_clock(job, 1)
        victim = next(member for member in job.status()["members"] if member["role"] == role)
        os.kill(victim["pid"], signal.SIGKILL)
        loss = lost_by(job)
        wait_for_clock(job, job.status()["clock"] + 5)
    assert (loss["name"], loss["reason"]) == (victim["name"], "was ended by SIGKILL")


@pytest.mark.parametrize("role", ["worker", "server"])
def test_member_that_hangs_is_declared_lost_and_killed(home: Path, role: str) -> None:
    with eps.Job.start(name="hang", workers=2, servers=2, member_timeout_s=1.5, **ENDLESS) as job:
        wait_for_clock(job, 1)
        victim = next(member for member in job.status()["members"] if member["role"] == role)
        os.kill(victim["pid"], signal.SIGSTOP)
        loss = lost_by(job)
        wait_for(lambda: victim["pid"] not in processes_with(str(home)), TIMEOUT_S, "the end of what hung")
        wait_for_clock(job, job.status()["clock"] + 5)
    assert (loss["name"], loss["reason"]) == (victim["name"], "said nothing for 1.5 s")


def lost_by(job: eps.Job) -> dict[str, Any]:
    """Wait until a job has lost a member; return the job's status of it."""
    wait_for(lambda: bool(job.status()["losses"]), TIMEOUT_S, "the loss of a member")
    return dict(job.status()["losses"][0])


def test_member_that_hung_for_less_than_the_deadline_continues(home: Path) -> None:
    with eps.Job.start(name="breath", workers=2, servers=1, **ENDLESS) as job:
        wait_for_clock(job, 1)
        pid = job.status()["members"][0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        # The job's own clock measures the time.
        stopped_s = job.status()["elapsed_s"]
        wait_for(lambda: job.status()["elapsed_s"] > stopped_s + 1.0, TIMEOUT_S, "a second of the job")
        os.kill(pid, signal.SIGCONT)
        wait_for_clock(job, job.status()["clock"] + 5)


def test_a_hanging_supervisor_is_in_the_status_while_training_continues(home: Path) -> None:
    with eps.Job.start(name="deaf", workers=1, servers=1, member_timeout_s=1.0, **ENDLESS) as job:
        wait_for_clock(job, 1)
        assert job.status()["resources_error"] == ""
        supervisor = job.directory.record().pid
        os.kill(supervisor, signal.SIGSTOP)
        try:
            wait_for(lambda: "silent for" in job.status()["resources_error"], TIMEOUT_S, "the status to say so")
            wait_for_clock(job, job.status()["clock"] + 5)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        wait_for(lambda: job.status()["resources_error"] == "", TIMEOUT_S, "the supervisor to listen again")
        assert job.status()["generation"] == 1


def test_kill_ends_the_job_and_reports_it(home: Path) -> None:
    with eps.Job.start(name="killed", workers=2, servers=1, test=0.2, **ENDLESS) as job:
        wait_for(lambda: job.status()["metrics"], TIMEOUT_S, "the test data to be evaluated")
        job.kill()
        report = job.wait(TIMEOUT_S)
    assert report["state"] == "killed"
    measured = report["metrics"]["test"]
    assert measured["accuracy"] > 0 and job.status()["metrics"] == measured, "the last that was measured"


def test_a_job_that_has_just_started_is_killed_cleanly(home: Path) -> None:
    """Neither its supervisor nor its master can be found yet: the client retries until one can."""
    with eps.Job.start(name="young", workers=1, servers=1, **ENDLESS) as job:
        job.kill()
        ended = job.directory.ended()
    assert ended is not None, "its supervisor was killed with SIGKILL"
    assert job.status()["state"] == "killed"


@pytest.mark.parametrize("tls", [False, True])
def test_garbage_on_every_socket_does_no_harm(home: Path, monkeypatch: pytest.MonkeyPatch, *, tls: bool) -> None:
    with eps.Job.start(name="noise", workers=2, servers=2, tls=tls, **ENDLESS) as job:
        wait_for_clock(job, 1)
        # The paths of sockets have a maximal length.
        monkeypatch.chdir(job.directory.path)
        places: list[tuple[int, Any]] = [(socket.AF_UNIX, str(path)) for path in Path("sockets").glob("*")]
        if tls:
            master = read_json(job.directory.master_json) or {}
            ports = [member["port"] for member in (master, *job.status()["members"])]
            places = [(socket.AF_INET, ("127.0.0.1", port)) for port in ports]
        assert len(places) >= 5 and all(place for _, place in places)
        random = np.random.default_rng(3)
        for family, place in places:
            for noise in (
                b"GET / HTTP/1.1\r\n\r\n",
                random.bytes(5000),
                b"\0" * 100,
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff",
            ):
                with socket.socket(family) as connection:
                    connection.settimeout(5)
                    connection.connect(place)
                    connection.sendall(noise)
        wait_for_clock(job, job.status()["clock"] + 10)
        assert job.add_workers(1)["phase"] == "released"


def write_data(path: Path, values: float) -> Path:
    rows = [f"{i % 5} 1:{(i % 7) * values} 2:{(i % 3) * values}" for i in range(60)]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_divergence_stops_the_job_with_advice(home: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data.libsvm", 1e15)
    with pytest.raises(TrainingError, match=r"diverged.*learning rate"):
        eps.run(name="diverges", data=str(data), model="linear", optimizer="sgd", learning_rate=1e6, iterations=50)


def test_training_continues_after_divergence_on_request(home: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data.libsvm", 1e15)
    report = eps.run(
        name="diverges", data=str(data), model="linear", optimizer="sgd", learning_rate=1e6, iterations=20,
        on_divergence="continue",
    )  # fmt: skip
    assert (report["state"], report["clock"]) == ("finished", 20)
    assert report["ledger"]["lost"] == 0


def test_a_model_that_raises_fails_the_job_with_its_message(home: Path, tmp_path: Path) -> None:
    code = tmp_path / "broken.py"
    code.write_text(
        "from eps.ml.models.linear import Logistic\n\n\n"
        "class Broken(Logistic):\n"
        "    def loss_and_gradient(self, params, X, y):\n"
        "        raise RuntimeError('a word of the user')\n"
    )
    with pytest.raises(TrainingError, match="a word of the user"):
        eps.run(name="broken", data="sklearn:breast_cancer", model=f"{code}:Broken", iterations=5)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"data": "sklearn:digits", "model": "logistic"}, DataError, "exactly 2"),
        ({"data": "sklearn:iris", "model": "softmax", "splits": 400}, DataError, "400"),
        ({"data": "sklearn:iris", "model": "softmax", "workers": 20}, ConfigError, "20 workers"),
        ({"data": "sklearn:diabetes", "model": "linear", "partitions": 50}, ConfigError, "50"),
        ({"data": "sklearn:diabetes", "model": "lasso"}, ConfigError, "l1"),
        ({"data": "sklearn:nothing", "model": "softmax"}, ConfigError, "nothing"),
        ({"data": "no/such/file", "model": "softmax"}, DataError, "no/such/file"),
        ({"data": "sklearn:iris", "model": "softmax", "iteratons": 5}, ConfigError, "iterations"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(
    home: Path, settings: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        eps.run(name="bad", **settings)
    assert processes_with(str(home)) == []


def test_status_of_a_killed_job_has_its_progress(home: Path) -> None:
    with eps.Job.start(name="late", workers=2, servers=1, **ENDLESS) as job:
        wait_for_clock(job, 1)
        job.add_workers(1)
        wait_for(lambda: "changes" in read(job, "status.json"), TIMEOUT_S, "the status on disk")
        wait_for(lambda: bool(read(job, "status.json")["changes"]), TIMEOUT_S, "the change in it")
        os.kill(job.directory.record().pid, signal.SIGKILL)
        job.wait(TIMEOUT_S)
        status = job.status()
    assert status["state"] != "running" and status["clock"] > 0
    assert (status["membership_version"], status["changes"][0]["phase"]) == (2, "released")


def read(job: eps.Job, name: str) -> dict[str, Any]:
    return dict(read_json(job.directory.path / name) or {})
