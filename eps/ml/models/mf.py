"""Matrix factorization: the rating that a user gives an item, from factors and a bias of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from eps.errors import ConfigError
from eps.ml.arrays import Float32Array, Matrix, Targets
from eps.ml.layout import TensorSpec
from eps.ml.models.base import Model, Params
from eps.ml.models.linear import Linear

#: Sums of factors that are in memory at a time.
_VALUES = 1 << 22
#: Standard deviation of the factors at the start.
_INIT_SCALE = 0.1


class Mf(Model):
    """Predicts ``b_u + b_i + v_u . v_i`` for user u and item i, with the squared loss.

    A row has two features that are 1: the column of its user and the column of its item (``eps.data.ratings``).  Row j
    of ``factors`` and ``biases`` belongs to column j, so users and items share one tensor.  A worker pulls and pushes
    only the rows of the users and items in its splits.  The preparation of the data subtracts the mean of the training
    labels.  The parameters of a user or item without training ratings stay near zero.

    With other rows the score is that of a factorization machine: ``x . b`` plus ``v_f . v_g x_f x_g`` over all pairs of
    features.  With two features that are 1 this is the formula above; with one, the user or item was unknown to the
    training, and only the other one's bias counts.

    ``--l2`` penalises the factors, not the biases: the objective is the mean of ``(r - score)^2 / 2`` plus
    ``l2 / 2`` times the sum of squares.  A weight ``w`` in an objective that sums over N ratings is ``l2 = w / N``.

    Options: ``rank`` (factors of each user and item).

    Source
    ------
    Proteus §6.2: factors L and R are in the parameter server, and a worker updates the rows of its ratings by SGD.
    Biases and the mean: Koren, Bell and Volinsky 2009, equation 4.  The score as a function of sparse rows: Rendle
    2010, equation 1 and section V-A.  Deviation: the paper's workers update after every rating; here a clock is one
    step on the gradient of its batch, so that the model does not depend on who computes which ratings.
    """

    task = "regression"
    data_format = "ratings"
    # No parameter is a constant term.
    centres_labels = True
    options: ClassVar[dict[str, Any]] = {"rank": 16}

    def __init__(self, num_features: int, num_outputs: int, *, intercept: bool = True, **options: Any) -> None:
        super().__init__(num_features, num_outputs, intercept=intercept, **options)
        self.rank: int = self.chosen["rank"]
        if self.rank < 1:
            raise ConfigError(f"rank is {self.rank}, but must be at least 1")

    def tensors(self) -> tuple[TensorSpec, ...]:
        shape = (self.num_features, self.rank)
        factors = TensorSpec("factors", shape, init_scale=_INIT_SCALE, rows_are_features=True)
        if not self.intercept:
            return (factors,)
        return (factors, TensorSpec("biases", (self.num_features,), penalised=False, rows_are_features=True))

    def loss_and_gradient(self, params: Params, X: Matrix, y: Targets) -> tuple[float, dict[str, Float32Array]]:
        factors = params["factors"]
        loss, slopes = 0.0, np.empty(X.shape[0], np.float32)
        gradient = {name: np.zeros(array.shape, np.float32) for name, array in params.items()}
        # A diverging model overflows here; the sum of gradients reports NaN and infinity later.
        with np.errstate(over="ignore", invalid="ignore"):
            for part, rows in self._parts(X):
                sums, scores = self._sums_and_scores(params, rows)
                losses, residuals = _LEAST_SQUARES(scores.astype(np.float64), y[part])
                loss += float(losses.sum())
                slopes[part] = residuals
                sums *= slopes[part, np.newaxis]
                gradient["factors"] += rows.T @ sums
            gradient["factors"] -= (_squared(X).T @ slopes)[:, np.newaxis] * factors
            if self.intercept:
                gradient["biases"] += X.T @ slopes
        return loss, gradient

    def decision(self, params: Params, X: Matrix) -> Float32Array:
        with np.errstate(over="ignore", invalid="ignore"):
            found = [self._sums_and_scores(params, rows)[1] for _, rows in self._parts(X)]
        return np.concatenate(found) if found else np.empty(0, np.float32)

    def loss_of_scores(self, scores: Float32Array, y: Targets) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(_LEAST_SQUARES(scores.astype(np.float64), y)[0].sum())

    def _parts(self, X: Matrix) -> Iterator[tuple[slice, Matrix]]:
        """Yield the rows of ``X`` in parts whose sums of factors fit into memory."""
        num_rows, most = X.shape[0], max(1, _VALUES // self.rank)
        for start in range(0, num_rows, most):
            part = slice(start, min(start + most, num_rows))
            yield part, X if num_rows <= most else X[part]

    def _sums_and_scores(self, params: Params, X: Matrix) -> tuple[Float32Array, Float32Array]:
        """Return the sum of the factors of each row's features, shape (n, rank), and the scores, shape (n,)."""
        factors = params["factors"]
        sums: Float32Array = X @ factors
        # Over all pairs, v_f . v_g is half of the square of the sum, less the squares of the parts.
        squares = np.einsum("dk,dk->d", factors, factors)
        scores: Float32Array = np.einsum("nk,nk->n", sums, sums)
        scores -= _squared(X) @ squares
        scores *= np.float32(0.5)
        if self.intercept:
            scores += X @ params["biases"]
        return sums, scores


def _squared(X: Matrix) -> Matrix:
    if sparse.issparse(X):
        return sparse.csr_matrix((X.data * X.data, X.indices, X.indptr), shape=X.shape)
    return X * X


_LEAST_SQUARES = Linear(1, 1).pointwise
