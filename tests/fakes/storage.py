"""Stores of files: in memory, with faults to order, and in a folder that processes share."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from eps.errors import StorageError
from eps.storage.api import Storage
from eps.storage.local import LocalStorage

#: See :class:`SharedFolder`.
AWAY = ".away"


def put(storage: Storage, path: str, data: bytes) -> None:
    with storage.write(path) as file:
        file.write(data)


def get(storage: Storage, path: str) -> bytes:
    with storage.read(path) as file:
        return file.read()


def directories_cannot_be_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every sync of a directory of this machine fail, and no sync of a file."""
    fsync = os.fsync

    def sync_a_file(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync_a_file)


class _Limited(io.BytesIO):
    """A file on a device with so much room."""

    def __init__(self, room_bytes: int | None) -> None:
        super().__init__()
        self._room_bytes = room_bytes

    def write(self, data: object) -> int:
        count = super().write(data)  # type: ignore[arg-type]
        if self._room_bytes is not None and self.tell() > self._room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return count


class MemoryStorage:
    """Implements :class:`eps.storage.api.Storage`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        #: Bytes that a file may have before the device is full; None is no limit.
        self.room_bytes: int | None = None
        #: Every change is refused, as by a file system that is mounted read-only.
        self.read_only = False
        #: What is written or renamed and cannot be made durable: it is there, and an error says so all the same.
        self.unsynced: set[str] = set()
        #: What cannot be removed.
        self.stuck: set[str] = set()
        #: Names can be given, and contents neither written nor read, as by an HDFS that has lost its DataNodes.
        self.without_contents = False

    def describe(self, path: str) -> str:
        return f"memory:{path}"

    def _check(self, path: str) -> None:
        if self.read_only:
            raise StorageError(f"{self.describe(path)}: cannot be written: {os.strerror(errno.EROFS)}")

    def _check_contents(self, path: str) -> None:
        if self.without_contents:
            raise StorageError(f"{self.describe(path)}: no DataNode is there")

    @contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        self._check(path)
        self._check_contents(path)
        if path in self._folders() or any(path.startswith(f"{name}/") for name in self.files):
            raise StorageError(f"{self.describe(path)}: cannot be written: {os.strerror(errno.EISDIR)}")
        file = _Limited(self.room_bytes)
        try:
            yield file
        except OSError as error:
            raise StorageError(f"{self.describe(path)}: cannot be written: {error.strerror or error}") from error
        self.files[path] = file.getvalue()
        self._sync(path)

    def _sync(self, path: str) -> None:
        if path in self.unsynced:
            raise StorageError(f"{self.describe(path)}: cannot be synced: {os.strerror(errno.EIO)}")

    @contextmanager
    def read(self, path: str) -> Iterator[BinaryIO]:
        if path not in self.files:
            raise StorageError(f"{self.describe(path)}: cannot be read: {os.strerror(errno.ENOENT)}")
        self._check_contents(path)
        yield io.BytesIO(self.files[path])

    def _folders(self) -> set[str]:
        return {"/".join(path.split("/")[:i]) for path in self.files for i in range(1, path.count("/") + 1)}

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        return sorted({path[len(prefix) :].split("/")[0] for path in self.files if path.startswith(prefix)})

    def rename(self, folder: str, target: str) -> None:
        self._check(folder)
        is_there = folder in self._folders() or folder in self.files
        if not is_there or target in self._folders() or target in self.files:
            raise StorageError(f"{self.describe(folder)}: cannot be renamed to {target}")
        moved = {path: target + path[len(folder) :] for path in self.files if f"{path}/".startswith(f"{folder}/")}
        for path, new in moved.items():
            self.files[new] = self.files.pop(path)
        self._sync(target)

    def remove(self, path: str) -> None:
        self._check(path)
        if path in self.stuck:
            raise StorageError(f"{self.describe(path)}: cannot be removed: {os.strerror(errno.EBUSY)}")
        for name in [name for name in self.files if not path or name == path or name.startswith(f"{path}/")]:
            del self.files[name]


class PowerCut(Exception):
    """The machine goes down in the middle of what it does."""


class VolatileStorage(MemoryStorage):
    """A store whose machine loses its power at one step: before it, in the middle of it, or after it.

    Parameters
    ----------
    cut_at : int
        Number of the step; a file that is written or removed, and a folder that is renamed, is one.
    """

    def __init__(self, cut_at: int) -> None:
        super().__init__()
        self.steps = 0
        self._cut_at = cut_at
        #: Folders whose new names were not made durable, as (before, now).
        self._renamed: list[tuple[str, str]] = []

    def _step(self) -> None:
        if self.steps == self._cut_at:
            raise PowerCut
        self.steps += 1

    @contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        self._step()
        with super().write(path) as file:
            yield file
        self._step()

    def rename(self, folder: str, target: str) -> None:
        self._step()
        self._renamed.append((folder, target))
        super().rename(folder, target)
        # A sync of the folder that holds both names makes all of its names durable.
        self._renamed.clear()
        self._step()

    def remove(self, path: str) -> None:
        for name in [name for name in self.files if name == path or name.startswith(f"{path}/")]:
            self._step()
            super().remove(name)

    def lose_power(self) -> None:
        """Take back what was not made durable, and let the machine run again."""
        self._cut_at = -1
        for before, now in reversed(self._renamed):
            if now in self._folders():
                super().rename(now, before)


class _Appended:
    """A file that one process writes, until somebody fences it."""

    def __init__(self, storage: LoggedStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self.is_open = True

    def write(self, data: bytes) -> None:
        self._storage.check_append(self._path, self)
        self._storage.files[self._path] += data

    def sync(self) -> None:
        self._storage.check_append(self._path, self)

    def is_fenced(self) -> bool:
        return self._storage.is_fenced(self._path, self)

    def close(self) -> None:
        self.is_open = False


class LoggedStorage(MemoryStorage):
    """Implements :class:`eps.storage.shared_log.LogStorage`."""

    def __init__(self) -> None:
        super().__init__()
        self._writers: dict[str, _Appended] = {}
        #: Nothing more can be appended, as where every copy of a file's last block is lost.
        self.appends_fail = False
        #: The next files that are begun are there, and nobody is told.
        self.unanswered = 0
        #: Files that nobody has closed, and whose writer lost what it wrote to: they cannot be read before a fence.
        self.unclosed: set[str] = set()

    def append(self, path: str, head: bytes) -> _Appended:
        self._check(path)
        self._check_contents(path)
        if path in self.files:
            raise StorageError(f"{self.describe(path)}: cannot be made: {os.strerror(errno.EEXIST)}")
        self.files[path] = head
        if self.unanswered:
            self.unanswered -= 1
            raise StorageError(f"{self.describe(path)}: cannot be made: no answer")
        self._writers[path] = _Appended(self, path)
        return self._writers[path]

    def mark(self, path: str) -> None:
        self._check(path)
        self.files.setdefault(path, b"")

    @contextmanager
    def read(self, path: str) -> Iterator[BinaryIO]:
        if path in self.unclosed:
            raise StorageError(f"{self.describe(path)}: cannot be read at byte 0: Cannot obtain block length")
        with super().read(path) as file:
            yield file

    def fence(self, path: str) -> None:
        self._writers.pop(path, None)
        self.unclosed.discard(path)

    def is_fenced(self, path: str, writer: _Appended) -> bool:
        return self._writers.get(path) is not writer

    def check_append(self, path: str, writer: _Appended) -> None:
        fails = self.appends_fail or self.read_only or self.without_contents
        if fails and path in self._writers:
            self.unclosed.add(path)
        if fails or self._writers.get(path) is not writer or not writer.is_open:
            raise StorageError(f"{self.describe(path)}: cannot be written: the file is not open for this process")


class _Fenced:
    """A file of a folder that several processes share, open to append until another of them fences it."""

    def __init__(self, path: Path, head: bytes) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._file.write(head)

    def write(self, data: bytes) -> None:
        _check_not_away(self._path)
        # Whoever fences it puts another file in its place; in between nobody may be writing.
        with _alone(self._path.parent):
            if self._file.closed or self._is_replaced():
                raise StorageError(f"{self._path}: cannot be written: another process has taken it over")
            self._file.write(data)

    def _is_replaced(self) -> bool:
        return not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path))

    def sync(self) -> None:
        self.write(b"")

    def is_fenced(self) -> bool:
        with _alone(self._path.parent):
            return self._is_replaced()

    def close(self) -> None:
        self._file.close()


def _check_not_away(path: Path) -> None:
    if (path.parent / AWAY).exists():
        raise StorageError(f"{path}: cannot be written: the store is away")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".fence").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class SharedFolder(LocalStorage):
    """A folder of this machine as :class:`eps.storage.shared_log.LogStorage`, also between processes.

    While a file :data:`AWAY` is in the folder of a log, nothing of that can be written.
    """

    def append(self, path: str, head: bytes) -> _Fenced:
        target = Path(self.describe(path))
        _check_not_away(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _Fenced(target, head)
        except OSError as error:
            raise StorageError(f"{target}: cannot be made: {error.strerror}") from error

    def mark(self, path: str) -> None:
        target = Path(self.describe(path))
        _check_not_away(target)
        target.touch()

    def fence(self, path: str) -> None:
        target = Path(self.describe(path))
        with _alone(target.parent):
            copy = target.with_name(f".{target.name}.fenced")
            copy.write_bytes(target.read_bytes())
            copy.replace(target)
