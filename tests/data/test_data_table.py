"""CSV and lines of numbers: columns, labels, and what is refused."""

from __future__ import annotations

import pytest

from eps.data.table import parse_table
from eps.errors import ConfigError, DataError

HOUSES = b'rooms,"sea, view",price\n3,no,10.5\n4,yes,12\n'


def test_a_header_quotes_and_chosen_columns_are_understood() -> None:
    raw = parse_table(HOUSES, "f", label_column="price", columns=("rooms",))

    assert raw.X.tolist() == [[3], [4]]
    assert raw.y is not None and raw.y.tolist() == [10.5, 12]
    assert raw.feature_names == ("rooms",)


def test_the_label_is_the_named_else_the_last_column_of_csv_and_the_first_of_blank_divided_lines() -> None:
    named = parse_table(b"a,target,b\n1,2,3\n", "f")
    last = parse_table(b"1,2,3\n", "f")
    first = parse_table(b"1 2 3\n4 5 6\n", "f")

    assert [raw.y.tolist() for raw in (named, last, first) if raw.y is not None] == [[2], [3], [1, 4]]


def test_columns_are_numbered_from_zero_and_from_the_end() -> None:
    raw = parse_table(b"1;2;3;4\n5;6;7;8\n", "f", label_column="0", columns=("-1", "1"))

    assert raw.X.tolist() == [[4, 2], [8, 6]]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("a,b,label\nx,2,z\n", "b"),
        ("a,b,label\n,2,0\n", "b"),
        ("0,1,label\n0.5,0.3,7\n", "1"),
        ("0,1,2,3,label\n5.1,3.5,1.4,0.2,setosa\n", "1"),
        (",0,1,2,3\n0,5.1,3.5,1.4,0.2\n", "1"),
        ("0,1,2,3\n5.1,3.5,1.4,0\n", "1"),
        ("country,2019,2020,2021\nItaly,1,2.5,3\n", "2019"),
        ("5.1,3.5,1.4,0.2,setosa\n4.9,3.0,1.4,0.2,setosa\n", None),
        ("1,2,3,a\n5,4,6,b\n", None),
        ("0,1,2\n3,4,5\n", None),
        ("0,1,2,a\n", None),
        ("0,1,yes\n1,0,no\n", None),
        ("5,2,x1,5\n4,5,6,1\n", None),
        ("NA,2,?,0\n4,5,6,1\n", None),
        (",2,3,0\n4,5,6,1\n", None),
    ],
)
def test_a_header_may_have_numbers(content: str, names: str | None) -> None:
    raw = parse_table(content.encode(), "f", columns=("1",), label_column="last")

    assert raw.feature_names == (None if names is None else (names,))
    assert raw.num_rows == content.count("\n") - (names is not None)


def test_the_names_of_a_models_features_are_a_header() -> None:
    raw = parse_table(b"3,7\n1,2\n", "f", features=2, labels_optional=True, names=("7", "3"))

    assert raw.X.tolist() == [[2, 1]] and raw.y is None


def test_rows_without_any_value_are_skipped() -> None:
    raw = parse_table(b',,\n \na,b,y\n1,2,0\n"", ,\n3,4,1\n,,\n', "f")

    assert raw.feature_names == ("a", "b") and raw.X.tolist() == [[1, 2], [3, 4]]


