"""Which rows are for training, which for testing, and which belong to which split.  Pure; functions of the seed."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from eps.data.raw import Int64Array, Matrix
from eps.data.settings import DataSettings
from eps.errors import DataError
from eps.ml.arrays import distinct


class _Purpose(IntEnum):
    """Keys of the random streams; other packages of EPS use small numbers for theirs."""

    TEST_ROWS = 101
    FOLDS = 102
    ORDER = 103


def permutation(num_rows: int, seed: int, purpose: int) -> Int64Array:
    """Return row numbers in the order that ``seed`` and ``purpose`` give."""
    stream = np.random.Generator(np.random.Philox(key=np.array([seed, purpose], dtype=np.uint64)))
    return stream.permutation(num_rows).astype(np.int64)


def divide(num_rows: int, settings: DataSettings) -> tuple[Int64Array, Int64Array]:
    """Return the training rows and the test rows of one file, each in increasing order.

    Raises
    ------
    DataError
        A part would be empty.
    """
    if settings.folds is not None:
        if num_rows < settings.folds:
            raise DataError(f"{num_rows} rows cannot make {settings.folds} folds: each needs at least one")
        order = permutation(num_rows, settings.seed, _Purpose.FOLDS)
        start, stop = piece(num_rows, settings.folds, settings.fold)
        test = np.sort(order[start:stop])
    elif settings.test_fraction is not None:
        num_test = round(num_rows * settings.test_fraction)
        _check_parts(num_rows, num_test, settings.test)
        test = np.sort(permutation(num_rows, settings.seed, _Purpose.TEST_ROWS)[:num_test])
    elif settings.last_rows is not None:
        _check_parts(num_rows, settings.last_rows, settings.test)
        test = np.arange(num_rows - settings.last_rows, num_rows, dtype=np.int64)
    else:
        test = np.empty(0, dtype=np.int64)
    for_test = np.zeros(num_rows, dtype=bool)
    for_test[test] = True
    return np.flatnonzero(~for_test), test


def training_order(num_rows: int, seed: int) -> Int64Array:
    """Return the order of the training rows before they are cut, so that a sorted file gives mixed splits."""
    return permutation(num_rows, seed, _Purpose.ORDER)


def piece(num_rows: int, num_pieces: int, number: int) -> tuple[int, int]:
    """Return [start, stop) of a piece; sizes differ by at most one."""
    return number * num_rows // num_pieces, (number + 1) * num_rows // num_pieces


def local_features(num_features: int, *matrices: Matrix) -> Int64Array:
    """Return the sorted unique features that CSR matrices touch."""
    num_values = sum(matrix.nnz for matrix in matrices)
    if num_features <= 16 * num_values:
        touched = np.zeros(num_features, dtype=bool)
        for matrix in matrices:
            touched[matrix.indices] = True
        return np.flatnonzero(touched)
    return distinct(np.concatenate([matrix.indices for matrix in matrices]))


def _check_parts(num_rows: int, num_test: int, test: str | None) -> None:
    if not 0 < num_test < num_rows:
        raise DataError(
            f"test {test} of {num_rows} rows is {num_test} rows: both training and test need at least one row"
        )
