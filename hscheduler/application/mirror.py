"""The journal of a scheduler in the cluster's file system: where the next attempt of its application goes on.

The journal is a file of the application master's container, which is gone with it.  A thread copies what has changed
several times a second.  What was written last may be lost, with all that it was about: whatever the scheduler started
ends with its process, so the next one begins at the last copy, and does again what came after.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path

from eps.errors import StorageError
from eps.storage.api import Storage

logger = logging.getLogger(__name__)

#: How often it is looked whether something has changed.
LOOK_S = 0.5
#: Of the shared folder: a folder for each attempt, so that one that is not dead yet writes into its own.
STATE = "scheduler"
_JOURNAL, _PAST = "journal.jsonl", "past-*.sqlite"
_JOIN_S = 10.0


def restore(folder: Path, shared: Storage, attempt: str) -> bool:
    """Bring the latest copy of an attempt before into a folder; return whether there is one.

    Parameters
    ----------
    folder : Path
    shared : Storage
    attempt : str
        Of this process; those before come before it in the order of names.

    Raises
    ------
    StorageError
        It cannot be read, or written here.
    """
    for before in reversed([name for name in shared.names(STATE) if name < attempt]):
        names = shared.names(f"{STATE}/{before}")
        if _JOURNAL in names:
            for name in names:
                with shared.read(f"{STATE}/{before}/{name}") as file:
                    (folder / name).write_bytes(file.read())
            return True
    return False


class Mirror:
    """Copies a scheduler's journal from now on.

    Parameters
    ----------
    folder : Path
        With the journal.
    shared : Storage
    attempt : str
        As of :func:`restore`.
    """

    def __init__(self, folder: Path, shared: Storage, attempt: str) -> None:
        self._folder, self._shared, self._where = folder, shared, f"{STATE}/{attempt}"
        #: File -> what told it from an earlier state of it when it was copied.
        self._copied: dict[str, tuple[int, ...]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_copying, name="mirror", daemon=True)
        self._thread.start()

    def copy(self) -> None:
        """Copy what has changed.

        Raises
        ------
        StorageError
            It cannot be read, or written there.
        """
        while True:
            # What a journal that was begun anew does not say is in these, and was written before.
            past = {path.name: _mark(path) for path in sorted(self._folder.glob(_PAST))}
            journal = self._folder / _JOURNAL
            mark = _mark(journal)
            if mark is None or self._copied.get(_JOURNAL) == mark:
                return
            content = journal.read_bytes()
            for name in [name for name, mark in past.items() if self._copied.get(name) != mark]:
                self._write(name, _database(self._folder / name))
            if past == {path.name: _mark(path) for path in sorted(self._folder.glob(_PAST))}:
                break
        self._copied.update({name: each for name, each in past.items() if each is not None})
        self._write(_JOURNAL, content)
        self._copied[_JOURNAL] = mark

    def close(self) -> None:
        """Copy once more, and end."""
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _keep_copying(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.wait(LOOK_S)
            try:
                self.copy()
            except (StorageError, OSError, sqlite3.Error) as error:
                logger.warning("H the journal is not copied: %s", error)

    def _write(self, name: str, content: bytes) -> None:
        with self._shared.write(f"{self._where}/{name}") as file:
            file.write(content)


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _database(path: Path) -> bytes:
    """Return a database as it is between two transactions."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target = Path(folder) / path.name
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
        return target.read_bytes()
