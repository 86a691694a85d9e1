"""Ownership of a checkpoint folder outside of a job's directory, and its removal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from eps.errors import ConfigError, StorageError
from eps.storage.claims import OWNER, Claim, claim, owner_of, release, remove_claimed
from eps.storage.jobdir import JobDir
from eps.storage.local import LocalStorage
from eps.storage.locations import Location, RemotePath, open_storage
from tests.fakes.webhdfs import FakeHdfs


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHdfs]:
    pytest.importorskip("hdfs")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "20")
    with FakeHdfs() as found:
        yield found


@pytest.fixture(params=["here", "on hdfs"])
def folder(request: pytest.FixtureRequest, hdfs: FakeHdfs, tmp_path: Path) -> Location:
    return tmp_path / "c" / "a9a" if request.param == "here" else RemotePath("webhdfs", hdfs.authority, "/c/a9a")


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    found = JobDir(tmp_path / "home" / "jobs" / "a9a")
    found.path.mkdir(parents=True)
    return found


def claimed(job: JobDir, hdfs: FakeHdfs, conf_dir: Path) -> RemotePath:
    """Have a job have a folder with a checkpoint that EPS chose the place of."""
    (conf_dir / "core-site.xml").write_text("<configuration></configuration>")
    place = RemotePath("webhdfs", hdfs.authority, "/eps/checkpoints/a9a")
    Claim(str(place), owner_of(job), str(conf_dir)).write(job)
    claim(place, owner_of(job))
    hdfs.put(f"{place.path}/0001-00000010/manifest.json", b"{}")
    return place


def test_who_is_interrupted_while_taking_a_folder_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(LocalStorage):
        @contextmanager
        def write(self, path: str) -> Iterator[BinaryIO]:
            (tmp_path / "a9a").mkdir()
            raise KeyboardInterrupt
            yield

    monkeypatch.setattr("eps.storage.claims.open_storage", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        claim(tmp_path / "a9a", "one:/jobs/a9a")
    assert not (tmp_path / "a9a").exists()


def test_a_folder_goes_with_its_job_only(folder: Location) -> None:
    storage = open_storage(folder)
    assert release(storage, "one:/jobs/a9a"), "there is none"
    claim(folder, "one:/jobs/a9a")
    with storage.write("0001-00000010/manifest.json") as file:
        file.write(b"{}")
    assert not release(storage, "two:/jobs/a9a")
    assert storage.names("") == ["0001-00000010", OWNER]
    assert release(storage, "one:/jobs/a9a") and storage.names("") == []
    with storage.write("anything") as file:
        file.write(b"of somebody who says nothing")
    assert not release(storage, "one:/jobs/a9a") and not release(storage, "")
    assert storage.names("") == ["anything"]


def test_what_eps_chose_goes_and_the_note_of_it(job: JobDir, hdfs: FakeHdfs, tmp_path: Path) -> None:
    claimed(job, hdfs, tmp_path)
    hdfs.put("/eps/checkpoints/other/owner.txt", b"one:/jobs/other\n")
    remove_claimed(job)
    assert [path for path in hdfs.nodes if "a9a" in path] == [] and job.record().yarn.claim is None
    assert "/eps/checkpoints/other/owner.txt" in hdfs.nodes
    remove_claimed(job)


def test_what_has_become_somebody_elses_stays(
    job: JobDir, hdfs: FakeHdfs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = claimed(job, hdfs, tmp_path)
    hdfs.put(f"{place.path}/{OWNER}", b"elsewhere:/jobs/a9a\n")
    remove_claimed(job)
    assert f"{place.path}/0001-00000010/manifest.json" in hdfs.nodes and job.record().yarn.claim is None
    assert caplog.messages == [f"{place} is not removed: its {OWNER} does not name {owner_of(job)}"]


def test_what_cannot_be_removed_is_known_afterwards(job: JobDir, hdfs: FakeHdfs, tmp_path: Path) -> None:
    place = claimed(job, hdfs, tmp_path)
    for op in ("LISTSTATUS", "OPEN", "DELETE"):
        hdfs.fault(op, "error", name="AccessControlException", message="Permission denied: user=eva")
        with pytest.raises(StorageError, match="Permission denied"):
            remove_claimed(job)
        assert Claim.read(job) is not None and f"{place.path}/{OWNER}" in hdfs.nodes
    (tmp_path / "core-site.xml").unlink()
    with pytest.raises(ConfigError, match="no Hadoop configuration"):
        remove_claimed(job)


def test_a_place_for_checkpoints_that_is_a_file_is_refused(hdfs: FakeHdfs, folder: Location, tmp_path: Path) -> None:
    hdfs.put("/c", b"")
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"/c, .* must be a folder$"):
        claim(folder, "a job")
