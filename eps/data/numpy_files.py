"""NumPy and SciPy files (``.npy``, ``.npz``), IDX arrays, and label files."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray
from scipy import sparse

from eps.data.files import bare_name, read_input
from eps.data.raw import (
    Float64Array,
    RawData,
    check_labels_finite,
    check_lengths,
    check_width,
    labels_from_strings,
    to_matrix,
)
from eps.errors import ConfigError, DataError
from eps.storage.locations import Location

#: Arrays of a ``.npz`` beside ``X`` and ``y``: the columns of ``X``; the classes of which ``y`` has the positions.
FEATURE_NAMES = "feature_names"
CLASS_NAMES = "class_names"
_NPY_MAGIC = b"\x93NUMPY"
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def is_idx(content: bytes) -> bool:
    """Return whether the bytes begin like an IDX array."""
    return len(content) > 4 and content[:2] == b"\0\0" and content[2] in _IDX_TYPES and 1 <= content[3] <= 8


def parse_npy(content: bytes, name: str) -> NDArray[Any]:
    """Return the array of a ``.npy`` file; pickled objects are refused."""
    try:
        array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{name}: not a NumPy array that can be read without pickle: {error}") from error
    return array


def parse_idx(content: bytes, name: str) -> NDArray[Any]:
    """Return the array of an IDX file (the format of MNIST).

    Raises
    ------
    DataError
        The header is invalid, or the size differs from the announced one.
    """
    if not is_idx(content):
        raise DataError(f"{name}: first bytes {content[:4].hex()}: an IDX file starts with 0000, type, dimensions")
    dtype, num_axes = np.dtype(_IDX_TYPES[content[2]]), content[3]
    start = 4 + 4 * num_axes
    if len(content) < start:
        raise DataError(f"{name}: {len(content)} bytes: an IDX header of {num_axes} axes has {start}")
    shape = struct.unpack(f">{num_axes}I", content[4:start])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise DataError(f"{name}: {len(content)} bytes: shape {shape} of {dtype.name} needs {expected}")
    return np.frombuffer(content, dtype=dtype, offset=start).reshape(shape)


def idx_labels_beside(images: Location) -> Location | None:
    """Return the existing label file beside ``...images-idx3-ubyte``, if any."""
    candidate: Location = images.with_name(images.name.replace("images-idx3", "labels-idx1"))
    return candidate if candidate != images and candidate.is_file() else None


def load_labels(path: Location) -> tuple[Float64Array, tuple[str, ...] | None]:
    """Read labels from ``.npy``, IDX, or text with one label per line.

    Returns
    -------
    y : ndarray, shape (n,), float64
        Labels, or indices of classes.
    classes : tuple of str or None
        Sorted class names, if labels are not numbers.

    Raises
    ------
    DataError
        Labels are not one-dimensional, or one is missing or not finite.
    """
    content = read_input(path)
    if content.startswith(_NPY_MAGIC):
        array = parse_npy(content, str(path))
    elif is_idx(content):
        array = parse_idx(content, str(path))
    else:
        lines = content.decode("utf-8-sig", errors="replace").split("\n")
        return labels_from_strings([line.strip() for line in lines if line.strip()], str(path))
    return labels_from_array(array, str(path))


def labels_from_array(array: NDArray[Any], name: str) -> tuple[Float64Array, tuple[str, ...] | None]:
    """Return labels in an array of numbers or strings, as :func:`load_labels` does."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name}: labels of shape {array.shape}: must be one number or name for each row")
    if array.dtype.kind in "US":
        texts = array.astype(str).tolist()
        return labels_from_strings(texts, name)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name}: labels of {array.dtype}: must be numbers or strings")
    y = array.astype(np.float64)
    check_labels_finite(y, name)
    return y, None


