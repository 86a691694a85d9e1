"""Run several job masters in one process of an application master's container, for jobs that share the application.

A master with its supervisor in processes of their own needs 130 MB of resident memory.  Most of that is Python and
gRPC, which YARN counts for each process.  Here one process runs up to :data:`MOST_IN_ONE` masters, so a further master
costs only its own state (benchmarks/yarn/masters.py measures it).

If a master fails, its job fails, and the scheduler resumes the job from its latest checkpoint.  If the process dies,
all jobs in it fail.  All of them end with the application master.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from eps.cluster.api import NO_NEWS, ContainerEvent, ContainerRequest
from eps.cluster.backend import Waitable, Wakeup
from eps.cluster.supervisor.process import PRELOAD, preload, prepare_environment
from eps.cluster.supervisor.start import CLOSE_TIMEOUT_S, supervisor_environment
from eps.core import events as e
from eps.core.events import JobState
from eps.errors import DeadlineError, EpsError, ResourceError
from eps.job.entry_points import ENTRY_POINTS
from eps.job.launch import PreparedJob
from eps.master.main import Master, prepare_process, serve
from eps.storage.jobdir import JobDir, JobLock
from eps.storage.record import SUPERVISOR_KILLED, End, Phase
from eps.system.threads import expect_many_threads

logger = logging.getLogger(__name__)

#: Most masters in one process, where they share one core.
MOST_IN_ONE = 32
_MOST_BYTES = 64 * 1024
_LOST = 1


class HostedMaster:
    """A job whose master runs in another process of this container; the job ends with this process.

    Implements :class:`eps.cluster.supervisor.start.JobHandle`.
    """

    def __init__(self, host: _HostProcess, job: JobDir) -> None:
        self._host, self._job = host, job
        self._exit_code: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        """Return the exit code; None while the job is running."""
        return self._exit_code

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end of the job and return its exit code.

        Raises
        ------
        DeadlineError
            The job has not ended within ``timeout_s`` seconds.
        """
        if not self._ended.wait(timeout_s) or self._exit_code is None:
            raise DeadlineError(f"job {self._job.name!r} has not ended within {timeout_s} s")
        return self._exit_code

    def kill(self) -> None:
        """Kill the job without waiting for its master."""
        self._host.say({"kill": str(self._job.path)})

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End the job and wait for its end.  Idempotent.

        Raises
        ------
        DeadlineError
            The job has not ended within ``timeout_s`` seconds.
        """
        self._host.say({"end": str(self._job.path)})
        self.wait(timeout_s)

    def on_ended(self, exit_code: int) -> None:
        """Note how the job ended."""
        self._exit_code = exit_code
        self._ended.set()


class MasterHosts:
    """The processes that run masters.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: list[_HostProcess] = []

    def warm_up(self, folder: Path) -> None:
        """Start a process before there is a job, so that the first job need not wait for its imports.

        Parameters
        ----------
        folder : Path
            Folder for the process's log.

        Raises
        ------
        ResourceError
            The process cannot be started.
        """
        with self._lock:
            self._hosts.append(_HostProcess(folder))

    def start(self, prepared: PreparedJob) -> HostedMaster:
        """Start the master of a job; it takes over the job's lock.

        Raises
        ------
        ResourceError
            No process can be started for it.
        """
        with prepared.lock as lock, self._lock:
            self._hosts = [host for host in self._hosts if host.is_alive]
            host = min((h for h in self._hosts if len(h) < MOST_IN_ONE), key=len, default=None)
            if host is None:
                host = _HostProcess(prepared.directory.path.parent)
                self._hosts.append(host)
            return host.start(prepared.directory, lock)

    def pids(self) -> list[int]:
        """Return the process ids."""
        with self._lock:
            return [host.pid for host in self._hosts if host.is_alive]

    def close(self) -> None:
        """Kill all processes, and with them their jobs.  Idempotent."""
        with self._lock:
            for host in self._hosts:
                host.close()
            self._hosts.clear()


class _HostProcess:
    """A process of masters, as the application master uses it."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", __name__, "--fd", str(theirs.fileno())]
        with theirs:
            try:
                with (folder / "masters.log").open("ab") as log:
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=supervisor_environment(os.environ),
                        pass_fds=[theirs.fileno()],
                    )
            except OSError as error:
                ours.close()
                raise ResourceError(f"the process for job masters cannot be started: {error}") from error
        self._socket = ours
        self._lock = threading.Lock()
        #: Path of the job's directory -> master, for jobs that have not ended.
        self._masters: dict[str, HostedMaster] = {}
        self._listener = threading.Thread(target=self._listen, name="masters", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def __len__(self) -> int:
        return len(self._masters)

    def start(self, job: JobDir, lock: JobLock) -> HostedMaster:
        path = str(job.path.absolute())
        master = HostedMaster(self, JobDir(Path(path)))
        with self._lock:
            self._masters[path] = master
        try:
            socket.send_fds(self._socket, [json.dumps({"start": path}).encode()], [lock.fileno()])
        except OSError as error:
            with self._lock:
                del self._masters[path]
            raise ResourceError(f"the process for job masters has exited: {error}") from error
        return master

    def say(self, message: Mapping[str, str]) -> None:
        # If the process has exited, its jobs have ended.
        with suppress(OSError):
            self._socket.send(json.dumps(message).encode())

    def _listen(self) -> None:
        while True:
            try:
                packet = self._socket.recv(_MOST_BYTES)
            except OSError:
                packet = b""
            if not packet:
                break
            found = json.loads(packet)
            with self._lock:
                master = self._masters.pop(found["ended"], None)
            if master is not None:
                master.on_ended(found["exit_code"])
        self._process.wait()
        self._socket.close()
        with self._lock:
            left, self._masters = list(self._masters.values()), {}
        for master in left:
            master.on_ended(_LOST)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._listener.join()


# ---- in the process of masters


class _NoContainers(Waitable):
    """Resource manager of a hosted master in place of a supervisor: starts no containers, keeps the job's end."""

    def __init__(self) -> None:
        self.end: End | None = None
        self._wakeup = Wakeup()

    def adopt(self, known: Mapping[str, int]) -> Mapping[str, int]:
        return {}

    def request(self, request: ContainerRequest) -> None:
        raise ResourceError(f"{request.container_id} cannot be started in the application master's container")

    def withdraw(self, container_id: str) -> bool:
        return False

    def release(self, container_id: str) -> None:
        """Do nothing: there are no containers."""

    def kill(self, container_id: str) -> None:
        """Do nothing: there are no containers."""

    def poll(self) -> list[ContainerEvent]:
        return []

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        """Do nothing: the scheduler kills a trial without progress."""

    def room(self) -> Mapping[str, int]:
        return {}

    def silent_s(self) -> float:
        return 0.0

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        self.end = End(state, reason, exit_code, round(time.time(), 3))

    def close(self) -> None:
        self._wakeup.close()


