"""Atomic files: a temporary file beside the target, then a rename."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from eps.errors import StorageError

#: Readable by the job's user only: a job directory holds a token and may hold private data.
FILE_MODE = 0o600
#: Key of the checksum in a JSON object.
CHECKSUM = "checksum"
#: Mode of results (reports, models, pages): readable by everyone.
PUBLIC_MODE = 0o644


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable.

    Raises
    ------
    StorageError
        The directory cannot be opened or synced.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageError(f"{path}: cannot sync the directory: {error.strerror}") from error


@contextmanager
def atomic_writer(path: Path, *, mode: int = FILE_MODE, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a file to write; it replaces ``path`` when the block ends, unless the block raises.

    Parameters
    ----------
    path : Path
        Its directory must exist.
    mode : int
        Permissions of the file.
    sync : bool
        Return only when file and name survive a power loss.

    Raises
    ------
    StorageError
        The file cannot be written, and ``path`` is unchanged.  With ``sync``, also if the new file is in place but its
        name cannot be made durable: after a power loss ``path`` is the old or the new file, never a mixture.
    """
    temporary: str | None = None
    try:
        if path.is_char_device() or path.is_fifo():
            # Renaming a file to /dev/null would replace the device.
            with path.open("wb") as device:
                yield device
            return
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            yield file
            file.flush()
            if sync:
                os.fsync(fd)
        os.replace(temporary, path)
        temporary = None
        if sync:
            sync_directory(path.parent)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def write_bytes_atomic(path: Path, data: bytes, *, mode: int = FILE_MODE, sync: bool = True) -> None:
    """Write ``data`` to ``path`` atomically; see :func:`atomic_writer`."""
    with atomic_writer(path, mode=mode, sync=sync) as file:
        file.write(data)


def write_json_atomic(path: Path, value: Any, *, mode: int = FILE_MODE, sync: bool = True) -> None:
    """Write ``value`` as JSON to ``path`` atomically; see :func:`atomic_writer`."""
    write_bytes_atomic(path, json_bytes(value), mode=mode, sync=sync)


def json_bytes(value: Any) -> bytes:
    """Return ``value`` as the content of a JSON file."""
    return json.dumps(value, indent=1, sort_keys=True).encode("utf-8") + b"\n"


def checksum(value: Any) -> str:
    """Return a checksum of a value's JSON, independent of the order of keys."""
    return xxhash.xxh3_64(json.dumps(value, sort_keys=True).encode("utf-8")).hexdigest()


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with a checksum of its content, which :func:`read_json` verifies."""
    return {**values, CHECKSUM: checksum(values)}


def read_json(path: Path) -> Mapping[str, Any] | None:
    """Return the object in the JSON file ``path``, or None if there is no such file.

    Raises
    ------
    StorageError
        The file cannot be read, does not hold one JSON object, or does not match its checksum.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    return json_object(content, str(path))


def json_object(content: bytes, where: str) -> Mapping[str, Any]:
    """Return the JSON object in the content of a file; verify its checksum, if it has one.

    Parameters
    ----------
    content : bytes
    where : str
        The file, for messages.

    Raises
    ------
    StorageError
        The content is not a JSON object, or does not match its checksum.
    """
    try:
        value = json.loads(content)
    except ValueError as error:
        raise StorageError(f"{where}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StorageError(f"{where}: holds a {type(value).__name__}, but must hold an object")
    if CHECKSUM in value and value[CHECKSUM] != checksum({k: v for k, v in value.items() if k != CHECKSUM}):
        raise StorageError(f"{where}: is damaged, or was changed by hand: it does not match its checksum")
    return value
