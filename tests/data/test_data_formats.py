"""``load``: telling formats apart, compressed files, arrays, images, text, and real data."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from eps.data.formats import load
from eps.errors import ConfigError, DataError

LIBSVM = b"1 1:1 4:2\n-1 2:3\n"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_compression_is_told_by_content(tmp_path: Path) -> None:
    for name, packed in (("plain", LIBSVM), ("a", gzip.compress(LIBSVM)), ("b.txt", bz2.compress(LIBSVM))):
        raw = load(write(tmp_path / name, packed))
        assert raw.format == "libsvm"
        assert raw.X.toarray().tolist() == [[1, 0, 0, 2], [0, 3, 0, 0]]


def test_an_archive_of_one_file_is_read_and_of_two_refused(tmp_path: Path) -> None:
    def archive(name: str, *members: str) -> Path:
        with tarfile.open(tmp_path / name, "w:gz") as tar:
            for member in members:
                entry = tarfile.TarInfo(member)
                entry.size = len(LIBSVM)
                tar.addfile(entry, io.BytesIO(LIBSVM))
        return tmp_path / name

    assert load(archive("one.tgz", "d/train", "d/._train")).num_rows == 2
    with pytest.raises(DataError, match=r"2 files \(a, b\): .*one"):
        load(archive("two.tgz", "a", "b"))


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b"1 1:1\n", "libsvm"),
        (b"-1\n-1\n1 7:0.5\n", "libsvm"),
        (b"3 0.5 0.25\n1 0 1\n", "dense"),
        (b"a,b,y\n1,2,3\n4,5,6\n", "csv"),
        (b"1\t2\t3\n4\t5\t6\n", "dense"),
        (b"ham\tOk lar, joking\nspam\tFree entry in 2, a comp, to win\n", "text"),
    ],
)
def test_formats_are_told_by_the_first_lines(tmp_path: Path, content: bytes, format: str) -> None:
    assert load(write(tmp_path / "data", content)).format == format


def test_damaged_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="damaged compressed file"):
        load(write(tmp_path / "cut.gz", gzip.compress(LIBSVM * 99)[:40]))
    with pytest.raises(DataError, match="absent: no such file"):
        load(tmp_path / "absent")
    with pytest.raises(DataError, match="empty file"):
        load(write(tmp_path / "empty", b" \n"))


def test_unknown_formats_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'parquet', .* libsvm, csv"):
        load(write(tmp_path / "a", LIBSVM), format="parquet")
    with pytest.raises(ConfigError, match="'# Title'"):
        load(write(tmp_path / "b", b"# Title\nwords\n"))
    with pytest.raises(ConfigError, match="holds its own labels"):
        load(tmp_path / "a", labels=tmp_path / "a")


def test_scipy_matrices_need_labels_beside_them(tmp_path: Path) -> None:
    matrix = sparse.csr_matrix(np.array([[0, 2.0], [1, 0], [0, 0]]))
    sparse.save_npz(tmp_path / "X.npz", matrix)
    labels = write(tmp_path / "y.txt", b"no\nyes\nno\n")

    raw = load(tmp_path / "X.npz", labels=labels, features=3)

    assert raw.X.toarray().tolist() == [[0, 2, 0], [1, 0, 0], [0, 0, 0]]
    assert raw.classes == ("no", "yes")
    with pytest.raises(DataError, match="no labels"):
        load(tmp_path / "X.npz")
    with pytest.raises(DataError, match=r"3 rows, .* 2 labels"):
        load(tmp_path / "X.npz", labels=write(tmp_path / "short.txt", b"1\n2\n"))
    with pytest.raises(DataError, match=r"2 .*: must be at most 1"):
        load(tmp_path / "X.npz", labels=labels, features=1)


def test_numpy_files_are_read_without_pickle(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", X=np.eye(2), y=np.array([3, 4]))
    np.save(tmp_path / "table.npy", np.array([[1.0, 2, 3], [4, 5, 6]]))
    np.save(tmp_path / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "nan.npy", np.array([[1.0, 2], [np.nan, 4]]))

    assert load(tmp_path / "both.npz").y is not None
    assert load(tmp_path / "table.npy", label_column="first").X.tolist() == [[2, 3], [5, 6]]
    with pytest.raises(DataError, match="without pickle"):
        load(tmp_path / "objects.npy")
    with pytest.raises(DataError, match="1, column 0 is nan: "):
        load(tmp_path / "nan.npy")


def test_images_are_scaled_and_find_their_labels(tmp_path: Path) -> None:
    images = struct.pack(">4B3I", 0, 0, 8, 3, 2, 1, 2) + bytes([0, 255, 51, 102])
    write(tmp_path / "t-labels-idx1-ubyte", struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes([7, 9]))
    path = write(tmp_path / "t-images-idx3-ubyte", images)

    raw = load(path)

    np.testing.assert_allclose(raw.X, np.array([[0, 1], [0.2, 0.4]]), rtol=1e-6)
    assert raw.y is not None and raw.y.tolist() == [7, 9]
    with pytest.raises(DataError, match=r"19 bytes: .* needs 20"):
        load(write(path, images[:-1]))


def test_text_is_hashed_to_counts_of_words_and_pairs(tmp_path: Path) -> None:
    raw = load(write(tmp_path / "sms", b"ham\tGo go home\nspam\t\xff win\n"), features=1000)

    row = raw.X[0].toarray()[0]
    assert raw.classes == ("ham", "spam")
    assert row[zlib.crc32(b"go") % 1000] == 2
    assert row[zlib.crc32(b"go go") % 1000] == 1
    assert row.sum() == 5
    with pytest.raises(DataError, match=r"sms:2: .*label TAB text"):
        load(write(tmp_path / "sms", b"ham\tx\nnothing\n"), format="text")


def test_files_of_one_class_each_are_labelled_by_their_number(tmp_path: Path) -> None:
    paths = [write(tmp_path / "neg", b"bad film\n"), write(tmp_path / "pos", b"good film\nnice\n")]

    raw = load(",".join(map(str, paths)))

    assert raw.y is not None and raw.y.tolist() == [0, 1, 1]


def test_unknown_data_sets_of_scikit_learn_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"must be one of .*, wine"):
        load("sklearn:moons")


def test_data_sets_of_scikit_learn_are_loaded_by_name() -> None:
    pytest.importorskip("sklearn")

    assert load("sklearn:iris").X.shape == (150, 4)


@pytest.mark.parametrize(
    ("name", "options", "shape", "num_values"),
    [
        ("sparse_binary/a9a/a9a.gz", {}, (32561, 123), 451592),
        ("sparse_binary/reuters_moneyfx/reuters.trn.bz2", {}, (7770, 8315), 339837),
        ("regression/abalone/abalone_8d_train.libsvm", {}, (4177, 8), 32080),
        ("multiclass/letter/letter.scale.gz", {}, (20000, 16), None),
        ("multiclass/mnist_t10k/t10k-images-idx3-ubyte.gz", {}, (10000, 784), None),
        ("sparse_binary/sms_spam/SMSSpamCollection.gz", {"features": 1 << 16}, (5574, 1 << 16), None),
        (
            "regression/california_housing/housing.tgz",
            {"label_column": "median_house_value", "columns": (*tuple("012356"), "median_income")},
            (20640, 7),
            None,
        ),
    ],
)
def test_real_data_has_the_size_that_its_description_says(
    shared_data: Path, name: str, options: dict[str, object], shape: tuple[int, int], num_values: int | None
) -> None:
    raw = load(shared_data / name, **options)  # type: ignore[arg-type]

    assert raw.X.shape == shape
    assert num_values is None or raw.X.nnz == num_values
