"""Messages over a wire: one frame for each, read straight into its memory, written from where it lies.  L2.

Source: performance.md sections 1 and 2 (no bytes objects in between; ``recv_into`` and ``sendmsg``).
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from eps.errors import DeadlineError, FrameError, PeerUnavailableError
from eps.van.api import ALIGNMENT_BYTES, Limits, Message, aligned_empty
from eps.van.arena import Arena, Lease, Mapping, Segment
from eps.van.frames import (
    FRAME_HEADER,
    HEAD_START,
    LENT,
    Described,
    Kind,
    Received,
    control,
    described_lengths,
    parse_description,
    parse_frame_header,
    whole,
)
from eps.van.wires import STALL_S, Buffer, Wire, advanced

#: Bytes that are read before anything is known of a message; a small one comes with one call.
_BUFFER_BYTES = 64 * 1024
_MOST_CONTROL_BYTES = 32 * 1024
#: Payloads up to this size share memory, of this size: whoever keeps such an array keeps a slab.
_SMALL_BYTES = 4 * 1024
_SLAB_BYTES = 64 * 1024
#: Descriptions that a connection remembers.
_MOST_DESCRIPTIONS = 256
_MOST_SEGMENTS = 4096
_SEGMENT = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")
_MESSAGES = frozenset((Kind.HELLO, Kind.REQUEST, Kind.REPLY, Kind.ERROR))
_TRANSPORT_KINDS = (Kind.SEGMENT, Kind.FORGET, Kind.RELEASE)
#: From here on an array is lent rather than copied through the socket.
LEND_BYTES = 32 * 1024


class StreamReader:
    """Reads the messages of one connection; used by one thread at a time.

    Parameters
    ----------
    wire : Wire
    limits : Limits
        Checked against what a frame announces, before memory is reserved for it.
    kinds : iterable of Kind
        The kinds of messages that this end may receive.
    lending : bool
        The peer may refer to its shared memory.
    returned : deque of int, optional
        Takes the number of each lease whose array is gone; None where the reply gives it back.
    on_release : callable, optional
        Takes the numbers of leases that the peer gives back.
    """

    def __init__(
        self,
        wire: Wire,
        limits: Limits,
        kinds: Iterable[Kind],
        *,
        lending: bool = False,
        returned: deque[int] | None = None,
        on_release: Callable[[tuple[int, ...]], None] | None = None,
    ) -> None:
        self._wire = wire
        self._limits = limits
        self._kinds = {int(kind): kind for kind in (*kinds, *(_TRANSPORT_KINDS if lending else ()))}
        self._lending = lending
        self._returned = returned
        self._on_release = on_release
        self._segments: dict[int, Mapping] = {}
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._stop = 0
        self._slab, self._slab_used = aligned_empty(0), 0
        self._descriptions: dict[bytes, tuple[list[Described], int]] = {}

    @property
    def buffered(self) -> bool:
        """True if some of the next message has been read already."""
        return self._stop > self._start or self._wire.pending

    def read(self) -> Received | None:
        """Return the next message; None where none began for :data:`eps.van.wires.STALL_S`.

        Raises
        ------
        PeerUnavailableError
            The peer ended the connection, or stalled in the middle of a message.
        FrameError
            What came is not a message, or breaks a limit.  The connection has no meaning any more.
        """
        while True:
            if self._stop - self._start < FRAME_HEADER.size and not self._fill(
                FRAME_HEADER.size, may_idle=self._stop == self._start
            ):
                return None
            kind, flags, request_id, body_bytes = parse_frame_header(self._buffer, self._kinds, self._start)
            if not flags:
                raise FrameError("a frame goes on with a message, but on a socket each message is one frame")
            if kind in _MESSAGES:
                return Received(kind, request_id, self._message(body_bytes))
            self._transport_frame(kind, body_bytes)

    def close(self) -> None:
        """Unmap the peer's segments, but for those that arrays still lie in."""
        self._segments.clear()

    def _fill(self, needed: int, may_idle: bool = False) -> bool:
        """Have at least ``needed`` bytes in the buffer."""
        while self._stop - self._start < needed:
            if self._start == self._stop:
                self._start = self._stop = 0
            if self._start + needed > len(self._buffer):
                self._make_room(needed)
            count = self._wire.receive(self._view[self._stop :])
            if not count:
                if may_idle and self._start == self._stop:
                    return False
                raise PeerUnavailableError(f"the peer stopped in the middle of a message for {STALL_S} s")
            self._stop += count
        return True

    def _make_room(self, needed: int) -> None:
        content = bytes(self._view[self._start : self._stop])
        if needed > len(self._buffer):
            self._buffer = bytearray(needed)
            self._view = memoryview(self._buffer)
        self._view[: len(content)] = content
        self._start, self._stop = 0, len(content)

    def _message(self, body_bytes: int) -> Message:
        if body_bytes > self._limits.max_message_bytes:
            raise FrameError(f"a message of {body_bytes} bytes, but {self._limits.max_message_bytes} is the limit")
        if self._stop - self._start < HEAD_START:
            self._fill(HEAD_START)
        header_bytes, described_bytes = described_lengths(self._buffer, self._limits, self._start)
        header_start = HEAD_START + described_bytes
        needed = header_start + header_bytes
        if self._stop - self._start < needed:
            self._fill(needed)
        start = self._start
        # The same few descriptions come again and again: they are read once.
        description = bytes(self._view[start + FRAME_HEADER.size : start + header_start])
        found = self._descriptions.get(description)
        if found is None:
            found = parse_description(description, self._lending)
            if len(self._descriptions) >= _MOST_DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[description] = found
        arrays, payload_bytes = found
        if needed - FRAME_HEADER.size + payload_bytes != body_bytes:
            raise FrameError(f"a body of {body_bytes} bytes is announced, but the message has others")
        header = bytes(self._view[start + header_start : start + needed])
        self._start = start + needed
        payload, base = self._payload(payload_bytes)
        return Message(header, tuple([self._array(array, payload, base) for array in arrays]))

    def _payload(self, size_bytes: int) -> tuple[np.ndarray, int]:
        """Return the memory that the payload was read into, and where in it."""
        if size_bytes <= _SMALL_BYTES:
            payload, base = self._small(size_bytes)
        else:
            payload, base = aligned_empty(size_bytes), 0
        if not size_bytes:
            return payload, base
        got = min(size_bytes, self._stop - self._start)
        view = payload.data
        view[base : base + got] = self._view[self._start : self._start + got]
        self._start += got
        while got < size_bytes:
            count = self._wire.receive(view[base + got : base + size_bytes], whole=True)
            if not count:
                raise PeerUnavailableError(f"the peer stopped in the middle of a message for {STALL_S} s")
            got += count
        return payload, base

    def _small(self, size_bytes: int) -> tuple[np.ndarray, int]:
        """Return a place in memory that small payloads share, which is cheaper than an array for each."""
        if self._slab_used + size_bytes > len(self._slab):
            self._slab, self._slab_used = aligned_empty(_SLAB_BYTES), 0
        base = self._slab_used
        self._slab_used += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return self._slab, base

    def _array(self, array: Described, payload: np.ndarray, base: int) -> np.ndarray:
        dtype, shape, offset, lent = array
        if not lent:
            return np.ndarray(shape, dtype, payload, base + offset)
        number, place, lease = LENT.unpack_from(payload.data, base + offset)
        mapping = self._segments.get(number)
        # Not NumPy's product, which wraps around: a peer could make any shape look small.
        size_bytes = math.prod(shape) * dtype.itemsize
        if mapping is None:
            raise FrameError(f"an array lies in segment {number}, which was never passed")
        if place + size_bytes > mapping.size_bytes or place % dtype.itemsize:
            raise FrameError(f"an array of {size_bytes} bytes at {place} of a segment of {mapping.size_bytes} bytes")
        return np.asarray(Lease(mapping, place, dtype, shape, lease, self._returned))

    def _transport_frame(self, kind: Kind, body_bytes: int) -> None:
        if not 0 < body_bytes <= _MOST_CONTROL_BYTES or body_bytes % _NUMBER.size:
            raise FrameError(f"a frame of kind {kind.name} with a body of {body_bytes} bytes")
        self._fill(FRAME_HEADER.size + body_bytes)
        body = bytes(self._view[self._start + FRAME_HEADER.size : self._start + FRAME_HEADER.size + body_bytes])
        self._start += FRAME_HEADER.size + body_bytes
        numbers = struct.unpack(f"<{body_bytes // _NUMBER.size}Q", body)
        if kind is Kind.SEGMENT:
            if len(numbers) != 2 or numbers[0] in self._segments or len(self._segments) >= _MOST_SEGMENTS:
                raise FrameError(f"a segment that is malformed, known, or beyond the {_MOST_SEGMENTS} that are allowed")
            descriptor = self._wire.take_descriptor()
            try:
                self._segments[numbers[0]] = Mapping(descriptor, numbers[1])
            finally:
                os.close(descriptor)
        elif kind is Kind.FORGET:
            for number in numbers:
                self._segments.pop(number, None)
        elif self._on_release is not None:
            self._on_release(numbers)
        else:
            raise FrameError("leases come back, but none were given")


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

    Nobody who sends ever waits for the peer, unless the connection's queue is full.

    Parameters
    ----------
    wire : Wire
    limits : Limits
    name : str
        Of the thread, which is started when it is first needed.
    on_broken : callable
        Takes the reason when sending fails.
    """

    def __init__(
        self, wire: Wire, limits: Limits, name: str, on_broken: Callable[[str], None], patience_s: float = 60.0
    ) -> None:
        self._wire = wire
        self._max_bytes = limits.max_outgoing_bytes
        self._name = name
        self._on_broken = on_broken
        self._patience_s = patience_s
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[_Queued] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def send(self, parts: Sequence[Part], size_bytes: int) -> bool:
        """Send ``parts`` one after the other, with nothing between them; return False where it is closed.

        Raises
        ------
        DeadlineError
            The queue stayed full.
        """
        with self._changed:
            if self._closed:
                return False
            if self._busy or self._queue:
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
                    self._waiting_bytes += size_bytes
                if self._queue:
                    self._wake()
                elif self._closed:
                    self._changed.notify_all()
        return True

    def await_room(self, size_bytes: int) -> None:
        """Wait until a message can be sent, for who cannot take back what it does to send one.

        Raises
        ------
        DeadlineError
            The queue stayed full.
        """
        with self._changed:
            if self._busy or self._queue:
                self._await_room(size_bytes)

    def _send_now(self, parts: Sequence[Part]) -> deque[Part] | None:
        """Send what goes without waiting; return what is left."""
        for i, part in enumerate(parts):
            if not _took(part, self._wire.send_now(part.pieces, part.descriptors)):
                return deque(parts[i:])
        return None

    def _await_room(self, size_bytes: int) -> None:
        deadline_s = time.monotonic() + self._patience_s
        while self._waiting_bytes and self._waiting_bytes + size_bytes > self._max_bytes and not self._closed:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise DeadlineError(
                    f"waited {self._patience_s} s for room for {size_bytes} bytes: {self._waiting_bytes} bytes wait to "
                    f"be sent to this peer, and {self._max_bytes} is the limit"
                )
            self._changed.wait(left_s)

    def _enqueue(self, queued: _Queued) -> None:
        self._queue.append(queued)
        self._waiting_bytes += queued.size_bytes
        self._wake()

    def _wake(self) -> None:
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            # Not before: one that could not be started is tried again.
            self._thread = thread
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._queue and not self._busy))
                if self._closed:
                    return
                self._busy = True
                queued = self._queue[0]
            try:
                while queued.parts:
                    part = queued.parts[0]
                    if _took(part, self._wire.send_some(part.pieces, part.descriptors)):
                        queued.parts.popleft()
            except OSError as error:
                self._on_broken(f"sending failed: {error}")
                return
            finally:
                with self._changed:
                    self._busy = False
                    if self._queue:
                        self._queue.popleft()
                        self._waiting_bytes -= queued.size_bytes
                    self._changed.notify_all()

    def close(self) -> None:
        """Drop what waits and end the thread, which must not be waiting for the wire any more."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()
            # Whoever sends now has the descriptor in hand: it must not be given back and mean another file.
            self._changed.wait_for(lambda: not self._busy, 5.0)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)


