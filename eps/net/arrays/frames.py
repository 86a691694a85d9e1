"""Encoding of messages as frames, one frame per message, and their checksums.  Pure: no sockets, no threads.

A message consists of description, header bytes and payload; the payload is the arrays, each on a 64-byte boundary::

    frame        magic "EPSV" | version u8 | kind u8 | flags u16 | request id u64 | body bytes u32 | reserved u32
                 then the body: the encoded message
    flags        1: always; 2: the last array is a seal
    description  header bytes u32 | arrays u32 | payload bytes u64, then per array:
                 type u8 | dimensions u8 | place u16 | reserved u32 | 4 lengths u64 (unused ones are 0)
    place        0: the array's bytes are in the payload; 1: in the sender's shared memory (``writer.py``)

All numbers are little-endian.  Everything is checked before memory for the payload is allocated.

A seal is a checksum, sent as a message's last array of :data:`SEAL_BYTES` bytes.  It covers the header bytes and the
payload before it, including the zeros that pad each array to a 64-byte boundary.

The receiver computes the checksum piece by piece, while the bytes are in the cache.  A separate pass would read all
arrays from memory again, during which nothing is received.  The sender computes it at once, on the sending thread,
while the socket takes the previous message.  Piece by piece, it would delay the receiver.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from eps.errors import FrameError, ProtocolError
from eps.net.arrays.api import (
    ALIGNMENT_BYTES,
    ARRAY_DESCRIPTION_BYTES,
    DTYPES,
    MAX_DIMS,
    Limits,
    Message,
    Seal,
)

MAGIC = b"EPSV"
VERSION = 1

FRAME_HEADER = struct.Struct("<4sBBHQII")
_DESCRIPTION = struct.Struct("<IIQ")
_ARRAY = struct.Struct("<BBHI4Q")
assert _ARRAY.size == ARRAY_DESCRIPTION_BYTES
#: Length of the frame header and the fixed part of a description.
HEAD_START = FRAME_HEADER.size + _DESCRIPTION.size
#: Length of magic, version, kind and flags, before the request id; offset of the body's length.
BEGINNING_BYTES, LENGTH_START = 8, 16
#: Record in place of an array in the sender's shared memory: segment, offset, lease.
LENT = struct.Struct("<QQQ")
FIRST, SEALED = 1, 2
#: Length of a seal.
SEAL_BYTES = 8
#: Size of pieces for checksums: small enough to be in the cache when they were received.
PIECE_BYTES = 1 << 20
#: Maximum body of the transport's own frames.
MOST_CONTROL_BYTES = 32 * 1024
_DTYPE_NUMBERS: dict[np.dtype[Any], int] = {dtype: number for number, dtype in enumerate(DTYPES)}
_PADDING = bytes(ALIGNMENT_BYTES)
# Up to this size a copy is cheaper than a list of pieces.
_JOIN_BYTES = 4 * 1024
#: Layouts of small messages that a connection caches.
_MOST_LAYOUTS = 256


class Kind(enum.IntEnum):
    """Kinds of frames."""

    #: A listener's first message on a connection: it accepts requests.
    HELLO = 0
    REQUEST = 1
    REPLY = 2
    #: A reply whose header is an encoded error.
    ERROR = 3
    #: Shared memory only, sent before a message that needs it: a segment, with its descriptor.
    SEGMENT = 4
    #: Shared memory only: a segment that will hold no more arrays.
    FORGET = 5
    #: Shared memory only: leases of replies that the requester returns.
    RELEASE = 6


def check_message(message: Message, limits: Limits) -> int:
    """Refuse a message that the peer would refuse, in the thread that made it.

    Returns
    -------
    int
        Length of the encoded message in bytes, without frame headers.

    Raises
    ------
    ProtocolError
        A van cannot carry the message.
    """
    header_bytes, num_arrays = len(message.header), len(message.arrays)
    if header_bytes > limits.max_header_bytes:
        raise ProtocolError(f"the header is {header_bytes} bytes, but must be at most {limits.max_header_bytes}")
    if num_arrays > limits.max_arrays:
        raise ProtocolError(f"{num_arrays} arrays, but a message carries at most {limits.max_arrays}")
    payload_bytes = 0
    for array in message.arrays:
        if array.dtype not in _DTYPE_NUMBERS:
            raise ProtocolError(f"array type {array.dtype} is not one of {', '.join(map(str, DTYPES))}")
        if array.ndim > MAX_DIMS:
            raise ProtocolError(f"array of shape {array.shape} has more than {MAX_DIMS} dimensions")
        if not array.flags.c_contiguous:
            raise ProtocolError(f"array of shape {array.shape} and strides {array.strides} is not C-contiguous")
        payload_bytes += -payload_bytes % ALIGNMENT_BYTES + array.nbytes
    image_bytes = _DESCRIPTION.size + num_arrays * _ARRAY.size + header_bytes + payload_bytes
    if image_bytes > limits.max_message_bytes:
        raise ProtocolError(f"the message is {image_bytes} bytes, but must be at most {limits.max_message_bytes}")
    return image_bytes


#: Array -> its :data:`LENT` record if it stays in shared memory, else None.
Lend = Callable[[np.ndarray], bytes | None]


def layout(message: Message, lend: Lend | None = None) -> tuple[bytes, list[bytes | memoryview], int]:
    """Return an encoded message: description with header, pieces of the payload, length of the payload."""
    descriptions = []
    payload: list[bytes | memoryview] = []
    payload_bytes = 0
    for array in message.arrays:
        shape = array.shape
        lengths = (*shape, *(0,) * (MAX_DIMS - len(shape)))
        record = None if lend is None else lend(array)
        lent = record is not None
        descriptions.append(_ARRAY.pack(_DTYPE_NUMBERS[array.dtype], len(shape), lent, 0, *lengths))
        padding_bytes = -payload_bytes % ALIGNMENT_BYTES
        if padding_bytes:
            payload.append(_PADDING[:padding_bytes])
        piece: bytes | memoryview = record or b""
        if record is None and array.nbytes:
            piece = array.data.cast("B") if shape else array.tobytes()
        if piece:
            payload.append(piece)
        payload_bytes += padding_bytes + len(piece)
    description = _DESCRIPTION.pack(len(message.header), len(descriptions), payload_bytes)
    return b"".join((description, *descriptions, message.header)), payload, payload_bytes


def _first_flags(message: Message) -> int:
    return FIRST if message.seal is None else FIRST | SEALED


def whole(message: Message, request_id: int, kind: Kind, lend: Lend | None = None) -> list[bytes | memoryview]:
    """Return ``message`` as one frame of any length, in pieces that refer to the arrays: for sockets."""
    head, payload, payload_bytes = layout(message, lend)
    flags = _first_flags(message)
    prefix = FRAME_HEADER.pack(MAGIC, VERSION, kind, flags, request_id, len(head) + payload_bytes, 0)
    if payload_bytes <= _JOIN_BYTES:
        return [b"".join((prefix, head, *payload))]
    return [prefix + head, *payload]


class _SmallLayout(NamedTuple):
    """The part of the layout that small messages of equal header length, types and shapes share."""

    description: bytes
    body_bytes: int
    #: Padding before each array, to start on a 64-byte boundary of the payload.
    paddings: tuple[bytes, ...]


class SmallFrames:
    """Encode small messages, each as one buffer.  Thread-safe: every change of its state is a single step.

    A connection's messages repeat the same descriptions: each is checked and laid out once.  Without this cache a round
    trip of 100 floats takes 1.3 to 1.8 times as long, and misses its bar (``benchmarks/van.py``).
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._layouts: dict[tuple[object, ...], _SmallLayout] = {}

    def frame(self, message: Message, request_id: int, kind: Kind) -> bytes | None:
        """Return a message's frame, as :func:`whole` does; None if the message is not small.

        Raises
        ------
        ProtocolError
            A van cannot carry the message.  A message that is not small is not checked.
        """
        header, arrays = message.header, message.arrays
        key: tuple[object, ...] = (len(header),)
        for array in arrays:
            if not array.flags.c_contiguous:
                return None
            key += (array.dtype, array.shape)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._learn(message, key)
            if layout is None:
                return None
        description, body_bytes, paddings = layout
        prefix = FRAME_HEADER.pack(MAGIC, VERSION, kind, FIRST, request_id, body_bytes, 0)
        if len(arrays) == 1:
            return b"".join((prefix, description, header, arrays[0].tobytes()))
        pieces = [prefix, description, header]
        for padding, array in zip(paddings, arrays, strict=True):
            pieces += (padding, array.tobytes())
        return b"".join(pieces)

    def _learn(self, message: Message, key: tuple[object, ...]) -> _SmallLayout | None:
        body_bytes = check_message(message, self._limits)
        if body_bytes > _JOIN_BYTES:
            return None
        described, _, _ = layout(message)
        description = described[: len(described) - len(message.header)]
        paddings, end = [], 0
        for array in message.arrays:
            paddings.append(_PADDING[: -end % ALIGNMENT_BYTES])
            end += len(paddings[-1]) + array.nbytes
        learned = _SmallLayout(description, body_bytes, tuple(paddings))
        if len(self._layouts) >= _MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[key] = learned
        return learned


