"""Preparation of a data set: load, divide, normalise, cut into splits, cache; and new rows for a trained model.

The result depends only on the input files and :class:`~eps.data.settings.DataSettings`, never on the number of workers
or servers.  The seed determines which rows are for training, which for testing, and which belong to which split.

Source: EPS §2.2 (the training data is cut into splits that stay as they are while their holders change).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from eps.data.cache import DATASET_PREFIX, own_folder
from eps.data.dataset import (
    FORMAT_VERSION,
    INFO_NAME,
    NORMALIZER_NAME,
    TEST_NAME,
    DatasetInfo,
    is_complete,
    open_dataset,
    relocated,
    split_name,
)
from eps.data.documents import counts_of, vocabulary_beside
from eps.data.files import content_key, input_paths
from eps.data.formats import builtin_version, check_builtin, is_builtin, load
from eps.data.normalize import FITTED_KINDS, Normalizer, fit_normalizer
from eps.data.numpy_files import idx_labels_beside
from eps.data.ratings import RATINGS, by_user
from eps.data.raw import Int64Array, Label, Matrix, RawData, csr_float32, encode, find_classes, find_labels
from eps.data.settings import DataSettings
from eps.data.splitfile import SplitData, write_split
from eps.errors import ConfigError, DataError, StorageError
from eps.ml.arrays import distinct
from eps.storage.locations import Location

#: Options of how to read a file -> the formats that have them.
_OF_FORMATS = {
    "label_column": {"csv", "dense", "npy", "text", RATINGS},
    "delimiter": {"csv", "dense", RATINGS},
    "index_base": {"libsvm"},
}


def prepare(settings: DataSettings, cache_dir: Path) -> DatasetInfo:
    """Return a prepared data set of the cache; build it if it is missing or damaged.

    Data sets appear in the cache atomically, so any number of processes may prepare the same data at once.

    Parameters
    ----------
    settings : DataSettings
    cache_dir : Path
        Data sets of earlier jobs, one folder per key; created if missing.

    Raises
    ------
    DataError
        The data is missing or malformed, or has fewer training rows than splits.
    ConfigError
        The settings do not fit the data.
    StorageError
        The cache cannot be written.
    """
    key = dataset_key(settings)
    try:
        return _complete_dataset(cache_dir / key, key) or _publish(settings, key, cache_dir / key)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(error.errno, f"{error.filename}: data set cannot be written: {error.strerror}") from error


def check_inputs(settings: DataSettings) -> None:
    """Refuse missing input files, without reading them.

    Raises
    ------
    DataError
        An input does not exist or is not a file.
    ConfigError
        A scikit-learn data set is unknown, or scikit-learn is not installed.
    """
    for name, text in (
        ("data", settings.data), ("labels", settings.labels), ("test", settings.test_path),
        ("test_labels", settings.test_labels),
    ):  # fmt: skip
        if text is not None and is_builtin(text):
            check_builtin(text)
        elif text is not None:
            input_paths(text, name)


def dataset_key(settings: DataSettings) -> str:
    """Return the SHA-256 of the settings and of the content of the input files, in hex."""
    values = settings.to_dict()
    for name in ("data", "labels", "test", "test_labels"):
        text = getattr(settings, name)
        is_file = text is not None and (name != "test" or settings.test_path is not None)
        if is_file:
            values[name] = _content(text, name)
    return hashlib.sha256(json.dumps([FORMAT_VERSION, values], sort_keys=True).encode()).hexdigest()


def _content(text: str, name: str) -> list[list[str]]:
    if is_builtin(text):
        return [[text, builtin_version(text)]]
    paths = input_paths(text, name)
    beside = [each for path in paths for each in files_beside(path)]
    # The name counts too: its extension may determine the format.
    return [[path.name, content_key(path)] for path in [*paths, *beside]]


def files_beside(path: Location) -> list[Location]:
    """Return the files in the folder of an input file that are read with it, found by name."""
    return [found for find in (idx_labels_beside, vocabulary_beside) if (found := find(path)) is not None]


def _complete_dataset(directory: Path, key: str) -> DatasetInfo | None:
    try:
        info = open_dataset(directory)
    except StorageError:
        return None
    if info.key != key or not is_complete(info):
        return None
    # ``eps prune`` keeps what was taken lately.  A cache may be read-only.
    with contextlib.suppress(OSError):
        os.utime(directory)
    return info


def _publish(settings: DataSettings, key: str, target: Path) -> DatasetInfo:
    """Build in a temporary folder and rename it to ``target``; if another process was faster, use its result."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with own_folder(target.parent, DATASET_PREFIX) as temporary:
        folder = temporary / "made"
        folder.mkdir(mode=0o755)
        info = _build(settings, key, folder)
        for attempt in range(2):
            try:
                os.rename(folder, target)
                return relocated(info, target)
            except OSError:
                if not target.is_dir():
                    raise
            found = _complete_dataset(target, key)
            if found is not None:
                return found
            # A damaged one: by a rename, so that two processes cannot both delete it.
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, temporary / f"damaged-{attempt}")
        raise StorageError(f"{target}: cannot be replaced: another process keeps writing there")


