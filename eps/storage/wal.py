"""An append-only event log with snapshots.

::

    snapshot-00000003    a state, as parts, each in a frame
    log-00000003         the events after it, a frame for each record
    snapshot-00000004
    log-00000004         the current log

A frame is magic, CRC-32, length and payload; the checksum covers length and payload.  A record is one write, so that a
killed process loses no written record; :meth:`EventLog.sync` makes records survive a power loss too.

Log ``n + 1`` begins when snapshot ``n + 1`` is *taken*; the snapshot may be written later, on another thread.  If it is
missing or damaged, snapshot ``n`` with the logs ``n`` and ``n + 1`` gives the same state, so two snapshots are kept.

A crash leaves a damaged end of the last log: it is dropped and reported.  Damage before an undamaged record happened
later and is an error.

Source: the scheme of ARIES (Mohan et al. 1992), section 3, without undo: the log holds inputs, so redo is enough.
"""

from __future__ import annotations

import os
import re
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from eps.errors import StorageError
from eps.storage.api import Storage
from eps.storage.atomic import FILE_MODE, atomic_writer, sync_directory
from eps.storage.local import LocalStorage

DIRECTORY_MODE = 0o700
LOG_HEAD = b"EPSLOG1\n"
SNAPSHOT_HEAD = b"EPSSNAP1"
#: Head of a log that misses records: no state may be restored from it.
GAP_HEAD = b"EPSGAP1\n"
#: Number of snapshots to keep.
KEPT = 2
_MAGIC = b"\xe5RC\x0a"
_FRAME = struct.Struct("<4sII")
_NAME = re.compile(r"(snapshot|log|gap)-(\d{8})")


@dataclass(frozen=True)
class Replay:
    """The content of a log."""

    #: Parts of the newest readable snapshot; None if there is none yet.
    snapshot: tuple[bytes, ...] | None
    #: Records since the snapshot, oldest first.
    records: tuple[bytes, ...]
    #: Unreadable files or parts that were not needed, as sentences.
    dropped: tuple[str, ...] = ()
    #: Wall-clock seconds since the last record was written; 0 for an empty log.
    age_s: float = 0.0


def frame(payload: bytes) -> bytes:
    """Return ``payload`` in a frame with magic, checksum and length."""
    size = len(payload)
    checksum = zlib.crc32(payload, zlib.crc32(size.to_bytes(4, "little")))
    return _FRAME.pack(_MAGIC, checksum, size) + payload


