"""Ended jobs, and the decisions about them, in SQLite tables; read on request."""

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
#: Rows of both tables, as JSON values.
Dumped = tuple[Sequence[Sequence[Any]], Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class EndedJob:
    """A job that is over."""

    job_id: str
    #: The id of its trial's first job.
    trial_id: str
    sweep: str
    phase: Phase
    #: Its submission, as JSON values.
    submission: Mapping[str, Any]
    trial: TrialRecord


#: A sweep, and a decision about its jobs.
Decided = tuple[str, DecisionRecord]


class Database:
    """An SQLite file; for any thread.

    Parameters
    ----------
    path : Path
        No other process may have it open.
    tables : str
        Statements that create the tables.

    Raises
    ------
    StorageError
        The file is no database, is open in another process, or cannot be created.
    """

    def __init__(self, path: Path, tables: str) -> None:
        self.path = path
        self._lock = threading.RLock()
        try:
            self._connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StorageError(f"{path}: cannot be opened: {error}") from error
        try:
            # The lock is held until the file is closed.
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
        """Give the connection for atomic changes.  Raises StorageError if they fail; then none is made."""
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

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that match a query."""
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise StorageError(f"{self.path}: cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file.  Idempotent."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()


class Rows:
    """The tables of ended jobs, and of decisions about them.

    The instance methods may be called from any thread.  Each raises StorageError if the database cannot be read, or has
    values of another format.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @staticmethod
    def add(connection: sqlite3.Connection, jobs: Sequence[EndedJob], decisions: Sequence[Decided]) -> None:
        """Add rows within a transaction; existing rows stay as they are."""
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
        """Return all rows, as JSON values."""
        found = self._database.query
        return found("SELECT * FROM jobs ORDER BY rowid"), found("SELECT * FROM decisions ORDER BY rowid")

    def ended_job(self, job_id: str) -> EndedJob | None:
        """Return a job, or None."""
        found = self._jobs("WHERE job_id = ?", job_id)
        return found[0] if found else None

    def ended_jobs(self, sweep: str = "") -> list[EndedJob]:
        """Return the jobs of a sweep, or all, in the order in which they were added."""
        return self._jobs("WHERE sweep = ?", sweep) if sweep else self._jobs("")

    def _jobs(self, where: str, *values: Any) -> list[EndedJob]:
        return [
            EndedJob(job_id, trial_id, sweep, Phase(phase), json.loads(submission), self._decoded(trial))
            for job_id, trial_id, sweep, phase, submission, trial in self._database.query(
                f"SELECT * FROM jobs {where} ORDER BY rowid", *values
            )
        ]

    def _decoded(self, text: str) -> Any:
        try:
            return decoded(json.loads(text))
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{self._database.path}: a recorded job or decision cannot be read: {error}") from error

    def first_id(self, prefix: str) -> str:
        """Return the id of a job that starts with ``prefix``; empty if there is none."""
        found = self._database.query(
            "SELECT job_id FROM jobs WHERE job_id >= ? AND substr(job_id, 1, ?) = ? LIMIT 1",
            prefix,
            len(prefix),
            prefix,
        )
        return str(found[0][0]) if found else ""

    def decisions(self, sweep: str) -> list[DecisionRecord]:
        """Return the decisions about a sweep's jobs, oldest first."""
        query = "SELECT decision FROM decisions WHERE sweep = ? ORDER BY at_s, rowid"
        return [self._decoded(text) for (text,) in self._database.query(query, sweep)]

    def num_jobs(self, sweep: str) -> int:
        """Return the number of a sweep's jobs."""
        return int(self._database.query("SELECT COUNT(*) FROM jobs WHERE sweep = ?", sweep)[0][0])

    def counts(self, sweep: str = "") -> tuple[Counter[Phase], Counter[tuple[str, Phase]]]:
        """Return the numbers of jobs, by how they ended, and of trials, by sweep and how their last jobs ended."""
        of_one, values = ("WHERE sweep = ?", (sweep,)) if sweep else ("", ())
        jobs = self._database.query(f"SELECT phase, COUNT(*) FROM jobs {of_one} GROUP BY phase", *values)
        last = f"SELECT MAX(rowid) FROM jobs {of_one} GROUP BY trial_id"
        trials = self._database.query(
            f"SELECT sweep, phase, COUNT(*) FROM jobs WHERE rowid IN ({last}) GROUP BY sweep, phase", *values
        )
        return (
            Counter({Phase(phase): number for phase, number in jobs}),
            Counter({(name, Phase(phase)): number for name, phase, number in trials}),
        )
