"""Sums over splits that are the same to the bit whoever adds them, in whatever order.

Every block of keys has an integer exponent X, a function of earlier clocks only.  A split's contribution whose values
are all below ``2^(X + 2)`` in a block is *on the grid* there: it is rounded to a multiple of ``2^E``, with
``E = X + 2 - value_bits``, and added as an integer, which is associative.  Otherwise the block travels *raw*, by split,
and is added in split order in float64 when the clock is complete.  Whether a block is on the grid depends on the
contribution and X alone, never on who computed it.

A worker has a :class:`eps.ml.split_sum.SplitSum` for each clock, a server a :class:`ClockSum` for each partition and
clock.  Blocks are counted from the start of the range, which is a block boundary.

Source: design section 5.  Deviation: clock -1 measures the maxima (a clock without a past has no grid), so that the
first clock that trains is on the grid as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eps.errors import ConfigError, ProtocolError
from eps.ml import kernels
from eps.ml.arrays import Float32Array, Float64Array, Int16Array, Int64Array
from eps.ml.blocks import Blocks
from eps.ml.scales import EXPONENT_FLOOR, GROWTH_BITS, Scales, next_exponents
from eps.ml.steps import CLOSE_KEYS, Quotient
from eps.ml.sums import IntegerArray, WrittenOnce, memory_for

#: Up to this many splits the sum of all of them fits into int32 with enough bits for a value.
MAX_INT32_SPLITS = 256
#: Bits of a value where sums are int64.
INT64_VALUE_BITS = 40


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
    #: A value on the grid is at most ``2^value_bits`` in size, so the sum of all splits fits the type.
    value_bits: int = field(init=False, repr=False, compare=False)
    #: Type of the sums, in memory and on the wire.
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    #: Values on the grid are multiples of ``2^(exponent + shift)``.
    shift: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.num_splits <= 2**22:
            raise ConfigError(f"splits is {self.num_splits}, but must be in 1 .. {2**22} for reproducible sums")
        if self.block_keys < 1:
            raise ConfigError(f"a block has {self.block_keys} keys, but must have at least 1")
        wide = self.num_splits > MAX_INT32_SPLITS
        bits = INT64_VALUE_BITS if wide else 30 - (self.num_splits - 1).bit_length()
        # Asked for with every push and split, so computed once.
        object.__setattr__(self, "value_bits", bits)
        object.__setattr__(self, "dtype", np.dtype(np.int64 if wide else np.int32))
        object.__setattr__(self, "shift", GROWTH_BITS - bits)

    def num_blocks(self, length: int) -> int:
        """Return the number of blocks of a range of ``length`` keys."""
        return -(-length // self.block_keys)

    def initial_exponents(self, length: int) -> Int16Array:
        """Return the exponents before anything was measured."""
        return np.full(self.num_blocks(length), EXPONENT_FLOOR, dtype=np.int16)

    def unit_exponents(self, exponents: Int16Array) -> NDArray[np.int32]:
        """Return E of each block: values on the grid are multiples of ``2^E``."""
        return exponents.astype(np.int32) + self.shift


class RawBlock(NamedTuple):
    """A block of one split that is off the grid."""

    split: int
    #: Counted from the start of the range.
    block: int
    #: float32, at those keys of the sum's key list (or of the range) that lie in the block.
    values: Float32Array


class ClockSum(WrittenOnce):
    """Sum of a server over everything that was pushed to one partition at one clock.

    Parameters
    ----------
    grid : Grid
    exponents : ndarray, shape (num_blocks,), int16
    start_key, length : int
        The partition.
    keys : ndarray of int64, sorted, or None
        Global keys of the sum; None is the partition.
    out : ndarray of the grid's type, optional
        Memory of the sum, whatever it holds.
    blocks : Blocks, optional
        Of these keys, where the caller keeps them.

    Attributes
    ----------
    raw : list of RawBlock
        Values are over the whole block.
    """

    def __init__(
        self,
        grid: Grid,
        exponents: Int16Array,
        start_key: int,
        length: int,
        keys: Int64Array | None = None,
        out: IntegerArray | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        self.grid = grid
        self.start_key = start_key
        self.exponents = exponents
        self.length = length
        self.keys = keys
        self._blocks = Blocks(grid.block_keys, start_key, length, keys) if blocks is None else blocks
        super().__init__(memory_for(out, self._blocks.size, grid.dtype))
        self._maxima: Float32Array | None = None
        self._known_scales: Scales | None = None
        self.raw: list[RawBlock] = []

    @property
    def maxima(self) -> Float32Array:
        """Largest |contribution| in each block, shape (num_blocks,), float32."""
        if self._maxima is None:
            self._maxima = np.zeros(self.exponents.size, dtype=np.float32)
        return self._maxima

    def add(
        self,
        part: IntegerArray,
        maxima: Float32Array,
        raw: Sequence[tuple[int, int, Float32Array]] = (),
        keys: Int64Array | None = None,
        positions: kernels.Positions | None = None,
        is_last: bool = False,
    ) -> None:
        """Add a pushed :class:`eps.ml.split_sum.SplitSum`; the caller sees to it that each split is added once.

        Nothing is kept of what is given, but for ``part`` where it is the last.

        Parameters
        ----------
        part : ndarray of the grid's type
            Over the partition, or over ``keys``.
        maxima : ndarray, shape (num_blocks,), float32
        raw : sequence of (split, block, values)
        keys : ndarray of int64, sorted, or None
            Global keys of ``part``; None is the partition.
        positions : ndarray of int64 or uint32, sorted, or None
            Where ``keys`` lie in a sum that has keys of its own; the caller has seen that they are its.
        is_last : bool
            The sum is used once more, for the step, and ``part`` stays as it is until then.

        Raises
        ------
        ProtocolError
            Sizes or types do not fit; nothing was added then.
        """
        expected = self.length if keys is None else keys.size
        if part.size != expected or part.dtype != self.grid.dtype or maxima.size != self.exponents.size:
            raise ProtocolError(
                f"a sum of {part.size} {part.dtype} and {maxima.size} maxima was pushed, "
                f"but {expected} {self.grid.dtype} and {self.exponents.size} were expected"
            )
        # Who knows the positions has looked at the keys.
        if keys is not None and positions is None and keys.size:
            first, last = keys.item(0), keys.item(-1)
            if not self.start_key <= first <= last < self.start_key + self.length:
                raise ProtocolError(
                    f"keys {first} .. {last} were pushed to [{self.start_key}, {self.start_key + self.length})"
                )
        if self.keys is not None and (positions is None or positions.size != part.size):
            raise ValueError(f"a sum over {self.keys.size} keys needs to know where the {part.size} added ones are")
        if raw:
            self.raw.extend([self._over_block(RawBlock(*block), keys) for block in raw])
        self._add_part(part, keys, self.start_key, positions, is_last)
        if self._maxima is None:
            self._maxima = maxima.copy()
        else:
            np.maximum(self._maxima, maxima, out=self._maxima)

    def over(self, keys: Int64Array | None, out: IntegerArray | None = None, blocks: Blocks | None = None) -> ClockSum:
        """Return the same sum over other keys; it is zero at those that this one does not have."""
        found = ClockSum(self.grid, self.exponents, self.start_key, self.length, keys, out, blocks)
        found._maxima, found.raw = self._maxima, self.raw
        if self.keys is None and keys is not None:
            np.take(self.sum, keys - self.start_key, out=found._sum, mode="clip")
            found._written = True
        elif self.keys is None:
            np.copyto(found.sum, self.sum)
        elif keys is None:
            found.sum[self.keys - self.start_key] = self.sum
        else:
            return self.over(None).over(keys, out, blocks)
        return found

    def quotient(self, samples: int) -> Quotient | None:
        """Return ``total / samples`` before it is formed; None where there are blocks off the grid."""
        if self.raw:
            return None
        return Quotient(*self.terms(), self._blocks.bounds, self.exponents, self.grid.shift, float(samples))

    def means(self, samples: int, keys: Int64Array | None = None) -> Iterator[tuple[slice, Float32Array]]:
        """Yield ``total / samples`` as float32, part by part, so that what follows finds it in the cache.

        Parameters
        ----------
        samples : int
            At least 1.
        keys : ndarray of int64, sorted, or None
            Global keys; None is those of the sum.

        Yields
        ------
        slice
            Positions in the sum, or in ``keys``.
        ndarray, float32
            Valid until the next one is asked for.
        """
        if keys is not None:
            yield from self.over(keys).means(samples)
            return
        blocks, sums, compiled = self._blocks, self.sum, kernels.active()
        # As a whole: a third to half of the time of the parts (14 keys, 10,000 keys).
        if compiled is None and not self.raw and 0 < sums.size <= CLOSE_KEYS:
            exact = sums / self._scales().divisors(samples)
            yield slice(0, sums.size), exact.astype(np.float32)
            return
        units = np.ldexp(1.0, self.grid.unit_exponents(self.exponents))
        raw = {} if not self.raw else _by_block(self.raw if self.keys is None else self._raw_at(self.keys))
        memory = np.empty(max(CLOSE_KEYS, int(blocks.counts.max(initial=0))), dtype=np.float32)
        for present, part in blocks.chunks(CLOSE_KEYS):
            mean = memory[: part.stop - part.start]
            if compiled is not None:
                first, stop = int(present[0]), int(present[-1]) + 1
                bounds = blocks.bounds[first : stop + 1] - part.start
                compiled.mean(sums[part], bounds, units[first:stop], float(samples), mean)
            else:
                exact = sums[part] * np.repeat(units[present], blocks.counts[present])
                exact /= samples
                np.copyto(mean, exact, casting="same_kind")
            for block in present.tolist() if raw else ():
                if block in raw:
                    place = slice(int(blocks.bounds[block]), int(blocks.bounds[block + 1]))
                    exact = sums[place] * units[block]
                    for one in raw[block]:
                        exact += one.values
                    mean[place.start - part.start : place.stop - part.start] = exact / samples
            yield part, mean

    def total(self, keys: Int64Array | None = None) -> Float64Array:
        """Return the sum over all splits, float64, over the partition or at some global keys."""
        if self.keys is not None:
            return self.over(None).total(keys)
        if keys is None:
            return total(self.grid, self.exponents, self.sum, self.raw, self.start_key)
        blocks = Blocks(self.grid.block_keys, self.start_key, self.length, keys)
        return _total(self.grid, self.exponents, self.sum[keys - self.start_key], self._raw_at(keys), blocks)

    def next_exponents(self, clock: int) -> Int16Array:
        """Return the exponents of the clock after ``clock``, once everything was added."""
        is_small = kernels.active() is None and self._sum.size <= CLOSE_KEYS
        return next_exponents(self.exponents, self.maxima, clock, self._scales() if is_small else None)

    def _scales(self) -> Scales:
        if self._known_scales is None:
            self._known_scales = self._blocks.scales(self.exponents, self.grid.shift)
        return self._known_scales

    def _range_of(self, block: int) -> tuple[int, int]:
        return block * self.grid.block_keys, min((block + 1) * self.grid.block_keys, self.length)

    def _over_block(self, raw: RawBlock, keys: Int64Array | None) -> RawBlock:
        if not 0 <= raw.block < self.exponents.size:
            raise ProtocolError(f"split {raw.split} pushed block {raw.block} of {self.exponents.size}")
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
    blocks = Blocks(grid.block_keys, start_key, length, keys)
    return _total(grid, exponents, int_sum, (RawBlock(*block) for block in raw), blocks)


def _total(
    grid: Grid, exponents: Int16Array, int_sum: IntegerArray, raw: Iterable[RawBlock], blocks: Blocks
) -> Float64Array:
    unit = np.ldexp(1.0, grid.unit_exponents(exponents))
    result: Float64Array = int_sum * np.repeat(unit, blocks.counts)
    for split, block, values in sorted(raw, key=lambda item: (item.split, item.block)):
        place = result[blocks.bounds[block] : blocks.bounds[block + 1]]
        if values.size != place.size:
            raise ProtocolError(f"split {split} has {values.size} values of block {block}, which has {place.size}")
        place += values
    return result


def _by_block(raw: Iterable[RawBlock]) -> dict[int, list[RawBlock]]:
    """Return the raw blocks by block, each in split order."""
    found: dict[int, list[RawBlock]] = {}
    for one in sorted(raw, key=lambda item: item.split):
        found.setdefault(one.block, []).append(one)
    return found
