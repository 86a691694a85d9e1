"""A supervisor that is started before its job, and dies before it or soon after it got it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from eps.cluster.supervisor.start import WarmSupervisor
from eps.errors import ResourceError
from eps.job.entry_points import ENTRY_POINTS
from eps.storage.jobdir import JobLock, create_job_dir
from eps.storage.record import Phase
from tests.fakes.records import note_end

DEADLINE_S = 30.0


@pytest.mark.usefixtures("no_leftovers")
def test_a_job_whose_warm_supervisor_has_died_gets_another_one(tmp_path: Path) -> None:
    warm = WarmSupervisor(ENTRY_POINTS)
    os.kill(warm._process.pid, signal.SIGKILL)
    # Dead, but not waited for.
    os.waitid(os.P_PID, warm._process.pid, os.WEXITED | os.WNOWAIT)
    job, lock = create_job_dir("job", tmp_path)
    with lock:
        handle = warm.give(job.path, True, lock)
    assert handle.pid != warm._process.pid
    assert warm._process.returncode == -signal.SIGKILL
    with handle:
        # There is no job.json: it has begun, and says so.
        assert handle.wait(DEADLINE_S) > 0
    assert job.ended() is not None


@pytest.mark.usefixtures("no_leftovers")
def test_a_supervisor_that_cannot_start_writes_why_to_the_log_of_its_job(tmp_path: Path) -> None:
    warm = WarmSupervisor({}, options=["--entry", "no role"])
    os.waitid(os.P_PID, warm._process.pid, os.WEXITED | os.WNOWAIT)
    job, lock = create_job_dir("job", tmp_path)
    with lock:
        handle = warm.give(job.path, True, lock)
    with handle:
        assert handle.wait(DEADLINE_S) == 1
    assert "ValueError" in job.log("supervisor").read_text()
    assert not job.is_running()


@pytest.mark.usefixtures("no_leftovers")
def test_a_job_that_no_supervisor_can_be_given_leaves_no_process(tmp_path: Path) -> None:
    job, lock = create_job_dir("job", tmp_path)
    lock.close()
    # A closed lock cannot be sent.
    with pytest.raises(ResourceError, match=f"supervisor of {job.path} cannot be started"):
        WarmSupervisor(ENTRY_POINTS).give(job.path, True, lock)
    assert not job.is_running()


@pytest.mark.usefixtures("no_leftovers")
def test_a_warm_supervisor_that_dies_with_its_job_is_seen_to_have_ended(tmp_path: Path) -> None:
    warm = WarmSupervisor(ENTRY_POINTS)
    os.kill(warm._process.pid, signal.SIGSTOP)
    job, lock = create_job_dir("job", tmp_path)
    with lock:
        handle = warm.give(job.path, True, lock)
    os.kill(handle.pid, signal.SIGKILL)
    assert handle.wait(DEADLINE_S) == -signal.SIGKILL
    assert handle.poll() == -signal.SIGKILL
    handle.close()
    assert not job.is_running()


@pytest.mark.usefixtures("no_leftovers")
def test_cancelling_twice_is_harmless() -> None:
    warm = WarmSupervisor(ENTRY_POINTS)
    warm.cancel()
    warm.cancel()
    assert warm._process.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("no_leftovers")
def test_what_a_run_takes_the_place_of_can_come_back_until_its_supervisor_begins(tmp_path: Path) -> None:
    warm = WarmSupervisor(ENTRY_POINTS)
    os.kill(warm._process.pid, signal.SIGSTOP)
    job, lock = create_job_dir("job", tmp_path)
    note_end(job, "failed")
    failed = job.record()
    with lock:
        job.note(phase=Phase.PREPARED, end=None, former=failed)
        handle = warm.give(job.path, True, lock)
    os.kill(handle.pid, signal.SIGKILL)
    handle.wait(DEADLINE_S)
    handle.close()
    assert job.settle() == failed
    with JobLock(job.lock) as lock:
        job.note(phase=Phase.PREPARED, end=None, former=failed)
        handle = WarmSupervisor({}, options=["--preload", ""]).give(job.path, True, lock)
    with handle:
        handle.wait(DEADLINE_S)
    assert job.record().end != failed.end and job.record().former is None
