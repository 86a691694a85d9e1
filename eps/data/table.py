"""Tables of numbers as text: CSV (header, quotes), and lines of numbers separated by blanks."""

from __future__ import annotations

import csv
import io
import math
import string
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NoReturn

import numpy as np

from eps.data.raw import Float64Array, RawData, check_width, labels_from_strings, to_matrix
from eps.errors import ConfigError, DataError
from eps.system.nearest import did_you_mean

#: Names of the label column if ``label_column`` is "auto".
LABEL_NAMES = ("label", "class", "target", "y")
_DELIMITERS = ",;\t|"
#: Cells without a value, in lower case.
_MISSING = ("", "?", "-", "na", "n/a", "null", "none")
_FIRST_YEAR = 1000
_SHOWN_CHARACTERS = 60
#: Most names of columns in a message.
MOST_NAMES = 20


def parse_table(
    content: bytes,
    name: str,
    *,
    delimiter: str = "auto",
    label_column: str = "auto",
    columns: Sequence[str] = (),
    features: int | None = None,
    has_labels: bool = True,
    labels_optional: bool = False,
    names: Sequence[str] = (),
) -> RawData:
    """Parse a table of numbers.

    The first row is a header if it has no numbers.  Whole numbers may be names: it is one, too, if it has a name where
    the second row has a number, or if its numbers are 0, 1, 2 ... or years in a row.

    Parameters
    ----------
    content : bytes
        The unpacked file.
    name : str
        Name of the file, for messages.
    delimiter : str
        One character, "auto" (the most frequent of ``, ; tab |`` in the first line) or "blank".
    label_column : str
        "first", "last", "none", the name of a column, or its number from 0 (negative: from the end).  "auto" is the
        first column of lines separated by blanks.  In CSV it is a column named label, class, target or y, else the
        last.
    columns : sequence of str
        Names or numbers of the feature columns to keep, in this order; empty keeps all but the label.
    features : int or None
        Required number of feature columns.
    has_labels : bool
        False if labels come from another file.
    labels_optional : bool
        Accept a table without its label column (data to predict).
    names : sequence of str
        Names of the features of training.  If the table has a header, these columns are taken, in this order.  The
        label is the column named ``label_column``, and without ``columns`` also one named label, class, target or y, or
        a single other column.

    Raises
    ------
    DataError
        A used cell is missing or not a finite number, rows have different numbers of cells, or the number of columns is
        not ``features``.
    ConfigError
        A requested column does not exist.
    """
    text = content.decode("utf-8-sig", errors="replace")
    delimiter = delimiter_of(text, delimiter)
    rows = [[cell.strip() for cell in cells] for _, cells in islice(rows_of(text, delimiter, name), 2)]
    if not rows:
        raise DataError(f"{name}: empty file: data needs at least one row")
    header = rows[0] if _has_header(rows, names) else None
    width = len(rows[0])

    label: int | None = None
    # Columns of the same name differ only by their order.
    if header is not None and names and len(set(names)) == len(names):
        label = _label_beside(names, header, label_column, is_alone=not columns) if has_labels else None
        columns = _present(names, header, name)
    elif has_labels and not (labels_optional and width == features):
        label = _label_number(label_column, header, width, delimiter, name, labels_optional)
    kept = [column_number(column, header, width, "column", name) for column in columns]
    # A frame of pandas writes its index as a first column without a name.
    first = 1 if header is not None and not header[0] else 0
    kept = kept or [column for column in range(first, width) if column != label]
    if label in kept:
        raise ConfigError(f"{name}: column {label} is both the label and a feature: leave it out of the columns")
    if not kept:
        raise DataError(f"{name}: {width} column: rows need a label and at least one feature")
    if labels_optional and features not in (None, len(kept)):
        raise DataError(f"{name}: {width} columns, but the model takes {features} features, with or without the label")
    check_width(len(kept), features, name)

    label_texts = _check_rows(text, delimiter, width, label, header is not None, name)
    source = "as in the training data" if labels_optional else "see --label-column"
    hint = "" if label is None else f"; the label is {_title(label, header)} ({source})"
    table = _numbers(text, delimiter, kept, header, name, hint)
    y, classes = (None, None) if label is None else labels_from_strings(label_texts, name)
    return RawData(
        X=to_matrix(table, name),
        y=y,
        classes=classes,
        format="dense" if delimiter == " " else "csv",
        feature_names=None if header is None else tuple(header[column] for column in kept),
        label_name="" if header is None or label is None else header[label],
    )


def _has_header(rows: list[list[str]], names: Sequence[str]) -> bool:
    """Return whether the first of two rows has names of columns, some of which may be numbers."""
    first, second = rows[0], rows[-1]
    if not any(is_number(cell) for cell in first) or (names and set(names) <= set(first)):
        return True
    if len(set(first)) < len(first) or not all(cell.isdecimal() for cell in first if is_number(cell)):
        return False
    named = any(
        not is_number(cell) and cell.lower() not in _MISSING and is_number(below)
        for cell, below in zip(first, second, strict=False)
    )
    start = _first_of_run(first)
    return named or ((start == 0 or start >= _FIRST_YEAR) and _first_of_run(second) < 0)


def _first_of_run(cells: list[str]) -> int:
    """Return the first number of a row whose numbers count up by one, at least three; -1 for other rows."""
    numbers = [cell for cell in cells if is_number(cell)]
    if len(numbers) < 3 or not numbers[0].isdecimal():
        return -1
    start = int(numbers[0])
    return start if numbers == [str(start + number) for number in range(len(numbers))] else -1


