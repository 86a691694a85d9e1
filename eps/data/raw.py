"""The common result of all readers: features and labels; and labels as targets for models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from eps.data.settings import Task
from eps.errors import DataError

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]
#: Dense float32 (n, d) in C order, or a SciPy CSR matrix of float32 (n, d) with sorted indices.
Matrix = Any
#: A class as the data names it.
Label = str | int | float
#: Maximum number of classes in a message.
_SHOWN_CLASSES = 8


@dataclass(frozen=True, eq=False)
class RawData:
    """The content of a data file, before division, normalisation and cut.

    Attributes
    ----------
    X : ndarray or csr_matrix, shape (n, d), float32
    y : ndarray, shape (n,), float64, or None
        Labels, or indices of ``classes`` if those are given.  None if the file has no labels.
    """

    X: Matrix
    y: Float64Array | None
    #: Sorted class names, if labels are not numbers.
    classes: tuple[str, ...] | None = None
    #: Format of the file.
    format: str = ""
    #: Number of the first feature; LIBSVM only.
    index_base: int | None = None
    #: Column names, if the file has a header.
    feature_names: tuple[str, ...] | None = None
    #: Name of the label's column, if a table has a header.
    label_name: str = ""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def num_features(self) -> int:
        """Number of columns of ``X``."""
        return int(self.X.shape[1])


def csr_float32(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]
) -> sparse.csr_matrix:
    """Return a CSR matrix of arrays whose indices are sorted and unique."""
    matrix = sparse.csr_matrix((data, indices, indptr), shape=shape, copy=False)
    # Known by construction; SciPy would check it with a pass over all values.
    matrix.has_sorted_indices = True
    matrix.has_canonical_format = True
    return matrix


def to_matrix(values: Any, name: str, columns: Sequence[str] = ()) -> Matrix:
    """Return ``values`` as float32, dense in C order or CSR with sorted indices.

    Raises
    ------
    DataError
        The values are not two-dimensional, are empty, or do not fit float32.
    """
    if len(values.shape) != 2 or 0 in values.shape:
        hint = "; x[:, None] is one column, x[None] one row" if len(values.shape) == 1 else ", not empty"
        raise DataError(f"{name}: an array of shape {tuple(values.shape)}: features must be rows x columns{hint}")
    if sparse.issparse(values):
        matrix = sparse.csr_matrix(values)
        if matrix is values:
            matrix = matrix.copy()
        matrix.sum_duplicates()
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = matrix.astype(np.float32)
        finite = np.isfinite(matrix.data)
    else:
        if values.dtype.kind not in "fiub":
            raise DataError(f"{name}: array of {values.dtype}: features must be numbers")
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = np.ascontiguousarray(values, dtype=np.float32)
        finite = np.isfinite(matrix)
    if not finite.all():
        raise DataError(f"{name}: {_first_bad(values, matrix, finite, columns)}")
    return matrix


def _first_bad(values: Any, matrix: Matrix, finite: NDArray[np.bool_], columns: Sequence[str]) -> str:
    """Return which value is not finite, and the rule."""
    first = int(np.argmin(finite))
    if sparse.issparse(matrix):
        row, column = int(np.searchsorted(matrix.indptr, first, side="right")) - 1, int(matrix.indices[first])
        value = matrix.data[first]
    else:
        row, column = divmod(first, matrix.shape[1])
        value = values[row, column]
    where = repr(columns[column]) if columns else column
    rule = "features must be finite numbers that float32 can hold"
    return f"row {row}, column {where} is {value}: {rule}; fill it in, or drop the row"


def check_width(num_columns: int, features: int | None, name: str) -> None:
    """Refuse dense data whose width differs from the setting ``features``."""
    if features is not None and num_columns != features:
        raise DataError(f"{name}: {num_columns} feature columns: must be {features}, as in the model or --features")


def check_lengths(num_rows: int, num_labels: int, name: str, labels_name: str) -> None:
    """Refuse labels that do not match the rows one to one."""
    if num_rows != num_labels:
        raise DataError(f"{name} has {num_rows} rows, but {labels_name} has {num_labels} labels: must be equal")


def labels_from_strings(values: Sequence[str], where: str) -> tuple[Float64Array, tuple[str, ...] | None]:
    """Return labels as numbers, or as indices of classes with the sorted class names.

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


def find_classes(raw: RawData, task: Task) -> tuple[Label, ...]:
    """Return the sorted classes of labelled data; empty for regression and topics.

    Whole numbers become ints, other numbers floats, names strings.

    Raises
    ------
    DataError
        A binary task has not exactly two classes, a multiclass task has one, or a regression has names as labels.
    """
    if task == "topics":
        return ()
    _labels(raw)
    if task == "regression":
        if raw.classes is not None:
            raise DataError(f"labels are names ({_shown(raw.classes)}): regression needs numbers")
        return ()
    classes = find_labels(raw)
    if task == "binary" and len(classes) != 2:
        raise DataError(
            f"{len(classes)} classes ({_shown(classes)}): a binary task needs exactly 2; softmax takes more"
        )
    if len(classes) < 2:
        raise DataError(f"1 class ({_shown(classes)}): a multiclass task needs at least 2")
    return classes


def find_labels(raw: RawData) -> tuple[Label, ...]:
    """Return the sorted distinct labels: names, or numbers, which are ints if whole."""
    if raw.classes is not None:
        return raw.classes
    return tuple(_plain(v) for v in np.unique(_labels(raw)).tolist())


def _plain(value: float) -> Label:
    return int(value) if value == int(value) else value


def encode(raw: RawData, task: Task, classes: Sequence[Label]) -> NDArray[Any]:
    """Return the targets of labelled data.

    Returns
    -------
    ndarray, shape (n,)
        float32 values for regression, zeros for topics, else int32 indices of ``classes``.

    Raises
    ------
    DataError
        A label is not among ``classes``, or does not fit in float32.
    """
    if task == "topics":
        return np.zeros(raw.num_rows, dtype=np.int32)
    y = _labels(raw)
    if task == "regression":
        if raw.classes is not None:
            raise DataError(f"labels are names ({_shown(raw.classes)}): regression needs numbers")
        with np.errstate(over="ignore"):
            values = y.astype(np.float32)
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise DataError(f"label of row {bad} is {y[bad]}: must fit in float32")
        return values
    found, position_of_row = np.unique(y, return_inverse=True)
    # Compared as texts: classes may be texts of digits, which a file cannot tell from numbers.
    number = {str(label): k for k, label in enumerate(classes)}
    names = [str(_plain(v)) if raw.classes is None else raw.classes[int(v)] for v in found.tolist()]
    unknown = [name for name in names if name not in number]
    if unknown:
        raise DataError(f"labels {_shown(unknown)} are not classes of the training data: those are {_shown(classes)}")
    return np.array([number[name] for name in names], dtype=np.int32)[position_of_row]


def _labels(raw: RawData) -> Float64Array:
    if raw.y is None:
        raise DataError("the data has no labels: training and evaluation need them")
    return raw.y


def _shown(classes: Sequence[Label]) -> str:
    shown = ", ".join(f"{label:g}" if isinstance(label, float) else str(label) for label in classes[:_SHOWN_CLASSES])
    return shown if len(classes) <= _SHOWN_CLASSES else f"{shown}, ..."
