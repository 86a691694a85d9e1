"""Loading data of all supported formats: files, raw text, and the small data sets of scikit-learn."""

from __future__ import annotations

import importlib.util
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import sparse

from eps.data.documents import (
    DOCWORD,
    LDAC,
    LDAC_ENDING,
    is_docword_name,
    parse_docword,
    parse_ldac,
    with_vocabulary,
)
from eps.data.files import bare_name, input_paths, read_input
from eps.data.libsvm import parse_libsvm
from eps.data.numpy_files import is_idx, load_idx, load_labels, load_npy, load_npz, looks_like_idx_name
from eps.data.ratings import RATINGS, parse_ratings, ratings_of_columns
from eps.data.raw import RawData, check_lengths, check_width, labels_from_strings, to_matrix
from eps.data.settings import FORMATS, INDEX_BASES
from eps.data.table import parse_table
from eps.errors import ConfigError, DataError
from eps.storage.locations import Location
from eps.system.nearest import one_of

#: Prefix of ``--data`` for a data set of scikit-learn.
SKLEARN_PREFIX = "sklearn:"
SKLEARN_NAMES = ("breast_cancer", "diabetes", "digits", "iris", "wine")
#: Hash buckets of raw text if the number of features is not given.
DEFAULT_BUCKETS = 1 << 18
_PAIR = re.compile(r"\d+:\S+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: Limits for format detection.  A row of LIBSVM may have no features, so one line is not enough.
_SNIFFED_LINES = 100
_SNIFFED_BYTES = 1 << 20


def load(
    path_or_name: str | Path,
    *,
    format: str = "auto",
    labels: str | Path | None = None,
    features: int | None = None,
    label_column: str = "auto",
    columns: Sequence[str] = (),
    delimiter: str = "auto",
    index_base: str = "auto",
    labels_optional: bool = False,
    names: Sequence[str] = (),
) -> RawData:
    """Load a data set.

    Parameters
    ----------
    path_or_name : str or Path
        A file (plain, gzip, bzip2, xz, or a tar archive of one file), files separated by commas (text, one class per
        file), or ``sklearn:NAME``.
    format : str
        "libsvm", "csv", "dense" (lines of numbers separated by blanks), "npz", "npy", "idx", "text" (hashed words),
        "ratings" (user, item, rating), "docword" and "ldac" (counts of words in documents), "sklearn", or "auto".
    labels : str, Path or None
        Label file, if the data holds features only.
    features : int or None
        Width (LIBSVM and sparse ``.npz``), required width (dense), or number of hash buckets (text).
    label_column, columns, delimiter
        Options of tables; see :func:`eps.data.table.parse_table`.  ``label_column`` "none": no labels.
    index_base : str
        Number of the first feature of a LIBSVM file: "auto", "0" or "1".
    labels_optional : bool
        Whether labels may be missing, as in data to predict.

    Returns
    -------
    RawData

    Raises
    ------
    DataError
        The file is missing, empty or malformed.
    ConfigError
        The format is unknown or cannot be detected, or does not support an option.
    """
    data = str(path_or_name)
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}, but must be {one_of(format, FORMATS)}")
    if index_base not in INDEX_BASES:
        raise ConfigError(f"index_base is {index_base!r}, but must be {one_of(index_base, INDEX_BASES)}")
    labels_path = None if labels is None else input_paths(str(labels), "labels")[0]
    if is_builtin(data) or format == "sklearn":
        if not is_builtin(data) or format not in ("auto", "sklearn"):
            raise ConfigError(f"data {data!r} does not fit format {format!r}: sklearn:NAME is format sklearn")
        _refuse(labels_path, "sklearn")
        raw = load_builtin(data)
        check_width(raw.num_features, features, data)
        return raw

    paths = input_paths(data)
    # Detection and reading share the unpacked file: unpacking is the slowest part of small jobs.
    read = cache(read_input)
    format = detect_format(paths, read) if format == "auto" else format
    if len(paths) > 1 and format != "text":
        raise ConfigError(
            f"data names {len(paths)} files, but format {format} supports one: only text supports several"
        )
    path = paths[0]
    if columns and format not in ("csv", "dense", RATINGS):
        raise ConfigError(f"columns are set ({', '.join(columns)}), but format {format} has no columns to choose from")
    if format == "npz":
        raw = load_npz(path, labels_path, features)
    elif format == "npy":
        raw = load_npy(path, labels_path, label_column, features, labels_optional=labels_optional)
    elif format == "idx":
        raw = load_idx(path, labels_path, features)
    elif format == "libsvm":
        _refuse(labels_path, format)
        raw = parse_libsvm(read(path), str(path), features=features, index_base=cast(Any, index_base))
    elif format == RATINGS and bare_name(path).endswith(_ENDINGS["npz"]):
        raw = load_npz(path, labels_path, None)
        raw = ratings_of_columns(raw, str(path), columns=columns, features=features, names=names)
    elif format == RATINGS:
        _refuse(labels_path, format)
        raw = parse_ratings(
            read(path),
            str(path),
            delimiter=delimiter,
            label_column=label_column,
            columns=columns,
            features=features,
            labels_optional=labels_optional,
            names=names,
        )
    elif format in (DOCWORD, LDAC):
        parse = parse_docword if format == DOCWORD else parse_ldac
        raw = with_vocabulary(parse(read(path), str(path), features=features), path, features)
        raw = raw if labels_path is None else _labelled(raw, labels_path, str(path))
    elif format == "text":
        _refuse(labels_path, format)
        contents = [(str(each), read(each)) for each in paths]
        labelled = _text_has_labels(contents, label_column, labels_optional)
        raw = parse_text(contents, features=features, labelled=labelled)
    else:
        raw = parse_table(
            read(path),
            str(path),
            delimiter="blank" if format == "dense" and delimiter == "auto" else delimiter,
            label_column=label_column,
            columns=columns,
            features=features,
            has_labels=labels_path is None,
            labels_optional=labels_optional,
            names=names,
        )
        raw = raw if labels_path is None else _labelled(raw, labels_path, str(path))
    if raw.y is None and not labels_optional:
        raise DataError(f"{path}: no labels, but training needs them: set a label file or a label column")
    return raw


