"""Parser of LIBSVM text (``label index:value ...``), in chunks, with whole-array operations.

A chunk that the fast parser does not understand is parsed again line by line.  That gives the same result, or an error
with the line and the reason.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eps.data.raw import Float64Array, Int64Array, RawData, csr_float32
from eps.errors import DataError

_CHUNK_BYTES = 8 << 20
#: Indices are parsed as float64, which is exact for whole numbers below this.
_INDEX_LIMIT = 2**53
_COMMENT = re.compile(rb"#[^\n]*")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one chunk: ``indices`` and ``values`` of all rows, concatenated, and ``counts`` per row."""

    labels: Float64Array
    counts: Int64Array
    indices: Int64Array
    values: Float64Array
    #: Line of each row in the file, counted from 1.
    lines: Int64Array


def parse_libsvm(
    content: bytes, name: str, *, features: int | None = None, index_base: Literal["auto", "0", "1"] = "auto"
) -> RawData:
    """Parse LIBSVM text.

    Parameters
    ----------
    content : bytes
        The unpacked file.
    name : str
        Name of the file, for messages.
    features : int or None
        Width of the result; None takes the largest index.
    index_base : "auto", "0" or "1"
        Number of the first feature; "auto" is 0 if index 0 occurs, else 1.

    Returns
    -------
    RawData
        ``X`` is CSR; explicit zeros stay.

    Raises
    ------
    DataError
        A line is malformed, its indices do not increase or are outside the width, or a number is not finite.  The
        message is ``file:line: text: what is wrong``.
    """
    parts = [_parse(chunk, first_line, name) for chunk, first_line in _chunks(content)]
    labels = np.concatenate([part.labels for part in parts]) if parts else np.empty(0)
    if not labels.size:
        raise DataError(f"{name}: empty file: data needs at least one row")
    counts = np.concatenate([part.counts for part in parts])
    indices = np.concatenate([part.indices for part in parts])
    values = np.concatenate([part.values for part in parts])
    lines = np.concatenate([part.lines for part in parts])

    base = int(index_base) if index_base != "auto" else (0 if indices.size and indices.min() == 0 else 1)
    columns = indices - base
    width = features if features is not None else max(1, int(columns.max(initial=0)) + 1)
    rule = ""
    bad = 0
    if columns.size and columns.min() < 0:
        bad = int(np.argmin(columns))
        rule = "indices of a 1-based file start at 1; set the index base to 0 if they start at 0"
    elif columns.size and columns.max() >= width:
        bad = int(np.argmax(columns >= width))
        rule = f"the largest index of {width} features is {width - 1 + base} (counting from {base})"
    indptr = np.concatenate(([0], np.cumsum(counts)))
    if rule:
        line = lines[int(np.searchsorted(indptr, bad, side="right")) - 1]
        raise DataError(f"{name}:{line}: {indices[bad]}:{values[bad]:g}: {rule}")

    with np.errstate(over="ignore"):
        values32 = values.astype(np.float32)
    if not np.isfinite(values32).all():
        bad = int(np.argmin(np.isfinite(values32)))
        line = lines[int(np.searchsorted(indptr, bad, side="right")) - 1]
        raise DataError(f"{name}:{line}: {indices[bad]}:{values[bad]:g}: values must fit in float32")
    index_type = np.int32 if max(width, columns.size) < 2**31 else np.int64
    X = csr_float32(values32, columns.astype(index_type), indptr.astype(index_type), (labels.size, width))
    return RawData(X=X, y=labels, format="libsvm", index_base=base)


