"""Data on HDFS: files that are trained on, prepared data sets, and workers that read their splits of one."""

from __future__ import annotations

import gzip
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from eps.data import publish
from eps.data.cut import check_inputs, dataset_key, prepare
from eps.data.dataset import DatasetInfo, is_complete, open_dataset, split_name
from eps.data.publish import publish_dataset
from eps.data.settings import DataSettings
from eps.data.splitfile import read_split
from eps.errors import ConfigError, DataError, StorageError, TrainingError, TransferError
from eps.job.launch import shape_of
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import Runtime
from eps.storage.locations import RemotePath
from eps.system import interrupt
from eps.worker.datasets import Datasets
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.webhdfs import FakeHdfs
from tests.threads import at_once

ROWS = "\n".join(f"{1 if k % 3 else -1} {k + 1}:{k + 1} 101:0.5" for k in range(23))


@pytest.fixture
def remote(hdfs: FakeHdfs) -> RemotePath:
    """The root of the file system."""
    return RemotePath("webhdfs", hdfs.authority, "/")


def settings_of(data: object, **rest: str) -> DataSettings:
    return DataSettings(data=str(data), task="binary", num_splits=4, seed=5, **rest)


def local(tmp_path: Path) -> DatasetInfo:
    (tmp_path / "train").write_text(ROWS)
    return prepare(replace(settings_of(tmp_path / "train"), test="0.25"), tmp_path / "out")


def test_files_on_hdfs_give_the_splits_of_the_same_files_here(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path
) -> None:
    (tmp_path / "train").write_text(ROWS)
    (tmp_path / "rest").write_text(ROWS[::-1][::-1])
    hdfs.put("/data/train", gzip.compress(ROWS.encode()))
    hdfs.put("/data/rest", ROWS.encode())
    here = prepare(settings_of(tmp_path / "train", test=str(tmp_path / "rest")), tmp_path / "a")
    there = prepare(settings_of(remote / "data/train", test=str(remote / "data/rest")), tmp_path / "b")
    assert there.split_checksums == here.split_checksums and there.num_test_rows == here.num_test_rows == 23


def test_a_folder_and_another_file_system_are_told_apart_from_a_file_that_is_missing(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path
) -> None:
    hdfs.put("/data/train", ROWS.encode())
    for folder in (remote / "data", tmp_path):
        with pytest.raises(DataError, match=f"{folder}: is a folder"):
            prepare(settings_of(folder), tmp_path / "a")
    for missing in (remote / "data/none", tmp_path / "none"):
        with pytest.raises(DataError, match=f"{missing}: no such file"):
            prepare(settings_of(missing), tmp_path / "a")
    for text in ("s3://a/b", f"{tmp_path / 'train'},s3://a/b"):
        with pytest.raises(ConfigError, match="'s3://a/b'"):
            prepare(settings_of(text), tmp_path / "a")


def test_labels_beside_images_are_found_and_several_files_are_read(hdfs: FakeHdfs, remote: RemotePath) -> None:
    hdfs.put("/t10k-images-idx3-ubyte", b"\0\0\x08\x03" + b"\0\0\0\x08\0\0\0\x01\0\0\0\x01" + bytes(range(8)))
    hdfs.put("/t10k-labels-idx1-ubyte", b"\0\0\x08\x01" + b"\0\0\0\x08" + b"\0\1" * 4)
    first = dataset_key(settings_of(remote / "t10k-images-idx3-ubyte"))
    hdfs.put("/t10k-labels-idx1-ubyte", b"\0\0\x08\x01" + b"\0\0\0\x08" + b"\1\0" * 4)
    assert dataset_key(settings_of(remote / "t10k-images-idx3-ubyte")) != first
    hdfs.put("/one,two", b"a\tsome words\n" * 8)
    hdfs.put("/three", b"b\tother words\n" * 8)
    check_inputs(settings_of(remote / "one,two"))
    check_inputs(settings_of(f"{remote / 'three'}, {remote / 'three'}"))
    with pytest.raises(DataError, match="/four: no such file"):
        check_inputs(settings_of(f"{remote / 'three'},{remote / 'four'}"))


def test_a_file_that_did_not_change_is_not_read_again(hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path) -> None:
    hdfs.put("/train", ROWS.encode())
    settings, cache = settings_of(remote / "train"), tmp_path / "cache"
    first = prepare(settings, cache)
    assert prepare(settings, cache) == first and len(hdfs.asked("OPEN", at_data_node=True)) == 1
    hdfs.put("/train", ROWS.replace("0.5", "0.7").encode())
    assert prepare(settings, cache).split_checksums != first.split_checksums