def _labelled(raw: RawData, labels_path: Location, name: str) -> RawData:
    y, classes = load_labels(labels_path)
    check_lengths(raw.num_rows, y.size, name, str(labels_path))
    return replace(raw, y=y, classes=classes)


def detect_format(paths: Sequence[Location], read: Callable[[Location], bytes] = read_input) -> str:
    """Return the format of files by their names and first lines.

    Raises
    ------
    ConfigError
        The format cannot be detected.
    """
    if len(paths) > 1:
        return "text"
    path = paths[0]
    name = bare_name(path)
    for format, endings in _ENDINGS.items():
        if name.endswith(endings):
            return format
    if looks_like_idx_name(path):
        return "idx"
    if is_docword_name(path):
        return DOCWORD
    content = read(path)
    if is_idx(content):
        return "idx"
    head = content[:_SNIFFED_BYTES].decode("utf-8", errors="replace")
    lines = [line for line in head.split("\n")[:_SNIFFED_LINES] if line.strip()]
    found = _detect_lines(lines) if lines else None
    if found is None:
        first = lines[0].strip()[:60] if lines else ""
        raise ConfigError(
            f"{path}: the format cannot be detected from {first!r}: set it to one of {', '.join(FORMATS[1:])}"
        )
    return found


_ENDINGS = {
    "npz": (".npz",),
    "npy": (".npy",),
    "csv": (".csv", ".tsv"),
    "libsvm": (".libsvm", ".svm", ".svmlight"),
    "idx": (".idx",),
    LDAC: (LDAC_ENDING,),
}


def _detect_lines(lines: list[str]) -> str | None:
    tokens = [line.split() for line in lines]
    if any(len(row) > 1 and _PAIR.fullmatch(row[1]) and _NUMBER.fullmatch(row[0]) for row in tokens):
        return "libsvm"
    if all(_NUMBER.fullmatch(token) for row in tokens for token in row) and len(tokens[0]) > 1:
        return "dense"
    for delimiter in ",;\t":
        counts = {line.count(delimiter) for line in lines[:10]}
        if min(counts) >= 1 and len(counts) == 1 and _has_numbers(lines, delimiter):
            return "csv"
    if all("\t" in line and " " not in line.partition("\t")[0] for line in lines):
        return "text"
    if all("," in line for line in lines) and _has_numbers(lines, ","):
        return "csv"
    return None


def _has_numbers(lines: list[str], delimiter: str) -> bool:
    return any(_NUMBER.fullmatch(cell.strip().strip('"')) for line in lines[1:10] for cell in line.split(delimiter))


