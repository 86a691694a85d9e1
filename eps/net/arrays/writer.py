"""Sending messages over a socket: small ones as one buffer, large ones from their own memory, or lent.

:class:`MessageWriter` builds the frame of a message.  :class:`Lender` lends large arrays in shared memory, where the
peer reads them.  :class:`StreamWriter` sends from any thread what the socket takes at once; its own thread sends the
rest.

Source: performance.md sections 1 and 2 (no bytes objects in between; ``sendmsg`` from a message's own memory).
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field

import numpy as np

from eps.errors import DeadlineError
from eps.net.arrays.api import Limits, Message
from eps.net.arrays.frames import LENT, MOST_CONTROL_BYTES, Kind, SmallFrames, check_message, control, sealed, whole
from eps.net.arrays.memory import Arena, Reader, Segment
from eps.net.arrays.wires import LEAST_BYTES, STALL_S, Buffer, Progress, Wire, advanced

logger = logging.getLogger(__name__)

#: Arrays of this size or more are lent instead of copied through the socket.
LEND_BYTES = 32 * 1024
_SEGMENT = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")


@dataclass(slots=True)
class Part:
    """Pieces that are sent together."""

    pieces: list[Buffer]
    descriptors: tuple[int, ...] = ()
    #: Objects to keep alive until the pieces are sent.
    keep: tuple[object, ...] = ()


@dataclass(slots=True)
class _Queued:
    parts: deque[Part] = field(default_factory=deque)
    size_bytes: int = 0


class StreamWriter:
    """Write to one connection: from any thread what the socket takes at once, the rest on its own thread.

    A sender waits for the peer only if the connection's queue is full, and never if ``senders_wait`` is false.

    Parameters
    ----------
    wire : Wire
    limits : Limits
    name : str
        Name of the thread, which is started on demand.
    on_broken : callable
        Called with the reason when sending fails.
    patience_s : float, seconds
        How long a sender waits while the queue is full.
    senders_wait : bool
        False if senders serve other peers too; then :meth:`await_taken` bounds the queue.
    on_waiting : callable, optional
        Called with 1 when a thread begins to wait for room and with -1 when it stops; must not block.

    Attributes
    ----------
    waiting_bytes : int
        Bytes of the messages that are not completely sent.
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
        #: Whether a thread is sending, outside the lock; it may continue after the close.
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def send_frame(self, frame: bytes) -> bool:
        """Send a small frame, as :meth:`send` does; allocates nothing if the socket takes it at once."""
        sent = -1
        try:
            with self._lock:
                if not (self._busy or self._queue or self._closed):
                    # Under the lock: it does not block, and copying a small frame is fast.
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
        """Send ``parts`` in order, with nothing in between; return False if the writer is closed.

        ``has_waited`` means that :meth:`await_room` has admitted the message: it does not wait again, even if other
        threads have filled the queue meanwhile.

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
            # For example an interrupt: the message may be sent in part, so nothing can follow it.
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
        """Wait until the queue admits a message, unless senders never wait; for a caller that cannot undo its
        preparations.

        Raises
        ------
        DeadlineError
            The queue stayed full.
        """
        with self._changed:
            if self._senders_wait and (self._busy or self._queue):
                self._await_room(size_bytes)

    def await_taken(self) -> None:
        """Wait until the queue is within its limit; for a listener, whose replies never wait.

        Raises the errors of :meth:`send`.
        """
        with self._changed:
            self._await_room(0)

    def _send_now(self, parts: Sequence[Part]) -> deque[Part] | None:
        """Send what the socket takes without waiting; return the rest."""
        for i, part in enumerate(parts):
            if not _advance(part, self._wire.send_now(part.pieces, part.descriptors)):
                return deque(parts[i:])
        return None

    def _await_room(self, size_bytes: int) -> None:
        if not self.waiting_bytes or self.waiting_bytes + size_bytes <= self._max_bytes:
            return
        deadline_s = time.monotonic() + self._patience_s
        try:
            self._on_waiting(1)
            # A single message is always admitted, whatever its length.
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
            # Not before the start: a failed start is retried.
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
                # Any exception: the message may be sent in part, so nothing can follow it.
                with self._changed:
                    # Threads must not wait for room on a broken connection.
                    self._closed = True
                    self._queue.clear()
                    waiting_bytes, self.waiting_bytes = self.waiting_bytes, 0
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    logger.warning(
                        "a connection was closed with %d unsent bytes: %s: %s",
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
        """Send parts, waiting for the peer while it makes progress."""
        while parts:
            sent = self._wire.send_some(parts[0].pieces, parts[0].descriptors)
            if _advance(parts[0], sent):
                parts.popleft()
            if progress.stalled(sent):
                raise TimeoutError(f"the peer took less than {LEAST_BYTES} bytes in {STALL_S} s")

    def close(self, timeout_s: float = 5.0) -> None:
        """Drop the queue and end the thread, which must not be waiting for the wire."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._closed = True
            self._queue.clear()
            self.waiting_bytes = 0
            self._changed.notify_all()
            # A sending thread uses the descriptor: the caller must not close it now, since its number may be reused.
            self._changed.wait_for(lambda: not self._busy, timeout_s)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _advance(part: Part, sent: int) -> bool:
    """Remove ``sent`` bytes from a part; return whether it was sent completely."""
    if sent == sum(map(len, part.pieces)):
        return True
    part.pieces = advanced(part.pieces, sent)
    if sent:
        part.descriptors = ()
    return not part.pieces


