"""Exponents of blocks: how they follow from the maxima, and what they mean for the values of a block.

A small model spends its time on the number of array operations, not on values.  So what exponents mean at each key is
kept until they change (:class:`Scales`), and they are compared with the maxima as bits.

Source: reproducible.md ("The scheme").  Deviation: none.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from eps.ml import kernels
from eps.ml.arrays import BoolArray, Float32Array, Float64Array, Int16Array, Int64Array

#: Smallest exponent of a block: with it and 40 bits, 2^-E is the largest power of two that float32 holds safely.
EXPONENT_FLOOR = -88
#: Powers of two by which a value may exceed the running maximum and be on the grid still.
GROWTH_BITS = 2
#: The running maximum loses a power of two every so many clocks.
DECAY_CLOCKS = 8

#: Every finite float32 is below 2 to this power.
EXPONENT_CEILING = 128

#: Arrays, which operations take faster than Python's numbers.
_MANTISSA_BITS = np.array(23, np.int32)
#: The exponent field of 2^-1, whose frexp exponent is 0.
_HALF = np.array(126, np.int16)
_FLOOR = np.array(EXPONENT_FLOOR, np.int16)
_ONE = np.array(1, np.int16)
#: Exponents in the order in which a table has them: counted from 0, with the negative ones at its end.
_EXPONENTS = np.roll(np.arange(EXPONENT_FLOOR, EXPONENT_CEILING + 1), EXPONENT_FLOOR)


class Scales:
    """What the exponents of blocks mean at each key of an array; computed as it is asked for.

    Parameters
    ----------
    exponents : ndarray, shape (num_blocks,), int16
    shift : int
        Values on the grid are multiples of ``2^(exponent + shift)``.
    counts : ndarray of int64, shape (num_blocks,), or None
        Keys in each block; None is one in every block.
    """

    def __init__(self, exponents: Int16Array, shift: int, counts: Int64Array | None) -> None:
        self._shift = shift
        self._by_block = exponents.copy()
        self._by_key = self._by_block if counts is None else np.repeat(exponents, counts)
        # Not cached_property, which takes a lock: as long as an operation.
        self._rounding: Float32Array | None = None
        self._powers: Float32Array | None = None
        self._divisors: tuple[int, Float64Array] | None = None

    def rounding(self) -> Float32Array:
        """Return limits and factors of values, shape (2, k), float32.

        A value is on the grid if its magnitude is below its limit; NaN and infinity are below none.  The factor is the
        power of two that takes it to whole numbers.
        """
        if self._rounding is None:
            self._rounding = _rounding(self._shift).take(self._by_key, axis=1, mode="wrap")
        return self._rounding

    def powers(self) -> Float32Array:
        """Return ``2^exponent``, shape (num_blocks,), float32: the running maximum grows unless a maximum is below."""
        if self._powers is None:
            self._powers = _powers().take(self._by_block, mode="wrap")
        return self._powers

    def divisors(self, samples: int) -> Float64Array:
        """Return ``samples / 2^E``, shape (k,), float64: whole numbers over it are means.

        One division rounds as a product with ``2^E``, which is exact, and a division by the samples do.
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
    """Return powers of two; beyond the largest float32, infinity."""
    with np.errstate(over="ignore"):
        return np.ldexp(np.float32(1.0), exponents)


def all_true(mask: BoolArray) -> bool:
    """Return ``mask.all()``, in less than an operation's time for a few values."""
    return b"\0" not in mask.tobytes()


def exponents_of(maxima: Float32Array) -> Int16Array:
    """Return the smallest e with ``maximum < 2^e`` for each block, and the floor for 0.

    Parameters
    ----------
    maxima : ndarray, float32
        Finite and not negative.
    """
    # What float32 holds below 2^-126 has the field 0, which is under the floor as well.
    found = (maxima.view(np.int32) >> _MANTISSA_BITS).astype(np.int16)
    found -= _HALF
    return np.maximum(found, _FLOOR, out=found)


def next_exponents(exponents: Int16Array, maxima: Float32Array, clock: int, scales: Scales | None = None) -> Int16Array:
    """Return the exponents of clock + 1: the running maximum of all splits, which decays slowly.

    Parameters
    ----------
    exponents : ndarray, shape (num_blocks,), int16
        Of ``clock``; ``grid.initial_exponents`` at clock -1.
    maxima : ndarray, shape (num_blocks,), float32
        Largest |contribution| over all splits at ``clock``.
    scales : Scales, optional
        Of ``exponents``, where the caller keeps them.

    Returns
    -------
    ndarray, shape (num_blocks,), int16
        May be ``exponents`` where nothing changes.
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
    # The floor is one of exponents_of as well.
    np.maximum(found, exponents - _ONE if decays else exponents, out=found)
    return exponents if decays and found.tobytes() == exponents.tobytes() else found