def control(kind: Kind, body: bytes) -> bytes:
    """Return a frame of the socket transports' own, which holds no message."""
    return FRAME_HEADER.pack(MAGIC, VERSION, kind, FIRST, 0, len(body), 0) + body


def beginning_of(kind: Kind) -> bytes:
    """Return the first :data:`BEGINNING_BYTES` of every one-frame message of a kind."""
    return FRAME_HEADER.pack(MAGIC, VERSION, kind, FIRST, 0, 0, 0)[:BEGINNING_BYTES]


def parse_frame_header(
    frame: bytes | bytearray, kinds: Mapping[int, Kind], start: int = 0
) -> tuple[Kind, int, int, int]:
    """Return (kind, flags, request id, body bytes) of the frame at ``start``.

    Raises
    ------
    FrameError
        It is not a frame, or of a kind that this end does not accept.
    """
    magic, version, number, flags, request_id, body_bytes, zero = FRAME_HEADER.unpack_from(frame, start)
    if magic != MAGIC:
        raise FrameError(f"a frame starts with {magic!r}, but must start with {MAGIC!r}")
    if version != VERSION:
        raise FrameError(f"a frame of version {version}, but this end speaks version {VERSION}")
    kind = kinds.get(number)
    if kind is None:
        raise FrameError(f"this end does not accept frames of kind {number}")
    if flags & ~(FIRST | SEALED) or flags == SEALED or zero:
        raise FrameError(f"unknown flags {flags} or reserved field {zero}")
    return kind, flags, request_id, body_bytes


