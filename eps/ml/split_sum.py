"""The sum of a worker over its splits on the grid of :mod:`eps.ml.grid`.

A contribution is added in one of three ways, to the same bits: as a whole in NumPy, which takes a ninth to two thirds
of the time of the second way (14 keys, 32,768 keys); block by block in NumPy, where a value is off the grid; and in one
compiled pass, which takes a sixth of it (a million keys), where Numba is there and the model is large.

Source: reproducible.md ("The scheme").  Deviation: none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eps.ml import kernels
from eps.ml.arrays import Float32Array, Int16Array, Int64Array
from eps.ml.blocks import CHUNK_KEYS, Blocks, bits_of, check_finite
from eps.ml.grid import Grid, RawBlock
from eps.ml.scales import GROWTH_BITS, all_true, exponents_of
from eps.ml.sums import IntegerArray, WrittenOnce, memory_for

#: A sum of no more keys is added as a whole, even if a split touches few of them: the number of operations counts.
FEW_KEYS = 2048


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
        super().__init__(memory_for(out, self._blocks.size, grid.dtype))
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
        """Add the contributions of some splits at once, as :meth:`add` does one by one.

        Parameters
        ----------
        splits : sequence of int
        grads : sequence of ndarray, float32
        where : sequence of ndarray of int64, or None
            The positions of :meth:`add`, for each split.

        Raises
        ------
        TrainingError
            A value is NaN or infinite; the splits before were added.
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
        """Return whether it pays to add splits together: not values but operations are what it costs."""
        return self._sum.size <= FEW_KEYS and kernels.active() is None

    def _add_small(self, grads: Sequence[Float32Array], where: Sequence[Int64Array | None]) -> bool:
        """Do what :meth:`_round` does, to the bit, in few operations; False, and nothing done, where it is needed."""
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
        # Few positions among many keys are less work than all of the keys.
        most = CHUNK_KEYS if positions is None else min(CHUNK_KEYS, max(FEW_KEYS, 4 * positions.size))
        return self._sum.size <= most

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
