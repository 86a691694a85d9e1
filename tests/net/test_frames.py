"""Frames: any input gives a message or a FrameError, and memory stays within the limits."""

from __future__ import annotations

import math
import socket
import struct
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eps.errors import FrameError, PeerUnavailableError
from eps.net.arrays.api import DTYPES, MIB, Limits, Message, ReplyTo, Seal
from eps.net.arrays.frames import FRAME_HEADER, MAGIC, SEAL_BYTES, VERSION, Kind, checksum_of, sealed, whole
from eps.net.arrays.reader import StreamReader
from eps.net.arrays.sockets import SocketVan
from eps.net.arrays.wires import PlainWire
from tests.net.raw_peers import DEADLINE_S, TOKEN, Pieces, ask, frame_of, said_by

SMALL = Limits(max_header_bytes=1000, max_message_bytes=2 * MIB, max_arrays=8)


def frame(body: bytes, request_id: int = 1, flags: int = 1, kind: int = Kind.REQUEST) -> bytes:
    return FRAME_HEADER.pack(MAGIC, VERSION, kind, flags, request_id, len(body), 0) + body


def description(
    header: int = 0, arrays: tuple[tuple[int, ...], ...] = (), payload: int = 0, num_arrays: int | None = None
) -> bytes:
    count = len(arrays) if num_arrays is None else num_arrays
    return struct.pack("<IIQ", header, count, payload) + b"".join(struct.pack("<BBHI4Q", *array) for array in arrays)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    arrays = []
    for _ in range(draw(st.integers(0, 5))):
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(
            st.lists(st.integers(0, 8), max_size=4) | st.lists(st.integers(1, 400_000), min_size=1, max_size=1)
        )
        array = np.resize(np.frombuffer(draw(st.binary(min_size=8, max_size=40))[:8], dtype), math.prod(shape))
        arrays.append(array.reshape(shape))
    return Message(draw(st.binary(max_size=200)), tuple(arrays))


def read(content: bytes, limits: Limits = SMALL, kinds: tuple[Kind, ...] = (Kind.REQUEST,)) -> object:
    """Return the one message that ``content`` brings, as :func:`said_by` does; None where it ends before."""
    reader = StreamReader(Pieces(content), limits, kinds)  # type: ignore[arg-type]
    try:
        received = reader.read()
    except PeerUnavailableError:
        return None
    assert received is not None
    kind, request_id, message = received
    return kind, request_id, message.header, [(a.dtype.str, a.shape, a.tobytes()) for a in message.arrays]


@given(messages(), st.integers(0, (1 << 64) - 1))
def test_a_message_is_read_as_it_was_written_and_as_the_layout_says(sent: Message, request_id: int) -> None:
    frame = frame_of(sent, request_id)
    found = read(frame, Limits())
    assert found == said_by(frame, 1 << 24)
    arrays = [(a.dtype.str, a.shape, a.tobytes()) for a in sent.arrays]
    assert found == (Kind.REQUEST, request_id, sent.header, arrays)


