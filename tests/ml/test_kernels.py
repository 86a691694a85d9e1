"""Compiled kernels against the NumPy code that they stand for: the same bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from eps.errors import ConfigError, TrainingError
from eps.ml import kernels
from eps.ml.grid import Grid, next_exponents
from eps.ml.sums import ClockSum, PlainClockSum, PlainSplitSum, SplitSum
from tests.ml.totals import clock_total

LENGTH = 1000


@pytest.fixture(autouse=True)
def _numba() -> None:
    pytest.importorskip("numba")


def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for choice in ("numpy", "numba"):
        monkeypatch.setenv(kernels.VARIABLE, choice)
        kernels.compiled()
        yield choice


def as_received(values: np.ndarray) -> np.ndarray:
    """Return the values as they come over a wire: read-only, at any address."""
    return np.frombuffer(b"\0" + values.tobytes(), values.dtype, offset=1)


def gradient(rng: np.random.Generator) -> np.ndarray:
    """Values of all sizes: zeros of both signs, subnormal ones, halves between grid points, jumps."""
    values = rng.normal(size=LENGTH) * np.exp(rng.normal(0, 6, size=LENGTH))
    values[rng.random(LENGTH) < 0.2] = rng.choice([0.0, -0.0, 1e-44, 0.5, 1.5, -2.5, 3e38])
    halves = rng.random(LENGTH) < 0.3
    values[halves] = (rng.integers(-1000, 1000, LENGTH)[halves] + 0.5) * 2.0**-20
    return values.astype(np.float32)


@pytest.mark.parametrize("num_splits", [3, 300])
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_worker_and_server_sums_have_the_bits_of_numpy(
    num_splits: int, is_sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid(num_splits, 64)
    for seed in range(20):
        found = set()
        for _ in both(monkeypatch):
            rng = np.random.default_rng(seed)
            exponents = rng.integers(-12, 12, grid.num_blocks(LENGTH)).astype(np.int16)
            keys = np.flatnonzero(rng.random(LENGTH) < 0.5) if is_sparse else None
            size = LENGTH if keys is None else keys.size
            memory = np.full(size, 123, grid.dtype)
            worker = SplitSum(grid, exponents, 0, LENGTH, keys, memory)
            for split in range(3):
                positions = np.flatnonzero(rng.random(size) < 0.4) if rng.random() < 0.5 else None
                grad = gradient(rng)[: size if positions is None else positions.size]
                worker.add(split, grad, positions)
            server = ClockSum(grid, exponents, 0, LENGTH, out=np.full(LENGTH, 321, grid.dtype))
            raw = [(one.split, one.block, as_received(one.values)) for one in worker.raw]
            for _ in range(2):
                server.add(as_received(worker.sum), as_received(worker.maxima), raw, keys)
            means = np.full(LENGTH, 9, np.float32)
            for part, mean in server.means(7):
                means[part] = mean
            assert means.tobytes() == (clock_total(server) / 7).astype(np.float32).tobytes()
            some = np.flatnonzero(rng.random(LENGTH) < 0.3)
            at_some = np.concatenate([mean.copy() for _, mean in server.over(some).means(7)])
            assert at_some.tobytes() == means[some].tobytes()
            arrays = [worker.sum, worker.maxima, server.sum, means, *(one.values for one in worker.raw)]
            found.add(b"".join(array.tobytes() for array in arrays))
        assert len(found) == 1, f"seed {seed}"


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_split_that_is_not_finite_leaves_the_sum_as_it_was(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in both(monkeypatch):
        rng = np.random.default_rng(0)
        grid = Grid(4, 64)
        worker = SplitSum(grid, np.full(grid.num_blocks(LENGTH), 5, np.int16), 0, LENGTH)
        plain = PlainSplitSum(np.full(LENGTH, 5, np.float32))
        good, wrong = np.clip(gradient(rng), -3, 3), np.clip(gradient(rng), -3, 3)
        wrong[700] = bad
        some = np.arange(0, LENGTH, 2)
        for i in range(3):
            before, plain_before = worker.sum.copy(), plain.sum.copy()
            for positions in (None, some):
                values = wrong if positions is None else wrong[some]
                with pytest.raises(TrainingError, match="split 3 is NaN"):
                    worker.add(3, values, positions)
                with pytest.raises(TrainingError, match="split 3 is not finite"):
                    plain.add(3, values, positions)
            assert np.array_equal(worker.sum, before) and np.array_equal(plain.sum, plain_before)
            worker.add(i, good)
            plain.add(i, good)
        assert worker.splits == [0, 1, 2]


def test_plain_sums_have_the_bits_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for _ in both(monkeypatch):
        rng = np.random.default_rng(1)
        keys = np.flatnonzero(rng.random(LENGTH) < 0.5)
        worker = PlainSplitSum(np.full(keys.size, 5, np.float32))
        worker.add(0, np.clip(gradient(rng)[: keys.size], -9, 9))
        some = np.flatnonzero(rng.random(keys.size) < 0.5)
        worker.add(1, np.clip(gradient(rng)[: some.size], -9, 9), some)
        server = PlainClockSum(0, LENGTH)
        server.add(as_received(worker.sum), keys)
        server.add(as_received(np.clip(gradient(rng), -9, 9)))
        narrow = server.over(keys)
        narrow.add(as_received(worker.sum), keys, np.arange(keys.size))
        assert np.array_equal(narrow.over(None).sum[keys], narrow.sum)
        means = [mean.copy() for total in (server, narrow) for _, mean in total.means(3)]
        found.add(b"".join(array.tobytes() for array in (worker.sum, *means)))
    assert len(found) == 1


def test_memory_of_the_wrong_size_or_type_is_refused() -> None:
    grid = Grid(4, 64)
    exponents = grid.initial_exponents(LENGTH)
    for memory in (np.empty(LENGTH - 1, np.int32), np.empty(LENGTH, np.int64)):
        with pytest.raises(ValueError, match="memory"):
            SplitSum(grid, exponents, 0, LENGTH, out=memory)
        with pytest.raises(ValueError, match="memory"):
            ClockSum(grid, exponents, 0, LENGTH, out=memory)


def test_numba_that_is_asked_for_but_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_loaded", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setenv(kernels.VARIABLE, "numba")
    with pytest.raises(ConfigError, match="numba, which cannot"):
        kernels.use_for(1)
    monkeypatch.setenv(kernels.VARIABLE, "auto")
    assert kernels.use_for(kernels.MANY_KEYS + 1) is None
    assert kernels.compiled() is None


def test_kernels_need_no_directory_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    monkeypatch.setattr(kernels, "_loaded", None)
    monkeypatch.setenv(kernels.VARIABLE, "numba")
    # One of them is enough: the others take the same way, and compiling takes seconds.
    built: list[object] = []

    class OnlyOne:
        def __init__(self, numba: object) -> None:
            self._numba = numba

        def __getattr__(self, name: str) -> object:
            return getattr(self._numba, name)

        def njit(self, *given: object, **options: object) -> object:
            if built and not options.get("cache"):
                return lambda function: function
            made = self._numba.njit(*given, **options)
            if not options.get("cache"):
                built.append(made)
            return made

    limited = OnlyOne(pytest.importorskip("numba"))
    monkeypatch.setattr(kernels, "numba", lambda: limited)
    assert kernels._compile().take is not None and len(built) == 1


def test_exponents_of_the_next_clock_have_the_bits_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    maxima = np.abs(gradient(rng))
    maxima[:5] = 0.0, 1e-45, 1.2e-38, 3.4e38, 1.0
    exponents = rng.integers(-88, 129, LENGTH).astype(np.int16)
    found = {
        b"".join(next_exponents(exponents, as_received(maxima), clock).tobytes() for clock in (-1, 6, 7))
        for _ in both(monkeypatch)
    }
    assert len(found) == 1
