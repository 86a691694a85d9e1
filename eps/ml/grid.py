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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eps.errors import ConfigError, ProtocolError
from eps.ml import kernels
from eps.ml.arrays import Float32Array, Float64Array, Int16Array, Int64Array
from eps.ml.blocks import CHUNK_KEYS, Blocks, bits_of, check_finite
from eps.ml.scales import EXPONENT_FLOOR, GROWTH_BITS, decays_after, exponents_of, next_exponents
from eps.ml.steps import CLOSE_KEYS, Quotient
from eps.ml.sums import WrittenOnce

#: Sums on the grid: int32, or int64 for many splits.
IntegerArray = NDArray[Any]

#: Up to this many splits the sum of all of them fits into int32 with enough bits for a value.
MAX_INT32_SPLITS = 256
#: Bits of a value where sums are int64.
INT64_VALUE_BITS = 40
#: A sum of no more keys is added as a whole, even if a split touches few of them: the number of operations counts.
FEW_KEYS = 2048


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
    maxima = Blocks(block_keys, start_key, length, keys).maxima(grad)
    check_finite(maxima, start_key, block_keys, None)
    return maxima


class SplitSum(WrittenOnce):
    """Running sum of a worker over its splits, at one clock and over one range of keys.

    Parameters
    ----------
    grid : Grid
    exponents : ndarray, shape (num_blocks,), int16
        Not copied: those of blocks without contributions may be filled in while splits are added.
    start_key, length : int
        The range.
    keys : ndarray of int64, sorted, or None
        Global keys of the sum; None is the range.
    out : ndarray of the grid's type, optional
        Memory of the sum, whatever it holds.
    blocks : Blocks, optional
        Of these keys, where the caller keeps them.

    Attributes
    ----------
    raw : list of RawBlock
    splits : list of int
        In the order in which they were added.
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
        self.keys = keys
        self._blocks = Blocks(grid.block_keys, start_key, length, keys) if blocks is None else blocks
        if exponents.size != self._blocks.num_blocks:
            raise ValueError(f"{exponents.size} exponents given for {self._blocks.num_blocks} blocks")
        super().__init__(_memory(out, self._blocks.size, grid.dtype))
        self._exponents = exponents
        self._maxima: Float32Array | None = None
        #: Largest magnitudes at each key, of splits that the maxima do not know yet.
        self._magnitudes: Float32Array | None = None
        self.raw: list[RawBlock] = []
        self.splits: list[int] = []

    @property
    def maxima(self) -> Float32Array:
        """Largest |contribution| of any split so far in each block, on the grid or off it."""
        if self._magnitudes is not None:
            found, self._magnitudes = self._blocks.reduced(self._magnitudes), None
            self._maxima = found if self._maxima is None else np.maximum(self._maxima, found)
        elif self._maxima is None:
            self._maxima = np.zeros(self._exponents.size, dtype=np.float32)
        return self._maxima

    def add(
        self, split: int, grad: Float32Array, positions: Int64Array | None = None, blocks: Blocks | None = None
    ) -> None:
        """Add the contribution of a split.

        Parameters
        ----------
        split : int
        grad : ndarray, float32
            Over the range or the keys of this sum, or over ``positions``.
        positions : ndarray of int64, sorted, or None
            Where ``grad`` lies within the keys of this sum; it is zero elsewhere.
        blocks : Blocks, optional
            Of ``positions``, where the caller keeps them.

        Raises
        ------
        TrainingError
            A value is NaN or infinite; nothing was added then.
        """
        if blocks is None:
            blocks = self._blocks if positions is None else self._blocks.at(positions)
        if grad.size != blocks.size:
            raise ValueError(f"split {split}: {grad.size} values given for {blocks.size} keys")
        compiled = kernels.active()
        if compiled is not None or not self._add_small(grad, positions):
            if compiled is not None:
                maxima, off = self._round_compiled(compiled, split, grad, positions, blocks)
            else:
                maxima, off = self._round(split, grad, positions, blocks)
            if off.size:
                self._keep_raw(split, off, blocks, grad, positions)
            np.maximum(self.maxima, maxima, out=self.maxima)
        self.splits.append(split)

    def _add_small(self, grad: Float32Array, positions: Int64Array | None) -> bool:
        """Do what :meth:`_round` does, to the bit, in few operations; False, and nothing done, where it is needed."""
        size = self._sum.size
        if size > CHUNK_KEYS:
            return False
        if positions is not None:
            if size > max(FEW_KEYS, 4 * positions.size):
                return False
            grad, part = np.zeros(size, dtype=np.float32), grad
            grad[positions] = part
        scales = self._blocks.scales(self._exponents, self.grid.shift)
        magnitudes = np.abs(grad)
        if np.count_nonzero(magnitudes < scales.limits) != size:
            return False
        rounded = grad * scales.factors
        np.rint(rounded, out=rounded)
        if self._written:
            self._sum += rounded.astype(self.grid.dtype)
        else:
            np.copyto(self._sum, rounded, casting="unsafe")
            self._written = True
        if self._magnitudes is None:
            self._magnitudes = magnitudes
        else:
            np.maximum(self._magnitudes, magnitudes, out=self._magnitudes)
        return True

    def _round(
        self, split: int, grad: Float32Array, positions: Int64Array | None, blocks: Blocks
    ) -> tuple[Float32Array, NDArray[np.intp]]:
        """Add what is on the grid; return the maxima and the blocks off the grid."""
        maxima = blocks.maxima(grad)
        check_finite(maxima, self.start_key, self.grid.block_keys, split)
        off = np.flatnonzero(exponents_of(maxima) > self._exponents + np.int16(GROWTH_BITS))
        scale = np.ldexp(np.float32(1.0), -self.grid.unit_exponents(self._exponents))
        scale[off] = 0.0
        store = positions is None and not self._written
        total = self._sum if store else self.sum
        self._written = True
        for present, part in blocks.chunks():
            rounded = np.repeat(scale[present], blocks.counts[present])
            rounded *= grad[part]
            np.rint(rounded, out=rounded)
            if store:
                np.copyto(total[part], rounded, casting="unsafe")
            elif positions is None:
                total[part] += rounded.astype(self.grid.dtype)
            else:
                total[positions[part]] += rounded.astype(self.grid.dtype)
        return maxima, off

    def _round_compiled(
        self,
        compiled: kernels.Kernels,
        split: int,
        grad: Float32Array,
        positions: Int64Array | None,
        blocks: Blocks,
    ) -> tuple[Float32Array, NDArray[np.intp]]:
        """Do what :meth:`_round` does, to the bit, in one pass over memory."""
        bits, maxima = bits_of(grad), np.zeros(blocks.num_blocks, dtype=np.float32)
        off = np.zeros(blocks.num_blocks, dtype=np.bool_)
        store = positions is None and not self._written
        total = self._sum if store else self.sum
        run, where = (
            (compiled.round_dense, ()) if positions is None else (compiled.round_at, (kernels.unsigned(positions),))
        )
        given = (bits, bits.view(np.float32), *where, blocks.bounds)
        mode = kernels.STORE if store else kernels.ADD
        bad = run(*given, self._exponents, self.grid.shift, total, mode, maxima.view(np.uint32), off)
        if bad < 0:
            self._written = True
            return maxima, np.flatnonzero(off)
        if not store:
            # Integers: what was added before the bad block can be taken off again exactly.
            run(*given, self._exponents[:bad], self.grid.shift, total, kernels.SUBTRACT, maxima.view(np.uint32), off)
        maxima[bad] = np.nan
        check_finite(maxima, self.start_key, self.grid.block_keys, split)
        raise AssertionError("a block that is not finite was not found")

    def _keep_raw(
        self,
        split: int,
        off: NDArray[np.intp],
        blocks: Blocks,
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
        super().__init__(_memory(out, self._blocks.size, grid.dtype))
        self._maxima: Float32Array | None = None
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
    ) -> None:
        """Add a pushed :class:`SplitSum`; the caller sees to it that each split is added once.

        Nothing is kept of what is given.

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
        self._add_part(part, keys, self.start_key, positions)
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
        return Quotient(self.sum, self._blocks.bounds, self.exponents, self.grid.shift, float(samples))

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
        if compiled is None and not self.raw and 0 < sums.size <= CLOSE_KEYS:
            exact = sums / blocks.scales(self.exponents, self.grid.shift).divisors(samples)
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
        if kernels.active() is None and self._sum.size <= CLOSE_KEYS and not decays_after(clock):
            powers = self._blocks.scales(self.exponents, self.grid.shift).powers
            if np.count_nonzero(self.maxima < powers) == powers.size:
                return self.exponents
        return next_exponents(self.exponents, self.maxima, clock)

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


def _memory(out: IntegerArray | None, size: int, dtype: np.dtype[Any]) -> IntegerArray:
    if out is None:
        return np.empty(size, dtype=dtype)
    if out.shape != (size,) or out.dtype != dtype:
        raise ValueError(f"memory {out.dtype}{out.shape} was given for a sum {dtype}({size},)")
    return out
