"""Sums over splits that are the same to the bit whoever adds them, in whatever order.

Every block of keys has an integer exponent X, a function of earlier clocks only.  A split's contribution whose values
are all below ``2^(X + 2)`` in a block is *on the grid* there: it is rounded to a multiple of ``2^E``, with
``E = X + 2 - value_bits``, and added as an integer, which is associative.  Otherwise the block travels *raw*, by split,
and is added in split order in float64 when the clock is complete.  Whether a block is on the grid depends on the
contribution and X alone, never on who computed it.

A worker has a :class:`SplitSum` for each partition and clock, a server a :class:`ClockSum`.  Blocks are counted from
the start of the range, which is a block boundary.

Source: design section 5.  Deviation: clock -1 measures the maxima (a clock without a past has no grid), so that the
first clock that trains is on the grid as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eps.errors import ConfigError, ProtocolError, TrainingError
from eps.ml.arrays import Float32Array, Float64Array, Int16Array, Int64Array

#: Sums on the grid: int32, or int64 for many splits.
IntegerArray = NDArray[Any]

#: Up to this many splits the sum of all of them fits into int32 with enough bits for a value.
MAX_INT32_SPLITS = 256
#: Bits of a value where sums are int64.
INT64_VALUE_BITS = 40
#: Smallest exponent of a block: with it and 40 bits, 2^-E is the largest power of two that float32 holds safely.
EXPONENT_FLOOR = -88
#: Powers of two by which a value may exceed the running maximum and be on the grid still.
GROWTH_BITS = 2
#: The running maximum loses a power of two every so many clocks.
DECAY_CLOCKS = 8
#: Keys that are added at a time, so that temporaries stay in the cache.
CHUNK_KEYS = 65536


@dataclass(frozen=True, slots=True)
class Grid:
    """How contributions are rounded.

    Raises
    ------
    ConfigError
        The number of splits is outside 1 .. 2^22, or blocks are empty.
    """

    num_splits: int
    block_keys: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_splits <= 2**22:
            raise ConfigError(f"splits is {self.num_splits}, but must be in 1 .. {2**22} for reproducible sums")
        if self.block_keys < 1:
            raise ConfigError(f"a block has {self.block_keys} keys, but must have at least 1")

    @property
    def value_bits(self) -> int:
        """A value on the grid is at most ``2^value_bits`` in size, so the sum of all splits fits the type."""
        if self.num_splits > MAX_INT32_SPLITS:
            return INT64_VALUE_BITS
        return 30 - (self.num_splits - 1).bit_length()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the sums, in memory and on the wire."""
        return np.dtype(np.int64 if self.num_splits > MAX_INT32_SPLITS else np.int32)

    def num_blocks(self, length: int) -> int:
        """Return the number of blocks of a range of ``length`` keys."""
        return -(-length // self.block_keys)

    def initial_exponents(self, length: int) -> Int16Array:
        """Return the exponents before anything was measured."""
        return np.full(self.num_blocks(length), EXPONENT_FLOOR, dtype=np.int16)

    def unit_exponents(self, exponents: Int16Array) -> NDArray[np.int32]:
        """Return E of each block: values on the grid are multiples of ``2^E``."""
        return exponents.astype(np.int32) + (GROWTH_BITS - self.value_bits)


class RawBlock(NamedTuple):
    """A block of one split that is off the grid."""

    split: int
    #: Counted from the start of the range.
    block: int
    #: float32, at those keys of the sum's key list (or of the range) that lie in the block.
    values: Float32Array


class _Blocks:
    """Where the blocks of a range lie in an array over the range, or over a sorted list of some of its keys."""

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

    def at(self, positions: Int64Array) -> _Blocks:
        """Return the blocks of an array over some sorted positions of this one."""
        part = object.__new__(_Blocks)
        part.num_blocks = self.num_blocks
        part._set_bounds(np.searchsorted(positions, self.bounds))
        if part.size != positions.size:
            raise ValueError(f"positions outside the {self.size} keys of the sum")
        return part

    def chunks(self) -> Iterator[tuple[NDArray[np.intp], slice]]:
        """Yield runs of present blocks with the positions that they take, of about ``CHUNK_KEYS`` keys."""
        first = 0
        while first < self.present.size:
            limit = self.bounds[self.present[first]] + CHUNK_KEYS
            stops = self.bounds[self.present[first:] + 1]
            count = max(1, int(np.searchsorted(stops, limit, side="right")))
            blocks = self.present[first : first + count]
            yield blocks, slice(int(self.bounds[blocks[0]]), int(self.bounds[blocks[-1] + 1]))
            first += count

    def maxima(self, grad: Float32Array) -> Float32Array:
        """Return max |grad| of each block, 0 for blocks without keys."""
        found = np.zeros(self.num_blocks, dtype=np.float32)
        # NaN is wanted here: the caller looks for it in the maxima.
        with np.errstate(invalid="ignore"):
            for blocks, part in self.chunks():
                starts = self.bounds[blocks] - part.start
                found[blocks] = np.maximum.reduceat(np.abs(grad[part]), starts)
        return found


def block_maxima(
    grad: Float32Array,
    start_key: int,
    block_keys: int,
    keys: Int64Array | None = None,
    length: int | None = None,
) -> Float32Array:
    """Return max |grad| of each block of a range, 0 for blocks without keys.

    Parameters
    ----------
    grad : ndarray, float32
        Over the range [start_key, start_key + length), or over ``keys``.
    start_key : int
        A multiple of ``block_keys``.
    keys : ndarray of int64, sorted, or None
        Global keys of ``grad``.
    length : int, optional
        Keys in the range; by default it ends with ``grad`` or with the last of ``keys``.

    Raises
    ------
    TrainingError
        A value is NaN or infinite.
    """
    if length is None:
        length = grad.size if keys is None else int(keys[-1]) + 1 - start_key if keys.size else 0
    maxima = _Blocks(block_keys, start_key, length, keys).maxima(grad)
    _check_finite(maxima, start_key, block_keys, None)
    return maxima


def exponents_of(maxima: Float32Array) -> Int16Array:
    """Return the smallest e with ``maximum < 2^e`` for each block, and the floor for 0."""
    exponents: Int16Array = np.frexp(maxima)[1].astype(np.int16)
    exponents[maxima == 0] = EXPONENT_FLOOR
    np.maximum(exponents, np.int16(EXPONENT_FLOOR), out=exponents)
    return exponents


def next_exponents(exponents: Int16Array, maxima: Float32Array, clock: int) -> Int16Array:
    """Return the exponents of clock + 1: the running maximum of all splits, which decays slowly.

    Parameters
    ----------
    exponents : ndarray, shape (num_blocks,), int16
        Of ``clock``; ``grid.initial_exponents`` at clock -1.
    maxima : ndarray, shape (num_blocks,), float32
        Largest |contribution| over all splits at ``clock``.
    """
    decay = 1 if (clock + 1) % DECAY_CLOCKS == 0 else 0
    decayed = np.maximum(exponents - np.int16(decay), np.int16(EXPONENT_FLOOR))
    following: Int16Array = np.maximum(exponents_of(maxima), decayed)
    return following


class SplitSum:
    """Running sum of a worker over its splits, at one clock and over one range of keys.

    Attributes
    ----------
    sum : ndarray, int32 or int64
        Over the range, or over ``keys``.
    maxima : ndarray, shape (num_blocks,), float32
        Largest |contribution| of any split so far, on the grid or off it.
    raw : list of RawBlock
    splits : list of int
        In the order in which they were added.
    """

    def __init__(
        self, grid: Grid, exponents: Int16Array, start_key: int, length: int, keys: Int64Array | None = None
    ) -> None:
        self.grid = grid
        self.start_key = start_key
        self.keys = keys
        self._blocks = _Blocks(grid.block_keys, start_key, length, keys)
        if exponents.size != self._blocks.num_blocks:
            raise ValueError(f"{exponents.size} exponents given for {self._blocks.num_blocks} blocks")
        self._exponents = exponents
        self._scale = np.ldexp(np.float32(1.0), -grid.unit_exponents(exponents))
        self.sum: IntegerArray = np.zeros(self._blocks.size, dtype=grid.dtype)
        self.maxima: Float32Array = np.zeros(exponents.size, dtype=np.float32)
        self.raw: list[RawBlock] = []
        self.splits: list[int] = []

    def add(self, split: int, grad: Float32Array, positions: Int64Array | None = None) -> None:
        """Add the contribution of a split.

        Parameters
        ----------
        split : int
        grad : ndarray, float32
            Over the range or the keys of this sum, or over ``positions``.
        positions : ndarray of int64, sorted, or None
            Where ``grad`` lies within the keys of this sum; it is zero elsewhere.

        Raises
        ------
        TrainingError
            A value is NaN or infinite; nothing was added then.
        """
        blocks = self._blocks if positions is None else self._blocks.at(positions)
        if grad.size != blocks.size:
            raise ValueError(f"split {split}: {grad.size} values given for {blocks.size} keys")
        maxima = blocks.maxima(grad)
        _check_finite(maxima, self.start_key, self.grid.block_keys, split)
        scale = self._scale
        off = np.flatnonzero(exponents_of(maxima) > self._exponents + np.int16(GROWTH_BITS))
        if off.size:
            scale = scale.copy()
            scale[off] = 0.0
            self._keep_raw(split, off, blocks, grad, positions)
        for present, part in blocks.chunks():
            rounded = np.repeat(scale[present], blocks.counts[present])
            rounded *= grad[part]
            np.rint(rounded, out=rounded)
            whole = rounded.astype(self.grid.dtype)
            if positions is None:
                self.sum[part] += whole
            else:
                self.sum[positions[part]] += whole
        np.maximum(self.maxima, maxima, out=self.maxima)
        self.splits.append(split)

    def _keep_raw(
        self,
        split: int,
        off: NDArray[np.intp],
        blocks: _Blocks,
        grad: Float32Array,
        positions: Int64Array | None,
    ) -> None:
        for block in off.tolist():
            values = grad[blocks.bounds[block] : blocks.bounds[block + 1]].astype(np.float32)
            if positions is not None:
                first = self._blocks.bounds[block]
                spread = np.zeros(self._blocks.counts[block], dtype=np.float32)
                spread[positions[blocks.bounds[block] : blocks.bounds[block + 1]] - first] = values
                values = spread
            self.raw.append(RawBlock(split, block, values))


class ClockSum:
    """Sum of a server over everything that was pushed to one partition at one clock.

    Attributes
    ----------
    sum : ndarray, shape (length,), int32 or int64
    maxima : ndarray, shape (num_blocks,), float32
    raw : list of RawBlock
        Values are over the whole block.
    """

    def __init__(self, grid: Grid, exponents: Int16Array, start_key: int, length: int) -> None:
        self.grid = grid
        self.start_key = start_key
        self.exponents = exponents
        self.length = length
        self.sum: IntegerArray = np.zeros(length, dtype=grid.dtype)
        self.maxima: Float32Array = np.zeros(exponents.size, dtype=np.float32)
        self.raw: list[RawBlock] = []

    def add(
        self,
        part: IntegerArray,
        maxima: Float32Array,
        raw: Iterable[tuple[int, int, Float32Array]] = (),
        keys: Int64Array | None = None,
    ) -> None:
        """Add a pushed :class:`SplitSum`; the caller sees to it that each split is added once.

        Parameters
        ----------
        part : ndarray of the grid's type
            Over the partition, or over ``keys``.
        maxima : ndarray, shape (num_blocks,), float32
        raw : iterable of (split, block, values)
        keys : ndarray of int64, sorted, or None
            Global keys of ``part``.

        Raises
        ------
        ProtocolError
            Sizes or types do not fit; nothing was added then.
        """
        expected = self.length if keys is None else keys.size
        if part.size != expected or part.dtype != self.grid.dtype or maxima.size != self.maxima.size:
            raise ProtocolError(
                f"a sum of {part.size} {part.dtype} and {maxima.size} maxima was pushed, "
                f"but {expected} {self.grid.dtype} and {self.maxima.size} were expected"
            )
        if keys is not None and keys.size and not self.start_key <= keys[0] <= keys[-1] < self.start_key + self.length:
            raise ProtocolError(
                f"keys {keys[0]} .. {keys[-1]} were pushed to [{self.start_key}, {self.start_key + self.length})"
            )
        self.raw.extend([self._over_block(RawBlock(*block), keys) for block in raw])
        if keys is None:
            self.sum += part
        else:
            self.sum[keys - self.start_key] += part
        np.maximum(self.maxima, maxima, out=self.maxima)

    def total(self, keys: Int64Array | None = None) -> Float64Array:
        """Return the sum over all splits, float64, over the partition or at some global keys."""
        if keys is None:
            return total(self.grid, self.exponents, self.sum, self.raw, self.start_key)
        blocks = _Blocks(self.grid.block_keys, self.start_key, self.length, keys)
        return _total(self.grid, self.exponents, self.sum[keys - self.start_key], self._raw_at(keys), blocks)

    def next_exponents(self, clock: int) -> Int16Array:
        """Return the exponents of the clock after ``clock``, once everything was added."""
        return next_exponents(self.exponents, self.maxima, clock)

    def _range_of(self, block: int) -> tuple[int, int]:
        return block * self.grid.block_keys, min((block + 1) * self.grid.block_keys, self.length)

    def _over_block(self, raw: RawBlock, keys: Int64Array | None) -> RawBlock:
        if not 0 <= raw.block < self.maxima.size:
            raise ProtocolError(f"split {raw.split} pushed block {raw.block} of {self.maxima.size}")
        first, stop = self._range_of(raw.block)
        if keys is None:
            positions: slice | Int64Array = slice(0, stop - first)
            expected = stop - first
        else:
            a, b = np.searchsorted(keys, (first + self.start_key, stop + self.start_key))
            positions = keys[a:b] - (first + self.start_key)
            expected = int(b - a)
        if raw.values.size != expected:
            raise ProtocolError(
                f"split {raw.split} pushed {raw.values.size} values of block {raw.block}, but {expected} were expected"
            )
        values = np.zeros(stop - first, dtype=np.float32)
        values[positions] = raw.values
        return raw._replace(values=values)

    def _raw_at(self, keys: Int64Array) -> list[RawBlock]:
        chosen = []
        for raw in self.raw:
            first, stop = self._range_of(raw.block)
            a, b = np.searchsorted(keys, (first + self.start_key, stop + self.start_key))
            chosen.append(raw._replace(values=raw.values[keys[a:b] - (first + self.start_key)]))
        return chosen


def total(
    grid: Grid,
    exponents: Int16Array,
    int_sum: IntegerArray,
    raw: Iterable[tuple[int, int, Float32Array]],
    start_key: int = 0,
    keys: Int64Array | None = None,
    length: int | None = None,
) -> Float64Array:
    """Return ``int_sum * 2^E`` plus the raw blocks, added in split order.

    Parameters
    ----------
    int_sum : ndarray of the grid's type
        Over a range, or over ``keys``.
    raw : iterable of (split, block, values)
        Over the same keys as ``int_sum``, in any order.
    length : int, optional
        Keys in the range; needed with ``keys``.

    Returns
    -------
    ndarray of float64, like ``int_sum``
    """
    if length is None:
        length = int_sum.size if keys is None else exponents.size * grid.block_keys
    blocks = _Blocks(grid.block_keys, start_key, length, keys)
    return _total(grid, exponents, int_sum, (RawBlock(*block) for block in raw), blocks)


def _total(
    grid: Grid, exponents: Int16Array, int_sum: IntegerArray, raw: Iterable[RawBlock], blocks: _Blocks
) -> Float64Array:
    unit = np.ldexp(1.0, grid.unit_exponents(exponents))
    result: Float64Array = int_sum * np.repeat(unit, blocks.counts)
    for split, block, values in sorted(raw, key=lambda item: (item.split, item.block)):
        place = result[blocks.bounds[block] : blocks.bounds[block + 1]]
        if values.size != place.size:
            raise ProtocolError(f"split {split} has {values.size} values of block {block}, which has {place.size}")
        place += values
    return result


def _check_finite(maxima: Float32Array, start_key: int, block_keys: int, split: int | None) -> None:
    bad = np.flatnonzero(~np.isfinite(maxima))
    if bad.size:
        first = start_key + int(bad[0]) * block_keys
        of_split = "" if split is None else f" of split {split}"
        raise TrainingError(
            f"the gradient{of_split} is NaN or infinite between keys {first} and {first + block_keys}: "
            "training diverged; a smaller learning rate or normalised data may help"
        )