def _build(settings: DataSettings, key: str, folder: Path) -> DatasetInfo:
    raw, train_rows, test_raw, test_rows = _load_parts(settings)
    _check_options(settings, {raw.format, test_raw.format})
    if settings.task == "topics":
        raw = test_raw = replace(raw, X=counts_of(raw.X, settings.data))
        # An empty document has nothing to draw.
        train_rows = train_rows[np.diff(raw.X.indptr)[train_rows] > 0]
    classes = find_classes(raw, settings.task)
    num_features = max(raw.num_features, test_raw.num_features)
    raw_X, test_raw_X = _widened(raw.X, num_features), _widened(test_raw.X, num_features)
    if train_rows.size < settings.num_splits:
        raise DataError(
            f"{settings.data}: {train_rows.size} training rows cannot make {settings.num_splits} splits: "
            "each needs at least one"
        )
    train_rows = train_rows[training_order(train_rows.size, settings.seed)]
    if raw.format == RATINGS:
        train_rows = train_rows[by_user(raw_X[train_rows])]
    # Statistics are computed in file order, independent of the training order.
    fitted_rows = np.sort(train_rows) if settings.normalize in FITTED_KINDS else train_rows[:0]
    normalizer = fit_normalizer(settings.normalize, raw_X[fitted_rows])
    X, y = normalizer.apply(raw_X[train_rows]), _targets(settings, raw, classes)[train_rows]
    test_X = normalizer.apply(test_raw_X[test_rows])
    test_y = _targets(settings, test_raw, classes)[test_rows]
    if (settings.centred or raw.format == RATINGS) and settings.task == "regression":
        normalizer = replace(normalizer, target_mean=float(np.mean(y, dtype=np.float64)))
        y, test_y = (np.asarray(each - normalizer.target_mean, dtype=np.float32) for each in (y, test_y))
    # The whole test set stays in the order of its file.
    order = by_user(test_X) if raw.format == RATINGS else slice(None)
    tested_X, tested_y = test_X[order], test_y[order]

    num_splits = settings.num_splits
    checksums, sizes, samples = [], [], []
    for split in range(num_splits):
        start, stop = piece(y.size, num_splits, split)
        test_start, test_stop = piece(test_y.size, num_splits, split)
        samples.append(int(X[start:stop].sum(dtype=np.float64)) if settings.task == "topics" else stop - start)
        part = _cut(X[start:stop], y[start:stop], tested_X[test_start:test_stop], tested_y[test_start:test_stop])
        path = folder / split_name(split)
        checksums.append(write_split(path, part))
        sizes.append(path.stat().st_size)
    write_split(folder / TEST_NAME, SplitData(X[:0], y[:0], num_features, None, test_X, test_y))
    _write_normalizer(folder / NORMALIZER_NAME, normalizer)
    info = DatasetInfo(
        directory=folder,
        settings=_settled(settings, raw),
        key=key,
        num_rows=int(y.size),
        num_features=num_features,
        classes=classes,
        is_sparse=bool(sparse.issparse(X)),
        split_rows=tuple(samples),
        split_test_rows=_piece_sizes(test_y.size, num_splits),
        split_checksums=tuple(checksums),
        split_size_bytes=tuple(sizes),
        feature_names=raw.feature_names,
        source=_describe(settings, raw, classes),
    )
    (folder / INFO_NAME).write_text(json.dumps(info.to_dict(), indent=1) + "\n", encoding="utf-8")
    return info


