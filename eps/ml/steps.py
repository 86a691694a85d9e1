"""From the sum of a clock to the parameters after it: at once, or for each key when it is next needed.

At once is one compiled pass, or NumPy chunk by chunk with the same bits (:func:`step_out_of_place`).

Sparse data touches few keys at a clock, but penalties, momentum and Adam change every key at every clock.  So a
partition stores for each key how many clocks it has had (``last``).  When a key is read or written, the missing steps,
which have a zero gradient, are replayed (:func:`catch_up`, :func:`peek`).  Replay calls the same update rule, so the
result is equal to the bit to the eager one.

``keys`` are positions within the partition, increasing and unique; None means all.  ``clock`` is the number of clocks
that the keys shall have had, which is also the 0-based clock of the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from eps.ml import kernels, kernels_step
from eps.ml.arrays import BoolArray, Float32Array, Int16Array, Int64Array
from eps.ml.optim import Optimizer

#: Keys that are processed at a time: sum, mean, parameters and slots of a chunk fit into the cache.
CLOSE_KEYS = 32768


class Quotient(NamedTuple):
    """A mean gradient in unevaluated form: ``(total + added) * 2^(exponents + shift) / samples``, by block."""

    #: int32, int64 or float32.
    total: NDArray[Any]
    #: Of the same type; empty if there is nothing to add.
    added: NDArray[Any]
    #: Block b occupies [bounds[b], bounds[b + 1]).
    bounds: Int64Array
    exponents: Int16Array
    shift: int
    samples: float


class Summed(Protocol):
    """The sum of a clock's gradients."""

    def quotient(self, samples: int) -> Quotient | None:
        """Return the mean gradient in unevaluated form; None if the sum has raw blocks."""

    def means(self, samples: int) -> Iterator[tuple[slice, Float32Array]]:
        """Yield the mean gradient chunk by chunk; each array is valid until the next one is requested."""


class Formed:
    """A mean gradient that is already evaluated, as a follower receives it; ``samples`` have no effect."""

    def __init__(self, gradient: Float32Array) -> None:
        self._gradient = gradient

    def quotient(self, samples: int) -> Quotient:
        """Return the gradient as its quotient by one."""
        return plain_quotient(self._gradient, _NO_VALUES, 1.0)

    def means(self, samples: int) -> Iterator[tuple[slice, Float32Array]]:
        """Yield the gradient chunk by chunk."""
        for start in range(0, self._gradient.size, CLOSE_KEYS):
            part = slice(start, min(start + CLOSE_KEYS, self._gradient.size))
            yield part, self._gradient[part]


def plain_quotient(total: Float32Array, added: Float32Array, samples: float) -> Quotient:
    """Return the quotient of a sum in float32, which is one block."""
    return Quotient(total, added, np.array([0, total.size], dtype=np.int64), _ONE_BLOCK, 0, samples)


def prepare(optimizer: Optimizer, dtype: np.dtype[Any]) -> None:
    """Compile the steps of this optimizer for sums of this type, if kernels are compiled at all."""
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
    """Write the parameters after a step to ``after``; slots are changed in place.

    Parameters
    ----------
    optimizer : Optimizer
    closed : Summed
        The sum of the clock.
    samples : int
        At least 1.
    before, after : ndarray, shape (p,), float32
    slots : sequence of ndarray, shape (p,), float32
    clock : int
    penalised : ndarray of bool, shape (p,), or None
    keep_gradient : bool
    memory : ndarray, shape (p,), float32, optional
        Memory for a gradient that is kept.

    Returns
    -------
    ndarray, float32, or None
        The whole mean gradient if ``keep_gradient``.
    """
    gradient = None
    if keep_gradient:
        gradient = np.empty_like(before) if memory is None else memory
    if kernels.active() is not None:
        quotient = closed.quotient(samples)
        if quotient is None:
            # Raw blocks, which are rare, take one pass more.
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


