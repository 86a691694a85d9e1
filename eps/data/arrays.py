"""Arrays of NumPy and SciPy and frames of pandas as the data of a job: checked, and written as files of one format.

A job reads its data from files, wherever it runs: so arrays are written once, beside the cache of prepared data sets,
and removed when the job has read them.  What a killed process has left there, the next one removes.  A frame is
anything with ``columns`` whose items are columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from eps.data.cache import own_folder
from eps.data.numpy_files import CLASS_NAMES, FEATURE_NAMES, labels_from_array, write_npz
from eps.data.raw import Float32Array, Float64Array, Matrix, to_matrix
from eps.errors import ConfigError, DataError
from eps.system.nearest import did_you_mean

_FOLDER_PREFIX = ".tmp-arrays-"
#: Settings that tell how a file is read.
_OF_FILES = ("format", "label_column", "columns", "delimiter", "index_base")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with their labels."""

    X: Matrix
    #: Numbers; of classes that have names their positions in ``classes``.
    y: Float64Array
    #: Sorted names of the classes; empty where labels are numbers.
    classes: tuple[str, ...]
    #: Names of the columns of a frame; empty for arrays.
    feature_names: tuple[str, ...]

    def write(self, path: Path) -> str:
        """Write the table as ``.npz``, which only this user can read; return the path."""
        X = self.X
        if sparse.issparse(X):
            arrays = {"format": np.array("csr"), "shape": np.array(X.shape)}
            arrays |= {"data": X.data, "indices": X.indices, "indptr": X.indptr}
        else:
            arrays = {"X": X}
        arrays["y"] = self.y
        if self.classes:
            arrays[CLASS_NAMES] = np.array(self.classes)
        if self.feature_names:
            arrays[FEATURE_NAMES] = np.array(self.feature_names)
        path.touch(mode=0o600)
        with path.open("wb") as file:
            write_npz(file, arrays)
        return str(path)


