"""Sums of contributions: a worker has one over its splits at each clock, a server one for each partition and clock.

On the grid of :mod:`eps.ml.grid` sums are equal to the bit for every order of addition (:class:`SplitSum`,
:class:`ClockSum`).  Jobs that need not be reproducible add float32 in order of arrival (:class:`PlainSplitSum`,
:class:`PlainClockSum`).

The first part is written to the memory of a sum, which is not zeroed before.  The last part need not be written: the
pass that closes a clock reads the sum once and can add the last part on the way.

A worker adds a contribution in one of three ways, with the same bits:

* as a whole in NumPy, which takes a ninth (14 keys) to two thirds (32,768 keys) of the time of the next way;
* block by block in NumPy, if a value is off the grid;
* in one compiled pass, which takes a sixth of that (a million keys), if Numba is installed and the model is large.

Source: design section 5; reproducible.md ("The scheme").  Deviation: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.errors import DIVERGED, ProtocolError, TrainingError
from eps.ml import kernels
from eps.ml.arrays import Float32Array, Int16Array, Int64Array
from eps.ml.grid import (
    CHUNK_KEYS,
    GROWTH_BITS,
    Blocks,
    Grid,
    RawBlock,
    Scales,
    all_true,
    bits_of,
    check_finite,
    exponents_of,
    next_exponents,
)
from eps.ml.steps import CLOSE_KEYS, Quotient, plain_quotient

#: Sums on the grid: int32, or int64 for many splits.
IntegerArray = NDArray[Any]


class WrittenOnce:
    """A running sum.  A first part that has every key is stored instead of added to zeros.

    Parameters
    ----------
    memory : ndarray
        Memory of the sum; its contents do not matter.
    """

    def __init__(self, memory: NDArray[Any]) -> None:
        self._sum = memory
        self._written = False
        #: The last part if it is still to be added: the next reader of the sum may add it on the way.
        self._last: NDArray[Any] | None = None

    @property
    def sum(self) -> NDArray[Any]:
        """The sum, over its range or its list of keys."""
        if self._last is not None:
            part, self._last = self._last, None
            self._add_part(part, None, 0, None)
        if not self._written:
            self._sum.fill(0)
            self._written = True
        return self._sum

    @property
    def memory(self) -> NDArray[Any]:
        """The memory of the sum; its contents do not matter."""
        return self._sum

    def terms(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return two arrays that add up to the sum; the second is empty if the first is the whole sum."""
        last = self._last
        if last is None:
            return self.sum, self._sum[:0]
        return (self._sum, last) if self._written else (last, last[:0])

    def _add_part(
        self,
        part: NDArray[Any],
        keys: Int64Array | None,
        start_key: int,
        positions: kernels.Positions | None,
        is_last: bool = False,
    ) -> None:
        """Add a part at ``keys`` (None: the whole range), which lie at ``positions`` if those are given."""
        if is_last and part.size == self._sum.size and self._last is None:
            self._last = part
        elif not self._written and part.size == self._sum.size:
            # Keys are ascending, so equally many are the same keys.
            np.copyto(self._sum, part)
            self._written = True
        elif keys is None or part.size == self._sum.size:
            self._sum += part
        elif positions is not None:
            kernels.add_at(self.sum, positions, 0, part)
        else:
            kernels.add_at(self.sum, keys, start_key, part)


def memory_for(out: IntegerArray | None, size: int, dtype: np.dtype[Any]) -> IntegerArray:
    """Return the memory of a sum: ``out``, or new memory.

    Raises
    ------
    ValueError
        ``out`` has another size or type.
    """
    if out is None:
        return np.empty(size, dtype=dtype)
    if out.shape != (size,) or out.dtype != dtype:
        raise ValueError(f"memory {out.dtype}{out.shape} was given for a sum {dtype}({size},)")
    return out


#: Sums of at most this many keys are added as a whole, even if a split has few of them: then operations cost most.
FEW_KEYS = 2048