GOOD = frame_of(Message(b"head", (np.arange(3, dtype=np.int32),)))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"HTTP" + GOOD[4:], "must start with"),
        (GOOD[:4] + b"\x02" + GOOD[5:], "version 2"),
        (GOOD[:5] + b"\x09" + GOOD[6:], "kind 9"),
        (GOOD[:6] + b"\x05\x00" + GOOD[8:], "flags"),
        (GOOD[:20] + b"\x01" + GOOD[21:], "reserved"),
        (frame(description(), flags=0), "continues a message"),
        (frame(description(header=1001) + bytes(1001)), "1000 is the limit"),
        (frame(description(num_arrays=9)), "8 is the limit"),
        (frame(description(payload=1 << 63)), "its arrays need 0"),
        (frame(description(arrays=((0, 1, 0, 0, 2 * MIB, 0, 0, 0),), payload=2 * MIB)), "is announced"),
        (frame(description(payload=8)), "its arrays need 0"),
        (frame(description(arrays=((7, 1, 0, 0, 1, 0, 0, 0),), payload=1)), "array type 7"),
        (frame(description(arrays=((0, 5, 0, 0, 1, 1, 1, 1),), payload=1)), "5 dimensions"),
        (frame(description(arrays=((0, 1, 0, 0, 1, 1, 0, 0),), payload=1)), "must be 0"),
        (frame(description(arrays=((0, 1, 1, 0, 1, 0, 0, 0),), payload=24)), "on a transport without shared memory"),
        (frame(description(arrays=((0, 1, 2, 0, 1, 0, 0, 0),), payload=1)), "must be 0"),
        (frame(description(arrays=((6, 2, 0, 0, 1 << 63, 1 << 63, 0, 0),), payload=8)), "its arrays need"),
        (frame(description(arrays=((6, 2, 0, 0, 0, (1 << 64) - 1, 0, 0),))), "too large"),
    ],
)
def test_a_damaged_frame_is_refused(bad: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        read(bad)


def test_nothing_is_reserved_for_what_is_refused() -> None:
    limits = Limits(max_message_bytes=MIB)
    bad = frame(description(arrays=((0, 1, 0, 0, 64 * MIB, 0, 0, 0),), payload=64 * MIB))
    tracemalloc.start()
    with pytest.raises(FrameError):
        read(bad, limits)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < MIB


def test_a_kind_that_this_end_does_not_receive_is_refused() -> None:
    with pytest.raises(FrameError, match="kind 2"):
        read(frame_of(Message(), kind=Kind.REPLY))


DAMAGED_LIMITS = Limits(max_header_bytes=1000, max_message_bytes=64 * 1024, max_arrays=16)
#: Mostly where the lengths are: damage in the payload is not the reader's to see.
DAMAGE = st.lists(
    st.tuples(
        st.integers(0, 179) | st.integers(0, 5000), st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255)
    ),
    max_size=3,
)


@given(st.lists(st.integers(0, 300), min_size=3, max_size=3), DAMAGE, st.none() | st.integers(0, 5000))
@example([1, 2, 3], [], None)
@example([1, 2, 3], [(4, 255)], None)
def test_a_damaged_frame_is_what_its_layout_says_or_refused(
    lengths: list[int], damage: list[tuple[int, int]], cut: int | None
) -> None:
    """Each outcome is held against a reader of the layout that shares no code with the van's."""
    arrays = tuple(np.zeros(n, DTYPES[n % 7]) for n in lengths)
    damaged = bytearray(frame_of(Message(bytes(range(20)), arrays), 3))
    for position, byte in damage:
        damaged[position % len(damaged)] = byte
    if cut is not None and cut < len(damaged):
        damaged = damaged[:cut]
        if len(damaged) >= FRAME_HEADER.size:
            damaged[16:20] = struct.pack("<I", len(damaged) - FRAME_HEADER.size)
    expected = said_by(bytes(damaged), DAMAGED_LIMITS.max_message_bytes)
    tracemalloc.start()
    try:
        found = read(bytes(damaged), DAMAGED_LIMITS)
    except FrameError:
        found = None
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == (expected if expected is not None and expected[0] == Kind.REQUEST else None)
    assert peak_bytes < 8 * DAMAGED_LIMITS.max_message_bytes


@given(st.binary(max_size=300))
def test_random_bytes_are_what_their_layout_says_or_refused(noise: bytes) -> None:
    for candidate in (noise, frame(noise), frame(noise, flags=0)):
        try:
            found = read(candidate)
        except FrameError:
            found = None
        assert found == said_by(candidate)


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
    back = ask(connection, sent)
    # A small one after it: the frame before it was another kind of one.
    assert ask(connection, Message(b"y", arrays)).seal is not None
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
        received = read_sealed(bytes(frame) if position is None else flipped(frame, position))
        assert received.seal is not None
        assert (received.seal.arrived == received.seal.left) == (position is None)


def flipped(frame: bytearray, position: int) -> bytes:
    changed = bytearray(frame)
    changed[position] ^= 1
    return bytes(changed)


def read_sealed(frame: bytes) -> Message:
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
    with pytest.raises((FrameError, PeerUnavailableError), match="is not a seal"):
        read_sealed(frame)
