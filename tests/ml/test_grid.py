from __future__ import annotations

import numpy as np
import pytest

from eps.errors import ConfigError, ProtocolError, TrainingError
from eps.ml.grid import CHUNK_KEYS, EXPONENT_CEILING, EXPONENT_FLOOR, Blocks, Grid, Scales, exponents_of, next_exponents
from eps.ml.sums import ClockSum, SplitSum
from tests.ml.totals import clock_total, total

LENGTH, START = 1000, 64 * 3


def maxima_of(grad: np.ndarray, block_keys: int) -> np.ndarray:
    """Return the largest magnitude of each block of a range that begins at key 0."""
    return Blocks(block_keys, 0, grad.size, None).maxima(grad)


def contributions(rng: np.random.Generator, num_splits: int) -> np.ndarray:
    """Gradients of very different sizes by key, with zeros, and a jump in some split now and then."""
    scale = np.exp(rng.normal(0, 4, size=LENGTH))
    grads = rng.normal(size=(num_splits, LENGTH)) * scale * (rng.random((num_splits, LENGTH)) < 0.8)
    if rng.random() < 0.7:
        split, key = int(rng.integers(num_splits)), int(rng.integers(LENGTH))
        grads[split, key : key + 30] *= 1e4
    return grads.astype(np.float32)


def clock_by_workers(
    grid: Grid,
    exponents: np.ndarray,
    grads: np.ndarray,
    rng: np.random.Generator,
    touched: list[np.ndarray] | None = None,
) -> ClockSum:
    """Add up one clock with random workers, in random order; sparse pushes where ``touched`` keys are given."""
    num_splits = len(grads)
    worker_of = rng.integers(0, int(rng.integers(1, 6)), size=num_splits)
    server = ClockSum(grid, exponents, START, LENGTH)
    for worker in rng.permutation(worker_of.max() + 1):
        splits = [int(split) for split in rng.permutation(num_splits) if worker_of[split] == worker]
        if not splits:
            continue
        keys = None if touched is None else np.unique(np.concatenate([touched[split] for split in splits]))
        part = SplitSum(grid, exponents, START, LENGTH, keys)
        for split in splits:
            if keys is None or touched is None:
                part.add(split, grads[split])
            else:
                positions = np.searchsorted(keys, touched[split])
                part.add(split, grads[split][touched[split] - START], positions)
        server.add(part.sum, part.maxima, part.raw, keys)
    return server


@pytest.mark.parametrize(("num_splits", "dtype"), [(1, np.int32), (12, np.int32), (256, np.int32), (257, np.int64)])
def test_total_and_exponents_have_the_same_bits_whatever_the_grouping(num_splits: int, dtype: type) -> None:
    grid = Grid(num_splits, 64)
    assert grid.dtype == dtype
    for seed in range(4 if num_splits > 12 else 25):
        rng = np.random.default_rng(seed)
        past = contributions(rng, num_splits)
        exponents = next_exponents(grid.initial_exponents(LENGTH), maxima_of(np.abs(past).max(axis=0), 64), -1)
        grads = contributions(rng, num_splits)
        sums = [clock_by_workers(grid, exponents, grads, rng) for _ in range(3)]
        assert len({clock_total(one).tobytes() for one in sums}) == 1, f"seed {seed}"
        assert len({one.next_exponents(0).tobytes() for one in sums}) == 1, f"seed {seed}"


def test_sparse_pushes_have_the_bits_of_dense_ones() -> None:
    grid = Grid(9, 64)
    for seed in range(25):
        rng = np.random.default_rng(seed)
        past = contributions(rng, 9)
        exponents = next_exponents(grid.initial_exponents(LENGTH), maxima_of(np.abs(past).max(axis=0), 64), -1)
        grads = contributions(rng, 9)
        touched = [START + np.flatnonzero(rng.random(LENGTH) < 0.1) for _ in range(9)]
        for split in range(9):
            zero = np.ones(LENGTH, dtype=bool)
            zero[touched[split] - START] = False
            grads[split][zero] = 0
        dense = clock_by_workers(grid, exponents, grads, rng)
        sparse = clock_by_workers(grid, exponents, grads, rng, touched)
        assert clock_total(dense).tobytes() == clock_total(sparse).tobytes(), f"seed {seed}"
        assert dense.maxima.tobytes() == sparse.maxima.tobytes()
        some = START + np.flatnonzero(rng.random(LENGTH) < 0.3)
        at_some = np.concatenate([mean.copy() for _, mean in dense.over(some).means(7)])
        assert at_some.tobytes() == (clock_total(dense)[some - START] / 7).astype(np.float32).tobytes()


