"""HDFS enters safe mode during a job with its data and checkpoints there: real Hadoop, whole jobs.

``tests/integration/test_hdfs_safe_mode.py`` tests it on a fake HDFS, in less time.
"""

from __future__ import annotations

import secrets
import signal
import sys
import threading
from pathlib import Path

import pytest

import eps
from eps.cluster.yarn.application import Application
from eps.spec.file import RunRequest
from eps.storage.locations import RemotePath
from eps.system.waits import wait_for
from tests.fakes.slow_model import SlowModel
from tests.integration.test_hdfs_safe_mode import SETTINGS, outlives_safe_mode, start_published
from tests.yarn.hadoop import PATIENCE_S, Hadoop
from tests.yarn.test_hdfs_jobs import folder as folder
from tests.yarn.test_job_faults_on_yarn import pids, status_of
from tests.yarn.test_jobs_on_yarn import application_of, master_of, reach

#: EPS_HDFS_PATIENCE_S, and the additional seconds of each call of the model: a busy machine needs a minute in all.
PATIENCE, SLOW_S = "2", 0.2

pytestmark = [pytest.mark.tier("all"), pytest.mark.usefixtures("no_leftovers")]


@pytest.mark.parametrize("on", ["local", "yarn"])
def test_a_job_continues_in_safe_mode_reports_it_and_writes_checkpoints_again_afterwards(
    on_yarn: Hadoop, folder: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", PATIENCE)
    here = eps.run(name="here", model="softmax", data=str(tmp_path / "train.libsvm"), **SETTINGS)
    slow = SlowModel(tmp_path, SLOW_S)
    # Containers do not inherit this environment.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nEPS_HDFS_PATIENCE_S={PATIENCE} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with begin(on, slow.setting, folder, python=str(python)) as job:
        report = outlives_safe_mode(job, slow, lambda: safe_mode(on_yarn, "enter"), lambda: safe_mode(on_yarn, "leave"))
    assert report["model_sha256"] == here["model_sha256"]


def test_a_master_killed_in_safe_mode_is_followed_by_one_that_waits_for_its_end(
    on_yarn: Hadoop, folder: RemotePath, tmp_path: Path
) -> None:
    """The next master cannot create its log until then; members wait for it."""
    here = eps.run(name="here", model="softmax", data=str(tmp_path / "train.libsvm"), **SETTINGS)
    slow = SlowModel(tmp_path, SLOW_S)
    with begin("yarn", slow.setting, folder) as job:
        job.wait_until_trains(PATIENCE_S)
        reach(job, 5)
        first, before = master_of(job), pids(job)
        safe_mode(on_yarn, "enter")
        try:
            assert first.send(signal.SIGKILL)
            on_yarn.wait_until(lambda: has_next_master(on_yarn, job), "the next attempt's process")
        finally:
            safe_mode(on_yarn, "leave")
        wait_for(lambda: status_of(job).get("generation") == 2, PATIENCE_S, "the next job master")
        # Members report their process ids when they attach.
        wait_for(lambda: pids(job) == before, PATIENCE_S, "its members, who are who they were")
        slow.hurry()
        report = job.wait(PATIENCE_S)
    assert (report["state"], report["model_sha256"]) == ("finished", here["model_sha256"])
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"], report["losses"]) == (0, 0, [])


def test_a_job_killed_while_its_model_waits_for_the_end_of_safe_mode_leaves_no_files(
    on_yarn: Hadoop, folder: RemotePath, tmp_path: Path
) -> None:
    slow = SlowModel(tmp_path, SLOW_S)
    with begin("yarn", slow.setting, folder) as job:
        job.wait_until_trains(PATIENCE_S)
        reach(job, 5)
        application = Application.read(job.directory)
        assert application is not None
        safe_mode(on_yarn, "enter")
        try:
            slow.hurry()
            wait_for(lambda: "results/model.npz" in status_of(job).get("storage_error", ""), PATIENCE_S, "its word")
            killing = threading.Thread(target=job.kill, args=("enough",), daemon=True)
            killing.start()
            wait_for(lambda: status_of(job).get("state") != "exporting", PATIENCE_S, "the job to be killed")
        finally:
            safe_mode(on_yarn, "leave")
        report = job.wait(PATIENCE_S)
        killing.join(PATIENCE_S)
    assert (report["state"], report["reason"]) == ("killed", "enough") and not job.directory.model.exists()
    shared = RemotePath.parse(application.shared)
    on_yarn.wait_until(lambda: not any(on_yarn.containers(node) for node in on_yarn.nodes), "its processes to end")
    assert (shared / "results" / "model.npz").status() is None, "an aborted change is not carried out later"


def has_next_master(hadoop: Hadoop, job: eps.Job) -> bool:
    """Return whether the container of the second attempt's master runs."""
    # The number of the ResourceManager's restarts precedes it.
    mark = f"_{application_of(job).removeprefix('application_')}_02_000001".encode()
    processes = [process for node in hadoop.nodes for process in hadoop.containers(node)]
    return any(mark in environ_of(process.pid) for process in processes)


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def begin(on: str, model: str, folder: RemotePath, **more: str) -> eps.Job:
    """Start a job with all files on HDFS: on this machine, or on YARN."""
    places = {"data": str(folder / "train.libsvm"), "checkpoint_dir": str(folder / "c"), "checkpoint_every": "5"}
    settings = {**SETTINGS, **places, "model": model, "name": f"safe-{secrets.token_hex(3)}", "memory_mb": "512"}
    if on == "local":
        return start_published(RunRequest.from_values(settings), folder / "cache")
    return eps.Job.start(on=on, **settings, **more)


def safe_mode(hadoop: Hadoop, word: str) -> None:
    hadoop.run_cli("hdfs", "dfsadmin", "-safemode", word)
