"""Counts of words: docword and LDA-C files say the same, with their vocabulary, and what is wrong with a file."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from eps.data.cut import dataset_key
from eps.data.documents import counts_of, parse_docword, parse_ldac
from eps.data.formats import load
from eps.data.settings import DataSettings
from eps.errors import ConfigError, DataError, EpsError

COUNTS = [[2, 0, 1, 0], [0, 0, 0, 0], [0, 3, 0, 0]]
DOCWORD = "3\n4\n3\n1 1 2\n1 3 1\n3 2 3\n"
LDAC = "2 0:2 2:1\n0\n1 1:3\n"
WORDS = "a\nb b\nc\nd\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_docword_is_detected_by_its_name_and_has_the_vocabulary_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "docword.News.txt.gz"
    path.write_bytes(gzip.compress(DOCWORD.encode()))
    raw = load(path, labels_optional=True)
    assert (raw.format, raw.y, raw.feature_names) == ("docword", None, None)
    assert raw.X.toarray().tolist() == COUNTS and raw.X.dtype == np.float32
    write(tmp_path / "vocab.News.txt", WORDS)
    assert load(path, labels_optional=True).feature_names == ("a", "b b", "c", "d")


def test_ldac_is_detected_by_its_ending_and_is_as_wide_as_its_vocabulary(tmp_path: Path) -> None:
    path = write(tmp_path / "ap.ldac", LDAC)
    raw = load(path, labels_optional=True)
    assert (raw.format, raw.y, raw.X.toarray().tolist()) == ("ldac", None, [row[:3] for row in COUNTS])
    write(tmp_path / "vocab.txt", WORDS)
    raw = load(write(tmp_path / "ap.dat", LDAC), format="ldac", labels_optional=True)
    assert (raw.X.toarray().tolist(), raw.feature_names) == (COUNTS, ("a", "b b", "c", "d"))


def test_lines_of_docword_may_have_any_order() -> None:
    assert parse_docword(b"3\n4\n3\n3 2 3\n1 3 1\n1 1 2\n", "file").X.toarray().tolist() == COUNTS


def test_documents_may_have_labels_in_a_file(tmp_path: Path) -> None:
    path, labels = write(tmp_path / "docword.txt", DOCWORD), write(tmp_path / "labels", "1\n2\n1\n")
    raw = load(path, format="docword", labels=labels)
    assert raw.y is not None and raw.y.tolist() == [1, 2, 1]
    with pytest.raises(DataError, match="no labels, but training needs them"):
        load(path, format="docword")
    with pytest.raises(ConfigError, match="columns are set"):
        load(path, format="docword", columns=["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3\n4\n", "file: must start with the numbers of documents, words, lines"),
        ("3\n4\n0\n", r"each on a line and in 1 \.\. 2147483647"),
        ("3\n4\n2\n1 1 2\n", "file: 1 lines of document, word and count: must be 2, as line 3 says"),
        ("3\nx\n2\n1 1 2\n", "file:2: x: must be the number of words, in whole numbers"),
        ("3\n4\n1\n1 1 2.5\n", "file:4: 1 1 2.5: must be document, word and count, in whole numbers"),
        ("3\n4\n2\n1 1 2\n1 2\n", "file:5: 1 2: must be document, word and count"),
        ("3\n4\n1\n4 1 2\n", r"file: 4 1 2: document, word and count must be in 1 .. 3, 1 .. 4 and"),
        ("3\n4\n1\n1 0 2\n", "file: 1 0 2: document"),
        ("3\n4\n1\n1 1 0\n", "file: 1 1 0: document"),
        ("3\n4\n2\n1 1 2\n1 1 1\n", "file: 1 lines repeat a document and word"),
    ],
)
def test_what_is_wrong_with_a_docword_file_is_said(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_docword(text.encode(), "file")


def test_what_is_wrong_with_an_ldac_file_is_said() -> None:
    with pytest.raises(DataError, match="file: document 2 says 3 and has 1 words"):
        parse_ldac(b"1 0:1\n3 1:2\n", "file")
    with pytest.raises(DataError, match="file:1: "):
        parse_ldac(b"1 0-1\n", "file")


@given(st.binary(max_size=60))
def test_any_bytes_are_documents_or_an_error_of_eps(content: bytes) -> None:
    for parse in (parse_docword, parse_ldac):
        try:
            raw = parse(content, "file")
        except EpsError:
            continue
        assert raw.num_rows >= 1 and raw.y is None


def test_a_vocabulary_of_another_size_is_refused_and_a_changed_one_makes_another_data_set(tmp_path: Path) -> None:
    path, words = write(tmp_path / "docword.x.txt", DOCWORD), write(tmp_path / "vocab.x.txt", "a\nb\n")
    settings = DataSettings(data=str(path), task="binary", num_splits=1)
    before = dataset_key(settings)
    with pytest.raises(DataError, match=r"vocab.x.txt: 2 lines: must be the 4 words of docword.x.txt"):
        load(path, labels_optional=True)
    words.write_text(WORDS)
    assert dataset_key(settings) != before
    with pytest.raises(DataError, match="4 feature columns: must be 5"):
        load(path, labels_optional=True, features=5)


def test_counts_are_whole_and_few_enough_for_float32() -> None:
    assert counts_of(np.array(COUNTS, np.float32), "file").nnz == 3
    for wrong in (-1.0, 0.5):
        with pytest.raises(DataError, match="topics need counts of words, whole and at least 0"):
            counts_of(sparse.csr_matrix([[1.0, wrong]]), "file")
    for wrong in (0.0, float(1 << 24)):
        with pytest.raises(DataError, match=r"tokens: must be 1 .. 16777215"):
            counts_of(np.array([[wrong]], np.float32), "file")
