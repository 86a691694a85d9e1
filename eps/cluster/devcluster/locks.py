"""A file lock that is waited for with a deadline."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eps.errors import DeadlineError, StorageError

_POLL_S = 0.1


@contextmanager
def locked(path: Path, timeout_s: float, waits: Callable[[], None], what: str) -> Iterator[None]:
    """Hold the lock at ``path`` while this lasts; the kernel drops it with its holder, however that ends.

    Parameters
    ----------
    path : Path
        Made if need be, and never removed.
    timeout_s : float
    waits : callable
        Called once where somebody else holds it.
    what : str
        Whom one waits for, for the message.

    Raises
    ------
    DeadlineError
        Somebody else still holds it after ``timeout_s``.
    StorageError
        It cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"{path}: cannot be made: {error.strerror or error}") from error
    try:
        deadline, told = time.monotonic() + timeout_s, False
        while not _try(fd):
            if not told:
                waits()
                told = True
            if time.monotonic() > deadline:
                raise DeadlineError(f"{what} is not done after {timeout_s:g} s; it holds {path}")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