#: Description of an array: type, shape, offset in the payload (of the array or its record), whether it is lent.  A lent
#: array lies in the sender's shared memory and has a :data:`LENT` record in its place.
Described = tuple[np.dtype[Any], tuple[int, ...], int, bool]


def described_lengths(frame: bytes | bytearray, limits: Limits, start: int = 0) -> tuple[int, int]:
    """Return the length of the header and of the arrays' descriptions, for the frame at ``start``.

    Raises
    ------
    FrameError
        A length exceeds its limit.
    """
    header_bytes, num_arrays, _ = _DESCRIPTION.unpack_from(frame, start + FRAME_HEADER.size)
    if header_bytes > limits.max_header_bytes:
        raise FrameError(f"a header of {header_bytes} bytes, but {limits.max_header_bytes} is the limit")
    if num_arrays > limits.max_arrays:
        raise FrameError(f"{num_arrays} arrays, but {limits.max_arrays} is the limit")
    return header_bytes, num_arrays * ARRAY_DESCRIPTION_BYTES


class Description(NamedTuple):
    """The announced arrays of a message."""

    arrays: list[Described]
    payload_bytes: int
    #: Whether some lie in the sender's shared memory.
    lends: bool


def parse_description(description: bytes, lending: bool) -> Description:
    """Return the content of a description (without the frame's header).

    Parameters
    ----------
    lending : bool
        Whether the transport can refer to the sender's memory.

    Raises
    ------
    FrameError
        The description is invalid; no memory was allocated for the payload yet.
    """
    _, num_arrays, payload_bytes = _DESCRIPTION.unpack_from(description)
    arrays: list[Described] = []
    end = 0
    at = _DESCRIPTION.size
    for _ in range(num_arrays):
        number, ndim, place, zero, *lengths = _ARRAY.unpack_from(description, at)
        if number >= len(DTYPES) or ndim > MAX_DIMS or place > lending or zero or any(lengths[ndim:]):
            raise FrameError(_wrong_array(number, ndim, place))
        dtype, shape = DTYPES[number], tuple(lengths[:ndim])
        size_bytes = math.prod(shape) * dtype.itemsize
        # With a length of 0 the array has no bytes, but NumPy still multiplies the other lengths.
        if size_bytes == 0 and math.prod([max(length, 1) for length in shape]) * dtype.itemsize >= 1 << 62:
            raise FrameError(f"an array of shape {shape} is too large")
        end += -end % ALIGNMENT_BYTES
        arrays.append((dtype, shape, end, place != 0))
        end += LENT.size if place else size_bytes
        at += ARRAY_DESCRIPTION_BYTES
    if payload_bytes != end:
        raise FrameError(f"a payload of {payload_bytes} bytes, but its arrays need {end}")
    return Description(arrays, payload_bytes, any(place for *_, place in arrays))


