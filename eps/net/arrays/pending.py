"""What every van needs around requests: futures that wait, replies that are given once, handlers that fail.  L2."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

from eps.errors import EpsError, PeerUnavailableError, ProtocolError, RpcError
from eps.net.arrays.api import Handler, Message, ReplyTo
from eps.net.arrays.traffic import TRAFFIC

logger = logging.getLogger(__name__)


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


class Reply:
    """The way back for one request, over any transport.

    Parameters
    ----------
    deliver : callable
        Takes the request's id and a message or an error to the requester; drops it where the requester has gone.
    request_id : int
    """

    __slots__ = ("_answered", "_deliver", "_request_id")
    #: Of all replies: it is held for two steps, and a lock for each would cost more.
    _lock = threading.Lock()

    def __init__(self, deliver: Callable[[int, Message | EpsError], None], request_id: int) -> None:
        self._deliver = deliver
        self._request_id = request_id
        self._answered = False

    def send(self, message: Message) -> None:
        """Answer the request."""
        self._answer(message)

    def fail(self, error: EpsError) -> None:
        """Answer the request with an error."""
        self._answer(error)

    def _answer(self, outcome: Message | EpsError) -> None:
        with self._lock:
            if self._answered:
                raise ProtocolError("the request was answered before; a request has exactly one answer")
            self._answered = True
        if isinstance(outcome, Message):
            TRAFFIC.sent(outcome)
        try:
            self._deliver(self._request_id, outcome)
        except (ProtocolError, MemoryError):
            # The message was refused, or could not be laid out, before anything left: the requester still waits.
            self._answered = False
            raise


def handle(handler: Handler, message: Message, reply: ReplyTo) -> None:
    """Call ``handler``; what it raises becomes the answer, so that no requester waits for a handler that failed."""
    TRAFFIC.received(message)
    try:
        handler(message, reply)
    except Exception as error:
        if not isinstance(error, EpsError):
            logger.exception("the handler of a data-plane request failed")
            error = RpcError(f"the handler failed with {type(error).__name__}: {error}")
        try:
            reply.fail(error)
        except ProtocolError:
            logger.warning("the handler failed after it had answered: %s", error)
