"""Waiting for the first of several replies, of several connections, on one thread.  L2."""

from __future__ import annotations

import select
import time
from collections import deque
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from eps.net.arrays.api import Connection, Message
from eps.net.arrays.requester import SocketConnection

TagT = TypeVar("TagT")
_LOOK_S = 0.002
_LOOK_SHARED_S = 0.02


class Replies(Generic[TagT]):
    """Requests that are under way, each with a tag.  Used by one thread.

    Replies over sockets are read by :meth:`next` itself, those of other vans come from their threads.
    """

    def __init__(self) -> None:
        self._waiting: dict[Future[Message], tuple[TagT, SocketConnection | None]] = {}
        self._done: SimpleQueue[Future[Message]] = SimpleQueue()
        self._ready: deque[Future[Message]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tags(self) -> list[TagT]:
        """Of the requests that are under way, oldest first."""
        return [tag for tag, _ in self._waiting.values()]

    def request(self, tag: TagT, connection: Connection, message: Message) -> None:
        """Send a request; raises what :meth:`eps.net.arrays.api.Connection.request` raises."""
        if isinstance(connection, SocketConnection):
            self._waiting[connection.post(message)] = tag, connection
            return
        future = connection.request(message)
        self._waiting[future] = tag, None
        future.add_done_callback(self._done.put)

    def next(self, timeout_s: float) -> tuple[TagT, Future[Message]] | None:
        """Return the tag and the done future of a request, or None where none was answered in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            future = self._first_done()
            if future is not None:
                return self._waiting.pop(future)[0], future
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._waiting:
                return None
            self._wait(left_s)

    def _first_done(self) -> Future[Message] | None:
        try:
            return self._done.get_nowait()
        except Empty:
            pass
        if not self._ready:
            self._ready.extend(f for f, (_, by_socket) in self._waiting.items() if by_socket and f.done())
        return self._ready.popleft() if self._ready else None

    def _wait(self, timeout_s: float) -> None:
        connections = {c.fileno(): c for _, c in self._waiting.values() if c is not None}
        if not connections:
            self._keep(self._done, timeout_s)
            return
        if len(connections) < len({id(c) for _, c in self._waiting.values()}):
            # Some come from other threads: look at those often.
            timeout_s = min(timeout_s, _LOOK_S)
        # Where other threads use a connection too, one of them may have read what this one waits for.
        timeout_s = min(timeout_s, _LOOK_SHARED_S)
        buffered = [c for c in connections.values() if c.buffered]
        poller = select.poll()
        for descriptor in connections:
            if descriptor >= 0:
                poller.register(descriptor, select.POLLIN)
        events = poller.poll(0 if buffered else timeout_s * 1000)
        ready = {*buffered, *(connections[descriptor] for descriptor, _ in events)}
        busy = [connection for connection in ready if not connection.read_available()]
        if busy and len(busy) == len(ready):
            self._wait_beside(busy, connections, min(timeout_s, _LOOK_S))

    def _wait_beside(
        self, busy: list[SocketConnection], connections: dict[int, SocketConnection], timeout_s: float
    ) -> None:
        """Wait while other threads read ``busy``, whose descriptors stay readable meanwhile."""
        poller = select.poll()
        others = {d: c for d, c in connections.items() if d >= 0 and c not in busy}
        for descriptor in others:
            poller.register(descriptor, select.POLLIN)
        if not others:
            busy[0].await_reader(timeout_s)
            return
        for descriptor, _ in poller.poll(timeout_s * 1000):
            others[descriptor].read_available()

    def _keep(self, queue: SimpleQueue[Future[Message]], timeout_s: float) -> None:
        try:
            self._ready.append(queue.get(timeout=timeout_s))
        except Empty:
            return
