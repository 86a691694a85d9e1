"""The requesting end of a socket connection: the thread that waits for a reply reads it.

A separate reader thread would cost two context switches for each reply, more than the round trip of a small message. So
:class:`Replies` reads the replies to posted requests (:meth:`SocketConnection.post`) on the waiting thread.  A reader
thread reads in two cases:

* a request has a future (:meth:`SocketConnection.request`);
* a sender waits for room in its queue: a peer that cannot send its replies stops taking requests.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Generic, TypeVar

from eps.errors import EpsError, FrameError, PeerUnavailableError
from eps.net.arrays.api import TRAFFIC, Connection, Limits, Message, ReplySource, Waiting
from eps.net.arrays.frames import Kind
from eps.net.arrays.memory import Arena
from eps.net.arrays.reader import StreamReader
from eps.net.arrays.wires import STALL_S, Wire
from eps.net.arrays.writer import Lender, MessageWriter, StreamWriter
from eps.net.calls.error_codec import decode_error

logger = logging.getLogger(__name__)

_JOIN_S = 5.0
#: How long a read blocks if its thread also waits for other connections, or for room to send.
_PATIENCE_S = 0.02
# Looking up an enumeration member takes ten times as long.
_REQUEST, _REPLY = Kind.REQUEST, Kind.REPLY
#: Longest single wait of :class:`Replies`.  If threads share a connection, one reads the replies of the others.
_LOOK_S = 0.02
#: How long :meth:`ReplyReader.read_available` waits for another thread that reads.
_TURN_S = 0.002
TagT = TypeVar("TagT")


class PendingRequests:
    """The requests of one connection that wait for their replies.  Thread-safe.

    Attributes
    ----------
    closed : bool
        True once :meth:`fail_all` was called.
    """

    # Without a lock: each operation on the dictionary is atomic in CPython.  ``_add`` adds and then checks ``closed``;
    # ``fail_all`` sets ``closed`` and then takes all entries.  So no request is missed by both.

    def __init__(self) -> None:
        self._futures: dict[int, Future[Message] | Waiting] = {}
        self._ids = count(1)
        self._reason = ""
        self.closed = False

    def add(self) -> tuple[int, Future[Message]]:
        """Return a new request id and its future.

        Raises
        ------
        PeerUnavailableError
            The connection is closed or broken.
        """
        future: Future[Message] = Future()
        # A sent request cannot be called back, so the future cannot be cancelled from here on.
        future.set_running_or_notify_cancel()
        return self._add(future), future

    def add_waiting(self) -> tuple[int, Waiting]:
        """Return a new request id and its :class:`Waiting`; errors are those of :meth:`add`."""
        waiting = Waiting()
        return self._add(waiting), waiting

    def _add(self, future: Future[Message] | Waiting) -> int:
        request_id = next(self._ids)
        self._futures[request_id] = future
        if self.closed:
            self._futures.pop(request_id, None)
            raise PeerUnavailableError(self._reason)
        return request_id

    def withdraw(self, request_id: int) -> None:
        """Remove a request that could not be sent."""
        self._futures.pop(request_id, None)

    def resolve(self, request_id: int, outcome: Message | EpsError) -> bool:
        """Complete a request; return False for an unknown id while the connection is open."""
        future = self._futures.pop(request_id, None)
        if future is None:
            return self.closed
        if isinstance(outcome, Message):
            TRAFFIC.received(outcome)
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
        return True

    def fail_all(self, reason: str) -> None:
        """Refuse further requests and fail those that wait; the first reason is kept."""
        self._reason = self._reason or reason
        self.closed = True
        for request_id in list(self._futures):
            future = self._futures.pop(request_id, None)
            if future is not None:
                future.set_exception(PeerUnavailableError(reason))


class ReplyReader:
    """Read the replies of one connection.  One thread reads at a time: a waiting one, or the reader thread.

    Parameters
    ----------
    wire : Wire
    peer : str
        For messages.
    pending : PendingRequests
        Receives the replies.
    lender : Lender or None
        Lends the arrays of requests if the transport has shared memory.

    Attributes
    ----------
    returned : deque of int
        Leases of replies whose arrays were freed; the next message returns them to the peer.
    """

    def __init__(self, wire: Wire, peer: str, limits: Limits, pending: PendingRequests, lender: Lender | None) -> None:
        self._wire = wire
        self._peer = peer
        self._pending = pending
        self._lender = lender
        self.returned: deque[int] = deque()
        self._stream = StreamReader(
            wire,
            limits,
            (Kind.HELLO, Kind.REPLY, Kind.ERROR),
            lending=lender is not None,
            returned=self.returned,
        )
        #: Held by the one thread that reads.
        self._reading = threading.Lock()
        #: Wakes the reader thread.
        self._changed = threading.Condition()
        #: Requests whose replies the reader thread must read.
        self._armed: set[int] = set()
        #: Number of threads that wait for room to send.
        self._blocked_senders = 0
        self._thread: threading.Thread | None = None

    # ---- reading by a waiting thread

    def fileno(self) -> int:
        """Return the descriptor that is readable when a reply comes; -1 if the wire is closed."""
        return self._wire.fileno()

    @property
    def buffered(self) -> bool:
        """Whether :meth:`read_available` has data although the descriptor may not be readable."""
        return self._stream.buffered

    def read_available(self) -> None:
        """Read arrived replies; if there is none, wait :data:`_PATIENCE_S` for one.

        The same limit applies to a reply that is still arriving; the next call continues it.  If another thread keeps
        reading, that thread reads them.
        """
        reading = self._reading
        # A timed acquire takes longer, even if the lock is free.
        if self._pending.closed or not (reading.acquire(False) or reading.acquire(True, _TURN_S)):
            return
        try:
            if self._stream.patience_s != _PATIENCE_S:
                self._stream.wait_at_most(_PATIENCE_S)
            self._read_one()
            while self._stream.buffered and not self._pending.closed:
                self._read_one()
        finally:
            reading.release()

    # ---- reading by the reader thread

    def arm(self, request_id: int, future: Future[Message]) -> None:
        """Let the reader thread read the reply to a request."""
        with self._changed:
            # In this order: :meth:`_take` resolves a request before it disarms it, so one sees the other.
            self._armed.add(request_id)
            if future.done():
                self._armed.discard(request_id)
                return
            self._wake_reader()

    def read_while_waiting(self, change: int) -> None:
        """Change the number of threads that wait for room to send; while there are any, the reader thread reads."""
        with self._changed:
            self._blocked_senders += change
            if self._blocked_senders:
                self._wake_reader()

    def _wake_reader(self) -> None:
        """Wake or start the reader thread; the caller holds the lock."""
        if self._thread is None and not self._pending.closed:
            self._thread = threading.Thread(target=self._run, name=f"eps-van-read-{self._peer}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while not self._pending.closed:
            with self._changed:
                self._changed.wait_for(lambda: self._pending.closed or self._armed or self._blocked_senders)
            with self._reading:
                while (self._armed or self._blocked_senders) and not self._pending.closed:
                    # A blocked sender may get no reply and must continue as soon as there is room.
                    patience_s = STALL_S if self._armed else _PATIENCE_S
                    if self._stream.patience_s != patience_s:
                        self._stream.wait_at_most(patience_s)
                    self._read_one()

    # ---- received messages

    def _read_one(self) -> None:
        """Read one message, or the part of it that has arrived; the caller holds ``_reading``."""
        try:
            received = self._stream.read()
            if received is not None:
                self._take(received)
        except FrameError as error:
            logger.warning("%s sent a malformed message: %s", self._peer, error)
            self.fail(str(error))
        except EpsError as error:
            self.fail(str(error))
        except Exception as error:
            # Any error, also MemoryError: otherwise threads would wait for their replies for ever.
            self.fail(f"{type(error).__name__}: {error}")

    def _take(self, received: tuple[Kind, int, Message]) -> None:
        kind, request_id, message = received
        outcome: Message | EpsError = message
        if kind is not _REPLY:
            if kind is Kind.HELLO:
                raise FrameError("a second hello")
            try:
                outcome = decode_error(message.header)
            except ValueError as error:
                raise FrameError(str(error)) from error
        lender = self._lender
        if lender is not None and lender.requests:
            lender.on_reply(request_id)
        known = self._pending.resolve(request_id, outcome)
        if self._armed:
            self._armed.discard(request_id)
        if not known:
            raise FrameError(f"a reply to request {request_id}, which is not outstanding")

    def fail(self, reason: str) -> None:
        """Fail outstanding requests and end the connection."""
        self._pending.fail_all(f"the connection to {self._peer} was lost: {reason}")
        self._wire.shut_down()

    # ---- closing

    def stop(self, deadline_s: float) -> None:
        """Join the reader thread, until ``deadline_s`` of the monotonic clock.

        Call it once the wire is shut down and no request is pending.
        """
        with self._changed:
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def close(self, deadline_s: float) -> None:
        """Close the wire, unless a thread still reads from it at ``deadline_s`` of the monotonic clock."""
        if self._reading.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            # No thread reads: the descriptor can be closed.
            self._wire.close()
            self._stream.close()
            self._reading.release()


class SocketConnection:
    """A connection over a wire, after the handshake.

    Parameters
    ----------
    wire : Wire
        Owned by this object.
    peer : str
        For messages.
    transport : str
    arena : Arena or None
        Shared memory, if the transport has it.

    Attributes
    ----------
    replies : ReplyReader
    """

    def __init__(self, wire: Wire, peer: str, transport: str, limits: Limits, arena: Arena | None) -> None:
        self.transport = transport
        self._wire = wire
        self._peer = peer
        self._pending = PendingRequests()
        self._lender = None if arena is None else Lender(arena, wire.peer_pid, limits)
        self.replies = ReplyReader(wire, peer, limits, self._pending, self._lender)
        self._writer = StreamWriter(
            wire, limits, f"eps-van-write-{peer}", self.replies.fail, on_waiting=self.replies.read_while_waiting
        )
        self._requests = MessageWriter(self._writer, limits, self._lender, self.replies.returned)

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the reader thread reads its reply."""
        request_id, future = self._pending.add()
        self._post(message, request_id)
        self.replies.arm(request_id, future)
        return future

    def post(self, message: Message) -> Waiting:
        """Send a request whose reply the caller reads; see :meth:`ReplyReader.read_available`."""
        request_id, waiting = self._pending.add_waiting()
        self._post(message, request_id)
        return waiting

    def _post(self, message: Message, request_id: int) -> None:
        # If the connection is closed meanwhile, the request fails with the other outstanding ones.
        try:
            self._requests.send(message, request_id, _REQUEST)
        except BaseException as error:
            # Any exception: the caller gets no future, so no thread waits for the reply.
            self._pending.withdraw(request_id)
            if isinstance(error, Exception) and self._lender is not None:
                self._lender.on_reply(request_id)
            # On an interrupt the peer may read the lent arrays, so they stay lent until the connection ends.
            raise
        TRAFFIC.sent(message)

    @property
    def closed(self) -> bool:
        """Whether the connection was closed or is known to be broken."""
        return self._pending.closed or self._wire.hung_up()

    def close(self) -> None:
        """Fail outstanding requests and release all resources, within :data:`_JOIN_S`."""
        deadline_s = time.monotonic() + _JOIN_S
        if not self.closed:
            # Return leases first: the peer cannot reuse lent memory once the connection has ended.
            with suppress(EpsError):
                self._requests.send_returned(_JOIN_S / 5)
        self._pending.fail_all(f"the connection to {self._peer} was closed")
        self._wire.shut_down()
        self.replies.stop(deadline_s)
        self._writer.close(max(0.0, deadline_s - time.monotonic()))
        self.replies.close(deadline_s)
        if self._lender is not None:
            self._lender.close()


