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
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, TakenOverError
from eps.van.api import Message
from eps.van.peers import Peers

logger = logging.getLogger(__name__)

#: Bytes that may wait for a follower; beyond it, workers wait: a slow follower slows training and never fills memory.
MOST_WAITING_BYTES = 256 << 20
SEND_TIMEOUT_S = 120.0
#: Times that a message is sent before its follower is given up.
ATTEMPTS = 4
RECONNECT_S = 0.1


#: Messages on the way at the same time: while one is checked and installed over there, the next one travels and the one
#: after it gets its checksum here.
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

    Messages are made on the sending thread, so that checksums and headers cost the training nothing.

    Parameters
    ----------
    peers : Peers
    address : Address
        Of the follower.
    on_failure : callable
        Called at most once, if something could not be sent, on the thread that noticed: the sending one, or one that
        waits for room.  Nothing is sent after it, and no ``done`` called that was not under way.
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
        """Queue a message; never blocks.  ``done`` is called when the follower has acknowledged it."""
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
        attempts = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._waiting)
                if self._stopped:
                    return
                window = list(itertools.islice(self._waiting, WINDOW))
            try:
                for item in window:
                    self._send(item)
                # Those behind it are looked at when it is their turn.
                self._await(window[0])
            except PeerUnavailableError as error:
                attempts += 1
                if attempts == ATTEMPTS:
                    self._fail(error)
                    return
                logger.info("the connection to %s broke: %s", self._address, error)
                with self._changed:
                    # What arrives twice is dropped there.
                    for item in self._waiting:
                        item.sent = None
                    if self._changed.wait_for(lambda: self._stopped, RECONNECT_S):
                        return
                continue
            except TakenOverError as error:
                # Whoever should know knows: this server is told with the next membership, if it is still of the job.
                logger.warning("%s", error)
                self.stop()
                return
            except EpsError as error:
                self._fail(error)
                return
            attempts = 0
            with self._changed:
                if self._stopped:
                    return
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