class _Hosted:
    """A job of this process."""

    def __init__(self, job: JobDir, lock: JobLock) -> None:
        self.job, self._lock = job, lock
        self._master: Master | None = None
        self._ends = threading.Lock()
        self._is_over = False
        self._why = ""

    def run(self) -> int:
        """Run the job to its end, record the end, and return the exit code."""
        resources = _NoContainers()
        try:
            self.job.begin(phase=Phase.RUNNING, pid=0, end=None)
            serve(self.job, resources, ENTRY_POINTS, made=self._made)
        except Exception as error:
            logger.exception("M the job master failed")
            resources.end_job(1, JobState.FAILED, f"the job master failed: {type(error).__name__}: {error}")
        finally:
            resources.close()
        end = resources.end or End(JobState.FAILED, SUPERVISOR_KILLED, 1, round(time.time(), 3))
        self.over(end)
        return end.exit_code

    def _made(self, master: Master) -> None:
        self._master = master
        if self._why:
            self.kill_in_order(self._why)

    def kill_in_order(self, why: str) -> None:
        """Make the master end the job, as soon as there is a master."""
        self._why = why
        if self._master is not None:
            self._master.events.put(e.KillRequested(why))

    def over(self, end: End) -> None:
        """Record the job's end, once."""
        with self._ends:
            if self._is_over:
                return
            self._is_over = True
        try:
            self.job.close(end)
        except EpsError:
            # The next process that opens the job records that its master was killed.
            logger.exception("M the end of the job cannot be recorded")
        self._lock.close()


class _Host:
    """Runs the masters of this process.

    Parameters
    ----------
    line : socket.socket
        Connection to the application master.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._jobs: dict[str, _Hosted] = {}

    def run(self) -> None:
        """Serve until the application master closes the connection."""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._line, _MOST_BYTES, 1)
            if not packet:
                return
            ((what, path),) = json.loads(packet).items()
            if what == "start":
                self._start(path, descriptors[0])
            elif (hosted := self._jobs.get(path)) is not None:
                hosted.kill_in_order("its client has exited")
                if what == "kill":
                    del self._jobs[path]
                    hosted.over(End(JobState.KILLED, "killed at once", _LOST, round(time.time(), 3)))
                    self._tell(path, _LOST)

    def _start(self, path: str, lock_fd: int) -> None:
        job = JobDir(Path(path))
        try:
            lock = JobLock(job.lock, lock_fd)
        except EpsError:
            # Its directory was removed.  The other jobs of this process continue.
            logger.exception("M %s cannot be started", job.name)
            self._tell(path, _LOST)
            return
        hosted = self._jobs[path] = _Hosted(job, lock)
        threading.Thread(target=self._run, args=(path, hosted), name=job.name, daemon=True).start()

    def _run(self, path: str, hosted: _Hosted) -> None:
        log = _JobLog(hosted.job)
        logging.getLogger().addHandler(log)
        try:
            exit_code = hosted.run()
        finally:
            logging.getLogger().removeHandler(log)
            log.close()
        # The end of a killed job was reported before, and the job may have been started again.
        if self._jobs.get(path) is hosted:
            del self._jobs[path]
            self._tell(path, exit_code)

    def _tell(self, path: str, exit_code: int) -> None:
        with suppress(OSError):
            self._line.send(json.dumps({"ended": path, "exit_code": exit_code}).encode())


class _JobLog(logging.FileHandler):
    """Writes the log lines of a master's owner thread, which has the job's name, to the job's log."""

    def __init__(self, job: JobDir) -> None:
        super().__init__(job.log("master"), delay=True)
        self._name = job.name
        (ours, *_) = logging.getLogger().handlers
        self.setFormatter(ours.formatter)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.threadName == self._name


def main(argv: Sequence[str] | None = None) -> int:
    """Run masters until the application master closes the connection."""
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}", description="Run the masters of several jobs.")
    parser.add_argument("--fd", type=int, required=True, metavar="N", help="socket of the application master")
    arguments = parser.parse_args(argv)
    prepare_environment(os.environ)
    prepare_process()
    expect_many_threads()
    for failure in preload(PRELOAD):
        logger.warning("%s", failure)
    with socket.socket(fileno=arguments.fd) as line:
        _Host(line).run()
    # The masters end with the application.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