def _took(part: Part, sent: int) -> bool:
    """Note that ``sent`` bytes of a part have left; return True if it has left as a whole."""
    if sent == sum(map(len, part.pieces)):
        return True
    part.pieces = advanced(part.pieces, sent)
    if sent:
        part.descriptors = ()
    return not part.pieces


class Lender:
    """What one end of a connection has lent to the other.  Thread-safe.

    Parameters
    ----------
    arena : Arena
    limits : Limits
        Arrays that are not in the arena are copied there, up to ``max_outgoing_bytes`` that are not given back; beyond
        it they travel through the socket, whose queue is what slows a sender down.
    """

    def __init__(self, arena: Arena, limits: Limits) -> None:
        self._arena: Arena | None = arena
        self._max_copied_bytes = limits.max_outgoing_bytes
        self._lock = threading.Lock()
        #: Numbers of the segments that the peer has; a number is never used twice.
        self._passed: set[int] = set()
        self._gone: deque[int] = deque()
        #: Lease -> array, and its bytes where it is a copy that was made for the peer.
        self._lent: dict[int, tuple[np.ndarray, int]] = {}
        self._copied_bytes = 0
        self._next_lease = 1
        arena.on_segment_gone(self._gone.append)

    def lend(self, array: np.ndarray, leases: list[int], segments: list[Segment]) -> bytes | None:
        """Return the record of an array that the peer shall read where it lies, or None where it shall not.

        Parameters
        ----------
        leases : list of int
            Takes the number of the lease.
        segments : list of Segment
            Takes the segment, where the peer does not have it.
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
                # No more shared memory, or no descriptor for it: there is still the socket.
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
        """Return the transport's own frames that go before a message.

        From lending a message's arrays until it is sent, no other message of the connection may be: its arrays could
        rely on segments that were not passed yet.
        """
        parts = []
        gone = _drained(self._gone)
        with self._lock:
            gone = [number for number in gone if number in self._passed]
            self._passed.difference_update(gone)
            self._passed.update(segment.number for segment in segments)
        if gone:
            parts.append(Part([control(Kind.FORGET, struct.pack(f"<{len(gone)}Q", *gone))]))
        for segment in segments:
            frame = control(Kind.SEGMENT, _SEGMENT.pack(segment.number, segment.size_bytes))
            parts.append(Part([frame], (segment.descriptor,), (segment,)))
        back = _drained(returned) if returned else []
        for first in range(0, len(back), _MOST_CONTROL_BYTES // _NUMBER.size):
            numbers = back[first : first + _MOST_CONTROL_BYTES // _NUMBER.size]
            parts.append(Part([control(Kind.RELEASE, struct.pack(f"<{len(numbers)}Q", *numbers))]))
        return parts

    def parts_of(self, pieces: list[Buffer], segments: Sequence[Segment], returned: deque[int] | None) -> list[Part]:
        """Return a message with the transport's own frames before it, in as few parts as can be."""
        before = self.parts_before(segments, returned)
        if segments or not before:
            return [*before, Part(pieces)]
        first = b"".join([piece for part in before for piece in (*part.pieces,)] + [pieces[0]])
        return [Part([first, *pieces[1:]])]

    def give_back(self, leases: Iterable[int]) -> None:
        """Take arrays back; numbers that were never lent are ignored."""
        dropped = []
        with self._lock:
            for lease in leases:
                found = self._lent.pop(lease, None)
                if found is not None:
                    dropped.append(found[0])
                    self._copied_bytes -= found[1]

    def close(self) -> None:
        """Take everything back.  The peer may still be reading, so that none of it is written again."""
        with self._lock:
            arena, self._arena = self._arena, None
            lent, self._lent = self._lent, {}
            self._passed.clear()
        if arena is not None:
            arena.forget_listener(self._gone.append)
        for array, _ in lent.values():
            Arena.retire(array)


