"""Writing to one connection from any thread: what the socket takes at once, and the rest by a thread of its own.  L2.

Source: performance.md sections 1 and 2 (no bytes objects in between; ``sendmsg`` from where a message lies).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eps.errors import DeadlineError
from eps.net.arrays.api import Limits
from eps.net.arrays.wires import LEAST_BYTES, STALL_S, Buffer, Progress, Wire, advanced

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Part:
    """Pieces that leave together."""

    pieces: list[Buffer]
    descriptors: tuple[int, ...] = ()
    #: What must stay alive until the pieces have left.
    keep: tuple[object, ...] = ()


@dataclass(slots=True)
class _Queued:
    parts: deque[Part] = field(default_factory=deque)
    size_bytes: int = 0


class StreamWriter:
    """Writes to one connection, from any thread: at once what the socket takes, the rest by a thread of its own.

    Who sends never waits for the peer, unless the connection's queue is full; where ``senders_wait`` is false, not even
    then.

    Parameters
    ----------
    wire : Wire
    limits : Limits
    name : str
        Of the thread, which is started when it is first needed.
    on_broken : callable
        Takes the reason when sending fails.
    patience_s : float, seconds
        How long a sender waits while the queue is full.
    senders_wait : bool
        False where senders have others to serve: then :meth:`await_taken` is what keeps the queue short.
    on_waiting : callable, optional
        Called with 1 when a thread begins to wait for room and with -1 when that ends; must not wait itself.

    Attributes
    ----------
    waiting_bytes : int
        Of the messages that have not left as a whole.
    """

    def __init__(
        self,
        wire: Wire,
        limits: Limits,
        name: str,
        on_broken: Callable[[str], None],
        patience_s: float = 60.0,
        *,
        senders_wait: bool = True,
        on_waiting: Callable[[int], None] = lambda change: None,
    ) -> None:
        self._wire = wire
        self._max_bytes = limits.max_outgoing_bytes
        self._name = name
        self._on_broken = on_broken
        self._patience_s = patience_s
        self._senders_wait = senders_wait
        self._on_waiting = on_waiting
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[_Queued] = deque()
        self.waiting_bytes = 0
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def send_frame(self, frame: bytes) -> bool:
        """Send a small frame; as :meth:`send`, with nothing made for it where it leaves at once."""
        sent = -1
        try:
            with self._lock:
                if not (self._busy or self._queue or self._closed):
                    # Under the lock: it does not wait, and a small frame is copied in no time.
                    sent = self._wire.send_now((frame,))
                    if sent < len(frame):
                        rest = Part([memoryview(frame)[sent:]])
                        self._queue.append(_Queued(deque((rest,)), len(frame)))
                        self.waiting_bytes += len(frame)
        except OSError as error:
            self._on_broken(f"sending failed: {error}")
            return True
        except BaseException as error:
            self._on_broken(f"sending was interrupted: {type(error).__name__}")
            raise
        if sent == len(frame):
            return True
        if sent < 0:
            return self.send((Part([frame]),), len(frame))
        with self._lock:
            self._wake()
        return True

    def send(self, parts: Sequence[Part], size_bytes: int, *, has_waited: bool = False) -> bool:
        """Send ``parts`` one after the other, with nothing between them; return False where it is closed.

        ``has_waited`` says that :meth:`await_room` let the message through: it is sent also where small ones of other
        threads have taken the room meanwhile.

        Raises
        ------
        DeadlineError
            The queue stayed full.
        """
        with self._changed:
            if self._closed:
                return False
            if self._busy or self._queue:
                if self._senders_wait and not has_waited:
                    self._await_room(size_bytes)
                if self._closed:
                    return False
                self._enqueue(_Queued(deque(parts), size_bytes))
                return True
            self._busy = True
        left: deque[Part] | None = None
        try:
            left = self._send_now(parts)
        except OSError as error:
            self._on_broken(f"sending failed: {error}")
        except BaseException as error:
            # An interrupt, say: what left may be half a message, and nothing can follow it.
            self._on_broken(f"sending was interrupted: {type(error).__name__}")
            raise
        finally:
            with self._changed:
                self._busy = False
                if left and not self._closed:
                    self._queue.appendleft(_Queued(left, size_bytes))
                    self.waiting_bytes += size_bytes
                if self._queue:
                    self._wake()
                elif self._closed:
                    self._changed.notify_all()
        return True

    def await_room(self, size_bytes: int) -> None:
        """Wait, where senders do, until a message can be sent, for who cannot take back what it does to send one.

        Raises
        ------
        DeadlineError
            The queue stayed full.
        """
        with self._changed:
            if self._senders_wait and (self._busy or self._queue):
                self._await_room(size_bytes)

    def await_taken(self) -> None:
        """Wait until no more than the limit waits to be sent, for who makes others send; raises as :meth:`send`."""
        with self._changed:
            self._await_room(0)

    def _send_now(self, parts: Sequence[Part]) -> deque[Part] | None:
        """Send what goes without waiting; return what is left."""
        for i, part in enumerate(parts):
            if not _took(part, self._wire.send_now(part.pieces, part.descriptors)):
                return deque(parts[i:])
        return None

    def _await_room(self, size_bytes: int) -> None:
        if not self.waiting_bytes or self.waiting_bytes + size_bytes <= self._max_bytes:
            return
        deadline_s = time.monotonic() + self._patience_s
        try:
            self._on_waiting(1)
            # One message always may wait, however long it is.
            while self.waiting_bytes and self.waiting_bytes + size_bytes > self._max_bytes:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise DeadlineError(
                        f"waited {self._patience_s:g} s for room for {size_bytes} bytes: {self.waiting_bytes} bytes "
                        f"wait to be sent to this peer, and {self._max_bytes} is the limit"
                    )
                self._changed.wait(left_s)
        finally:
            self._on_waiting(-1)

    def _enqueue(self, queued: _Queued) -> None:
        self._queue.append(queued)
        self.waiting_bytes += queued.size_bytes
        self._wake()

    def _wake(self) -> None:
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            # Not before: one that could not be started is tried again.
            self._thread = thread
        self._changed.notify_all()

    def _run(self) -> None:
        progress = Progress()
        while True:
            with self._changed:
                if not self._queue:
                    self._changed.wait_for(lambda: self._closed or self._queue)
                    progress.begin()
                self._changed.wait_for(lambda: self._closed or not self._busy)
                if self._closed:
                    return
                self._busy = True
                queued = self._queue[0]
            try:
                self._send_all(queued.parts, progress)
            except BaseException as error:
                # Of any kind: half a message may have left, and nothing can follow it.
                with self._changed:
                    # A thread that waits for room must not wait for a connection that is gone.
                    self._closed = True
                    self._queue.clear()
                    waiting_bytes, self.waiting_bytes = self.waiting_bytes, 0
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    logger.warning(
                        "a connection is ended while %d bytes wait to be sent: %s: %s",
                        waiting_bytes,
                        type(error).__name__,
                        error,
                    )
                self._on_broken(f"sending failed: {type(error).__name__}: {error}")
                return
            finally:
                with self._changed:
                    self._busy = False
                    if self._queue:
                        self._queue.popleft()
                        self.waiting_bytes -= queued.size_bytes
                    self._changed.notify_all()

    def _send_all(self, parts: deque[Part], progress: Progress) -> None:
        """Send parts, waiting for the peer as long as it goes on taking them."""
        while parts:
            sent = self._wire.send_some(parts[0].pieces, parts[0].descriptors)
            if _took(parts[0], sent):
                parts.popleft()
            if progress.stalled(sent):
                raise TimeoutError(f"the peer took less than {LEAST_BYTES} bytes in {STALL_S} s")

    def close(self, timeout_s: float = 5.0) -> None:
        """Drop what waits and end the thread, which must not be waiting for the wire any more."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._closed = True
            self._queue.clear()
            self.waiting_bytes = 0
            self._changed.notify_all()
            # A thread that sends now has the descriptor in hand: it must not be given back and mean another file.
            self._changed.wait_for(lambda: not self._busy, timeout_s)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _took(part: Part, sent: int) -> bool:
    """Note that ``sent`` bytes of a part have left; return True if it has left as a whole."""
    if sent == sum(map(len, part.pieces)):
        return True
    part.pieces = advanced(part.pieces, sent)
    if sent:
        part.descriptors = ()
    return not part.pieces
