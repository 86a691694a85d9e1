"""The base of backends whose containers another process holds, while a supervisor forked the job master.  L2."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from eps.cluster.api import ContainerEvent, ResourceManager
from eps.cluster.bell import Bell, Belled
from eps.errors import ResourceError


class SupervisedManager(Belled, ABC):
    """The part of a :class:`~eps.cluster.api.ResourceManager` that polls, and passes beats on to the supervisor.

    Parameters
    ----------
    lock : context manager
        Held while the backend's state is read or changed.
    supervisor : ResourceManager, optional
        Gets the beats, and how the job ended; not closed with this object.
    """

    def __init__(self, lock: AbstractContextManager[object], supervisor: ResourceManager | None) -> None:
        self._lock, self._supervisor = lock, supervisor
        #: Why there will be no more containers.
        self._gone = ""
        self._closed = threading.Event()
        self._bell = Bell(*([] if supervisor is None else [supervisor.fileno()]))

    def poll(self) -> list[ContainerEvent]:
        """Return what has happened since the last call, in order.

        Raises
        ------
        ResourceError
            The holder of the containers, or the supervisor, is gone, and all earlier events have been returned.
        """
        with self._lock:
            self._check_open()
            events = self._take_events()
            if not self._gone:
                self._bell.hush()
            elif not events:
                raise ResourceError(self._gone)
        if self._supervisor is not None:
            try:
                self._supervisor.poll()
            except ResourceError:
                if not events:
                    raise
        return events

    def beat(self, progress: int, patience_s: float = 0.0) -> None:
        """Tell the supervisor that the job master lives; see :class:`~eps.cluster.api.ResourceManager`."""
        if self._supervisor is not None:
            self._supervisor.beat(progress, patience_s)

    def silent_s(self) -> float:
        """Return for how long the holder of the containers, or the supervisor, has been silent, in seconds; or 0.0."""
        silent_s = self._source_silent_s()
        return silent_s if self._supervisor is None else max(silent_s, self._supervisor.silent_s())

    @abstractmethod
    def _source_silent_s(self) -> float:
        """Return for how long the holder of the containers has been silent, in seconds; 0.0 where it answers."""

    # ---- with the lock held

    @abstractmethod
    def _take_events(self) -> list[ContainerEvent]:
        """Return what has happened since the last call."""

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ResourceError("the resource manager is closed")
