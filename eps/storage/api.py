"""The interface to a store of files, for everything that must outlive a job's processes.

A store is a tree of files under one root; ``path`` is relative to it, with ``/`` between its parts.  The interface
needs only what both a local directory and HDFS provide: files written once from front to back, and renames.

Seven rules, which ``tests/contract/test_storage_contract.py`` checks for every implementation:

1. ``write`` is atomic.  When its block ends, the file is complete and survives a power loss; if the block raises,
``path`` is unchanged.  If ``write`` itself fails, ``path`` is the old or the new file, never a mixture.
2. ``write`` creates missing folders of ``path``.
3. ``rename`` moves a file or a whole folder atomically and durably; it never replaces anything.  If it fails, look
which of the two names exists.
4. ``names`` of a missing folder returns an empty list.
5. ``remove`` removes a folder recursively; removing a missing path has no effect.
6. Every failure is a :class:`~eps.errors.StorageError` that names the path and the reason.  After a failed ``write`` or
``rename`` the new state may exist without surviving a power loss.
7. Any number of processes may use one store concurrently.

While a store retries, :func:`tell` reports it to the job's status, besides the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import BinaryIO, Protocol

#: The callback of :func:`tell`.
_tell: ContextVar[Callable[[str], None]] = ContextVar("tell", default=lambda text: None)


class Storage(Protocol):
    """A tree of files."""

    def write(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file to write; it becomes ``path`` when the block ends (rules 1 and 2)."""

    def read(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file to read from its beginning."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted (rule 4)."""

    def rename(self, folder: str, target: str) -> None:
        """Move a folder or file to an unused name (rule 3)."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder (rule 5)."""

    def describe(self, path: str) -> str:
        """Return ``path`` as users name it: absolute, with its file system."""


@contextmanager
def telling(to: Callable[[str], None]) -> Iterator[None]:
    """Make :func:`tell` call ``to`` inside the block, on this thread.

    Parameters
    ----------
    to : callable
        Takes the operation that is being retried and why.  Called when retries begin, and every few seconds after that.
    """
    token = _tell.set(to)
    try:
        yield
    finally:
        _tell.reset(token)


def tell(text: str) -> None:
    """Report an operation that is being retried to :func:`telling`'s callback."""
    _tell.get()(text)
