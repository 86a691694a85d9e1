"""The rows of a split in the batch of a clock, whichever worker holds the split.

Design section 5: each split draws its minibatches from its own random stream keyed by (seed, split, clock).  So the
global batch does not depend on the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import count

import numpy as np

from eps.errors import ConfigError
from eps.ml.arrays import Int64Array, Purpose, random_stream

#: Multiples of it, without their whole parts, are spread evenly.
_GOLDEN = (math.sqrt(5) - 1) / 2


def check_batch_size(batch_size: int, num_rows: int) -> None:
    """Refuse a batch of fewer than one row, or of more rows than there are.  Raises ConfigError."""
    if not 1 <= batch_size <= num_rows:
        raise ConfigError(f"batch size is {batch_size}, but must be 'full' or in 1 .. {num_rows}, the training rows")


def batch_share(batch_size: int, bounds: Sequence[int], split: int, clock: int) -> int:
    """Return how many rows of a split are in the batch of a clock.

    It is the split's part of all rows, rounded down or up so that the shares of all splits add up to the batch.  Which
    ones are rounded up changes with the clock (systematic sampling, whose start moves by the golden ratio).  So all
    rows are drawn equally often, also if there are more splits than rows in a batch.

    Parameters
    ----------
    batch_size : int
        Rows of all splits; see :func:`check_batch_size`.
    bounds : sequence of int
        Split ``s`` has rows [bounds[s], bounds[s + 1]) of all.
    split : int
    clock : int
        From 0 on.
    """
    total = bounds[-1]
    start = clock * _step(total) % total
    return (batch_size * bounds[split + 1] + start) // total - (batch_size * bounds[split] + start) // total


@cache
def _step(total: int) -> int:
    """Return the golden part of a number of rows, about, whose multiples reach all of them."""
    return next(step for step in count(round(_GOLDEN * total)) if math.gcd(step, total) == 1)


def draw(seed: int, split: int, clock: int, num_rows: int, share: int) -> Int64Array:
    """Return the rows of a split in the batch of a clock, drawn without replacement, in increasing order.

    Returns
    -------
    ndarray, shape (share,), int64

    Raises
    ------
    ConfigError
        ``share`` is negative or larger than ``num_rows``.
    """
    if not 0 <= share <= num_rows:
        raise ConfigError(f"split {split} is asked for {share} rows, but has {num_rows}")
    if share == num_rows:
        return np.arange(num_rows, dtype=np.int64)
    stream = random_stream(seed, Purpose.BATCHES, split, clock)
    rows: Int64Array = stream.choice(num_rows, size=share, replace=False, shuffle=False).astype(np.int64)
    rows.sort()
    return rows
