"""Jobs that are over, and what was decided, where the scheduler's state has forgotten them: found when asked for.

A row is written once and never changed, so writing it again, after a crash between two files, does no harm.  A job that
a journal has too is what the journal says.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from eps.errors import StorageError
from hscheduler.core.record import DecisionRecord, TrialRecord
from hscheduler.core.snapshot import OtherVersionError, restore, take
from hscheduler.live.submission import Submission

_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (job_id TEXT PRIMARY KEY, sweep TEXT, submission TEXT, trial TEXT);
CREATE INDEX IF NOT EXISTS sweeps ON jobs (sweep);
CREATE TABLE IF NOT EXISTS decisions (sweep TEXT, at_s REAL, decision TEXT, PRIMARY KEY (sweep, at_s, decision));
"""


class Past:
    """A file of jobs that are over; its methods may be called from any thread.

    What looks something up raises StorageError where the file cannot be read, or other code wrote what stands there.

    Parameters
    ----------
    path : Path
        Made when the first job is kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def keep(
        self, jobs: Iterable[tuple[Submission, TrialRecord]], decisions: Iterable[tuple[str, DecisionRecord]]
    ) -> None:
        """Keep jobs, and sweeps' decisions, all or none of them; they survive a loss of power.

        Raises
        ------
        StorageError
            They cannot be written.
        """
        rows = [(each.job_id, each.sweep, json.dumps(each.values()), json.dumps(take(trial))) for each, trial in jobs]
        decided = [(sweep, each.at_s, json.dumps(take(each))) for sweep, each in decisions]
        with self._lock:
            try:
                database = self._opened()
                with database:
                    database.executemany("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?)", rows)
                    database.executemany("INSERT OR IGNORE INTO decisions VALUES (?, ?, ?)", decided)
            except sqlite3.Error as error:
                # What was refused, as by a full disk, may not be so by a new connection.
                self._close()
                raise StorageError(f"{self.path}: cannot be written: {error}") from error

    def submission(self, job_id: str) -> Submission | None:
        """Return a job, or None."""
        found = self._found("SELECT submission FROM jobs WHERE job_id = ?", job_id)
        return Submission.of_values(json.loads(found[0])) if found else None

    def submissions(self, sweep: str = "") -> list[Submission]:
        """Return the jobs of a sweep, or all."""
        found = (
            self._found("SELECT submission FROM jobs WHERE sweep = ? ORDER BY rowid", sweep)
            if sweep
            else self._found("SELECT submission FROM jobs ORDER BY rowid")
        )
        return [Submission.of_values(json.loads(text)) for text in found]

    def job_ids(self) -> list[str]:
        """Return the ids of all jobs."""
        return list(self._found("SELECT job_id FROM jobs"))

    def trials(self, sweep: str) -> list[TrialRecord]:
        """Return what happened in the jobs of a sweep."""
        return self._restored("SELECT trial FROM jobs WHERE sweep = ? ORDER BY rowid", sweep)

    def decisions(self, sweep: str) -> list[DecisionRecord]:
        """Return what was decided about the jobs of a sweep, in its order."""
        return self._restored("SELECT decision FROM decisions WHERE sweep = ? ORDER BY at_s, rowid", sweep)

    def close(self) -> None:
        """Close the file; harmless when repeated, and opened again where it is asked for something."""
        with self._lock:
            self._close()

    def _restored(self, query: str, sweep: str) -> list[Any]:
        try:
            return [restore(json.loads(text)) for text in self._found(query, sweep)]
        except OtherVersionError as error:
            raise StorageError(f"{self.path}: what is past of sweep {sweep!r} cannot be read: {error}") from error

    def _found(self, query: str, *values: Any) -> Sequence[str]:
        with self._lock:
            if self._database is None and not self.path.exists():
                return ()
            try:
                return [row[0] for row in self._opened().execute(query, values)]
            except sqlite3.Error as error:
                raise StorageError(f"{self.path}: cannot be read: {error}") from error

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            database = sqlite3.connect(self.path, check_same_thread=False)
            try:
                database.executescript(_TABLES)
            except sqlite3.Error:
                database.close()
                raise
            self._database = database
        return self._database

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.close()
