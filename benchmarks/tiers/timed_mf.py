"""Matrix factorization on hosts that compute by waiting, as ``--model benchmarks/tiers/timed_mf.py:TimedMf``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from eps.ml.arrays import Float32Array, Matrix, Targets
from eps.ml.models.base import Params
from eps.ml.models.mf import Mf


class TimedMf(Mf):
    """``mf``, whose gradient takes ``rating_us`` microseconds for each rating.

    All hosts share this machine's processors, so their arithmetic takes turns, and more hosts would not be faster.
    Waiting does not take turns.  The arithmetic is done, too, and is part of the time.
    """

    options: ClassVar[Mapping[str, Any]] = {**Mf.options, "rating_us": 0.0}  # type: ignore[misc]

    def loss_and_gradient(self, params: Params, X: Matrix, y: Targets) -> tuple[float, dict[str, Float32Array]]:
        until_s = time.monotonic() + X.shape[0] * self.chosen["rating_us"] * 1e-6
        found = super().loss_and_gradient(params, X, y)
        time.sleep(max(0.0, until_s - time.monotonic()))
        return found
