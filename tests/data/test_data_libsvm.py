"""LIBSVM text: what is read, and what is refused with which message."""

from __future__ import annotations

import numpy as np
import pytest

from eps.data import libsvm
from eps.data.libsvm import parse_libsvm
from eps.errors import DataError
from tests.tiers import rotating


def test_rows_labels_and_values_are_read() -> None:
    raw = parse_libsvm(b"+1 1:0.5 3:-2e-1\n-1\n1 2:7", "f")

    assert raw.X.toarray().tolist() == [[0.5, 0, np.float32(-0.2)], [0, 0, 0], [0, 7, 0]]
    assert raw.X.dtype == np.float32
    assert raw.y is not None and raw.y.tolist() == [1, -1, 1]
    assert raw.index_base == 1


def test_comments_blank_lines_and_windows_line_ends_are_skipped() -> None:
    raw = parse_libsvm(b"# header\r\n\r\n2 1:1 2:2 # note 3:3\r\n\r\n3 1:4\r\n", "f")

    assert raw.X.toarray().tolist() == [[1, 2], [4, 0]]


def test_an_index_of_zero_makes_the_file_zero_based() -> None:
    assert parse_libsvm(b"1 1:1\n0 0:2 1:3\n", "f").X.toarray().tolist() == [[0, 1], [2, 3]]
    assert parse_libsvm(b"1 1:1\n", "f", index_base="0").X.toarray().tolist() == [[0, 1]]


def test_features_fixes_the_width() -> None:
    assert parse_libsvm(b"1 2:1\n", "f", features=5).X.shape == (1, 5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 1:2 2:x", "f:3: 2:x: the value must be a number"),
        ("1 1:2 2", "f:3: 2: must be index:value"),
        ("1 1:2 :3", "f:3: :3: must be index:value"),
        ("1 1:2 2: 3:1", "f:3: 2:: must be index:value"),
        ("1 2:1 2:1", "f:3: 2:1: indices must increase, but 2 comes before"),
        ("1 3:1 2:1", "f:3: 2:1: indices must increase, but 3 comes before"),
        ("1 1.5:1", "f:3: 1.5:1: the index must be a whole number"),
        ("1 99999999999999999999:1", "f:3: 99999999999999999999:1: the index is too large: must be below"),
        ("1 \x1b1:1", r"f:3: \x1b1:1: the index must be a number"),
        ("1 1:nan", "f:3: 1:nan: the value must be a finite number"),
        ("1 1:1e999", "f:3: 1:1e999: the value must be a finite number"),
        ("1 1:1e99", "f:3: 1:1e.99: values must fit in float32"),
        ("1 1:1_0", "f:3: 1:1_0: the value must be a number"),
        ("1 1:1-2", "f:3: 1:1-2: the value must be a number"),
        ("spam 1:1", "f:3: spam: the label must be a number"),
        ("nan 1:1", "f:3: nan: the label must be a finite number"),
        ("1:1 2:1", "f:3: 1:1: the label must be a number"),
        ("1 qid:3 1:1", "f:3: qid:3: the index must be a number"),
        ("1 9:1", "f:3: 9:1: the largest index of 8 features is 8"),
        ("1 0:1", "f:3: 0:1: indices of a 1-based file start at 1"),
    ],
)
def test_a_wrong_line_is_named_with_its_text_and_the_rule(line: str, message: str) -> None:
    content = f"1 1:1 2:2\n\n{line}\n1 1:1\n".encode()

    with pytest.raises(DataError, match=message.replace(".99", r"\+99")):
        parse_libsvm(content, "f", features=8, index_base="1")


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(DataError, match="f: empty file"):
        parse_libsvm(b"\n# nothing\n", "f")


def test_line_numbers_and_rows_do_not_depend_on_the_size_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{k} {k + 1}:{k / 7}" for k in range(200)]
    content = "\n".join(lines).encode()
    whole = parse_libsvm(content, "f")
    monkeypatch.setattr(libsvm, "_CHUNK_BYTES", 50)

    parts = parse_libsvm(content, "f")

    assert (parts.X != whole.X).nnz == 0
    assert parts.y is not None and whole.y is not None and parts.y.tolist() == whole.y.tolist()
    lines[150] = "1 5:a"
    with pytest.raises(DataError, match="f:151: 5:a"):
        parse_libsvm("\n".join(lines).encode(), "f")


def test_the_fast_way_and_the_line_by_line_way_agree() -> None:
    for seed in rotating(30):
        rng = np.random.default_rng(seed)
        lines = []
        for _ in range(20):
            features = np.sort(rng.choice(50, size=rng.integers(0, 9), replace=False)) + 1
            lines.append(" ".join([f"{rng.normal():.3g}", *(f"{f}:{rng.normal():.9g}" for f in features)]))
        content = "\n".join(lines).encode()

        fast, slow = libsvm._parse_fast(content, 1), libsvm._parse_lines(content, 1, "f")

        assert fast is not None, seed
        for field in ("labels", "counts", "indices", "values", "lines"):
            assert np.array_equal(getattr(fast, field), getattr(slow, field)), (seed, field)
