"""A record in a folder that the attempts of one application share: the log of :mod:`eps.storage.shared_log`.

A process that opens the record fences the one that had it open: an older attempt that still runs cannot write any more.
The log's snapshots include the tables.  For look-ups this process keeps the tables in a local file, which no later
process reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from eps._version import __version__
from eps.errors import StorageError
from eps.storage.shared_log import LogStorage, SharedLog
from eps.storage.wal import Replay
from hscheduler.core.codec import FORMAT
from hscheduler.record.api import Entry, Header, check_format, entry_of, entry_text
from hscheduler.record.ended_jobs import TABLES, Database, Decided, EndedJob, Rows


class LogRecord:
    """A record in a shared folder.

    Parameters
    ----------
    storage : LogStorage
    folder : str
        In the storage.
    scratch : Path
        Local file of this process for the tables; an existing one is replaced.
    on_superseded : callable
        Called when another process has opened the record: this process must end.
    at_work : LogStorage, optional
        The same storage with shorter timeouts, for all calls after the record is open.

    Raises
    ------
    StorageError
        The record is damaged, of another format, or cannot be read or written.
    """

    def __init__(
        self,
        storage: LogStorage,
        folder: str,
        scratch: Path,
        on_superseded: Callable[[], None],
        at_work: LogStorage | None = None,
    ) -> None:
        # No gap marks: an event that cannot be written has no effect, so no event is ever missing.
        self._log = SharedLog.open(storage, folder, on_superseded, at_work, marks_gaps=False)
        self.where = self._log.path
        self.dropped = "; ".join(self._log.recovered.dropped)
        self.header: Header | None = None
        self._snapshot: bytes | None = None
        self._entries = self._log.recovered.records
        self.snapshot_bytes, self.entries_bytes = 0, sum(map(len, self._entries))
        for left in scratch.parent.glob(f"{scratch.name}*"):
            left.unlink()
        self._database = Database(scratch, TABLES)
        self.rows = Rows(self._database)
        try:
            if self._log.recovered.snapshot is not None:
                self._recover(*self._log.recovered.snapshot)
        except StorageError:
            self.close()
            raise
        # Free the memory: it is as large as the record.
        self._log.recovered = Replay(None, ())

    def _recover(self, about: bytes, snapshot: bytes, *rows: bytes) -> None:
        found = json.loads(about)
        check_format(found["format"], found["written_by"], self.where)
        self.header = Header(**found["header"])
        self._snapshot, self.snapshot_bytes = snapshot, len(snapshot)
        with self._database.transaction() as connection:
            for row in rows:
                self.rows.load(connection, json.loads(row))

    def begin(self, header: Header) -> None:
        """See :class:`~hscheduler.record.api.SchedulerRecord`, also for the methods below."""
        self.compact(header, None, [], [])

    def compact(self, header: Header, snapshot: Any, jobs: Sequence[EndedJob], decisions: Sequence[Decided]) -> None:
        """Replace entries by a snapshot."""
        text = json.dumps(snapshot, allow_nan=False).encode("ascii")
        about = json.dumps({"format": FORMAT, "written_by": __version__, "header": vars(header)}).encode("ascii")
        with self._database.transaction() as connection:
            self.rows.add(connection, jobs, decisions)
            self._log.snapshot(about, text, json.dumps(self.rows.dump()).encode("ascii"))
        self.header, self.snapshot_bytes, self.entries_bytes = header, len(text), 0

    def snapshot(self) -> Any:
        """Return the snapshot."""
        text, self._snapshot = self._snapshot, None
        return None if text is None else json.loads(text)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries."""
        texts, self._entries = self._entries, ()
        for text in texts:
            for line in text.splitlines():
                yield entry_of(line, self.where)

    def append(self, entries: Sequence[Entry], *, durable: bool) -> None:
        """Add entries."""
        # One record of the log, so that the write is atomic.
        text = "\n".join(map(entry_text, entries)).encode("ascii")
        self._log.append(text)
        if durable:
            self._log.sync()
        self.entries_bytes += len(text)

    def close(self) -> None:
        """Close the log."""
        self._log.close()
        self._database.close()
