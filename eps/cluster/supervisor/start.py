"""The client's side of a supervisor: start it, wait for it, and tie it to this process."""

from __future__ import annotations

import json
import os
import signal as signals
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from eps import errors
from eps.cluster.supervisor.process import prepare_environment
from eps.cluster.supervisor.state import GRACE_S
from eps.errors import DeadlineError, ResourceError
from eps.storage.jobdir import JobDir, JobLock

#: The supervisor ends its processes within :data:`~eps.cluster.supervisor.state.GRACE_S`; the rest allows for a slow
#: machine.
CLOSE_TIMEOUT_S = GRACE_S + 7.0


class JobHandle(Protocol):
    """A job that this process has started."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the job runs."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end of the job and return its exit code.

        Raises
        ------
        DeadlineError
            The job has not ended within ``timeout_s`` seconds.
        """

    def kill(self) -> None:
        """Kill the job at once."""

    def close(self) -> None:
        """End a tied job and wait for it; leave a detached one running.  Idempotent.

        Raises
        ------
        DeadlineError
            A tied job has not ended in time.
        """


class Process(Protocol):
    """The process of a supervisor; :class:`subprocess.Popen` is one."""

    returncode: int | None

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code."""

    def kill(self) -> None:
        """Kill it; no effect if it has ended."""


class SupervisorHandle:
    """A supervisor that this process started.

    A tied one ends its job when this process closes the handle or dies; a detached one keeps running.
    """

    def __init__(self, process: Process, tie_fd: int | None) -> None:
        self._process = process
        self._tie_fd = tie_fd

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while the supervisor runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end of the job and return its exit code; negative if that signal ended the supervisor.

        Raises
        ------
        DeadlineError
            The job has not ended within ``timeout_s`` seconds.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"supervisor {self.pid}: its job has not ended within {timeout_s} s") from None

    def kill(self) -> None:
        """Kill the supervisor, and with it all processes of the job."""
        if self.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """End a tied job and wait for it; leave a detached one running.  Idempotent.

        Raises
        ------
        DeadlineError
            A tied job has not ended within :data:`CLOSE_TIMEOUT_S` seconds.
        """
        tie_fd, self._tie_fd = self._tie_fd, None
        if tie_fd is not None:
            os.close(tie_fd)
            self.wait(CLOSE_TIMEOUT_S)
        else:
            self.leave()

    def leave(self) -> None:
        """End a tied job without waiting for it; leave a detached one running."""
        tie_fd, self._tie_fd = self._tie_fd, None
        if tie_fd is not None:
            os.close(tie_fd)
        if self.poll() is None:
            # Popen would warn about a running process; a detached one is meant to run.
            self._process.returncode = 0

    def __enter__(self) -> SupervisorHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WarmSupervisor:
    """A supervisor that runs its imports while its job is prepared, and receives the job afterwards.

    On a machine with two cores the preparation takes as long as the imports alone.  The process exits by itself if it
    never receives a job.

    Parameters
    ----------
    entry_points : mapping
        Role -> ``module:function``.
    forked : (socket, Process), optional
        One that a fork server started, and the socket to it; by default a new process is started.
    options : sequence of str, optional
        Further options of the supervisor's command line, such as ``--preload``.
    log : Path or str, optional
        File for the output of a new process before it has a job; by default that output is discarded.

    Raises
    ------
    ResourceError
        The process cannot be started.
    """

    def __init__(
        self,
        entry_points: Mapping[str, str],
        forked: tuple[socket.socket, Process] | None = None,
        *,
        options: Sequence[str] = (),
        log: Path | str = os.devnull,
    ) -> None:
        self._entry_points = entry_points
        self._options = options
        self._socket: socket.socket
        self._process: Process
        self._socket, self._process = (
            start_early("--handoff-fd", entry_points, options, log) if forked is None else forked
        )

    def give(self, job_dir: Path, tied: bool, lock: JobLock) -> SupervisorHandle:
        """Hand over a job; if this process has ended, to a new one.

        Parameters
        ----------
        job_dir : Path
            Created by :func:`eps.storage.jobdir.create_job_dir`.
        tied : bool
            End the job when this process closes the handle or dies, in any way.
        lock : JobLock
            The job's lock, which the supervisor inherits; the caller closes its own hold afterwards.

        Returns
        -------
        SupervisorHandle
            The job master may not have started yet; it writes ``master.json`` when it has.

        Raises
        ------
        ResourceError
            This process has ended, and no other one can be started.
        """
        try:
            return self._give(job_dir, tied, lock)
        except OSError:
            # The job must not get two supervisors, so end this one first.
            self.cancel()
        # Only the saved time is lost.  The log explains if the new process ends during its imports too.
        log = JobDir(job_dir).log("supervisor")
        another = WarmSupervisor(self._entry_points, options=self._options, log=log)
        try:
            return another._give(job_dir, tied, lock)
        except OSError as error:
            another.cancel()
            raise ResourceError(f"the supervisor of {job_dir} cannot be started: {error}") from error

    def _give(self, job_dir: Path, tied: bool, lock: JobLock) -> SupervisorHandle:
        """Send a job to this process; raise OSError if that fails."""
        read_fd = tie_fd = None
        try:
            descriptors = [lock.fileno()]
            if tied:
                read_fd, tie_fd = os.pipe()
                descriptors.append(read_fd)
            socket.send_fds(self._socket, [json.dumps({"job_dir": str(job_dir.absolute())}).encode()], descriptors)
        except BaseException:
            if tie_fd is not None:
                os.close(tie_fd)
            raise
        finally:
            if read_fd is not None:
                os.close(read_fd)
            self._socket.close()
        return SupervisorHandle(self._process, tie_fd)

    def cancel(self) -> None:
        """End the process, which has no job, and wait for it.  Idempotent."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def start_early(
    option: str, entry_points: Mapping[str, str], options: Sequence[str] = (), log: Path | str = os.devnull
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a supervisor's process before there is a job; return the socket to it, and the process.

    Parameters
    ----------
    option : str
        The option that gives it its end of the socket.
    entry_points, options, log
        See :class:`WarmSupervisor`.

    Raises
    ------
    ResourceError
        The process cannot be started.
    """
    try:
        # Requests of a fork server keep their bounds.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = _start(option, theirs, [*_entry_words(entry_points), *options], log)
            except BaseException:
                ours.close()
                raise
    except OSError as error:
        raise ResourceError(f"a supervisor cannot be started: {error}") from error
    return ours, process


def _start(option: str, theirs: socket.socket, words: Sequence[str], log: Path | str) -> subprocess.Popen[bytes]:
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            # -P: a file in the user's working directory must not shadow a module.
            [sys.executable, "-P", "-m", "eps.cluster.supervisor", option, str(theirs.fileno()), *words],
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            env=supervisor_environment(os.environ),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    finally:
        os.close(log_fd)


def _entry_words(entry_points: Mapping[str, str]) -> list[str]:
    return [word for role, entry in sorted(entry_points.items()) for word in ("--entry", f"{role}={entry}")]


def supervisor_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a supervisor: this process's, with the variables that its imports need.

    A checkout that is not installed is added to the path.  An installed package is found anyway, and its directory must
    not come before the standard library.
    """
    result = dict(environ)
    prepare_environment(result)
    root = Path(errors.__file__).absolute().parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        rest = result.get("PYTHONPATH", "")
        result["PYTHONPATH"] = os.pathsep.join([str(root), *([rest] if rest else [])])
    return result


def kill_supervisor(job: JobDir, signal: int = signals.SIGTERM) -> bool:
    """Signal the supervisor of a job, started by any process, to end the job; no effect if it has ended.

    SIGKILL is for a supervisor that hangs: its processes end with it, without any cleanup.

    Returns
    -------
    bool
        Whether the signal was sent.  False also shortly after the start, before the record has the supervisor's pid.
    """
    pid = job.record().pid
    # Check the lock: if it is free, the pid may belong to any process.
    if pid and job.is_running():
        with suppress(ProcessLookupError):
            os.kill(pid, signal)
            return True
    return False
