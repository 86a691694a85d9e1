"""The requesting end of a socket connection: the thread that waits for a reply reads it.  L2.

A thread of its own that read replies would cost two switches of thread for each of them, more than the round trip of a
small message.  So :meth:`SocketConnection.call` and :class:`eps.net.arrays.replies.Replies` read on the waiting thread,
and a reader thread reads only for requests that no thread waits for in this way, and while one waits for room to send:
a peer that waits for its replies to be taken takes no requests meanwhile.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress

from eps.errors import DeadlineError, EpsError, FrameError
from eps.net.arrays.api import Limits, Message
from eps.net.arrays.arena import Arena
from eps.net.arrays.frames import Kind
from eps.net.arrays.lending import Lender
from eps.net.arrays.pending import PendingRequests, Waiting
from eps.net.arrays.sending import MessageWriter
from eps.net.arrays.stream import StreamReader
from eps.net.arrays.traffic import TRAFFIC
from eps.net.arrays.wires import STALL_S, Wire
from eps.net.arrays.writer import StreamWriter
from eps.net.calls.error_codec import decode_error

logger = logging.getLogger(__name__)

_JOIN_S = 5.0
#: Who waits for others too goes on with a reply that takes longer to come at a later time.
_PATIENCE_S = 0.02
# Looking a member of an enumeration up takes ten times as long.
_REQUEST, _REPLY = Kind.REQUEST, Kind.REPLY


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
    """

    def __init__(self, wire: Wire, peer: str, transport: str, limits: Limits, arena: Arena | None) -> None:
        self.transport = transport
        self._wire = wire
        self._peer = peer
        self._pending = PendingRequests()
        self._lender = None if arena is None else Lender(arena, wire.peer_pid, limits)
        #: Leases of replies whose arrays are gone.
        self._returned: deque[int] = deque()
        self._reader = StreamReader(
            wire,
            limits,
            (Kind.HELLO, Kind.REPLY, Kind.ERROR),
            lending=arena is not None,
            returned=self._returned,
        )
        self._writer = StreamWriter(
            wire, limits, f"eps-van-write-{peer}", self._fail, on_waiting=self._read_while_waiting
        )
        self._requests = MessageWriter(self._writer, limits, self._lender, self._returned)
        #: Request -> leases of its arrays; its reply gives them back.
        self._lent: dict[int, list[int]] = {}
        #: Held by the one thread that reads.
        self._reading = threading.Lock()
        self._poller = select.poll()
        self._poller.register(wire.fileno(), select.POLLIN)
        self._changed = threading.Condition()
        #: Requests whose replies the reader thread is to read.
        self._armed: set[int] = set()
        #: Threads that wait for room to send.
        self._crowded = 0
        #: Threads that wait for what another one reads.
        self._watching = 0
        self._thread: threading.Thread | None = None
        self._ended = False

    # ---- requests

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the reader thread takes its reply."""
        request_id, future = self._pending.add()
        self._post(message, request_id)
        self._arm(request_id, future)
        return future

    def call(self, message: Message, timeout_s: float) -> Message:
        """Send a request and return its reply, which this thread reads."""
        request_id, waiting = self._pending.add_waiting()
        self._post(message, request_id)
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
                self._arm(request_id, waiting)
                waiting.wait(max(0.0, deadline_s - time.monotonic()))
            if waiting.outcome is None and time.monotonic() >= deadline_s:
                raise DeadlineError(f"{self._peer} did not answer within {timeout_s:g} s")
        if isinstance(waiting.outcome, Message):
            return waiting.outcome
        raise waiting.outcome

    def post(self, message: Message) -> Future[Message]:
        """Send a request whose reply :meth:`read_available` is to take."""
        request_id, future = self._pending.add()
        self._post(message, request_id)
        return future

    def fileno(self) -> int:
        """Return the descriptor that is readable when a reply comes."""
        return self._wire.fileno()

    @property
    def buffered(self) -> bool:
        """True if :meth:`read_available` finds something although the descriptor may not be readable."""
        return self._reader.buffered

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
            if self._reader.patience_s != _PATIENCE_S:
                self._reader.wait_at_most(_PATIENCE_S)
            self._read_one()
            while self._reader.buffered and not self._pending.closed:
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

    @property
    def closed(self) -> bool:
        """True once the connection is closed or known to be broken."""
        return self._pending.closed or self._wire.hung_up()

    def _post(self, message: Message, request_id: int) -> None:
        # Where it is closed in the meantime, the request fails with the other outstanding ones.
        try:
            self._requests.send(message, request_id, _REQUEST, self._lent)
        except BaseException as error:
            # Of any kind: the caller does not get the request's future, so its reply is not waited for.
            self._pending.withdraw(request_id)
            if isinstance(error, Exception):
                self._give_back(request_id)
            # Else it was interrupted, and the peer may be reading what was lent: that stays until the connection ends.
            raise
        TRAFFIC.sent(message)

    def _give_back(self, request_id: int) -> None:
        leases = self._lent.pop(request_id, None)
        if leases and self._lender is not None:
            self._lender.give_back(leases)

    # ---- replies

    def _arm(self, request_id: int, future: Future[Message] | Waiting) -> None:
        with self._changed:
            # In this order, as :meth:`_take` resolves a request before it looks at what is armed: one sees the other.
            self._armed.add(request_id)
            if future.done():
                self._armed.discard(request_id)
                return
            self._wake_reader()

    def _read_while_waiting(self, change: int) -> None:
        """Have replies read for who waits for room to send, and so cannot read them itself."""
        with self._changed:
            self._crowded += change
            if self._crowded:
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
                self._changed.wait_for(lambda: self._ended or self._armed or self._crowded)
                if self._ended:
                    return
            with self._reading:
                while (self._armed or self._crowded) and not self._pending.closed:
                    # Nothing may come for who waits for room, who is to go on as soon as there is some.
                    patience_s = STALL_S if self._armed else _PATIENCE_S
                    if self._reader.patience_s != patience_s:
                        self._reader.wait_at_most(patience_s)
                    self._read_one()
            if self._pending.closed:
                return

    def _read_until(self, waiting: Waiting, deadline_s: float, exact: bool) -> None:
        patience_s = _PATIENCE_S if exact else STALL_S
        if self._reader.patience_s != patience_s:
            self._reader.wait_at_most(patience_s)
        while waiting.outcome is None and not self._pending.closed:
            if exact and not self._reader.buffered:
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

    def _read_one(self) -> None:
        """Read one message, or what has come of it; called by the holder of ``_reading``."""
        try:
            received = self._reader.read()
            if received is not None:
                self._take(received)
        except FrameError as error:
            logger.warning("%s sent what is not a message: %s", self._peer, error)
            self._fail(str(error))
        except EpsError as error:
            self._fail(str(error))
        except Exception as error:
            # Also where memory ran out: a thread that waits for a reply must not wait for ever.
            self._fail(f"{type(error).__name__}: {error}")

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
        if self._lent:
            self._give_back(request_id)
        known = self._pending.resolve(request_id, outcome)
        if self._armed or self._watching:
            with self._changed:
                self._armed.discard(request_id)
                self._changed.notify_all()
        if not known:
            raise FrameError(f"a reply to request {request_id}, which does not wait for one")

    def _fail(self, reason: str) -> None:
        self._pending.fail_all(f"the connection to {self._peer} was lost: {reason}")
        self._wire.shut_down()

    # ---- the end

    def close(self) -> None:
        """Fail what is outstanding and give everything back; takes :data:`_JOIN_S` at most."""
        deadline_s = time.monotonic() + _JOIN_S
        if not self.closed:
            # What was lent on a connection that ends is lost for the peer; this is not any more.
            with suppress(EpsError):
                self._requests.send_returned(_JOIN_S / 5)
        self._pending.fail_all(f"the connection to {self._peer} was closed")
        self._wire.shut_down()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._writer.close(max(0.0, deadline_s - time.monotonic()))
        if self._reading.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            # No thread reads: the descriptor may be given back.
            self._wire.close()
            self._reader.close()
            self._reading.release()
        if self._lender is not None:
            self._lender.close()