class LendingWriter:
    """Sends messages whose large arrays the peer reads where they lie.  Thread-safe.

    Parameters
    ----------
    writer : StreamWriter
    lender : Lender
    returned : deque of int, optional
        Leases of the peer that are to be given back with the next message.
    """

    def __init__(self, writer: StreamWriter, lender: Lender, returned: deque[int] | None = None) -> None:
        self._writer = writer
        self._lender = lender
        self._returned = returned
        # A segment that is noted as passed must have left before another message relies on it.
        self._sending = threading.Lock()

    def send(
        self, message: Message, size_bytes: int, request_id: int, kind: Kind, lent: dict[int, list[int]] | None = None
    ) -> None:
        """Send a message as one frame; ``lent``, where given, has the leases of its arrays under its id.

        Raises
        ------
        DeadlineError
            The queue stayed full; nothing is lent.
        """
        leases: list[int] = []
        segments: list[Segment] = []

        def lend(array: np.ndarray) -> bytes | None:
            return self._lender.lend(array, leases, segments)

        with self._sending:
            # Now, while nothing is lent.
            self._writer.await_room(size_bytes)
            try:
                pieces = whole(message, request_id, kind, lend)
            except BaseException:
                self._lender.give_back(leases)
                raise
            if leases and lent is not None:
                lent[request_id] = leases
            self._writer.send(self._lender.parts_of(pieces, segments, self._returned), size_bytes)

    def send_returned(self) -> None:
        """Give back the peer's leases now; raises as :meth:`send`."""
        with self._sending:
            self._writer.send(self._lender.parts_before((), self._returned), 0)


def _drained(numbers: deque[int]) -> list[int]:
    found = []
    while numbers:
        found.append(numbers.popleft())
    return found
