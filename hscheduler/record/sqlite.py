"""A record in one local file: SQLite in WAL mode, so that a compaction is one transaction.

A transaction survives a crash of this process.  Only transactions that must survive a power failure wait for the disk.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from eps._version import __version__
from eps.errors import StorageError
from hscheduler.core.codec import FORMAT
from hscheduler.record.api import Entry, Header, check_format, entry_of, entry_text
from hscheduler.record.ended_jobs import TABLES, Database, Decided, EndedJob, Rows

#: Every format keeps the columns of ``about``: a record of any version names its jobs.
_TABLES = """
CREATE TABLE IF NOT EXISTS about (format TEXT, written_by TEXT, header TEXT, snapshot TEXT);
CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, entry TEXT);
"""


class SqliteRecord:
    """A record in a file.

    Parameters
    ----------
    path : Path
        Created if it does not exist.

    Raises
    ------
    StorageError
        The file is damaged, open in another process, of another format, or cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._database = database = Database(path, _TABLES + TABLES)
        self.rows = Rows(database)
        self.path, self.where = path, str(path)
        #: SQLite itself drops incomplete transactions.
        self.dropped = ""
        self.header: Header | None = None
        self.snapshot_bytes = self.entries_bytes = 0
        try:
            for found, written_by, header, size_bytes in database.query(
                "SELECT format, written_by, header, COALESCE(LENGTH(snapshot), 0) FROM about"
            ):
                check_format(found, written_by, self.where)
                self.header, self.snapshot_bytes = Header(**json.loads(header)), size_bytes
            ((self.entries_bytes,),) = database.query("SELECT COALESCE(SUM(LENGTH(entry)), 0) FROM entries")
        except StorageError:
            self.close()
            raise

    def begin(self, header: Header) -> None:
        """See :class:`~hscheduler.record.api.SchedulerRecord`, also for the methods below."""
        self._write(header, None, [], [])

    def compact(self, header: Header, snapshot: Any, jobs: Sequence[EndedJob], decisions: Sequence[Decided]) -> None:
        """Replace entries by a snapshot."""
        self._write(header, json.dumps(snapshot, allow_nan=False), jobs, decisions)

    def _write(
        self, header: Header, snapshot: str | None, jobs: Sequence[EndedJob], decisions: Sequence[Decided]
    ) -> None:
        with self._database.transaction(durable=True) as connection:
            connection.execute("DELETE FROM about")
            about = FORMAT, __version__, json.dumps(vars(header)), snapshot
            connection.execute("INSERT INTO about VALUES (?, ?, ?, ?)", about)
            connection.execute("DELETE FROM entries")
            self.rows.add(connection, jobs, decisions)
        self.header, self.snapshot_bytes, self.entries_bytes = header, len(snapshot or ""), 0

    def snapshot(self) -> Any:
        """Return the snapshot."""
        found = self._database.query("SELECT snapshot FROM about")
        return json.loads(found[0][0]) if found and found[0][0] is not None else None

    def entries(self) -> Iterator[Entry]:
        """Yield the entries."""
        for (text,) in self._database.query("SELECT entry FROM entries ORDER BY number"):
            yield entry_of(text, self.where)

    def append(self, entries: Sequence[Entry], *, durable: bool) -> None:
        """Add entries."""
        texts = [entry_text(each) for each in entries]
        with self._database.transaction(durable=durable) as connection:
            connection.executemany("INSERT INTO entries (entry) VALUES (?)", [(text,) for text in texts])
        self.entries_bytes += sum(map(len, texts))

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def tag_of(path: Path) -> str:
    """Return the tag in the names of a record's jobs, for a record of any version; empty if unknown."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            ((header,),) = connection.execute("SELECT header FROM about")
            return str(json.loads(header)["tag"])
    except (sqlite3.Error, ValueError, KeyError, TypeError):
        return ""
