"""Messages over a wire: one frame for each, read straight into its memory, written from where it lies.  L2.

Source: performance.md sections 1 and 2 (no bytes objects in between; ``recv_into`` and ``sendmsg``).
"""

from __future__ import annotations

import math
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from eps.errors import FrameError, PeerUnavailableError
from eps.van.api import ALIGNMENT_BYTES, Limits, Message, aligned_empty
from eps.van.arena import Lease, Mapping
from eps.van.frames import (
    BEGINNING_BYTES,
    FRAME_HEADER,
    HEAD_START,
    LENGTH_START,
    LENT,
    Described,
    Description,
    Kind,
    beginning_of,
    described_lengths,
    parse_description,
    parse_frame_header,
)
from eps.van.room import await_room
from eps.van.wires import STALL_S, Buffer, Wire, advanced

#: Bytes that are read before anything is known of a message; a small one comes with one call.
_BUFFER_BYTES = 64 * 1024
#: Longest frame of the transport's own.
MOST_CONTROL_BYTES = 32 * 1024
#: Payloads up to this size share memory, of this size: whoever keeps such an array keeps a slab.
_SMALL_BYTES = 4 * 1024
_SLAB_BYTES = 64 * 1024
#: Descriptions that a connection remembers.
_MOST_DESCRIPTIONS = 256
_MOST_SEGMENTS = 4096
_NUMBER = struct.Struct("<Q")
_MESSAGES = frozenset((Kind.HELLO, Kind.REQUEST, Kind.REPLY, Kind.ERROR))
_TRANSPORT_KINDS = (Kind.SEGMENT, Kind.FORGET, Kind.RELEASE)


class _Known(NamedTuple):
    """What messages of the same lengths, types and shapes have in common."""

    #: Beginning of the frame, request id, description, header bytes.
    fields: struct.Struct
    #: With the length of the body before it.
    description: bytes
    described: Description


_NOTHING = _Known(struct.Struct(f"<{BEGINNING_BYTES}sQ0s0s"), b"nothing is described so", Description([], 0, False))


