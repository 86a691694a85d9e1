"""Divergence: the training loss grows exponentially, and is orders of magnitude above its first value.

A loss that is not finite ends its job anyway.  Before that, an unstable step size multiplies the loss by about the same
factor in every iteration, and no later iteration makes up for it.  The rule spares what may become the best trial:

- A large step size lets the loss of a classifier grow linearly, with momentum quadratically, while its accuracy may be
  good: between half of the iterations and all of them such a loss grows at most :math:`2^2` times.
- A spike, from momentum or a bad batch, falls again within :data:`IN_A_ROW` iterations.
- A loss that is merely bad stays near its first value.

Our rule; EPS §6 stops trials by early feedback only.
"""

from __future__ import annotations

import math
from array import array

#: How many times its first value, and its value after half of the iterations, a loss must exceed.
GROWTH = 1000.0
#: So many losses in a row must not fall.
IN_A_ROW = 5
#: Fewer iterations do not tell exponential growth from other growth.
LEAST_ITERATIONS = 10


class LossWatch:
    """Watches the training losses of one job, in order."""

    def __init__(self) -> None:
        #: The first loss that is neither 0 nor infinite; None before.
        self.first: float | None = None
        #: The finite losses since the job last started.
        self._losses = array("d")
        self._num_rising = 0

    def restart(self) -> None:
        """Note that the job computes some iterations again."""
        del self._losses[:]
        self._num_rising = 0

    def take(self, loss: float) -> bool:
        """Take the next loss; return whether training has diverged."""
        if not math.isfinite(loss):
            return False
        self._num_rising = self._num_rising + 1 if self._losses and loss >= self._losses[-1] else 0
        self._losses.append(loss)
        if self.first is None:
            self.first = loss or None
        if self.first is None or len(self._losses) < LEAST_ITERATIONS or self._num_rising < IN_A_ROW:
            return False
        return loss > GROWTH * max(abs(self.first), abs(self._losses[len(self._losses) // 2]))