class Replies(Generic[TagT]):
    """Unanswered posted requests, each with a tag.  Used by one thread, which reads the replies."""

    def __init__(self) -> None:
        self._waiting: dict[Waiting, tuple[TagT, ReplySource]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tags(self) -> list[TagT]:
        """Tags of the unanswered requests, oldest first."""
        return [tag for tag, _ in self._waiting.values()]

    def request(self, tag: TagT, connection: Connection, message: Message) -> None:
        """Send a request; errors are those of :meth:`eps.net.arrays.api.Connection.request`."""
        self._waiting[connection.post(message)] = tag, connection.replies

    def next(self, timeout_s: float) -> tuple[TagT, Waiting] | None:
        """Return tag and outcome of the oldest answered request; None at the timeout.

        May take some milliseconds longer than ``timeout_s``, unless that is 0.
        """
        left_s, deadline_s = timeout_s, time.monotonic() + timeout_s
        while True:
            sources = set()
            for waiting, (tag, source) in self._waiting.items():
                if waiting.outcome is not None:
                    del self._waiting[waiting]
                    return tag, waiting
                sources.add(source)
            if left_s <= 0 or not sources:
                return None
            if len(sources) > 1 or left_s < _PATIENCE_S / 2:
                sources = _readable(sources, min(left_s, _LOOK_S))
            # A single source waits by itself: a poll would cost a fifth of a small message's time.
            for source in sources:
                source.read_available()
            left_s = deadline_s - time.monotonic()


def _readable(sources: Iterable[ReplySource], timeout_s: float) -> set[ReplySource]:
    """Wait for replies until the timeout; return the sources with data."""
    buffered = {source for source in sources if source.buffered}
    found = {descriptor: source for source in sources if (descriptor := source.fileno()) >= 0}
    poller = select.poll()
    for descriptor in found:
        poller.register(descriptor, select.POLLIN)
    return buffered | {found[descriptor] for descriptor, _ in poller.poll(0 if buffered else timeout_s * 1000)}
