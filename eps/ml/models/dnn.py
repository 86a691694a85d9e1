"""Fully connected networks (MLP) for classification and regression."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from eps.errors import ConfigError
from eps.ml.arrays import Float32Array, Float64Array, Matrix, Targets
from eps.ml.layout import TensorSpec
from eps.ml.models.base import TASKS, Model, Params, Task
from eps.ml.models.linear import Linear, Logistic
from eps.ml.models.softmax import softmax_losses

_ACTIVATIONS = ("relu", "tanh")


class Dnn(Model):
    """Hidden layers with ReLU or tanh, and softmax, logistic or least squares on top.

    Options: ``hidden`` (sizes of the hidden layers), ``activation`` (relu or tanh), ``network_task`` (multiclass by
    default, binary or regression).

    Source
    ------
    Initial weights: He et al. 2015 (ReLU), LeCun et al. 1998 (tanh and the last layer).  Deviation: none.
    """

    task = "multiclass"
    gives_probabilities = True
    options: ClassVar[dict[str, Any]] = {"hidden": (128,), "activation": "relu", "network_task": "multiclass"}

    def __init__(self, num_features: int, num_outputs: int, *, intercept: bool = True, **options: Any) -> None:
        super().__init__(num_features, num_outputs, intercept=intercept, **options)
        hidden: tuple[int, ...] = self.chosen["hidden"]
        if not hidden or min(hidden) < 1:
            raise ConfigError(f"hidden is {hidden}, but must be one or more sizes of at least 1")
        if self.chosen["activation"] not in _ACTIVATIONS:
            raise ConfigError(f"activation is {self.chosen['activation']!r}, but must be one of {_ACTIVATIONS}")
        self._network_task = self.task_for(self.chosen)
        #: Sizes of the input, the hidden layers and the output.  A binary network has one output, like logistic.
        self.sizes = (num_features, *hidden, num_outputs if self._network_task == "multiclass" else 1)

    @classmethod
    def task_for(cls, options: Mapping[str, Any]) -> Task:
        name = options.get("network_task", cls.options["network_task"])
        for task in TASKS:
            if name == task:
                return task
        raise ConfigError(f"network_task is {name!r}, but must be one of {', '.join(TASKS)}")

    def tensors(self) -> tuple[TensorSpec, ...]:
        specs: list[TensorSpec] = []
        for layer, (fan_in, fan_out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False), start=1):
            gain = 2.0 if self.chosen["activation"] == "relu" and layer < self._num_layers else 1.0
            scale = math.sqrt(gain / fan_in)
            specs.append(
                TensorSpec(f"weights_{layer}", (fan_in, fan_out), init_scale=scale, rows_are_features=layer == 1)
            )
            if self.intercept:
                specs.append(TensorSpec(f"bias_{layer}", (fan_out,), penalised=False))
        return tuple(specs)

    def loss_and_gradient(self, params: Params, X: Matrix, y: Targets) -> tuple[float, dict[str, Float32Array]]:
        with np.errstate(over="ignore", invalid="ignore"):
            inputs, scores = self._forward(params, X)
            losses, slopes = self._losses(scores.astype(np.float64), y)
            delta = slopes.astype(np.float32)
            gradient: dict[str, Float32Array] = {}
            for layer in range(self._num_layers, 0, -1):
                gradient[f"weights_{layer}"] = np.asarray(inputs[layer - 1].T @ delta, dtype=np.float32)
                if self.intercept:
                    gradient[f"bias_{layer}"] = delta.sum(axis=0, dtype=np.float32)
                if layer > 1:
                    delta = delta @ params[f"weights_{layer}"].T
                    activated = inputs[layer - 1]
                    delta *= activated > 0 if self.chosen["activation"] == "relu" else 1 - activated * activated
            return float(losses.sum()), gradient

    def decision(self, params: Params, X: Matrix) -> Float32Array:
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._forward(params, X)[1]
            return scores if self._network_task == "multiclass" else scores[:, 0]

    def loss_of_scores(self, scores: Float32Array, y: Targets) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            columns = scores.reshape(len(scores), self.sizes[-1])
            return float(self._losses(columns.astype(np.float64), y)[0].sum())

    @property
    def _num_layers(self) -> int:
        return len(self.sizes) - 1

    def _forward(self, params: Params, X: Matrix) -> tuple[list[Matrix], Float32Array]:
        """Return the inputs of every layer and the scores of the last, shape (n, outputs)."""
        inputs: list[Matrix] = [X]
        for layer in range(1, self._num_layers + 1):
            values = inputs[-1] @ params[f"weights_{layer}"]
            if self.intercept:
                values += params[f"bias_{layer}"]
            if layer == self._num_layers:
                return inputs, values
            if self.chosen["activation"] == "relu":
                np.maximum(values, np.float32(0.0), out=values)
            else:
                np.tanh(values, out=values)
            inputs.append(values)
        raise AssertionError("a network has at least one layer")

    def _losses(self, scores: Float64Array, y: Targets) -> tuple[Float64Array, Float64Array]:
        """Return losses (n,) and slopes (n, outputs)."""
        if self._network_task == "multiclass":
            return softmax_losses(scores, y)
        pointwise = _LOGISTIC if self._network_task == "binary" else _LEAST_SQUARES
        losses, slopes = pointwise(scores[:, 0], y)
        return losses, slopes[:, np.newaxis]


_LOGISTIC = Logistic(1, 2).pointwise
_LEAST_SQUARES = Linear(1, 1).pointwise
