"""Messages waiting to be sent on one connection, bounded by bytes.  L2."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue

from eps.net.arrays.api import Limits, Message
from eps.net.arrays.frames import Kind, encode
from eps.net.arrays.room import await_room


class Outbox:
    """A queue that many threads fill and one writer empties, frame by frame.

    A message of several frames is encoded while it is sent: its frames never exist all at once.

    Parameters
    ----------
    limits : Limits
    patience_s : float, seconds
        How long somebody waits while the queue is full.
    senders_wait : bool
        False where senders have others to serve: then :meth:`await_taken` is what keeps the queue short.

    Attributes
    ----------
    waiting_bytes : int
        Of the messages that have not left as a whole.
    """

    def __init__(self, limits: Limits, patience_s: float = 60.0, *, senders_wait: bool = True) -> None:
        self._max_bytes = limits.max_outgoing_bytes
        self._patience_s = patience_s
        self._senders_wait = senders_wait
        self._space = threading.Condition()
        self.waiting_bytes = 0
        self._closed = False
        # None ends the writer.
        self._queue: SimpleQueue[tuple[Iterable[bytes], int] | None] = SimpleQueue()

    def put(self, message: Message, size_bytes: int, request_id: int, kind: Kind) -> bool:
        """Queue a message; return False, and drop it, where the outbox is closed.

        ``size_bytes`` is what :func:`eps.net.arrays.frames.check_message` returned for it.

        Raises
        ------
        DeadlineError
            The queue stayed full.
        """
        frames = encode(message, request_id, kind)
        with self._space:
            if self._senders_wait:
                self._await_room(size_bytes)
            if self._closed:
                return False
            self.waiting_bytes += size_bytes
            self._queue.put((frames, size_bytes))
        return True

    def await_taken(self) -> None:
        """Wait until no more than the limit waits to be sent, for who makes others send; raises as :meth:`put`."""
        with self._space:
            self._await_room(0)

    def _await_room(self, size_bytes: int) -> None:
        def waiting_bytes() -> int:
            return 0 if self._closed else self.waiting_bytes

        await_room(self._space, waiting_bytes, size_bytes, self._max_bytes, self._patience_s)

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
                self.waiting_bytes -= size_bytes
                self._space.notify_all()
