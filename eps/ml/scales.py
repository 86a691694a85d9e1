"""Exponents of blocks: how they follow from the maxima, and what they mean for the values of a block.

A small model spends its time on the number of array operations, not on values.  So what exponents mean at each key is
kept until they change (:class:`Scales`), and they are compared with the maxima as bits.

Source: reproducible.md ("The scheme").  Deviation: none.
"""

from __future__ import annotations

from functools import lru_cache
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


class Scales:
    """What the exponents of blocks mean at each key of an array.

    Parameters
    ----------
    exponents : ndarray, shape (num_blocks,), int16
    shift : int
        Values on the grid are multiples of ``2^(exponent + shift)``.
    counts : ndarray of int64, shape (num_blocks,), or None
        Keys in each block; None is one in every block.

    Attributes
    ----------
    limits : ndarray, shape (k,), float32
        A value is on the grid if its magnitude is below; NaN and infinity are below none.
    factors : ndarray, shape (k,), float32
        Power of two that takes a value to whole numbers.
    units : ndarray, shape (k,), float64
        Power of two that takes whole numbers back.
    powers : ndarray, shape (num_blocks,), float32
        ``2^exponent``.  The running maximum stays as it is while the maxima are below.
    """

    __slots__ = ("factors", "limits", "powers", "units")

    def __init__(self, exponents: Int16Array, shift: int, counts: Int64Array | None) -> None:
        tables = _tables(shift)
        index = exponents - np.int16(EXPONENT_FLOOR)
        self.powers: Float32Array = tables.powers.take(index, mode="clip")
        if counts is not None:
            index = np.repeat(index, counts)
        self.limits: Float32Array = tables.limits.take(index, mode="clip")
        self.factors: Float32Array = tables.factors.take(index, mode="clip")
        self.units: Float64Array = tables.units.take(index, mode="clip")


class _Tables(NamedTuple):
    """Arrays of :class:`Scales` for the exponents from the floor to the ceiling."""

    powers: Float32Array
    limits: Float32Array
    factors: Float32Array
    units: Float64Array


@lru_cache(maxsize=64)
def _tables(shift: int) -> _Tables:
    exponents = np.arange(EXPONENT_FLOOR, EXPONENT_CEILING + 1)
    # Beyond the largest number of float32 every finite value is below the limit.
    with np.errstate(over="ignore"):
        powers = np.ldexp(np.float32(1.0), exponents)
        limits = np.ldexp(np.float32(1.0), exponents + GROWTH_BITS)
    return _Tables(powers, limits, np.ldexp(np.float32(1.0), -(exponents + shift)), np.ldexp(1.0, exponents + shift))


def exponents_of(maxima: Float32Array) -> Int16Array:
    """Return the smallest e with ``maximum < 2^e`` for each block, and the floor for 0.

    Parameters
    ----------
    maxima : ndarray, float32
        Finite and not negative.
    """
    # What float32 holds below 2^-126 has the field 0, which is under the floor as well.
    fields: NDArray[np.int32] = maxima.view(np.int32) >> _MANTISSA_BITS
    np.maximum(fields, EXPONENT_FLOOR + _HALF, out=fields)
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
    kept = np.maximum(exponents - np.int16(1), np.int16(EXPONENT_FLOOR)) if decays else exponents
    return np.maximum(exponents_of(maxima), kept)
