"""Compiled steps against the NumPy code that they replace: the same bits for all values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from eps.ml import kernels, kernels_step
from eps.ml.grid import Grid, RawBlock
from eps.ml.optim import OPTIMIZERS, OptimizerSettings, make_optimizer
from eps.ml.steps import Formed, Summed, prepare, step_out_of_place
from eps.ml.sums import ClockSum, PlainClockSum

#: More than a tile, and not a multiple of anything.
LENGTH = kernels_step.TILE_KEYS + 777
BLOCK_KEYS = 100
with np.errstate(invalid="ignore"):
    #: The NaN that this machine's arithmetic makes; no step sees another, and of two alike either may be returned.
    NAN = np.float32(np.inf) - np.float32(np.inf)
NASTY = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1.2e-38, -1.1e-38, 3.4e38, -3.4e38, np.inf, -np.inf, NAN, 1.0, -1.0], np.float32
)
PENALTIES = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)]


@pytest.fixture(autouse=True)
def _numba() -> None:
    pytest.importorskip("numba")


def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for choice in ("numpy", "numba"):
        monkeypatch.setenv(kernels.VARIABLE, choice)
        kernels.compiled()
        yield choice


def values_of_all_sizes(rng: np.random.Generator, size: int) -> np.ndarray:
    values = (rng.normal(size=size) * np.exp(rng.normal(0, 8, size=size))).astype(np.float32)
    chosen = rng.random(size) < 0.3
    values[chosen] = rng.choice(NASTY, size)[chosen]
    return values


def as_received(values: np.ndarray) -> np.ndarray:
    """Return the values as they come over a wire: read-only, at any address."""
    return np.frombuffer(b"\0" + values.tobytes(), values.dtype, offset=1)


def on_grid(rng: np.random.Generator, num_splits: int, raw: bool, keys: np.ndarray | None) -> ClockSum:
    grid = Grid(num_splits, BLOCK_KEYS)
    exponents = rng.integers(-88, 100, grid.num_blocks(LENGTH)).astype(np.int16)
    closed = ClockSum(grid, exponents, 0, LENGTH, keys)
    size = LENGTH if keys is None else keys.size
    largest = 2 ** (29 if grid.dtype == np.int32 else 50)
    part = rng.integers(-largest, largest, size).astype(grid.dtype)
    part[rng.random(size) < 0.3] = 0
    maxima = np.ones(exponents.size, np.float32)
    closed.add(part, maxima, (), keys, None if keys is None else np.arange(keys.size))
    if raw:
        closed.raw.append(RawBlock(0, 3, rng.normal(size=BLOCK_KEYS).astype(np.float32)))
    return closed


def summed(kind: str, rng: np.random.Generator) -> Summed:
    if kind == "plain":
        closed = PlainClockSum(0, LENGTH)
        closed.add(values_of_all_sizes(rng, LENGTH))
        return closed
    if kind == "formed":
        return Formed(values_of_all_sizes(rng, LENGTH))
    return on_grid(rng, 300 if kind == "int64" else 4, kind == "raw", None)


def trained(
    settings: OptimizerSettings, kind: str, seed: int, has_mask: bool, keep_gradient: bool = False
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return (parameters and slots, gradients that were kept) after some clocks."""
    rng = np.random.default_rng(seed)
    optimizer = make_optimizer(settings)
    mask = rng.random(LENGTH) < 0.6 if has_mask else None
    before = rng.normal(size=LENGTH).astype(np.float32)
    slots = optimizer.initial_slots(before, mask)
    before = values_of_all_sizes(rng, LENGTH)
    if seed % 2:
        # Slots that training cannot reach, too.
        slots = [values_of_all_sizes(rng, LENGTH) for _ in slots]
    kept = []
    for clock in range(4):
        after = np.full(LENGTH, 77, np.float32)
        with np.errstate(all="ignore"):
            gradient = step_out_of_place(
                optimizer, summed(kind, rng), 7, before, after, slots, clock, mask, keep_gradient
            )
        kept += [] if gradient is None else [gradient]
        before = after
    return [before, *slots], kept


