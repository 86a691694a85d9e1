"""Parts that backends share: a wakeup descriptor, a base class beside a supervisor, a ledger of containers."""

from __future__ import annotations

import os
import select
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from enum import Enum, auto

from eps.cluster.api import (
    NO_NEWS,
    WITHDRAWN,
    Allocated,
    ContainerEvent,
    ContainerRequest,
    Exited,
    ResourceManager,
    Running,
)
from eps.errors import ConfigError, ResourceError


class Wakeup:
    """A descriptor that is readable from :meth:`notify` to :meth:`clear`, or while one of ``others`` is.

    One thread may wait while others notify.  Call neither after :meth:`close`.

    Parameters
    ----------
    others : int
        Further descriptors to wait for.
    """

    def __init__(self, *others: int) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = select.epoll()
        for fd in (self._fd, *others):
            self._ready.register(fd, select.EPOLLIN)

    def notify(self) -> None:
        """Make :meth:`wait` return, now and until :meth:`clear`."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make :meth:`wait` block again.  Idempotent."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until :meth:`notify` was called or a descriptor is readable; return False at the timeout.

        Set a timeout if another thread may close this object: closing does not wake a wait.

        Raises
        ------
        ResourceError
            This object is closed.
        """
        try:
            return bool(self._ready.poll(timeout_s))
        except ValueError:
            raise ResourceError("the resource manager is closed") from None

    def fileno(self) -> int:
        """Return a descriptor that is readable while :meth:`wait` would return at once."""
        return self._ready.fileno()

    def close(self) -> None:
        """Close the descriptors.  Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._ready.close()
            os.close(fd)


class Waitable:
    """A resource manager whose events a thread can wait for."""

    _wakeup: Wakeup

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until :meth:`poll` has events; return False at the timeout.

        Set a timeout if another thread may close this object: closing does not wake a wait.

        Raises
        ------
        ResourceError
            The manager is closed.
        """
        return self._wakeup.wait(timeout_s)

    def fileno(self) -> int:
        """Return a descriptor that is readable while :meth:`poll` has events."""
        return self._wakeup.fileno()


class SupervisedManager(Waitable, ABC):
    """The part of a :class:`~eps.cluster.api.ResourceManager` that polls and forwards heartbeats to the supervisor.

    Parameters
    ----------
    lock : context manager
        Guards the backend's state.
    supervisor : ResourceManager, optional
        Receives the heartbeats and the end of the job; not closed with this object.
    adopted : mapping
        Containers that already run -> pid.
    """

    def __init__(
        self, lock: AbstractContextManager[object], supervisor: ResourceManager | None, adopted: Mapping[str, int]
    ) -> None:
        self._lock, self._supervisor, self._adopted = lock, supervisor, adopted
        #: Why no more containers can come; empty while they can.
        self._gone = ""
        self._closed = threading.Event()
        self._wakeup = Wakeup(*([] if supervisor is None else [supervisor.fileno()]))

    def adopt(self, known: Mapping[str, int]) -> Mapping[str, int]:
        """Return the containers of the previous job master; the backend has listed them already."""
        return self._adopted

    def poll(self) -> list[ContainerEvent]:
        """Return the events since the last call, in order.

        Raises
        ------
        ResourceError
            The backend or the supervisor is gone, and all earlier events were returned.
        """
        with self._lock:
            self._check_open()
            events = self._take_events()
            if not self._gone:
                self._wakeup.clear()
            elif not events:
                raise ResourceError(self._gone)
        if self._supervisor is not None:
            try:
                self._supervisor.poll()
            except ResourceError:
                if not events:
                    raise
        return events

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        """Forward the heartbeat to the supervisor; see :class:`~eps.cluster.api.ResourceManager`."""
        if self._supervisor is not None:
            self._supervisor.beat(changes, patience_s)

    def silent_s(self) -> float:
        """Return how long the backend or the supervisor, whichever is longer, has not responded, in seconds.

        0.0 while both respond.
        """
        silent_s = self._source_silent_s()
        return silent_s if self._supervisor is None else max(silent_s, self._supervisor.silent_s())

    @abstractmethod
    def _source_silent_s(self) -> float:
        """Return for how many seconds the backend has not responded; 0.0 while it responds."""

    # ---- with the lock held

    @abstractmethod
    def _take_events(self) -> list[ContainerEvent]:
        """Return the events since the last call."""

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ResourceError("the resource manager is closed")


