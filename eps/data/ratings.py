"""Ratings of items by users, as text (``user item rating``, CSV, MovieLens files) or as columns of an array.

A rating becomes a sparse row with two ones: the columns of its user and of its item.  Users come first, each group in
the order of its ids.  The names of the columns are ``user:ID`` and ``item:ID``, by which a model finds them again in
other files.  A user or item without a column leaves its place in the row empty.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.data.raw import Float64Array, Int64Array, Matrix, RawData, check_width, csr_float32
from eps.data.table import LABEL_NAMES, column_number, delimiter_of, filled_lines, is_number, rows_of
from eps.errors import DataError

#: Name of the format.
RATINGS = "ratings"
USER, ITEM = "user:", "item:"
#: Titles of columns, in lower case and without blanks, underscores and a final "id".
_TITLES = (("user", "u"), ("item", "movie", "i"), ("rating", "score", "stars", *LABEL_NAMES))
#: Between the cells of MovieLens's ``.dat`` files.
_COLONS = "::"
#: Ids in arrays of features are float32, which has all whole numbers up to this.
_MOST_ID = 1 << 24
_SHOWN_CHARACTERS = 60
#: Longest id that counts as a number, in digits.
_MOST_DIGITS = 18


def parse_ratings(
    content: bytes,
    name: str,
    *,
    delimiter: str = "auto",
    label_column: str = "auto",
    columns: Sequence[str] = (),
    features: int | None = None,
    labels_optional: bool = False,
    names: Sequence[str] = (),
) -> RawData:
    """Parse lines of user, item and rating; further cells, such as a time, are ignored.

    Ids are any text; those of digits are numbers, so that 7 and 007 are the same.  A first line without a number is a
    header: it gives the columns by names such as userId, movieId and rating.  Otherwise they are the first three.

    Parameters
    ----------
    content : bytes
        The unpacked file.
    name : str
        Name of the file, for messages.
    delimiter : str
        One character, "::", "blank", or "auto": "::" or the most frequent of ``, ; tab |`` in the first line, if there
        is any, else blanks.
    label_column : str
        Name or number of the column of the ratings.
    columns : sequence of str
        Names or numbers of the columns of users and items.
    features : int or None
        Required number of users and items together.
    labels_optional : bool
        Accept lines of user and item only (data to predict).
    names : sequence of str
        Names of a model's columns; the rows then have these.

    Raises
    ------
    DataError
        A cell is missing, or a rating is not a finite number.
    ConfigError
        A requested column does not exist.
    """
    text = content.decode("utf-8-sig", errors="replace")
    if delimiter == _COLONS or (delimiter == "auto" and _COLONS in text[: text.find("\n")]):
        text, delimiter = text.replace(_COLONS, "\t"), "\t"
    delimiter = delimiter_of(text, delimiter)
    first = next((cells for _, cells in rows_of(text, delimiter, name)), None)
    if first is None:
        raise DataError(f"{name}: empty file: data needs at least one row")
    titles = [cell.strip() for cell in first]
    has_header = not any(is_number(cell) for cell in first) and (len(first) > 2 or _place(titles, 0) is not None)
    header = titles if has_header else None
    chosen = _chosen(header, len(first), columns, label_column, name, labels_optional)
    found = _fast(text, delimiter, chosen, has_header) or _slow(text, delimiter, chosen, has_header, len(first), name)
    users, items, y = found
    return _as_rows(users, items, y, names, features, name)


def ratings_of_columns(
    raw: RawData, name: str, *, columns: Sequence[str] = (), features: int | None = None, names: Sequence[str] = ()
) -> RawData:
    """Return ratings whose users and items are columns of an array, and whose ratings are its labels.

    Raises
    ------
    DataError
        The array is sparse, or an id is not a whole number that float32 can hold.
    ConfigError
        A requested column does not exist.
    """
    header = None if raw.feature_names is None else list(raw.feature_names)
    user, item, _ = _chosen(header, raw.num_features, columns, "none", name, True)
    ids = []
    for column in (user, item):
        if not isinstance(raw.X, np.ndarray):
            raise DataError(f"{name}: a sparse matrix, but ratings need a column of users and one of items")
        values = raw.X[:, column]
        bad = np.flatnonzero((values != np.rint(values)) | (np.abs(values) >= _MOST_ID))
        if bad.size:
            raise DataError(
                f"{name}: row {bad[0]}, column {column} is {values[bad[0]]}: an id must be a whole number below "
                f"{_MOST_ID}; number users and items from 0, or write them to a file"
            )
        ids.append(values.astype(np.int64))
    return _as_rows(ids[0], ids[1], raw.y, names, features, name)


def rows_of_pairs(pairs: Any, names: Sequence[str]) -> Matrix:
    """Return the rows of a model with these column names for pairs of user and item, shape (n, 2), or a frame.

    Raises
    ------
    DataError
        The pairs have another shape.
    """
    if hasattr(pairs, "columns"):
        header = [str(column) for column in pairs.columns]
        user, item, _ = _chosen(header, len(header), (), "none", "X", True)
        users, items = (np.asarray(pairs[pairs.columns[column]]) for column in (user, item))
    else:
        table = np.asarray(pairs)
        if table.ndim != 2 or table.shape[1] != 2:
            raise DataError(f"X has shape {table.shape}, but the model predicts for pairs of user and item: (n, 2)")
        users, items = table[:, 0], table[:, 1]
    return _as_rows(_plain_ids(users), _plain_ids(items), None, names, None, "X").X


def by_user(X: Matrix) -> Int64Array:
    """Return the order of rows by user, and as given for each user.

    So a split has all ratings of few users, and its worker needs the parameters of only those.
    """
    starts, counts = X.indptr[:-1], np.diff(X.indptr)
    users = np.full(X.shape[0], X.shape[1], np.int64)
    users[counts > 0] = X.indices[starts[counts > 0]]
    return np.argsort(users, kind="stable")


def _place(titles: Sequence[str], what: int) -> int | None:
    plain = [title.lower().replace(" ", "").replace("_", "") for title in titles]
    known = {*_TITLES[what], *(f"{title}id" for title in _TITLES[what])}
    return next((column for column, title in enumerate(plain) if title in known), None)


def _chosen(
    header: list[str] | None, width: int, columns: Sequence[str], label_column: str, name: str, optional: bool
) -> tuple[int, int, int]:
    """Return the columns of user, item and rating; -1 if there are no ratings."""
    if columns and len(columns) != 2:
        raise DataError(f"{name}: columns are {', '.join(columns)}, but must be two: of users and of items")
    if width < (2 if optional else 3):
        raise DataError(f"{name}: {width} columns: must be at least user, item and rating; set the delimiter")
    user, item, rating = (None if header is None else _place(header, what) for what in range(3))
    if user is None or item is None or user == item:
        user, item = 0, 1
    if columns:
        user, item = (column_number(column, header, width, "column", name) for column in columns)
    if label_column in ("first", "last"):
        rating = 0 if label_column == "first" else width - 1
    elif label_column == "none":
        rating = -1
    elif label_column != "auto" and (not optional or header is None or label_column in header):
        rating = column_number(label_column, header, width, "label column", name)
    elif rating is None:
        rating = next((column for column in range(width) if column not in (user, item)), -1) if header is None else -1
    if rating == -1 and not optional:
        raise DataError(f"{name}: no column of ratings among {', '.join(header or ())}: set the label column")
    if len({user, item, rating}) < 3:
        raise DataError(f"{name}: columns {user}, {item} and {rating} are to be user, item and rating: must differ")
    return user, item, rating


def _fast(
    text: str, delimiter: str, chosen: tuple[int, int, int], has_header: bool
) -> tuple[Int64Array, Int64Array, Float64Array | None] | None:
    """Return the columns if all ids are whole numbers and all lines are well-formed, else None."""
    kinds: list[tuple[str, Any]] = [("user", np.int64), ("item", np.int64), ("rating", np.float64)]
    used = [(kind, column) for kind, column in zip(kinds, chosen, strict=True) if column >= 0]
    lines = filled_lines(text, delimiter)
    if has_header:
        next(lines)
    try:
        with warnings.catch_warnings():
            # NumPy would read 1.5 as the id 1, with a warning.
            warnings.simplefilter("error")
            table = np.loadtxt(
                lines,
                dtype=[kind for kind, _ in used],
                delimiter=None if delimiter == " " else delimiter,
                usecols=[column for _, column in used],
                comments=None,
                quotechar='"' if delimiter != " " else None,
                ndmin=1,
            )
    except (ValueError, Warning):
        return None
    ratings = table["rating"] if chosen[2] >= 0 else None
    if not table.size or (ratings is not None and not np.isfinite(ratings).all()):
        return None
    return table["user"], table["item"], ratings


def _slow(
    text: str, delimiter: str, chosen: tuple[int, int, int], has_header: bool, width: int, name: str
) -> tuple[NDArray[Any], NDArray[Any], Float64Array | None]:
    """Return the columns with ids as text; raise what is wrong with a line."""
    rows = rows_of(text, delimiter, name)
    if has_header:
        next(rows)
    users, items, ratings = [], [], []
    for line, cells in rows:
        complete = len(cells) > max(chosen)
        user, item, rating = (cells[c].strip() if c >= 0 else "0" for c in chosen) if complete else ("", "", "")
        if not (user and item and rating):
            problem = f"a user, an item or a rating is missing: the first line has {width} cells"
        elif not is_number(rating) or not math.isfinite(float(rating)):
            problem = f"rating {rating} must be a finite number: lines are user, item and rating"
        else:
            users.append(user)
            items.append(item)
            ratings.append(float(rating))
            continue
        raise DataError(f"{name}:{line}: {delimiter.join(cells)[:_SHOWN_CHARACTERS]}: {problem}")
    if not users:
        raise DataError(f"{name}: only a header: data needs at least one row")
    y = np.array(ratings) if chosen[2] >= 0 else None
    return np.array(users, dtype=object), np.array(items, dtype=object), y


def _plain_ids(values: NDArray[Any]) -> NDArray[Any]:
    """Return ids as whole numbers, or else as text."""
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    found = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values.tolist()]
    return np.array([str(value).strip() for value in found], dtype=object)


def _as_rows(
    users: NDArray[Any],
    items: NDArray[Any],
    y: Float64Array | None,
    names: Sequence[str],
    features: int | None,
    name: str,
) -> RawData:
    distinct = [_numbered(ids, prefix) for ids, prefix in ((users, USER), (items, ITEM))]
    if not names:
        names = [title for titles, _ in distinct for title in titles]
    check_width(len(names), features, name)
    place_of: Callable[[str], int] = {title: column for column, title in enumerate(names)}.get  # type: ignore[assignment]
    # Users have lower columns than items, so the indices of a row ascend.
    kind = np.int32 if 2 * len(users) < 2**31 else np.int64
    indices = np.empty((len(users), 2), kind)
    for side, (titles, numbers) in enumerate(distinct):
        places = [place_of(title) for title in titles]
        indices[:, side] = np.array([-1 if place is None else place for place in places], kind)[numbers]
    known = indices >= 0
    indptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(kind)
    flat = indices[known]
    X = csr_float32(np.ones(flat.size, np.float32), flat, indptr, (len(users), len(names)))
    return RawData(X=X, y=y, format=RATINGS, feature_names=tuple(names))


def _numbered(ids: NDArray[Any], prefix: str) -> tuple[list[str], NDArray[Any]]:
    """Return the names of the distinct ids, numbers first and by size, and for each row the position of its name."""
    if ids.dtype.kind == "i":
        distinct, numbers = np.unique(ids, return_inverse=True)
        return [f"{prefix}{value}" for value in distinct.tolist()], numbers
    plain = [str(int(value)) if _is_whole(value) else value for value in ids.tolist()]
    ordered = sorted(set(plain), key=lambda value: (0, int(value), "") if _is_whole(value) else (1, 0, value))
    number = {value: position for position, value in enumerate(ordered)}
    return [f"{prefix}{value}" for value in ordered], np.array([number[value] for value in plain], np.int64)


def _is_whole(value: str) -> bool:
    return value.isdecimal() and len(value) <= _MOST_DIGITS
