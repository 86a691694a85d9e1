"""Array types and random streams shared by ``eps.ml``; imports NumPy only."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.errors import ConfigError

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Int16Array = NDArray[np.int16]
Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
#: Labels as models see them: int32 class indices, or float32 for regression.
Targets = NDArray[Any]
#: Dense float32 (n, d) in C order, or a SciPy CSR matrix of the same shape with sorted indices.
Matrix = Any


class Purpose(IntEnum):
    """What a random stream is for, so that streams of one seed never overlap."""

    INITIAL_VALUES = 1
    BATCHES = 2


def random_stream(seed: int, purpose: Purpose, *position: int) -> np.random.Generator:
    """Return the random stream at ``position`` (at most two numbers) of ``seed`` and ``purpose``.

    Philox counts in the low words, so positions in the high words give streams that do not meet, and a stream
    is a function of its arguments alone: nobody has to draw the earlier ones first.

    Raises
    ------
    ConfigError
        ``seed`` is outside 0 .. 2^63 - 1.
    """
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {seed}, but must be in 0 .. 2^63 - 1")
    high = (*position, 0, 0)[:2]
    counter = np.array([0, 0, *high], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=np.array([seed, purpose], dtype=np.uint64)))


def distinct(keys: NDArray[np.integer[Any]]) -> Int64Array:
    """Return the distinct ones of whole numbers, ascending.

    Not ``np.unique``: since version 2.3 NumPy puts them into a hash table.  That took 70 times as long for seven
    million keys, and held the interpreter for more than a second, in which a process can tell nobody that it is alive.
    """
    ordered = np.sort(keys)
    if not ordered.size:
        return ordered.astype(np.int64)
    new = np.empty(ordered.size, np.bool_)
    new[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new].astype(np.int64, copy=False)
