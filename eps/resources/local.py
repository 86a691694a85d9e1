"""Containers that are processes of this host, forked by the job's supervisor.  L2.

Memory and cores of a request are not enforced: the processes share the host.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal as signals
import socket
import termios
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum, auto

from eps.errors import ConfigError, ProtocolError, ResourceError
from eps.resources.api import WITHDRAWN, Allocated, ContainerEvent, ContainerRequest, Exited, Running
from eps.supervisor.protocol import (
    MAX_LINE_BYTES,
    Beat,
    JobDone,
    KillProcess,
    LaunchProcess,
    LineBuffer,
    Notice,
    ProcessExited,
    ProcessLaunched,
    Request,
    RequestRefused,
    decode_notice,
    encode_request,
    exit_reason,
)

HOST = "localhost"
#: A supervisor that leaves so much unread is told no more that it could do without.
MOST_UNREAD_BYTES = 16 << 10


class _Phase(Enum):
    WAITING = auto()
    LAUNCHING = auto()
    RUNNING = auto()
    ENDED = auto()


class LocalResourceManager:
    """The supervisor's channel as a :class:`~eps.resources.api.ResourceManager`.

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
        if max_containers < 0:
            raise ConfigError(f"max_containers is {max_containers}, but must be at least 0")
        self.max_containers = max_containers
        self._channel = socket.socket(fileno=supervisor_fd)
        os.set_inheritable(self._channel.fileno(), False)
        self._lock = threading.Lock()
        self.adopted: Mapping[str, int] = dict(adopted or {})
        self._phases = dict.fromkeys(self.adopted, _Phase.RUNNING)
        self._waiting: deque[LaunchProcess] = deque()
        self._num_taken = len(self.adopted)
        #: What happened on this side of the channel; ``_wake_fd`` is readable while there is any.
        self._events: list[ContainerEvent] = []
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = select.epoll()
        self._ready.register(self._channel.fileno(), select.EPOLLIN)
        self._ready.register(self._wake_fd, select.EPOLLIN)
        self._lines = LineBuffer()
        self._gone = False
        self._closed = False
        #: When all that had been said was read, as far as it is known.
        self._read_s = time.monotonic()

    def request(self, request: ContainerRequest) -> None:
        """Ask for a container; see :class:`~eps.resources.api.ResourceManager`."""
        with self._lock:
            self._check_open()
            if request.container_id in self._phases:
                raise ResourceError(f"{request.container_id} was requested before: a container id is used once")
            launch = LaunchProcess(request.container_id, request.role, dict(request.env))
            # Before anything is noted: a request that cannot be said has not been made.
            encode_request(launch)
            self._phases[request.container_id] = _Phase.WAITING
            self._waiting.append(launch)
            self._grant()

    def withdraw(self, container_id: str) -> bool:
        """Take a request back that has not been granted; return whether that was so."""
        with self._lock:
            return self._withdraw(container_id)

    def release(self, container_id: str) -> None:
        """Give a container back by id; harmless for one that has ended or is unknown."""
        with self._lock:
            if self._withdraw(container_id) or self._closed:
                return
            if self._phases.get(container_id) in (_Phase.LAUNCHING, _Phase.RUNNING):
                self._send(KillProcess(container_id, signals.SIGTERM))

    def kill(self, container_id: str, signal: int = signals.SIGKILL) -> None:
        """Send a container's process a signal, as failures do; harmless for one that is not running."""
        with self._lock:
            if not self._closed and self._phases.get(container_id) in (_Phase.LAUNCHING, _Phase.RUNNING):
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
            events, self._events = self._events, []
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            if self._gone and not events:
                raise ResourceError("the supervisor is gone: its channel is closed")
            return events

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until :meth:`poll` has something to say; return False at the timeout.

        Give a timeout where another thread may close this object: closing does not wake a wait.

        Raises
        ------
        ResourceError
            The manager is closed.
        """
        try:
            return bool(self._ready.poll(timeout_s))
        except ValueError:
            raise ResourceError("the resource manager is closed") from None

    def fileno(self) -> int:
        """Return a descriptor that is readable while :meth:`poll` has something to say."""
        return self._ready.fileno()

    def beat(self, progress: int, patience_s: float = 0.0) -> None:
        """Tell the supervisor that the job master lives; see :class:`~eps.resources.api.ResourceManager`."""
        with self._lock:
            # One that hangs for long would have this process hang with it.
            if not self._closed and self._unread_bytes() <= MOST_UNREAD_BYTES:
                self._send(Beat(progress, patience_s))

    def silent_s(self) -> float:
        """Return for how long the supervisor has left something unread, in seconds; 0.0 where it reads all."""
        with self._lock:
            now_s = time.monotonic()
            if self._closed or self._gone or self._unread_bytes() == 0:
                self._read_s = now_s
            return now_s - self._read_s

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Have the supervisor end whatever still runs, note how the job ended, and exit with ``exit_code``."""
        with self._lock:
            self._check_open()
            self._send(JobDone(exit_code, state, reason[:4096]))

    def close(self) -> None:
        """Close the channel; harmless when repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._ready.close()
                self._channel.close()
                os.close(self._wake_fd)

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
        if self._phases.get(container_id) is not _Phase.WAITING:
            return False
        self._waiting = deque(launch for launch in self._waiting if launch.container_id != container_id)
        self._phases[container_id] = _Phase.ENDED
        self._note(Exited(container_id, None, WITHDRAWN))
        return True

    def _grant(self) -> None:
        """Launch what waits, oldest first, as far as the limit allows."""
        while self._waiting and not (self.max_containers and self._num_taken >= self.max_containers):
            launch = self._waiting.popleft()
            self._num_taken += 1
            self._phases[launch.container_id] = _Phase.LAUNCHING
            self._note(Allocated(launch.container_id))
            self._send(launch)

    def _note(self, event: ContainerEvent) -> None:
        self._events.append(event)
        if not self._closed:
            os.eventfd_write(self._wake_fd, 1)

    def _send(self, request: Request) -> None:
        try:
            # Blocks if the supervisor lags; it always reads, so not for long.
            self._channel.sendall(encode_request(request))
        except OSError:
            # Said once, by ``poll``.
            self._gone = True

    def _read(self) -> None:
        while not self._gone:
            try:
                data = self._channel.recv(MAX_LINE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._gone = True
                return
            for line in self._lines.feed(data):
                if line is None:
                    raise ProtocolError(f"the supervisor sent a line of more than {MAX_LINE_BYTES} bytes")
                self._on_notice(decode_notice(line))

    def _on_notice(self, notice: Notice) -> None:
        match notice:
            case ProcessLaunched(container_id, pid):
                if self._phases.get(container_id) is _Phase.LAUNCHING:
                    self._phases[container_id] = _Phase.RUNNING
                    self._events.append(Running(container_id, pid, HOST))
            case ProcessExited(container_id, code, signal):
                self._on_end(container_id, code, exit_reason(code, signal))
            case RequestRefused(reason, container_id):
                # A running one's refusal answers a kill that crossed with its end, which is said for itself.
                if self._phases.get(container_id) is _Phase.LAUNCHING:
                    self._on_end(container_id, None, f"was refused: {reason}")

    def _on_end(self, container_id: str, code: int | None, reason: str) -> None:
        if self._phases.get(container_id) in (_Phase.LAUNCHING, _Phase.RUNNING):
            self._phases[container_id] = _Phase.ENDED
            self._num_taken -= 1
            self._events.append(Exited(container_id, code, reason))
            self._grant()
