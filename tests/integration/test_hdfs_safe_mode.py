"""HDFS enters safe mode during a job with its data and checkpoints there; HDFS is a fake.

``tests/yarn/test_safe_mode.py`` tests it on a real HDFS, and on YARN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cluster.supervisor.start import WarmSupervisor
from eps.data.publish import publish_dataset
from eps.job.entry_points import ENTRY_POINTS
from eps.job.launch import prepare_job
from eps.spec.file import RunRequest
from eps.storage.locations import RemotePath, write_public
from eps.system.waits import wait_for
from tests.fakes.slow_model import SlowModel
from tests.fakes.webhdfs import FakeHdfs

pytest.importorskip("hdfs")

PATIENCE_S = 120.0
SETTINGS: dict[str, Any] = {
    "iterations": 400, "workers": 2, "servers": 2, "splits": 4, "partitions": 4, "learning_rate": 0.05,
}  # fmt: skip
ROWS = "".join(f"{row % 3} 1:{row % 7} 2:{row % 5} 3:{row % 2}\n" for row in range(120))
#: Operations that a NameNode refuses in safe mode.
REFUSED = ("MKDIRS", "CREATE", "APPEND", "RENAME", "DELETE", "SETPERMISSION", "SETTIMES")


def test_a_job_continues_in_safe_mode_reports_it_and_writes_checkpoints_again_afterwards(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "0.5")
    (tmp_path / "rows.libsvm").write_text(ROWS)
    here = eps.run(name="here", model="softmax", data=str(tmp_path / "rows.libsvm"), **SETTINGS)
    slow = SlowModel(tmp_path, 0.05)
    with FakeHdfs() as hdfs:
        folder = RemotePath.parse(f"webhdfs://{hdfs.authority}/jobs")
        write_public(folder / "rows.libsvm", ROWS.encode())
        places = {"data": str(folder / "rows.libsvm"), "checkpoint_dir": str(folder / "c"), "checkpoint_every": "5"}
        request = RunRequest.from_values({**SETTINGS, **places, "model": slow.setting, "name": "safe"})

        def enter() -> None:
            for operation in REFUSED:
                hdfs.fault(operation, "error", name="SafeModeException", message="Name node is in safe mode.", left=-1)

        def leave() -> None:
            with hdfs.lock:
                hdfs.faults.clear()

        with start_published(request, folder / "cache") as job:
            report = outlives_safe_mode(job, slow, enter, leave)
    assert report["model_sha256"] == here["model_sha256"]


def start_published(request: RunRequest, cache: RemotePath) -> eps.Job:
    """Start a job whose workers read the prepared data from HDFS, like workers on other hosts."""
    prepared = prepare_job(request)
    published = publish_dataset(prepared.dataset, cache)
    runtime = dataclasses.replace(prepared.runtime, dataset_dir=published.directory)
    prepared.directory.note(runtime=runtime.to_values())
    return eps.Job(prepared.directory, prepared.start(tied=True, warm=WarmSupervisor(ENTRY_POINTS)))


def outlives_safe_mode(
    job: eps.Job, slow: SlowModel, enter: Callable[[], None], leave: Callable[[], None]
) -> dict[str, Any]:
    """Put HDFS into safe mode and out of it during a job; return the job's report, with no lost update."""
    job.wait_until_trains(PATIENCE_S)
    wait_for(lambda: checkpoints(job)["complete"] >= 2, PATIENCE_S, "two checkpoints")
    enter()
    try:
        failed = checkpoints(job)["failed"]
        wait_for(lambda: checkpoints(job)["failed"] > failed, PATIENCE_S, "a checkpoint to fail")
        told = checkpoints(job)["error"]
        assert "the NameNode is in safe mode" in told and "hdfs dfsadmin -safemode leave" in told, told
        # No process waits for it, and the size changes.
        train_on(job)
        assert job.add_workers(1)["phase"] == "released"
        assert job.remove_workers(["worker-1"])["phase"] == "released"
        train_on(job)
    finally:
        leave()
    complete = checkpoints(job)["complete"]
    wait_for(lambda: checkpoints(job)["complete"] > complete, PATIENCE_S, "a checkpoint after safe mode")
    wait_for(lambda: not checkpoints(job)["error"], PATIENCE_S, "no trouble to be told any more")
    wait_for(lambda: not job.status()["storage_error"], PATIENCE_S, "the master's log to be whole")
    slow.hurry()
    report = job.wait(PATIENCE_S)
    assert report["state"] == "finished", report["reason"]
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)
    assert (report["losses"], report["generation"]) == ([], 1)
    return report


def train_on(job: eps.Job) -> None:
    clock = job.status()["clock"] + 5
    wait_for(lambda: job.status()["clock"] >= clock, PATIENCE_S, f"clock {clock}")


def checkpoints(job: eps.Job) -> dict[str, Any]:
    found: dict[str, Any] = job.status()["checkpoints"]
    return found