def _wrong_array(number: int, ndim: int, place: int) -> str:
    if number >= len(DTYPES):
        return f"array type {number} is not one of 0 to {len(DTYPES) - 1}"
    if ndim > MAX_DIMS:
        return f"an array has {ndim} dimensions, but {MAX_DIMS} is the limit"
    if place == 1:
        return "an array in shared memory, on a transport without shared memory"
    return "unused fields of an array's description must be 0"


class Checksum:
    """The XXH3 (64 bits) of a header and consecutive arrays, as in a seal."""

    __slots__ = ("_digest",)

    def __init__(self, header: bytes) -> None:
        self._digest = xxhash.xxh3_64(header)

    def add(self, piece: np.ndarray) -> None:
        """Add an array, or a piece of one whose length is a multiple of 64 bytes; C-contiguous."""
        size_bytes = piece.nbytes
        if size_bytes:
            self._digest.update(piece.reshape(-1).view(np.uint8).data)
            self._digest.update(_PADDING[: -size_bytes % ALIGNMENT_BYTES])

    def hexdigest(self) -> str:
        """Return the checksum in hexadecimal."""
        return self._digest.hexdigest()


def checksum_of(header: bytes, arrays: Iterable[np.ndarray]) -> str:
    """Return the checksum of a message's seal, in hexadecimal; as fast as memory is read."""
    checksum = Checksum(header)
    for array in arrays:
        checksum.add(array)
    return checksum.hexdigest()


def sealed(message: Message) -> Message:
    """Compute the checksum of a message with a seal, and return the message with it as its last array."""
    if message.seal is None:
        return message
    message.seal.left = checksum_of(message.header, message.arrays)
    room = np.frombuffer(bytes.fromhex(message.seal.left), np.uint8)
    return Message(message.header, (*message.arrays, room), message.seal)


def unsealed(message: Message, arrived: str = "") -> Message:
    """Remove the seal from the arrays of a received message; return the message as it was before :func:`sealed`.

    Raises
    ------
    FrameError
        The last array is not a seal.
    """
    room = message.arrays[-1] if message.arrays else None
    if room is None or room.dtype != np.uint8 or room.shape != (SEAL_BYTES,):
        raise FrameError("a message is sealed, but its last array is not a seal")
    return Message(message.header, message.arrays[:-1], Seal(room.tobytes().hex(), arrived))


class ArrivingChecksum:
    """Compute the checksum of a message while its payload arrives.

    Parameters
    ----------
    header : bytes
    payload_bytes : int
        Includes the seal.
    """

    __slots__ = ("_digest", "_left_bytes")

    def __init__(self, header: bytes, payload_bytes: int) -> None:
        self._digest = xxhash.xxh3_64(header)
        self._left_bytes = payload_bytes - SEAL_BYTES

    def take(self, piece: memoryview) -> None:
        """Add the next piece."""
        piece = piece[: max(0, self._left_bytes)]
        self._digest.update(piece)
        self._left_bytes -= len(piece)

    def hexdigest(self) -> str:
        """Return the checksum in hexadecimal, once all of the payload was added."""
        return self._digest.hexdigest()
