"""A resource manager that does what the test says, and passes the contract suite."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from contextlib import suppress

from eps.cluster.api import (
    NO_NEWS,
    WITHDRAWN,
    Allocated,
    ContainerEvent,
    ContainerRequest,
    EvictionWarning,
    Exited,
    Running,
)
from eps.errors import ResourceError


class FakeResourceManager:
    """Containers without processes, for one thread.

    Parameters
    ----------
    max_containers : int
        Containers that may be there at once; 0 sets no limit.
    hold : bool
        Grant nothing until :meth:`grant` is called.
    adopted : mapping, optional
        Containers that run already.
    """

    def __init__(self, max_containers: int = 0, hold: bool = False, adopted: Mapping[str, int] | None = None) -> None:
        self.max_containers = max_containers
        self.hold = hold
        self._adopted: Mapping[str, int] = dict(adopted or {})
        #: What :meth:`adopt` was told.
        self.known: Mapping[str, int] = {}
        self.requests = {c: ContainerRequest(c, "worker") for c in self._adopted}
        #: What :meth:`beat` was told.
        self.beats: list[int] = []
        #: What the last beat said.
        self.clock = NO_NEWS
        #: What :meth:`silent_s` says.
        self.silent_for_s = 0.0
        #: What :meth:`room` says.
        self.free_room: Mapping[str, int] = {}
        #: Why it is gone for good, which :meth:`poll` then says; empty: it is there.
        self.gone = ""
        self.waiting: list[str] = []
        #: Granted and not ended, in the order granted.
        self.running = list(self._adopted)
        self.released: list[str] = []
        #: What :meth:`end_job` was told.
        self.ended: tuple[int, str, str] | None = None
        self._events: list[ContainerEvent] = []
        self._failing: dict[str, str] = {}
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False

    # ---- the script

    def grant(self, number: int = 1) -> list[str]:
        """Grant the oldest waiting requests, whatever the limit; return their ids."""
        granted, self.waiting = self.waiting[:number], self.waiting[number:]
        for container_id in granted:
            self._note(Allocated(container_id))
            if container_id in self._failing:
                self._note(Exited(container_id, None, self._failing[container_id]))
            else:
                self.running.append(container_id)
                self._note(Running(container_id, 100_000 + len(self.requests), "fake-host"))
        return granted

    def fail_launch(self, container_id: str, reason: str = "was refused: scripted") -> None:
        """Let the launch of a container fail once it is granted."""
        self._failing[container_id] = reason

    def crash(self, container_id: str, code: int | None = None, reason: str = "was ended by SIGKILL") -> None:
        """End a running container."""
        self.running.remove(container_id)
        self._note(Exited(container_id, code, reason))
        self._grant_what_fits()

    def warn(self, container_id: str, deadline_s: float) -> None:
        """Announce the eviction of a running container."""
        assert container_id in self.running
        self._note(EvictionWarning(container_id, deadline_s))

    # ---- the interface

    def adopt(self, known: Mapping[str, int]) -> Mapping[str, int]:
        self.known = known
        return self._adopted

    def request(self, request: ContainerRequest) -> None:
        self._check_open()
        if request.container_id in self.requests:
            raise ResourceError(f"{request.container_id} was requested before: a container id is used once")
        self.requests[request.container_id] = request
        self.waiting.append(request.container_id)
        self._grant_what_fits()

    def withdraw(self, container_id: str) -> bool:
        if container_id not in self.waiting:
            return False
        self.waiting.remove(container_id)
        self._note(Exited(container_id, None, WITHDRAWN))
        return True

    def release(self, container_id: str) -> None:
        self.released.append(container_id)
        if not self.withdraw(container_id) and container_id in self.running:
            self.crash(container_id, None, "was ended by SIGTERM")

    def kill(self, container_id: str) -> None:
        if container_id in self.running:
            self.crash(container_id)

    def poll(self) -> list[ContainerEvent]:
        self._check_open()
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        events, self._events = self._events, []
        if self.gone and not events:
            raise ResourceError(self.gone)
        return events

    def wait(self, timeout_s: float | None = None) -> bool:
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else 1000 * timeout_s))

    def fileno(self) -> int:
        return self._wake_fd

    def room(self) -> Mapping[str, int]:
        return self.free_room

    def silent_s(self) -> float:
        return self.silent_for_s

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        self.beats.append(changes)
        self.clock = clock

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        self._check_open()
        self.ended = (exit_code, state, reason)
        for container_id in list(self.running):
            self.running.remove(container_id)
            self._note(Exited(container_id, None, "was ended by SIGTERM"))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._wake_fd)

    def _check_open(self) -> None:
        if self._closed:
            raise ResourceError("the resource manager is closed")

    def _grant_what_fits(self) -> None:
        while self.waiting and not self.hold:
            if self.max_containers and len(self.running) >= self.max_containers:
                return
            self.grant(1)

    def _note(self, event: ContainerEvent) -> None:
        self._events.append(event)
        os.eventfd_write(self._wake_fd, 1)
