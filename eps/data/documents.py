"""Counts of words in documents: UCI's docword files and LDA-C files, with the vocabulary that lies beside them.

A document becomes a sparse row with the count of each of its words.  The names of the columns are the words of the
vocabulary, if there is one.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import replace

import numpy as np
from scipy import sparse

from eps.data.files import bare_name, read_input
from eps.data.libsvm import parse_libsvm
from eps.data.raw import Int64Array, Matrix, RawData, check_width, csr_float32
from eps.errors import DataError
from eps.storage.locations import Location

#: Names of the formats.
DOCWORD, LDAC = "docword", "ldac"
#: Ending of LDA-C files by which the format is detected.
LDAC_ENDING = ".ldac"
_DOCWORD_PREFIX, _VOCABULARY_PREFIX = "docword.", "vocab."
_HEADER = ("documents", "words", "lines")
_MOST_ROWS = 1 << 31
#: float32 has all whole numbers up to this.
MOST_TOKENS = 1 << 24
_SHOWN_CHARACTERS = 60


def parse_docword(content: bytes, name: str, *, features: int | None = None) -> RawData:
    """Parse a docword file: numbers of documents, words and lines, then lines of document, word and count.

    Documents and words are numbered from 1.

    Parameters
    ----------
    content : bytes
        The unpacked file.
    name : str
        Name of the file, for messages.
    features : int or None
        Required number of words.

    Raises
    ------
    DataError
        A line is malformed, a number is outside its range, or there are more or fewer lines than the file says.
    """
    numbers = _whole_numbers(content, name)
    if numbers.size < len(_HEADER) or not 1 <= numbers[:3].min() <= numbers[:3].max() < _MOST_ROWS:
        raise DataError(
            f"{name}: must start with the numbers of {', '.join(_HEADER)}, each on a line and in 1 .. {_MOST_ROWS - 1}"
        )
    num_documents, num_words, num_lines = numbers[:3].tolist()
    check_width(num_words, features, name)
    if numbers.size != 3 + 3 * num_lines:
        raise DataError(
            f"{name}: {(numbers.size - 3) / 3:g} lines of document, word and count: must be {num_lines}, as line 3 says"
        )
    table = numbers[3:].reshape(-1, 3)
    most = np.array([num_documents, num_words, MOST_TOKENS - 1])
    bad = np.flatnonzero(((table < 1) | (table > most)).any(axis=1))
    if bad.size:
        raise DataError(
            f"{name}: {' '.join(map(str, table[bad[0]].tolist()))}: document, word and count must be in 1 .. "
            f"{num_documents}, 1 .. {num_words} and 1 .. {MOST_TOKENS - 1}"
        )
    counts = sparse.coo_matrix(
        (table[:, 2].astype(np.float64), (table[:, 0] - 1, table[:, 1] - 1)), shape=(num_documents, num_words)
    )
    X = counts.tocsr()
    if X.nnz != num_lines:
        raise DataError(f"{name}: {num_lines - X.nnz} lines repeat a document and word: a word has one count in each")
    X.sort_indices()
    return RawData(X=csr_float32(X.data.astype(np.float32), X.indices, X.indptr, X.shape), y=None, format=DOCWORD)


def parse_ldac(content: bytes, name: str, *, features: int | None = None) -> RawData:
    """Parse an LDA-C file: each line has the number of different words, then ``word:count``, with words from 0.

    Parameters
    ----------
    content : bytes
        The unpacked file.
    name : str
        Name of the file, for messages.
    features : int or None
        Number of words; None takes the largest.

    Raises
    ------
    DataError
        A line is malformed, or has another number of words than it says.
    """
    raw = parse_libsvm(content, name, features=features, index_base="0")
    assert raw.y is not None
    found = np.diff(raw.X.indptr)
    bad = np.flatnonzero(raw.y != found)
    if bad.size:
        raise DataError(
            f"{name}: document {bad[0] + 1} says {raw.y[bad[0]]:g} and has {found[bad[0]]} words: "
            "a line of LDA-C is the number of its words, then word:count"
        )
    return RawData(X=raw.X, y=None, format=LDAC)


def with_vocabulary(raw: RawData, path: Location, features: int | None) -> RawData:
    """Return the documents of a file with the vocabulary beside it as names of their columns, if there is one.

    Raises
    ------
    DataError
        The vocabulary has another number of words than the documents.
    """
    beside = vocabulary_beside(path)
    if beside is None:
        return raw
    words = tuple(read_input(beside).decode("utf-8", errors="replace").split("\n"))
    words = tuple(word.strip() for word in (words[:-1] if not words[-1] else words))
    # The last words of a vocabulary may occur in no document, which only docword files count.
    if raw.format == LDAC and features is None and len(words) > raw.num_features:
        wider = csr_float32(raw.X.data, raw.X.indices, raw.X.indptr, (raw.num_rows, len(words)))
        raw = replace(raw, X=wider)
    if len(words) != raw.num_features:
        raise DataError(
            f"{beside}: {len(words)} lines: must be the {raw.num_features} words of {path.name}, or move it elsewhere"
        )
    return replace(raw, feature_names=words)


def vocabulary_beside(path: Location) -> Location | None:
    """Return the existing vocabulary of a file, one word a line: ``vocab.NAME`` of ``docword.NAME``.

    For LDA-C files (``.ldac``, ``.dat``) it is ``vocab.txt``.
    """
    name = bare_name(path)
    if is_docword_name(path):
        candidate: Location = path.with_name(_VOCABULARY_PREFIX + _plain_name(path)[len(_DOCWORD_PREFIX) :])
    elif name.endswith((LDAC_ENDING, ".dat")):
        candidate = path.with_name(f"{_VOCABULARY_PREFIX}txt")
    else:
        return None
    return candidate if candidate.is_file() else None


def is_docword_name(path: Location) -> bool:
    """Return whether the name is typical of docword files."""
    return bare_name(path).startswith(_DOCWORD_PREFIX)


def counts_of(X: Matrix, name: str) -> Matrix:
    """Return rows of counts as CSR without zeros.

    Raises
    ------
    DataError
        A value is not a whole number from 0 on, or there are too many tokens to count in float32.
    """
    found = sparse.csr_matrix(X)
    bad = np.flatnonzero((found.data < 0) | (found.data != np.rint(found.data)))
    if bad.size:
        raise DataError(f"{name}: a value is {found.data[bad[0]]:g}: topics need counts of words, whole and at least 0")
    tokens = int(found.data.sum(dtype=np.float64))
    if not 1 <= tokens < MOST_TOKENS:
        raise DataError(
            f"{name}: {tokens} tokens: must be 1 .. {MOST_TOKENS - 1}, which can be counted in float32; "
            "train on a part of the documents"
        )
    if not found.data.all():
        found = found.copy()
        found.eliminate_zeros()
    return csr_float32(found.data, found.indices, found.indptr, found.shape)


def _plain_name(path: Location) -> str:
    """Return the file name without extensions of compression, in its own case."""
    return path.name[: len(bare_name(path))]


def _whole_numbers(content: bytes, name: str) -> Int64Array:
    try:
        with warnings.catch_warnings():
            # NumPy would read 1.5 as 1, with a warning.
            warnings.simplefilter("error")
            head = content.split(b"\n", 3)
            first = np.loadtxt(io.BytesIO(b"\n".join(head[:3])), dtype=np.int64, comments=None, ndmin=1)
            rest = head[3] if len(head) > 3 else b""
            if not rest.strip():
                return first.reshape(-1)
            table = np.loadtxt(io.BytesIO(rest), dtype=np.int64, comments=None, ndmin=2)
            return np.concatenate([first.reshape(-1), table.reshape(-1)])
    except (ValueError, Warning):
        raise DataError(f"{name}{_bad_line(content)}") from None


def _bad_line(content: bytes) -> str:
    for number, line in enumerate(content.split(b"\n"), 1):
        cells = line.split()
        expected = 1 if number <= len(_HEADER) else 3
        if cells and (len(cells) != expected or not all(cell.isdigit() and len(cell) <= 18 for cell in cells)):
            shown = line.decode("utf-8", errors="replace").strip()[:_SHOWN_CHARACTERS]
            what = f"the number of {_HEADER[number - 1]}" if number <= len(_HEADER) else "document, word and count"
            return f":{number}: {shown}: must be {what}, in whole numbers"
    return ": must be lines of document, word and count after the numbers of documents, words and lines"
