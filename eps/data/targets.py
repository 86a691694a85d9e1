"""Labels to what models learn from: numbers of classes, or values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.data.raw import Float64Array, Label, RawData
from eps.data.settings import Task
from eps.errors import DataError

_SHOWN_CLASSES = 8


def find_classes(raw: RawData, task: Task) -> tuple[Label, ...]:
    """Return the sorted classes of labelled data; none for regression.

    Whole numbers are ints, other numbers floats, names strings.

    Raises
    ------
    DataError
        A binary task whose labels are not exactly two, a multiclass task of one, or a regression of names.
    """
    _labels(raw)
    if task == "regression":
        if raw.classes is not None:
            raise DataError(f"labels are names ({_shown(raw.classes)}): regression needs numbers")
        return ()
    classes = find_labels(raw)
    if task == "binary" and len(classes) != 2:
        raise DataError(f"{len(classes)} classes ({_shown(classes)}): a binary task needs exactly 2")
    if len(classes) < 2:
        raise DataError(f"1 class ({_shown(classes)}): a multiclass task needs at least 2")
    return classes


def find_labels(raw: RawData) -> tuple[Label, ...]:
    """Return the sorted labels that occur: names, or numbers that are ints where they are whole."""
    if raw.classes is not None:
        return raw.classes
    return tuple(int(v) if v == int(v) else v for v in np.unique(_labels(raw)).tolist())


def encode(raw: RawData, task: Task, classes: Sequence[Label]) -> NDArray[Any]:
    """Return the targets of labelled data.

    Returns
    -------
    ndarray, shape (n,)
        float32 values for regression, else int32 positions in ``classes``.

    Raises
    ------
    DataError
        A label is not among ``classes``, or does not fit in float32.
    """
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
    number = {label: k for k, label in enumerate(classes)}
    names: list[Label] = [v if raw.classes is None else raw.classes[int(v)] for v in found.tolist()]
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
