"""Wrong descriptors, segments and leases from a peer of the shared-memory transport."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from eps.core.types import Address
from eps.errors import PeerUnavailableError
from eps.net.arrays.api import Connection, Message
from eps.net.arrays.frames import FRAME_HEADER, LENT, MAGIC, VERSION, Kind, control
from eps.net.arrays.sockets import SocketVan
from tests.net.raw_peers import (
    DEADLINE_S,
    TOKEN,
    RawListener,
    accept_handshake,
    ask,
    descriptors,
    dial,
    echo,
    end_sending,
    eventually,
    frame_of,
    nothing_left,
    proven,
    receive,
    rest,
    said_by,
    send,
    still_works,
)
from tests.tiers import until_met

SEGMENT_BYTES = 8192
#: Written at the start of each segment that is good.
FLOATS = np.arange(SEGMENT_BYTES // 8, dtype=np.float64)
_F_ADD_SEALS, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1033, 2, 4, 8
BEYOND = (1 << 64) - 1


@contextmanager
def memory_file(size_bytes: int = SEGMENT_BYTES, seals: int = _SEAL_SHRINK | _SEAL_GROW) -> Iterator[int]:
    descriptor = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, FLOATS.tobytes()[:size_bytes])
        os.ftruncate(descriptor, size_bytes)
        if seals:
            fcntl.fcntl(descriptor, _F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)


def lent_request(
    segment: int = 1, offset: int = 0, shape: tuple[int, ...] = (4,), dtype_number: int = 6, kind: Kind = Kind.REQUEST
) -> bytes:
    """Return a request with one array that lies in shared memory; of float64, unless told otherwise."""
    lengths = (*shape, *(0,) * (4 - len(shape)))
    body = struct.pack("<IIQ", 0, 1, LENT.size) + struct.pack("<BBHI4Q", dtype_number, len(shape), 1, 0, *lengths)
    body += LENT.pack(segment, offset, 1)
    return FRAME_HEADER.pack(MAGIC, VERSION, kind, 1, 1, len(body), 0) + body


def segment_frame(number: int = 1, size_bytes: int = SEGMENT_BYTES) -> bytes:
    return control(Kind.SEGMENT, struct.pack("<QQ", number, size_bytes))


def numbers_frame(kind: Kind, *numbers: int) -> bytes:
    return control(kind, struct.pack(f"<{len(numbers)}Q", *numbers))


class Member:
    """A listener with shared memory, a connection from before the attack, and a peer that attacks."""

    def __init__(self, address: Address, good: Connection) -> None:
        self._address = address
        self.good = good

    @contextmanager
    def peer(self) -> Iterator[socket.socket]:
        number = len(descriptors())
        with proven(self._address, "shm") as sock:
            yield sock
        eventually(lambda: len(descriptors()) <= number, "the descriptors that were sent are given back")
        still_works(self.good)

    def tell(self, *contents: bytes, passed: tuple[int, ...] = ()) -> bytes:
        """Send descriptors with the first content, then the others; return all that is answered."""
        with self.peer() as sock:
            socket.send_fds(sock, [contents[0]], passed)
            for content in contents[1:]:
                send(sock, content)
            end_sending(sock)
            return rest(sock)


def members() -> Iterator[Member]:
    van = SocketVan("shm", TOKEN)
    listener = van.listen(echo)
    good = van.connect(listener.address, DEADLINE_S)
    # Segments of the good connection are passed before descriptors are counted.
    still_works(good)
    yield Member(listener.address, good)
    good.close()
    listener.close()


@pytest.fixture
def member() -> Iterator[Member]:
    with nothing_left():
        yield from members()


def reply_of(answer: bytes) -> np.ndarray:
    found = said_by(answer)
    assert found is not None and found[0] == Kind.REPLY
    dtype, shape, content = found[3][0]
    return np.frombuffer(content, dtype).reshape(shape)


def test_an_array_of_a_segment_that_is_as_it_should_be_is_taken(member: Member) -> None:
    """The other tests of this file would pass with a listener that refuses everything."""
    with memory_file() as good:
        for offset, count in ((0, 4), (64, 100), (SEGMENT_BYTES - 8, 1), (0, SEGMENT_BYTES // 8)):
            answer = member.tell(segment_frame(), lent_request(offset=offset, shape=(count,)), passed=(good,))
            assert reply_of(answer).tolist() == FLOATS[offset // 8 : offset // 8 + count].tolist()


def test_a_segment_without_a_descriptor_is_refused(member: Member) -> None:
    assert member.tell(segment_frame(), lent_request()) == b""


def test_descriptors_that_are_no_sealed_memory_are_refused(member: Member, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    plain = os.open(tmp_path / "plain", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain, SEGMENT_BYTES)
    directory = os.open(tmp_path, os.O_RDONLY)
    one, other = socket.socketpair()
    for descriptor in (reading, writing, plain, directory, one.fileno()):
        assert member.tell(segment_frame(), lent_request(), passed=(descriptor,)) == b""
    for descriptor in (reading, writing, plain, directory):
        os.close(descriptor)
    one.close()
    other.close()
    for seals in (0, _SEAL_GROW, _SEAL_GROW | _SEAL_WRITE):
        with memory_file(seals=seals) as unsealed:
            assert member.tell(segment_frame(), lent_request(), passed=(unsealed,)) == b""


@pytest.mark.parametrize("announced", [0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES + 1, 1 << 40, 1 << 63, BEYOND])
def test_a_segment_of_another_size_than_announced_is_refused(member: Member, announced: int) -> None:
    with memory_file() as good:
        assert member.tell(segment_frame(size_bytes=announced), lent_request(), passed=(good,)) == b""


def test_an_empty_segment_and_one_that_nobody_can_map_are_refused(member: Member) -> None:
    for size_bytes in (0, 1 << 62):
        with memory_file(size_bytes) as odd:
            assert member.tell(segment_frame(size_bytes=size_bytes), lent_request(), passed=(odd,)) == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        lent_request(segment=2),
        lent_request(segment=0),
        lent_request(segment=BEYOND),
        lent_request(offset=SEGMENT_BYTES),
        lent_request(offset=SEGMENT_BYTES - 24),
        lent_request(offset=BEYOND),
        lent_request(offset=BEYOND - 7),
        lent_request(offset=BEYOND - 31),
        lent_request(offset=4),
        lent_request(offset=1, dtype_number=1),
        lent_request(shape=(SEGMENT_BYTES // 8 + 1,)),
        lent_request(shape=(1 << 61,)),
        lent_request(shape=(1 << 63,)),
        lent_request(shape=(1 << 32, 1 << 32)),
        lent_request(shape=(1 << 32, 1 << 29)),
        lent_request(shape=(3, 12297829382413034411), dtype_number=0),
        lent_request(shape=(BEYOND, BEYOND, BEYOND, BEYOND)),
    ],
    ids=lambda each: "",
)
def test_an_array_that_does_not_lie_in_its_segment_is_refused(member: Member, request_bytes: bytes) -> None:
    with memory_file() as good:
        assert member.tell(segment_frame(), request_bytes, passed=(good,)) == b""


def test_an_array_of_no_elements_may_lie_anywhere_in_a_segment(member: Member) -> None:
    with memory_file() as good:
        answer = member.tell(segment_frame(), lent_request(offset=SEGMENT_BYTES, shape=(0,)), passed=(good,))
    assert reply_of(answer).shape == (0,)


def test_a_segment_is_passed_once(member: Member) -> None:
    with memory_file() as good:
        assert member.tell(segment_frame(), segment_frame(), lent_request(), passed=(good, good)) == b""


@pytest.mark.parametrize(
    ("kind", "size_bytes"),
    [(kind, size) for kind in (Kind.SEGMENT, Kind.FORGET, Kind.RELEASE) for size in (0, 1, 7, 32 * 1024 + 8)]
    + [(Kind.SEGMENT, 8), (Kind.SEGMENT, 24)],
)
def test_transport_frames_of_wrong_lengths_are_refused(member: Member, kind: Kind, size_bytes: int) -> None:
    with memory_file() as good:
        assert member.tell(control(kind, bytes(size_bytes)), frame_of(Message(b"x")), passed=(good,)) == b""


def test_giving_back_what_was_never_lent_and_forgetting_what_was_never_passed_do_nothing(member: Member) -> None:
    answer = member.tell(
        numbers_frame(Kind.RELEASE, 0, 1, 2, 3, BEYOND, 1, 1),
        numbers_frame(Kind.FORGET, 0, 1, BEYOND),
        frame_of(Message(b"x")),
    )
    assert answer == frame_of(Message(b"x"), kind=Kind.REPLY)


def test_a_segment_that_was_forgotten_is_unknown_and_may_be_passed_again(member: Member) -> None:
    with memory_file() as good:
        forget = numbers_frame(Kind.FORGET, 1)
        assert member.tell(segment_frame(), forget, lent_request(), passed=(good,)) == b""
        answer = member.tell(segment_frame(), forget, segment_frame(), lent_request(), passed=(good, good))
    assert reply_of(answer).tolist() == FLOATS[:4].tolist()


def test_descriptors_that_no_segment_needs_are_limited(member: Member) -> None:
    reading, writing = os.pipe()
    before = len(descriptors())
    most = 0
    with member.peer() as sock:
        try:
            for _ in range(200):
                socket.send_fds(sock, [numbers_frame(Kind.FORGET, 1)], [reading] * 10)
                most = max(most, len(descriptors()))
        except OSError:
            # The listener has had enough.
            pass
        end_sending(sock)
        assert rest(sock) == b""
    os.close(reading)
    os.close(writing)
    assert most < before + 400


def test_more_descriptors_at_once_than_are_looked_for_are_dropped_by_the_system(member: Member) -> None:
    reading, writing = os.pipe()
    for _ in range(5):
        answer = member.tell(frame_of(Message(b"x")), passed=(reading,) * 200)
        assert answer in (b"", frame_of(Message(b"x"), kind=Kind.REPLY))
    os.close(reading)
    os.close(writing)


def test_descriptors_sent_before_the_handshake_are_dropped(member: Member) -> None:
    reading, writing = os.pipe()
    number = len(descriptors())
    with dial(member._address) as sock:
        socket.send_fds(sock, [b"EPSH"], [reading] * 20)
        end_sending(sock)
        assert rest(sock) == b""
    eventually(lambda: len(descriptors()) <= number, "the descriptors are dropped")
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_other_transports_know_no_segments(way: str) -> None:
    with nothing_left():
        van = SocketVan(way, TOKEN)
        listener = van.listen(echo)
        good = van.connect(listener.address, DEADLINE_S)
        for content in (segment_frame(), numbers_frame(Kind.FORGET, 1), numbers_frame(Kind.RELEASE, 1), lent_request()):
            number = len(descriptors())
            with proven(listener.address, way) as sock, memory_file() as memory:
                if way == "unix":
                    socket.send_fds(sock, [content], [memory] * 20)
                else:
                    send(sock, content)
                end_sending(sock)
                assert rest(sock) == b""
            eventually(lambda number=number: len(descriptors()) <= number, "descriptors are dropped")  # type: ignore[misc]
            still_works(good)
        good.close()
        listener.close()


def test_random_transport_frames_are_answered_up_to_the_first_that_breaks_the_rules(member: Member) -> None:
    answered = broken = 0
    for number_of_case, seed in enumerate(until_met()):
        if number_of_case >= 60 and answered > 15 and broken > 15:
            return
        rng = np.random.default_rng(seed)
        passed = int(rng.integers(0, 4))
        known, contents, expected, goes_on = set[int](), list[bytes](), b"", True
        left = passed
        for _ in range(int(rng.integers(1, 8))):
            choice, number = int(rng.integers(4)), int(rng.integers(0, 3))
            reply = b""
            if choice == 0:
                size_bytes = int(rng.choice([SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES, 4096]))
                contents.append(segment_frame(number, size_bytes))
                goes_on &= left > 0 and size_bytes == SEGMENT_BYTES and number not in known
                left -= 1
                known.add(number)
            elif choice == 1:
                kind = Kind(int(rng.choice([Kind.FORGET, Kind.RELEASE])))
                contents.append(numbers_frame(kind, number))
                known -= {number} if kind is Kind.FORGET else set()
            elif choice == 2:
                offset, count = int(rng.choice([0, 8, 8, 1, SEGMENT_BYTES])), int(rng.choice([1, 4, 1023, 1025]))
                contents.append(lent_request(number, offset, (count,)))
                goes_on &= number in known and offset % 8 == 0 and offset + 8 * count <= SEGMENT_BYTES
                reply = frame_of(Message(b"", (FLOATS[offset // 8 : offset // 8 + count],)), kind=Kind.REPLY)
            else:
                message = Message(rng.bytes(5))
                contents.append(frame_of(message))
                reply = frame_of(message, kind=Kind.REPLY)
            expected += reply if goes_on else b""
        with memory_file() as good:
            assert member.tell(*contents, passed=(good,) * passed) == expected, f"seed {seed}"
        answered += bool(expected)
        broken += not goes_on
    raise AssertionError((answered, broken))


@pytest.mark.parametrize(
    "content",
    [
        segment_frame(),
        numbers_frame(Kind.RELEASE, 1),
        lent_request(kind=Kind.REPLY),
        lent_request(kind=Kind.REPLY, shape=(1 << 32, 1 << 32)),
    ],
    ids=["segment without descriptor", "release", "unknown segment", "too large"],
)
def test_a_connector_is_not_harmed_by_a_listener_that_lies_about_segments(content: bytes) -> None:
    def play(sock: socket.socket) -> None:
        accept_handshake(sock, "shm")
        receive(sock, 40)
        with memory_file() as good:
            if content[5] == Kind.REPLY and b"\0\0\0\0\1" in content[-LENT.size :]:
                socket.send_fds(sock, [segment_frame(number=9)], [good])
            send(sock, content)
            end_sending(sock)
            rest(sock)

    with nothing_left(), RawListener(play, unix=True) as listener:
        connection = SocketVan("shm", TOKEN).connect(listener.address, DEADLINE_S)
        with pytest.raises(PeerUnavailableError):
            ask(connection, Message())
        connection.close()


def test_what_a_hostile_peer_mapped_here_is_unmapped() -> None:
    def mapped() -> int:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return sum("memfd:hostile" in line for line in maps)

    assert mapped() == 0
    listener = SocketVan("shm", TOKEN).listen(echo)
    with proven(listener.address, "shm") as sock, memory_file() as good:
        for number in range(20):
            socket.send_fds(sock, [segment_frame(number)], [good])
        send(sock, lent_request(segment=3))
        assert receive(sock, 40)
        assert mapped() == 20
        send(sock, numbers_frame(Kind.FORGET, *range(10)) + lent_request(segment=13))
        eventually(lambda: mapped() == 10, "those that are forgotten are unmapped")
    eventually(lambda: mapped() == 0, "those of a connection that has ended are unmapped")
    listener.close()
