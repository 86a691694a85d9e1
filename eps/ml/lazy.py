"""Updates that wait until somebody needs the key, with the bits of updates that did not wait.

Sparse data touches few keys at a clock, but penalties, momentum and Adam change every key at every clock.  A partition
therefore remembers for each key how many clocks it has had (``last``) and replays the missing steps, which have a zero
gradient, when the key is read or written.  Replay calls the very same update rule, so that the result is equal to the
bit to the eager one.

``keys`` are positions within the partition, increasing and without repeats; None is all of them.  ``clock`` is the
number of clocks that the keys shall have had, which is also the 0-based clock of the step that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.ml.arrays import BoolArray, Float32Array, Int64Array
from eps.ml.optim import Optimizer

#: Number of clocks by key: any signed integer type.
ClockArray = NDArray[Any]

#: Replayed clocks between two looks whether the keys still move.
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
    """Bring ``keys`` to ``clock`` in place; keys that are ahead stay as they are.

    Parameters
    ----------
    optimizer : Optimizer
    w, slots : ndarray and sequence of ndarray, shape (p,), float32
        State of the partition.
    last : ndarray, shape (p,), int
        Clocks that each key has had; set to ``clock``.
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
    """Return what :func:`catch_up` would make of ``w[keys]`` without changing anything."""
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
    """Return (keys, weights, slots) at ``clock`` of those keys of ``behind`` that move; keys are not sorted."""
    mask = None if penalised is None else penalised[behind]
    moves = ~optimizer.at_rest(w[behind], [slot[behind] for slot in slots], mask)
    keys = behind[moves]
    # The earliest first: the keys that take part in the replay of a clock are then always the first so many.
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
