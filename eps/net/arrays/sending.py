"""How a message leaves over a socket: a small one in one piece, a large one from where it lies, or lent.  L2."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sized

import numpy as np

from eps.net.arrays.api import Limits, Message
from eps.net.arrays.arena import Segment
from eps.net.arrays.frames import Kind, SmallFrames, check_message, whole
from eps.net.arrays.lending import Lender
from eps.net.arrays.seals import sealed
from eps.net.arrays.writer import Part, StreamWriter


class MessageWriter:
    """Sends the messages of one end of a connection.  Thread-safe.

    Parameters
    ----------
    writer : StreamWriter
    limits : Limits
    lender : Lender, optional
        Where the transport has shared memory: lends the large arrays, which the peer reads where they lie.
    returned : deque of int, optional
        Leases of the peer that are to be given back with the next message.
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
        #: What the peer is to be told before the next message, if anything.
        self._leases_back: Sized = () if lender is None or returned is None else returned
        self._segments_gone: Sized = () if lender is None else lender.gone
        # A segment that is noted as passed must have left before another message relies on it.
        self._lending = threading.Lock()

    def send(self, message: Message, request_id: int, kind: Kind, lent: dict[int, list[int]] | None = None) -> None:
        """Send a message as one frame; ``lent``, where given, has the leases of its arrays under its id.

        Raises
        ------
        ProtocolError
            The message is not one that a van carries.
        DeadlineError
            The queue stayed full; nothing is lent.
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
            self._send_lending(self._lender, message, size_bytes, request_id, kind, lent)

    def _send_lending(
        self,
        lender: Lender,
        message: Message,
        size_bytes: int,
        request_id: int,
        kind: Kind,
        lent: dict[int, list[int]] | None,
    ) -> None:
        leases: list[int] = []
        segments: list[Segment] = []

        def lend(array: np.ndarray) -> bytes | None:
            return lender.lend(array, leases, segments)

        with self._lending:
            # Now, while nothing is lent.
            self._writer.await_room(size_bytes)
            try:
                pieces = whole(message, request_id, kind, lend)
                parts = lender.parts_of(pieces, segments, self._returned)
            except BaseException:
                lender.give_back(leases)
                raise
            if leases and lent is not None:
                lent[request_id] = leases
            # Segments are noted as passed: from here on it leaves, or the connection ends.
            self._writer.send(parts, size_bytes, has_waited=True)

    def send_returned(self, timeout_s: float) -> None:
        """Give back the peer's leases now, if there are any, and unless a thread waits for room meanwhile."""
        if self._lender is not None and self._leases_back and self._lending.acquire(timeout=timeout_s):
            try:
                self._writer.send(self._lender.parts_before((), self._returned), 0, has_waited=True)
            finally:
                self._lending.release()
