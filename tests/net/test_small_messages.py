"""The fast way of small messages: the same bytes, the same messages and the same refusals as the long way."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from eps.errors import DeadlineError, FrameError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import ALIGNMENT_BYTES, DTYPES, MIB, Limits, Message, Waiting
from eps.net.arrays.connection import PendingRequests
from eps.net.arrays.frames import Kind, SmallFrames
from eps.net.arrays.reader import StreamReader
from eps.net.arrays.wires import PlainWire
from eps.net.arrays.writer import StreamWriter
from tests.net.raw_peers import DEADLINE_S, Pieces, frame_of, receive

KINDS = (Kind.REQUEST, Kind.REPLY)
SMALL = Message(b"header", (np.arange(100, dtype=np.float32),))
MESSAGES = {
    "nothing": Message(),
    "a header": Message(b"header"),
    "an array": SMALL,
    "a scalar": Message(b"", (np.array(3.0),)),
    "no items": Message(b"x", (np.empty((0, 4), np.int64), np.empty(0, np.uint8))),
    "several": Message(b"y", (np.arange(3, dtype=np.uint8), np.ones((2, 3)), np.arange(70, dtype=np.int32))),
    "every type": Message(b"z" * 100, tuple(np.arange(5).astype(dtype) for dtype in DTYPES)),
    "read-only": Message(b"", (np.broadcast_to(np.float32(1), (1,)),)),
}


def read_all(content: bytes, lengths: Sequence[int] = ()) -> list[object]:
    """Return what a reader makes of bytes, in a form that can be compared; a refusal is the last entry."""
    reader = StreamReader(Pieces(content, lengths), Limits(max_message_bytes=MIB), KINDS)  # type: ignore[arg-type]
    found: list[object] = []
    try:
        while (received := reader.read()) is not None:
            kind, request_id, message = received
            for array in message.arrays:
                assert array.nbytes == 0 or array.__array_interface__["data"][0] % array.itemsize == 0
            if message.arrays and message.arrays[0].nbytes:
                assert message.arrays[0].__array_interface__["data"][0] % ALIGNMENT_BYTES == 0
            arrays = [(array.dtype.str, array.shape, array.tobytes()) for array in message.arrays]
            found.append((kind, request_id, message.header, arrays))
    except PeerUnavailableError:
        return found
    except FrameError as error:
        return [*found, str(error)]
    return found


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_small_frame_is_the_frame_that_any_message_has(message: Message) -> None:
    frames = SmallFrames(Limits())
    for request_id in (1, 2, 2**64 - 1):
        for kind in KINDS:
            assert frames.frame(message, request_id, kind) == frame_of(message, request_id, kind)


def test_what_is_large_or_not_contiguous_has_no_small_frame() -> None:
    frames = SmallFrames(Limits())
    square = np.zeros((4, 4))
    assert frames.frame(Message(b"", (square,)), 1, Kind.REQUEST) is not None
    for array in (square.T[:2], np.asfortranarray(square), square[:, ::2], np.zeros(10_000)):
        assert frames.frame(Message(b"", (array,)), 1, Kind.REQUEST) is None
    assert frames.frame(Message(bytes(10_000)), 1, Kind.REQUEST) is None


def test_a_small_message_that_no_van_carries_is_refused_also_the_second_time() -> None:
    frames = SmallFrames(Limits(max_header_bytes=10, max_arrays=2))
    for _ in range(2):
        for bad in (
            Message(bytes(11)),
            Message(b"", (np.zeros(1),) * 3),
            Message(b"", (np.zeros(1, ">f4"),)),
            Message(b"", (np.zeros(1, bool),)),
            Message(b"", (np.zeros((1,) * 5),)),
        ):
            with pytest.raises(ProtocolError):
                frames.frame(bad, 1, Kind.REQUEST)


def test_what_is_remembered_of_messages_is_bounded() -> None:
    frames = SmallFrames(Limits())
    reader = StreamReader(
        Pieces(b"".join(frame_of(Message(bytes(length))) for length in range(1000))),  # type: ignore[arg-type]
        Limits(),
        KINDS,
    )
    for length in range(1000):
        frames.frame(Message(bytes(length)), 1, Kind.REQUEST)
        received = reader.read()
        assert received is not None and len(received[2].header) == length
    assert len(frames._layouts) <= 256 and len(reader._known) <= 256


def test_messages_are_the_same_whatever_came_before_them_and_however_they_are_cut() -> None:
    rng = random.Random(0)
    messages = [*MESSAGES.values(), Message(b"long", (np.arange(30_000.0),)), Message(bytes(70_000))]
    for _ in range(100):
        chosen = [messages[i] for i in rng.choices(range(len(messages)), k=6) for _ in range(rng.choice((1, 1, 3)))]
        frames = [frame_of(message, rng.getrandbits(64), rng.choice(KINDS)) for message in chosen]
        alone = [found for frame in frames for found in read_all(frame)]
        assert len(alone) == len(frames)
        lengths = [rng.choice((1, 7, 24, 40, 100, 500, 5000)) for _ in range(rng.choice((0, 20, 400)))]
        assert read_all(b"".join(frames), lengths) == alone


def test_a_damaged_frame_after_one_like_it_is_taken_as_if_it_came_alone() -> None:
    for message in (SMALL, MESSAGES["several"], MESSAGES["a header"]):
        whole = frame_of(message, 7)
        first = read_all(whole)
        for place in range(len(whole)):
            for change in (1, 0x80, 0xFF):
                damaged = bytearray(whole)
                damaged[place] ^= change
                assert read_all(whole + damaged) == first + read_all(bytes(damaged)), (place, change)


def test_small_frames_wait_behind_what_the_peer_does_not_take_and_stay_in_order() -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(DEADLINE_S)
    reasons: list[str] = []
    writer = StreamWriter(PlainWire(ours), Limits(max_outgoing_bytes=MIB), "eps-van-test", reasons.append, 0.05)
    accepted = 0
    with pytest.raises(DeadlineError, match="is the limit"):
        while True:
            assert writer.send_frame(accepted.to_bytes(4, "little") + bytes(3000))
            accepted += 1
    assert accepted * 3004 < 20 * MIB, "the limit, and what the system's buffers hold"
    for number in range(accepted):
        assert receive(theirs, 3004) == number.to_bytes(4, "little") + bytes(3000)
    assert writer.send_frame(b"room again")
    assert receive(theirs, 10) == b"room again"
    assert reasons == []
    ours.shutdown(socket.SHUT_RDWR)
    assert writer.send_frame(b"lost") and len(reasons) == 1
    writer.close()
    assert not writer.send_frame(b"closed")
    ours.close()
    theirs.close()


def test_a_request_that_is_made_while_a_connection_ends_fails_or_is_refused() -> None:
    for _ in range(10):
        pending = PendingRequests()
        waiting: list[Waiting] = []
        begun = threading.Event()

        def add(
            pending: PendingRequests = pending, into: list[Waiting] = waiting, begun: threading.Event = begun
        ) -> None:
            with pytest.raises(PeerUnavailableError, match="over"):
                while True:
                    into.append(pending.add_waiting()[1])
                    begun.set()

        threads = [threading.Thread(target=add) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert begun.wait(DEADLINE_S)
        pending.fail_all("over")
        for thread in threads:
            thread.join(DEADLINE_S)
        assert all(isinstance(one.outcome, PeerUnavailableError) for one in waiting)
        assert not pending._futures
