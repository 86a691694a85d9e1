"""A store of files in a local directory.  L2."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from eps.errors import StorageError
from eps.storage.atomic import atomic_writer, sync_directory

#: As of a job's directory: only its user reads what it holds.
DIRECTORY_MODE = 0o700


class LocalStorage:
    """Implements :class:`eps.storage.api.Storage`.

    Parameters
    ----------
    root : Path
        Made when the first file is written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def describe(self, path: str) -> str:
        """Return the path on this machine."""
        return str(self._root / path)

    @contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        """Give a file to write, which becomes ``path`` when the block ends."""
        target = self._root / path
        self._make(target.parent)
        with atomic_writer(target) as file:
            yield file

    def _make(self, folder: Path) -> None:
        """Make a folder whose name survives a loss of power."""
        if folder.is_dir():
            return
        if folder.parent != folder:
            self._make(folder.parent)
        try:
            folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be made: {error.strerror}") from error
        sync_directory(folder.parent)

    @contextmanager
    def read(self, path: str) -> Iterator[BinaryIO]:
        """Give a file to read from its beginning."""
        target = self._root / path
        try:
            file = target.open("rb", buffering=0)
        except OSError as error:
            raise StorageError(f"{target}: cannot be read: {error.strerror}") from error
        with file:
            try:
                yield file
            except StorageError:
                raise
            except OSError as error:
                raise StorageError(f"{target}: cannot be read: {error.strerror}") from error

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none of one that does not exist."""
        try:
            return sorted(os.listdir(self._root / folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self._root / folder}: cannot be listed: {error.strerror}") from error

    def rename(self, folder: str, target: str) -> None:
        """Move a folder to a name that is free."""
        source, place = self._root / folder, self._root / target
        try:
            if place.exists():
                # rename(2) would take the place of an empty folder.
                raise StorageError(f"{source}: cannot become {place}: it is there already")
            os.rename(source, place)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{source}: cannot become {place}: {error.strerror}") from error
        sync_directory(place.parent)

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        target = self._root / path
        try:
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
        except FileNotFoundError:
            # Somebody else removed it at the same time.
            return
        except NotADirectoryError:
            return
        except OSError as error:
            raise StorageError(f"{target}: cannot be removed: {error.strerror}") from error
