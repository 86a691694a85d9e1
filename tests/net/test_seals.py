"""Checksums that travel behind arrays: the same whatever the way, taken again on arrival, and never believed."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from eps.errors import FrameError, PeerUnavailableError
from eps.net.arrays.api import Limits, Message, ReplyTo, Seal
from eps.net.arrays.frames import SEAL_BYTES, Kind, checksum_of, sealed, whole
from eps.net.arrays.reader import StreamReader
from eps.net.arrays.sockets import SocketVan
from eps.net.arrays.wires import PlainWire
from tests.net.raw_peers import DEADLINE_S, TOKEN

RNG = np.random.default_rng(11)
#: Of all alignments, with empty ones, and more than several pieces.
ARRAYS = (
    np.array([3, 4], np.int64),
    RNG.normal(size=900_001).astype(np.float32),
    np.empty(0, np.int32),
    RNG.integers(0, 9, 77).astype(np.int16),
)


@pytest.mark.parametrize("way", ["tcp", "unix", "shm"])
@pytest.mark.parametrize("arrays", [ARRAYS, ARRAYS[:1], ()], ids=["large", "small", "none"])
def test_both_ends_find_the_same_checksum(way: str, arrays: tuple[np.ndarray, ...]) -> None:
    came: list[Message] = []

    def take(message: Message, reply: ReplyTo) -> None:
        came.append(Message(message.header, tuple(array.copy() for array in message.arrays), message.seal))
        reply.send(Message(b"back", message.arrays, Seal()))

    van = SocketVan(way, TOKEN)
    listener = van.listen(take)
    connection = van.connect(listener.address, DEADLINE_S)
    sent = Message(b"x", arrays, Seal())
    back = connection.call(sent, DEADLINE_S)
    # A small one after it: the frame before it was another kind of one.
    assert connection.call(Message(b"y", arrays), DEADLINE_S).seal is not None
    connection.close()
    listener.close()
    first, plain = came
    for message in (first, plain, back):
        assert [a.tobytes() for a in message.arrays] == [a.tobytes() for a in arrays]
    expected, of_reply = checksum_of(b"x", arrays), checksum_of(b"back", arrays)
    assert sent.seal is not None and first.seal is not None and back.seal is not None
    assert (sent.seal.left, first.seal.left, back.seal.left) == (expected, expected, of_reply)
    # What is lent passes through no hands of the van: its checksum is the receiver's to take.
    lent = way == "shm" and len(arrays) > 1
    assert (first.seal.arrived, back.seal.arrived) == (("", "") if lent else (expected, of_reply))
    assert plain.seal is None


def test_a_bit_that_changed_on_the_way_shows() -> None:
    message = sealed(Message(b"which partition", ARRAYS, Seal()))
    frame = bytearray(b"".join(bytes(piece) for piece in whole(message, 1, Kind.REQUEST)))
    for position in (None, frame.index(b"which partition"), len(frame) // 2, len(frame) - SEAL_BYTES):
        received = read(bytes(frame) if position is None else flipped(frame, position))
        assert received.seal is not None
        assert (received.seal.arrived == received.seal.left) == (position is None)


def flipped(frame: bytearray, position: int) -> bytes:
    changed = bytearray(frame)
    changed[position] ^= 1
    return bytes(changed)


def read(frame: bytes) -> Message:
    ours, theirs = socket.socketpair()
    reader = StreamReader(PlainWire(ours), Limits(), (Kind.REQUEST,))
    sender = threading.Thread(target=lambda: (theirs.sendall(frame), theirs.close()))
    sender.start()
    try:
        received = reader.read()
    finally:
        ours.close()
        sender.join(DEADLINE_S)
    assert received is not None
    return received[2]


@pytest.mark.parametrize("arrays", [(), (np.zeros(8, np.int16),), (np.zeros(7, np.uint8),), (np.zeros((), np.uint8),)])
def test_a_message_that_says_it_is_sealed_and_is_not_breaks_its_connection(arrays: tuple[np.ndarray, ...]) -> None:
    frame = b"".join(bytes(piece) for piece in whole(Message(b"x", arrays, Seal()), 1, Kind.REQUEST))
    with pytest.raises((FrameError, PeerUnavailableError), match="is no seal"):
        read(frame)
