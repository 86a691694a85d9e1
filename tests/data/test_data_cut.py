"""Preparing data: division, splits, cache, and the description of the result."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from eps.data.cache import DATASET_PREFIX, own_folder, unused_datasets
from eps.data.cut import dataset_key, divide, prepare
from eps.data.dataset import DatasetInfo, open_dataset
from eps.data.settings import DataSettings
from eps.data.splitfile import read_split
from eps.errors import ConfigError, DataError, StorageError
from tests.threads import at_once


def write_libsvm(path: Path, num_rows: int = 23, first: int = 0) -> Path:
    """Row k has feature k of value k + 1, so that rows can be told apart, and all below 100 have feature 100."""
    common = " 101:0.5" if first < 100 else ""
    lines = [f"{1 if k % 3 else -1} {k + 1}:{k + 1}{common}" for k in range(first, first + num_rows)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def settings(tmp_path: Path) -> DataSettings:
    return DataSettings(data=str(write_libsvm(tmp_path / "train")), task="binary", num_splits=4, seed=5)


def full_width(info: DatasetInfo, part: str = "X") -> np.ndarray:
    """Rows of all splits one after the other, at full width."""
    blocks = []
    for split in range(info.num_splits):
        data = read_split(info.split_path(split))
        local = getattr(data, part)
        wide = np.zeros((local.shape[0], info.num_features), dtype=np.float32)
        if data.features is None:
            wide[:] = local
        else:
            wide[:, data.features] = local.toarray()
        blocks.append(wide)
    return np.concatenate(blocks)


def test_splits_hold_every_row_once_and_differ_by_at_most_one(tmp_path: Path, settings: DataSettings) -> None:
    info = prepare(settings, tmp_path / "out")

    assert sorted(info.split_rows) == [5, 6, 6, 6]
    rows = np.argmax(full_width(info)[:, :23], axis=1)
    assert sorted(rows.tolist()) == list(range(23))
    assert rows.tolist() != list(range(23))
    y = np.concatenate([read_split(info.split_path(split)).y for split in range(4)])
    assert y.tolist() == [1 if k % 3 else 0 for k in rows]
    assert y.dtype == np.int32
    assert info.classes == (-1, 1)


def test_sparse_splits_are_localised_to_the_features_of_their_training_and_test_rows(
    tmp_path: Path, settings: DataSettings
) -> None:
    info = prepare(replace(settings, test="0.25"), tmp_path / "out")

    assert info.is_sparse
    for number in range(4):
        split = read_split(info.split_path(number))
        assert split.features is not None and split.features.dtype == np.int64
        touched = np.unique(np.concatenate([split.X.indices, split.test_X.indices]))
        assert touched.tolist() == list(range(split.features.size))
        assert split.features.size == split.num_rows + split.test_y.size + 1
        assert split.features[-1] == 100
        assert split.X.has_sorted_indices


def test_the_whole_test_set_equals_its_pieces(tmp_path: Path, settings: DataSettings) -> None:
    info = prepare(replace(settings, test="0.25"), tmp_path / "out")

    X, y = info.load_test()

    assert info.num_test_rows == 6 and info.num_rows == 17
    assert np.array_equal(X.toarray(), full_width(info, "test_X"))
    assert y.tolist() == [int(v) for split in range(4) for v in read_split(info.split_path(split)).test_y]


def test_a_test_file_may_touch_features_that_training_does_not(tmp_path: Path, settings: DataSettings) -> None:
    test = write_libsvm(tmp_path / "test", num_rows=3, first=130)

    info = prepare(replace(settings, test=str(test)), tmp_path / "out")

    assert info.num_features == 133
    assert info.split_test_rows == (0, 1, 1, 1)
    with pytest.raises(DataError, match="101 features is 101"):
        prepare(replace(settings, test=str(test), features=101), tmp_path / "narrow")


@pytest.mark.parametrize("columns", [(), ("a", "b"), ("0", "1")])
def test_columns_of_a_test_file_are_found_by_name(tmp_path: Path, columns: tuple[str, ...]) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("a,b,price\n1,2,3\n4,5,6\n")
    test.write_text("price,b,a\n30,20,10\n")
    settings = DataSettings(str(train), "regression", 1, test=str(test), columns=columns)

    X, y = prepare(settings, tmp_path / "out").load_test()

    assert X.tolist() == [[10, 20]] and y.tolist() == [30]
    test.write_text("price,b,c\n30,20,10\n")
    with pytest.raises(DataError, match=r"test.csv: no column a: must have the columns of the training data: a, b"):
        prepare(settings, tmp_path / "out")


def test_columns_of_the_same_name_keep_their_order(tmp_path: Path) -> None:
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text("a,a,y\n1,2,0\n4,5,1\n")
    settings = DataSettings(str(tmp_path / "train.csv"), "binary", 1, test=str(tmp_path / "test.csv"))

    assert prepare(settings, tmp_path / "out").load_test()[0].tolist() == [[1, 2], [4, 5]]


def test_folds_cover_the_rows_once(settings: DataSettings) -> None:
    tests = [divide(23, replace(settings, folds=5, fold=fold))[1] for fold in range(5)]

    assert sorted(np.concatenate(tests).tolist()) == list(range(23))
    assert {test.size for test in tests} == {4, 5}


def test_the_last_rows_may_be_the_test_set(settings: DataSettings) -> None:
    train, test = divide(23, replace(settings, test="last:3"))

    assert test.tolist() == [20, 21, 22] and train.tolist() == list(range(20))


def test_the_division_depends_on_the_seed_and_not_on_the_number_of_splits(settings: DataSettings) -> None:
    base = replace(settings, test="0.5")

    assert np.array_equal(divide(100, base)[1], divide(100, replace(base, num_splits=9))[1])
    assert not np.array_equal(divide(100, base)[1], divide(100, replace(base, seed=6))[1])


def test_fewer_rows_than_splits_are_refused_with_both_numbers(tmp_path: Path, settings: DataSettings) -> None:
    with pytest.raises(DataError, match=r"23 .* 24 splits"):
        prepare(replace(settings, num_splits=24), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_statistics_come_from_the_training_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("x,y\n" + "\n".join(f"{k},{k % 2}" for k in range(20)))
    settings = DataSettings(str(path), "binary", num_splits=3, test="last:10", normalize="standard")

    info = prepare(settings, tmp_path / "out")

    normalizer = info.load_normalizer()
    assert normalizer.mean is not None and normalizer.mean.tolist() == [4.5]
    assert abs(full_width(info).mean()) < 1e-6
    assert info.load_test()[0].min() > 1.5
    assert info.feature_names == ("x",)


def test_the_same_settings_give_the_same_bytes(tmp_path: Path, settings: DataSettings) -> None:
    first, second = (prepare(settings, tmp_path / name) for name in ("a", "b"))

    assert first.split_checksums == second.split_checksums
    blobs = [second.split_path(split).read_bytes() for split in range(4)]
    assert tuple(hashlib.sha256(blob).hexdigest() for blob in blobs) == first.split_checksums


def test_the_description_is_read_back(tmp_path: Path, settings: DataSettings) -> None:
    info = prepare(replace(settings, test="0.2", normalize="l2"), tmp_path / "out")

    assert open_dataset(tmp_path / "out" / info.key) == info
    assert info.settings.index_base == "1"
    assert info.source == "train (libsvm): 23 rows x 101 features, 2 classes, test 0.2"


def test_a_second_preparation_takes_what_the_cache_has(tmp_path: Path, settings: DataSettings) -> None:
    first = prepare(settings, tmp_path / "cache")
    split = tmp_path / "cache" / first.key / "split-00000.eps"
    inode = split.stat().st_ino

    assert prepare(settings, tmp_path / "cache") == first
    assert split.stat().st_ino == inode


def test_the_key_changes_with_content_and_settings_but_not_with_the_folder(
    tmp_path: Path, settings: DataSettings
) -> None:
    (tmp_path / "other").mkdir()
    copy = write_libsvm(tmp_path / "other" / "train")
    key = dataset_key(settings)

    assert dataset_key(replace(settings, data=str(copy))) == key
    assert dataset_key(replace(settings, seed=6)) != key
    write_libsvm(copy, num_rows=24)
    assert dataset_key(replace(settings, data=str(copy))) != key


def test_a_damaged_cache_entry_is_built_again(tmp_path: Path, settings: DataSettings) -> None:
    cache = tmp_path / "cache"
    cached = prepare(settings, cache)
    cached.split_path(1).write_bytes(b"short")

    again = prepare(settings, cache)

    assert read_split(again.split_path(1)).num_rows == again.split_rows[1]
    assert [path.name for path in cache.iterdir()] == [cached.key]


def test_what_killed_preparations_have_left_is_removed_by_the_next(tmp_path: Path, settings: DataSettings) -> None:
    cache = tmp_path / "cache"
    left = cache / f"{DATASET_PREFIX}of-a-killed-one"
    (left / "made").mkdir(parents=True)
    (left / "lock").touch()
    with own_folder(cache, DATASET_PREFIX) as running:
        assert {path.name for path in cache.iterdir()} == {running.name}
        left.mkdir()
        (left / "lock").touch()
        info = prepare(settings, cache)
        assert {path.name for path in cache.iterdir()} == {info.key, running.name}


def test_a_data_set_that_was_taken_lately_is_not_unused(tmp_path: Path, settings: DataSettings) -> None:
    before_s = time.time() - 1.0
    info = prepare(settings, tmp_path)
    os.utime(info.directory, (0.0, 0.0))
    assert list(unused_datasets(tmp_path, {info.key}, before_s)) == []
    assert list(unused_datasets(tmp_path, (), before_s)) == [info.directory]
    assert prepare(settings, tmp_path) == info
    assert list(unused_datasets(tmp_path, (), before_s)) == []


def test_preparing_at_once_gives_one_complete_data_set(tmp_path: Path, settings: DataSettings) -> None:
    barrier = threading.Barrier(4)

    def work(number: int) -> Any:
        barrier.wait(timeout=20)
        return prepare(settings, tmp_path / "cache")

    found = at_once(4, work)

    assert isinstance(found[0], DatasetInfo) and found == [found[0]] * 4
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_folder_without_a_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no prepared data set"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        ("binary", "123", r"3 classes \(1, 2, 3\): a binary task needs exactly 2"),
        ("multiclass", "111", r"1 class \(1\): a multiclass task needs at least 2"),
        ("regression", "aba", r"labels are names \(a, b\): regression needs numbers"),
    ],
)
def test_labels_that_do_not_go_with_the_task_are_refused(tmp_path: Path, task: Any, labels: str, message: str) -> None:
    path = tmp_path / "d.csv"
    path.write_text("\n".join(f"{k},{label}" for k, label in enumerate(labels)))

    with pytest.raises(DataError, match=message):
        prepare(DataSettings(str(path), task, num_splits=1), tmp_path / "out")


def test_a_class_that_only_the_test_file_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,a\n2,b\n")
    (tmp_path / "b.csv").write_text("1,a\n2,c\n")
    settings = DataSettings(str(tmp_path / "a.csv"), "binary", 1, test=str(tmp_path / "b.csv"))

    with pytest.raises(DataError, match=r"labels c .*: .* a, b"):
        prepare(settings, tmp_path / "out")


def test_regression_targets_are_float32(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,0.5\n2,1e3\n3,-2\n")

    info = prepare(DataSettings(str(tmp_path / "a.csv"), "regression", 1), tmp_path / "out")

    y = read_split(info.split_path(0)).y
    assert y.dtype == np.float32 and sorted(y.tolist()) == [-2, 0.5, 1000]
    assert info.classes == () and not info.is_sparse and not sparse.issparse(info.load_test()[0])


@pytest.mark.parametrize("option", [{"label_column": "first"}, {"delimiter": ","}, {"index_base": "1"}])
def test_options_that_no_file_of_the_data_has_are_refused(
    tmp_path: Path, settings: DataSettings, option: dict[str, str]
) -> None:
    np.savez(tmp_path / "rows.npz", X=np.eye(8, 3), y=np.arange(8) % 2)
    (tmp_path / "rows.csv").write_text("0,1,0,0\n1,0,1,0\n")
    chosen = replace(settings, data=str(tmp_path / "rows.npz"), **option)  # type: ignore[arg-type]
    ((name, value),) = option.items()
    with pytest.raises(ConfigError, match=f"{name} is '{value}', but format npz has no such option: leave it out"):
        prepare(chosen, tmp_path / "cache")
    if name != "index_base":
        assert prepare(replace(chosen, test=str(tmp_path / "rows.csv")), tmp_path / "cache").num_test_rows == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_splits": 0}, "splits is 0"),
        ({"test": "1.5"}, "test is 1.5, but a fraction must be above 0 and below 1"),
        ({"test": "last:0"}, "must be last:N"),
        ({"folds": 1}, "folds is 1"),
        ({"folds": 3, "fold": 3}, r"fold is 3, but must be in 0 \.\. 2"),
        ({"fold": 1}, "there are no folds"),
        ({"folds": 3, "test": "0.2"}, "both folds"),
        ({"normalize": "max"}, "normalize is 'max'"),
        ({"task": "ranking"}, "task is 'ranking'"),
        ({"test": "0.2", "test_labels": "y"}, "test is not a file"),
        ({"seed": -1}, "seed is -1"),
        ({"target_scale": 2.0}, "target_scale is 2.0, but only a regression's labels are divided by it"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: DataSettings, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(settings, **change)


def test_settings_survive_a_dictionary_and_refuse_unknown_names(settings: DataSettings) -> None:
    chosen = replace(settings, columns=("a", "b"))

    assert DataSettings.from_dict(chosen.to_dict()) == chosen
    with pytest.raises(ConfigError, match="colour"):
        DataSettings.from_dict({**chosen.to_dict(), "colour": 1})
    with pytest.raises(ConfigError, match="lack num_splits"):
        DataSettings.from_dict({"data": "x", "task": "binary"})