def _load_parts(settings: DataSettings) -> tuple[RawData, NDArray[Any], RawData, NDArray[Any]]:
    """Return training data and its rows, then test data and its rows; both may come from the same file."""
    raw = load_as(settings, settings.data, settings.labels, labels_optional=settings.task == "topics")
    if settings.test_path is None:
        train_rows, test_rows = divide(raw.num_rows, settings)
        return raw, train_rows, raw, test_rows
    settled = _settled(settings, raw)
    test = load_as(settled, settings.test_path, settings.test_labels, names=raw.feature_names or ())
    if sparse.issparse(raw.X) != sparse.issparse(test.X) or (
        not sparse.issparse(raw.X) and raw.num_features != test.num_features
    ):
        raise DataError(
            f"{settings.test_path}: {test.num_features} features, {test.format}: must match the training data, "
            f"{raw.num_features} features, {raw.format}"
        )
    return raw, np.arange(raw.num_rows), test, np.arange(test.num_rows)


def load_as(
    settings: DataSettings,
    path: str,
    labels: str | None,
    *,
    labels_optional: bool = False,
    names: Sequence[str] = (),
) -> RawData:
    """Load a file with the format options of ``settings``."""
    return load(
        path,
        format=settings.format,
        labels=labels,
        features=settings.features,
        label_column=settings.label_column,
        columns=settings.columns,
        delimiter=settings.delimiter,
        index_base=settings.index_base,
        labels_optional=labels_optional,
        names=names,
    )


def _check_options(settings: DataSettings, formats: Collection[str]) -> None:
    """Refuse options that no file of the data has.  Other files may have them, as those that a model predicts."""
    for name, known in _OF_FORMATS.items():
        value = getattr(settings, name)
        if value != "auto" and not known.intersection(formats):
            given = " and ".join(sorted(formats))
            raise ConfigError(f"{name} is {value!r}, but format {given} has no such option: leave it out")


def _widened(X: Matrix, num_features: int) -> Matrix:
    if not sparse.issparse(X) or X.shape[1] == num_features:
        return X
    return csr_float32(X.data, X.indices, X.indptr, (X.shape[0], num_features))


def _cut(X: Matrix, y: NDArray[Any], test_X: Matrix, test_y: NDArray[Any]) -> SplitData:
    num_features = X.shape[1]
    if not sparse.issparse(X):
        return SplitData(X, y, num_features, None, test_X, test_y)
    features = local_features(num_features, X, test_X)
    local_X, local_test_X = (_localised(matrix, features) for matrix in (X, test_X))
    return SplitData(local_X, y, num_features, features, local_test_X, test_y)


def _localised(X: Matrix, features: NDArray[np.int64]) -> Matrix:
    columns = np.searchsorted(features, X.indices).astype(X.indices.dtype)
    return csr_float32(X.data, columns, X.indptr, (X.shape[0], features.size))


def _targets(settings: DataSettings, raw: RawData, classes: tuple[Label, ...]) -> NDArray[Any]:
    targets = encode(raw, settings.task, classes)
    return targets / np.float32(settings.target_scale) if settings.task == "regression" else targets


def _settled(settings: DataSettings, raw: RawData) -> DataSettings:
    """Replace values by the detected ones where a file to predict might not reveal them."""
    base = settings.index_base if raw.index_base is None else str(raw.index_base)
    format = "text" if raw.format == "text" else settings.format
    # Beside chosen columns, the label is one of many others.
    label_column = (raw.label_name if settings.columns else "") or settings.label_column
    return replace(settings, index_base=base, format=format, label_column=label_column)


