"""Messages waiting to be sent on one connection, bounded by bytes.  L2."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from queue import SimpleQueue

from eps.errors import DeadlineError
from eps.van.api import Limits, Message
from eps.van.frames import Kind, encode


class Outbox:
    """A queue that many threads fill and one writer empties, frame by frame.

    A message of several frames is encoded while it is sent: its frames never exist all at once.

    Parameters
    ----------
    limits : Limits
    patience_s : float, seconds
        How long a sender waits while the queue is full.
    """

    def __init__(self, limits: Limits, patience_s: float = 60.0) -> None:
        self._max_bytes = limits.max_outgoing_bytes
        self._patience_s = patience_s
        self._space = threading.Condition()
        self._waiting_bytes = 0
        self._closed = False
        # None ends the writer.
        self._queue: SimpleQueue[tuple[Iterable[bytes], int] | None] = SimpleQueue()

    def put(self, message: Message, size_bytes: int, request_id: int, kind: Kind) -> bool:
        """Queue a message; return False, and drop it, where the outbox is closed.

        ``size_bytes`` is what :func:`eps.van.frames.check_message` returned for it.

        Raises
        ------
        DeadlineError
            The queue stayed full.
        """
        frames = encode(message, request_id, kind)
        with self._space:
            if self._waiting_bytes and self._waiting_bytes + size_bytes > self._max_bytes:
                self._await_space(size_bytes)
            if self._closed:
                return False
            self._waiting_bytes += size_bytes
            self._queue.put((frames, size_bytes))
        return True

    def _await_space(self, size_bytes: int) -> None:
        deadline_s = time.monotonic() + self._patience_s
        while self._waiting_bytes and self._waiting_bytes + size_bytes > self._max_bytes and not self._closed:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise DeadlineError(
                    f"waited {self._patience_s} s for room for {size_bytes} bytes: {self._waiting_bytes} bytes wait to "
                    f"be sent to this peer, and {self._max_bytes} is the limit"
                )
            self._space.wait(left_s)

    def close(self) -> None:
        """End the writer and wake the senders; what still waits is dropped."""
        with self._space:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
                self._space.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        """Yield frames to send, for the one writer; ends when the outbox is closed."""
        while (entry := self._queue.get()) is not None:
            frames, size_bytes = entry
            for frame in frames:
                if self._closed:
                    return
                yield frame
            with self._space:
                self._waiting_bytes -= size_bytes
                self._space.notify_all()
