"""What every store of files does; an implementation is done when it passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eps.errors import StorageError
from eps.storage.api import Storage
from eps.storage.hdfs import HdfsStorage
from eps.storage.local import LocalStorage
from eps.storage.locations import open_storage
from tests.fakes.storage import MemoryStorage, directories_cannot_be_synced, get, put
from tests.fakes.webhdfs import FakeHdfs


@pytest.fixture(scope="module")
def fake_hdfs() -> Iterator[FakeHdfs]:
    with FakeHdfs() as fake:
        yield fake


@pytest.fixture(params=["local", "memory", "hdfs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "hdfs":
        fake: FakeHdfs = request.getfixturevalue("fake_hdfs")
        return open_storage(f"webhdfs://{fake.authority}{tmp_path}/a/root", patience_s=20.0)
    return LocalStorage(tmp_path / "a" / "root") if request.param == "local" else MemoryStorage()


def renames_are_not_logged(storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the NameNode rename, and then say that it could not write that into its log."""
    from hdfs import HdfsError

    rename = storage._web.client._rename

    def done_and_not_logged(*args: object, **rest: object) -> None:
        rename(*args, **rest)
        raise HdfsError("the edits cannot be synced", exception="IOException")

    monkeypatch.setattr(storage._web.client, "_rename", done_and_not_logged)


@pytest.fixture
def unsynced(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what lets the store fail, from then on, to make a name durable."""

    def begin() -> None:
        if isinstance(storage, MemoryStorage):
            storage.unsynced.update(("folder/file", "two"))
        elif isinstance(storage, HdfsStorage):
            renames_are_not_logged(storage, monkeypatch)
        else:
            directories_cannot_be_synced(monkeypatch)

    return begin


def test_what_was_written_is_read_and_folders_are_made(storage: Storage) -> None:
    put(storage, "one/two/file", b"content")
    put(storage, "top", b"")
    assert get(storage, "one/two/file") == b"content" and get(storage, "top") == b""
    assert storage.names("") == ["one", "top"] and storage.names("one/two") == ["file"]


def test_a_file_is_written_over_as_a_whole(storage: Storage) -> None:
    put(storage, "file", b"a longer content")
    put(storage, "file", b"short")
    assert get(storage, "file") == b"short"


def test_a_write_that_raises_leaves_what_was_there(storage: Storage) -> None:
    put(storage, "folder/file", b"before")
    with pytest.raises(RuntimeError, match="of the writer"), storage.write("folder/file") as file:
        file.write(b"half of")
        raise RuntimeError("of the writer")
    assert get(storage, "folder/file") == b"before" and storage.names("folder") == ["file"]


def test_a_write_that_cannot_be_made_durable_raises_and_leaves_the_old_or_the_new_whole(
    storage: Storage, unsynced: Callable[[], None]
) -> None:
    put(storage, "folder/file", b"before")
    unsynced()
    with pytest.raises(StorageError, match="folder"):
        put(storage, "folder/file", b"after")
    assert get(storage, "folder/file") in (b"before", b"after") and storage.names("folder") == ["file"]


def test_a_rename_that_cannot_be_made_durable_raises_and_leaves_the_folder_whole_under_one_name(
    storage: Storage, unsynced: Callable[[], None]
) -> None:
    put(storage, "one/a", b"1")
    put(storage, "one/b/c", b"2")
    unsynced()
    with pytest.raises(StorageError):
        storage.rename("one", "two")
    (name,) = storage.names("")
    assert name in ("one", "two") and get(storage, f"{name}/a") == b"1" and get(storage, f"{name}/b/c") == b"2"


def test_a_file_that_is_being_written_is_not_there(storage: Storage) -> None:
    with storage.write("folder/file") as file:
        file.write(b"content")
        with pytest.raises(StorageError, match="folder/file"), storage.read("folder/file"):
            pass


def test_what_is_missing_is_an_error_with_its_path(storage: Storage) -> None:
    with pytest.raises(StorageError, match="no/such/file"), storage.read("no/such/file"):
        pass
    assert storage.names("no/such") == []


def test_a_folder_is_renamed_with_all_that_is_in_it(storage: Storage) -> None:
    put(storage, "new.partial/a", b"1")
    put(storage, "new.partial/b/c", b"2")
    storage.rename("new.partial", "new")
    assert storage.names("") == ["new"] and get(storage, "new/b/c") == b"2"


def test_a_file_is_renamed_and_takes_the_place_of_nothing(storage: Storage) -> None:
    put(storage, "folder/.one", b"1")
    storage.rename("folder/.one", "folder/one")
    assert storage.names("folder") == ["one"] and get(storage, "folder/one") == b"1"
    put(storage, "folder/.two", b"2")
    with pytest.raises(StorageError, match="one"):
        storage.rename("folder/.two", "folder/one")
    assert get(storage, "folder/one") == b"1" and get(storage, "folder/.two") == b"2"


def test_a_rename_takes_the_place_of_nothing(storage: Storage) -> None:
    put(storage, "one/a", b"1")
    put(storage, "two/a", b"2")
    with pytest.raises(StorageError, match="two"):
        storage.rename("one", "two")
    with pytest.raises(StorageError, match="three"):
        storage.rename("three", "four")
    assert get(storage, "one/a") == b"1" and get(storage, "two/a") == b"2"


def test_a_folder_is_removed_with_all_that_is_in_it_and_a_repeat_is_harmless(storage: Storage) -> None:
    put(storage, "one/a", b"1")
    put(storage, "one/b/c", b"2")
    put(storage, "two", b"3")
    for _ in range(2):
        storage.remove("one")
        storage.remove("two")
    assert storage.names("") == []


def test_a_folder_where_a_file_is_to_be_is_an_error(storage: Storage) -> None:
    put(storage, "one/a", b"1")
    with pytest.raises(StorageError, match="one"):
        put(storage, "one", b"2")
    assert get(storage, "one/a") == b"1"


def test_description_names_the_path(storage: Storage) -> None:
    assert storage.describe("one/a").endswith("one/a")


def test_a_file_of_any_length_is_read_as_it_was_written_in_whatever_pieces(storage: Storage) -> None:
    content = bytes(range(256)) * (3 << 13) + b"end"
    for length in (0, 1, 4095, 4096, 1 << 20, (1 << 20) + 1, len(content)):
        for step in (1 << 22, 700_001):
            with storage.write("file") as file:
                for start in range(0, length, step):
                    assert file.write(content[start : min(start + step, length)]) == min(step, length - start)
            assert get(storage, "file") == content[:length], (length, step)
