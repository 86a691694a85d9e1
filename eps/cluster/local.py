"""Containers as processes of this host, forked by the job's supervisor.

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
#: With more unread bytes in the channel, the supervisor gets no further heartbeats.
MOST_UNREAD_BYTES = 16 << 10


class LocalResourceManager(Waitable):
    """A :class:`~eps.cluster.api.ResourceManager` over the channel to the supervisor.

    Parameters
    ----------
    supervisor_fd : int
        Descriptor of the channel, as the job master inherits it; closed with this object.
    max_containers : int
        Maximum number of concurrent containers; further requests wait for one to end.  0 sets no limit.
    adopted : mapping, optional
        Containers of the previous job master that still run -> pid.

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
        #: Notified when this side of the channel has events.
        self._wakeup = Wakeup(self._channel.fileno())
        self._gone = False
        self._closed = False
        #: When the channel was last seen without unread bytes.
        self._read_s = time.monotonic()

    def adopt(self, known: Mapping[str, int]) -> Mapping[str, int]:
        """Return the containers of the previous job master; the supervisor has listed them already."""
        return self._adopted

    def request(self, request: ContainerRequest) -> None:
        """Request a container; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._lock:
            self._check_open()
            # Encode before recording: a request that cannot be encoded must leave no trace.
            encode(_launch_of(request))
            self._launch(self._ledger.request(request))
            self._wake()

    def withdraw(self, container_id: str) -> bool:
        """Withdraw a request that is not granted yet; return whether it was withdrawn."""
        with self._lock:
            return self._withdraw(container_id)

    def release(self, container_id: str) -> None:
        """Release a container; no effect if it has ended or is unknown."""
        with self._lock:
            if self._withdraw(container_id) or self._closed:
                return
            if self._ledger.is_live(container_id):
                self._send(KillProcess(container_id))

    def kill(self, container_id: str, signal: int = signals.SIGKILL) -> None:
        """Send a signal to a container's process, to simulate failures; no effect if it is not running."""
        with self._lock:
            if not self._closed and self._ledger.is_live(container_id):
                self._send(KillProcess(container_id, signal))

    def poll(self) -> list[ContainerEvent]:
        """Return the events since the last call, in order.

        Raises
        ------
        ResourceError
            The supervisor is gone, and all its earlier events were returned.
        """
        with self._lock:
            self._check_open()
            self._read()
            events = self._ledger.take_events()
            self._wakeup.clear()
            if self._gone and not events:
                raise ResourceError("the supervisor exited: its channel is closed")
            return events

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        """Send a heartbeat to the supervisor; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._lock:
            # A full channel to a hanging supervisor would block this process too.
            if not self._closed and self._unread_bytes() <= MOST_UNREAD_BYTES:
                self._send(Beat(changes, patience_s))

    def room(self) -> Mapping[str, int]:
        """Return an empty mapping: no other job competes for these containers."""
        return {}

    def silent_s(self) -> float:
        """Return for how many seconds the supervisor has left messages unread; 0.0 if it has read all."""
        with self._lock:
            now_s = time.monotonic()
            if self._closed or self._gone or self._unread_bytes() == 0:
                self._read_s = now_s
            return now_s - self._read_s

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Make the supervisor end every process, record how the job ended, and exit with ``exit_code``."""
        with self._lock:
            self._check_open()
            self._send(JobDone(exit_code, state, reason[:4096]))

    def close(self) -> None:
        """Close the channel.  Idempotent."""
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
        # TIOCOUTQ has the number of SIOCOUTQ: on a Unix socket, the bytes that the peer has not read.
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
        """Make :meth:`wait` return if there are events."""
        if self._ledger.events and not self._closed:
            self._wakeup.notify()

    def _send(self, request: Request) -> None:
        try:
            # Blocks if the supervisor lags, but not for long: it always reads.
            self._channel.send(encode(request))
        except OSError:
            # ``poll`` reports it.
            self._gone = True

    def _read(self) -> None:
        while not self._gone:
            try:
                packet = self._channel.recv(MAX_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # The supervisor ended with unread messages; the ones that it sent before come next.
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
                # A refusal for a running container answers a kill that crossed with its end; ProcessExited follows.
                if self._ledger.phase(container_id) is Phase.LAUNCHING:
                    self._launch(self._ledger.on_end(container_id, None, f"was refused: {reason}"))


def _launch_of(request: ContainerRequest) -> LaunchProcess:
    return LaunchProcess(request.container_id, request.role, dict(request.env))
