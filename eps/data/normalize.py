"""Normalisation of features, with statistics of the training rows only.

Statistics are computed and applied in float64, in a fixed order, and rounded to float32 once, so that equal data gives
equal bits.  Prediction applies the same :class:`Normalizer` to new rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from eps.data.raw import Float64Array, Matrix, csr_float32
from eps.data.settings import NORMALIZATIONS
from eps.errors import ConfigError, DataError
from eps.system.nearest import one_of

#: Sparse data with at most this many columns is made dense for centring.
MAX_DENSIFIED_COLUMNS = 1024
#: ``tfidf`` keeps a weight for every column, used or not: half a gigabyte at this width.
MAX_WEIGHTED_COLUMNS = 1 << 26
#: Kinds with statistics of the training rows.
FITTED_KINDS = ("standard", "tfidf")
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class Normalizer:
    """The normalisation of rows, in training and in prediction.

    ``none``: nothing; ``l2``: rows to unit length; ``standard``: columns to zero mean and unit variance; ``tfidf``:
    columns times the inverse document frequency, then rows to unit length; ``binary``: 1 for every non-zero value.
    """

    kind: str
    #: Subtracted from each column: ``standard`` only, shape (d,), float64.
    mean: Float64Array | None = None
    #: ``standard`` divides columns by it, ``tfidf`` multiplies: shape (d,), float64.
    scale: Float64Array | None = None
    #: Mean of the training targets, which are centred if it is not 0.
    target_mean: float = 0.0

    def apply(self, X: Matrix) -> Matrix:
        """Return normalised rows; ``X`` is not changed.

        Parameters
        ----------
        X : ndarray or csr_matrix, shape (n, d), float32

        Returns
        -------
        ndarray or csr_matrix, shape (n, d), float32
            Dense for ``standard``, else as ``X``.

        Raises
        ------
        DataError
            The number of columns differs from the training data.
        """
        if self.scale is not None and X.shape[1] != self.scale.size:
            raise DataError(f"{X.shape[1]} feature columns: must be {self.scale.size}, as in the training data")
        if self.kind == "standard":
            return self._standardised(X)
        if self.kind == "l2":
            return _unit_rows(X, None)
        if self.kind == "tfidf":
            return _unit_rows(X, self.scale)
        if self.kind == "binary":
            if sparse.issparse(X):
                return csr_float32((X.data != 0).astype(np.float32), X.indices, X.indptr, X.shape)
            return (X != 0).astype(np.float32)
        return X

    def _standardised(self, X: Matrix) -> Matrix:
        assert self.mean is not None and self.scale is not None
        result = np.empty(X.shape, dtype=np.float32)
        for start in range(0, X.shape[0], _ROWS_AT_ONCE):
            rows = X[start : start + _ROWS_AT_ONCE]
            rows = rows.toarray() if sparse.issparse(rows) else rows
            result[start : start + _ROWS_AT_ONCE] = (rows.astype(np.float64) - self.mean) / self.scale
        return result

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to store, including the kind."""
        arrays: dict[str, NDArray[Any]] = {"kind": np.array(self.kind)}
        if self.mean is not None:
            arrays["mean"] = self.mean
        if self.scale is not None:
            arrays["scale"] = self.scale
        if self.target_mean:
            arrays["target_mean"] = np.array(self.target_mean)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Normalizer:
        """Return the normaliser that :meth:`to_arrays` described.

        Raises
        ------
        DataError
            The kind is missing or unknown, or statistics are missing.
        """
        kind = str(arrays["kind"]) if "kind" in arrays else "missing"
        if kind not in NORMALIZATIONS:
            raise DataError(f"normaliser of kind {kind!r}: must be one of {', '.join(NORMALIZATIONS)}")
        needed = {"standard": ("mean", "scale"), "tfidf": ("scale",)}.get(kind, ())
        missing = [name for name in needed if name not in arrays]
        if missing:
            raise DataError(f"normaliser of kind {kind!r} lacks its {', '.join(missing)}")
        mean, scale = (
            np.asarray(arrays[name], dtype=np.float64) if name in needed else None for name in ("mean", "scale")
        )
        return cls(kind, mean, scale, float(arrays.get("target_mean", 0.0)))


