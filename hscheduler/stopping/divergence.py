"""Divergence: the training loss has grown by orders of magnitude, and still grows.

A loss that is not finite ends its job anyway.  Before that, an unstable step size lets the loss grow in every iteration
by about the same factor, and no later iteration makes up for it.  The rule has no false positives in practice: a spike,
which momentum or a bad batch may cause, falls again within :data:`IN_A_ROW` iterations, and a loss that is merely bad
stays near its first value.

Our rule; EPS §6 stops trials by early feedback only.
"""

from __future__ import annotations

import math

#: How many times its first value a loss must exceed.
GROWTH = 1000.0
#: So many losses in a row must exceed it, each at least as high as the one before.
IN_A_ROW = 5


class LossWatch:
    """Watches the training losses of one job, in order."""

    def __init__(self) -> None:
        #: The first loss that is neither 0 nor infinite; None before.
        self.first: float | None = None
        self._last = math.nan
        self._num_high = 0

    def restart(self) -> None:
        """Note that the job computes some iterations again."""
        self._last, self._num_high = math.nan, 0

    def take(self, loss: float) -> bool:
        """Take the next loss; return whether training has diverged."""
        if not math.isfinite(loss):
            return False
        if self.first is None:
            self.first = loss or None
            return False
        grows = not loss < self._last
        self._num_high = self._num_high + 1 if grows and loss > GROWTH * abs(self.first) else 0
        self._last = loss
        return self._num_high >= IN_A_ROW