def write_npz(file: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as ``.npz``; the same arrays give the same bytes."""
    # Not numpy.savez: it takes the names as keyword arguments, so an array could not be called "file", and it writes
    # the time of day into the archive.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy_format.write_array(member, np.asarray(array), allow_pickle=False)


def load_npz(path: Location, labels: Location | None, features: int | None) -> RawData:
    """Read a SciPy sparse matrix, or a NumPy ``.npz`` of ``X``, with a label file or its array ``y``.

    Raises
    ------
    DataError
        The archive is damaged, of another kind, or does not match its labels.
    """
    content = read_input(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            names = sorted(archive.files)
            if "format" in names:
                values = sparse.load_npz(io.BytesIO(content))
            elif "X" in names:
                values = archive["X"]
            else:
                raise DataError(f"{path}: arrays {', '.join(names)}: must be a SciPy sparse matrix, or X and y")
            own_labels = archive["y"] if "y" in names else None
            class_names = tuple(archive[CLASS_NAMES].tolist()) if CLASS_NAMES in names else None
            feature_names = tuple(archive[FEATURE_NAMES].tolist()) if FEATURE_NAMES in names else None
    except DataError:
        raise
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not an archive of arrays that can be read without pickle: {error}") from error
    if sparse.issparse(values):
        values = _widened(values, features, path)
    X = to_matrix(values, str(path))
    check_width(X.shape[1], features, str(path))
    y, classes = None, None
    if labels is not None:
        y, classes = load_labels(labels)
    elif own_labels is not None:
        y, classes = labels_from_array(own_labels, f"{path}: y")
        classes = class_names or classes
    if y is not None:
        check_lengths(X.shape[0], y.size, str(path), str(labels or f"{path}: y"))
    return RawData(X=X, y=y, classes=classes, format="npz", feature_names=feature_names)


def _widened(values: Any, features: int | None, path: Location) -> Any:
    if features is None or values.shape[1] == features:
        return values
    if values.shape[1] > features:
        raise DataError(
            f"{path}: {values.shape[1]} feature columns: must be at most {features}, the setting of features"
        )
    matrix = sparse.csr_matrix(values)
    matrix.resize((matrix.shape[0], features))
    return matrix


def load_npy(
    path: Location, labels: Location | None, label_column: str, features: int | None, *, labels_optional: bool = False
) -> RawData:
    """Read a dense array; labels are in ``labels`` or in its first or last column.

    With ``labels_optional``, an array of just ``features`` columns has no labels.

    Raises
    ------
    DataError
        The file is not a two-dimensional array of finite numbers, or does not match its labels.
    ConfigError
        ``label_column`` is not valid for an array.
    """
    array = parse_npy(read_input(path), str(path))
    is_unlabelled = labels_optional and array.shape[1:] == (features,)
    if labels is not None or label_column == "none" or is_unlabelled:
        X = to_matrix(array, str(path))
        y, classes = (None, None) if labels is None else load_labels(labels)
    else:
        if array.ndim != 2 or array.shape[1] < 2:
            raise DataError(f"{path}: array of shape {array.shape}: needs rows of a label and features")
        choices = {"auto": array.shape[1] - 1, "last": array.shape[1] - 1, "first": 0}
        if label_column not in choices:
            raise ConfigError(f"label column is {label_column!r}, but of a .npy must be first, last or none")
        column = choices[label_column]
        y, classes = labels_from_array(array[:, column], str(path))
        X = to_matrix(np.delete(array, column, axis=1), str(path))
    check_width(X.shape[1], features, str(path))
    if y is not None:
        check_lengths(X.shape[0], y.size, str(path), str(labels or path))
    return RawData(X=X, y=y, classes=classes, format="npy")


def load_idx(path: Location, labels: Location | None, features: int | None) -> RawData:
    """Read IDX images; pixels of one byte are scaled to 0 .. 1.

    By default, labels come from the file beside ``...images-idx3-ubyte``.
    """
    array = parse_idx(read_input(path), str(path))
    rows = array.reshape(array.shape[0], -1) if array.ndim > 1 else array[:, None]
    scaled = rows.astype(np.float32) / np.float32(255) if array.dtype == np.uint8 else rows
    X = to_matrix(scaled, str(path))
    check_width(X.shape[1], features, str(path))
    labels = labels or idx_labels_beside(path)
    if labels is None:
        return RawData(X=X, y=None, format="idx")
    y, classes = load_labels(labels)
    check_lengths(X.shape[0], y.size, str(path), str(labels))
    return RawData(X=X, y=y, classes=classes, format="idx")


def looks_like_idx_name(path: Location) -> bool:
    """Return whether the name is typical of IDX files."""
    name = bare_name(path)
    return name.endswith(("-ubyte", ".idx")) and "idx" in name
