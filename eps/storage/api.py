"""Where a job keeps what must outlive its processes: the one interface to a store of files, and what it waits for.

A store is a tree of files under one root; ``path`` is relative to it, with ``/`` between its parts.  The interface asks
for no more than a local directory and HDFS both give: files that are written once, from front to back, and the rename
of a directory.

Seven rules, which ``tests/contract/test_storage_contract.py`` checks of every implementation:

1. What ``write`` returns is there whole when its block has ended, and survives a loss of power; when the block raises,
   ``path`` is as it was.  Where ``write`` itself fails, ``path`` is the old or the new file, whole, never a mixture.
2. ``write`` makes the folders that ``path`` needs.
3. ``rename`` moves a file, or a folder with all that is in it, at once, and durably; it takes the place of nothing.
   Where it fails, it is whole under its old name or its new one: to know which, look.
4. ``names`` of a folder that does not exist are none.
5. ``remove`` takes a folder with all that is in it; to remove what is not there is harmless.
6. Every failure is a :class:`~eps.errors.StorageError` that names the path and the reason.  After one of ``write`` or
   ``rename`` the new state may be there and not survive a loss of power.
7. Any number of processes may use one store at once.

What a store waits for is told to whoever shows people how a job is, besides the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import BinaryIO, Protocol

#: What :func:`tell` calls.
_tell: ContextVar[Callable[[str], None]] = ContextVar("tell", default=lambda text: None)


class Storage(Protocol):
    """A tree of files."""

    def write(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Give a file to write, which becomes ``path`` when the block ends (rules 1 and 2)."""

    def read(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Give a file to read from its beginning."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted (rule 4)."""

    def rename(self, folder: str, target: str) -> None:
        """Move a folder or a file to a name that is free (rule 3)."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder (rule 5)."""

    def describe(self, path: str) -> str:
        """Return ``path`` as a person would look for it."""


@contextmanager
def telling(to: Callable[[str], None]) -> Iterator[None]:
    """Have what is waited for on this thread told, while this lasts.

    Parameters
    ----------
    to : callable
        Takes what cannot be done for now, and why; called when a wait begins, and every few seconds of it.
    """
    token = _tell.set(to)
    try:
        yield
    finally:
        _tell.reset(token)


def tell(text: str) -> None:
    """Tell what cannot be done for now, as of :func:`telling`."""
    _tell.get()(text)