def _chunks(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield chunks of whole lines, with the number of the first line."""
    start, line = 0, 1
    while start < len(content):
        stop = content.rfind(b"\n", start, start + _CHUNK_BYTES) + 1
        if stop == 0:
            stop = content.find(b"\n", start) + 1 or len(content)
        if len(content) - start <= _CHUNK_BYTES:
            stop = len(content)
        chunk = content[start:stop]
        yield chunk, line
        line += chunk.count(b"\n")
        start = stop


def _parse(chunk: bytes, first_line: int, name: str) -> _Rows:
    if b"#" in chunk:
        chunk = _COMMENT.sub(b"", chunk)
    rows = _parse_fast(chunk, first_line)
    return _parse_lines(chunk, first_line, name) if rows is None else rows


def _parse_fast(chunk: bytes, first_line: int) -> _Rows | None:
    """Return the rows, or None if anything is unusual."""
    raw = np.frombuffer(chunk, dtype=np.uint8)
    blank = raw <= ord(" ")
    starts = np.flatnonzero(~blank & np.concatenate(([True], blank[:-1])))
    colons = np.flatnonzero(raw == ord(":"))
    line_of_token = np.searchsorted(np.flatnonzero(raw == ord("\n")), starts)
    is_label = np.ones(starts.size, dtype=bool)
    is_label[1:] = line_of_token[1:] != line_of_token[:-1]

    colons_before = np.searchsorted(colons, starts)
    if (np.diff(colons_before, append=colons.size) != ~is_label).any():
        return None
    if colons.size and (colons[-1] == raw.size - 1 or blank[colons - 1].any() or blank[colons + 1].any()):
        return None
    numbers = _numbers(chunk.replace(b":", b" "))
    if numbers is None or numbers.size != starts.size + colons.size or not np.isfinite(numbers).all():
        return None

    at = np.arange(starts.size) + colons_before
    feature_at = at[~is_label]
    positions = numbers[feature_at]
    if (positions < 0).any() or (positions >= _INDEX_LIMIT).any():
        return None
    indices = positions.astype(np.int64)
    label_at = np.flatnonzero(is_label)
    counts = np.diff(label_at, append=starts.size) - 1
    increases = np.diff(indices, prepend=-1) > 0
    row_starts = (np.cumsum(counts) - counts)[counts > 0]
    increases[row_starts] = True
    if (indices != positions).any() or not increases.all():
        return None
    return _Rows(
        labels=numbers[at[label_at]],
        counts=counts,
        indices=indices,
        values=numbers[feature_at + 1],
        lines=line_of_token[label_at] + first_line,
    )


def _numbers(text: bytes) -> Float64Array | None:
    """Return all numbers of a text, or None if a token is not a number."""
    with warnings.catch_warnings():
        # NumPy reports an invalid token by a warning or, in later versions, ValueError.
        warnings.simplefilter("error")
        try:
            return np.fromstring(text, dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None


def _parse_lines(chunk: bytes, first_line: int, name: str) -> _Rows:
    """Parse line by line, with a message for every possible error."""
    labels: list[float] = []
    counts: list[int] = []
    indices: list[int] = []
    values: list[float] = []
    lines: list[int] = []
    for line, text in enumerate(chunk.split(b"\n"), first_line):
        tokens = text.split()
        if not tokens:
            continue
        labels.append(_number(tokens[0], tokens[0], "the label", name, line))
        previous = -1
        for token in tokens[1:]:
            index_text, colon, value_text = token.partition(b":")
            if not colon or not index_text or not value_text:
                raise _malformed(name, line, token, "must be index:value")
            position = _number(index_text, token, "the index", name, line)
            if position < 0 or position != int(position):
                raise _malformed(name, line, token, "the index must be a whole number that is not negative")
            if position >= _INDEX_LIMIT:
                raise _malformed(name, line, token, f"the index is too large: must be below {_INDEX_LIMIT}")
            if position <= previous:
                raise _malformed(name, line, token, f"indices must increase, but {previous} comes before")
            previous = int(position)
            indices.append(previous)
            values.append(_number(value_text, token, "the value", name, line))
        counts.append(len(tokens) - 1)
        lines.append(line)
    return _Rows(
        labels=np.array(labels, dtype=np.float64),
        counts=np.array(counts, dtype=np.int64),
        indices=np.array(indices, dtype=np.int64),
        values=np.array(values, dtype=np.float64),
        lines=np.array(lines, dtype=np.int64),
    )


def _number(text: bytes, token: bytes, what: str, name: str, line: int) -> float:
    if not (_NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text)):
        raise _malformed(name, line, token, f"{what} must be a number")
    number = float(text)
    if not math.isfinite(number):
        raise _malformed(name, line, token, f"{what} must be a finite number")
    return number


def _malformed(name: str, line: int, token: bytes, rule: str) -> DataError:
    shown = token[:60].decode("utf-8", errors="backslashreplace")
    return DataError(f"{name}:{line}: {shown}: {rule}")
