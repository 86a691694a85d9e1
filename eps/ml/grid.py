"""The grid on which sums over splits are exact: block exponents, positions of blocks, rounding of values.

Every block of keys has an integer exponent X, a function of earlier clocks only.  If all values of a split's
contribution to a block are below ``2^(X + 2)``, the contribution is *on the grid*.  Then it is rounded to a multiple of
``2^E``, with ``E = X + 2 - value_bits``, and added as an integer, which is associative.  Otherwise the block is sent
*raw*, by split, and added in split order in float64 when the clock is complete.  Whether a block is on the grid depends
on the contribution and X alone, not on the worker.  :mod:`eps.ml.sums` has the sums.

Small models spend their time on the number of array operations, not on values.  So the constants that exponents imply
at each key are cached until exponents change (:class:`Scales`), and exponents are compared with maxima as bits.

Source: design section 5; reproducible.md ("The scheme").  Deviation: clock -1 only measures the maxima, because a clock
without a predecessor has no grid; so the first clock that trains is on the grid as well, with the same gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eps.errors import DIVERGED, ConfigError, TrainingError
from eps.ml import kernels
from eps.ml.arrays import BoolArray, Float32Array, Float64Array, Int16Array, Int64Array

#: Smallest exponent of a block: with it and 40 bits, 2^-E is the largest power of two that float32 safely represents.
EXPONENT_FLOOR = -88
#: A value on the grid may exceed the running maximum by this power of two.
GROWTH_BITS = 2
#: The running maximum decays by a factor of two after this many clocks.
DECAY_CLOCKS = 8

#: Every finite float32 is below 2 to this power.
EXPONENT_CEILING = 128

#: As arrays, because NumPy operates faster on them than on Python numbers.
_MANTISSA_BITS = np.array(23, np.int32)
#: The exponent field of 2^-1, whose frexp exponent is 0.
_HALF = np.array(126, np.int16)
_FLOOR = np.array(EXPONENT_FLOOR, np.int16)
_ONE = np.array(1, np.int16)
#: Exponents in table order: counted from 0, the negative ones at the end.
_EXPONENTS = np.roll(np.arange(EXPONENT_FLOOR, EXPONENT_CEILING + 1), EXPONENT_FLOOR)


class Scales:
    """Constants that the exponents of blocks imply at each key of an array; computed on demand.

    Parameters
    ----------
    exponents : ndarray, shape (num_blocks,), int16
    shift : int
        Values on the grid are multiples of ``2^(exponent + shift)``.
    counts : ndarray of int64, shape (num_blocks,), or None
        Keys in each block; None means one key in every block.
    """

    def __init__(self, exponents: Int16Array, shift: int, counts: Int64Array | None) -> None:
        self._shift = shift
        self._by_block = exponents.copy()
        self._by_key = self._by_block if counts is None else np.repeat(exponents, counts)
        # Not cached_property, which takes a lock: that costs as much as an operation.
        self._rounding: Float32Array | None = None
        self._powers: Float32Array | None = None
        self._divisors: tuple[int, Float64Array] | None = None

    def rounding(self) -> Float32Array:
        """Return limits and factors of values, shape (2, k), float32.

        A value is on the grid if its magnitude is below its limit; NaN and infinity never are.  The factor is the
        power of two that scales it to integers.
        """
        if self._rounding is None:
            self._rounding = _rounding(self._shift).take(self._by_key, axis=1, mode="wrap")
        return self._rounding

    def powers(self) -> Float32Array:
        """Return ``2^exponent``, shape (num_blocks,), float32; a maximum of at least this grows the exponent."""
        if self._powers is None:
            self._powers = _powers().take(self._by_block, mode="wrap")
        return self._powers

    def divisors(self, samples: int) -> Float64Array:
        """Return ``samples / 2^E``, shape (k,), float64, by which integer sums are divided to give means.

        This division rounds exactly as a product with ``2^E``, which is exact, followed by a division by the samples.
        """
        known = self._divisors
        if known is None or known[0] != samples:
            known = self._divisors = samples, _divisors(self._shift, samples).take(self._by_key, mode="wrap")
        return known[1]


@lru_cache(maxsize=64)
def _rounding(shift: int) -> Float32Array:
    return np.stack([_float32_powers(_EXPONENTS + GROWTH_BITS), _float32_powers(-(_EXPONENTS + shift))])


@lru_cache(maxsize=1)
def _powers() -> Float32Array:
    return _float32_powers(_EXPONENTS)


@lru_cache(maxsize=64)
def _divisors(shift: int, samples: int) -> Float64Array:
    return np.ldexp(float(samples), -(_EXPONENTS + shift))


def _float32_powers(exponents: Int64Array) -> Float32Array:
    """Return powers of two; infinity beyond the largest float32."""
    with np.errstate(over="ignore"):
        return np.ldexp(np.float32(1.0), exponents)


def all_true(mask: BoolArray) -> bool:
    """Return ``mask.all()``; for a few values faster than the NumPy operation."""
    return b"\0" not in mask.tobytes()


def exponents_of(maxima: Float32Array) -> Int16Array:
    """Return the smallest e with ``maximum < 2^e`` for each block; the floor for 0.

    Parameters
    ----------
    maxima : ndarray, float32
        Finite and not negative.
    """
    # Float32 values below 2^-126 have the exponent field 0, which is below the floor as well.
    found = (maxima.view(np.int32) >> _MANTISSA_BITS).astype(np.int16)
    found -= _HALF
    return np.maximum(found, _FLOOR, out=found)


def next_exponents(exponents: Int16Array, maxima: Float32Array, clock: int, scales: Scales | None = None) -> Int16Array:
    """Return the exponents of clock + 1, from the running maximum of all splits, which decays slowly.

    Parameters
    ----------
    exponents : ndarray, shape (num_blocks,), int16
        Of ``clock``; :meth:`Grid.initial_exponents` at clock -1.
    maxima : ndarray, shape (num_blocks,), float32
        Largest |contribution| over all splits at ``clock``.
    scales : Scales, optional
        Of ``exponents``, if the caller has them.

    Returns
    -------
    ndarray, shape (num_blocks,), int16
        May be ``exponents`` itself if nothing changes.
    """
    decays = (clock + 1) % DECAY_CLOCKS == 0
    compiled = kernels.active()
    if compiled is not None:
        following: Int16Array = np.empty_like(exponents)
        bits = np.ascontiguousarray(maxima, dtype=np.float32).view(np.uint32)
        compiled.following(bits, exponents, int(decays), following)
        return following
    if scales is not None and not decays and all_true(maxima < scales.powers()):
        return exponents
    found = exponents_of(maxima)
    # exponents_of respects the floor already.
    np.maximum(found, exponents - _ONE if decays else exponents, out=found)
    return exponents if decays and found.tobytes() == exponents.tobytes() else found


#: Keys that are added at a time, so that temporaries fit into the cache.
CHUNK_KEYS = 65536


class Blocks:
    """Positions of a range's blocks in an array over the range, or over a sorted list of some of its keys.

    Immutable, so callers reuse it while the same keys come clock after clock.  It caches the :class:`Scales` of the
    latest exponents, which rarely change from one clock to the next.
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
        #: Block b occupies [bounds[b], bounds[b + 1]).
        self.bounds = bounds
        self.counts = np.diff(bounds)
        #: Blocks with keys.
        self.present = np.flatnonzero(self.counts)
        self.size = int(bounds[-1]) if bounds.size else 0
        #: Whether every block has one key, as in models with few keys.
        self._single = self.size == self.num_blocks == self.present.size
        self._latest: tuple[bytes, int, Scales] | None = None

    def at(self, positions: Int64Array) -> Blocks:
        """Return the blocks of an array over some sorted positions of this one.

        Raises
        ------
        ValueError
            A position is outside this array.
        """
        part = object.__new__(Blocks)
        part.num_blocks = self.num_blocks
        part._set_bounds(np.searchsorted(positions, self.bounds))
        if part.size != positions.size:
            raise ValueError(f"positions outside the {self.size} keys of the sum")
        return part

    def chunks(self, chunk_keys: int = CHUNK_KEYS) -> Iterator[tuple[NDArray[np.intp], slice]]:
        """Yield runs of present blocks, each with its positions, of about ``chunk_keys`` keys."""
        first = 0
        while first < self.present.size:
            limit = self.bounds[self.present[first]] + chunk_keys
            stops = self.bounds[self.present[first:] + 1]
            count = max(1, int(np.searchsorted(stops, limit, side="right")))
            blocks = self.present[first : first + count]
            yield blocks, slice(int(self.bounds[blocks[0]]), int(self.bounds[blocks[-1] + 1]))
            first += count

    def scales(self, exponents: Int16Array, shift: int) -> Scales:
        """Return the scales of these exponents; only for arrays that fit into the cache."""
        # Compared as bytes, because the caller may fill in its array later.
        name, latest = exponents.tobytes(), self._latest
        if latest is not None and latest[0] == name and latest[1] == shift:
            return latest[2]
        found = Scales(exponents, shift, None if self._single else self.counts)
        self._latest = name, shift, found
        return found

    def reduced(self, magnitudes: Float32Array) -> Float32Array:
        """Return the largest magnitude of each block, 0 for blocks without keys; may be ``magnitudes`` itself."""
        if self._single:
            return magnitudes
        found = np.zeros(self.num_blocks, dtype=np.float32)
        if self.present.size == self.size:
            found[self.present] = magnitudes
        else:
            found[self.present] = np.maximum.reduceat(magnitudes, self.bounds[self.present])
        return found

    def maxima(self, grad: Float32Array) -> Float32Array:
        """Return max |grad| of each block, 0 for blocks without keys; NaN or infinity if a value is."""
        found = np.zeros(self.num_blocks, dtype=np.float32)
        compiled = kernels.active()
        if compiled is not None:
            compiled.largest(bits_of(grad), self.bounds, found.view(np.uint32))
            return found
        # NaN must pass: the caller looks for it in the maxima.
        with np.errstate(invalid="ignore"):
            for blocks, part in self.chunks():
                starts = self.bounds[blocks] - part.start
                found[blocks] = np.maximum.reduceat(np.abs(grad[part]), starts)
        return found


