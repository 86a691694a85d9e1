"""Arrays and frames as data: what the readers of files get of them, and what is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from eps.data.arrays import array_files, is_array_file, matrix_of
from eps.data.formats import load
from eps.data.raw import RawData, find_classes
from eps.errors import ConfigError, DataError

X = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [4.0, 0.0, 5.0]])
Y = np.array([3, 7, 3])


def read(**settings: Any) -> RawData:
    """Return what a job reads of settings with arrays."""
    with array_files(settings, lambda: Path(os.environ["EPS_HOME"])) as values:
        return load(values["data"])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", [np.array, np.asfortranarray, sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_rows_are_read_as_they_were_given(kind: Any) -> None:
    raw = read(data=kind(X), labels=Y)
    dense = raw.X.toarray() if sparse.issparse(raw.X) else raw.X
    assert dense.dtype == np.float32 and dense.tolist() == X.tolist()
    assert sparse.issparse(raw.X) == sparse.issparse(kind(X))
    assert raw.y is not None and raw.y.tolist() == [3, 7, 3] and find_classes(raw, "binary") == (3, 7)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array(["b", "a", "b"]), ("a", "b")),
        (np.array(["b", "a", "b"], dtype=object), ("a", "b")),
        (["10", "9", "10"], ("10", "9")),
        ([True, False, True], (0, 1)),
        ([[0.5], [-1], [0.5]], (-1, 0.5)),
    ],
)
def test_classes_are_the_labels_that_were_given(labels: Any, classes: tuple[Any, ...]) -> None:
    assert find_classes(read(data=X, labels=labels), "binary") == classes


def test_a_frame_has_its_labels_and_its_names(home: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"kind": pandas.Categorical(["b", "a", "b"]), "n": [1, 2, 3], 5: [True, False, True]})
    raw = read(data=frame, labels="kind")
    assert raw.feature_names == ("n", "5") and raw.X.tolist() == [[1, 1], [2, 0], [3, 1]]
    assert find_classes(raw, "binary") == ("a", "b")
    raw = read(data=frame[["n"]], labels=frame["kind"])
    assert raw.feature_names == ("n",) and find_classes(raw, "binary") == ("a", "b")
    # By names: the order of the columns, and further ones, say nothing.
    assert matrix_of(frame, "X", ("5", "n"))[0].tolist() == [[1, 1], [0, 2], [1, 3]]
    for broken, message in (
        (frame[["kind"]], "has no column 5, n"),
        (frame.rename(columns={"n": "nn"}), "has no column n; did you mean nn?"),
        (frame.assign(n=["x", "y", "z"]), "column 'n' is (object|str), but features must be numbers"),
        (frame.assign(n=[1, None, 3]), "X: row 1, column 'n' is nan: features must be finite"),
        (pandas.concat([frame, frame], axis=1), "columns of the same name"),
    ):
        with pytest.raises(DataError, match=message):
            matrix_of(broken, "X", ("5", "n"))


def test_files_are_their_users_and_go_with_the_job(home: Path) -> None:
    contents = set()
    for _ in range(2):
        with array_files({"data": X, "labels": Y, "test": (X[:1], Y[:1]), "workers": 2}, lambda: home) as values:
            assert values.keys() == {"data", "test", "workers"}
            paths = [Path(values["data"]), Path(values["test"])]
            assert [stat.S_IMODE(path.stat().st_mode) for path in (*paths, paths[0].parent)] == [0o600, 0o600, 0o700]
            # The same data is the same data set, which is prepared once.
            contents.add(b"".join(path.read_bytes() for path in paths))
        assert not list(home.iterdir())
    assert len(contents) == 1


@pytest.mark.parametrize("pair", [True, False])
def test_rows_to_test_with_have_labels_of_their_own(pair: bool, home: Path) -> None:
    test = {"test": (X[::-1], Y[::-1] + 4)} if pair else {"test": X[::-1], "test_labels": Y[::-1] + 4}
    with array_files({"data": X, "labels": Y, **test}, lambda: home) as values:
        assert values.keys() == {"data", "test"}
        raw = load(values["test"])
    assert raw.X.tolist() == X[::-1].tolist() and raw.y is not None and raw.y.tolist() == [7, 11, 7]


def test_a_frame_to_test_with_has_its_labels_in_the_same_column_or_beside_it(home: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": [1, 2, 3], "kind": ["b", "a", "b"]})
    for test in ({"test": frame[1:]}, {"test": frame[["n"]][1:], "test_labels": ["a", "b"]}):
        with array_files({"data": frame, "labels": "kind", **test}, lambda: home) as values:
            raw = load(values["test"])
        assert raw.X.tolist() == [[2], [3]] and find_classes(raw, "binary") == ("a", "b")


def test_files_of_a_killed_process_are_removed_by_the_next(home: Path) -> None:
    with array_files({"data": X, "labels": Y}, lambda: home) as mine:
        left = Path(mine["data"]).parent.with_name(".tmp-arrays-of-a-killed-one")
        left.mkdir()
        (left / "lock").touch()
        (left / "data.npz").touch()
        with array_files({"data": X, "labels": Y}, lambda: home) as values:
            assert Path(mine["data"]).exists() and Path(values["data"]).exists() and not left.exists()
            assert is_array_file(mine["data"]) and not is_array_file("data.npz")
    assert not list(home.iterdir())


def test_settings_without_arrays_stay_as_they_are(home: Path) -> None:
    settings = {"data": ["a.txt", "b.txt"], "labels": "l.npy", "test": 0.2}
    with array_files(settings, lambda: home) as values:
        assert values == settings


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"data": X}, ConfigError, "labels is missing, but data is an array: give one label for each row"),
        ({"data": X, "labels": "kind"}, ConfigError, "labels is 'kind', but data is an array without columns"),
        ({"data": "d.csv", "labels": Y}, ConfigError, "labels is an array, but data is 'd.csv'"),
        ({"data": X, "labels": Y, "format": "csv"}, ConfigError, "format is 'csv', but tells how to read a file"),
        ({"data": X, "labels": Y, "test": (X,)}, ConfigError, "test has 1 parts, but must be \\(rows, labels\\)"),
        ({"data": X, "labels": Y, "test": X}, ConfigError, "test_labels is missing, but test is an array"),
        ({"data": X, "labels": Y, "test": (X, Y), "test_labels": Y}, ConfigError, "test_labels is left out then"),
        ({"data": X, "labels": Y, "test": 0.2, "test_labels": Y}, ConfigError, "test is 0.2: give both"),
        ({"data": X, "labels": Y, "test_labels": Y}, ConfigError, "test is None: give both"),
        ({"data": X, "labels": Y, "test": (X[:, :2], Y)}, DataError, "test has 2 columns, but data has 3"),
        ({"data": X, "labels": Y, "test": (sparse.csr_array(X), Y)}, DataError, "test is sparse, but data is dense"),
        ({"data": X, "labels": Y[:2]}, DataError, "data has 3 rows, but labels has 2 labels"),
        ({"data": X[0], "labels": Y}, DataError, r"an array of shape \(3,\): features must be rows x columns"),
        ({"data": X[:0], "labels": Y[:0]}, DataError, r"an array of shape \(0, 3\)"),
        ({"data": X.astype(str), "labels": Y}, DataError, "data is an array of <U32, but features must be numbers"),
        ({"data": X + np.nan, "labels": Y}, DataError, "data: row 0, column 0 is nan: features must be finite"),
        ({"data": X * 1e39, "labels": Y}, DataError, "data: row 0, column 0 is 1e\\+39: features must be finite"),
        (
            {"data": sparse.csr_array(np.array([[0.0, np.inf], [1.0, 0.0]])), "labels": Y},
            DataError,
            "data: row 0, column 1 is inf",
        ),
        ({"data": X, "labels": [1.0, np.nan, 2.0]}, DataError, "label 2 of 3 is nan"),
        ({"data": X, "labels": ["a", "", "b"]}, DataError, "labels: a label is empty"),
        ({"data": X, "labels": ["a", None, "b"]}, DataError, "label of row 1 is None, but others are texts"),
        ({"data": X, "labels": X}, DataError, r"labels of shape \(3, 3\)"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    settings: dict[str, Any], error: type[Exception], message: str, home: Path
) -> None:
    with pytest.raises(error, match=message), array_files(settings, lambda: home):
        pass
    assert not list(home.iterdir())


def test_rows_for_a_model_that_ignores_labels_need_none(home: Path) -> None:
    with array_files({"data": X, "model": "lda"}, lambda: home, needs_labels=False) as values:
        raw = load(values["data"], labels_optional=True)
    assert raw.num_rows == len(X) and raw.y is not None and not raw.y.any()
    with (
        pytest.raises(ConfigError, match="labels is missing, but data is an array"),
        array_files({"data": X}, lambda: home),
    ):
        pass
