"""The rows of a split in the batch of a clock, whichever worker holds the split.

Design section 5: each split draws its minibatches from its own random stream keyed by (seed, split, clock).  So the
global batch does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from eps.errors import ConfigError
from eps.ml.arrays import Int64Array, Purpose, random_stream


def batch_share(batch_size: int | Literal["full"], split_sizes: Sequence[int]) -> tuple[int, ...]:
    """Divide the global batch over the splits in proportion to their rows.

    Largest remainder method: each split gets the integer part of its quota.  The remaining rows go to the largest
    fractions, ties to the lowest split.

    Parameters
    ----------
    batch_size : int or "full"
        Rows in one clock, over all splits.
    split_sizes : sequence of int
        Rows of split 0, 1, ...

    Returns
    -------
    tuple of int
        Rows of each split in every clock; they sum to ``batch_size``, and none exceeds its split.

    Raises
    ------
    ConfigError
        ``batch_size`` is below 1 or larger than the number of rows.
    """
    total = sum(split_sizes)
    if batch_size == "full":
        return tuple(split_sizes)
    if not 1 <= batch_size <= total:
        raise ConfigError(f"batch size is {batch_size}, but must be 'full' or in 1 .. {total}, the training rows")
    shares = [batch_size * size // total for size in split_sizes]
    by_remainder = sorted(range(len(split_sizes)), key=lambda s: (-(batch_size * split_sizes[s] % total), s))
    for split in by_remainder[: batch_size - sum(shares)]:
        shares[split] += 1
    return tuple(shares)


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