def test_a_file_that_may_not_be_read_is_told(hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path) -> None:
    hdfs.put("/train", ROWS.encode())
    hdfs.fault("OPEN", "error", name="AccessControlException", message="Permission denied: user=eva")
    with pytest.raises(DataError, match=r"/train: .*user=eva"):
        prepare(settings_of(remote / "train"), tmp_path / "out")


# ---- prepared data sets


def test_a_data_set_is_published_once_and_whole(hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path) -> None:
    info, cache = local(tmp_path), remote / "cache"
    published = publish_dataset(info, cache)
    assert published.directory == cache / info.key and is_complete(published)
    found = open_dataset(str(published.directory))
    assert found == published and (found.load_test()[1] == info.load_test()[1]).all()
    assert read_split(found.split_path(2)).num_rows == info.split_rows[2]
    assert found.load_normalizer().to_arrays().keys() == info.load_normalizer().to_arrays().keys()
    writes = len(hdfs.asked("CREATE"))
    assert publish_dataset(info, cache) == published and len(hdfs.asked("CREATE")) == writes == 7
    assert cache.storage().names("") == [info.key]


def test_several_may_publish_it_at_once(hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path) -> None:
    info, cache = local(tmp_path), remote / "cache"
    found = at_once(3, lambda _: publish_dataset(info, cache))
    assert [each.directory for each in found] == [cache / info.key] * 3
    assert cache.storage().names("") == [info.key] and is_complete(found[0])


def test_one_that_lost_a_file_is_published_again(hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path) -> None:
    info, cache = local(tmp_path), remote / "cache"
    published = publish_dataset(info, cache)
    cache.storage().remove(f"{info.key}/{split_name(1)}")
    assert not is_complete(published)
    assert is_complete(publish_dataset(info, cache))


def test_what_arrives_otherwise_than_it_was_sent_is_no_data_set(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, cache = local(tmp_path), remote / "cache"
    fill = hdfs.fill
    monkeypatch.setattr(hdfs, "fill", lambda node, content: fill(node, bytes(len(content))))
    with pytest.raises(StorageError, match=r"00000\.eps: .* was sent"):
        publish_dataset(info, cache)
    assert cache.storage().names("") == []
    monkeypatch.undo()
    (info.directory / split_name(0)).write_bytes(b"damaged here")
    with pytest.raises(StorageError, match=r"00000\.eps: .* again"):
        publish.publish_dataset(info, cache)


def test_of_one_whose_publishing_is_to_end_nothing_is_there(hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path) -> None:
    """Its files are sent by several threads: none of them goes on."""
    info, cache = local(tmp_path), remote / "cache"
    looks: list[str] = []

    def look() -> None:
        looks.append(threading.current_thread().name)
        raise TrainingError("enough")

    with pytest.raises(TrainingError, match="enough"), interrupt.stopped_by(look):
        publish_dataset(info, cache)
    assert looks and all(name.startswith("publish") for name in looks)
    assert hdfs.asked("CREATE") == [] and cache.storage().names("") == []


# ---- a worker


def test_a_worker_reads_the_files_of_its_splits_and_no_others(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path
) -> None:
    info = local(tmp_path)
    published = publish_dataset(info, remote / "cache")
    runtime = Runtime("job", JobSpec(splits=4, workers=1), shape_of(info), published.directory, tmp_path)
    assert Runtime.from_json(runtime.to_json()).dataset_dir == published.directory
    with hdfs.lock:
        hdfs.requests.clear()
    datasets = Datasets(runtime, tmp_path / "scratch")
    datasets.load_initial(2)
    datasets.load_initial(2)
    assert datasets.path(2).read_bytes() == info.split_path(2).read_bytes()
    assert {path for _, path, _, _ in hdfs.requests} == {f"/cache/{info.key}/{split_name(2)}"}
    assert len(hdfs.asked("OPEN")) == 1 and datasets.activate(2).num_rows == info.split_rows[2]
    hdfs.put(f"/cache/{info.key}/{split_name(1)}", b"something else")
    with pytest.raises(TransferError, match=r"00001\.eps: .* split 1 "):
        datasets.load_initial(1)
    assert not datasets.holds(1) and [path.name for path in (tmp_path / "scratch").iterdir()] == [split_name(2)]
