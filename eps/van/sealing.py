"""Taking the checksum of a message while it leaves over a socket.  L2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from eps.van.api import Seal
from eps.van.seals import PIECE_BYTES, SEAL_BYTES
from eps.van.wires import Buffer, beginning


class Sealing:
    """Takes the checksum of a message while it leaves, and puts it behind the arrays.

    Parameters
    ----------
    pieces : sequence of bytes or memoryview
        The frame: its head, the payload, the room for the seal.
    seal : Seal
        Gets the checksum.
    room : ndarray, shape (SEAL_BYTES,), uint8
    """

    __slots__ = ("_digest", "_done", "_room", "_seal", "_size_bytes")

    def __init__(self, pieces: Sequence[Buffer], seal: Seal, room: np.ndarray) -> None:
        self._digest = xxhash.xxh3_64()
        self._seal, self._room = seal, room
        self._size_bytes = sum(map(len, pieces))
        #: Of the frame; its head is not sealed.
        self._done = len(pieces[0])

    def next(self, left: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return what is to be sent now of the pieces that are left of the frame."""
        pieces = beginning(left, PIECE_BYTES)
        at = self._size_bytes - sum(map(len, left))
        payload_stop = self._size_bytes - SEAL_BYTES
        for piece in pieces:
            stop = min(at + len(piece), payload_stop)
            if stop > self._done:
                self._digest.update(memoryview(piece)[self._done - at : stop - at])
                self._done = stop
            at += len(piece)
        if at > payload_stop:
            # Before the first byte of it leaves.
            self._room[:] = np.frombuffer(self._digest.digest(), np.uint8)
            self._seal.left = self._digest.hexdigest()
        return pieces
