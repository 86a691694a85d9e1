"""A supervisor that is started before its job, and a spare one that is given to a job later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from eps.cluster.supervisor import start
from eps.cluster.supervisor.start import WarmSupervisor, start_supervisor
from eps.errors import ResourceError
from eps.job.entry_points import ENTRY_POINTS
from eps.job.prefork import SpareSupervisor
from eps.storage.jobdir import JobLock, create_job_dir
from eps.storage.record import Phase
from eps.system.waits import wait_for
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
        handle = start_supervisor(job.path, True, lock=lock, preload=())
    with handle:
        handle.wait(DEADLINE_S)
    assert job.record().end != failed.end and job.record().former is None


TIMEOUT_S = 20.0


def pid_of(warm: start.WarmSupervisor) -> int:
    return warm._process.pid


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_spare_one_is_given_away_once() -> None:
    spare = SpareSupervisor()
    spare.refill()
    spare.refill()
    assert spare._spare is not None
    waiting = pid_of(spare._spare)
    first, second = spare.take(), spare.take()
    assert pid_of(first) == waiting
    assert pid_of(second) != waiting, "one that only begins"
    first.cancel()
    second.cancel()
    spare.close()


def test_it_is_ended_when_nobody_takes_it() -> None:
    spare = SpareSupervisor()
    spare.refill()
    assert spare._spare is not None
    pid = pid_of(spare._spare)
    spare.close()
    assert not is_there(pid)
    spare.refill()
    assert spare._spare is None, "who has closed it wants no more"
    spare.close()


def test_it_ends_with_a_process_that_is_killed() -> None:
    code = (
        "from eps.job.prefork import SpareSupervisor; import signal\n"
        "spare = SpareSupervisor(); spare.refill(); print(spare._spare._process.pid, flush=True); signal.pause()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(TIMEOUT_S)
    owner.stdout.close()
    wait_for(lambda: not is_there(pid), TIMEOUT_S, "the end of the spare supervisor")


def test_one_that_cannot_be_had_is_told_to_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(entry_points: Mapping[str, str]) -> start.WarmSupervisor:
        raise ResourceError("no more processes")

    monkeypatch.setattr("eps.job.prefork.WarmSupervisor", refuse)
    spare = SpareSupervisor()
    spare.refill()
    with pytest.raises(ResourceError, match="no more processes"):
        spare.take()
    spare.close()
