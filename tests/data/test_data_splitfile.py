"""Split files: what is written is read, and every damaged byte is noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from eps.data.splitfile import SplitData, decode_split, encode_split, read_split, write_split
from eps.errors import StorageError, TransferError


def sparse_split(num_test_rows: int = 2) -> SplitData:
    X = sparse.random(5, 4, density=0.5, format="csr", dtype=np.float32, random_state=1)
    test_X = sparse.random(num_test_rows, 4, density=0.5, format="csr", dtype=np.float32, random_state=2)
    y = np.arange(5, dtype=np.int32)
    features = np.array([3, 10, 11, 99], dtype=np.int64)
    return SplitData(X, y, 100, features, test_X, np.zeros(num_test_rows, dtype=np.int32))


def dense_split() -> SplitData:
    X = np.arange(12, dtype=np.float32).reshape(4, 3)
    return SplitData(X, X[:, 0], 3, None, X[:0], X[:0, 0])


def assert_same(left: SplitData, right: SplitData) -> None:
    assert encode_split(left) == encode_split(right)
    assert left.X.shape == right.X.shape and left.test_X.shape == right.test_X.shape
    assert left.num_features == right.num_features


@pytest.mark.parametrize("split", [sparse_split(), sparse_split(0), dense_split()])
def test_what_is_written_is_read(tmp_path: Path, split: SplitData) -> None:
    path = tmp_path / "s.eps"

    checksum = write_split(path, split)

    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()
    result = read_split(path)
    assert_same(result, split)
    assert result.y.dtype == split.y.dtype


@pytest.mark.parametrize("split", [sparse_split(), dense_split()])
@pytest.mark.parametrize("rows", [(1, 4), (2, 2)])
def test_some_rows_have_their_values_and_only_their_features(split: SplitData, rows: tuple[int, int]) -> None:
    found = split.rows(slice(*rows))
    whole, part = np.zeros((split.num_rows, 100)), np.zeros((found.num_rows, 100))
    for data, dense in ((split, whole), (found, part)):
        dense[:, np.arange(3) if data.features is None else data.features] = (
            data.X.toarray() if data.is_sparse else data.X
        )
    assert part.tolist() == whole[slice(*rows)].tolist() and found.y.tolist() == split.y[slice(*rows)].tolist()
    assert found.test_y.size == 0 and found.test_X.shape[1] == found.X.shape[1]
    if found.features is not None:
        assert found.features.tolist() == np.flatnonzero(part.any(axis=0)).tolist()


def test_arrays_are_aligned_views_of_the_bytes() -> None:
    content = np.frombuffer(encode_split(dense_split()), dtype=np.uint8)

    split = decode_split(content)

    assert np.shares_memory(split.X, content)
    assert (split.X.ctypes.data - content.ctypes.data) % 64 == 0


def test_the_bytes_depend_on_the_content_only() -> None:
    assert encode_split(sparse_split()) == encode_split(sparse_split())


def test_every_damaged_byte_is_noticed() -> None:
    good = encode_split(sparse_split())
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        with pytest.raises(TransferError):
            decode_split(bad)


@pytest.mark.parametrize("length", [0, 7, 16, 100, -1])
def test_a_shortened_file_is_noticed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "s.eps"
    path.write_bytes(encode_split(sparse_split())[:length])

    with pytest.raises(TransferError, match=r"s\.eps"):
        read_split(path)


def test_an_absent_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        read_split(tmp_path / "absent.eps")
