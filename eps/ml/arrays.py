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
#: Encoded labels: int32 class indices, or float32 for regression; zeros for topics, which have no labels.
Targets = NDArray[Any]
#: Dense float32 (n, d) in C order, or a SciPy CSR matrix of the same shape with sorted indices.
Matrix = Any


class Purpose(IntEnum):
    """The use of a random stream, so that streams of one seed never overlap."""

    INITIAL_VALUES = 1
    BATCHES = 2
    SWEEPS = 3


def random_stream(seed: int, purpose: Purpose, *position: int) -> np.random.Generator:
    """Return the random stream at ``position`` (at most two numbers) of ``seed`` and ``purpose``.

    Philox counts in the low words, so streams with different positions in the high words never meet.  A stream is a
    function of its arguments alone: no earlier stream has to be drawn first.

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
    """Return the distinct values of integers, ascending.

    Not ``np.unique``: since version 2.3 NumPy uses a hash table.  For seven million keys that took 70 times as long,
    and held the interpreter lock for more than a second, in which the process could send no heartbeat.
    """
    ordered = np.sort(keys)
    if not ordered.size:
        return ordered.astype(np.int64)
    new = np.empty(ordered.size, np.bool_)
    new[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new].astype(np.int64, copy=False)
