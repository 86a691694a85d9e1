"""The ordered stream of transfers from a server to each follower."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from eps.core.types import Address
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, TakenOverError, TransferError
from eps.net.arrays.api import Message
from eps.net.arrays.peers import Peers

logger = logging.getLogger(__name__)

#: Bytes that may wait for a follower; beyond it, workers wait: a slow follower slows training and never fills memory.
MOST_WAITING_BYTES = 256 << 20
SEND_TIMEOUT_S = 120.0
#: Times that a message is sent before its follower is given up.
ATTEMPTS = 4
RECONNECT_S = 0.1


#: Messages on the way at the same time: while one is installed over there, the next one travels and the one after it
#: gets its checksum here.
WINDOW = 3


@dataclass(slots=True)
class _Item:
    make: Callable[[], Message]
    size_bytes: int
    done: Callable[[], None]
    #: What ``make`` returned, until it is acknowledged: it may have to be sent again.
    message: Message | None = None
    sent: Future[Message] | None = None


class FollowerStream:
    """Sends snapshots, updates and promotions to one follower, in order, beside training.

    Messages are made and sealed on the sending thread, so that checksums and headers cost the training nothing.  One
    stream serves every partition that goes to the follower for a plan, so an update that it refuses because it owns
    that partition now (:class:`~eps.errors.TakenOverError`) is dropped, never counted as acknowledged, and ends
    nothing.

    Parameters
    ----------
    peers : Peers
    address : Address
        Of the follower.
    on_failure : callable
        Called at most once, if something could not be made or sent, or a ``done`` failed, on the thread that noticed:
        the sending one, or one that waits for room.  Nothing is sent after it, and no ``done`` called that was not
        under way.  It gets a :class:`~eps.errors.TransferError` where the reason is no error of EPS.
    """

    def __init__(self, peers: Peers, address: Address, on_failure: Callable[[EpsError], None]) -> None:
        self._peers = peers
        self._address = address
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._waiting_bytes = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"follower-{address}", daemon=True)
        self._thread.start()

    def send(self, make: Callable[[], Message], size_bytes: int, done: Callable[[], None] = lambda: None) -> None:
        """Queue a message; never blocks.  ``done`` is called when the follower has acknowledged it, else never."""
        with self._changed:
            if not self._stopped:
                self._waiting.append(_Item(make, size_bytes, done))
                self._waiting_bytes += size_bytes
                self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait until the follower has caught up so far that more may be queued; call without any lock."""
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._stopped or self._waiting_bytes <= MOST_WAITING_BYTES, SEND_TIMEOUT_S
            )
        if not room:
            self._fail(DeadlineError(f"{self._address} did not take what waits for it within {SEND_TIMEOUT_S:g} s"))

    def _run(self) -> None:
        try:
            self._send_all()
        except EpsError as error:
            self._fail(error)
        except Exception as error:
            # No memory for a message, say: a stream that nobody knows to have ended holds up every pull for good.
            logger.exception("sending to %s failed", self._address)
            self._fail(TransferError(f"{type(error).__name__}: {error}"))

    def _send_all(self) -> None:
        """Send until the stream is stopped.

        Raises
        ------
        PeerUnavailableError
            The follower cannot be reached, however often it is tried.
        EpsError
            It did not answer in time, or refused something else than an update of a partition that it owns.
        """
        attempts = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._waiting)
                if self._stopped:
                    return
                window = list(itertools.islice(self._waiting, WINDOW))
            acknowledged = True
            try:
                for item in window:
                    self._send(item)
                # Those behind it are looked at when it is their turn.
                self._await(window[0])
            except PeerUnavailableError as error:
                attempts += 1
                if attempts == ATTEMPTS:
                    raise
                logger.info("the connection to %s broke: %s", self._address, error)
                with self._changed:
                    # What arrives twice is dropped there.
                    for item in self._waiting:
                        item.sent = None
                    if self._changed.wait_for(lambda: self._stopped, RECONNECT_S):
                        return
                continue
            except TakenOverError as error:
                # Of this partition the next membership tells, if this server is still of the job.  It begins no new
                # stream for the others: they go on with this one.
                logger.warning("%s", error)
                acknowledged = False
            attempts = 0
            with self._changed:
                if self._stopped:
                    return
            if acknowledged:
                window[0].done()
            with self._changed:
                if self._waiting:
                    self._waiting_bytes -= self._waiting.popleft().size_bytes
                self._changed.notify_all()

    def _send(self, item: _Item) -> None:
        if item.sent is None:
            if item.message is None:
                item.message = item.make()
            item.sent = self._peers.to(self._address).request(item.message)

    def _await(self, item: _Item) -> None:
        assert item.sent is not None
        try:
            item.sent.result(SEND_TIMEOUT_S)
        except TimeoutError as error:
            raise DeadlineError(f"{self._address} did not answer within {SEND_TIMEOUT_S:g} s") from error

    def _fail(self, error: EpsError) -> None:
        with self._changed:
            if self._stopped:
                return
            self._stop()
        self._on_failure(error)

    def stop(self) -> None:
        """Send nothing more; what waits is dropped."""
        with self._changed:
            self._stop()

    def _stop(self) -> None:
        """Stop; called with the lock."""
        self._stopped = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._changed.notify_all()
