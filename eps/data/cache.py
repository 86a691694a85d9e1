"""The cache of prepared data sets: folders that are in the making, and removal of data sets that no job names."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eps.errors import StorageError

#: Prefix of folders in which data sets are made and removed.
DATASET_PREFIX = ".tmp-dataset-"
_KEY = re.compile(r"[0-9a-f]{64}")


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder, which is removed at the end; first remove those of processes that no longer run."""
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            os.close(_locked(left, os.O_RDWR))
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=".tmp-", dir=parent))
    lock = _locked(made, os.O_RDWR | os.O_CREAT)
    # Others find it by its name only once it is locked.
    folder = made.rename(parent / f"{prefix}{made.name.removeprefix('.tmp-')}")
    try:
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path, flags: int) -> int:
    """Lock a folder until the process ends; return the descriptor, or raise OSError if another process has the lock."""
    fd = os.open(folder / "lock", flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def unused_datasets(cache: Path, used: Collection[str], before_s: float) -> Iterator[Path]:
    """Yield the prepared data sets that are not in ``used`` and that no job has taken since ``before_s``.

    Parameters
    ----------
    cache : Path
    used : collection of str
        Keys of the data sets that jobs name.
    before_s : float
        Unix time.  A job that is being prepared has its data set before it has a record.
    """
    for folder in sorted(cache.glob("*")):
        if _KEY.fullmatch(folder.name) and folder.name not in used and folder.stat().st_mtime < before_s:
            yield folder


def remove_dataset(folder: Path) -> None:
    """Remove a prepared data set from the cache, by a rename first: no process finds a part of it.

    Raises
    ------
    StorageError
        It cannot be removed.
    """
    try:
        with own_folder(folder.parent, DATASET_PREFIX) as aside:
            folder.rename(aside / folder.name)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be removed: {error.strerror}") from error
