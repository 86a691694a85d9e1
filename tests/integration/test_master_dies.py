"""The job master is killed or hangs at any moment: the next one takes over, and the model has the same bits."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.errors import EpsError
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir, find_job
from eps.system.waits import wait_for
from tests.integration.test_operations import ENDLESS, TIMEOUT_S, wait_for_clock
from tools.chaos.master import chaos_master
from tools.chaos.trap import MASTERS, SPRUNG

SETTINGS: dict[str, Any] = {"data": "sklearn:breast_cancer", "model": "logistic", "iterations": 120}


def kill_master(directory: JobDir, number: signal.Signals) -> int:
    """Signal the master; return its generation."""
    record = read_json(directory.master_json)
    if record is None:
        return 0
    with suppress(ProcessLookupError):
        os.kill(int(record["pid"]), number)
    return int(record["generation"])


def wait_for_next(job: eps.Job, generation: int) -> None:
    def there() -> bool:
        record = read_json(job.directory.master_json)
        return record is not None and record["generation"] > generation

    wait_for(there, TIMEOUT_S, f"a master after generation {generation}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_job_continues_after_its_master_died_or_hangs(home: Path, number: signal.Signals) -> None:
    with eps.Job.start(name="goes-on", workers=2, servers=2, member_timeout_s=1.0, **ENDLESS) as job:
        for round_ in range(1, 3):
            wait_for_clock(job, 10 * round_)
            members = {member["name"]: member["pid"] for member in job.status()["members"]}
            generation = kill_master(job.directory, number)
            assert generation == round_
            wait_for_next(job, generation)
            status = job.status()
            assert (status["generation"], status["state"], status["storage_error"]) == (round_ + 1, "running", "")
            assert {member["name"]: member["pid"] for member in status["members"]} == members
            wait_for_clock(job, status["clock"] + 5)
        assert job.add_workers(1)["phase"] == "released"
        history = [h["clock"] for progress in first(job, 20) for h in progress.history]
        assert history[:20] == list(range(20))


def first(job: eps.Job, clocks: int) -> list[Any]:
    found: list[Any] = []
    for progress in job.watch():
        found.append(progress)
        if progress.status["clock"] >= clocks:
            break
    return found


def test_a_damaged_log_of_the_master_ends_the_job_and_is_named(home: Path) -> None:
    with eps.Job.start(name="damaged", workers=1, servers=1, **ENDLESS) as job:
        wait_for_clock(job, 10)
        (log,) = job.directory.state.glob("log-*")
        with log.open("r+b") as file:
            file.seek(30)
            file.write(b"\xff\xff\xff")
        kill_master(job.directory, signal.SIGKILL)
        with suppress(EpsError):
            job.wait(TIMEOUT_S)
        ended = find_job("damaged").ended()
    assert ended is not None and ended.state == "failed"
    assert "the job master failed" in ended.reason and "log-00000000: offset 8" in ended.reason


@pytest.mark.parametrize("victim", MASTERS)
def test_a_master_that_dies_after_the_last_clock_is_followed_by_one_that_ends_the_job(home: Path, victim: str) -> None:
    trap = f"job:finished:{victim}"
    with chaos_master(trap), eps.Job.start(name="over", workers=2, servers=2, **SETTINGS) as job:
        report = job.wait(TIMEOUT_S)
        assert os.listdir(job.directory.path / SPRUNG) == [trap]
    assert report["state"] == "finished" and report["model_sha256"], report["reason"]
    assert report["generation"] == 2
    ended = find_job("over").ended()
    assert ended is not None and ended.state == "finished"


def test_failed_writes_are_shown_and_the_job_continues(home: Path) -> None:
    with eps.Job.start(name="full", workers=1, servers=1, **ENDLESS) as job:
        wait_for_clock(job, 1)
        assert job.status()["storage_error"] == ""
        # A directory blocks the file, like a full disk, also for root.
        in_the_way(job.directory.status_json)
        wait_for(lambda: "status.json" in job.status()["storage_error"], TIMEOUT_S, "the error to be shown")
        wait_for_clock(job, job.status()["clock"] + 5)
        job.directory.status_json.rmdir()
        wait_for(lambda: job.status()["storage_error"] == "", TIMEOUT_S, "the error to be mended")
        in_the_way(job.directory.report)
        job.kill()
        with suppress(EpsError):
            job.wait(TIMEOUT_S)
    ended = find_job("full").ended()
    assert ended is not None and ended.state == "failed" and "report.json" in ended.reason


def in_the_way(path: Path) -> None:
    """Put a directory at the path of a file that is written repeatedly."""
    while not path.is_dir():
        path.unlink(missing_ok=True)
        with suppress(FileExistsError):
            path.mkdir()
