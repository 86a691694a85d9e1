"""Jobs that are over, and what was decided about them, in tables of SQLite: found when somebody asks for them."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.errors import StorageError
from hscheduler.core.codec import decoded, encoded
from hscheduler.core.jobs import Phase
from hscheduler.core.timeline import DecisionRecord, TrialRecord

TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    job_id TEXT PRIMARY KEY, trial_id TEXT, sweep TEXT, phase TEXT, submission TEXT, trial TEXT);
CREATE INDEX IF NOT EXISTS sweeps ON jobs (sweep);
CREATE TABLE IF NOT EXISTS decisions (sweep TEXT, at_s REAL, decision TEXT, PRIMARY KEY (sweep, at_s, decision));
"""
#: The rows of both tables, as JSON says them.
Dumped = tuple[Sequence[Sequence[Any]], Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class EndedJob:
    """A job that is over."""

    job_id: str
    #: The id of its trial's first job.
    trial_id: str
    sweep: str
    phase: Phase
    #: What is known of it beside the trial, as JSON.
    submission: Mapping[str, Any]
    trial: TrialRecord


#: A sweep, and what was decided about its jobs.
Decided = tuple[str, DecisionRecord]


class Database:
    """A file of SQLite; for any thread.

    Parameters
    ----------
    path : Path
        Nobody else may have it open.

    Raises
    ------
    StorageError
        It is no database, is open elsewhere, or cannot be made.
    """

    def __init__(self, path: Path, tables: str) -> None:
        self.path = path
        self._lock = threading.RLock()
        try:
            self._connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StorageError(f"{path}: cannot be opened: {error}") from error
        try:
            # Held for as long as it is open.
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            with self.transaction() as database:
                for table in tables.split(";\n"):
                    database.execute(table)
        except (sqlite3.Error, StorageError) as error:
            self.close()
            cause = error.__cause__ if isinstance(error, StorageError) else error
            why = "another process has it open" if "locked" in str(cause) else f"cannot be used: {cause}"
            raise StorageError(f"{path}: {why}") from error

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Give the connection for changes, all or none of which are made.  Raises StorageError where none is."""
        with self._lock:
            connection = self._connection
            try:
                if durable:
                    connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise StorageError(f"{self.path}: cannot be written: {error}") from error
            finally:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if durable:
                        connection.execute("PRAGMA synchronous = NORMAL")

    def found(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise StorageError(f"{self.path}: cannot be read: {error}") from error

    def close(self) -> None:
        """Close it; harmless when repeated."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()


class Rows:
    """Jobs that are over, and what was decided about them.

    Those of its methods that are not of the class may be called from any thread; each raises StorageError where the
    database cannot be read, or other code wrote what stands there.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @staticmethod
    def add(connection: sqlite3.Connection, jobs: Sequence[EndedJob], decisions: Sequence[Decided]) -> None:
        """Add rows within a transaction; those that are there stay as they are."""
        of_jobs = [
            (
                each.job_id,
                each.trial_id,
                each.sweep,
                str(each.phase),
                json.dumps(each.submission),
                json.dumps(encoded(each.trial)),
            )
            for each in jobs
        ]
        decided = [(sweep, each.at_s, json.dumps(encoded(each))) for sweep, each in decisions]
        Rows.load(connection, (of_jobs, decided))

    @staticmethod
    def load(connection: sqlite3.Connection, dumped: Dumped) -> None:
        """Add what :meth:`dump` returned, within a transaction."""
        connection.executemany("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", dumped[0])
        connection.executemany("INSERT OR IGNORE INTO decisions VALUES (?, ?, ?)", dumped[1])

    def dump(self) -> Dumped:
        """Return all rows, as JSON says them."""
        found = self._database.found
        return found("SELECT * FROM jobs ORDER BY rowid"), found("SELECT * FROM decisions ORDER BY rowid")

    def ended_job(self, job_id: str) -> EndedJob | None:
        """Return a job, or None."""
        found = self._jobs("WHERE job_id = ?", job_id)
        return found[0] if found else None

    def ended_jobs(self, sweep: str = "") -> list[EndedJob]:
        """Return the jobs of a sweep, or all, in the order in which they came here."""
        return self._jobs("WHERE sweep = ?", sweep) if sweep else self._jobs("")

    def _jobs(self, where: str, *values: Any) -> list[EndedJob]:
        return [
            EndedJob(job_id, trial_id, sweep, Phase(phase), json.loads(submission), self._decoded(trial))
            for job_id, trial_id, sweep, phase, submission, trial in self._database.found(
                f"SELECT * FROM jobs {where} ORDER BY rowid", *values
            )
        ]

    def _decoded(self, text: str) -> Any:
        try:
            return decoded(json.loads(text))
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{self._database.path}: what is past cannot be read: {error}") from error

    def first_id(self, prefix: str) -> str:
        """Return the id of a job that begins so; empty where there is none."""
        found = self._database.found(
            "SELECT job_id FROM jobs WHERE job_id >= ? AND substr(job_id, 1, ?) = ? LIMIT 1",
            prefix,
            len(prefix),
            prefix,
        )
        return str(found[0][0]) if found else ""

    def decisions(self, sweep: str) -> list[DecisionRecord]:
        """Return what was decided about the jobs of a sweep, in its order."""
        query = "SELECT decision FROM decisions WHERE sweep = ? ORDER BY at_s, rowid"
        return [self._decoded(text) for (text,) in self._database.found(query, sweep)]

    def num_jobs(self, sweep: str) -> int:
        """Return how many jobs of a sweep there are."""
        return int(self._database.found("SELECT COUNT(*) FROM jobs WHERE sweep = ?", sweep)[0][0])

    def counts(self, sweep: str = "") -> tuple[Counter[Phase], Counter[tuple[str, Phase]]]:
        """Return how many jobs ended how, and how many trials of each sweep, by their last jobs."""
        of_one, values = ("WHERE sweep = ?", (sweep,)) if sweep else ("", ())
        jobs = self._database.found(f"SELECT phase, COUNT(*) FROM jobs {of_one} GROUP BY phase", *values)
        last = f"SELECT MAX(rowid) FROM jobs {of_one} GROUP BY trial_id"
        trials = self._database.found(
            f"SELECT sweep, phase, COUNT(*) FROM jobs WHERE rowid IN ({last}) GROUP BY sweep, phase", *values
        )
        return (
            Counter({Phase(phase): number for phase, number in jobs}),
            Counter({(name, Phase(phase)): number for name, phase, number in trials}),
        )
