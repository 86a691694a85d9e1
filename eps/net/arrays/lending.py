"""What one end of a connection lends to the other: arrays in shared memory that the peer reads where they lie.  L2."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from eps.net.arrays.api import Limits
from eps.net.arrays.arena import Arena, Reader, Segment
from eps.net.arrays.frames import LENT, Kind, control
from eps.net.arrays.stream import MOST_CONTROL_BYTES
from eps.net.arrays.wires import Buffer
from eps.net.arrays.writer import Part

#: From here on an array is lent rather than copied through the socket.
LEND_BYTES = 32 * 1024
_SEGMENT = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")


class Lender:
    """What one end of a connection has lent to the other.  Thread-safe.

    Parameters
    ----------
    arena : Arena
    peer_pid : int
        Process at the other end; 0 where it is not known.
    limits : Limits
        Arrays that are not in the arena are copied there, up to ``max_outgoing_bytes`` that are not given back; beyond
        it they travel through the socket, whose queue is what slows a sender down.
    """

    def __init__(self, arena: Arena, peer_pid: int, limits: Limits) -> None:
        self._arena: Arena | None = arena
        self._peer_pid = peer_pid
        self._max_copied_bytes = limits.max_outgoing_bytes
        self._lock = threading.Lock()
        #: Numbers of the segments that the peer has; a number is never used twice.
        self._passed: set[int] = set()
        #: Numbers of segments that nothing lies in any more, of which the peer is to be told.
        self.gone: deque[int] = deque()
        #: Lease -> array, and its bytes where it is a copy that was made for the peer.
        self._lent: dict[int, tuple[np.ndarray, int]] = {}
        self._copied_bytes = 0
        self._next_lease = 1
        arena.on_segment_gone(self.gone.append)

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
            # Last: where memory ran out above, they have not left.
            self._passed.update([segment.number for segment in segments])
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
        """Take everything back.  The peer may still be reading: none of it is written again before it is gone."""
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
