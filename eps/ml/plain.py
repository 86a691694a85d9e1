"""Sums in float32, in the order in which they come: what jobs use that need not be reproducible.

The counterparts of :class:`eps.ml.grid.SplitSum` and :class:`eps.ml.grid.ClockSum`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eps.errors import DIVERGED, ProtocolError, TrainingError
from eps.ml import kernels
from eps.ml.arrays import Float32Array, Int64Array
from eps.ml.steps import CLOSE_KEYS, Quotient, plain_quotient
from eps.ml.sums import WrittenOnce


class PlainSplitSum(WrittenOnce):
    """Running sum of a worker over its splits.

    Parameters
    ----------
    memory : ndarray, float32
        Of the sum, whatever it holds.
    """

    def add(self, split: int, grad: Float32Array, positions: Int64Array | None = None) -> None:
        """Add the contribution of a split, at all keys or at some positions.

        Raises
        ------
        TrainingError
            A value is NaN or infinite; nothing was added then.
        """
        if not np.isfinite(grad).all():
            raise TrainingError(
                f"the gradient of split {split} is not finite: {DIVERGED}; a smaller learning rate may help"
            )
        if positions is not None:
            kernels.add_at(self.sum, positions, 0, grad)
        elif self._written:
            self._sum += grad
        else:
            np.copyto(self._sum, grad)
        self._written = True


class PlainClockSum(WrittenOnce):
    """Sum of a server over what was pushed to one partition at one clock.

    Parameters
    ----------
    start_key, length : int
        The partition.
    keys : ndarray of int64, sorted, or None
        Global keys of the sum; None is the partition.
    out : ndarray, float32, optional
        Memory of the sum, whatever it holds.
    """

    def __init__(
        self, start_key: int, length: int, keys: Int64Array | None = None, out: Float32Array | None = None
    ) -> None:
        self.start_key = start_key
        self.length = length
        self.keys = keys
        super().__init__(np.empty(length if keys is None else keys.size, dtype=np.float32) if out is None else out)

    def add(
        self,
        part: Float32Array,
        keys: Int64Array | None = None,
        positions: kernels.Positions | None = None,
        is_last: bool = False,
    ) -> None:
        """Add what was pushed; arguments as of :meth:`eps.ml.grid.ClockSum.add`.

        Raises
        ------
        ProtocolError
            Size or type do not fit; nothing was added then.
        """
        expected = self.length if keys is None else keys.size
        if part.size != expected or part.dtype != np.float32:
            raise ProtocolError(f"a sum of {part.size} {part.dtype} was pushed, but {expected} float32 were expected")
        if self.keys is not None and (positions is None or positions.size != part.size):
            raise ValueError(f"a sum over {self.keys.size} keys needs to know where the {part.size} added ones are")
        self._add_part(part, keys, self.start_key, positions, is_last)

    def over(self, keys: Int64Array | None, out: Float32Array | None = None) -> PlainClockSum:
        """Return the same sum over other keys; it is zero at those that this one does not have."""
        found = PlainClockSum(self.start_key, self.length, keys, out)
        if self.keys is None and keys is not None:
            kernels.take(self.sum, keys, self.start_key, found._sum)
            found._written = True
        elif self.keys is None:
            np.copyto(found.sum, self.sum)
        elif keys is None:
            found.sum[self.keys - self.start_key] = self.sum
        else:
            return self.over(None).over(keys, out)
        return found

    def quotient(self, samples: int) -> Quotient:
        """Return ``sum / samples`` before it is formed."""
        return plain_quotient(*self.terms(), float(np.float32(samples)))

    def means(self, samples: int) -> Iterator[tuple[slice, Float32Array]]:
        """Yield ``sum / samples`` part by part; see :meth:`eps.ml.grid.ClockSum.means`."""
        sums, memory = self.sum, np.empty(min(CLOSE_KEYS, self.sum.size), dtype=np.float32)
        for start in range(0, sums.size, CLOSE_KEYS):
            part = slice(start, min(start + CLOSE_KEYS, sums.size))
            mean = memory[: part.stop - start]
            np.divide(sums[part], np.float32(samples), out=mean)
            yield part, mean
