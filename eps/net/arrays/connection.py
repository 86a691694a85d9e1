"""The requesting end of a socket connection: the thread that waits for a reply reads it.

A thread of its own that read replies would cost two switches of thread for each of them, more than the round trip of a
small message.  So :meth:`SocketConnection.call` and :class:`Replies` read on the waiting thread, and a reader thread
reads only for requests that no thread waits for in this way, and while one waits for room to send: a peer that waits
for its replies to be taken takes no requests meanwhile.
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
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from eps.errors import DeadlineError, EpsError, FrameError, PeerUnavailableError
from eps.net.arrays.api import TRAFFIC, Connection, Limits, Message
from eps.net.arrays.frames import Kind
from eps.net.arrays.memory import Arena
from eps.net.arrays.reader import StreamReader
from eps.net.arrays.wires import STALL_S, Wire
from eps.net.arrays.writer import Lender, MessageWriter, StreamWriter
from eps.net.calls.error_codec import decode_error

logger = logging.getLogger(__name__)

_JOIN_S = 5.0
#: A thread that waits for other connections too leaves a reply that takes longer for a later call.
_PATIENCE_S = 0.02
# Looking a member of an enumeration up takes ten times as long.
_REQUEST, _REPLY = Kind.REQUEST, Kind.REPLY
#: Replies of other threads are looked for this often; those that another thread may read, this often.
_LOOK_S, _LOOK_SHARED_S = 0.002, 0.02
TagT = TypeVar("TagT")


class Waiting:
    """A reply that one thread waits for; a tenth of the cost of a future.

    Attributes
    ----------
    outcome : Message, EpsError or None
        None until it is there.
    """

    outcome: Message | EpsError | None = None
    _arrived: threading.Event | None = None

    def done(self) -> bool:
        """Return True once there is an outcome."""
        return self.outcome is not None

    def set_result(self, outcome: Message | EpsError) -> None:
        """Give it its outcome."""
        # No lock: this sets the outcome and then looks for an event, :meth:`wait` sets the event and then looks for
        # an outcome; one of the two finds what the other has set.
        self.outcome = outcome
        if self._arrived is not None:
            self._arrived.set()

    set_exception = set_result

    def wait(self, timeout_s: float) -> None:
        """Wait until another thread has set the outcome, or the time is over."""
        if self._arrived is None:
            self._arrived = threading.Event()
        if self.outcome is None:
            self._arrived.wait(timeout_s)

    def result(self, timeout_s: float = 0.0) -> Message:
        """Return the reply, or raise the error that came in its place; DeadlineError where neither comes in time."""
        if self.outcome is None:
            self.wait(timeout_s)
        if isinstance(self.outcome, Message):
            return self.outcome
        raise self.outcome or DeadlineError(f"no reply within {timeout_s:g} s")


class PendingRequests:
    """The requests of one connection that wait for their replies.  Thread-safe.

    Attributes
    ----------
    closed : bool
        True once :meth:`fail_all` was called.
    """

    # Without a lock: each step on the dictionary is one to CPython.  ``_add`` adds and then looks whether it is closed,
    # ``fail_all`` closes and then takes what is there, so that no request is missed by both.

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
        # A request that has left cannot be called back: from here on the future cannot be cancelled.
        future.set_running_or_notify_cancel()
        return self._add(future), future

    def add_waiting(self) -> tuple[int, Waiting]:
        """Return a new request id and where its one waiting thread finds the outcome; raises as :meth:`add`."""
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
        """Forget a request that could not be sent."""
        self._futures.pop(request_id, None)

    def resolve(self, request_id: int, outcome: Message | EpsError) -> bool:
        """Complete a request; return False where no such request waits."""
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
        """Refuse further requests and fail those that wait.  The first reason stays."""
        self._reason = self._reason or reason
        self.closed = True
        for request_id in list(self._futures):
            future = self._futures.pop(request_id, None)
            if future is not None:
                future.set_exception(PeerUnavailableError(reason))


class ReplyReader:
    """Reads the replies of one connection, on one thread at a time: one that waits for them, or a thread of its own.

    Parameters
    ----------
    wire : Wire
    peer : str
        For messages.
    pending : PendingRequests
        Takes the replies.
    lender : Lender or None
        Of the arrays of requests, where the transport has shared memory.

    Attributes
    ----------
    returned : deque of int
        Leases of replies whose arrays are gone; the next message tells the peer.
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
        self._poller = select.poll()
        self._poller.register(wire.fileno(), select.POLLIN)
        self._changed = threading.Condition()
        #: Requests whose replies the reader thread is to read.
        self._armed: set[int] = set()
        #: Threads that wait for room to send.
        self._blocked_senders = 0
        #: Threads that wait for what another one reads.
        self._watching = 0
        self._thread: threading.Thread | None = None
        self._ended = False

    # ---- read by a thread that waits

    def wait(self, request_id: int, waiting: Waiting, timeout_s: float) -> None:
        """Read on this thread until a request has its outcome; raise DeadlineError where that takes too long."""
        deadline_s = time.monotonic() + timeout_s
        # With a long deadline the socket's own is exact enough: one call of the system less.
        exact = timeout_s < 2 * STALL_S
        while waiting.outcome is None:
            if self._reading.acquire(False):
                try:
                    self._read_until(waiting, deadline_s, exact)
                finally:
                    self._stop_reading()
            else:
                # Another thread reads; should it stop, the reader thread goes on.
                self.arm(request_id, waiting)
                waiting.wait(max(0.0, deadline_s - time.monotonic()))
            if waiting.outcome is None and time.monotonic() >= deadline_s:
                raise DeadlineError(f"{self._peer} did not answer within {timeout_s:g} s")

    def fileno(self) -> int:
        """Return the descriptor that is readable when a reply comes."""
        return self._wire.fileno()

    @property
    def buffered(self) -> bool:
        """True if :meth:`read_available` finds something although the descriptor may not be readable."""
        return self._stream.buffered

    def read_available(self) -> bool:
        """Take what has come; call when the descriptor is readable or :attr:`buffered`.

        Of a reply that goes on coming it takes what comes within :data:`_PATIENCE_S`, and the rest at the next call.

        Returns
        -------
        bool
            False where another thread reads: then the descriptor may stay readable without anything to do here.
        """
        if self._pending.closed:
            return True
        if not self._reading.acquire(False):
            return False
        try:
            if self._stream.patience_s != _PATIENCE_S:
                self._stream.wait_at_most(_PATIENCE_S)
            self._read_one()
            while self._stream.buffered and not self._pending.closed:
                self._read_one()
        finally:
            self._stop_reading()
        return True

    def await_reader(self, timeout_s: float) -> None:
        """Wait until the thread that reads has taken a reply or stopped, or the time is over."""
        with self._changed:
            self._watching += 1
            try:
                self._changed.wait(timeout_s)
            finally:
                self._watching -= 1

    def _read_until(self, waiting: Waiting, deadline_s: float, exact: bool) -> None:
        patience_s = _PATIENCE_S if exact else STALL_S
        if self._stream.patience_s != patience_s:
            self._stream.wait_at_most(patience_s)
        while waiting.outcome is None and not self._pending.closed:
            if exact and not self._stream.buffered:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._poller.poll(left_s * 1000):
                    return
            self._read_one()
            if waiting.outcome is None and not exact and time.monotonic() >= deadline_s:
                return

    def _stop_reading(self) -> None:
        self._reading.release()
        if self._armed or self._watching:
            with self._changed:
                self._changed.notify_all()

    # ---- read by the reader thread

    def arm(self, request_id: int, future: Future[Message] | Waiting) -> None:
        """Have the reader thread read the reply to a request."""
        with self._changed:
            # In this order, as :meth:`_take` resolves a request before it looks at what is armed: one sees the other.
            self._armed.add(request_id)
            if future.done():
                self._armed.discard(request_id)
                return
            self._wake_reader()

    def read_while_waiting(self, change: int) -> None:
        """Have replies read for a thread that waits for room to send, and so cannot read them itself."""
        with self._changed:
            self._blocked_senders += change
            if self._blocked_senders:
                self._wake_reader()

    def _wake_reader(self) -> None:
        """Have the reader thread look at what there is to do; called with the lock."""
        if self._thread is None and not self._ended:
            self._thread = threading.Thread(target=self._run, name=f"eps-van-read-{self._peer}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._armed or self._blocked_senders)
                if self._ended:
                    return
            with self._reading:
                while (self._armed or self._blocked_senders) and not self._pending.closed:
                    # Nothing may come for a sender that waits for room, which is to go on as soon as there is some.
                    patience_s = STALL_S if self._armed else _PATIENCE_S
                    if self._stream.patience_s != patience_s:
                        self._stream.wait_at_most(patience_s)
                    self._read_one()
            if self._pending.closed:
                return

    # ---- what came

    def _read_one(self) -> None:
        """Read one message, or what has come of it; called by the holder of ``_reading``."""
        try:
            received = self._stream.read()
            if received is not None:
                self._take(received)
        except FrameError as error:
            logger.warning("%s sent what is not a message: %s", self._peer, error)
            self.fail(str(error))
        except EpsError as error:
            self.fail(str(error))
        except Exception as error:
            # Also where memory ran out: a thread that waits for a reply must not wait for ever.
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
        if self._armed or self._watching:
            with self._changed:
                self._armed.discard(request_id)
                self._changed.notify_all()
        if not known:
            raise FrameError(f"a reply to request {request_id}, which does not wait for one")

    def fail(self, reason: str) -> None:
        """Fail what is outstanding, and end the connection."""
        self._pending.fail_all(f"the connection to {self._peer} was lost: {reason}")
        self._wire.shut_down()

    # ---- the end

    def stop(self, deadline_s: float) -> None:
        """End the reader thread, whose wire was shut down; wait for it until a time of the monotonic clock."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def close(self, deadline_s: float) -> None:
        """Close the wire, unless a thread still reads from it at a time of the monotonic clock."""
        if self._reading.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            # No thread reads: the descriptor may be given back.
            self._wire.close()
            self._stream.close()
            self._reading.release()


class SocketConnection:
    """A connection over a wire whose handshake is done.

    Parameters
    ----------
    wire : Wire
        Owned from now on.
    peer : str
        For messages.
    transport : str
    arena : Arena or None
        Shared memory, where the transport has it.

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
        """Send a request; the reader thread takes its reply."""
        request_id, future = self._pending.add()
        self._post(message, request_id)
        self.replies.arm(request_id, future)
        return future

    def call(self, message: Message, timeout_s: float) -> Message:
        """Send a request and return its reply, which this thread reads."""
        request_id, waiting = self._pending.add_waiting()
        self._post(message, request_id)
        self.replies.wait(request_id, waiting, timeout_s)
        return waiting.result()

    def post(self, message: Message) -> Waiting:
        """Send a request whose reply :meth:`ReplyReader.read_available` is to take."""
        request_id, waiting = self._pending.add_waiting()
        self._post(message, request_id)
        return waiting

    def _post(self, message: Message, request_id: int) -> None:
        # Where it is closed in the meantime, the request fails with the other outstanding ones.
        try:
            self._requests.send(message, request_id, _REQUEST)
        except BaseException as error:
            # Of any kind: the caller does not get the request's future, so its reply is not waited for.
            self._pending.withdraw(request_id)
            if isinstance(error, Exception) and self._lender is not None:
                self._lender.on_reply(request_id)
            # Else it was interrupted, and the peer may be reading what was lent: that stays until the connection ends.
            raise
        TRAFFIC.sent(message)

    @property
    def closed(self) -> bool:
        """True once the connection is closed or known to be broken."""
        return self._pending.closed or self._wire.hung_up()

    def close(self) -> None:
        """Fail what is outstanding and give everything back; takes :data:`_JOIN_S` at most."""
        deadline_s = time.monotonic() + _JOIN_S
        if not self.closed:
            # What was lent on a connection that ends is lost for the peer; this is not any more.
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
    """Requests that are under way, each with a tag.  Used by one thread.

    Replies over sockets are read by :meth:`next` itself, those of other vans come from their threads.
    """

    def __init__(self) -> None:
        self._waiting: dict[Waiting, tuple[TagT, ReplyReader | None]] = {}
        #: Answered on other threads.
        self._done: SimpleQueue[Waiting] = SimpleQueue()
        self._ready: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tags(self) -> list[TagT]:
        """Of the requests that are under way, oldest first."""
        return [tag for tag, _ in self._waiting.values()]

    def request(self, tag: TagT, connection: Connection, message: Message) -> None:
        """Send a request; raises what :meth:`eps.net.arrays.api.Connection.request` raises."""
        if isinstance(connection, SocketConnection):
            self._waiting[connection.post(message)] = tag, connection.replies
            return
        waiting = Waiting()
        future = connection.request(message)
        self._waiting[waiting] = tag, None

        def take(done: Future[Message]) -> None:
            error = done.exception()
            waiting.set_result(error if isinstance(error, EpsError) else done.result())
            self._done.put(waiting)

        future.add_done_callback(take)

    def next(self, timeout_s: float) -> tuple[TagT, Waiting] | None:
        """Return the tag of a request and its outcome, or None where none was answered in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            answered = self._first_done()
            if answered is not None:
                return self._waiting.pop(answered)[0], answered
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._waiting:
                return None
            self._wait(left_s)

    def _first_done(self) -> Waiting | None:
        if not self._done.empty():
            return self._done.get_nowait()
        if not self._ready:
            self._ready.extend([w for w, (_, reader) in self._waiting.items() if reader and w.outcome is not None])
        return self._ready.popleft() if self._ready else None

    def _wait(self, timeout_s: float) -> None:
        readers = {reader for _, reader in self._waiting.values() if reader is not None}
        if not readers:
            with suppress(Empty):
                self._ready.append(self._done.get(timeout=timeout_s))
            return
        # Where other threads use a connection too, one of them may have read what this one waits for.  Replies that
        # come from other threads altogether are looked for often.
        by_sockets = all(reader is not None for _, reader in self._waiting.values())
        timeout_s = min(timeout_s, _LOOK_SHARED_S if by_sockets else _LOOK_S)
        ready = _readable(readers, timeout_s)
        busy = {reader for reader in ready if not reader.read_available()}
        if not busy or len(busy) < len(ready):
            return
        # Other threads read these, whose descriptors stay readable meanwhile.
        timeout_s = min(timeout_s, _LOOK_S)
        others = readers - busy
        if not others:
            next(iter(busy)).await_reader(timeout_s)
            return
        for reader in _readable(others, timeout_s):
            reader.read_available()


def _readable(readers: Iterable[ReplyReader], timeout_s: float) -> set[ReplyReader]:
    """Wait until a reader has something to read; return those that have."""
    buffered = {reader for reader in readers if reader.buffered}
    found = {descriptor: reader for reader in readers if (descriptor := reader.fileno()) >= 0}
    poller = select.poll()
    for descriptor in found:
        poller.register(descriptor, select.POLLIN)
    return buffered | {found[descriptor] for descriptor, _ in poller.poll(0 if buffered else timeout_s * 1000)}
