from __future__ import annotations

import numpy as np
import pytest

from eps.errors import ConfigError, ProtocolError, TrainingError
from eps.ml.grid import ClockSum, Grid, SplitSum, block_maxima, total
from eps.ml.scales import EXPONENT_FLOOR, exponents_of, next_exponents

LENGTH, START = 1000, 64 * 3


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
        exponents = next_exponents(grid.initial_exponents(LENGTH), block_maxima(np.abs(past).max(axis=0), 0, 64), -1)
        grads = contributions(rng, num_splits)
        sums = [clock_by_workers(grid, exponents, grads, rng) for _ in range(3)]
        assert len({one.total().tobytes() for one in sums}) == 1, f"seed {seed}"
        assert len({one.next_exponents(0).tobytes() for one in sums}) == 1, f"seed {seed}"


def test_sparse_pushes_have_the_bits_of_dense_ones() -> None:
    grid = Grid(9, 64)
    for seed in range(25):
        rng = np.random.default_rng(seed)
        past = contributions(rng, 9)
        exponents = next_exponents(grid.initial_exponents(LENGTH), block_maxima(np.abs(past).max(axis=0), 0, 64), -1)
        grads = contributions(rng, 9)
        touched = [START + np.flatnonzero(rng.random(LENGTH) < 0.1) for _ in range(9)]
        for split in range(9):
            zero = np.ones(LENGTH, dtype=bool)
            zero[touched[split] - START] = False
            grads[split][zero] = 0
        dense = clock_by_workers(grid, exponents, grads, rng)
        sparse = clock_by_workers(grid, exponents, grads, rng, touched)
        assert dense.total().tobytes() == sparse.total().tobytes(), f"seed {seed}"
        assert dense.maxima.tobytes() == sparse.maxima.tobytes()
        some = START + np.flatnonzero(rng.random(LENGTH) < 0.3)
        assert dense.total(some).tobytes() == dense.total()[some - START].tobytes()


def test_total_is_close_to_the_sum_in_float64() -> None:
    rng = np.random.default_rng(1)
    grid = Grid(12, 64)
    grads = contributions(rng, 12)
    exponents = next_exponents(grid.initial_exponents(LENGTH), block_maxima(np.abs(grads).max(axis=0), 0, 64), -1)
    found = clock_by_workers(grid, exponents, grads, rng).total()
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
    exponents = next_exponents(grid.initial_exponents(3), block_maxima(grad, 0, 1), -1)
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
    with pytest.raises(TrainingError, match="split 2 is NaN or infinite between keys 88 and 96"):
        part.add(2, grad)
    assert not part.sum.any() and not part.raw and not part.maxima.any() and not part.splits
    with pytest.raises(TrainingError):
        block_maxima(grad, 80, 8)


def test_block_maxima_of_a_key_list_are_zero_for_blocks_without_keys() -> None:
    found = block_maxima(np.array([-3, 1, 2], dtype=np.float32), 10, 5, np.array([10, 14, 21]), length=17)
    assert found.tolist() == [3, 0, 2, 0]


def test_an_empty_key_list_adds_nothing() -> None:
    grid = Grid(4, 8)
    none = np.zeros(0, dtype=np.int64)
    part = SplitSum(grid, np.zeros(3, dtype=np.int16), 0, 20, none)
    part.add(0, np.zeros(0, dtype=np.float32))
    server = ClockSum(grid, np.zeros(3, dtype=np.int16), 0, 20)
    server.add(part.sum, part.maxima, part.raw, none)
    assert not server.total().any() and server.total(none).size == 0


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