def _present(names: Sequence[str], header: list[str], name: str) -> Sequence[str]:
    if missing := [each for each in names if each not in header]:
        raise DataError(
            f"{name}: no column {', '.join(missing)}: must have the columns of the training data: {', '.join(names)}"
        )
    return names


def _label_beside(names: Sequence[str], header: list[str], wanted: str, *, is_alone: bool) -> int | None:
    others = [column for column, title in enumerate(header) if title and title not in names]
    usual = LABEL_NAMES if is_alone or wanted == "auto" else ()
    named = [column for column in others if header[column] == wanted or header[column].lower() in usual]
    found = named or (others if is_alone else [])
    return found[0] if len(found) == 1 and wanted != "none" else None


def delimiter_of(text: str, wanted: str) -> str:
    if wanted == "blank":
        return " "
    if wanted != "auto":
        if len(wanted) != 1:
            raise ConfigError(f"delimiter is {wanted!r}, but must be one character, 'blank' or 'auto'")
        return wanted
    line = next((line for line in text.splitlines() if line.strip()), "")
    most = max(_DELIMITERS, key=line.count)
    return most if most in line else " "


def rows_of(text: str, delimiter: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of the non-blank rows.

    Raises
    ------
    DataError
        A cell is too long, as after a quote that is not closed.
    """
    if delimiter == " ":
        for line, row in enumerate(text.split("\n"), 1):
            if cells := row.split():
                yield line, cells
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{name}:{line}: {error}: close the quote of this row") from None


def filled_lines(text: str, delimiter: str) -> Iterator[str]:
    """Yield the lines of the non-blank rows, for NumPy."""
    nothing = string.whitespace + delimiter + '"'
    return (line for line in io.StringIO(text) if line.strip(nothing))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _label_number(
    wanted: str, header: list[str] | None, width: int, delimiter: str, name: str, optional: bool
) -> int | None:
    if wanted == "none":
        return None
    if wanted == "first":
        return 0
    if wanted == "last":
        return width - 1
    if wanted == "auto":
        for candidate in LABEL_NAMES:
            for column, title in enumerate(header or ()):
                if title.lower() == candidate:
                    return column
        return 0 if delimiter == " " else width - 1
    if optional and header is not None and wanted not in header:
        return None
    return column_number(wanted, header, width, "label column", name)


def column_number(wanted: str, header: list[str] | None, width: int, what: str, name: str) -> int:
    if header is not None and wanted in header:
        return header.index(wanted)
    try:
        number = int(wanted)
    except ValueError:
        more = f" and {len(header) - MOST_NAMES} more" if header and len(header) > MOST_NAMES else ""
        known = ", ".join(header[:MOST_NAMES]) + more if header else "none: the file has no header"
        near = did_you_mean(wanted, header or ())
        raise ConfigError(f"{name}: {what} {wanted!r} is not a column: names are {known}{near}") from None
    if not -width <= number < width:
        raise ConfigError(f"{name}: {what} {number} does not exist: must be in {-width} .. {width - 1}")
    return number % width


def _check_rows(text: str, delimiter: str, width: int, label: int | None, has_header: bool, name: str) -> list[str]:
    """Refuse rows with another width than the first; return the texts of the label column."""
    rows = rows_of(text, delimiter, name)
    if has_header:
        next(rows)
    labels = []
    num_rows = 0
    for line, cells in rows:
        num_rows += 1
        if len(cells) != width:
            shown = delimiter.join(cells)[:_SHOWN_CHARACTERS]
            raise DataError(f"{name}:{line}: {shown}: {len(cells)} cells, but must be {width} as in the first row")
        if label is not None:
            labels.append(cells[label].strip())
            if not labels[-1]:
                raise DataError(f"{name}:{line}: column {label} is empty: every row needs a label")
    if not num_rows:
        raise DataError(f"{name}: only a header: data needs at least one row")
    return labels


def _title(column: int, header: list[str] | None) -> str:
    return f"column {column if header is None else header[column]}"


def _numbers(
    text: str, delimiter: str, kept: list[int], header: list[str] | None, name: str, hint: str
) -> Float64Array:
    try:
        lines = filled_lines(text, delimiter)
        if header is not None:
            next(lines)
        table = np.loadtxt(
            lines,
            dtype=np.float64,
            delimiter=None if delimiter == " " else delimiter,
            usecols=kept,
            comments=None,
            quotechar='"' if delimiter != " " else None,
            ndmin=2,
        )
    except ValueError:
        _raise_bad_cell(text, delimiter, kept, header, name, hint)
    if not np.isfinite(table).all():
        _raise_bad_cell(text, delimiter, kept, header, name, hint)
    return table


def _raise_bad_cell(
    text: str, delimiter: str, kept: list[int], header: list[str] | None, name: str, hint: str
) -> NoReturn:
    rows = rows_of(text, delimiter, name)
    if header is not None:
        next(rows)
    for line, cells in rows:
        for column in kept:
            cell = cells[column].strip()
            title = _title(column, header)
            if not cell:
                raise DataError(f"{name}:{line}: {title} is missing: choose columns without missing values")
            if not is_number(cell):
                shown = cell[:_SHOWN_CHARACTERS]
                raise DataError(f"{name}:{line}: {shown}: {title} must be a number: choose numeric columns{hint}")
            if not math.isfinite(float(cell)):
                raise DataError(f"{name}:{line}: {cell}: {title} must be a finite number")
    raise DataError(f"{name}: not a table of numbers divided by {delimiter!r}")
