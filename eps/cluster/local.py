"""Containers that are processes of this host, forked by the job's supervisor.

Memory and cores of a request are not enforced: the processes share the host.
"""

from __future__ import annotations

import array
import fcntl
import os
import signal as signals
import socket
import termios
import threading
import time
from collections.abc import Iterable, Mapping
from typing import cast

from eps.cluster.api import NO_NEWS, ContainerEvent, ContainerRequest
from eps.cluster.backend import ContainerLedger, Phase, Waitable, Wakeup
from eps.cluster.supervisor.state import (
    MAX_BYTES,
    Beat,
    JobDone,
    KillProcess,
    LaunchProcess,
    Notice,
    ProcessExited,
    ProcessLaunched,
    Request,
    RequestRefused,
    decode,
    encode,
    exit_reason,
)
from eps.errors import ResourceError

HOST = "localhost"
#: A supervisor that leaves so much unread gets no further beats.
MOST_UNREAD_BYTES = 16 << 10


class LocalResourceManager(Waitable):
    """The supervisor's channel as a :class:`~eps.cluster.api.ResourceManager`.

    Parameters
    ----------
    supervisor_fd : int
        Descriptor of the channel, as the job master inherits it; closed with this object.
    max_containers : int
        Containers that may be there at once; a request beyond it waits for the end of another.  0 sets no limit.
    adopted : mapping, optional
        Containers that run already -> pid: those of the job master before this one.

    Raises
    ------
    ConfigError
        ``max_containers`` is negative.
    """

    def __init__(self, supervisor_fd: int, max_containers: int = 0, adopted: Mapping[str, int] | None = None) -> None:
        self._ledger = ContainerLedger(max_containers, adopted or ())
        self._channel = socket.socket(fileno=supervisor_fd)
        os.set_inheritable(self._channel.fileno(), False)
        self._lock = threading.Lock()
        self._adopted: Mapping[str, int] = dict(adopted or {})
        #: Rung when something has happened on this side of the channel.
        self._wakeup = Wakeup(self._channel.fileno())
        self._gone = False
        self._closed = False
        #: When all that had been said was read, as far as it is known.
        self._read_s = time.monotonic()

    def adopt(self, known: Mapping[str, int]) -> Mapping[str, int]:
        """Return the containers of the job master before; the supervisor has them."""
        return self._adopted

    def request(self, request: ContainerRequest) -> None:
        """Ask for a container; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._lock:
            self._check_open()
            # Before anything is noted: a request that cannot be said has not been made.
            encode(_launch_of(request))
            self._launch(self._ledger.request(request))
            self._wake()

    def withdraw(self, container_id: str) -> bool:
        """Take a request back that has not been granted; return whether that was so."""
        with self._lock:
            return self._withdraw(container_id)

    def release(self, container_id: str) -> None:
        """Give a container back by id; harmless for one that has ended or is unknown."""
        with self._lock:
            if self._withdraw(container_id) or self._closed:
                return
            if self._ledger.is_there(container_id):
                self._send(KillProcess(container_id, signals.SIGTERM))

    def kill(self, container_id: str, signal: int = signals.SIGKILL) -> None:
        """Send a container's process a signal, as failures do; harmless for one that is not running."""
        with self._lock:
            if not self._closed and self._ledger.is_there(container_id):
                self._send(KillProcess(container_id, signal))

    def poll(self) -> list[ContainerEvent]:
        """Return what has happened since the last call, in order.

        Raises
        ------
        ResourceError
            The supervisor is gone, and everything that it said before has been returned.
        """
        with self._lock:
            self._check_open()
            self._read()
            events = self._ledger.take_events()
            self._wakeup.clear()
            if self._gone and not events:
                raise ResourceError("the supervisor is gone: its channel is closed")
            return events

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        """Tell the supervisor that the job master lives; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._lock:
            # One that hangs for long would have this process hang with it.
            if not self._closed and self._unread_bytes() <= MOST_UNREAD_BYTES:
                self._send(Beat(changes, patience_s))

    def room(self) -> Mapping[str, int]:
        """Return nothing: no other job waits for containers of this one."""
        return {}

    def silent_s(self) -> float:
        """Return for how long the supervisor has left something unread, in seconds; 0.0 where it reads all."""
        with self._lock:
            now_s = time.monotonic()
            if self._closed or self._gone or self._unread_bytes() == 0:
                self._read_s = now_s
            return now_s - self._read_s

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Have the supervisor end every process, note how the job ended, and exit with ``exit_code``."""
        with self._lock:
            self._check_open()
            self._send(JobDone(exit_code, state, reason[:4096]))

    def close(self) -> None:
        """Close the channel; harmless when repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._wakeup.close()
                self._channel.close()

    # ---- with the lock held

    def _check_open(self) -> None:
        if self._closed:
            raise ResourceError("the resource manager is closed")

    def _unread_bytes(self) -> int:
        found = array.array("i", [0])
        # SIOCOUTQ, which has this number under this name: of a Unix socket, what the peer has not read.
        fcntl.ioctl(self._channel.fileno(), termios.TIOCOUTQ, found)
        return found[0]

    def _withdraw(self, container_id: str) -> bool:
        withdrawn = self._ledger.withdraw(container_id)
        if withdrawn:
            self._wake()
        return withdrawn

    def _launch(self, granted: Iterable[ContainerRequest]) -> None:
        for request in granted:
            self._send(_launch_of(request))

    def _wake(self) -> None:
        """Let :meth:`wait` return where something has happened."""
        if self._ledger.events and not self._closed:
            self._wakeup.notify()

    def _send(self, request: Request) -> None:
        try:
            # Blocks if the supervisor lags; it always reads, so not for long.
            self._channel.send(encode(request))
        except OSError:
            # Said once, by ``poll``.
            self._gone = True

    def _read(self) -> None:
        while not self._gone:
            try:
                packet = self._channel.recv(MAX_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # The supervisor ended without reading everything; what it said before comes next.
                continue
            if not packet:
                self._gone = True
                return
            self._on_notice(cast(Notice, decode(packet)))

    def _on_notice(self, notice: Notice) -> None:
        match notice:
            case ProcessLaunched(container_id, pid):
                self._ledger.on_running(container_id, pid, HOST)
            case ProcessExited(container_id, code, signal):
                self._launch(self._ledger.on_end(container_id, code, exit_reason(code, signal)))
            case RequestRefused(reason, container_id):
                # A running one's refusal answers a kill that crossed with its end, which comes as ProcessExited.
                if self._ledger.phase(container_id) is Phase.LAUNCHING:
                    self._launch(self._ledger.on_end(container_id, None, f"was refused: {reason}"))


def _launch_of(request: ContainerRequest) -> LaunchProcess:
    return LaunchProcess(request.container_id, request.role, dict(request.env))
