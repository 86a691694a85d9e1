"""What every reader of a format returns: a matrix of features and the labels.  Imports NumPy and SciPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from eps.errors import DataError

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]
#: Dense float32 (n, d) in C order, or a SciPy CSR matrix of float32 (n, d) with sorted indices.
Matrix = Any
#: A class as the data names it.
Label = str | int | float


@dataclass(frozen=True, eq=False)
class RawData:
    """Data as a file holds it, before it is divided, normalised and cut.

    Attributes
    ----------
    X : ndarray or csr_matrix, shape (n, d), float32
    y : ndarray, shape (n,), float64, or None
        Labels; where ``classes`` is given, numbers of classes.  None where the file has none.
    """

    X: Matrix
    y: Float64Array | None
    #: Sorted names of the classes, where labels are not numbers.
    classes: tuple[str, ...] | None = None
    #: Format that was read.
    format: str = ""
    #: Number of the first feature in the file; only LIBSVM has one.
    index_base: int | None = None
    #: Names of the columns, where the file has a header.
    feature_names: tuple[str, ...] | None = None

    @property
    def num_rows(self) -> int:
        """Rows."""
        return int(self.X.shape[0])

    @property
    def num_features(self) -> int:
        """Columns of ``X``."""
        return int(self.X.shape[1])


def csr_float32(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]
) -> sparse.csr_matrix:
    """Return a CSR matrix of arrays whose indices are known to be sorted and free of duplicates."""
    matrix = sparse.csr_matrix((data, indices, indptr), shape=shape, copy=False)
    # Known by construction; asking SciPy to find out would cost a pass over all values.
    matrix.has_sorted_indices = True
    matrix.has_canonical_format = True
    return matrix


def to_matrix(values: Any, name: str) -> Matrix:
    """Return ``values`` as float32, dense in C order or CSR with sorted indices.

    Raises
    ------
    DataError
        Not two-dimensional, without rows or columns, or with values that float32 cannot hold.
    """
    if len(values.shape) != 2 or 0 in values.shape:
        raise DataError(f"{name}: an array of shape {tuple(values.shape)}: features must be rows x columns, not empty")
    if sparse.issparse(values):
        matrix = sparse.csr_matrix(values)
        if matrix is values:
            matrix = matrix.copy()
        matrix.sum_duplicates()
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = matrix.astype(np.float32)
        finite = np.isfinite(matrix.data)
        bad_row = int(np.searchsorted(matrix.indptr, np.argmin(finite), side="right")) - 1 if finite.size else 0
    else:
        if values.dtype.kind not in "fiub":
            raise DataError(f"{name}: array of {values.dtype}: features must be numbers")
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = np.ascontiguousarray(values, dtype=np.float32)
        finite = np.isfinite(matrix)
        bad_row = int(np.argmin(finite.all(axis=1)))
    if not finite.all():
        raise DataError(f"{name}: row {bad_row}: features must be finite numbers that float32 can hold")
    return matrix


def check_width(num_columns: int, features: int | None, name: str) -> None:
    """Refuse dense data of another width than the one asked for."""
    if features is not None and num_columns != features:
        raise DataError(f"{name}: {num_columns} feature columns: must be {features}, the number of features asked for")


def check_lengths(num_rows: int, num_labels: int, name: str, labels_name: str) -> None:
    """Refuse labels that do not fit the rows one to one."""
    if num_rows != num_labels:
        raise DataError(f"{name} has {num_rows} rows, but {labels_name} has {num_labels} labels: must be equal")


def labels_from_strings(values: Sequence[str], where: str) -> tuple[Float64Array, tuple[str, ...] | None]:
    """Return labels as numbers, or as numbers of classes with the sorted names of these.

    Raises
    ------
    DataError
        A label is empty or not finite.
    """
    if "" in values:
        raise DataError(f"{where}: label {list(values).index('') + 1} of {len(values)} is empty: every row needs one")
    try:
        y = np.array(values, dtype=np.float64)
    except ValueError:
        names = sorted(set(values))
        number = {name: k for k, name in enumerate(names)}
        return np.array([number[value] for value in values], dtype=np.float64), tuple(names)
    check_labels_finite(y, where)
    return y, None


def check_labels_finite(y: Float64Array, where: str) -> None:
    """Refuse NaN and infinity among the labels."""
    finite = np.isfinite(y)
    if not finite.all():
        bad = int(np.argmin(finite))
        raise DataError(f"{where}: label {bad + 1} of {y.size} is {y[bad]}: must be a finite number")