class Phase(Enum):
    """A container's phase; see :mod:`eps.cluster.api`."""

    WAITING = auto()
    LAUNCHING = auto()
    RUNNING = auto()
    ENDED = auto()


class ContainerLedger:
    """The containers of one job, for a backend that grants requests itself, oldest first.

    Parameters
    ----------
    max_containers : int
        Maximum number of concurrent containers; further requests wait for one to end.  0 sets no limit.
    adopted : iterable of str, optional
        Containers that already run.

    Attributes
    ----------
    events : list of ContainerEvent
        Events that :meth:`take_events` has not returned yet, in order.

    Raises
    ------
    ConfigError
        ``max_containers`` is negative.
    """

    def __init__(self, max_containers: int = 0, adopted: Iterable[str] = ()) -> None:
        if max_containers < 0:
            raise ConfigError(f"max_containers is {max_containers}, but must be at least 0")
        self.max_containers = max_containers
        self.events: list[ContainerEvent] = []
        self._phases = dict.fromkeys(adopted, Phase.RUNNING)
        self._waiting: deque[ContainerRequest] = deque()
        self._num_live = len(self._phases)

    def phase(self, container_id: str) -> Phase | None:
        """Return the phase of a container; None if it was never requested."""
        return self._phases.get(container_id)

    def is_live(self, container_id: str) -> bool:
        """Return whether a container is granted and has not ended."""
        return self._phases.get(container_id) in (Phase.LAUNCHING, Phase.RUNNING)

    def live(self) -> list[str]:
        """Return the containers that are granted and have not ended, in the order of their requests."""
        return [container_id for container_id in self._phases if self.is_live(container_id)]

    def request(self, request: ContainerRequest) -> list[ContainerRequest]:
        """Add a request; return the requests that are granted now, to be launched.

        Raises
        ------
        ResourceError
            The container id was used before.
        """
        if request.container_id in self._phases:
            raise ResourceError(f"{request.container_id} was requested before: a container id is used once")
        self._phases[request.container_id] = Phase.WAITING
        self._waiting.append(request)
        return self._grant()

    def withdraw(self, container_id: str) -> bool:
        """Withdraw a waiting request; return whether it was withdrawn."""
        if self._phases.get(container_id) is not Phase.WAITING:
            return False
        self._waiting = deque(request for request in self._waiting if request.container_id != container_id)
        self._phases[container_id] = Phase.ENDED
        self.events.append(Exited(container_id, None, WITHDRAWN))
        return True

    def on_running(self, container_id: str, pid: int, host: str) -> None:
        """Record that a launched container runs; no effect if it has ended meanwhile."""
        if self._phases.get(container_id) is Phase.LAUNCHING:
            self._phases[container_id] = Phase.RUNNING
            self.events.append(Running(container_id, pid, host))

    def on_end(self, container_id: str, code: int | None, reason: str, taken: bool = False) -> list[ContainerRequest]:
        """Record the end of a container, once; return the requests that are granted in its place, to be launched."""
        if not self.is_live(container_id):
            return []
        self._phases[container_id] = Phase.ENDED
        self._num_live -= 1
        self.events.append(Exited(container_id, code, reason, taken))
        return self._grant()

    def take_events(self) -> list[ContainerEvent]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def _grant(self) -> list[ContainerRequest]:
        granted = []
        while self._waiting and not (self.max_containers and self._num_live >= self.max_containers):
            request = self._waiting.popleft()
            self._num_live += 1
            self._phases[request.container_id] = Phase.LAUNCHING
            self.events.append(Allocated(request.container_id))
            granted.append(request)
        return granted