def fit_normalizer(kind: str, X: Matrix) -> Normalizer:
    """Return the normaliser of training rows.

    Parameters
    ----------
    kind : str
        One of :data:`eps.data.settings.NORMALIZATIONS`.
    X : ndarray or csr_matrix, shape (n, d), float32
        Training rows only.

    Raises
    ------
    ConfigError
        ``kind`` is unknown, or the data has too many columns: for ``standard`` to make sparse data dense, for ``tfidf``
        to keep a weight for each.
    """
    if kind not in NORMALIZATIONS:
        raise ConfigError(f"normalize is {kind!r}, but must be {one_of(kind, NORMALIZATIONS)}")
    if kind == "standard":
        return _fit_standard(X)
    if kind == "tfidf":
        if X.shape[1] > MAX_WEIGHTED_COLUMNS:
            raise ConfigError(
                f"normalize is 'tfidf', but the data has {X.shape[1]} columns: must be at most {MAX_WEIGHTED_COLUMNS}"
            )
        # Smooth idf: one more document with every word, to avoid a division by zero.
        frequency = np.bincount(X.indices[X.data != 0], minlength=X.shape[1]) if sparse.issparse(X) else (X != 0).sum(0)
        return Normalizer(kind, scale=np.log((1.0 + X.shape[0]) / (1.0 + frequency)) + 1.0)
    return Normalizer(kind)


def _fit_standard(X: Matrix) -> Normalizer:
    num_rows, num_columns = X.shape
    if sparse.issparse(X) and num_columns > MAX_DENSIFIED_COLUMNS:
        raise ConfigError(
            f"normalize is 'standard', but the data is sparse with {num_columns} columns: centring fills every zero, "
            f"so it must have at most {MAX_DENSIFIED_COLUMNS}; use l2"
        )
    # Two passes: the sum of squares minus the square of the sum loses digits if the mean is large.
    total = np.zeros(num_columns)
    for rows in _dense_parts(X):
        total += rows.sum(axis=0)
    mean = total / num_rows
    squares = np.zeros(num_columns)
    for rows in _dense_parts(X):
        squares += np.square(rows - mean).sum(axis=0)
    scale = np.sqrt(squares / num_rows)
    # A constant column is rounding noise around zero after centring: do not amplify it.
    scale[scale <= 1e-12 * np.maximum(np.abs(mean), 1e-300)] = 1.0
    return Normalizer("standard", mean, scale)


def _dense_parts(X: Matrix) -> Iterator[Float64Array]:
    for start in range(0, X.shape[0], _ROWS_AT_ONCE):
        rows = X[start : start + _ROWS_AT_ONCE]
        yield (rows.toarray() if sparse.issparse(rows) else rows).astype(np.float64)


def _unit_rows(X: Matrix, column_weights: Float64Array | None) -> Matrix:
    """Return rows of length 1; rows of zeros stay zero."""
    if sparse.issparse(X):
        values = X.data.astype(np.float64)
        if column_weights is not None:
            values *= column_weights[X.indices]
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        norms = np.sqrt(np.bincount(rows, weights=values * values, minlength=X.shape[0]))
        norms[norms == 0] = 1.0
        return csr_float32((values / norms[rows]).astype(np.float32), X.indices, X.indptr, X.shape)
    result = np.empty(X.shape, dtype=np.float32)
    for start in range(0, X.shape[0], _ROWS_AT_ONCE):
        part = X[start : start + _ROWS_AT_ONCE].astype(np.float64)
        if column_weights is not None:
            part *= column_weights
        norms = np.sqrt(np.square(part).sum(axis=1, keepdims=True))
        norms[norms == 0] = 1.0
        result[start : start + _ROWS_AT_ONCE] = part / norms
    return result