class SplitSum(WrittenOnce):
    """Running sum of a worker over its splits, at one clock and over one range of keys.

    Parameters
    ----------
    grid : Grid
    exponents : ndarray, shape (num_blocks,), int16
        Not copied: entries of blocks without contributions may be filled in while splits are added.
    start_key, length : int
        The range.
    keys : ndarray of int64, sorted, or None
        Global keys of the sum; None means the range.
    out : ndarray of the grid's type, optional
        Memory of the sum; its contents do not matter.
    blocks : Blocks, optional
        Of these keys, if the caller has them.

    Attributes
    ----------
    raw : list of RawBlock
    splits : list of int
        In the order of addition.
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
        super().__init__(memory_for(out, self._blocks.size, grid.dtype))
        self._exponents = exponents
        self._maxima: Float32Array | None = None
        #: Largest magnitudes at each key, of splits that are not yet part of the maxima.
        self._magnitudes: Float32Array | None = None
        self.raw: list[RawBlock] = []
        self.splits: list[int] = []

    @property
    def maxima(self) -> Float32Array:
        """Largest |contribution| of any split so far in each block, on or off the grid."""
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
            Positions of ``grad`` within the keys of this sum; the contribution is zero elsewhere.
        blocks : Blocks, optional
            Of ``positions``, if the caller has them.

        Raises
        ------
        TrainingError
            A value is NaN or infinite; then nothing was added.
        """
        if blocks is None:
            blocks = self._blocks if positions is None else self._blocks.at(positions)
        if grad.size != blocks.size:
            raise ValueError(f"split {split}: {grad.size} values given for {blocks.size} keys")
        compiled = kernels.active()
        if compiled is not None or not (self._is_small(positions) and self._add_small((grad,), (positions,))):
            if compiled is not None:
                maxima, off = self._round_compiled(compiled, split, grad, positions, blocks)
            else:
                maxima, off = self._round(split, grad, positions, blocks)
            if off.size:
                self._keep_raw(split, off, blocks, grad, positions)
            np.maximum(self.maxima, maxima, out=self.maxima)
        self.splits.append(split)

    def add_all(self, splits: Sequence[int], grads: Sequence[Float32Array], where: Sequence[Int64Array | None]) -> None:
        """Add the contributions of several splits; equivalent to one :meth:`add` for each.

        Parameters
        ----------
        splits : sequence of int
        grads : sequence of ndarray, float32
        where : sequence of ndarray of int64, or None
            The positions of :meth:`add`, for each split.

        Raises
        ------
        TrainingError
            A value is NaN or infinite; then the splits before it were added.
        """
        for split, grad, positions in zip(splits, grads, where, strict=True):
            due = self._sum.size if positions is None else positions.size
            if grad.size != due:
                raise ValueError(f"split {split}: {grad.size} values given for {due} keys")
        if self.takes_many() and self._add_small(grads, where):
            self.splits.extend(splits)
            return
        for split, grad, positions in zip(splits, grads, where, strict=True):
            self.add(split, grad, positions)

    def takes_many(self) -> bool:
        """Return whether adding splits together is faster: for small sums the number of operations counts."""
        return self._sum.size <= FEW_KEYS and kernels.active() is None

    def _add_small(self, grads: Sequence[Float32Array], where: Sequence[Int64Array | None]) -> bool:
        """Round as :meth:`_round` does, in few operations; return False, without effect, if a value is off the grid."""
        size, dtype = self._sum.size, self.grid.dtype
        if len(grads) == 1 and where[0] is None:
            together = grads[0]
        else:
            together = np.zeros((len(grads), size), dtype=np.float32)
            for row, grad, positions in zip(together, grads, where, strict=True):
                if positions is None:
                    row[:] = grad
                else:
                    row[positions] = grad
            if len(grads) == 1:
                together = together[0]
        limits, factors = self._blocks.scales(self._exponents, self.grid.shift).rounding()
        magnitudes = np.abs(together)
        if not all_true(magnitudes < limits):
            return False
        rounded = together * factors
        np.rint(rounded, out=rounded)
        if together.ndim > 1:
            magnitudes = np.maximum.reduce(magnitudes, axis=0)
        if self._written:
            whole = rounded.astype(dtype)
            self._sum += whole if whole.ndim == 1 else np.add.reduce(whole, axis=0, dtype=dtype)
        elif together.ndim == 1:
            np.copyto(self._sum, rounded, casting="unsafe")
        else:
            np.add.reduce(rounded.astype(dtype), axis=0, dtype=dtype, out=self._sum)
        self._written = True
        if self._magnitudes is None:
            self._magnitudes = magnitudes
        else:
            np.maximum(self._magnitudes, magnitudes, out=self._magnitudes)
        return True

    def _is_small(self, positions: Int64Array | None) -> bool:
        # Few positions among many keys are less work than all keys.
        most = CHUNK_KEYS if positions is None else min(CHUNK_KEYS, max(FEW_KEYS, 4 * positions.size))
        return self._sum.size <= most

    def _round(
        self, split: int, grad: Float32Array, positions: Int64Array | None, blocks: Blocks
    ) -> tuple[Float32Array, NDArray[np.intp]]:
        """Add the blocks on the grid; return the maxima and the numbers of the blocks off the grid."""
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
        """Round as :meth:`_round` does, to the bit, in one pass over memory."""
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
            # Integers, so what was added before the bad block can be subtracted exactly.
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
    """Sum of a server over all pushes to one partition at one clock.

    Parameters
    ----------
    grid : Grid
    exponents : ndarray, shape (num_blocks,), int16
    start_key, length : int
        The partition.
    keys : ndarray of int64, sorted, or None
        Global keys of the sum; None means the partition.
    out : ndarray of the grid's type, optional
        Memory of the sum; its contents do not matter.
    blocks : Blocks, optional
        Of these keys, if the caller has them.

    Attributes
    ----------
    raw : list of RawBlock
        Each with values for the whole block.
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
        """Add a pushed :class:`eps.ml.sums.SplitSum`; the caller ensures that each split is added once.

        No argument is kept, except ``part`` if it is the last.

        Parameters
        ----------
        part : ndarray of the grid's type
            Over the partition, or over ``keys``.
        maxima : ndarray, shape (num_blocks,), float32
        raw : sequence of (split, block, values)
        keys : ndarray of int64, sorted, or None
            Global keys of ``part``; None means the partition.
        positions : ndarray of int64 or uint32, sorted, or None
            Positions of ``keys`` in a sum that has its own keys; the caller has checked that they are among those.
        is_last : bool
            Whether the sum is only used once more, for the step, and ``part`` does not change until then.

        Raises
        ------
        ProtocolError
            Sizes or types do not fit; then nothing was added.
        """
        expected = self.length if keys is None else keys.size
        if part.size != expected or part.dtype != self.grid.dtype or maxima.size != self.exponents.size:
            raise ProtocolError(
                f"a sum of {part.size} {part.dtype} and {maxima.size} maxima was pushed, "
                f"but {expected} {self.grid.dtype} and {self.exponents.size} were expected"
            )
        # If positions are known, the keys were checked before.
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
        """Return the same sum over other keys; zero at keys that this one does not have."""
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
        """Return the sum divided by ``samples`` in unevaluated form; None if there are raw blocks."""
        if self.raw:
            return None
        return Quotient(*self.terms(), self._blocks.bounds, self.exponents, self.grid.shift, float(samples))

    def means(self, samples: int) -> Iterator[tuple[slice, Float32Array]]:
        """Yield the sum over all splits, raw blocks included, divided by ``samples``: float32, in chunks.

        The caller finds each chunk in the cache.

        Parameters
        ----------
        samples : int
            At least 1.

        Yields
        ------
        slice
            Positions in the sum.
        ndarray, float32
            Valid until the next one is requested.
        """
        blocks, sums = self._blocks, self.sum
        # As a whole: takes a third (14 keys) to half (10,000 keys) of the time of chunks.
        if not self.raw and 0 < sums.size <= CLOSE_KEYS:
            exact = sums / self._scales().divisors(samples)
            yield slice(0, sums.size), exact.astype(np.float32)
            return
        units = np.ldexp(1.0, self.grid.unit_exponents(self.exponents))
        raw = {} if not self.raw else _by_block(self.raw if self.keys is None else self._raw_at(self.keys))
        memory = np.empty(max(CLOSE_KEYS, int(blocks.counts.max(initial=0))), dtype=np.float32)
        for present, part in blocks.chunks(CLOSE_KEYS):
            mean = memory[: part.stop - part.start]
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

    def next_exponents(self, clock: int) -> Int16Array:
        """Return the exponents of the clock after ``clock``; call once everything was added."""
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


def _by_block(raw: Iterable[RawBlock]) -> dict[int, list[RawBlock]]:
    """Group the raw blocks by block, each group in split order."""
    found: dict[int, list[RawBlock]] = {}
    for one in sorted(raw, key=lambda item: item.split):
        found.setdefault(one.block, []).append(one)
    return found


class PlainSplitSum(WrittenOnce):
    """Running sum of a worker over its splits.

    Parameters
    ----------
    memory : ndarray, float32
        Memory of the sum; its contents do not matter.
    """

    def add(self, split: int, grad: Float32Array, positions: Int64Array | None = None) -> None:
        """Add the contribution of a split, at all keys or at some positions.

        Raises
        ------
        TrainingError
            A value is NaN or infinite; then nothing was added.
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
    """Sum of a server over all pushes to one partition at one clock.

    Parameters
    ----------
    start_key, length : int
        The partition.
    keys : ndarray of int64, sorted, or None
        Global keys of the sum; None means the partition.
    out : ndarray, float32, optional
        Memory of the sum; its contents do not matter.
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
        """Add a pushed sum; see :meth:`eps.ml.sums.ClockSum.add` for the arguments.

        Raises
        ------
        ProtocolError
            Size or type do not fit; then nothing was added.
        """
        expected = self.length if keys is None else keys.size
        if part.size != expected or part.dtype != np.float32:
            raise ProtocolError(f"a sum of {part.size} {part.dtype} was pushed, but {expected} float32 were expected")
        if self.keys is not None and (positions is None or positions.size != part.size):
            raise ValueError(f"a sum over {self.keys.size} keys needs to know where the {part.size} added ones are")
        self._add_part(part, keys, self.start_key, positions, is_last)

    def over(self, keys: Int64Array | None, out: Float32Array | None = None) -> PlainClockSum:
        """Return the same sum over other keys; zero at keys that this one does not have."""
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
        """Return ``sum / samples`` in unevaluated form."""
        return plain_quotient(*self.terms(), float(np.float32(samples)))

    def means(self, samples: int) -> Iterator[tuple[slice, Float32Array]]:
        """Yield ``sum / samples`` in chunks; see :meth:`eps.ml.sums.ClockSum.means`."""
        sums, memory = self.sum, np.empty(min(CLOSE_KEYS, self.sum.size), dtype=np.float32)
        for start in range(0, sums.size, CLOSE_KEYS):
            part = slice(start, min(start + CLOSE_KEYS, sums.size))
            mean = memory[: part.stop - start]
            np.divide(sums[part], np.float32(samples), out=mean)
            yield part, mean
