"""Checksums that travel behind a message's arrays: taken before it leaves, and again while it arrives.  L2.

The receiver takes it piece by piece, of what lies in the cache: a pass of its own would read all of an array from
memory once more, while nothing is received.  The sender takes it as a whole, on the thread that sends, while the socket
takes the message before it: taken piece by piece there too, it would hold up what the receiver waits for.

On the wire a seal is a message's last array, of :data:`SEAL_BYTES` bytes; the frame's flags say that it is one.  It is
of the message's header bytes and of the payload before it, so that an array counts with the zeros that fill it up to
the next 64-byte boundary.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xxhash

from eps.errors import FrameError
from eps.net.arrays.api import ALIGNMENT_BYTES, Message, Seal

SEAL_BYTES = 8
#: What is still in the cache when it was received.
PIECE_BYTES = 1 << 20
_PADDING = bytes(ALIGNMENT_BYTES)


class Checksum:
    """The XXH3 (64 bits) of a header and of arrays, one after the other, as a seal has it."""

    __slots__ = ("_digest",)

    def __init__(self, header: bytes) -> None:
        self._digest = xxhash.xxh3_64(header)

    def add(self, piece: np.ndarray) -> None:
        """Take an array, or a piece of one of a multiple of 64 bytes; C-contiguous."""
        size_bytes = piece.nbytes
        if size_bytes:
            self._digest.update(piece.reshape(-1).view(np.uint8).data)
            self._digest.update(_PADDING[: -size_bytes % ALIGNMENT_BYTES])

    def hexdigest(self) -> str:
        """Return it in hexadecimal."""
        return self._digest.hexdigest()


def checksum_of(header: bytes, arrays: Iterable[np.ndarray]) -> str:
    """Return what the seal of a message says, in hexadecimal: as fast as memory is read."""
    checksum = Checksum(header)
    for array in arrays:
        checksum.add(array)
    return checksum.hexdigest()


def sealed(message: Message) -> Message:
    """Return ``message`` with its seal, if it has one, as its last array: the checksum is taken now."""
    if message.seal is None:
        return message
    message.seal.left = checksum_of(message.header, message.arrays)
    room = np.frombuffer(bytes.fromhex(message.seal.left), np.uint8)
    return Message(message.header, (*message.arrays, room), message.seal)


def unsealed(message: Message, arrived: str = "") -> Message:
    """Return what came with its seal behind its arrays as it was given to be sent.

    Raises
    ------
    FrameError
        Its last array is no seal.
    """
    room = message.arrays[-1] if message.arrays else None
    if room is None or room.dtype != np.uint8 or room.shape != (SEAL_BYTES,):
        raise FrameError("a message is sealed, but its last array is no seal")
    return Message(message.header, message.arrays[:-1], Seal(room.tobytes().hex(), arrived))


class Checking:
    """Takes the checksum of a message while its payload arrives.

    Parameters
    ----------
    header : bytes
    payload_bytes : int
        The seal's included.
    """

    __slots__ = ("_digest", "_left_bytes")

    def __init__(self, header: bytes, payload_bytes: int) -> None:
        self._digest = xxhash.xxh3_64(header)
        self._left_bytes = payload_bytes - SEAL_BYTES

    def take(self, piece: memoryview) -> None:
        """Take what came next."""
        piece = piece[: max(0, self._left_bytes)]
        self._digest.update(piece)
        self._left_bytes -= len(piece)

    def hexdigest(self) -> str:
        """Return it in hexadecimal, once all of the payload was taken."""
        return self._digest.hexdigest()
