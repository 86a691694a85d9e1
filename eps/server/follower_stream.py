"""The ordered stream of transfers from a server to each follower."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from eps.core.types import Address
from eps.errors import EpsError
from eps.van.api import Message
from eps.van.peers import Peers

logger = logging.getLogger(__name__)

#: Messages that wait for a follower; more make the sender wait: a slow follower slows training, and never fills memory.
MOST_WAITING = 64
SEND_TIMEOUT_S = 120.0


class FollowerStream:
    """Sends snapshots, updates and promotions to one follower, in order, beside training.

    Messages are made on the sending thread, so that checksums and headers cost the training nothing.
    """

    def __init__(self, peers: Peers, address: Address, on_failure: Callable[[EpsError], None]) -> None:
        self._peers = peers
        self._address = address
        self._on_failure = on_failure
        self._queue: queue.Queue[tuple[Callable[[], Message], Callable[[], None]] | None] = queue.Queue(MOST_WAITING)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"follower-{address}", daemon=True)
        self._thread.start()

    def send(self, make: Callable[[], Message], done: Callable[[], None] = lambda: None) -> None:
        """Queue a message; ``done`` is called when the follower has acknowledged it."""
        if not self._stopped:
            self._queue.put((make, done), timeout=SEND_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if self._stopped:
                continue
            make, done = item
            try:
                self._peers.to(self._address).request(make()).result(SEND_TIMEOUT_S)
                done()
            except (EpsError, TimeoutError) as error:
                if not self._stopped:
                    self._stopped = True
                    self._on_failure(error if isinstance(error, EpsError) else EpsError(str(error)))

    def stop(self) -> None:
        """Send nothing more; what waits is dropped."""
        self._stopped = True
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            # The thread drains the queue by itself and ends with the process.
            logger.debug("stream to %s stopped while full", self._address)
