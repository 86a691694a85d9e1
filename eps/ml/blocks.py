"""Where the fixed blocks of keys lie in an array: what the grid of ``eps.ml.grid`` is counted in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eps.errors import DIVERGED, TrainingError
from eps.ml import kernels
from eps.ml.arrays import Float32Array, Int16Array, Int64Array
from eps.ml.scales import Scales

#: Keys that are added at a time, so that temporaries stay in the cache.
CHUNK_KEYS = 65536


class Blocks:
    """Where the blocks of a range lie in an array over the range, or over a sorted list of some of its keys.

    A value that nobody changes; callers keep it where the same keys come clock after clock.  It remembers what the
    latest exponents mean at its keys, because they rarely change from one clock to the next.
    """

    def __init__(self, block_keys: int, start_key: int, length: int, keys: Int64Array | None) -> None:
        if start_key % block_keys:
            raise ValueError(f"the range starts at key {start_key}, but must start at a multiple of {block_keys}")
        self.num_blocks = -(-length // block_keys)
        edges = np.minimum(np.arange(self.num_blocks + 1, dtype=np.int64) * block_keys, length)
        self._set_bounds(edges if keys is None else np.searchsorted(keys, edges + start_key))
        if keys is not None and self.size != keys.size:
            raise ValueError(f"keys outside the range [{start_key}, {start_key + length})")

    def _set_bounds(self, bounds: Int64Array) -> None:
        #: Block b is at [bounds[b], bounds[b + 1]).
        self.bounds = bounds
        self.counts = np.diff(bounds)
        #: Blocks that have keys.
        self.present = np.flatnonzero(self.counts)
        self.size = int(bounds[-1]) if bounds.size else 0
        #: Every block has one key, as in models of few keys.
        self._single = self.size == self.num_blocks == self.present.size
        self._latest: tuple[bytes, int, Scales] | None = None

    def at(self, positions: Int64Array) -> Blocks:
        """Return the blocks of an array over some sorted positions of this one.

        Raises
        ------
        ValueError
            A position is not one of this array.
        """
        part = object.__new__(Blocks)
        part.num_blocks = self.num_blocks
        part._set_bounds(np.searchsorted(positions, self.bounds))
        if part.size != positions.size:
            raise ValueError(f"positions outside the {self.size} keys of the sum")
        return part

    def chunks(self, chunk_keys: int = CHUNK_KEYS) -> Iterator[tuple[NDArray[np.intp], slice]]:
        """Yield runs of present blocks with the positions that they take, of about ``chunk_keys`` keys."""
        first = 0
        while first < self.present.size:
            limit = self.bounds[self.present[first]] + chunk_keys
            stops = self.bounds[self.present[first:] + 1]
            count = max(1, int(np.searchsorted(stops, limit, side="right")))
            blocks = self.present[first : first + count]
            yield blocks, slice(int(self.bounds[blocks[0]]), int(self.bounds[blocks[-1] + 1]))
            first += count

    def scales(self, exponents: Int16Array, shift: int) -> Scales:
        """Return what exponents mean at each key; for arrays that fit into the cache."""
        # Bytes, because exponents that are on their way are filled in later.
        name, latest = exponents.tobytes(), self._latest
        if latest is not None and latest[0] == name and latest[1] == shift:
            return latest[2]
        found = Scales(exponents, shift, None if self._single else self.counts)
        self._latest = name, shift, found
        return found

    def reduced(self, magnitudes: Float32Array) -> Float32Array:
        """Return the largest magnitude of each block, 0 for blocks without keys; ``magnitudes`` itself may be it."""
        if self._single:
            return magnitudes
        found = np.zeros(self.num_blocks, dtype=np.float32)
        if self.present.size == self.size:
            found[self.present] = magnitudes
        else:
            found[self.present] = np.maximum.reduceat(magnitudes, self.bounds[self.present])
        return found

    def maxima(self, grad: Float32Array) -> Float32Array:
        """Return max |grad| of each block, 0 for blocks without keys; NaN or infinity where a value is."""
        found = np.zeros(self.num_blocks, dtype=np.float32)
        compiled = kernels.active()
        if compiled is not None:
            compiled.largest(bits_of(grad), self.bounds, found.view(np.uint32))
            return found
        # NaN is wanted here: the caller looks for it in the maxima.
        with np.errstate(invalid="ignore"):
            for blocks, part in self.chunks():
                starts = self.bounds[blocks] - part.start
                found[blocks] = np.maximum.reduceat(np.abs(grad[part]), starts)
        return found


def bits_of(values: Float32Array) -> NDArray[np.uint32]:
    """Return the bits of float32 values, in one piece of memory."""
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)


def check_finite(maxima: Float32Array, start_key: int, block_keys: int, split: int | None) -> None:
    """Raise TrainingError if a block's magnitude is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(maxima))
    if bad.size:
        first = start_key + int(bad[0]) * block_keys
        of_split = "" if split is None else f" of split {split}"
        raise TrainingError(
            f"the gradient{of_split} is NaN or infinite between keys {first} and {first + block_keys}: "
            f"{DIVERGED}; a smaller learning rate or normalised data may help"
        )