def _piece_sizes(num_rows: int, num_pieces: int) -> tuple[int, ...]:
    bounds = [piece(num_rows, num_pieces, number) for number in range(num_pieces)]
    return tuple(stop - start for start, stop in bounds)


def _write_normalizer(path: Path, normalizer: Normalizer) -> None:
    with path.open("wb") as stream:
        np.savez(stream, **normalizer.to_arrays())  # type: ignore[arg-type]


def _describe(settings: DataSettings, raw: RawData, classes: tuple[Label, ...]) -> str:
    names = settings.data if is_builtin(settings.data) else ", ".join(p.name for p in input_paths(settings.data))
    kinds = f", {len(classes)} classes" if classes else ""
    test = f", fold {settings.fold} of {settings.folds} for testing" if settings.folds else ""
    test = f", test {Path(settings.test).name}" if settings.test else test
    return f"{names} ({raw.format}): {raw.num_rows} rows x {raw.num_features} features{kinds}{test}"


# ---- division of the rows


class _Purpose(IntEnum):
    """Keys of the random streams; other packages of EPS use small numbers."""

    TEST_ROWS = 101
    FOLDS = 102
    ORDER = 103


def permutation(num_rows: int, seed: int, purpose: int) -> Int64Array:
    """Return row numbers in the order that ``seed`` and ``purpose`` determine."""
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
    """Return the order of the training rows before the cut, so that a sorted file gives mixed splits."""
    return permutation(num_rows, seed, _Purpose.ORDER)


def piece(num_rows: int, num_pieces: int, number: int) -> tuple[int, int]:
    """Return [start, stop) of a piece; sizes differ by at most one."""
    return number * num_rows // num_pieces, (number + 1) * num_rows // num_pieces


def local_features(num_features: int, *matrices: Matrix) -> Int64Array:
    """Return the sorted unique features that occur in CSR matrices."""
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


# ---- new rows


@dataclass(frozen=True, eq=False)
class PredictionData:
    """Rows to predict, with targets if the file has them."""

    #: Dense float32 or CSR float32, shape (n, num_features), as the file has them.
    X: Matrix
    #: As in training (int32 classes or float32 values), or None.
    y: NDArray[Any] | None


def load_for_prediction(
    path: str | Path,
    settings: DataSettings,
    num_features: int,
    classes: Sequence[Label] = (),
    *,
    labels: str | None = None,
    names: Sequence[str] = (),
) -> PredictionData:
    """Load rows for prediction with a trained model.

    Parameters
    ----------
    path : str or Path
        The new file.
    settings : DataSettings
        Settings of the training data (``DatasetInfo.settings``, with detected values).
    num_features : int
        Width of the model.
    classes : sequence
        Classes of the model; empty for regression.
    labels : str or None
        Label file of the new rows.
    names : sequence of str
        Names of the model's features; a table with a header gives these columns.

    Returns
    -------
    PredictionData
        ``y`` is None if the file has no labels, or one constant label that is not a class: LIBSVM requires a label, so
        people write 0.

    Raises
    ------
    DataError
        The file is missing or malformed, is wider than the model, or mixes known and unknown classes.
    """
    format = "auto" if settings.format == "sklearn" else settings.format
    settings = replace(settings, features=num_features, format=format)
    raw = load_as(settings, str(path), labels, labels_optional=True, names=names)
    if raw.num_features != num_features:
        raise DataError(f"{path}: {raw.num_features} features: must be {num_features}, as in the model")
    if raw.y is None:
        return PredictionData(raw.X, None)
    if settings.task != "regression":
        found = find_labels(raw)
        if len(found) == 1 and str(found[0]) not in map(str, classes):
            return PredictionData(raw.X, None)
    return PredictionData(raw.X, encode(raw, settings.task, classes))
