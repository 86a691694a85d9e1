"""Softmax (multinomial logistic) regression, and its loss, which networks share."""

from __future__ import annotations

import numpy as np

from eps.ml.arrays import Float32Array, Float64Array, Matrix, Targets
from eps.ml.layout import TensorSpec
from eps.ml.models.base import Model, Params


def softmax_losses(scores: Float64Array, y: Targets) -> tuple[Float64Array, Float64Array]:
    """Return the cross-entropy of each row, shape (n,), and its derivative by the scores, shape (n, k)."""
    rows = np.arange(scores.shape[0])
    shifted = scores - scores.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    totals = powers.sum(axis=1)
    losses = np.log(totals) - shifted[rows, y]
    powers /= totals[:, np.newaxis]
    powers[rows, y] -= 1.0
    return losses, powers


class Softmax(Model):
    """Scores ``Z = X W + b`` with the cross-entropy of their softmax."""

    task = "multiclass"
    gives_probabilities = True

    def tensors(self) -> tuple[TensorSpec, ...]:
        weights = TensorSpec("weights", (self.num_features, self.num_outputs), rows_are_features=True)
        if not self.intercept:
            return (weights,)
        return (weights, TensorSpec("intercept", (self.num_outputs,), penalised=False))

    def loss_and_gradient(self, params: Params, X: Matrix, y: Targets) -> tuple[float, dict[str, Float32Array]]:
        with np.errstate(over="ignore", invalid="ignore"):
            losses, slopes = softmax_losses(self.decision(params, X).astype(np.float64), y)
            gradient = {"weights": np.asarray(X.T @ slopes.astype(np.float32), dtype=np.float32)}
            if self.intercept:
                gradient["intercept"] = slopes.sum(axis=0).astype(np.float32)
            return float(losses.sum()), gradient

    def decision(self, params: Params, X: Matrix) -> Float32Array:
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Float32Array = X @ params["weights"]
            if self.intercept:
                scores += params["intercept"]
            return scores

    def loss_of_scores(self, scores: Float32Array, y: Targets) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(softmax_losses(scores.astype(np.float64), y)[0].sum())
