"""Exponents of blocks: how they follow from the maxima, and what they mean for the values of a block.

A small model spends its time on the number of array operations, not on values.  So what exponents mean at each key is
kept until they change (:class:`Scales`), and they are compared with the maxima as bits.

Source: reproducible.md ("The scheme").  Deviation: none.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eps.ml import kernels
from eps.ml.arrays import Float32Array, Float64Array, Int16Array, Int64Array

#: Smallest exponent of a block: with it and 40 bits, 2^-E is the largest power of two that float32 holds safely.
EXPONENT_FLOOR = -88
#: Every finite float32 is below 2 to this power.
EXPONENT_CEILING = 128
#: Powers of two by which a value may exceed the running maximum and be on the grid still.
GROWTH_BITS = 2
#: The running maximum loses a power of two every so many clocks.
DECAY_CLOCKS = 8

#: The exponent field of 2^-1, whose frexp exponent is 0.
_HALF = 126
_MANTISSA_BITS = 23
#: As arrays, which an operation takes faster than Python's numbers.
_FLOOR, _FLOOR_FIELD = np.array(EXPONENT_FLOOR, np.int16), np.array(EXPONENT_FLOOR + _HALF, np.int32)


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
        self._tables = _tables(shift)
        self._by_block = exponents - _FLOOR
        self._by_key = self._by_block if counts is None else np.repeat(self._by_block, counts)
        self._divisors: tuple[int, Float64Array] | None = None

    @cached_property
    def limits(self) -> Float32Array:
        """A value is on the grid if its magnitude is below, shape (k,); NaN and infinity are below none."""
        return self._tables.limits.take(self._by_key, mode="clip")

    @cached_property
    def factors(self) -> Float32Array:
        """Power of two that takes a value to whole numbers, shape (k,)."""
        return self._tables.factors.take(self._by_key, mode="clip")

    @cached_property
    def powers(self) -> Float32Array:
        """``2^exponent``, shape (num_blocks,): the running maximum grows where the maxima are not below."""
        return self._tables.powers.take(self._by_block, mode="clip")

    def divisors(self, samples: int) -> Float64Array:
        """Return ``samples / 2^E``, shape (k,): whole numbers over it are means.

        One division rounds as a product with ``2^E``, which is exact, and a division by the samples do.
        """
        known = self._divisors
        if known is None or known[0] != samples:
            inverses: Float64Array = self._tables.inverses.take(self._by_key, mode="clip")
            self._divisors = known = samples, inverses * samples
        return known[1]


class _Tables(NamedTuple):
    """Arrays of :class:`Scales` for the exponents from the floor to the ceiling."""

    powers: Float32Array
    limits: Float32Array
    factors: Float32Array
    inverses: Float64Array


@lru_cache(maxsize=64)
def _tables(shift: int) -> _Tables:
    exponents = np.arange(EXPONENT_FLOOR, EXPONENT_CEILING + 1)
    # Beyond the largest number of float32 every finite value is below the limit.
    with np.errstate(over="ignore"):
        powers = np.ldexp(np.float32(1.0), exponents)
        limits = np.ldexp(np.float32(1.0), exponents + GROWTH_BITS)
    factors = np.ldexp(np.float32(1.0), -(exponents + shift))
    return _Tables(powers, limits, factors, factors.astype(np.float64))


def exponents_of(maxima: Float32Array) -> Int16Array:
    """Return the smallest e with ``maximum < 2^e`` for each block, and the floor for 0.

    Parameters
    ----------
    maxima : ndarray, float32
        Finite and not negative.
    """
    # What float32 holds below 2^-126 has the field 0, which is under the floor as well.
    fields: NDArray[np.int32] = maxima.view(np.int32) >> _MANTISSA_BITS
    np.maximum(fields, _FLOOR_FIELD, out=fields)
    fields -= _HALF
    return fields.astype(np.int16)


def decays_after(clock: int) -> bool:
    """Return whether the running maximum loses a power of two between ``clock`` and the next."""
    return (clock + 1) % DECAY_CLOCKS == 0


def next_exponents(exponents: Int16Array, maxima: Float32Array, clock: int) -> Int16Array:
    """Return the exponents of clock + 1: the running maximum of all splits, which decays slowly.

    Parameters
    ----------
    exponents : ndarray, shape (num_blocks,), int16
        Of ``clock``; ``grid.initial_exponents`` at clock -1.
    maxima : ndarray, shape (num_blocks,), float32
        Largest |contribution| over all splits at ``clock``.
    """
    decays = decays_after(clock)
    compiled = kernels.active()
    if compiled is not None:
        following: Int16Array = np.empty_like(exponents)
        bits = np.ascontiguousarray(maxima, dtype=np.float32).view(np.uint32)
        compiled.following(bits, exponents, int(decays), following)
        return following
    kept = np.maximum(exponents - np.int16(1), _FLOOR) if decays else exponents
    return np.maximum(exponents_of(maxima), kept)
