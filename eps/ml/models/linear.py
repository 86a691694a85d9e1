"""Linear models: SVM, logistic, least squares (plain, lasso, ridge) and robust regression.

One score a row, ``z = X w + b``; the models differ in the loss of a score.  Scores and gradients are float32 products;
losses and slopes are computed in float64.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from eps.errors import ConfigError
from eps.ml.arrays import Float32Array, Float64Array, Matrix, Targets
from eps.ml.layout import TensorSpec
from eps.ml.models.base import Model, Params

#: The product of this many factors, each at most 2, does not overflow.
_FACTORS = 1000
#: Rows whose losses and slopes are computed at a time.
_ROWS = 16384


class LinearModel(Model):
    """``z = X w + b`` with the loss of :meth:`pointwise`."""

    def pointwise(self, scores: Float64Array, y: Targets) -> tuple[Float64Array, Float64Array]:
        """Return the loss of each row and its derivative by the scores, which has their shape, float64."""
        raise NotImplementedError

    def loss_and_slopes(self, scores: Float64Array, y: Targets) -> tuple[float, Float64Array]:
        """Return the sum of the losses and the derivative of each by the scores, which has their shape, float64."""
        losses, slopes = self.pointwise(scores, y)
        return float(losses.sum()), slopes

    def tensors(self) -> tuple[TensorSpec, ...]:
        weights = TensorSpec("weights", (self.num_features,), rows_are_features=True)
        if not self.intercept:
            return (weights,)
        return (weights, TensorSpec("intercept", (1,), penalised=False))

    def loss_and_gradient(self, params: Params, X: Matrix, y: Targets) -> tuple[float, dict[str, Float32Array]]:
        # A diverging model overflows here; the sum of gradients reports NaN and infinity later.
        with np.errstate(over="ignore", invalid="ignore"):
            loss, slopes = self.loss_and_slopes(self.decision(params, X).astype(np.float64), y)
            residuals = slopes.astype(np.float32)
            gradient = {"weights": np.asarray(X.T @ residuals, dtype=np.float32)}
            if self.intercept:
                gradient["intercept"] = np.asarray(slopes.sum(axis=0), dtype=np.float32).reshape(-1)
            return loss, gradient

    def decision(self, params: Params, X: Matrix) -> Float32Array:
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Float32Array = X @ params["weights"]
            if self.intercept:
                scores += params["intercept"]
            return scores

    def loss_of_scores(self, scores: Float32Array, y: Targets) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.pointwise(scores.astype(np.float64), y)[0].sum())


def _log_of_product(factors: Float64Array) -> float:
    """Return ``log(factors).sum()`` for factors in [1, 2]: few logarithms of products of :data:`_FACTORS` factors."""
    even = len(factors) - len(factors) % _FACTORS
    products = np.multiply.reduce(factors[:even].reshape(-1, _FACTORS), axis=1)
    return float(np.log(products).sum() + np.log(np.multiply.reduce(factors[even:])))


class Svm(LinearModel):
    """Support vector machine: hinge loss ``max(0, 1 - s z)``, s = +1 for class 1 and -1 for class 0."""

    task = "binary"

    def pointwise(self, scores: Float64Array, y: Targets) -> tuple[Float64Array, Float64Array]:
        sign = 2.0 * y - 1.0
        slack = 1.0 - sign * scores
        # NaN must not count as "no loss": diverged scores have to show in the gradient.
        return np.maximum(slack, 0.0), np.where(slack <= 0, 0.0, np.where(np.isnan(slack), np.nan, -sign))


class Logistic(LinearModel):
    """Logistic regression: loss ``log(1 + exp(-s z))``."""

    task = "binary"
    gives_probabilities = True

    def pointwise(self, scores: Float64Array, y: Targets) -> tuple[Float64Array, Float64Array]:
        sign = 2.0 * y - 1.0
        margin = sign * scores
        # The exponent is never positive, so exp does not overflow.
        small = np.exp(-np.abs(margin))
        losses = np.log1p(small) + np.maximum(-margin, 0.0)
        return losses, -sign * (np.where(margin >= 0, small, 1.0) / (1.0 + small))

    def loss_and_slopes(self, scores: Float64Array, y: Targets) -> tuple[float, Float64Array]:
        # Slopes have the bits of pointwise; computed in chunks that fit into the cache, with few logarithms.
        slopes = np.empty_like(scores)
        loss = 0.0
        for start in range(0, len(scores), _ROWS):
            part = slice(start, start + _ROWS)
            sign = 2.0 * y[part] - 1.0
            against = sign * scores[part]
            np.negative(against, out=against)
            share = np.exp(np.minimum(against, 0.0))
            grown = np.abs(against)
            np.exp(np.negative(grown, out=grown), out=grown)
            grown += 1.0
            loss += float(np.maximum(against, 0.0, out=against).sum()) + _log_of_product(grown)
            share /= grown
            sign *= share
            np.negative(sign, out=slopes[part])
        return loss, slopes


class Linear(LinearModel):
    """Least squares: loss ``(z - y)^2 / 2``."""

    task = "regression"

    def pointwise(self, scores: Float64Array, y: Targets) -> tuple[Float64Array, Float64Array]:
        residuals = scores - y
        return 0.5 * residuals * residuals, residuals


class Lasso(Linear):
    """Least squares with an L1 penalty."""

    l1_penalty = "required"
    l2_penalty = "refused"


class Ridge(Linear):
    """Least squares with an L2 penalty."""

    l1_penalty = "refused"
    l2_penalty = "required"


class Robust(LinearModel):
    """Least squares near zero and linear beyond ``huber_delta``.

    Source
    ------
    Huber 1964.  Deviation: none.
    """

    task = "regression"
    options: ClassVar[dict[str, Any]] = {"huber_delta": 1.0}

    def __init__(self, num_features: int, num_outputs: int, *, intercept: bool = True, **options: Any) -> None:
        super().__init__(num_features, num_outputs, intercept=intercept, **options)
        self.delta: float = self.chosen["huber_delta"]
        if not (math.isfinite(self.delta) and self.delta > 0):
            raise ConfigError(f"huber_delta is {self.delta}, but must be finite and > 0")

    def pointwise(self, scores: Float64Array, y: Targets) -> tuple[Float64Array, Float64Array]:
        residuals = scores - y
        slopes = np.clip(residuals, -self.delta, self.delta)
        # If |r| is within delta, the slope is r and this is r^2 / 2; otherwise it is delta (|r| - delta / 2).
        return slopes * (residuals - 0.5 * slopes), slopes
