"""A model of any size with tiny data, so that a benchmark measures the parameter server and not the arithmetic.

Used as ``--model benchmarks/big_model.py:TiledLinear --model-options '{"num_parameters": 10000000}'``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from eps.errors import ConfigError
from eps.ml.layout import TensorSpec
from eps.ml.models import Model


class TiledLinear(Model):
    """Least squares with every weight repeated: ``z = X sum(tiles) / sqrt(t)`` over t tiles of d weights.

    The gradient of a batch is computed for one tile and repeated, so that it costs one pass over the parameters and one
    over the gradient.  Every key is pulled, pushed and stepped at every clock, as in any dense model.
    """

    task = "regression"
    options: ClassVar[Mapping[str, Any]] = {"num_parameters": 1_000_000}

    def __init__(self, num_features: int, num_outputs: int, *, intercept: bool = False, **options: Any) -> None:
        super().__init__(num_features, num_outputs, intercept=intercept, **options)
        self.num_parameters: int = self.chosen["num_parameters"]
        self.num_tiles, rest = divmod(self.num_parameters, num_features)
        if rest or not self.num_tiles:
            raise ConfigError(
                f"num_parameters is {self.num_parameters}, but must be a multiple of the {num_features} features"
            )

    def tensors(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("weights", (self.num_parameters,)),)

    def decision(self, params: Mapping[str, np.ndarray], X: Any) -> np.ndarray:
        tiles = params["weights"].reshape(self.num_tiles, self.num_features)
        scores: np.ndarray = X @ (tiles.sum(axis=0) / np.float32(math.sqrt(self.num_tiles)))
        return scores

    def loss_and_gradient(
        self, params: Mapping[str, np.ndarray], X: Any, y: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray]]:
        residuals = self.decision(params, X) - y
        gradient = np.empty((self.num_tiles, self.num_features), np.float32)
        gradient[:] = (X.T @ residuals) / np.float32(math.sqrt(self.num_tiles))
        loss = float(np.square(residuals.astype(np.float64)).sum() / 2)
        return loss, {"weights": gradient.reshape(-1)}

    def loss_of_scores(self, scores: np.ndarray, y: np.ndarray) -> float:
        return float(np.square(scores.astype(np.float64) - y).sum() / 2)


class IdleLinear(TiledLinear):
    """The same, with a pause in each gradient: a job that leaves the machine idle between its exchanges."""

    options: ClassVar[Mapping[str, Any]] = {**TiledLinear.options, "sleep_s": 1.0}

    def loss_and_gradient(
        self, params: Mapping[str, np.ndarray], X: Any, y: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray]]:
        time.sleep(self.chosen["sleep_s"])
        return super().loss_and_gradient(params, X, y)


class BusyLinear(TiledLinear):
    """The same, with arithmetic in each gradient: a job that computes for a while between its exchanges."""

    options: ClassVar[Mapping[str, Any]] = {**TiledLinear.options, "busy_s": 0.1}

    def loss_and_gradient(
        self, params: Mapping[str, np.ndarray], X: Any, y: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray]]:
        # Processor time of this thread, so that on shared cores it takes longer, like arithmetic.
        until_s = time.thread_time() + self.chosen["busy_s"]
        block = np.ones((256, 256), np.float32)
        while time.thread_time() < until_s:
            block = block @ block * np.float32(1 / 256)
        return super().loss_and_gradient(params, X, y)
