"""Everything that EPS reports about an ended job is in its record; its other files may be deleted."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cli import main
from eps.job.client import Job
from eps.storage.jobdir import JobDir, readable
from eps.system.waits import wait_for
from tests.integration.test_failures import write_data
from tests.integration.test_operations import TIMEOUT_S, wait_for_clock

SMALL: dict[str, Any] = {"data": "sklearn:digits", "model": "softmax", "test": "0.2", "workers": 2, "servers": 1}
DIVERGES = {"model": "linear", "optimizer": "sgd", "learning_rate": 1e6, "iterations": 50}


def finish(job: Job) -> None:
    wait_for_clock(job, 1)
    job.add_workers(1)
    job.wait(TIMEOUT_S)


def fail(job: Job) -> None:
    assert job.wait(TIMEOUT_S)["state"] == "failed"


def kill(job: Job) -> None:
    wait_for_clock(job, 1)
    job.kill("enough")


def kill_outright(job: Job) -> None:
    wait_for_clock(job, 1)
    # A file may be replaced while it is read; it is never half written.
    wait_for(lambda: readable(job.directory.status_json).get("clock", 0) > 0, TIMEOUT_S, "the status on disk")
    os.kill(job.directory.record().pid, signal.SIGKILL)
    job.wait(TIMEOUT_S)


def remove_all_but_the_record(job: JobDir) -> None:
    for path in job.path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != job.job_json:
            path.unlink()
    assert [path.name for path in job.path.iterdir()] == ["job.json"]


@pytest.mark.parametrize(
    ("settings", "end", "state"),
    [
        ({"iterations": 300, "checkpoint_every": "50"}, finish, "finished"),
        (DIVERGES, fail, "failed"),
        ({"iterations": 1_000_000, "checkpoint_every": "50"}, kill, "killed"),
        ({"iterations": 1_000_000}, kill_outright, "killed"),
    ],
    ids=["finished", "failed", "killed", "killed outright"],
)
def test_status_and_list_say_the_same_of_a_job_of_which_only_the_record_is_left(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    settings: dict[str, Any], end: Callable[[Job], None], state: str,
) -> None:  # fmt: skip
    if state == "failed":
        settings = {**settings, "data": str(write_data(tmp_path / "data.libsvm", 1e15))}
    with eps.Job.start(name="alone", **{**SMALL, **settings}) as job:
        end(job)
        directory = job.directory
    commands = (["status", "alone", "--json"], ["status", "alone"], ["list", "--json"])

    def said() -> list[str]:
        found = []
        for words in commands:
            assert main(words) == 0
            found.append(capsys.readouterr().out)
        return found

    before = said()
    assert f'"state": "{state}"' in before[0] and (state == "failed" or '"clock": 0,' not in before[0])
    remove_all_but_the_record(directory)
    assert said() == before