class Lender:
    """The arrays that one end of a connection has lent to the other.  Thread-safe.

    Parameters
    ----------
    arena : Arena
    peer_pid : int
        Process at the other end; 0 if unknown.
    limits : Limits
        Arrays outside the arena are copied into it, up to ``max_outgoing_bytes`` of copies that were not returned.
        Beyond that they are sent through the socket, whose queue applies backpressure.
    """

    def __init__(self, arena: Arena, peer_pid: int, limits: Limits) -> None:
        self._arena: Arena | None = arena
        self._peer_pid = peer_pid
        self._max_copied_bytes = limits.max_outgoing_bytes
        self._lock = threading.Lock()
        #: Segments that the peer has; numbers are never reused.
        self._passed: set[int] = set()
        #: Segments that the arena has dropped; the next message tells the peer.
        self.gone: deque[int] = deque()
        #: Lease -> array, and its size if it is a copy made for the peer.
        self._lent: dict[int, tuple[np.ndarray, int]] = {}
        #: Request -> leases of its arrays, which its reply returns.
        self.requests: dict[int, list[int]] = {}
        self._copied_bytes = 0
        self._next_lease = 1
        arena.on_segment_gone(self.gone.append)

    def lend(self, array: np.ndarray, leases: list[int], segments: list[Segment]) -> bytes | None:
        """Lend an array and return its record, or None if it must be sent through the socket.

        Parameters
        ----------
        leases : list of int
            Receives the lease.
        segments : list of Segment
            Receives the segment if the peer does not have it.
        """
        arena = self._arena
        if array.nbytes < LEND_BYTES or arena is None:
            return None
        place = arena.find(array)
        copied_bytes = 0
        if place is None:
            if self._copied_bytes + array.nbytes > self._max_copied_bytes and self._copied_bytes:
                return None
            try:
                array, copied_bytes = arena.copy(array), array.nbytes
            except MemoryError:
                # No shared memory or descriptor left: fall back to the socket.
                return None
            place = arena.find(array)
            assert place is not None
        segment, offset = place
        with self._lock:
            lease = self._next_lease
            self._next_lease += 1
            self._lent[lease] = array, copied_bytes
            self._copied_bytes += copied_bytes
            leases.append(lease)
            if segment.number not in self._passed and segment not in segments:
                segments.append(segment)
        return LENT.pack(segment.number, offset, lease)

    def parts_before(self, segments: Sequence[Segment], returned: deque[int] | None) -> list[Part]:
        """Return the transport's own frames that must precede a message.

        Between lending a message's arrays and sending it, the connection must not send another message, which could
        refer to segments that the peer does not have yet.
        """
        parts = []
        gone = _drained(self.gone)
        with self._lock:
            gone = [number for number in gone if number in self._passed]
            self._passed.difference_update(gone)
        if gone:
            parts.append(Part([control(Kind.FORGET, struct.pack(f"<{len(gone)}Q", *gone))]))
        for segment in segments:
            frame = control(Kind.SEGMENT, _SEGMENT.pack(segment.number, segment.size_bytes))
            parts.append(Part([frame], (segment.descriptor,), (segment,)))
        back = _drained(returned) if returned else []
        for first in range(0, len(back), MOST_CONTROL_BYTES // _NUMBER.size):
            numbers = back[first : first + MOST_CONTROL_BYTES // _NUMBER.size]
            parts.append(Part([control(Kind.RELEASE, struct.pack(f"<{len(numbers)}Q", *numbers))]))
        with self._lock:
            # Last: if memory ran out above, they are not sent.
            self._passed.update([segment.number for segment in segments])
        return parts

    def parts_of(self, pieces: list[Buffer], segments: Sequence[Segment], returned: deque[int] | None) -> list[Part]:
        """Return a message and the frames that precede it, in as few parts as possible."""
        before = self.parts_before(segments, returned)
        if segments or not before:
            return [*before, Part(pieces)]
        first = b"".join([piece for part in before for piece in (*part.pieces,)] + [pieces[0]])
        return [Part([first, *pieces[1:]])]

    def give_back(self, leases: Iterable[int]) -> None:
        """Accept returned leases; unknown numbers are ignored."""
        dropped = []
        with self._lock:
            for lease in leases:
                found = self._lent.pop(lease, None)
                if found is not None:
                    dropped.append(found[0])
                    self._copied_bytes -= found[1]

    def on_reply(self, request_id: int) -> None:
        """End the leases of a request's arrays, if it had any."""
        leases = self.requests.pop(request_id, None)
        if leases:
            self.give_back(leases)

    def close(self) -> None:
        """End all leases.  The arena does not reuse their memory while the peer's process runs: it may read it."""
        with self._lock:
            arena, self._arena = self._arena, None
            lent, self._lent = self._lent, {}
            self._passed.clear()
        if arena is not None:
            arena.forget_listener(self.gone.append)
        if lent:
            reader = Reader(self._peer_pid)
            for array, _ in lent.values():
                Arena.retire(array, reader)


def _drained(numbers: deque[int]) -> list[int]:
    found = []
    while numbers:
        found.append(numbers.popleft())
    return found


class MessageWriter:
    """Send the messages of one end of a connection.  Thread-safe.

    Parameters
    ----------
    writer : StreamWriter
    limits : Limits
    lender : Lender, optional
        If the transport has shared memory: lends large arrays, which the peer reads in place.
    returned : deque of int, optional
        Leases to return to the peer with the next message.
    """

    def __init__(
        self,
        writer: StreamWriter,
        limits: Limits,
        lender: Lender | None = None,
        returned: deque[int] | None = None,
    ) -> None:
        self._writer = writer
        self._limits = limits
        self._lender = lender
        self._returned = returned
        self._small = SmallFrames(limits)
        #: What the next message reports to the peer, if anything.
        self._leases_back: Sized = () if lender is None or returned is None else returned
        self._segments_gone: Sized = () if lender is None else lender.gone
        # A segment that counts as passed must be sent before another message refers to it.
        self._lending = threading.Lock()

    def send(self, message: Message, request_id: int, kind: Kind) -> None:
        """Send a message as one frame.

        Raises
        ------
        ProtocolError
            A van cannot carry the message.
        DeadlineError
            The queue stayed full; nothing was lent.
        """
        frame = None if message.seal is not None else self._small.frame(message, request_id, kind)
        if frame is not None and not self._leases_back and not self._segments_gone:
            self._writer.send_frame(frame)
            return
        message = sealed(message)
        size_bytes = check_message(message, self._limits)
        if self._lender is None:
            self._writer.send((Part(whole(message, request_id, kind)),), size_bytes)
        else:
            self._send_lending(self._lender, message, size_bytes, request_id, kind)

    def _send_lending(self, lender: Lender, message: Message, size_bytes: int, request_id: int, kind: Kind) -> None:
        leases: list[int] = []
        segments: list[Segment] = []

        def lend(array: np.ndarray) -> bytes | None:
            return lender.lend(array, leases, segments)

        with self._lending:
            # Wait before anything is lent.
            self._writer.await_room(size_bytes)
            try:
                pieces = whole(message, request_id, kind, lend)
                parts = lender.parts_of(pieces, segments, self._returned)
            except BaseException:
                lender.give_back(leases)
                raise
            if leases and kind is Kind.REQUEST:
                lender.requests[request_id] = leases
            # The segments count as passed: from here on the message is sent, or the connection ends.
            self._writer.send(parts, size_bytes, has_waited=True)

    def send_returned(self, timeout_s: float) -> None:
        """Return the peer's leases now, if any; give up if another thread holds the lock for ``timeout_s``."""
        if self._lender is not None and self._leases_back and self._lending.acquire(timeout=timeout_s):
            try:
                self._writer.send(self._lender.parts_before((), self._returned), 0, has_waited=True)
            finally:
                self._lending.release()
