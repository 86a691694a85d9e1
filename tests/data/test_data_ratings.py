"""Ratings as files and arrays: the same rows in every format, and splits by user."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eps.data.arrays import array_files
from eps.data.cut import load_for_prediction, prepare
from eps.data.formats import load
from eps.data.ratings import parse_ratings, rows_of_pairs
from eps.data.raw import RawData
from eps.data.settings import DataSettings
from eps.data.splitfile import read_split
from eps.errors import ConfigError, DataError, EpsError

#: User, item, rating: what each of the files below says.
RATINGS = [("10", "5", 4.0), ("9", "120", 3.5), ("10", "120", 1.0)]
NAMES = ("user:9", "user:10", "item:5", "item:120")
FILES = {
    "u.data": "10\t5\t4\t881250949\n9\t120\t3.5\t891717742\n10\t120\t1\t878887116\n",
    "ratings.dat": "10::5::4::978300760\n9::120::3.5::978302109\n10::120::1::978301968\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n10,5,4.0,964982703\n9,120,3.5,964981247\n10,120,1.0,964982224\n",
    "moved.csv": "rating;item_id;time;User\n4.0;5;x;10\n3.5;120;;9\n1.0;120;y;10\n",
    "blanks": "10 5 4\n\n9   120  3.5\n10 120 1\n",
    "padded": "010 5 4\n9 120 3.5\n10 0120 1\n",
}


def read(folder: Path, text: str, name: str = "ratings", **options: Any) -> RawData:
    path = folder / name
    path.write_text(text)
    return load(path, format="ratings", **options)


def triples(raw: RawData) -> list[tuple[str, str, float]]:
    """Return users, items and ratings of rows that have both."""
    assert raw.y is not None and raw.feature_names is not None
    pairs = np.array(raw.feature_names)[raw.X.indices].reshape(-1, 2).tolist()
    return [(u.removeprefix("user:"), i.removeprefix("item:"), y) for (u, i), y in zip(pairs, raw.y, strict=True)]


@pytest.mark.parametrize("name", FILES)
def test_ratings_are_the_same_in_every_format(tmp_path: Path, name: str) -> None:
    raw = read(tmp_path, FILES[name], name)
    assert triples(raw) == RATINGS and raw.feature_names == NAMES and raw.format == "ratings"
    assert raw.X.shape == (3, 4) and raw.X.data.tolist() == [1.0] * 6 and raw.X.dtype == np.float32


def test_ids_may_be_any_text_and_columns_be_chosen(tmp_path: Path) -> None:
    raw = read(tmp_path, 'who,what,stars\nann,"It, 1990",5\n7,Up,2\nbob,Up,3\n', columns=["who", "what"])
    assert triples(raw) == [("ann", "It, 1990", 5.0), ("7", "Up", 2.0), ("bob", "Up", 3.0)]
    assert raw.feature_names == ("user:7", "user:ann", "user:bob", "item:It, 1990", "item:Up")
    assert triples(read(tmp_path, "ann Up 3\n")) == [("ann", "Up", 3.0)], "the first line is no header"
    swapped = read(tmp_path, FILES["blanks"], columns=["1", "0"])
    assert triples(swapped) == [(item, user, rating) for user, item, rating in RATINGS]
    assert triples(read(tmp_path, "1.5 7 2\n")) == [("1.5", "7", 2.0)], "an id is not rounded"


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("", {}, DataError, "empty file"),
        ("user item rating\n", {}, DataError, "only a header"),
        ("1 2 3\n1 2\n", {}, DataError, r"ratings:2: 1 2: .* is missing: the first line has 3 cells"),
        ("1,2,3\n1,,3\n", {}, DataError, r"ratings:2: 1,,3: a user, an item or a rating is missing"),
        ("1 2 3\n1 2 x\n", {}, DataError, "ratings:2: 1 2 x: rating x must be a finite number"),
        ("1 2 3\n1 2 nan\n", {}, DataError, "rating nan must be a finite number"),
        ("1 2\n", {}, DataError, "2 columns: must be at least user, item and rating"),
        ("user,item,when\n1,2,3\n", {}, DataError, "no column of ratings among user, item, when: set the label"),
        ("1 2 3\n", {"columns": ["0"]}, DataError, "columns are 0, but must be two: of users and of items"),
        ("1 2 3\n", {"columns": ["0", "2"], "label_column": "2"}, DataError, "columns 0, 2 and 2 are .*: must differ"),
        ("1 2 3\n", {"columns": ["0", "9"]}, ConfigError, "column 9 does not exist"),
        ("1 2 3\n", {"features": 5}, DataError, "2 feature columns: must be 5"),
        ("1 2 3\n", {"labels": __file__}, ConfigError, "format ratings holds its own labels"),
    ],
)
def test_lines_that_are_no_ratings_are_refused(
    tmp_path: Path, text: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(tmp_path, text, **options)


def test_users_and_items_of_another_file_are_found_by_their_ids(tmp_path: Path) -> None:
    test = read(tmp_path, "9 5 3\n10 7 2\n8 120 1\n8 7 4\n", names=NAMES)
    assert test.X.toarray().tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    pairs = read(tmp_path, "9 5\n10 7\n", names=NAMES, labels_optional=True)
    assert pairs.y is None and pairs.X.toarray().tolist() == test.X[:2].toarray().tolist()
    titled = read(tmp_path, "item,user\n5,9\n", names=NAMES, labels_optional=True)
    assert titled.X.toarray().tolist() == [[1, 0, 1, 0]]


def test_pairs_to_predict_are_arrays_lists_and_frames() -> None:
    expected = [[1, 0, 1, 0], [0, 1, 0, 0]]
    for pairs in (np.array([[9, 5], [10, 7]]), [("9", "5"), ("10", "x")], np.array([[9.0, 5.0], [10.0, 0.5]])):
        assert rows_of_pairs(pairs, NAMES).toarray().tolist() == expected
    with pytest.raises(DataError, match=r"X has shape \(2,\), but the model predicts for pairs"):
        rows_of_pairs([9, 5], NAMES)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"movieId": [5, 7], "when": [0, 0], "userId": [9, 10]})
    assert rows_of_pairs(frame, NAMES).toarray().tolist() == expected


def test_arrays_of_whole_numbers_are_ratings(tmp_path: Path) -> None:
    ids, y = np.array([[10, 5], [9, 120], [10, 120]]), [rating for _, _, rating in RATINGS]
    with array_files({"data": ids, "labels": y}, lambda: tmp_path) as values:
        assert triples(load(values["data"], format="ratings")) == RATINGS
    for bad in (0.5, 2.0**24):
        with (
            array_files({"data": np.add(ids, [[0, 0], [0, bad], [0, 0]]), "labels": y}, lambda: tmp_path) as values,
            pytest.raises(DataError, match=r"row 1, column 1 is .*: an id must be a whole number below 16777216"),
        ):
            load(values["data"], format="ratings")


def drawn(folder: Path, num_users: int = 12) -> DataSettings:
    rng = np.random.default_rng(0)
    path = folder / "drawn"
    path.write_text("".join(f"{rng.integers(num_users)} {rng.integers(9)} {rng.integers(1, 6)}\n" for _ in range(240)))
    return DataSettings(data=str(path), task="regression", num_splits=6, test="0.25", format="ratings")


def test_a_split_has_the_ratings_of_few_users_and_targets_are_centred(tmp_path: Path) -> None:
    settings = drawn(tmp_path)
    info = prepare(settings, tmp_path / "out")
    raw = load(settings.data, format="ratings")
    assert raw.y is not None and info.feature_names == raw.feature_names
    splits = [read_split(info.split_path(split)) for split in range(6)]
    users = [{int(f) for f in split.features[split.X.indices[::2]]} for split in splits if split.features is not None]
    # Of twelve users, six splits cut at most five, so they are seen at most five times more.
    assert sum(map(len, users)) <= 12 + 5 and all(max(a) <= min(b) for a, b in pairwise(users))
    mean = info.load_normalizer().target_mean
    y = np.concatenate([split.y for split in splits]).astype(np.float64)
    assert abs(y.mean()) < 1e-7
    _, test_y = info.load_test()
    assert sum(split.test_y.size for split in splits) == len(test_y) == 60
    assert sorted(np.concatenate([split.test_y for split in splits])) == sorted(test_y)
    assert sorted((np.concatenate([y, test_y]) + mean).round(5)) == sorted(raw.y), "nothing is lost"
    new = load_for_prediction(settings.data, info.settings, info.num_features, names=info.feature_names or ())
    assert (new.X != raw.X).nnz == 0 and new.y is not None and new.y.tolist() == raw.y.tolist()
    with pytest.raises(ConfigError, match="normalize is 'l2', but ratings are not normalised"):
        replace(settings, normalize="l2")


def test_a_test_file_has_the_columns_of_the_training_data(tmp_path: Path) -> None:
    settings = drawn(tmp_path)
    other = tmp_path / "other"
    other.write_text("3 4 5\n99 4 1\n99 77 2\n")
    info = prepare(replace(settings, test=str(other)), tmp_path / "out")
    names = np.array(info.feature_names)
    test_X, test_y = info.load_test()
    assert [names[row.indices].tolist() for row in test_X] == [["user:3", "item:4"], ["item:4"], []]
    assert (test_y + info.load_normalizer().target_mean).round(5).tolist() == [5.0, 1.0, 2.0]


CELLS = st.text(st.sampled_from("01795.-+e,:;\t |\"'abnu \ufeff\x00"), max_size=5) | st.integers(-9, 99).map(str)
LINES = st.lists(st.lists(CELLS, max_size=4), max_size=5)


@given(LINES, st.sampled_from([",", "::", "\t", " ", ";"]), st.booleans())
def test_any_file_is_ratings_or_refused(lines: list[list[str]], delimiter: str, optional: bool) -> None:
    content = "\n".join(delimiter.join(cells) for cells in lines).encode()
    try:
        raw = parse_ratings(content, "some", labels_optional=optional)
    except EpsError as error:
        assert str(error)
    else:
        assert raw.X.shape == (raw.num_rows, len(raw.feature_names or ())) and raw.X.nnz == 2 * raw.num_rows > 0
        assert optional or (raw.y is not None and np.isfinite(raw.y).all())


@given(st.lists(st.tuples(st.integers(-5, 30), st.integers(0, 30), st.integers(0, 5)), min_size=1))
def test_ids_that_are_numbers_are_the_same_beside_ids_that_are_text(rows: list[tuple[int, int, int]]) -> None:
    lines = "".join(f"{user},{item},{rating}\n" for user, item, rating in rows)
    numbers, mixed = (parse_ratings(text.encode(), "some") for text in (lines, f"{lines}x,y,1\n"))
    assert triples(numbers) == triples(mixed)[:-1] and triples(mixed)[-1] == ("x", "y", 1.0)