def bits_of(values: Float32Array) -> NDArray[np.uint32]:
    """Return the bits of float32 values as a contiguous array."""
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


#: Up to this many splits, the sum of all splits fits into int32 with enough bits for a value.
MAX_INT32_SPLITS = 256
#: Bits of a value if sums are int64.
INT64_VALUE_BITS = 40


@dataclass(frozen=True, slots=True)
class Grid:
    """The rounding of contributions.

    Raises
    ------
    ConfigError
        The number of splits is outside 1 .. 2^22, or the block size is below 1.
    """

    num_splits: int
    block_keys: int
    #: A value on the grid is at most ``2^value_bits`` in magnitude, so the sum of all splits fits the type.
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
        # Computed once, because every push and split needs them.
        object.__setattr__(self, "value_bits", bits)
        object.__setattr__(self, "dtype", np.dtype(np.int64 if wide else np.int32))
        object.__setattr__(self, "shift", GROWTH_BITS - bits)

    def num_blocks(self, length: int) -> int:
        """Return the number of blocks of a range of ``length`` keys."""
        return -(-length // self.block_keys)

    def initial_exponents(self, length: int) -> Int16Array:
        """Return the exponents before the first measurement."""
        return np.full(self.num_blocks(length), EXPONENT_FLOOR, dtype=np.int16)

    def unit_exponents(self, exponents: Int16Array) -> NDArray[np.int32]:
        """Return E of each block: values on the grid are multiples of ``2^E``."""
        return exponents.astype(np.int32) + self.shift


class RawBlock(NamedTuple):
    """A block of one split that is off the grid."""

    split: int
    #: Number of the block within the range.
    block: int
    #: float32, for those keys of the sum's key list (or of the range) that lie in the block.
    values: Float32Array
