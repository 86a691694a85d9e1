"""A step of some keys whose idle clocks are replayed first: what a server does with a table, without the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eps.ml.optim import Optimizer
from eps.ml.steps import catch_up


def step_lazily(
    optimizer: Optimizer,
    w: np.ndarray,
    slots: Sequence[np.ndarray],
    last: np.ndarray,
    keys: np.ndarray,
    grad: np.ndarray,
    clock: int,
    penalised: np.ndarray | None = None,
    rate_scale: float = 1.0,
) -> None:
    """Bring ``keys`` to ``clock`` and apply the step of that clock to them, in place."""
    catch_up(optimizer, w, slots, last, keys, clock, penalised)
    weights, parts = w[keys], [slot[keys] for slot in slots]
    optimizer.step(weights, parts, grad, clock, None if penalised is None else penalised[keys], rate_scale)
    w[keys] = weights
    for slot, part in zip(slots, parts, strict=True):
        slot[keys] = part
    last[keys] = clock + 1
