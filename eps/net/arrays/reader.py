"""Reading messages from a wire: one frame per message, the payload directly into the memory of its arrays.

The reader caches parsed descriptions, and recognises a message like the previous one by a single comparison.  Without
both, a round trip of 100 floats takes 1.4 to 2.3 times as long; without the comparison, 1.0 to 1.5 times (TCP, Unix
sockets, shared memory; loopback).

Source: performance.md sections 1 and 2 (no bytes objects in between; ``recv_into``).
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eps.errors import FrameError, PeerUnavailableError
from eps.net.arrays.api import ALIGNMENT_BYTES, Limits, Message, aligned_empty
from eps.net.arrays.frames import (
    BEGINNING_BYTES,
    FIRST,
    FRAME_HEADER,
    HEAD_START,
    LENGTH_START,
    LENT,
    MOST_CONTROL_BYTES,
    PIECE_BYTES,
    SEALED,
    ArrivingChecksum,
    Described,
    Description,
    Kind,
    beginning_of,
    described_lengths,
    parse_description,
    parse_frame_header,
    unsealed,
)
from eps.net.arrays.memory import Lease, Mapping
from eps.net.arrays.wires import LEAST_BYTES, STALL_S, Progress, Wire

#: Bytes of the first read; usually holds all of a small message.
_BUFFER_BYTES = 64 * 1024
#: Payloads up to the first size share slabs of the second one; a kept array keeps its slab.
_SMALL_BYTES = 4 * 1024
_SLAB_BYTES = 64 * 1024
#: Descriptions that a connection caches.
_MOST_DESCRIPTIONS = 256
_MOST_SEGMENTS = 4096
_NUMBER = struct.Struct("<Q")
_MESSAGES = frozenset((Kind.HELLO, Kind.REQUEST, Kind.REPLY, Kind.ERROR))
_TRANSPORT_KINDS = (Kind.SEGMENT, Kind.FORGET, Kind.RELEASE)


class _Known(NamedTuple):
    """The layout that messages of equal lengths, types and shapes share."""

    #: Format of the beginning of the frame, request id, description and header.
    fields: struct.Struct
    #: Includes the length of the body.
    description: bytes
    described: Description


@dataclass(slots=True)
class _Partial:
    """A message whose payload is still arriving."""

    kind: Kind
    request_id: int
    header: bytes
    described: Description
    memory: memoryview
    base: int
    got: int
    sealed: bool
    #: Checksum of a sealed message; None if its arrays are lent.
    checking: ArrivingChecksum | None


_NOTHING = _Known(struct.Struct(f"<{BEGINNING_BYTES}sQ0s0s"), b"nothing is described so", Description([], 0, False))


class BorrowedArrays:
    """The peer's shared memory: its segments, and the arrays that it lends there.

    Parameters
    ----------
    wire : Wire
        Receives the descriptors of segments.
    returned : deque of int or None
        Receives the lease of each freed array; None if the reply returns it.
    on_release : callable or None
        Called with the leases that the peer returns.
    """

    def __init__(
        self, wire: Wire, returned: deque[int] | None, on_release: Callable[[tuple[int, ...]], None] | None
    ) -> None:
        self._wire = wire
        self._returned = returned
        self._on_release = on_release
        self._segments: dict[int, Mapping] = {}

    def array(self, array: Described, payload: memoryview, base: int) -> np.ndarray:
        """Return an array of a message, in the peer's memory or in the payload.

        Raises
        ------
        FrameError
            The array lies outside the segments that the peer passed.
        """
        dtype, shape, offset, lent = array
        if not lent:
            return np.ndarray(shape, dtype, payload, base + offset)
        number, place, lease = LENT.unpack_from(payload, base + offset)
        mapping = self._segments.get(number)
        # Not NumPy's product, which wraps around and could make a huge shape look small.
        size_bytes = math.prod(shape) * dtype.itemsize
        if mapping is None:
            raise FrameError(f"an array lies in segment {number}, which was never passed")
        if place + size_bytes > mapping.size_bytes or place % dtype.itemsize:
            raise FrameError(f"an array of {size_bytes} bytes at {place} of a segment of {mapping.size_bytes} bytes")
        return np.asarray(Lease(mapping, place, dtype, shape, lease, self._returned))

    def on_frame(self, kind: Kind, numbers: tuple[int, ...]) -> None:
        """Process a frame of the transport's own: a new segment, a dropped one, or returned leases.

        Raises
        ------
        FrameError
            The frame is malformed or does not fit earlier ones.
        """
        if kind is Kind.SEGMENT:
            if len(numbers) != 2 or numbers[0] in self._segments or len(self._segments) >= _MOST_SEGMENTS:
                raise FrameError(f"a segment is malformed, known already, or beyond the limit of {_MOST_SEGMENTS}")
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
            raise FrameError("leases were returned, but none were given")

    def close(self) -> None:
        """Unmap the segments, except those under arrays."""
        self._segments.clear()


class StreamReader:
    """Read the messages of one connection; used by one thread at a time.

    Source: V. Jacobson, "4BSD TCP header prediction", Computer Communication Review 20(2), 1990: a message that begins
    like the previous one is recognised by a comparison and not parsed.

    Parameters
    ----------
    wire : Wire
    limits : Limits
        Checked against the announced lengths, before memory is allocated.
    kinds : sequence of Kind
        The kinds of messages that this end accepts.
    lending : bool
        Whether the peer may refer to its shared memory.
    returned : deque of int, optional
        Receives the lease of each freed array; None if the reply returns it.
    on_release : callable, optional
        Called with the leases that the peer returns.
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
        #: None if the transport has no shared memory.
        self._borrowed = BorrowedArrays(wire, returned, on_release) if lending else None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._stop = 0
        self._slab, self._slab_used = aligned_empty(_SLAB_BYTES).data, 0
        self._beginnings = {beginning_of(kind): kind for kind in kinds}
        #: The same few descriptions repeat: each is parsed once.
        self._known: dict[bytes, _Known] = {}
        #: Layout of the previous message.  Most messages have the same one, which a comparison shows.
        self._expected = _NOTHING
        self._partial: _Partial | None = None
        #: Progress of an arriving message, once :meth:`read` has waited for its rest; None between messages.
        self._progress: Progress | None = None
        #: See :meth:`wait_at_most`.
        self.patience_s: float = STALL_S

    @property
    def buffered(self) -> bool:
        """Whether :meth:`read` has work although the descriptor may not be readable."""
        # Read once: another thread may be changing it.
        progress = self._progress
        if progress is not None:
            return self._wire.pending or progress.overdue
        return self._stop > self._start or self._wire.pending

    def wait_at_most(self, patience_s: float) -> None:
        """Set how long :meth:`read` waits; default: :data:`wires.STALL_S`."""
        self.patience_s = patience_s
        self._wire.wait_at_most(patience_s)

    def read(self) -> tuple[Kind, int, Message] | None:
        """Return kind, request id and message of the next one; None if it was not complete in time.

        The next call continues a partly read message.

        Raises
        ------
        PeerUnavailableError
            The peer closed the connection, or stalled in the middle of a message.
        FrameError
            The data is not a message, or exceeds a limit.  The connection is unusable then.
        """
        if self._partial is not None:
            return self._continue(self._partial)
        while True:
            if self._start == self._stop:
                # This one call usually reads all of a small message.
                self._start, self._stop = 0, self._wire.receive(self._view)
                if not self._stop:
                    return None
            fields, expected, described = self._expected
            if self._stop - self._start >= fields.size:
                beginning, request_id, description, header = fields.unpack_from(self._buffer, self._start)
                kind = self._beginnings.get(beginning)
                if description == expected and kind is not None:
                    # Only request id, header and payload are new: the rest was checked before.
                    self._start += fields.size
                    return self._message(kind, request_id, header, described)
            if self._stop - self._start < FRAME_HEADER.size and not self._fill(FRAME_HEADER.size):
                return None
            kind, flags, request_id, body_bytes = parse_frame_header(self._buffer, self._kinds, self._start)
            if not flags & FIRST:
                raise FrameError("a frame continues a message, but on a socket each message is one frame")
            if kind in _MESSAGES:
                head = self._head(body_bytes)
                return None if head is None else self._message(kind, request_id, *head, sealed=bool(flags & SEALED))
            if flags & SEALED:
                raise FrameError(f"a frame of kind {kind.name} is sealed")
            if not self._transport_frame(kind, body_bytes):
                return None

    def close(self) -> None:
        """Release borrowed memory."""
        if self._borrowed is not None:
            self._borrowed.close()
        self._partial = None

    def _wait_until(self) -> float:
        """Return the deadline of :meth:`read` for the rest of a message."""
        now_s = time.monotonic()
        if self._progress is None:
            self._progress = Progress()
        return now_s + self.patience_s

    def _must_return(self, count: int, until_s: float) -> bool:
        """Count received bytes; return whether :meth:`read` must return without the rest."""
        assert self._progress is not None
        if self._progress.stalled(count):
            raise PeerUnavailableError(
                f"the peer stalled in the middle of a message: less than {LEAST_BYTES} bytes arrived in {STALL_S} s"
            )
        return not count or time.monotonic() >= until_s

    def _fill(self, needed: int) -> bool:
        """Read until the buffer has ``needed`` bytes; return False at the deadline."""
        if self._stop - self._start >= needed:
            return True
        until_s = self._wait_until()
        while True:
            if self._start == self._stop:
                self._start = self._stop = 0
            if self._start + needed > len(self._buffer):
                self._make_room(needed)
            count = self._wire.receive(self._view[self._stop :])
            self._stop += count
            if self._stop - self._start >= needed:
                self._progress = None
                return True
            if self._must_return(count, until_s):
                return False

    def _make_room(self, needed: int) -> None:
        content = bytes(self._view[self._start : self._stop])
        if needed > len(self._buffer):
            self._buffer = bytearray(needed)
            self._view = memoryview(self._buffer)
        self._view[: len(content)] = content
        self._start, self._stop = 0, len(content)

    def _head(self, body_bytes: int) -> tuple[bytes, Description] | None:
        """Consume header and description of a message, both checked; return None, consuming nothing, if late."""
        if body_bytes > self._limits.max_message_bytes:
            raise FrameError(f"a message of {body_bytes} bytes, but {self._limits.max_message_bytes} is the limit")
        if not self._fill(HEAD_START):
            return None
        header_bytes, described_bytes = described_lengths(self._buffer, self._limits, self._start)
        header_start = HEAD_START + described_bytes
        if not self._fill(header_start + header_bytes):
            return None
        start = self._start
        description = bytes(self._view[start + LENGTH_START : start + header_start])
        known = self._known.get(description)
        if known is None:
            described = parse_description(description[FRAME_HEADER.size - LENGTH_START :], self._borrowed is not None)
            if header_start + header_bytes - FRAME_HEADER.size + described.payload_bytes != body_bytes:
                raise FrameError(f"a body of {body_bytes} bytes is announced, but the message has another length")
            fields = struct.Struct(f"<{BEGINNING_BYTES}sQ{len(description)}s{header_bytes}s")
            known = _Known(fields, description, described)
            if len(self._known) >= _MOST_DESCRIPTIONS:
                self._known.clear()
            self._known[description] = known
        self._expected = known
        self._start = start + header_start + header_bytes
        return bytes(self._view[start + header_start : self._start]), known.described

    def _message(
        self,
        kind: Kind,
        request_id: int,
        header: bytes,
        described: Description,
        sealed: bool = False,
    ) -> tuple[Kind, int, Message] | None:
        """Read a message's payload; return None if it is not complete in time."""
        if not (described.arrays or sealed):
            return kind, request_id, Message(header)
        payload, base, got = self._payload(described.payload_bytes)
        if got < described.payload_bytes or sealed:
            checking = None
            if sealed and not described.lends:
                checking = ArrivingChecksum(header, described.payload_bytes)
                checking.take(payload[base : base + got])
            self._partial = _Partial(kind, request_id, header, described, payload, base, got, sealed, checking)
            return self._continue(self._partial)
        return kind, request_id, Message(header, self._arrays(described, payload, base))

    def _continue(self, begun: _Partial) -> tuple[Kind, int, Message] | None:
        """Read more of a payload; return the message once it is complete."""
        until_s = self._wait_until()
        size_bytes, checking = begun.described.payload_bytes, begun.checking
        memory = begun.memory[begun.base : begun.base + size_bytes]
        while begun.got < size_bytes:
            start = begun.got
            # The checksum is updated while the bytes are in the cache.
            count = self._wire.receive(memory[start : None if checking is None else start + PIECE_BYTES], whole=True)
            begun.got += count
            if checking is not None:
                checking.take(memory[start : begun.got])
            if begun.got < size_bytes and self._must_return(count, until_s):
                return None
        self._partial = self._progress = None
        message = Message(begun.header, self._arrays(begun.described, begun.memory, begun.base))
        if begun.sealed:
            message = unsealed(message, "" if checking is None else checking.hexdigest())
        return begun.kind, begun.request_id, message

    def _arrays(self, described: Description, payload: memoryview, base: int) -> tuple[np.ndarray, ...]:
        if described.lends:
            # Only a transport with shared memory has such descriptions.
            assert self._borrowed is not None
            return tuple([self._borrowed.array(array, payload, base) for array in described.arrays])
        if len(described.arrays) == 1:
            dtype, shape, offset, _ = described.arrays[0]
            return (np.ndarray(shape, dtype, payload, base + offset),)
        return tuple([np.ndarray(shape, dtype, payload, base + offset) for dtype, shape, offset, _ in described.arrays])

    def _payload(self, size_bytes: int) -> tuple[memoryview, int, int]:
        """Return the memory for a payload, the offset in it, and the number of bytes that are read already."""
        if size_bytes <= _SMALL_BYTES:
            # Small payloads share a slab, which is cheaper than an array for each.
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
        return memory, base, got

    def _transport_frame(self, kind: Kind, body_bytes: int) -> bool:
        """Process a frame of the transport's own; return False if it is late."""
        if not 0 < body_bytes <= MOST_CONTROL_BYTES or body_bytes % _NUMBER.size:
            raise FrameError(f"a frame of kind {kind.name} with a body of {body_bytes} bytes")
        if not self._fill(FRAME_HEADER.size + body_bytes):
            return False
        body = bytes(self._view[self._start + FRAME_HEADER.size : self._start + FRAME_HEADER.size + body_bytes])
        self._start += FRAME_HEADER.size + body_bytes
        assert self._borrowed is not None
        self._borrowed.on_frame(kind, struct.unpack(f"<{body_bytes // _NUMBER.size}Q", body))
        return True
