"""A process that has imported what supervisors need and forks one for each job, so that a start costs no imports.

:class:`ForkServer` is the client's side; :func:`serve` runs in the process.  It ends once its client has closed it or
has died, and the last of its supervisors has ended.  If it is killed, they end too, and with them their jobs.
"""

from __future__ import annotations

import json
import os
import select
import signal as signals
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from eps.cluster.supervisor.process import die_with_parent
from eps.cluster.supervisor.start import WarmSupervisor, start_early, supervisor_environment
from eps.errors import ResourceError

#: The process id of a supervisor that waits for its job, or the exit code of one that has ended; and whether it has.
_REPORT = struct.Struct("=i?")
#: Longest request; most of it is the client's environment.
_MOST_BYTES = 1 << 20
#: The imports take half a second on an idle machine.
START_TIMEOUT_S = 60.0
#: How long :meth:`ForkServer.close` waits for one without supervisors to end.
_END_TIMEOUT_S = 1.0


class ForkServer:
    """Forks supervisors that wait for their jobs; thread-safe.  The process starts with the first :meth:`take`.

    Parameters
    ----------
    entry_points : mapping
        Role -> ``module:function``.
    """

    def __init__(self, entry_points: Mapping[str, str]) -> None:
        self._entry_points = entry_points
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def take(self) -> WarmSupervisor:
        """Return a supervisor that waits for its job.

        Raises
        ------
        ResourceError
            No process can be started.
        """
        with self._lock:
            if self._requests is None:
                self._requests, self._process = start_early("--fork-fd", self._entry_points)
            try:
                return self._fork(self._requests)
            except OSError:
                # It was killed.  The next call starts another one.
                self._leave()
        return WarmSupervisor(self._entry_points)

    def close(self) -> None:
        """Let the process end once its supervisors have ended.  Idempotent."""
        with self._lock:
            self._leave()

    def _fork(self, requests: socket.socket) -> WarmSupervisor:
        handoff, theirs = socket.socketpair()
        status, reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"environment": supervisor_environment(os.environ), "directory": os.getcwd()}).encode()
        with theirs, reports:
            try:
                socket.send_fds(requests, [request], [theirs.fileno(), reports.fileno()])
            except OSError:
                handoff.close()
                status.close()
                raise
        return WarmSupervisor(self._entry_points, (handoff, ForkedProcess(status)))

    def _leave(self) -> None:
        requests, process, self._requests, self._process = self._requests, self._process, None, None
        if requests is None or process is None:
            return
        requests.close()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Jobs run that may outlive this process.
            threading.Thread(target=process.wait, name="fork server", daemon=True).start()


class ForkedProcess:
    """A supervisor that a fork server started, with the methods of :class:`subprocess.Popen` that its handle needs.

    Parameters
    ----------
    status : socket
        From the fork server: the process id, then the exit code.
    """

    def __init__(self, status: socket.socket) -> None:
        # A number: the garbage collector may end a socket before it calls :meth:`__del__`, and then warns of it.
        self._status = status.detach()
        os.set_blocking(self._status, False)
        self._lock = threading.Lock()
        self._pid = 0
        self._pidfd = -1
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """Its process id.

        Raises
        ------
        ResourceError
            The fork server has ended or hangs.
        """
        if not self._pid and self.returncode is None:
            self._read(START_TIMEOUT_S)
        if not self._pid:
            raise ResourceError(f"the fork server has started no supervisor within {START_TIMEOUT_S:g} s")
        return self._pid

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        while self.returncode is None and self._read(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code.

        Raises
        ------
        TimeoutExpired
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.returncode) is None:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not self._read(left_s):
                raise subprocess.TimeoutExpired("supervisor", timeout or 0.0)
        return code

    def kill(self) -> None:
        """Kill it; no effect if it has ended."""
        with suppress(ProcessLookupError, ResourceError):
            if self.pid and self.poll() is None and self._pidfd >= 0:
                signals.pidfd_send_signal(self._pidfd, signals.SIGKILL)

    def _read(self, timeout_s: float | None) -> bool:
        """Wait for the fork server's next report and take it; return whether there was one."""
        poller = select.poll()
        with self._lock:
            if self.returncode is not None:
                return True
            poller.register(self._status, select.POLLIN)
        if not poller.poll(None if timeout_s is None else 1000 * timeout_s):
            return False
        with self._lock:
            if self.returncode is not None:
                return True
            try:
                content = os.read(self._status, _REPORT.size)
            except BlockingIOError:
                # Another thread took it.
                return True
            # An end of file: the fork server was killed, which kills its supervisors.
            number, has_ended = _REPORT.unpack(content) if content else (-signals.SIGKILL, True)
            if has_ended:
                self.returncode = number
                self._close()
            else:
                self._pid = number
                with suppress(OSError):
                    self._pidfd = os.pidfd_open(number)
        return True

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        for fd in (self._status, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._status = self._pidfd = -1


def serve(fd: int) -> int | None:
    """Fork a supervisor for each request.

    Parameters
    ----------
    fd : int
        The socket of the requests.

    Returns
    -------
    int or None
        In each supervisor the descriptor of the socket that brings its job; None in the fork server, at its end.
    """
    requests = socket.socket(fileno=fd)
    own_pid = os.getpid()
    #: Descriptor of a supervisor's process -> its pid, and the socket for reports about it.
    running: dict[int, tuple[int, socket.socket]] = {}
    is_open = True
    while is_open or running:
        poller = select.poll()
        for each in [*running, *([fd] if is_open else [])]:
            poller.register(each, select.POLLIN)
        for ready, _ in poller.poll():
            if ready != fd:
                _report_end(ready, *running.pop(ready))
                continue
            content, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
            if not content:
                is_open = False
                continue
            handoff, reports = descriptors[0], socket.socket(fileno=descriptors[1])
            try:
                pid = os.fork()
            except OSError:
                # Both sockets' ends of file tell the client.
                pid = -1
            if pid == 0:
                for other, (_, socket_) in running.items():
                    os.close(other)
                    socket_.close()
                requests.close()
                _become_supervisor(content, own_pid)
                with reports, suppress(OSError):
                    reports.send(_REPORT.pack(os.getpid(), False))
                return handoff
            os.close(handoff)
            if pid > 0:
                running[os.pidfd_open(pid)] = pid, reports
            else:
                reports.close()
    return None


def _report_end(pidfd: int, pid: int, reports: socket.socket) -> None:
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    # The client may have died.
    with reports, suppress(OSError):
        reports.send(_REPORT.pack(os.waitstatus_to_exitcode(status), True))


def _become_supervisor(request: bytes, parent_pid: int) -> None:
    """Take the session, environment and working directory that a process started by the client would have."""
    die_with_parent(parent_pid)
    os.setsid()
    values = json.loads(request)
    os.environ.clear()
    os.environ.update(values["environment"])
    with suppress(OSError):
        os.chdir(values["directory"])
