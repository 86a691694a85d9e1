"""The append-only journal of a job: JSON lines, each with a checksum.

A line is ``{"crc32":"9f3a00c1","record":{...}}``: valid JSON, and the checksum covers the bytes of the record as they
were written.  A crash can cut the write of a line short, so an unreadable *last* line is dropped and reported.  An
unreadable line before others was damaged later and is an error.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from eps.errors import StorageError
from eps.storage.atomic import FILE_MODE, sync_directory

_HEAD = b'{"crc32":"'
_MIDDLE = b'","record":'
_BODY_AT = len(_HEAD) + 8 + len(_MIDDLE)


@dataclass(frozen=True)
class Replay:
    """The content of a journal."""

    records: tuple[dict[str, Any], ...]
    #: Length of the readable part.
    size_bytes: int
    #: The part that was dropped at the end, as a sentence; empty if none was.
    dropped: str = ""


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Return the journal line of ``record``.

    Raises
    ------
    StorageError
        The record is not valid JSON.
    """
    try:
        body = json.dumps(dict(record), separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise StorageError(f"a journal record must be JSON, but {record!r} is not: {error}") from error
    return b"%s%08x%s%s}\n" % (_HEAD, zlib.crc32(body), _MIDDLE, body)


def decode_line(line: bytes) -> dict[str, Any]:
    """Return the record in ``line``, which has no line end.

    Raises
    ------
    ValueError
        :func:`encode_line` did not write this line.
    """
    body = line[_BODY_AT:-1]
    if not (line.startswith(_HEAD) and line[_BODY_AT - len(_MIDDLE) : _BODY_AT] == _MIDDLE and line[-1:] == b"}"):
        raise ValueError("is not a journal line")
    if line[len(_HEAD) : len(_HEAD) + 8] != b"%08x" % zlib.crc32(body):
        raise ValueError("does not match its checksum")
    record = json.loads(body)
    if not isinstance(record, dict):
        raise ValueError("does not hold an object")
    return record


def replay(path: Path) -> Replay:
    """Read a journal; a missing file is empty.

    Raises
    ------
    StorageError
        A line before others is damaged (the message names it), or the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Replay((), 0)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    records: list[dict[str, Any]] = []
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        last = end < 0 or end + 1 == len(data)
        try:
            if end < 0:
                raise ValueError("has no end")
            records.append(decode_line(data[at:end]))
        except ValueError as error:
            where = f"{path}: line {len(records) + 1} {error}"
            if not last:
                raise StorageError(f"{where}, and other lines follow it") from error
            return Replay(tuple(records), at, f"{where}: dropped its {len(data) - at} bytes")
        at = end + 1
    return Replay(tuple(records), at)


class Journal:
    """The open journal of a job; only one process writes it.

    Parameters
    ----------
    path : Path
        Created if missing.  A torn last line is cut off, so that the next one starts on its own line.

    Raises
    ------
    StorageError
        The journal is damaged or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The content when the journal was opened.
        self.recovered = replay(path)
        self._broken = ""
        self._fd = -1
        try:
            new = not path.exists()
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            self._size_bytes = self.recovered.size_bytes
            if self.recovered.dropped:
                os.ftruncate(self._fd, self._size_bytes)
                os.fsync(self._fd)
        except OSError as error:
            self.close()
            raise StorageError(f"{path}: cannot be opened: {error.strerror}") from error
        if new:
            sync_directory(path.parent)

    def append(self, record: Mapping[str, Any], sync: bool = False) -> None:
        """Append one record.

        Parameters
        ----------
        record : mapping
            Valid JSON.
        sync : bool
            Return only when this and all earlier records survive a power loss.

        Raises
        ------
        StorageError
            The record is not valid JSON, or it could not be written.  After a failed sync the content on disk is
            unknown, so all later appends fail too.
        """
        line = encode_line(record)
        if self._broken or self._fd < 0:
            raise StorageError(f"{self.path}: {self._broken or 'the journal is closed'}")
        try:
            self._write(line)
        except OSError as error:
            # The next line must not continue a half-written one.
            try:
                os.ftruncate(self._fd, self._size_bytes)
            except OSError:
                self._broken = f"a line could not be written ({error.strerror}), nor its part removed"
            raise StorageError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._size_bytes += len(line)
        if sync:
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._broken = f"a sync failed ({error.strerror}), so its end is unknown"
                raise StorageError(f"{self.path}: {self._broken}") from error

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.pwrite(self._fd, line[written:], self._size_bytes + written)

    def close(self) -> None:
        """Close the file.  Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
