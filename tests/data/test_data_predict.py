"""Rows to predict are treated as the training rows were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eps.data.cut import PredictionData, load_for_prediction, prepare
from eps.data.dataset import DatasetInfo
from eps.data.settings import DataSettings
from eps.errors import DataError


def predict(path: Path, info: DatasetInfo) -> PredictionData:
    rows = load_for_prediction(path, info.settings, info.num_features, info.classes)
    return replace(rows, X=info.load_normalizer().apply(rows.X))


def prepared(tmp_path: Path, content: str, **settings: object) -> DatasetInfo:
    (tmp_path / "train").write_text(content)
    return prepare(
        DataSettings(str(tmp_path / "train"), "binary", num_splits=1, **settings),  # type: ignore[arg-type]
        tmp_path / "out",
    )


def test_the_index_base_and_width_of_training_hold_for_new_rows(tmp_path: Path) -> None:
    info = prepared(tmp_path, "1 0:1 5:1\n-1 1:2\n")
    new = tmp_path / "new"
    new.write_text("-1 1:7\n1 2:1\n")

    rows = predict(new, info)

    assert rows.X.toarray().tolist() == [[0, 7, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]
    assert rows.y is not None and rows.y.tolist() == [0, 1]
    new.write_text("1 6:1\n")
    with pytest.raises(DataError, match=r"new:1: 6:1: .* is 5"):
        predict(new, info)


def test_a_column_of_one_label_that_is_no_class_means_no_labels(tmp_path: Path) -> None:
    info = prepared(tmp_path, "1 1:1\n-1 2:2\n")
    new = tmp_path / "new"

    new.write_text("0 1:7\n0 2:1\n")
    assert predict(new, info).y is None
    new.write_text("0 1:7\n1 2:1\n")
    with pytest.raises(DataError, match="labels 0 are not classes"):
        predict(new, info)


def test_classes_that_were_texts_of_digits_are_found_in_a_file(tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    settings = DataSettings(str(new), "binary", 1)

    for content, found in (("7,10\n8,9\n", [0, 1]), ("7,9\n", [1])):
        new.write_text(content)
        y = load_for_prediction(new, settings, 1, ("10", "9")).y
        assert y is not None and y.tolist() == found


def test_the_statistics_of_training_are_applied(tmp_path: Path) -> None:
    info = prepared(tmp_path, "1,0,a\n3,4,b\n", normalize="standard")
    new = tmp_path / "new.csv"
    new.write_text("2,2\n3,6\n")

    rows = predict(new, info)

    assert rows.y is None
    np.testing.assert_allclose(rows.X, [[0, 0], [1, 2]])


@pytest.mark.parametrize("label_column", ["auto", "last", "3", "price"])
def test_beside_chosen_columns_the_label_is_that_of_training(tmp_path: Path, label_column: str) -> None:
    content = "a,b,c,price\n1,2,3,0\n4,5,6,1\n"
    info = prepared(tmp_path, content, columns=("a", "b"), label_column=label_column)
    new = tmp_path / "new.csv"

    for header, has_labels in (("a,b,c", False), ("a,b,d,y", False), ("a,b", False), ("a,b,y,price", True)):
        new.write_text("\n".join([header, "9,8,7,1"[: len(header.split(",")) * 2 - 1]]))
        rows = load_for_prediction(new, info.settings, 2, info.classes, names=info.feature_names or ())
        assert rows.X.tolist() == [[9, 8]]
        assert (rows.y is not None) == has_labels


def test_text_to_predict_needs_no_label(tmp_path: Path) -> None:
    info = prepared(tmp_path, "ham\thello you\nspam\twin now\n", normalize="tfidf", features=64)
    new = tmp_path / "new"

    new.write_text("win you\n")
    plain = predict(new, info)
    new.write_text("spam\twin you\n")
    labelled = predict(new, info)

    assert plain.y is None and plain.X.shape == (1, 64)
    assert labelled.y is not None and labelled.y.tolist() == [1]
    assert (plain.X != labelled.X).nnz == 0


def test_an_array_to_predict_needs_no_label(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.array([[1.0, 2], [3, 4]]))
    np.save(tmp_path / "y.npy", np.array([0, 1]))
    settings = DataSettings(str(tmp_path / "X.npy"), "binary", 1, labels=str(tmp_path / "y.npy"))
    info = prepare(settings, tmp_path / "out")

    np.save(tmp_path / "new.npy", np.array([[5.0, 1], [7, 8]]))
    plain = predict(tmp_path / "new.npy", info)
    np.save(tmp_path / "new.npy", np.array([[5.0, 1, 0], [7, 8, 1]]))
    labelled = predict(tmp_path / "new.npy", info)

    assert plain.y is None and plain.X.tolist() == labelled.X.tolist() == [[5, 1], [7, 8]]
    assert labelled.y is not None and labelled.y.tolist() == [0, 1]


def test_predicting_the_test_file_gives_the_test_set(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "sparse_binary" / "a9a"
    settings = DataSettings(
        str(folder / "a9a.gz"), "binary", num_splits=8, test=str(folder / "a9a.t.gz"), normalize="l2"
    )
    info = prepare(settings, tmp_path / "out")

    rows = predict(folder / "a9a.t.gz", info)

    X, y = info.load_test()
    assert (info.num_rows, info.num_test_rows, info.num_features) == (32561, 16281, 123)
    assert (rows.X != X).nnz == 0
    assert rows.y is not None and np.array_equal(rows.y, y)