def unframe(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the payload of the frame at ``at`` and the offset of the next one; None if it is not whole."""
    if len(data) - at < _FRAME.size:
        return None
    magic, checksum, size = _FRAME.unpack_from(data, at)
    start = at + _FRAME.size
    if magic != _MAGIC or len(data) - start < size:
        return None
    payload = data[start : start + size]
    if zlib.crc32(payload, zlib.crc32(size.to_bytes(4, "little"))) != checksum:
        return None
    return payload, start + size


def has_frame_after(data: bytes, at: int) -> bool:
    while (at := data.find(_MAGIC, at + 1)) >= 0:
        if unframe(data, at) is not None:
            return True
    return False


class LogFolder:
    """The numbered files of a log in a store.

    Parameters
    ----------
    storage : Storage
    folder : str
        Default: the root of the store.
    """

    def __init__(self, storage: Storage, folder: str = "") -> None:
        self._storage, self._folder = storage, folder

    def path(self, kind: str, number: int) -> str:
        """Return the path in the store of the file of a kind (``snapshot``, ``log``, ``gap``) and number."""
        name = f"{kind}-{number:08d}"
        return f"{self._folder}/{name}" if self._folder else name

    def describe(self, kind: str, number: int) -> str:
        """Return the location of that file, for messages."""
        return self._storage.describe(self.path(kind, number))

    def numbers(self) -> dict[str, list[int]]:
        """Return kind -> the numbers of its files, sorted."""
        found: dict[str, list[int]] = {"snapshot": [], "log": [], "gap": []}
        for name in self._storage.names(self._folder):
            match = _NAME.fullmatch(name)
            if match:
                found[match[1]].append(int(match[2]))
        return {kind: sorted(numbers) for kind, numbers in found.items()}

    def read(self, kind: str, number: int) -> bytes:
        """Return the content of a file."""
        with self._storage.read(self.path(kind, number)) as file:
            return file.read()

    def newest_snapshot(self, dropped: list[str]) -> tuple[tuple[bytes, ...] | None, int]:
        """Return parts and number of the newest undamaged snapshot; None and 0 if there is none.

        ``dropped`` receives a sentence for each damaged one.
        """
        for number in reversed(self.numbers()["snapshot"]):
            parts = parts_of(self.read("snapshot", number))
            if parts is not None:
                return parts, number
            dropped.append(f"{self.describe('snapshot', number)}: is damaged, so the previous one is used")
        return None, 0

    def remove_older(self, number: int) -> None:
        """Remove the files before the last :data:`KEPT` snapshots up to ``number``."""
        numbers = self.numbers()
        first = [n for n in numbers["snapshot"] if n <= number][-KEPT:][0]
        for kind, there in numbers.items():
            for old in there:
                if old < first:
                    with suppress(StorageError):
                        self._storage.remove(self.path(kind, old))


def next_number(numbers: Mapping[str, Sequence[int]], last: int) -> int:
    """Return the smallest number above ``last`` and those of all files."""
    return max([last, *chain.from_iterable(numbers.values())]) + 1


class EventLog:
    """The open log of a job master; one process writes it, one thread at a time.

    Created by :meth:`open`.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self._files = LogFolder(LocalStorage(directory))
        #: The content when the log was opened.
        self.recovered = Replay(None, ())
        #: Why appends fail until the next snapshot; empty if they do not.
        self.error = ""
        self._fd = -1
        self._number = -1
        self._size_bytes = 0
        #: Files that the next sync must make durable.
        self._loose: set[Path] = set()

    @classmethod
    def open(cls, directory: Path) -> EventLog:
        """Open the log in ``directory``, creating it if missing; a torn last record is cut off.

        Raises
        ------
        StorageError
            The log is damaged, misses records, or cannot be read or written.
        """
        log = cls(directory)
        try:
            directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            log._recover()
        except StorageError:
            log.close()
            raise
        except OSError as error:
            log.close()
            raise StorageError(f"{directory}: cannot be opened: {error.strerror}") from error
        return log

    def append(self, record: bytes) -> None:
        """Append one record, in one write.

        Raises
        ------
        StorageError
            The record cannot be written; later appends fail too, until the next snapshot.
        """
        if self.error or self._fd < 0:
            raise StorageError(f"{self.path}: {self.error or 'the log has no snapshot yet'}")
        line = frame(record)
        try:
            written = os.pwrite(self._fd, line, self._size_bytes)
            if written < len(line):
                # Writing the rest raises the reason.
                while written < len(line):
                    written += os.pwrite(self._fd, line[written:], self._size_bytes + written)
        except OSError as error:
            self._give_up(f"a record of {len(line)} bytes cannot be written: {error.strerror}")
        self._size_bytes += len(line)

    def sync(self) -> None:
        """Return once everything appended survives a power loss.

        Raises
        ------
        StorageError
            The content on disk is unknown; later appends fail too, until the next snapshot.
        """
        if self.error or self._fd < 0:
            raise StorageError(f"{self.path}: {self.error or 'the log has no snapshot yet'}")
        try:
            os.fdatasync(self._fd)
            if self._loose:
                self._sync_loose()
        except OSError as error:
            self._give_up(f"a sync failed ({error.strerror}), so its end is unknown")

    def _sync_loose(self) -> None:
        for path in self._loose:
            # An obsolete file may have been removed.
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        sync_directory(self.path)
        self._loose = set()

    def snapshot(self, *parts: bytes, sync: bool = True) -> None:
        """Restart the log from the state ``parts``; see :meth:`begin`.

        Raises
        ------
        StorageError
            The snapshot cannot be written; a log without missing records is still complete.
        """
        error = self.error
        number = self.begin()
        try:
            self.write_snapshot(number, parts, sync=sync)
        except StorageError:
            if error:
                self._mark_gap()
            raise
        self.error = ""

    def begin(self) -> int:
        """Begin the next log and return the number of its snapshot, which any thread must write soon.

        Raises
        ------
        StorageError
            The next log cannot be created; the log is unchanged.
        """
        number = next_number(self._files.numbers(), self._number)
        self._start_log(number)
        return number

    def write_snapshot(self, number: int, parts: Sequence[bytes], *, sync: bool = True) -> None:
        """Write the snapshot at which log ``number`` began, and remove files that it makes obsolete.

        Raises
        ------
        StorageError
            The snapshot cannot be written; the log is complete without it.
        """
        with atomic_writer(self._snapshot(number), sync=sync) as file:
            for piece in snapshot_bytes(parts):
                file.write(piece)
        if not sync:
            self._loose.add(self._snapshot(number))
        self._files.remove_older(number)

    def close(self) -> None:
        """Close the file.  Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    # ---- files

    def _snapshot(self, number: int) -> Path:
        return self.path / self._files.path("snapshot", number)

    def _log(self, number: int) -> Path:
        return self.path / self._files.path("log", number)

    def _start_log(self, number: int) -> None:
        path = self._log(number)
        fd = -1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            if os.pwrite(fd, LOG_HEAD, 0) != len(LOG_HEAD):
                raise OSError(0, "the device is full")
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                with suppress(OSError):
                    os.unlink(path)
            raise StorageError(f"{path}: cannot be created: {error.strerror}") from error
        if self._number >= 0:
            # A later sync must also make the unsynced rest of this log durable.
            self._loose.add(self._log(self._number))
        self.close()
        self._fd, self._number, self._size_bytes = fd, number, len(LOG_HEAD)
        self._loose.add(path)

    def _give_up(self, reason: str) -> None:
        """Fail all appends until the next snapshot, and prevent the restore of a state that misses events."""
        self.error = reason
        self._mark_gap()
        raise StorageError(f"{self._log(self._number)}: {reason}")

    def _mark_gap(self) -> None:
        with suppress(OSError):
            # Overwriting needs no disk space.
            os.pwrite(self._fd, GAP_HEAD, 0)

    # ---- recovery

    def _recover(self) -> None:
        numbers = self._files.numbers()
        dropped: list[str] = []
        snapshot, base = self._files.newest_snapshot(dropped)
        logs = [n for n in numbers["log"] if n >= base]
        sizes = [self._log(n).stat().st_size for n in logs]
        if snapshot is None and not numbers["snapshot"] and all(size <= len(LOG_HEAD) for size in sizes):
            # The process died before its first record.
            return
        if snapshot is None:
            raise StorageError(f"{self.path}: no snapshot can be read: {'; '.join(dropped) or 'there is none'}")
        if logs and logs != list(range(base, logs[-1] + 1)):
            raise StorageError(f"{self._log(next(n for n in range(base, logs[-1]) if n not in logs))}: is missing")
        records: list[bytes] = []
        size_bytes, age_s = 0, 0.0
        for number in logs:
            data, where = self._files.read("log", number), self._files.describe("log", number)
            found, size_bytes = records_of(data, where, number == logs[-1], dropped)
            records += found
        if logs:
            path = self._log(logs[-1])
            age_s = max(0.0, time.time() - path.stat().st_mtime)
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            self._number = logs[-1]
            if size_bytes < len(LOG_HEAD):
                os.pwrite(self._fd, LOG_HEAD, 0)
                size_bytes = len(LOG_HEAD)
            if size_bytes < os.fstat(self._fd).st_size:
                os.ftruncate(self._fd, size_bytes)
            self._size_bytes = size_bytes
        elif snapshot is not None:
            # The process died between writing the snapshot and creating its log.
            self._start_log(base)
            sync_directory(self.path)
        self.recovered = Replay(snapshot, tuple(records), tuple(dropped), age_s)


def records_of(data: bytes, where: str, last: bool, dropped: list[str]) -> tuple[list[bytes], int]:
    """Return the records of a log and the length of its readable part.

    Parameters
    ----------
    data : bytes
        Content of the file ``where``.
    last : bool
        Whether it is the last log, whose end may be torn.
    dropped : list of str
        Receives a sentence if a torn end was dropped.

    Raises
    ------
    StorageError
        The log is damaged or misses records.
    """
    if data.startswith(GAP_HEAD):
        raise StorageError(f"{where}: records are missing, because writing one failed; the state cannot be restored")
    if not data.startswith(LOG_HEAD):
        if last and LOG_HEAD.startswith(data):
            return [], 0
        raise StorageError(f"{where}: offset 0: is not a log")
    records: list[bytes] = []
    at = len(LOG_HEAD)
    while at < len(data):
        found = unframe(data, at)
        if found is None:
            damaged = f"{where}: offset {at}: record {len(records) + 1} is damaged"
            if not last or has_frame_after(data, at):
                raise StorageError(f"{damaged}, and others follow it")
            dropped.append(f"{damaged}: dropped the last {len(data) - at} bytes")
            return records, at
        records.append(found[0])
        at = found[1]
    return records, at


def snapshot_bytes(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the content of a snapshot."""
    yield SNAPSHOT_HEAD
    yield frame(len(parts).to_bytes(4, "little"))
    for part in parts:
        yield frame(part)


def parts_of(data: bytes) -> tuple[bytes, ...] | None:
    """Return the parts of a snapshot, or None if it is incomplete or damaged."""
    if not data.startswith(SNAPSHOT_HEAD):
        return None
    parts: list[bytes] = []
    at = len(SNAPSHOT_HEAD)
    while (found := unframe(data, at)) is not None:
        payload, at = found
        parts.append(payload)
    # The first part is the number of parts: it reveals a snapshot that lost its end.
    whole = at == len(data) and bool(parts) and int.from_bytes(parts[0], "little") == len(parts) - 1
    return tuple(parts[1:]) if whole else None