def assert_same_bits(found: list[list[np.ndarray]], what: str) -> None:
    for one, other in zip(*found, strict=True):
        differ = one.view(np.uint32) != other.view(np.uint32)
        assert not differ.any(), f"{what}: {one[differ][:5]} and {other[differ][:5]}"


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("has_mask", [False, True], ids=["all-penalised", "some-penalised"])
def test_step_has_the_bits_of_numpy(name: str, has_mask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for l1, l2 in PENALTIES:
        decay = 0.0 if name == "ftrl" else 0.1
        settings = OptimizerSettings(name, learning_rate=0.07, l1=l1, l2=l2, decay=decay)
        for seed in range(4):
            found = [trained(settings, "int32", seed, has_mask)[0] for _ in both(monkeypatch)]
            assert_same_bits(found, f"l1 {l1}, l2 {l2}, seed {seed}")


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("kind", ["int64", "plain", "formed", "raw"])
def test_step_has_the_bits_of_numpy_for_all_kinds_of_sums(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = OptimizerSettings(name, l1=0.01)
    for seed in range(2):
        found = [trained(settings, kind, seed, False)[0] for _ in both(monkeypatch)]
        assert_same_bits(found, f"seed {seed}")


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("kind", ["int32", "raw", "plain"])
def test_gradient_that_is_kept_is_the_mean_without_penalties_and_changes_no_step(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = OptimizerSettings(name, l1=0.01, l2=0.1)
    found = [trained(settings, kind, 5, False, keep) for keep in (True, False) for _ in both(monkeypatch)]
    for state, _ in found[1:]:
        assert_same_bits([found[0][0], state], "state")
    assert_same_bits([found[0][1], found[1][1]], "gradients")
    assert len(found[0][1]) == 4 and not found[2][1]


def test_sum_over_some_keys_steps_as_numpy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for _ in both(monkeypatch):
        rng = np.random.default_rng(3)
        # Blocks without a key, with one, and with all.
        keys = np.concatenate([np.arange(200, 300), np.array([500]), np.flatnonzero(rng.random(LENGTH) < 0.2)])
        keys = np.unique(keys[(keys < 700) | (keys > 900)])
        before, after = np.ones(keys.size, np.float32), np.empty(keys.size, np.float32)
        optimizer = make_optimizer(OptimizerSettings("adagrad"))
        slots = optimizer.initial_slots(before)
        step_out_of_place(optimizer, on_grid(rng, 4, True, keys), 9, before, after, slots, 0, None, False)
        step_out_of_place(optimizer, on_grid(rng, 4, False, keys), 9, after, before, slots, 1, None, False)
        found.append([before, *slots])
    assert_same_bits(found, "some keys")


def test_empty_partition_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = np.empty(0, np.float32)
    for _ in both(monkeypatch):
        optimizer = make_optimizer(OptimizerSettings("adam"))
        closed = ClockSum(Grid(4, BLOCK_KEYS), np.empty(0, np.int16), 0, 0)
        assert step_out_of_place(optimizer, closed, 1, empty, empty, [empty, empty], 0, None, False) is None


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("kind", ["int32", "int64", "raw", "plain"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_last_part_may_be_added_by_the_step(name: str, kind: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = make_optimizer(OptimizerSettings(name, l1=0.01))
    for keep_gradient in (False, True):
        found = []
        for is_last in (False, True):
            for _ in both(monkeypatch):
                rng = np.random.default_rng(parts)
                before, after = rng.normal(size=LENGTH).astype(np.float32), np.empty(LENGTH, np.float32)
                slots = optimizer.initial_slots(before)
                closed = added_in_parts(kind, parts, rng, is_last)
                gradient = step_out_of_place(optimizer, closed, 7, before, after, slots, 0, None, keep_gradient)
                found.append([after, *slots, *([] if gradient is None else [gradient])])
                # A read of the sum itself is complete, before and after.
                found[-1].append(np.abs(closed.sum).astype(np.float32))
        for other in found[1:]:
            assert_same_bits([found[0], other], f"{parts} parts, gradient kept: {keep_gradient}")


def added_in_parts(kind: str, parts: int, rng: np.random.Generator, is_last: bool) -> ClockSum | PlainClockSum:
    closed: ClockSum | PlainClockSum = PlainClockSum(0, LENGTH, out=np.full(LENGTH, 5, np.float32))
    if kind != "plain":
        grid = Grid(300 if kind == "int64" else 4, BLOCK_KEYS)
        exponents = rng.integers(-20, 20, grid.num_blocks(LENGTH)).astype(np.int16)
        closed = ClockSum(grid, exponents, 0, LENGTH, out=np.full(LENGTH, 5, grid.dtype))
    for number in range(parts):
        last = is_last and number == parts - 1
        if isinstance(closed, PlainClockSum):
            closed.add(as_received(rng.normal(size=LENGTH).astype(np.float32)), is_last=last)
        else:
            part = rng.integers(-(2**27), 2**27, LENGTH).astype(closed.grid.dtype)
            raw = [(number, 3, rng.normal(size=BLOCK_KEYS).astype(np.float32))] if kind == "raw" else []
            closed.add(as_received(part), np.ones(closed.exponents.size, np.float32), raw, is_last=last)
    return closed


def test_sum_is_written_no_more_than_it_has_to_be() -> None:
    part = np.arange(LENGTH, dtype=np.float32)
    memory = np.full(LENGTH, 5, np.float32)
    closed = PlainClockSum(0, LENGTH, out=memory)
    closed.add(part)
    closed.add(part, is_last=True)
    assert np.array_equal(memory, part)
    total, added = closed.terms()
    assert total is memory and added is part
    alone = PlainClockSum(0, LENGTH, out=memory)
    alone.add(-part, is_last=True)
    assert alone.terms()[1].size == 0 and np.array_equal(memory, part)
    assert alone.sum is memory and np.array_equal(memory, -part)


def test_steps_are_prepared_only_where_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_step, "_built", {})
    optimizer = make_optimizer(OptimizerSettings("sgd"))
    monkeypatch.setenv(kernels.VARIABLE, "numpy")
    kernels.compiled()
    prepare(optimizer, np.dtype(np.int32))
    assert not kernels_step._built
    monkeypatch.setenv(kernels.VARIABLE, "numba")
    kernels.compiled()
    prepare(optimizer, np.dtype(np.int32))
    assert set(kernels_step._built) == {(kernels_step.SGD, np.dtype(np.int32)), (kernels_step.SGD, np.dtype("f4"))}


def hard_to_divide(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Return sums, int32, whose means lie half-way between two float32, or as near to that as any quotient comes."""
    odd = samples // (samples & -samples)
    middles = 2 * rng.integers(2**23, 2**24, LENGTH) + 1
    totals = odd * middles
    totals[totals >= 2**31] >>= rng.integers(24, 31)
    totals += rng.choice([0, 0, -1, 1], LENGTH)
    # M with odd * M = -1 or 1 modulo 2^24: one more or less is a sum that has so many zeros at its end.
    inverse = pow(odd, -1, 2**24)
    nearest = [(odd * (2**24 + -sign * inverse % 2**24) + sign) >> 24 for sign in (1, -1)]
    totals[:5] = *nearest, 0, 2**31 - 1, 2**31
    totals = np.minimum(totals, 2**31 - 1) * rng.choice([-1, 1], LENGTH)
    return totals.astype(np.int32)


SAMPLES = [1, 2, 3, 7, 48, 49, 98, 103, 127, 128, 129, 40_000, 2**20, 2**24 - 1, 2**24, 2**24 + 1, 2**30 - 1]


def test_means_have_the_bits_of_a_division(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(2, BLOCK_KEYS)
    optimizer, rest = make_optimizer(OptimizerSettings("sgd")), np.zeros(LENGTH, np.float32)
    for seed in range(400):
        rng = np.random.default_rng(seed)
        samples = SAMPLES[seed] if seed < len(SAMPLES) else int(2 ** rng.uniform(0, 30)) | 1
        # Means that are normal numbers, subnormal ones, and infinite.
        exponents = rng.choice(np.array([-88, -60, 0, 128], np.int16), grid.num_blocks(LENGTH))
        total, found = hard_to_divide(rng, samples), []
        for _ in both(monkeypatch):
            closed = ClockSum(grid, exponents, 0, LENGTH)
            closed.add(total, np.ones(exponents.size, np.float32))
            with np.errstate(all="ignore"):
                mean = step_out_of_place(optimizer, closed, samples, rest, rest.copy(), [], 0, None, True)
            assert mean is not None
            found.append([mean])
        assert_same_bits(found, f"{samples} samples")