def _text_has_labels(contents: list[tuple[str, bytes]], label_column: str, optional: bool) -> bool:
    if label_column == "none":
        return False
    if not optional or len(contents) > 1:
        return True
    return all(b"\t" in line for line in contents[0][1].split(b"\n") if line.strip())


def _refuse(labels: Location | None, format: str) -> None:
    if labels is not None:
        raise ConfigError(f"labels are in {labels}, but format {format} holds its own labels")


def parse_text(contents: Sequence[tuple[str, bytes]], *, features: int | None = None, labelled: bool = True) -> RawData:
    """Read lines of text as counts of words and of pairs of neighbouring words.

    Words are separated by blanks and converted to lower case.  Each word or pair is counted in bucket CRC-32 modulo
    ``features``, which is the same in every process and version; colliding ones add up.  Weights (tf-idf, presence) are
    left to the normaliser, since they may use the training part only.

    Parameters
    ----------
    contents : sequence of (str, bytes)
        Names and unpacked files.  One file: ``label TAB text`` in each line.  Several: text only, and the label is the
        index of the file.
    features : int or None
        Hash buckets; default: :data:`DEFAULT_BUCKETS`.
    labelled : bool
        False for one file without labels.

    Returns
    -------
    RawData
        ``X`` is CSR.

    Raises
    ------
    DataError
        A line lacks its label, or there are no lines.
    """
    num_buckets = DEFAULT_BUCKETS if features is None else features
    if not 1 <= num_buckets < 2**31:
        raise ConfigError(f"features is {num_buckets}, but text is hashed to 1 .. 2^31 - 1 buckets")
    split_label = labelled and len(contents) == 1
    labels: list[str] = []
    buckets: list[int] = []
    ends = [0]
    for number, (name, content) in enumerate(contents):
        for line, raw_line in enumerate(content.split(b"\n"), 1):
            if not raw_line.strip():
                continue
            text = raw_line.decode("utf-8", errors="replace")
            if split_label:
                label, tab, text = text.partition("\t")
                if not tab or not label.strip():
                    raise DataError(f"{name}:{line}: {text[:60] or label[:60]}: a line must be label TAB text")
                labels.append(label.strip())
            else:
                labels.append(str(number))
            words = text.lower().encode("utf-8").split()
            grams = words + [first + b" " + second for first, second in pairwise(words)]
            buckets.extend(zlib.crc32(gram) % num_buckets for gram in grams)
            ends.append(len(buckets))
    if not labels:
        raise DataError(f"{contents[0][0]}: empty file: data needs at least one row")
    index_type = np.int32 if len(buckets) < 2**31 else np.int64
    X = sparse.csr_matrix(
        (np.ones(len(buckets), np.float32), np.array(buckets, index_type), np.array(ends, index_type)),
        shape=(len(labels), num_buckets),
    )
    X.sum_duplicates()
    if not labelled:
        return RawData(X=X, y=None, format="text")
    y, classes = labels_from_strings(labels, contents[0][0])
    return RawData(X=X, y=y, classes=classes, format="text")


def is_builtin(data: str) -> bool:
    """Return whether ``data`` names a scikit-learn data set instead of a file."""
    return data.startswith(SKLEARN_PREFIX)


def check_builtin(data: str) -> str:
    """Return the name without its prefix.

    Raises
    ------
    ConfigError
        The name is unknown, or scikit-learn is not installed.
    """
    name = data.removeprefix(SKLEARN_PREFIX)
    if name not in SKLEARN_NAMES:
        raise ConfigError(f"data is {data!r}, but the scikit-learn data set must be {one_of(name, SKLEARN_NAMES)}")
    if importlib.util.find_spec("sklearn") is None:
        raise ConfigError(f"data is {data!r}, which needs scikit-learn: pip install '.[data]' in EPS's folder")
    return name


def builtin_version(data: str) -> str:
    """Return the version on which the content of a data set depends."""
    check_builtin(data)
    import sklearn

    return f"scikit-learn {sklearn.__version__}"


def load_builtin(data: str) -> RawData:
    """Load ``sklearn:NAME``.

    Raises
    ------
    ConfigError
        The name is unknown, or scikit-learn is not installed.
    """
    name = check_builtin(data)
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return RawData(X=to_matrix(X, data), y=np.asarray(y, dtype=np.float64), format="sklearn")