class StreamReader:
    """Reads the messages of one connection; used by one thread at a time.

    Source: V. Jacobson, "4BSD TCP header prediction", Computer Communication Review 20(2), 1990: a message that begins
    like the one before it is recognised by a comparison and not taken apart.

    Parameters
    ----------
    wire : Wire
    limits : Limits
        Checked against what a frame announces, before memory is reserved for it.
    kinds : sequence of Kind
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
        kinds: Sequence[Kind],
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
        self._slab, self._slab_used = aligned_empty(_SLAB_BYTES).data, 0
        self._beginnings = {beginning_of(kind): kind for kind in kinds}
        #: The same few descriptions come again and again: each is read once.
        self._known: dict[bytes, _Known] = {}
        #: That of the message before: most messages are like it, which one comparison finds out.
        self._expected = _NOTHING

    @property
    def buffered(self) -> bool:
        """True if some of the next message has been read already."""
        return self._stop > self._start or self._wire.pending

    def read(self) -> tuple[Kind, int, Message] | None:
        """Return kind, request id and message of the next one; None where none began for :data:`wires.STALL_S`.

        Raises
        ------
        PeerUnavailableError
            The peer ended the connection, or stalled in the middle of a message.
        FrameError
            What came is not a message, or breaks a limit.  The connection has no meaning any more.
        """
        while True:
            if self._start == self._stop:
                # A small message comes as a whole with this one call.
                self._start, self._stop = 0, self._wire.receive(self._view)
                if not self._stop:
                    return None
            fields, expected, described = self._expected
            if self._stop - self._start >= fields.size:
                beginning, request_id, description, header = fields.unpack_from(self._buffer, self._start)
                kind = self._beginnings.get(beginning)
                if description == expected and kind is not None:
                    # Only the request, the header's bytes and the payload are new: all else was checked before.
                    self._start += fields.size
                    return kind, request_id, self._message(header, described)
            if self._stop - self._start < FRAME_HEADER.size:
                self._fill(FRAME_HEADER.size)
            kind, flags, request_id, body_bytes = parse_frame_header(self._buffer, self._kinds, self._start)
            if not flags:
                raise FrameError("a frame goes on with a message, but on a socket each message is one frame")
            if kind in _MESSAGES:
                return kind, request_id, self._message(*self._head(body_bytes))
            self._transport_frame(kind, body_bytes)

    def close(self) -> None:
        """Unmap the peer's segments, but for those that arrays still lie in."""
        self._segments.clear()

    def _fill(self, needed: int) -> None:
        """Have at least ``needed`` bytes in the buffer."""
        while self._stop - self._start < needed:
            if self._start == self._stop:
                self._start = self._stop = 0
            if self._start + needed > len(self._buffer):
                self._make_room(needed)
            count = self._wire.receive(self._view[self._stop :])
            if not count:
                raise PeerUnavailableError(f"the peer stopped in the middle of a message for {STALL_S} s")
            self._stop += count

    def _make_room(self, needed: int) -> None:
        content = bytes(self._view[self._start : self._stop])
        if needed > len(self._buffer):
            self._buffer = bytearray(needed)
            self._view = memoryview(self._buffer)
        self._view[: len(content)] = content
        self._start, self._stop = 0, len(content)

    def _head(self, body_bytes: int) -> tuple[bytes, Description]:
        """Take what comes before a message's payload: its header bytes and its description, both checked."""
        if body_bytes > self._limits.max_message_bytes:
            raise FrameError(f"a message of {body_bytes} bytes, but {self._limits.max_message_bytes} is the limit")
        self._fill(HEAD_START)
        header_bytes, described_bytes = described_lengths(self._buffer, self._limits, self._start)
        header_start = HEAD_START + described_bytes
        self._fill(header_start + header_bytes)
        start = self._start
        description = bytes(self._view[start + LENGTH_START : start + header_start])
        known = self._known.get(description)
        if known is None:
            described = parse_description(description[FRAME_HEADER.size - LENGTH_START :], self._lending)
            if header_start + header_bytes - FRAME_HEADER.size + described.payload_bytes != body_bytes:
                raise FrameError(f"a body of {body_bytes} bytes is announced, but the message has others")
            fields = struct.Struct(f"<{BEGINNING_BYTES}sQ{len(description)}s{header_bytes}s")
            known = _Known(fields, description, described)
            if len(self._known) >= _MOST_DESCRIPTIONS:
                self._known.clear()
            self._known[description] = known
        self._expected = known
        self._start = start + header_start + header_bytes
        return bytes(self._view[start + header_start : self._start]), known.described

    def _message(self, header: bytes, described: Description) -> Message:
        """Take a message's payload."""
        if not described.arrays:
            return Message(header)
        payload, base = self._payload(described.payload_bytes)
        if described.lends:
            return Message(header, tuple([self._array(array, payload, base) for array in described.arrays]))
        if len(described.arrays) == 1:
            dtype, shape, offset, _ = described.arrays[0]
            return Message(header, (np.ndarray(shape, dtype, payload, base + offset),))
        arrays = [np.ndarray(shape, dtype, payload, base + offset) for dtype, shape, offset, _ in described.arrays]
        return Message(header, tuple(arrays))

    def _payload(self, size_bytes: int) -> tuple[memoryview, int]:
        """Return the memory that the payload was read into, and where in it."""
        if size_bytes <= _SMALL_BYTES:
            # Small payloads share memory, which is cheaper than an array for each.
            base = self._slab_used
            if base + size_bytes > _SLAB_BYTES:
                self._slab, base = aligned_empty(_SLAB_BYTES).data, 0
            memory = self._slab
            self._slab_used = base + -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        else:
            memory, base = aligned_empty(size_bytes).data, 0
        start = self._start
        got = min(size_bytes, self._stop - start)
        memory[base : base + got] = self._view[start : start + got]
        self._start = start + got
        while got < size_bytes:
            count = self._wire.receive(memory[base + got : base + size_bytes], whole=True)
            if not count:
                raise PeerUnavailableError(f"the peer stopped in the middle of a message for {STALL_S} s")
            got += count
        return memory, base

    def _array(self, array: Described, payload: memoryview, base: int) -> np.ndarray:
        dtype, shape, offset, lent = array
        if not lent:
            return np.ndarray(shape, dtype, payload, base + offset)
        number, place, lease = LENT.unpack_from(payload, base + offset)
        mapping = self._segments.get(number)
        # Not NumPy's product, which wraps around: a peer could make any shape look small.
        size_bytes = math.prod(shape) * dtype.itemsize
        if mapping is None:
            raise FrameError(f"an array lies in segment {number}, which was never passed")
        if place + size_bytes > mapping.size_bytes or place % dtype.itemsize:
            raise FrameError(f"an array of {size_bytes} bytes at {place} of a segment of {mapping.size_bytes} bytes")
        return np.asarray(Lease(mapping, place, dtype, shape, lease, self._returned))

    def _transport_frame(self, kind: Kind, body_bytes: int) -> None:
        if not 0 < body_bytes <= MOST_CONTROL_BYTES or body_bytes % _NUMBER.size:
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
        How long somebody waits while the queue is full.
    senders_wait : bool
        False where senders have others to serve: then :meth:`await_taken` is what keeps the queue short.

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
    ) -> None:
        self._wire = wire
        self._max_bytes = limits.max_outgoing_bytes
        self._name = name
        self._on_broken = on_broken
        self._patience_s = patience_s
        self._senders_wait = senders_wait
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
                if self._senders_wait:
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
        await_room(self._changed, lambda: self.waiting_bytes, size_bytes, self._max_bytes, self._patience_s)

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
                with self._changed:
                    # Whoever waits for room shall not wait for a connection that is gone.
                    self._closed = True
                    self._queue.clear()
                    self.waiting_bytes = 0
                self._on_broken(f"sending failed: {error}")
                return
            finally:
                with self._changed:
                    self._busy = False
                    if self._queue:
                        self._queue.popleft()
                        self.waiting_bytes -= queued.size_bytes
                    self._changed.notify_all()

    def close(self) -> None:
        """Drop what waits and end the thread, which must not be waiting for the wire any more."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self.waiting_bytes = 0
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