#: Number of clocks by key; any signed integer type.
ClockArray = NDArray[Any]

#: After this many replayed clocks, check whether the keys still move.
_LOOK_EVERY = 16


def catch_up(
    optimizer: Optimizer,
    w: Float32Array,
    slots: Sequence[Float32Array],
    last: ClockArray,
    keys: Int64Array | None,
    clock: int,
    penalised: BoolArray | None = None,
) -> None:
    """Bring ``keys`` to ``clock`` in place; keys that are ahead do not change.

    Parameters
    ----------
    optimizer : Optimizer
    w, slots : ndarray and sequence of ndarray, shape (p,), float32
        State of the partition.
    last : ndarray, shape (p,), int
        The clocks that each key has had; set to ``clock``.
    keys : ndarray of int64, or None
    clock : int
    penalised : ndarray of bool, shape (p,), or None
    """
    if keys is None:
        behind = np.flatnonzero(last < clock)
    else:
        behind = keys[last[keys] < clock]
    if behind.size == 0:
        return
    if not optimizer.idle_step_changes_nothing():
        moving, weights, slot_parts = _replayed(optimizer, w, slots, last, behind, clock, penalised)
        w[moving] = weights
        for slot, part in zip(slots, slot_parts, strict=True):
            slot[moving] = part
    last[behind] = clock


def peek(
    optimizer: Optimizer,
    w: Float32Array,
    slots: Sequence[Float32Array],
    last: ClockArray,
    keys: Int64Array | None,
    clock: int,
    penalised: BoolArray | None = None,
) -> Float32Array:
    """Return the values that :func:`catch_up` would give ``w[keys]``, without changing anything."""
    values = w.copy() if keys is None else w[keys]
    if optimizer.idle_step_changes_nothing():
        return values
    where = np.arange(w.size, dtype=np.int64) if keys is None else keys
    positions = np.flatnonzero(last[where] < clock)
    if positions.size:
        moving, weights, _ = _replayed(optimizer, w, slots, last, where[positions], clock, penalised)
        values[np.searchsorted(where, moving)] = weights
    return values


def _replayed(
    optimizer: Optimizer,
    w: Float32Array,
    slots: Sequence[Float32Array],
    last: ClockArray,
    behind: Int64Array,
    clock: int,
    penalised: BoolArray | None,
) -> tuple[Int64Array, Float32Array, list[Float32Array]]:
    """Return (keys, weights, slots) at ``clock`` of the keys of ``behind`` that move; keys are not sorted."""
    mask = None if penalised is None else penalised[behind]
    moves = ~optimizer.at_rest(w[behind], [slot[behind] for slot in slots], mask)
    keys = behind[moves]
    # The earliest first: then the keys in the replay of a clock are always a prefix.
    starts = last[keys]
    order = np.argsort(starts, kind="stable")
    keys, starts = keys[order], starts[order]
    weights = w[keys]
    parts = [slot[keys] for slot in slots]
    mask = None if penalised is None else penalised[keys]
    zeros = np.zeros_like(weights)
    stops_moving = optimizer.time_invariant and optimizer.settings.decay == 0

    at = int(starts[0]) if keys.size else clock
    replayed = 0
    while at < clock:
        active = int(np.searchsorted(starts, at, side="right"))
        state = [weights[:active], *(part[:active] for part in parts)]
        look = stops_moving and replayed % _LOOK_EVERY == _LOOK_EVERY - 1
        before = [array.copy() for array in state] if look else []
        optimizer.step(state[0], state[1:], zeros[:active], at, None if mask is None else mask[:active])
        at += 1
        replayed += 1
        if look and all(_same_bits(a, b) for a, b in zip(before, state, strict=True)):
            at = max(at, int(starts[active])) if active < keys.size else clock
    return keys, weights, parts


def _same_bits(a: Float32Array, b: Float32Array) -> bool:
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))
