"""Pushes and pulls as messages: packed, cut, lean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from eps.errors import ProtocolError
from eps.net.arrays.api import Limits, Message
from eps.net.arrays.frames import check_message
from eps.net.arrays.memory import Arena
from eps.net.messages.exchange import (
    PLAIN,
    Lean,
    PullAnswer,
    PullPart,
    PushAnswer,
    PushPart,
    build_exchange,
    build_reply,
    pack,
    parse_exchange,
    parse_header,
    parse_reply,
    unpack,
)
from eps.pb import data_pb2 as pb
from eps.worker.push_pull import MESSAGE_BYTES, MESSAGE_PARTS, messages_of

LONGEST = 1 << 20


def pushes_of(total: np.ndarray, maxima: np.ndarray, num_partitions: int) -> list[PushPart]:
    size, blocks = len(total) // num_partitions, len(maxima) // num_partitions
    return [
        PushPart(
            p,
            5,
            (0, 1),
            10,
            total[p * size : (p + 1) * size],
            maxima[p * blocks : (p + 1) * blocks],
            keyset=bytes([p % 256]),
        )
        for p in range(num_partitions)
    ]


def parsed(pushes: list[PushPart], pulls: list[PullPart], lean: Lean = PLAIN) -> tuple[list[PushPart], list[PullPart]]:
    message = build_exchange(pushes, pulls, lean)
    return parse_exchange(parse_header(message).exchange, message.arrays, LONGEST)


@pytest.mark.parametrize("shared", [False, True], ids=["heap", "shared memory"])
def test_sums_that_lie_side_by_side_travel_as_one_array(shared: bool) -> None:
    arena = Arena()
    total = arena.array(120_000, np.int32) if shared else np.empty(120_000, np.int32)
    total[:] = np.arange(120_000)
    maxima = np.arange(24, dtype=np.float32)
    pushes = pushes_of(total, maxima, 12)
    message = build_exchange(pushes, [PullPart(p, 6) for p in range(12)])
    assert len(message.arrays) == 2
    assert np.shares_memory(message.arrays[0], total)
    found, pulls = parse_exchange(parse_header(message).exchange, message.arrays, LONGEST)
    assert len(pulls) == 12
    for got, want in zip(found, pushes, strict=True):
        assert (got.partition, got.clock, got.splits, got.samples, got.keyset) == (
            want.partition,
            want.clock,
            want.splits,
            want.samples,
            want.keyset,
        )
        assert np.array_equal(got.total, want.total) and got.total.dtype == np.int32
        assert np.array_equal(got.maxima, want.maxima)


def test_sums_that_lie_apart_come_back_as_they_were() -> None:
    total, maxima = np.arange(40, dtype=np.int32), np.arange(8, dtype=np.float32)
    pushes = pushes_of(total, maxima, 4)
    for apart in ([pushes[0], pushes[2]], [pushes[1], pushes[0]], pushes[:2] + pushes_of(total.copy(), maxima, 4)[2:]):
        found, _ = parsed(apart, [])
        for got, want in zip(found, apart, strict=True):
            assert np.array_equal(got.total, want.total) and np.array_equal(got.maxima, want.maxima)


def test_what_parts_have_in_common_travels_once() -> None:
    total, maxima = np.arange(40, dtype=np.int32), np.arange(8, dtype=np.float32)
    pushes, pulls = pushes_of(total, maxima, 4), [PullPart(p, 6, bytes([p])) for p in range(4)]
    for sent in (pushes, pushes[::-1]):
        message = build_exchange(sent, pulls)
        exchange = parse_header(message).exchange
        assert len(exchange.pushes) == len(exchange.pulls) == 1
        found, asked = parse_exchange(exchange, message.arrays, LONGEST)
        assert [(p.partition, p.splits, p.keyset) for p in found] == [(p.partition, (0, 1), p.keyset) for p in sent]
        for got, want in zip(found, sent, strict=True):
            assert np.array_equal(got.total, want.total) and np.array_equal(got.maxima, want.maxima)
        assert [(p.partition, p.min_clock, p.keyset) for p in asked] == [(p, 6, bytes([p])) for p in range(4)]


@pytest.mark.parametrize("difference", ["clock", "splits", "samples"])
def test_pushes_that_differ_are_described_apart(difference: str) -> None:
    pushes = pushes_of(np.arange(40, dtype=np.int32), np.arange(8, dtype=np.float32), 4)
    pushes[2] = replace(pushes[2], **{difference: {"clock": 4, "splits": (2,), "samples": 11}[difference]})
    found, pulls = parsed(pushes, [PullPart(0, 6), PullPart(1, 5)])
    assert [(p.clock, p.splits, p.samples) for p in found] == [(p.clock, p.splits, p.samples) for p in pushes]
    assert [p.min_clock for p in pulls] == [6, 5]


@pytest.mark.parametrize(
    ("of", "column"), [("pushes", "partitions"), ("pushes", "keysets"), ("pulls", "partitions"), ("pulls", "keysets")]
)
@pytest.mark.parametrize("apart", [False, True])
def test_columns_of_different_lengths_are_refused(of: str, column: str, apart: bool) -> None:
    pushes = pushes_of(np.arange(40, dtype=np.int32), np.arange(8, dtype=np.float32), 4)
    pulls = [PullPart(p, 6, b"set") for p in range(4)]
    message = build_exchange(pushes[::-1] if apart else pushes, pulls)
    exchange = parse_header(message).exchange
    del getattr(getattr(exchange, of)[0], column)[-1]
    with pytest.raises(ProtocolError):
        parse_exchange(exchange, message.arrays, LONGEST)


def test_parts_that_bring_more_come_back_as_they_were_beside_those_that_do_not() -> None:
    keys = np.array([3, 5, 9], np.int64)
    pushes = pushes_of(np.arange(40, dtype=np.int32), np.arange(8, dtype=np.float32), 4)
    pushes[1] = replace(pushes[1], total=np.arange(3, dtype=np.int32), keys=keys)
    pushes[2] = replace(pushes[2], raw=((0, 1, np.arange(2, dtype=np.float32)), (1, 0, np.ones(5, np.float32))))
    pulls = [PullPart(p, 6, b"set", keys if p in (0, 3) else None) for p in range(4)]
    for sent in (pushes, pushes[::-1]):
        found, asked = parsed(sent, pulls)
        for got, want in zip(found, sent, strict=True):
            assert (got.partition, got.keyset, len(got.raw)) == (want.partition, want.keyset, len(want.raw))
            assert np.array_equal(got.total, want.total) and np.array_equal(got.maxima, want.maxima)
            assert (got.keys is None) == (want.keys is None)
            for one, other in zip(got.raw, want.raw, strict=True):
                assert one[:2] == other[:2] and np.array_equal(one[2], other[2])
        for got_pull, want_pull in zip(asked, pulls, strict=True):
            assert (got_pull.keys is None) == (want_pull.keys is None)
            assert got_pull.keys is None or np.array_equal(got_pull.keys, keys)


def test_what_parts_bring_more_is_of_one_of_them_each() -> None:
    pushes = pushes_of(np.arange(40, dtype=np.int32), np.arange(8, dtype=np.float32), 4)
    pulls = [PullPart(p, 6) for p in range(4)]
    together, apart = build_exchange(pushes, pulls), build_exchange(pushes[::-1], pulls)
    for message, indexes in ((together, [0]), (apart, [4]), (apart, [1, 1])):
        exchange = parse_header(message).exchange
        for index in indexes:
            exchange.pushes[0].extras.add(index=index)
        with pytest.raises(ProtocolError):
            parse_exchange(exchange, message.arrays, LONGEST)
    for indexes in ([4], [1, 1], [1]):
        exchange = parse_header(together).exchange
        exchange.pulls[0].with_keys.extend(indexes)
        with pytest.raises(ProtocolError):
            parse_exchange(exchange, together.arrays, LONGEST)


def test_answers_come_back_as_they_were_given() -> None:
    values, exponents = np.arange(5, dtype=np.float32), np.arange(2, dtype=np.int16)
    served = [PullAnswer(p, 4 + p, values + p, exponents[: p + 1]) for p in range(2)]
    refused = PullAnswer(2, refusal=pb.Refusal(unknown_keyset=True))
    taken, known = [PushAnswer(0), PushAnswer(1)], PushAnswer(2, (1, 4))
    for pushes in ([], taken, [*taken, known]):
        for pulls in ([], served, [*served, refused], [refused, *served]):
            got_pushes, got_pulls = parse_reply(build_reply(pushes, pulls))
            assert [(p.partition, p.have, p.accepted, p.refusal) for p in got_pushes] == [
                (p.partition, p.have, p.accepted, p.refusal) for p in pushes
            ]
            # Those that are served as they are come first.
            for got, want in zip(got_pulls, sorted(pulls, key=lambda p: p.partition), strict=True):
                assert (got.partition, got.refusal) == (want.partition, want.refusal)
                if want.refusal is None:
                    assert got.clock == want.clock
                    assert np.array_equal(got.values, want.values) and np.array_equal(got.exponents, want.exponents)


@pytest.mark.parametrize("column", ["served", "served_clocks", "packed_exponents"])
def test_a_reply_whose_columns_do_not_fit_is_refused(column: str) -> None:
    values, exponents = np.arange(5, dtype=np.float32), np.arange(2, dtype=np.int16)
    message = build_reply([PushAnswer(0)], [PullAnswer(p, 4, values, exponents) for p in range(3)])
    header = parse_header(message)
    del getattr(header.exchange_reply, column)[-1]
    with pytest.raises(ProtocolError):
        parse_reply(Message(header.SerializeToString(), message.arrays))


@pytest.mark.parametrize("shared", [False, True], ids=["heap", "shared memory"])
def test_values_that_lie_side_by_side_travel_as_one_array(shared: bool) -> None:
    arena = Arena()
    values = arena.array(40, np.float32) if shared else np.empty(40, np.float32)
    values[:] = np.arange(40)
    exponents = np.arange(4, dtype=np.int16)
    answers = [PullAnswer(p, 4, values[10 * p : 10 * p + 10], exponents[p : p + 1]) for p in range(4)]
    for chosen, num_arrays in ((answers, 2), (answers[1:3], 2), (answers[::2], 3), (answers[:1], 2)):
        reply = build_reply([], chosen)
        assert len(reply.arrays) == num_arrays
        assert np.shares_memory(reply.arrays[0], values)
        for got, want in zip(parse_reply(reply)[1], chosen, strict=True):
            assert np.array_equal(got.values, want.values) and np.array_equal(got.exponents, want.exponents)
    header = parse_header(build_reply([], answers))
    header.exchange_reply.packed_values[:] = [10, 30]
    with pytest.raises(ProtocolError, match="values of 2"):
        parse_reply(Message(header.SerializeToString(), (values, exponents)))


def test_pushes_without_sums_are_packed_too() -> None:
    empty, maxima = np.empty(0, np.int32), np.arange(8, dtype=np.float32)
    found, _ = parsed(pushes_of(empty, maxima, 4), [])
    assert [len(push.total) for push in found] == [0] * 4
    assert np.concatenate([push.maxima for push in found]).tolist() == maxima.tolist()


@pytest.mark.parametrize("change", ["sum", "maxima", "count"])
def test_packed_sums_that_do_not_fit_their_lengths_are_refused(change: str) -> None:
    message = build_exchange(pushes_of(np.arange(40, dtype=np.int32), np.arange(8, dtype=np.float32), 4), [])
    header = parse_header(message)
    if change == "sum":
        header.exchange.pushes[0].sums[0] += 1
    elif change == "maxima":
        header.exchange.pushes[0].maxima[0] += 1
    else:
        del header.exchange.pushes[-1]
    with pytest.raises(ProtocolError):
        parse_exchange(header.exchange, message.arrays, LONGEST)


def test_only_changes_travel_and_a_partition_without_any_still_completes() -> None:
    total = np.zeros(1000, np.int32)
    total[[3, 501]] = 7, -2
    pushes = pushes_of(total, np.ones(4, np.float32), 4)
    message = build_exchange(pushes, [], Lean(changed_only=True))
    assert sum(array.nbytes for array in message.arrays) < 100
    found, _ = parse_exchange(parse_header(message).exchange, message.arrays, LONGEST)
    assert np.array_equal(np.concatenate([push.total for push in found]), total)
    assert [push.splits for push in found] == [(0, 1)] * 4


def test_an_announced_length_beyond_the_partition_is_refused_before_memory_is_reserved() -> None:
    message = build_exchange(pushes_of(np.zeros(40, np.int32), np.ones(4, np.float32), 4), [], Lean(changed_only=True))
    header = parse_header(message)
    header.exchange.pushes[0].extras[0].form.length = 1 << 50
    with pytest.raises(ProtocolError, match="the limit is"):
        parse_exchange(header.exchange, message.arrays, LONGEST)


def test_float16_keeps_three_digits_of_small_gradients() -> None:
    total = np.random.default_rng(1).normal(scale=1e-6, size=400).astype(np.float32)
    found, _ = parsed(pushes_of(total, np.empty(0, np.float32), 4), [], Lean(float16=True))
    got = np.concatenate([push.total for push in found])
    assert got.dtype == np.float32
    assert np.abs(got - total).max() < 1e-3 * np.abs(total).max()


def test_an_exchange_of_any_number_of_partitions_fits_into_messages() -> None:
    pushes = pushes_of(np.zeros(1100, np.int32), np.zeros(1100, np.float32), 1100)
    pulls = [PullPart(p, 6, size=1) for p in range(1100)]
    for parts in ([*pushes, *pulls], pulls):
        messages = messages_of(parts)
        assert max(map(len, messages)) <= MESSAGE_PARTS + 1
        assert sorted(id(part) for message in messages for part in message) == sorted(map(id, parts))
        for message in messages:
            sent = build_exchange(
                [part for part in message if isinstance(part, PushPart)],
                [part for part in message if isinstance(part, PullPart)],
                Lean(changed_only=True),
            )
            check_message(sent, Limits())
            answers = [PullAnswer(p.partition, 6, np.zeros(1, np.float32)) for p in message if isinstance(p, PullPart)]
            check_message(build_reply([], answers), Limits())


def test_what_comes_back_counts_where_nothing_is_pushed() -> None:
    pulls = [PullPart(p, 0, size=MESSAGE_BYTES // 8) for p in range(6)]
    assert [len(message) for message in messages_of(pulls)] == [2, 2, 2]


def there_and_back(values: np.ndarray) -> np.ndarray:
    form, arrays = pack(values, Lean(float16=True))
    assert form is not None
    return unpack(form, iter(arrays), len(values))


def test_values_that_are_not_finite_leave_the_others_alone() -> None:
    values = np.array([1.0, -np.inf, 3e-3, np.nan, -2e30, np.inf, 1e30], np.float32)
    found = there_and_back(values)
    assert found[1] == -np.inf and found[5] == np.inf and np.isnan(found[3])
    assert np.allclose(found[[4, 6]], values[[4, 6]], rtol=2**-11)
    assert np.isfinite(found[[0, 2]]).all()


def test_arrays_without_a_finite_value_travel_as_they_are() -> None:
    assert there_and_back(np.array([np.inf, -np.inf], np.float32)).tolist() == [np.inf, -np.inf]
    assert np.isnan(there_and_back(np.full(2, np.nan, np.float32))).all()
    assert there_and_back(np.zeros(0, np.float32)).shape == (0,)


def test_eleven_bits_are_kept_down_to_a_share_of_the_largest_value() -> None:
    values = (2.0 ** -np.arange(0, 30, 0.37)).astype(np.float32) * np.float32(1.2e-7)
    errors = np.abs(there_and_back(values) - values)
    largest = values[0]
    kept = values >= largest * 2.0**-14
    assert (errors[kept] <= values[kept] * 2.0**-11 * 1.001).all()
    assert (errors[~kept] <= largest * 2.0**-25 * 1.001).all()