def test_total_is_close_to_the_sum_in_float64() -> None:
    rng = np.random.default_rng(1)
    grid = Grid(12, 64)
    grads = contributions(rng, 12)
    exponents = next_exponents(grid.initial_exponents(LENGTH), maxima_of(np.abs(grads).max(axis=0), 64), -1)
    found = clock_total(clock_by_workers(grid, exponents, grads, rng))
    largest = np.repeat(np.abs(grads).max(axis=0).reshape(-1)[: LENGTH // 64 * 64].reshape(-1, 64).max(axis=1), 64)
    error = np.abs(found - grads.astype(np.float64).sum(axis=0))[: largest.size]
    assert np.all(error <= 12 * largest * 2.0**-22)


def test_without_a_past_everything_that_is_not_zero_is_raw_and_the_sum_is_exact() -> None:
    grid = Grid(3, 4)
    grads = np.array([[1e30, 1, 0, 0, 0, 0], [-1e30, 1, 0, 0, 0, 0], [3, 1, 0, 0, 0, 0]], dtype=np.float32)
    part = SplitSum(grid, grid.initial_exponents(6), 0, 6)
    for split in (2, 0, 1):
        part.add(split, grads[split])
    assert [(raw.split, raw.block, raw.values.size) for raw in part.raw] == [(2, 0, 4), (0, 0, 4), (1, 0, 4)]
    assert not part.sum.any() and part.splits == [2, 0, 1]
    found = total(grid, grid.initial_exponents(6), part.sum, part.raw)
    assert found.tolist() == [3, 3, 0, 0, 0, 0]


def test_a_value_at_the_limit_is_off_the_grid_and_one_below_it_is_on() -> None:
    grid = Grid(2, 4)
    exponents = np.array([3], dtype=np.int16)
    limit = np.float32(2.0**5)
    below = np.nextafter(limit, np.float32(0))
    for value, raws in [(below, 0), (-below, 0), (limit, 1), (-limit, 1)]:
        part = SplitSum(grid, exponents, 0, 4)
        part.add(0, np.array([0, value, 0, 0], dtype=np.float32))
        assert len(part.raw) == raws
        assert total(grid, exponents, part.sum, part.raw)[1] == pytest.approx(value, rel=2**-22)


@pytest.mark.parametrize("num_splits", [1, 2, 3, 255, 256, 257, 4096])
def test_all_splits_at_the_limit_do_not_overflow(num_splits: int) -> None:
    grid = Grid(num_splits, 1)
    exponents = np.array([0], dtype=np.int16)
    value = np.nextafter(np.float32(4), np.float32(0))
    part = SplitSum(grid, exponents, 0, 1)
    for split in range(num_splits):
        part.add(split, np.array([value]))
    assert not part.raw
    assert total(grid, exponents, part.sum, [])[0] == pytest.approx(num_splits * float(value), rel=2**-20)


@pytest.mark.parametrize("num_splits", [1, 256, 257])
@pytest.mark.parametrize("value", [1e-45, 1e-38, 1e-20, 1.0, 3.4e38])
def test_scales_stay_finite_for_the_smallest_and_the_largest_values(num_splits: int, value: float) -> None:
    grid = Grid(num_splits, 1)
    grad = np.array([value, -value, 0], dtype=np.float32)
    exponents = next_exponents(grid.initial_exponents(3), maxima_of(grad, 1), -1)
    part = SplitSum(grid, exponents, 0, 3)
    part.add(0, grad)
    assert not part.raw
    unit = 2.0 ** (EXPONENT_FLOOR + 2 - grid.value_bits)
    assert np.allclose(total(grid, exponents, part.sum, []), grad, rtol=2**-20, atol=unit)


def test_exponents_are_the_smallest_powers_of_two_above_the_maxima() -> None:
    maxima = np.array([0, 1e-45, 0.5, 0.75, 1, 1.5, 3.4e38], dtype=np.float32)
    assert exponents_of(maxima).tolist() == [EXPONENT_FLOOR, EXPONENT_FLOOR, 0, 0, 1, 1, 128]


def test_the_running_maximum_grows_at_once_and_decays_every_eighth_clock() -> None:
    exponents = np.array([5, 5, EXPONENT_FLOOR], dtype=np.int16)
    maxima = np.array([1, 100, 0], dtype=np.float32)
    assert next_exponents(exponents, maxima, 3).tolist() == [5, 7, EXPONENT_FLOOR]
    assert next_exponents(exponents, maxima, 7).tolist() == [4, 7, EXPONENT_FLOOR]
    assert next_exponents(exponents, maxima, 7).dtype == np.int16


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_refused_and_nothing_is_added(value: float) -> None:
    grid = Grid(4, 8)
    part = SplitSum(grid, np.zeros(3, dtype=np.int16), 80, 20)
    grad = np.ones(20, dtype=np.float32)
    grad[12] = value
    with pytest.raises(TrainingError, match=r"split 2 .* 88 and 96"):
        part.add(2, grad)
    assert not part.sum.any() and not part.raw and not part.maxima.any() and not part.splits


def test_block_maxima_of_a_key_list_are_zero_for_blocks_without_keys() -> None:
    found = Blocks(5, 10, 17, np.array([10, 14, 21])).maxima(np.array([-3, 1, 2], dtype=np.float32))
    assert found.tolist() == [3, 0, 2, 0]


def test_an_empty_key_list_adds_nothing() -> None:
    grid = Grid(4, 8)
    none = np.zeros(0, dtype=np.int64)
    part = SplitSum(grid, np.zeros(3, dtype=np.int16), 0, 20, none)
    part.add(0, np.zeros(0, dtype=np.float32))
    server = ClockSum(grid, np.zeros(3, dtype=np.int16), 0, 20)
    server.add(part.sum, part.maxima, part.raw, none)
    assert not clock_total(server).any() and server.over(none).sum.size == 0


def test_a_push_that_does_not_fit_the_partition_is_refused_and_adds_nothing() -> None:
    grid = Grid(4, 8)
    server = ClockSum(grid, np.zeros(3, dtype=np.int16), 16, 20)
    ones, maxima = np.ones(20, dtype=np.int32), np.ones(3, dtype=np.float32)
    block = np.ones(8, dtype=np.float32)
    keys = np.array([16, 30])
    for arguments in [
        (ones[:19], maxima),
        (ones.astype(np.int64), maxima),
        (ones, maxima[:2]),
        (ones, maxima, [(0, 3, block)]),
        (ones, maxima, [(0, 2, block)]),
        (ones[:2], maxima, [], np.array([16, 36])),
        (ones[:2], maxima, [(0, 0, block)], keys),
    ]:
        with pytest.raises(ProtocolError):
            server.add(*arguments)
    assert not server.sum.any() and not server.raw and not server.maxima.any()


@pytest.mark.parametrize(("num_splits", "block_keys"), [(0, 1), (2**22 + 1, 1), (1, 0)])
def test_senseless_grids_are_refused(num_splits: int, block_keys: int) -> None:
    with pytest.raises(ConfigError):
        Grid(num_splits, block_keys)


def test_sum_over_many_keys_has_the_bits_of_sums_over_few() -> None:
    rng = np.random.default_rng(3)
    length, half = 2 * CHUNK_KEYS, CHUNK_KEYS
    grid = Grid(4, 64)
    exponents = rng.integers(-20, 20, size=grid.num_blocks(length)).astype(np.int16)
    scale = np.repeat(np.ldexp(np.float32(1), exponents), 64)
    whole, few = (
        SplitSum(grid, exponents, 0, length),
        [SplitSum(grid, exponents[first // 64 : (first + half) // 64], first, half) for first in (0, half)],
    )
    for split in range(4):
        grad = (rng.uniform(-3, 3, size=length).astype(np.float32) * scale).astype(np.float32)
        positions = None if split % 2 else np.flatnonzero(rng.random(length) < 0.8)
        whole.add(split, grad if positions is None else grad[positions], positions)
        for first, part in zip((0, half), few, strict=True):
            mine = None if positions is None else positions[(positions >= first) & (positions < first + half)] - first
            part.add(split, grad[first : first + half] if mine is None else grad[first + mine], mine)
    assert not whole.raw
    for name in ("sum", "maxima"):
        assert getattr(whole, name).tobytes() == np.concatenate([getattr(part, name) for part in few]).tobytes()


@pytest.mark.parametrize("num_splits", [6, 300])
@pytest.mark.parametrize("keys", [None, np.arange(START, START + 300, 3)], ids=["range", "keys"])
@pytest.mark.parametrize("jump", [1.0, 2.0**12], ids=["on the grid", "off it"])
def test_splits_that_are_added_together_have_the_bits_of_one_after_the_other(
    num_splits: int, keys: np.ndarray | None, jump: float
) -> None:
    rng = np.random.default_rng(4)
    grid, length, size = Grid(num_splits, 1 if keys is None else 8), 300 - 300 % 8, 296 if keys is None else 99
    keys = None if keys is None else keys[:size]
    exponents = rng.integers(-30, 30, size=grid.num_blocks(length)).astype(np.int16)
    one_by_one = SplitSum(grid, exponents, START, length, keys)
    together = SplitSum(grid, exponents, START, length, keys)
    of_key = exponents[(np.arange(length) if keys is None else keys - START) // grid.block_keys]
    grads, where = [], []
    for split in range(6):
        grad = (rng.uniform(-2, 2, size=size) * np.ldexp(1.0, of_key)).astype(np.float32)
        grad[7] *= jump if split == 4 else 1.0
        positions = None if split < 3 else np.sort(rng.choice(size, size=50, replace=False))
        grads.append(grad if positions is None else grad[positions])
        where.append(positions)
        one_by_one.add(split, grads[-1], positions)
    together.add_all(range(3), grads[:3], where[:3])
    together.add_all([3, 4], grads[3:5], where[3:5])
    together.add_all([5], grads[5:], where[5:])
    assert together.splits == one_by_one.splits == [0, 1, 2, 3, 4, 5]
    assert together.sum.tobytes() == one_by_one.sum.tobytes() and together.sum.any()
    assert together.maxima.tobytes() == one_by_one.maxima.tobytes()
    assert [(r.split, r.block, r.values.tobytes()) for r in together.raw] == [
        (r.split, r.block, r.values.tobytes()) for r in one_by_one.raw
    ]


def test_bad_split_among_others_is_named_and_wrong_sizes_are_refused() -> None:
    grid = Grid(3, 1)
    part = SplitSum(grid, np.full(4, 3, np.int16), 0, 4)
    good, bad = np.ones(4, np.float32), np.array([1, np.nan, 1, 1], np.float32)
    with pytest.raises(TrainingError, match="split 8"):
        part.add_all([7, 8], [good, bad], [None, None])
    with pytest.raises(ValueError, match=r"split 9: 1 .* 4 keys"):
        part.add_all([9], [good[:1]], [None])


def test_exponents_that_arrive_after_the_first_split_count_for_the_next() -> None:
    grid = Grid(2, 1)
    exponents = np.array([3, 0], np.int16)
    part = SplitSum(grid, exponents, 0, 2)
    part.add(0, np.array([2], np.float32), np.array([0]))
    exponents[1] = 9
    part.add(1, np.array([1000], np.float32), np.array([1]))
    assert not part.raw
    assert total(grid, exponents, part.sum, part.raw).tolist() == [2, 1000]


@pytest.mark.parametrize("num_splits", [1, 12, 256, 300])
def test_scales_are_powers_of_two_at_every_exponent(num_splits: int) -> None:
    grid = Grid(num_splits, 1)
    exponents = np.arange(EXPONENT_FLOOR, EXPONENT_CEILING + 1, dtype=np.int16)
    scales = Scales(exponents, grid.shift, None)
    limits, factors = scales.rounding()
    for i, exponent in enumerate(exponents.tolist()):
        unit = 2.0 ** (exponent + grid.shift)
        assert factors[i] == 1 / unit and scales.divisors(1000)[i] == 1000 / unit
        assert limits[i] == (2.0 ** (exponent + 2) if exponent < 126 else np.inf)
        assert scales.powers()[i] == (2.0**exponent if exponent < 128 else np.inf)
    counts = np.arange(exponents.size) % 3
    by_key = Scales(exponents, grid.shift, counts).rounding()
    assert by_key.tobytes() == np.repeat(scales.rounding(), counts, axis=1).tobytes()


def test_exponents_of_the_next_clock_are_the_same_with_kept_scales() -> None:
    rng = np.random.default_rng(5)
    for clock in range(40):
        exponents = rng.integers(EXPONENT_FLOOR, 40, size=9).astype(np.int16)
        maxima = np.ldexp(rng.uniform(0.1, 1 + clock % 2, size=9), exponents.astype(np.int32)).astype(np.float32)
        scales = Scales(exponents, -20, None)
        expected = next_exponents(exponents, maxima, clock)
        assert next_exponents(exponents, maxima, clock, scales).tobytes() == expected.tobytes()
        slow = np.maximum(np.frexp(maxima)[1], np.maximum(exponents - ((clock + 1) % 8 == 0), EXPONENT_FLOOR))
        assert expected.tolist() == slow.tolist()