def test_labels_that_are_names_become_sorted_classes() -> None:
    raw = parse_table(b"1.5,spam\n2,ham\n3,spam\n", "f")

    assert raw.classes == ("ham", "spam")
    assert raw.y is not None and raw.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HOUSES, "f:2: no: column sea, view must be a number: choose numeric columns"),
        (b"a,b,y\n1,,3\n", "f:2: column b is missing: choose columns without missing values"),
        (b"1,2,3\n1,nan,3\n", "f:2: nan: column 1 must be a finite number"),
        (b"1,2,3\n1,2\n", "f:2: 1,2: 2 cells, but must be 3"),
        (b"1,2,3\n1,2,\n", "f:2: column 2 is empty: every row needs a label"),
        (b"1,2,nan\n", "label 1 of 1 is nan: must be a finite number"),
        (b"a,b,y\n", "only a header"),
        (b'1,2,3\n4,"5,6\n', "f:2: 4,5,6\n: 2 cells, but must be 3"),
        (b'1,2,3\n4,"5,6\n7,8,9\n' + b"7,8,9\n" * 30_000, "f:2: field larger than .*: close the quote of this row"),
        (b"5\n6\n", "rows need a label and at least one feature"),
    ],
)
def test_what_cannot_be_used_is_named(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_table(content, "f")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "prise"}, r"names are rooms, sea, view, price; did you mean price\?"),
        ({"label_column": "cost"}, "label column 'cost' is not a column: names are rooms, sea, view, price"),
        ({"columns": ("7",)}, "column 7 does not exist: must be in -3 .. 2"),
        ({"columns": ("price",), "label_column": "price"}, "both the label and a feature"),
        ({"delimiter": "ab"}, "delimiter is 'ab'"),
    ],
)
def test_columns_that_do_not_exist_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_table(HOUSES, "f", **options)  # type: ignore[arg-type]


def test_another_number_of_features_than_asked_for_is_refused() -> None:
    with pytest.raises(DataError, match=r"2 .*: must be 5"):
        parse_table(b"1,2,3\n", "f", features=5)


def test_where_the_label_is_read_is_said_where_a_feature_is_no_number() -> None:
    with pytest.raises(DataError, match=r"column kind must be a number: .*; the label is column b \(see --label-col"):
        parse_table(b"kind,a,b\nno,1,2\n", "f")
    with pytest.raises(DataError, match=r"column 0 must be a number: .*; the label is column 2 \(as in the training"):
        parse_table(b"no,1,2\n", "f", features=2, labels_optional=True)
    with pytest.raises(DataError, match="f: 2 columns, but the model takes 4 features, with or without the label"):
        parse_table(b"1,2\n", "f", features=4, labels_optional=True)


@pytest.mark.parametrize("label_column", ["auto", "first", "last", "0"])
def test_rows_to_predict_may_lack_the_label_column(label_column: str) -> None:
    unnamed = parse_table(b"1,2\n3,4\n", "f", label_column=label_column, features=2, labels_optional=True)
    named = parse_table(b"rooms\n3\n", "f", label_column="price", columns=("rooms",), labels_optional=True)

    assert unnamed.y is None and unnamed.X.tolist() == [[1, 2], [3, 4]]
    assert named.y is None and named.X.tolist() == [[3]]


@pytest.mark.parametrize("has_labels", [True, False])
def test_a_header_gives_the_models_features_by_name(has_labels: bool) -> None:
    content = b"kind,b,a\nx,2,1\ny,4,3\n" if has_labels else b"b,a\n2,1\n4,3\n"
    raw = parse_table(content, "f", features=2, labels_optional=True, names=("a", "b"))

    assert raw.X.tolist() == [[1, 2], [3, 4]]
    assert raw.feature_names == ("a", "b")
    assert raw.classes == (("x", "y") if has_labels else None)


def test_a_header_that_lacks_a_feature_of_the_model_is_refused() -> None:
    with pytest.raises(DataError, match=r"column c: .* a, b, c"):
        parse_table(b"b,a\n2,1\n", "f", features=3, labels_optional=True, names=("a", "b", "c"))
    assert parse_table(b"2,1,5\n", "f", features=3, labels_optional=True, names=("a", "b", "c")).X.tolist() == [
        [2, 1, 5]
    ]


def test_the_index_of_a_frame_is_no_feature() -> None:
    raw = parse_table(b",a,b,label\n0,1,2,0\n1,3,4,1\n", "t.csv")
    assert raw.feature_names == ("a", "b") and raw.X.tolist() == [[1, 2], [3, 4]]
    again = parse_table(b",b,a\n0,2,1\n", "t.csv", features=2, labels_optional=True, names=("a", "b"))
    assert again.X.tolist() == [[1, 2]] and again.y is None
