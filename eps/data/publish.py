"""Publication of a prepared data set on HDFS, for all hosts: uploaded once, to a folder named by its key.

A worker reads only the files of its own splits; see :class:`eps.worker.datasets.Datasets`.
"""

from __future__ import annotations

import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import BinaryIO

from eps.data.dataset import (
    INFO_NAME,
    NORMALIZER_NAME,
    TEST_NAME,
    DatasetInfo,
    is_complete,
    open_dataset,
    relocated,
    split_name,
)
from eps.errors import StorageError
from eps.storage.api import Storage
from eps.storage.locations import RemotePath
from eps.system import interrupt

_TEMPORARY_PREFIX = ".tmp-"
_PIECE_BYTES = 1 << 20
#: Number of concurrent uploads.
_AT_ONCE = 6


def publish_dataset(info: DatasetInfo, cache: RemotePath) -> DatasetInfo:
    """Return the data set in its folder under ``cache`` on HDFS; upload it if it is missing.

    The folder appears atomically.  Any number of processes may publish the same data set at once; later ones use the
    folder of the first.

    Parameters
    ----------
    info : DatasetInfo
        A local data set, from :func:`eps.data.cut.prepare`.
    cache : RemotePath
        Data sets of earlier jobs, one folder per key; created if missing.

    Raises
    ------
    StorageError
        A file cannot be read here or written there, or differs when it is read back.
    """
    target = cache / info.key
    if _is_there(info, target):
        return relocated(info, target)
    storage = cache.storage()
    folder = f"{_TEMPORARY_PREFIX}{info.key[:16]}-{secrets.token_hex(6)}"
    try:
        # The description comes last: its existence means that the data set is complete.
        checksums = {split_name(split): info.split_checksums[split] for split in range(info.num_splits)}

        def copy(name: str) -> None:
            _copy(info.directory / name, storage, f"{folder}/{name}", checksums.get(name, ""))

        # Concurrent uploads: HDFS takes long to close even small files.
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="publish") as pool:
            names = [*checksums, TEST_NAME, NORMALIZER_NAME]
            # Requests to stop (interrupt.raise_if_stopped) must reach each thread, and each needs its own context.
            list(pool.map(lambda context, name: context.run(copy, name), [copy_context() for _ in names], names))
        copy(INFO_NAME)
        if target.is_dir() and not _is_there(info, target):
            # Files were removed: the folder is unusable.
            storage.remove(info.key)
        try:
            storage.rename(folder, info.key)
        except StorageError:
            if not _is_there(info, target):
                raise
    finally:
        with suppress(StorageError):
            storage.remove(folder)
    return relocated(info, target)


def _is_there(info: DatasetInfo, target: RemotePath) -> bool:
    if INFO_NAME not in target.sizes():
        return False
    found = open_dataset(target)
    return found.key == info.key and found.split_checksums == info.split_checksums and is_complete(found)


def _copy(source: Path | RemotePath, storage: Storage, path: str, expected: str = "") -> None:
    """Copy a file and verify it by reading it back; ``expected`` is its SHA-256, if known."""
    try:
        with source.open("rb") if isinstance(source, Path) else source.open() as file, storage.write(path) as copy:
            digest = _digest(file, copy)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(error.errno, f"{source}: cannot be read: {error.strerror}") from error
    if expected and digest != expected:
        raise StorageError(f"{source}: has SHA-256 {digest}, but was cut with {expected}: prepare it again")
    with storage.read(path) as copied:
        found = _digest(copied)
    if found != digest:
        raise StorageError(f"{storage.describe(path)}: has SHA-256 {found}, but {digest} was sent")


def _digest(file: BinaryIO, copy: BinaryIO | None = None) -> str:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE_BYTES):
        interrupt.raise_if_stopped()
        digest.update(piece)
        if copy is not None:
            copy.write(piece)
    return digest.hexdigest()
