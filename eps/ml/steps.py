"""From the sum of a clock to the parameters after it: one compiled pass, or NumPy part by part with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from eps.ml import kernels, kernels_step
from eps.ml.arrays import BoolArray, Float32Array, Int16Array, Int64Array
from eps.ml.optim import Optimizer

#: Keys that are closed and stepped at a time: sum, mean, parameters and slots of a chunk fit into the cache.
CLOSE_KEYS = 32768


class Quotient(NamedTuple):
    """A mean gradient that is not formed yet: ``(total + added) * 2^(exponents + shift) / samples``, by block."""

    #: int32, int64 or float32.
    total: NDArray[Any]
    #: Of the same type; empty where there is nothing to add.
    added: NDArray[Any]
    #: Block b is at [bounds[b], bounds[b + 1]).
    bounds: Int64Array
    exponents: Int16Array
    shift: int
    samples: float


class Summed(Protocol):
    """What a clock's gradients were added to."""

    def quotient(self, samples: int) -> Quotient | None:
        """Return the mean gradient before it is formed; None where it cannot be had so."""

    def means(self, samples: int) -> Iterator[tuple[slice, Float32Array]]:
        """Yield the mean gradient part by part; each array is valid until the next one is asked for."""


class Formed:
    """A mean gradient that is there already, as a follower gets it; samples do not matter to it."""

    def __init__(self, gradient: Float32Array) -> None:
        self._gradient = gradient

    def quotient(self, samples: int) -> Quotient:
        """Return the gradient as its quotient by one."""
        return plain_quotient(self._gradient, _NO_VALUES, 1.0)

    def means(self, samples: int) -> Iterator[tuple[slice, Float32Array]]:
        """Yield the gradient part by part."""
        for start in range(0, self._gradient.size, CLOSE_KEYS):
            part = slice(start, min(start + CLOSE_KEYS, self._gradient.size))
            yield part, self._gradient[part]


def plain_quotient(total: Float32Array, added: Float32Array, samples: float) -> Quotient:
    """Return the quotient of a sum in float32, which is one block."""
    return Quotient(total, added, np.array([0, total.size], dtype=np.int64), _ONE_BLOCK, 0, samples)


def prepare(optimizer: Optimizer, dtype: np.dtype[Any]) -> None:
    """Compile what steps of this optimizer with sums of this type take, where kernels are compiled at all."""
    if kernels.active() is None:
        return
    for summed in (dtype, np.dtype(np.float32)):
        kernels_step.step_of(optimizer.rule, summed)


def step_out_of_place(
    optimizer: Optimizer,
    closed: Summed,
    samples: int,
    before: Float32Array,
    after: Float32Array,
    slots: Sequence[Float32Array],
    clock: int,
    penalised: BoolArray | None,
    keep_gradient: bool,
    memory: Float32Array | None = None,
) -> Float32Array | None:
    """Write the parameters after a step to ``after``; slots change in place.

    Parameters
    ----------
    optimizer : Optimizer
    closed : Summed
        Sum of the clock.
    samples : int
        At least 1.
    before, after : ndarray, shape (p,), float32
    slots : sequence of ndarray, shape (p,), float32
    clock : int
    penalised : ndarray of bool, shape (p,), or None
    keep_gradient : bool
    memory : ndarray, shape (p,), float32, optional
        Where a gradient that is kept shall lie.

    Returns
    -------
    ndarray, float32, or None
        The whole mean gradient, if it is to be kept.
    """
    gradient = None
    if keep_gradient:
        gradient = np.empty_like(before) if memory is None else memory
    if kernels.active() is not None:
        quotient = closed.quotient(samples)
        if quotient is None:
            # Blocks off the grid, which are rare: one pass more.
            formed = np.empty_like(before) if gradient is None else gradient
            for part, mean in closed.means(samples):
                formed[part] = mean
            _fused(optimizer, Formed(formed).quotient(1), None, before, after, slots, clock, penalised)
        else:
            _fused(optimizer, quotient, gradient, before, after, slots, clock, penalised)
        return gradient
    for part, mean in closed.means(samples):
        values = after[part]
        np.copyto(values, before[part])
        mask = None if penalised is None else penalised[part]
        optimizer.step(values, [slot[part] for slot in slots], mean, clock, mask)
        if gradient is not None:
            gradient[part] = mean
    return gradient


_ONE_BLOCK = np.zeros(1, dtype=np.int16)
_NO_VALUES = np.empty(0, dtype=np.float32)
_NO_MASK = np.empty(0, dtype=np.bool_)


def _fused(
    optimizer: Optimizer,
    quotient: Quotient,
    gradient: Float32Array | None,
    before: Float32Array,
    after: Float32Array,
    slots: Sequence[Float32Array],
    clock: int,
    penalised: BoolArray | None,
) -> None:
    run = kernels_step.step_of(optimizer.rule, quotient.total.dtype)
    first = slots[0] if slots else _NO_VALUES
    second = slots[1] if len(slots) > 1 else _NO_VALUES
    run(
        *quotient,
        _NO_VALUES if gradient is None else gradient,
        before,
        after,
        first,
        second,
        _NO_MASK if penalised is None else penalised,
        optimizer.penalties,
        optimizer.constants(clock, penalised is not None),
    )
