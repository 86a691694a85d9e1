"""Softmax (multinomial logistic) regression, and its loss, which networks share."""

from __future__ import annotations

import numpy as np

from eps.ml.arrays import Float64Array, Targets
from eps.ml.layout import TensorSpec
from eps.ml.models.linear import LinearModel


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


class Softmax(LinearModel):
    """Scores ``Z = X W + b`` with the cross-entropy of their softmax."""

    task = "multiclass"
    gives_probabilities = True

    def tensors(self) -> tuple[TensorSpec, ...]:
        weights = TensorSpec("weights", (self.num_features, self.num_outputs), rows_are_features=True)
        if not self.intercept:
            return (weights,)
        return (weights, TensorSpec("intercept", (self.num_outputs,), penalised=False))

    def pointwise(self, scores: Float64Array, y: Targets) -> tuple[Float64Array, Float64Array]:
        return softmax_losses(scores, y)
