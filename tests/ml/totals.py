"""What sums of contributions stand for, in float64: the oracle of their tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from eps.ml.arrays import Float64Array, Int16Array
from eps.ml.grid import Blocks, Grid, RawBlock
from eps.ml.sums import ClockSum, IntegerArray


def total(
    grid: Grid, exponents: Int16Array, int_sum: IntegerArray, raw: Iterable[RawBlock], start_key: int = 0
) -> Float64Array:
    """Return ``int_sum * 2^E`` over a range, plus the raw blocks, which are added in split order."""
    blocks = Blocks(grid.block_keys, start_key, int_sum.size, None)
    result: Float64Array = int_sum * np.repeat(np.ldexp(1.0, grid.unit_exponents(exponents)), blocks.counts)
    for _, block, values in sorted(raw, key=lambda one: (one.split, one.block)):
        place = result[blocks.bounds[block] : blocks.bounds[block + 1]]
        assert values.size == place.size
        place += values
    return result


def clock_total(closed: ClockSum) -> Float64Array:
    """Return the total of all pushes to a partition."""
    assert closed.keys is None
    return total(closed.grid, closed.exponents, closed.sum, closed.raw, closed.start_key)
