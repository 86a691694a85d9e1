"""Containers of an application that several jobs share: the side of the job's master.

The application's master on the same host holds the containers (:mod:`eps.cluster.broker.service`).  The job's master is
a process that a supervisor forked, as for a local job.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from eps.cluster.api import (
    NO_NEWS,
    WITHDRAWN,
    Allocated,
    ContainerEvent,
    ContainerRequest,
    Exited,
    ResourceManager,
)
from eps.cluster.backend import SupervisedManager
from eps.cluster.broker.calls import BrokerClient
from eps.cluster.broker.share import EndContainers, KillContainer, ReleaseContainer, WantContainer, Wish
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, ResourceError
from eps.net.security.credentials import Security
from eps.storage.jobdir import JobDir

logger = logging.getLogger(__name__)

#: How long one call waits for news; then the call is repeated.
HEAR_S = 5.0
#: Tolerance before a late answer counts as silence.
LATE_S = 2.0
RETRY_S = 0.2
#: How long a starting master waits for its broker, and how long the end of a job does.
OPEN_S, END_S = 20.0, 10.0
_JOIN_S = 2.0


def open_brokered(note: Mapping[str, Any], job: JobDir, supervisor: ResourceManager) -> BrokeredResourceManager:
    """Return the manager for a broker's address in the job's record; errors are those of the class."""
    return BrokeredResourceManager(BrokerClient(str(note["broker"]), Security.of_job(job.path)), supervisor)


class BrokeredResourceManager(SupervisedManager):
    """A :class:`~eps.cluster.api.ResourceManager` over the broker of a shared application.

    Parameters
    ----------
    line : BrokerClient
        Closed with this object.
    supervisor : ResourceManager, optional
        See :class:`~eps.cluster.backend.SupervisedManager`.

    Raises
    ------
    ResourceError
        The broker does not respond.
    EpsError
        The broker refuses.
    """

    def __init__(self, line: BrokerClient, supervisor: ResourceManager | None = None) -> None:
        self._client = line
        self._session = secrets.token_hex(8)
        adopted = self._open()
        #: The lock; never held during a call to another process.
        self._changed = threading.Condition()
        super().__init__(self._changed, supervisor, adopted)
        self._used = set(adopted)
        #: Requested, and not known to be granted.
        self._waiting: set[str] = set()
        self._there = set(adopted)
        self._events: list[ContainerEvent] = []
        #: Numbered wishes that the broker has not acknowledged.
        self._wishes: list[tuple[int, Wish]] = []
        self._num_wishes = 0
        self._heard_s = time.monotonic()
        self._threads = [
            threading.Thread(target=target, name=f"broker-{target.__name__.strip('_')}", daemon=True)
            for target in (self._say, self._hear)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, request: ContainerRequest) -> None:
        """Request a container; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._changed:
            self._check_open()
            if request.container_id in self._used:
                raise ResourceError(f"{request.container_id} was requested before: a container id is used once")
            self._used.add(request.container_id)
            self._waiting.add(request.container_id)
            self._wish(WantContainer(request))

    def withdraw(self, container_id: str) -> bool:
        """Withdraw a request that is not known to be granted; return whether it was withdrawn.

        If the broker has granted it meanwhile, the container is released, and no event about it follows.
        """
        with self._changed:
            return not self._closed.is_set() and self._withdraw(container_id)

    def release(self, container_id: str) -> None:
        """Release a container; no effect if it has ended or is unknown."""
        with self._changed:
            if not self._closed.is_set() and not self._withdraw(container_id) and container_id in self._there:
                self._wish(ReleaseContainer(container_id))

    def kill(self, container_id: str) -> None:
        """Kill a container's process at once; no effect if it is not running."""
        with self._changed:
            if not self._closed.is_set() and container_id in self._there:
                self._wish(KillContainer(container_id))

    def room(self) -> Mapping[str, int]:
        """Return an empty mapping: the application's scheduler divides the containers among its jobs."""
        return {}

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Release every container, and report the end of the job to the supervisor."""
        if self._supervisor is not None:
            self._supervisor.beat(NO_NEWS, 2 * END_S)
        with self._changed:
            self._check_open()
            self._wish(EndContainers())
            # A broker that does not respond ends them with the application, or after the job's end is reported.
            self._changed.wait_for(lambda: not self._wishes or bool(self._gone), END_S)
        if self._supervisor is not None:
            self._supervisor.end_job(exit_code, state, reason)

    def close(self) -> None:
        """Disconnect from the broker; containers keep running.  Idempotent."""
        with self._changed:
            if self._closed.is_set():
                return
            self._closed.set()
            self._wakeup.close()
            self._changed.notify_all()
        self._client.close()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _source_silent_s(self) -> float:
        silent_s = time.monotonic() - self._heard_s
        return 0.0 if silent_s < HEAR_S + LATE_S else silent_s

    # ---- with the lock held

    def _take_events(self) -> list[ContainerEvent]:
        events, self._events = self._events, []
        return events

    def _wish(self, wish: Wish) -> None:
        self._num_wishes += 1
        self._wishes.append((self._num_wishes, wish))
        self._changed.notify_all()

    def _withdraw(self, container_id: str) -> bool:
        if container_id not in self._waiting:
            return False
        self._waiting.remove(container_id)
        self._wish(ReleaseContainer(container_id))
        self._note([Exited(container_id, None, WITHDRAWN)])
        return True

    def _note(self, events: list[ContainerEvent]) -> None:
        if events and not self._closed.is_set():
            self._events += events
            self._wakeup.notify()

    def _take(self, event: ContainerEvent) -> list[ContainerEvent]:
        """Apply an event; return it unless its container has already ended for the job master."""
        container_id = event.container_id
        if container_id in self._waiting and isinstance(event, Allocated):
            self._waiting.remove(container_id)
            self._there.add(container_id)
        if container_id not in self._waiting and container_id not in self._there:
            return []
        if isinstance(event, Exited):
            self._waiting.discard(container_id)
            self._there.discard(container_id)
        return [event]

    # ---- on other threads

    def _open(self) -> dict[str, int]:
        until_s = time.monotonic() + OPEN_S
        while True:
            try:
                return self._client.open(self._session)
            except (PeerUnavailableError, DeadlineError) as error:
                if time.monotonic() >= until_s:
                    raise ResourceError(f"the container broker does not respond: {error}") from error
            time.sleep(RETRY_S)

    def _say(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or bool(self._gone) or bool(self._wishes))
                if self._closed.is_set() or self._gone:
                    return
                wishes = list(self._wishes)
            try:
                self._client.wish(self._session, wishes)
            except EpsError as error:
                if self._is_over(error):
                    return
                continue
            with self._changed:
                del self._wishes[: len(wishes)]
                self._changed.notify_all()

    def _hear(self) -> None:
        after = 0
        while not self._closed.is_set() and not self._gone:
            try:
                found = self._client.hear(self._session, after, HEAR_S)
            except EpsError as error:
                if self._is_over(error):
                    return
                continue
            self._heard_s = time.monotonic()
            with self._changed:
                for number, event in found:
                    after = number
                    self._note(self._take(event))

    def _is_over(self, error: EpsError) -> bool:
        """Return whether the session is over after an error; pause first if a retry may succeed."""
        with self._changed:
            if self._closed.is_set():
                return True
            if not isinstance(error, PeerUnavailableError | DeadlineError):
                self._gone = self._gone or str(error)
                self._wakeup.notify()
                self._changed.notify_all()
                return True
            # Only :meth:`close` ends this pause early.
            return self._changed.wait_for(self._closed.is_set, RETRY_S)
