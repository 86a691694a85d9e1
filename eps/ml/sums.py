"""What every sum of contributions has: memory that is written by the first of them, not zeroed before."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.ml import kernels
from eps.ml.arrays import Int64Array

#: Sums on the grid: int32, or int64 for many splits.
IntegerArray = NDArray[Any]


class WrittenOnce:
    """A running sum; a first part that has every key is stored, not added to zeros.

    Parameters
    ----------
    memory : ndarray
        Of the sum, whatever it holds.
    """

    def __init__(self, memory: NDArray[Any]) -> None:
        self._sum = memory
        self._written = False

    @property
    def sum(self) -> NDArray[Any]:
        """The sum, over its range of keys or over its list of keys."""
        if not self._written:
            self._sum.fill(0)
            self._written = True
        return self._sum

    def _add_part(
        self, part: NDArray[Any], keys: Int64Array | None, start_key: int, positions: kernels.Positions | None
    ) -> None:
        """Add what was pushed at ``keys`` (None: the whole range), which lie at ``positions`` where those are given."""
        if not self._written and part.size == self._sum.size:
            # Ascending and equally many: the same keys.
            np.copyto(self._sum, part)
            self._written = True
        elif keys is None or part.size == self._sum.size:
            self._sum += part
        elif positions is not None:
            kernels.add_at(self.sum, positions, 0, part)
        else:
            kernels.add_at(self.sum, keys, start_key, part)


def memory_for(out: IntegerArray | None, size: int, dtype: np.dtype[Any]) -> IntegerArray:
    """Return the memory of a sum: what was given, or new.

    Raises
    ------
    ValueError
        What was given has another size or type.
    """
    if out is None:
        return np.empty(size, dtype=dtype)
    if out.shape != (size,) or out.dtype != dtype:
        raise ValueError(f"memory {out.dtype}{out.shape} was given for a sum {dtype}({size},)")
    return out
