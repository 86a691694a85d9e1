"""What every sum of contributions has: memory that is written by the first of them, not zeroed before.

Nor need the last of them be written: what closes a clock reads the sum once, and can add it on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.ml import kernels
from eps.ml.arrays import Int64Array

#: Sums on the grid: int32, or int64 for many splits.
IntegerArray = NDArray[Any]

#: Keys of a sum that are looked at first for one that is not zero.
_FIRST_LOOK = 256


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
        #: Still to be added, where whoever reads the sum next may do that as well as write it.
        self._last: NDArray[Any] | None = None

    @property
    def sum(self) -> NDArray[Any]:
        """The sum, over its range of keys or over its list of keys."""
        if self._last is not None:
            part, self._last = self._last, None
            self._add_part(part, None, 0, None)
        if not self._written:
            self._sum.fill(0)
            self._written = True
        return self._sum

    @property
    def memory(self) -> NDArray[Any]:
        """What the sum lies in, whatever it holds."""
        return self._sum

    def terms(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return two arrays whose sum it is; the second is empty where it is the first alone."""
        last = self._last
        if last is None:
            return self.sum, self._sum[:0]
        return (self._sum, last) if self._written else (last, last[:0])

    def is_zero(self) -> bool:
        """Return whether every value of the sum is zero."""
        total, added = self.terms()
        # Either way all of an array is read, so it is asked for little first.
        start, size = 0, _FIRST_LOOK
        while start < len(total):
            part = total[start : start + size]
            if np.count_nonzero(part + added[start : start + size] if added.size else part):
                return False
            start, size = start + size, 8 * size
        return True

    def _add_part(
        self,
        part: NDArray[Any],
        keys: Int64Array | None,
        start_key: int,
        positions: kernels.Positions | None,
        is_last: bool = False,
    ) -> None:
        """Add what was pushed at ``keys`` (None: the whole range), which lie at ``positions`` where those are given."""
        if is_last and part.size == self._sum.size and self._last is None:
            self._last = part
        elif not self._written and part.size == self._sum.size:
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