@contextmanager
def array_files(
    settings: Mapping[str, Any], make_folder: Callable[[], Path], *, needs_labels: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield the settings of a job with files in the place of arrays and frames; the files are removed at the end.

    Parameters
    ----------
    settings : mapping
        ``data`` may be an array of shape (n, d), dense or sparse, or a frame; ``labels`` then has n labels or is the
        name of a column.  ``test`` may be such data, with its labels in ``test_labels``, or both as a pair.
    make_folder : callable
        Returns the folder in which the files get a folder of their own; called where there are arrays only.
    needs_labels : bool
        False for a model that ignores labels; rows without any then have zeros.

    Raises
    ------
    ConfigError
        The settings do not go with each other.
    DataError
        The arrays cannot be used: shapes, types, or values that are missing.
    """
    given = dict(settings)
    if isinstance(given.get("test"), tuple):
        given |= _pair(given)
    arrays = [name for name in ("data", "labels", "test", "test_labels") if _is_array(given.get(name))]
    if not arrays:
        yield given
        return
    data, labels = given.get("data"), given.pop("labels", None)
    if not _is_array(data):
        raise ConfigError(f"{arrays[0]} is an array, but data is {data!r}: give all of them as arrays, or all as files")
    for name in _OF_FILES:
        if name in given:
            raise ConfigError(
                f"{name} is {given[name]!r}, but tells how to read a file, and data is an array: leave it out"
            )
    if labels is None and not needs_labels:
        labels = np.zeros(given["data"].shape[0])
    table = table_of(data, labels, "data", "labels")
    test = None
    if _is_array(given.get("test")):
        column = labels if isinstance(labels, str) else None
        test = table_of(given["test"], given.pop("test_labels", column), "test", "test_labels", table.feature_names)
        _check_alike(table.X, test.X)
    elif "test_labels" in arrays:
        raise ConfigError(f"test_labels is an array, but test is {given.get('test')!r}: give both as arrays")
    with own_folder(make_folder(), _FOLDER_PREFIX) as folder:
        given["data"] = table.write(folder / "data.npz")
        if test is not None:
            given["test"] = test.write(folder / "test.npz")
        yield given


def is_array_file(text: str) -> bool:
    """Return whether this is the path of a file of :func:`array_files`."""
    return Path(text).parent.name.startswith(_FOLDER_PREFIX)


def _pair(given: Mapping[str, Any]) -> dict[str, Any]:
    test = given["test"]
    if len(test) != 2 or given.get("test_labels") is not None:
        raise ConfigError(f"test has {len(test)} parts, but must be (rows, labels), and test_labels is left out then")
    return {"test": test[0], "test_labels": test[1]}


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or sparse.issparse(value) or hasattr(value, "to_numpy")


def _check_alike(X: Matrix, test_X: Matrix) -> None:
    if X.shape[1] != test_X.shape[1]:
        raise DataError(f"test has {test_X.shape[1]} columns, but data has {X.shape[1]}: must be equal")
    if sparse.issparse(X) != sparse.issparse(test_X):
        kinds = ["sparse" if sparse.issparse(each) else "dense" for each in (test_X, X)]
        raise DataError(f"test is {kinds[0]}, but data is {kinds[1]}: must be alike")


def table_of(values: Any, labels: Any, name: str, labels_name: str, wanted: Sequence[str] = ()) -> Table:
    """Return rows with their labels, which are an array or the name of a column of the frame ``values``.

    Raises
    ------
    ConfigError
        There are no labels, or no such column.
    DataError
        The values cannot be used.
    """
    if labels is None:
        columns = " or the name of their column" if hasattr(values, "columns") else ""
        raise ConfigError(f"{labels_name} is missing, but {name} is an array: give one label for each row{columns}")
    own = ""
    if isinstance(labels, str):
        if not hasattr(values, "columns"):
            raise ConfigError(f"{labels_name} is {labels!r}, but {name} is an array without columns that have names")
        own, labels = labels, _column(values, labels, labels_name)
    X, feature_names = matrix_of(values, name, wanted, leave_out=own)
    y, classes = _labels_of(labels, labels_name)
    if X.shape[0] != y.size:
        raise DataError(f"{name} has {X.shape[0]} rows, but {labels_name} has {y.size} labels: must be equal")
    return Table(X, y, classes, feature_names)


def matrix_of(
    values: Any, name: str, wanted: Sequence[str] = (), *, leave_out: str = ""
) -> tuple[Matrix, tuple[str, ...]]:
    """Return rows as float32, dense or CSR, with the names of their columns where ``values`` is a frame.

    Parameters
    ----------
    values : array, sparse matrix, frame, or nested sequence, shape (n, d)
    name : str
        What messages call it.
    wanted : sequence of str
        Columns to take of a frame, in this order; all by default.
    leave_out : str
        The column of the labels.

    Raises
    ------
    DataError
        It has another shape, or values that are no finite numbers; or a frame lacks a column.
    """
    if hasattr(values, "columns"):
        return _matrix_of_frame(values, name, wanted, leave_out)
    array = values if sparse.issparse(values) else np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} is an array of {array.dtype}, but features must be numbers")
    return to_matrix(array, name), ()


def _matrix_of_frame(
    frame: Any, name: str, wanted: Sequence[str], leave_out: str
) -> tuple[Float32Array, tuple[str, ...]]:
    by_name = {str(column): column for column in frame.columns}
    if len(by_name) < len(list(frame.columns)):
        raise DataError(f"{name} has columns of the same name, but each must have a name of its own")
    names = tuple(wanted) or tuple(column for column in by_name if column != leave_out)
    if missing := [column for column in names if column not in by_name]:
        raise DataError(
            f"{name} has no column {', '.join(missing)}{did_you_mean(missing[0], by_name)}; "
            "it must have those of the training data"
        )
    X = np.empty((len(frame), len(names)), dtype=np.float32)
    for number, column in enumerate(names):
        values = np.asarray(frame[by_name[column]])
        if values.dtype.kind not in "fiub":
            raise DataError(
                f"{name}: column {column!r} is {frame[by_name[column]].dtype}, but features must be numbers: drop it, "
                "or encode it, as pandas.get_dummies does"
            )
        with np.errstate(over="ignore"):
            X[:, number] = values
    return to_matrix(X, name, names), names


def _column(frame: Any, column: str, name: str) -> Any:
    by_name = {str(each): each for each in frame.columns}
    if column not in by_name:
        raise ConfigError(f"{name} is {column!r}, but there is no such column{did_you_mean(column, by_name)}")
    return frame[by_name[column]]


def _labels_of(labels: Any, name: str) -> tuple[Float64Array, tuple[str, ...]]:
    array = np.asarray(labels.toarray() if sparse.issparse(labels) else labels)
    if array.dtype.kind == "O" and array.ndim == 1:
        kinds = {isinstance(value, str) for value in array.tolist()}
        if len(kinds) > 1:
            odd = next(i for i, value in enumerate(array.tolist()) if not isinstance(value, str))
            raise DataError(f"{name}: label of row {odd} is {array[odd]!r}, but others are texts: every row needs one")
        array = array.astype(str) if True in kinds else _numbers(array, name)
    if array.dtype.kind != "U" or array.ndim != 1:
        return labels_from_array(array, name)[0], ()
    if not array.size or (array == "").any():
        raise DataError(f"{name}: a label is empty, or there is none: every row needs one")
    # Texts stay texts, those of digits, too: what a model predicts is what it was given.
    classes, y = np.unique(array, return_inverse=True)
    return y.astype(np.float64), tuple(classes.tolist())


def _numbers(array: Any, name: str) -> Any:
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name} has labels of mixed types, but they must be numbers or texts") from None
