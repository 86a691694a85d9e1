"""Supervisors that a fork server starts: what they inherit, and how they and it end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from eps.cluster.supervisor import fork_server
from eps.cluster.supervisor.fork_server import ForkServer
from eps.cluster.supervisor.start import WarmSupervisor
from eps.errors import ResourceError
from eps.job.entry_points import ENTRY_POINTS
from eps.storage.jobdir import create_job_dir
from eps.system.waits import wait_for

DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def joined(no_leftovers: None) -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "fork server":
            thread.join(DEADLINE_S)


def pid_of(warm: WarmSupervisor) -> int:
    return warm._process.pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def forks() -> Iterator[ForkServer]:
    server = ForkServer(ENTRY_POINTS)
    try:
        yield server
    finally:
        server.close()


def test_each_supervisor_is_a_child_of_one_process_in_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with forks() as server:
        first = server.take()
        monkeypatch.setenv("OF_THE_SECOND", "yes")
        second = server.take()
        pids = [pid_of(first), pid_of(second)]
        assert len({parent_of(pid) for pid in pids}) == 1 and parent_of(pids[0]) != os.getpid()
        assert [os.getsid(pid) for pid in pids] == pids
        for each in (first, second):
            each.cancel()
            each.cancel()
        wait_for(lambda: not any(map(is_there, pids)), DEADLINE_S, "the end of two supervisors")


def test_a_job_gets_its_clients_environment_and_reports_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forks() as server:
        server.take().cancel()
        monkeypatch.setenv("OF_THE_JOB", "yes")
        monkeypatch.chdir(tmp_path)
        job, lock = create_job_dir("job", tmp_path)
        with lock:
            handle = server.take().give(job.path, True, lock)
        with handle:
            # There is no job.json, so it fails; meanwhile it stands still.
            os.kill(handle.pid, signal.SIGSTOP)
            seen = Path(f"/proc/{handle.pid}/cwd").resolve()
            assert handle.poll() is None
            os.kill(handle.pid, signal.SIGCONT)
            assert handle.wait(DEADLINE_S) > 0
            assert seen == tmp_path
        assert job.ended() is not None


def test_a_supervisor_that_is_killed_is_reported(tmp_path: Path) -> None:
    with forks() as server:
        warm = server.take()
        os.kill(pid_of(warm), signal.SIGSTOP)
        job, lock = create_job_dir("job", tmp_path)
        with lock:
            handle = warm.give(job.path, True, lock)
        handle.kill()
        assert handle.wait(DEADLINE_S) == -signal.SIGKILL
        handle.kill()
        handle.close()
        assert not job.is_running()


def test_with_the_fork_server_its_supervisors_end_and_the_next_one_is_another_ones() -> None:
    with forks() as server:
        first = server.take()
        pid = pid_of(first)
        server_pid = parent_of(pid)
        os.kill(server_pid, signal.SIGKILL)
        wait_for(lambda: not is_there(pid), DEADLINE_S, "the end of a supervisor")
        assert first._process.wait(DEADLINE_S) == -signal.SIGKILL
        first.cancel()
        wait_for(lambda: not is_there(server_pid), DEADLINE_S, "the end of the fork server")
        # A request may find that it is dead; then the supervisor is a process of its own.
        others = [server.take(), server.take()]
        assert parent_of(pid_of(others[1])) not in (server_pid, os.getpid())
        for other in others:
            other.cancel()


def test_it_ends_after_the_last_supervisor_once_it_is_closed() -> None:
    with forks() as server:
        warm = server.take()
        server_pid = parent_of(pid_of(warm))
    assert is_there(server_pid), "it has a supervisor"
    warm.cancel()
    wait_for(lambda: not is_there(server_pid), DEADLINE_S, "the end of the fork server")


def test_it_ends_with_a_client_that_is_killed() -> None:
    code = (
        "from eps.cluster.supervisor.fork_server import ForkServer; import signal\n"
        "from eps.job.entry_points import ENTRY_POINTS\n"
        "warm = ForkServer(ENTRY_POINTS).take(); print(warm._process.pid, flush=True); signal.pause()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    server_pid = parent_of(pid)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(DEADLINE_S)
    owner.stdout.close()
    wait_for(lambda: not (is_there(pid) or is_there(server_pid)), DEADLINE_S, "the end of both processes")


def test_a_process_that_cannot_be_started_is_an_error_of_the_one_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(option: str, entry_points: Mapping[str, str]) -> None:
        raise ResourceError("no more processes")

    monkeypatch.setattr(fork_server, "start_early", refuse)
    with forks() as server, pytest.raises(ResourceError, match="no more processes"):
        server.take()
