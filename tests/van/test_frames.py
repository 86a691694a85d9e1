"""Frames: whatever comes in, a message or a FrameError comes out, and memory stays within the limits."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from eps.errors import ConfigError, FrameError
from eps.net.arrays.api import DTYPES, MAX_FRAME_BYTES, MIB, Limits, Message
from eps.net.arrays.frames import FRAME_HEADER, MAGIC, VERSION, Decoder, Kind, check_message, encode

SMALL = Limits(max_header_bytes=1000, max_message_bytes=2 * MIB, max_arrays=8, max_partial_messages=3)


def frames_of(message: Message, request_id: int = 1, kind: Kind = Kind.REQUEST) -> list[bytes]:
    return list(encode(message, request_id, kind))


def frame(body: bytes, request_id: int = 1, flags: int = 1, kind: int = Kind.REQUEST) -> bytes:
    return FRAME_HEADER.pack(MAGIC, VERSION, kind, flags, request_id, len(body), 0) + body


def description(
    header: int = 0, arrays: tuple[tuple[int, ...], ...] = (), payload: int = 0, num_arrays: int | None = None
) -> bytes:
    count = len(arrays) if num_arrays is None else num_arrays
    return struct.pack("<IIQ", header, count, payload) + b"".join(struct.pack("<BBHI4Q", *array) for array in arrays)


def random_message(rng: np.random.Generator) -> Message:
    arrays = []
    for _ in range(int(rng.integers(0, 6))):
        shape = tuple(int(rng.integers(0, 9)) for _ in range(int(rng.integers(0, 5))))
        if rng.random() < 0.15:
            shape = (int(rng.integers(1, 400_000)),)
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(np.frombuffer(rng.bytes(size), dtype).reshape(shape))
    return Message(rng.bytes(int(rng.integers(0, 200))), tuple(arrays))


def assert_same(received: Message, sent: Message) -> None:
    assert received.header == sent.header
    assert [(a.dtype, a.shape, a.tobytes()) for a in received.arrays] == [
        (a.dtype, a.shape, a.tobytes()) for a in sent.arrays
    ]


def test_messages_survive_frames_of_several_of_them_interleaved() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        sent = {request_id: random_message(rng) for request_id in range(5)}
        queues = {request_id: frames_of(message, request_id) for request_id, message in sent.items()}
        decoder = Decoder(Limits())
        while queues:
            request_id = int(rng.choice(sorted(queues)))
            received = decoder.feed(queues[request_id].pop(0))
            assert (received is not None) == (not queues[request_id]), f"seed {seed}"
            if received is not None:
                assert received.request_id == request_id and received.kind is Kind.REQUEST
                assert_same(received.message, sent[request_id])
                del queues[request_id]


def test_frames_are_full_and_none_is_longer_than_a_mebibyte() -> None:
    message = Message(b"h" * 1000, (np.zeros(3 * MIB + 5, np.uint8), np.zeros(77, np.float64), np.zeros(MIB, np.uint8)))
    lengths = [len(each) for each in frames_of(message)]
    assert lengths[:-1] == [MAX_FRAME_BYTES] * (len(lengths) - 1)
    assert sum(lengths) == check_message(message, Limits()) + len(lengths) * FRAME_HEADER.size


def test_a_long_message_is_encoded_frame_by_frame() -> None:
    big = np.zeros(32 * MIB, np.uint8)
    tracemalloc.start()
    for each in encode(Message(b"", (big,)), 1, Kind.REQUEST):
        assert len(each) <= MAX_FRAME_BYTES
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 * MIB


def test_the_longest_header_fits_beside_the_most_arrays() -> None:
    limits = Limits()
    message = Message(bytes(limits.max_header_bytes), tuple(np.full(1, i) for i in range(limits.max_arrays)))
    check_message(message, limits)
    received = None
    decoder = Decoder(limits)
    for each in frames_of(message):
        received = decoder.feed(each)
    assert received is not None
    assert_same(received.message, message)


def test_limits_that_a_first_frame_cannot_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="first frame"):
        Limits(max_header_bytes=MAX_FRAME_BYTES)


GOOD = frames_of(Message(b"head", (np.arange(3, dtype=np.int32),)))[0]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "longer than its header"),
        (GOOD[: FRAME_HEADER.size], "longer than its header"),
        (bytes(MAX_FRAME_BYTES + 1), "at most"),
        (b"HTTP" + GOOD[4:], "must start with"),
        (GOOD[:4] + b"\x02" + GOOD[5:], "version 2"),
        (GOOD[:5] + b"\x09" + GOOD[6:], "kind 9"),
        (GOOD[:6] + b"\x05\x00" + GOOD[8:], "flags"),
        (GOOD[:20] + b"\x01" + GOOD[21:], "reserved"),
        (GOOD[:-1], "announced"),
        (GOOD + b"x", "announced"),
        (frame(b"short"), "no description"),
        (frame(description(), flags=0), "did not start"),
        (frame(description(header=1001) + bytes(1001)), "1000 is the limit"),
        (frame(description(num_arrays=9)), "8 is the limit"),
        (frame(description(num_arrays=8)), "the frame has"),
        (frame(description(header=10)), "the frame has"),
        (frame(description(payload=1 << 63)), "its arrays need 0"),
        (frame(description(arrays=((0, 1, 0, 0, 2 * MIB, 0, 0, 0),), payload=2 * MIB)), "bytes are left"),
        (frame(description(payload=8)), "its arrays need 0"),
        (frame(description(arrays=((7, 1, 0, 0, 1, 0, 0, 0),), payload=1)), "array type 7"),
        (frame(description(arrays=((0, 5, 0, 0, 1, 1, 1, 1),), payload=1)), "5 dimensions"),
        (frame(description(arrays=((0, 1, 0, 0, 1, 1, 0, 0),), payload=1)), "must be 0"),
        (frame(description(arrays=((0, 1, 1, 0, 1, 0, 0, 0),), payload=24)), "on a transport without any"),
        (frame(description(arrays=((0, 1, 2, 0, 1, 0, 0, 0),), payload=1)), "must be 0"),
        (frame(description(arrays=((6, 2, 0, 0, 1 << 63, 1 << 63, 0, 0),), payload=8)), "its arrays need"),
        (frame(description(arrays=((6, 2, 0, 0, 0, (1 << 64) - 1, 0, 0),))), "beyond any memory"),
        (frame(description(arrays=((0, 1, 0, 0, 2, 0, 0, 0),), payload=2) + b"abc"), "but 3 came"),
    ],
)
def test_a_damaged_frame_is_refused(bad: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        Decoder(SMALL).feed(bad)


def test_a_kind_that_this_end_does_not_receive_is_refused() -> None:
    with pytest.raises(FrameError, match="kind 2"):
        Decoder(SMALL, (Kind.REQUEST,)).feed(frames_of(Message(), kind=Kind.REPLY)[0])


def test_a_message_that_starts_again_or_changes_its_kind_is_refused() -> None:
    first, second = frames_of(Message(b"", (np.zeros(MIB + MIB // 2, np.uint8),)))
    for wrong in (first, second[:5] + bytes([Kind.REPLY]) + second[6:]):
        decoder = Decoder(SMALL)
        decoder.feed(first)
        with pytest.raises(FrameError):
            decoder.feed(wrong)


def test_incomplete_messages_share_one_limit_of_memory() -> None:
    decoder = Decoder(SMALL)
    start = frames_of(Message(b"", (np.zeros(MIB + MIB // 2, np.uint8),)), 1)[0]
    decoder.feed(start)
    with pytest.raises(FrameError, match="bytes are left"):
        decoder.feed(frames_of(Message(b"", (np.zeros(MIB + MIB // 2, np.uint8),)), 2)[0])


def test_incomplete_messages_are_limited_in_number() -> None:
    decoder = Decoder(SMALL)
    announced = description(arrays=((0, 1, 0, 0, 100, 0, 0, 0),), payload=100)
    for request_id in range(3):
        assert decoder.feed(frame(announced, request_id)) is None
    with pytest.raises(FrameError, match="more than 3"):
        decoder.feed(frame(announced, 3))


def test_nothing_is_reserved_for_what_is_refused() -> None:
    limits = Limits(max_message_bytes=MIB)
    bad = frame(description(arrays=((0, 1, 0, 0, 64 * MIB, 0, 0, 0),), payload=64 * MIB))
    tracemalloc.start()
    with pytest.raises(FrameError):
        Decoder(limits).feed(bad)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < MIB


def test_mutated_frames_give_messages_or_frame_errors_within_the_limits() -> None:
    limits = Limits(max_header_bytes=1000, max_message_bytes=64 * 1024, max_arrays=16, max_partial_messages=4)
    seeds_with_error = 0
    tracemalloc.start()
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        decoder = Decoder(limits)
        try:
            for request_id in range(3):
                arrays = tuple(np.zeros(int(n), DTYPES[int(n) % 7]) for n in rng.integers(0, 300, size=3))
                (whole,) = frames_of(Message(rng.bytes(20), arrays), request_id)
                damaged = bytearray(whole)
                for _ in range(int(rng.integers(0, 4))):
                    # Mostly where the lengths are: damage in the payload is not the decoder's to see.
                    position = int(rng.integers(len(damaged) if rng.random() < 0.2 else min(180, len(damaged))))
                    damaged[position] = int(rng.choice([0, 1, 2, 127, 128, 255, int(rng.integers(256))]))
                if rng.random() < 0.2:
                    damaged = damaged[: int(rng.integers(len(damaged) + 1))]
                    if len(damaged) >= FRAME_HEADER.size:
                        damaged[16:20] = struct.pack("<I", len(damaged) - FRAME_HEADER.size)
                decoder.feed(bytes(damaged))
        except FrameError:
            seeds_with_error += 1
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 500 < seeds_with_error < 3000
    assert peak_bytes < 8 * limits.max_message_bytes


def test_random_bytes_are_never_a_message() -> None:
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        noise = rng.bytes(int(rng.integers(0, 300)))
        for candidate in (noise, frame(noise), frame(noise, flags=0)):
            try:
                Decoder(SMALL).feed(candidate)
            except FrameError:
                continue
            # Noise behind a good frame header can describe an empty message only.
            assert candidate != noise
