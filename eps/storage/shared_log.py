"""The event log of a job master in a shared store, so that its successor may run on another host.

It has the content of :class:`eps.storage.wal.EventLog`.  A store such as HDFS causes five differences:

* One process writes a log from front to back, and it is never reopened.  A master that takes over begins the next log.
  A torn end, which only the last log can have, is removed by rewriting that log.
* Before a master reads, it fences the last log: its writer can write no more (as HBase does with logs of region
  servers).  A master that only seemed dead then finds a later log than its own, and learns that it was replaced.
* A log gets its name only once its head is written, and the head identifies its writer.  So a process recognises a log
  that it tried to begin without learning the result.
* Missing records are marked by an empty file (``gap-``), which needs no space.  If the store refuses even that, each
  snapshot tries again.  A master that is restored before learns from its members that it misses records
  (:mod:`eps.core.members`).
* Each record carries its time: the store does not keep one for open files.

A fencing master looks for a gap after the fence; a failing writer marks a gap and then checks for a fence.  So one of
the two notices the other.  If a gap can be marked, no state is restored that misses events which the previous master
acted on.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn, Protocol

from eps.errors import StorageError
from eps.storage.api import Storage
from eps.storage.wal import LOG_HEAD, LogFolder, Replay, frame, next_number, records_of, snapshot_bytes

#: A fenced master begins at most one more log before it notices, or YARN ends it.
MOST_FENCES = 10
_TIME = struct.Struct("<d")
_IDENTITY_BYTES = 16


class DamagedLogError(StorageError):
    """The log cannot be restored; a retry cannot help."""


class AppendFile(Protocol):
    """A new file that one process writes from front to back."""

    def write(self, data: bytes) -> None:
        """Append ``data``; it survives the end of this process when this returns."""

    def sync(self) -> None:
        """Return once everything written survives a power loss."""

    def is_fenced(self) -> bool:
        """Return whether another process has fenced this file; wait for one that is fencing it now.

        Raises
        ------
        StorageError
            The state is unknown.
        """

    def close(self) -> None:
        """Stop writing.  Idempotent."""


class LogStorage(Storage, Protocol):
    """A store that can hold a log."""

    def append(self, path: str, head: bytes) -> AppendFile:
        """Create the file ``path``, which begins with ``head``, and its missing folders.

        The file appears only together with its head.

        Raises
        ------
        StorageError
            The file exists or cannot be created; it may have been created if the store's answer was lost.
        """

    def mark(self, path: str) -> None:
        """Create an empty file, also if the store is full; an existing one stays."""

    def fence(self, path: str) -> None:
        """Prevent further writes by processes that have ``path`` open, and make everything written visible."""


class SharedLog:
    """The open log of a job master; one process writes it, one thread at a time.

    Created by :meth:`open`.
    """

    def __init__(
        self, storage: LogStorage, folder: str, on_superseded: Callable[[], None], marks_gaps: bool = True
    ) -> None:
        self._storage = storage
        self._marks_gaps = marks_gaps
        self._on_superseded = on_superseded
        self._files = LogFolder(storage, folder)
        #: Location of the log, for messages.
        self.path = storage.describe(folder)
        #: The content when the log was opened.
        self.recovered = Replay(None, ())
        #: Why appends fail until the next snapshot; empty if they do not.
        self.error = ""
        self._file: AppendFile | None = None
        self._number = -1
        #: Head of each log that this process writes.
        self._head = LOG_HEAD + frame(secrets.token_bytes(_IDENTITY_BYTES))
        #: Numbers of logs whose creation failed, or may have.
        self._tried: set[int] = set()

    @classmethod
    def open(
        cls,
        storage: LogStorage,
        folder: str,
        on_superseded: Callable[[], None],
        then: LogStorage | None = None,
        marks_gaps: bool = True,
    ) -> SharedLog:
        """Open the log in ``folder``, which may be missing.

        Parameters
        ----------
        storage : LogStorage
        folder : str
        on_superseded : callable
            Called when another master has opened the log: this process is no longer the master and must end.
        then : LogStorage, optional
            The same store with a shorter retry deadline, for use after the start: a master at work cannot wait long.
        marks_gaps : bool
            False if every record is written before the master acts on it: then none can be missing.

        Raises
        ------
        DamagedLogError
            The log is damaged or misses records.
        StorageError
            The log cannot be read or written.
        """
        log = cls(storage, folder, on_superseded, marks_gaps)
        for _ in range(MOST_FENCES):
            if log._recover():
                log._storage = then or storage
                log._files = LogFolder(log._storage, folder)
                return log
        raise StorageError(f"{log.path}: another job master is writing this log")

    def append(self, record: bytes) -> None:
        """Append one record, which survives the end of this process when this returns.

        Raises
        ------
        StorageError
            The record cannot be written; later appends fail too, until the next snapshot.
        """
        try:
            self._opened().write(frame(_TIME.pack(time.time()) + record))
        except StorageError as error:
            self._give_up(error)

    def sync(self) -> None:
        """Return once everything appended survives a power loss.

        Raises
        ------
        StorageError
            The stored content is unknown; later appends fail too, until the next snapshot.
        """
        try:
            self._opened().sync()
        except StorageError as error:
            self._give_up(error)

    def snapshot(self, *parts: bytes, sync: bool = True) -> None:
        """Restart the log from the state ``parts``; see :meth:`begin`.

        Raises
        ------
        StorageError
            The snapshot cannot be written; a log without missing records is still complete.
        """
        if self.error:
            # The gap may be unmarked so far; mark it until the new snapshot is stored.
            self._check_not_superseded(self._files.numbers())
            self._mark_gap()
        self.write_snapshot(self.begin(), parts)
        self.error = ""

    def begin(self) -> int:
        """Begin the next log and return the number of its snapshot, which any thread must write soon.

        Raises
        ------
        StorageError
            The next log cannot be created; the log is unchanged.
        """
        # List once: the chosen number must not exceed a log that another master begins meanwhile.
        numbers = self._files.numbers()
        self._check_not_superseded(numbers)
        number = next_number(numbers, self._number)
        self._start_log(number)
        return number

    def write_snapshot(self, number: int, parts: Sequence[bytes]) -> None:
        """Write the snapshot at which log ``number`` began, and remove files that it makes obsolete.

        Raises
        ------
        StorageError
            The snapshot cannot be written; the log is complete without it.
        """
        with self._storage.write(self._files.path("snapshot", number)) as file:
            for piece in snapshot_bytes(parts):
                file.write(piece)
        self._files.remove_older(number)

    def close(self) -> None:
        """Close the file.  Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(StorageError):
                file.close()

    # ---- files

    def _opened(self) -> AppendFile:
        if self.error or self._file is None:
            raise StorageError(f"{self.path}: {self.error or 'the log has no snapshot yet'}")
        return self._file

    def _start_log(self, number: int) -> None:
        try:
            file = self._storage.append(self._files.path("log", number), self._head)
        except StorageError:
            self._tried.add(number)
            raise
        self.close()
        self._file, self._number = file, number

    def _give_up(self, error: StorageError) -> None:
        """Fail all appends until the next snapshot, and prevent the restore of a state that misses events."""
        if not self.error and self._file is not None:
            self.error = str(error)
            if self._answers():
                if self._seems_superseded(self._file):
                    self._supersede()
                self._mark_gap()
                # A master that fences after this sees the mark.
                if self._seems_superseded(self._file):
                    self._supersede()
        raise error

    def _answers(self) -> bool:
        """Return whether the store responds; this check times out sooner than an append."""
        try:
            self._files.numbers()
        except StorageError:
            return False
        return True

    def _seems_superseded(self, file: AppendFile) -> bool:
        """Return whether another master has taken over; False if unknown."""
        with suppress(StorageError):
            if file.is_fenced():
                return True
        with suppress(StorageError):
            return self._is_superseded(self._files.numbers())
        return False

    def _is_superseded(self, numbers: Mapping[str, Sequence[int]]) -> bool:
        return any(number > self._number and not self._is_own(number) for number in numbers["log"])

    def _check_not_superseded(self, numbers: Mapping[str, Sequence[int]]) -> None:
        if self._is_superseded(numbers):
            self._supersede()

    def _is_own(self, number: int) -> bool:
        """Return whether this process began a log; raise StorageError if unknown."""
        return number in self._tried and self._files.read("log", number).startswith(self._head)

    def _supersede(self) -> NoReturn:
        self.error = f"{self.path}: another job master has taken over"
        self._on_superseded()
        raise StorageError(self.error)

    def _mark_gap(self) -> None:
        if not self._marks_gaps:
            return
        with suppress(StorageError):
            self._storage.mark(self._files.path("gap", self._number))

    # ---- recovery

    def _recover(self) -> bool:
        """Take over the log; return False if its writer has begun another one meanwhile."""
        numbers = self._files.numbers()
        logs = numbers["log"]
        if logs:
            self._storage.fence(self._files.path("log", logs[-1]))
        dropped: list[str] = []
        snapshot, base = self._files.newest_snapshot(dropped)
        for number in logs[:-1]:
            # Its writer may have failed to close it, or to begin the last one.
            if number >= base:
                self._storage.fence(self._files.path("log", number))
        numbers = self._files.numbers()
        if numbers["log"] != logs:
            return False
        logs = [number for number in logs if number >= base]
        if snapshot is None:
            if not numbers["snapshot"] and len(logs) <= 1:
                # The process died before its first record.
                self._number = logs[-1] if logs else -1
                return True
            raise DamagedLogError(f"{self.path}: no snapshot can be read: {'; '.join(dropped) or 'there is none'}")
        if logs and logs != list(range(base, logs[-1] + 1)):
            missing = next(number for number in range(base, logs[-1]) if number not in logs)
            # A live writer may have removed the log meanwhile, because a later snapshot contains it.
            if self._files.numbers()["log"] != numbers["log"]:
                return False
            raise DamagedLogError(f"{self.path}: log {missing} is missing")
        if any(gap >= base for gap in numbers["gap"]):
            raise DamagedLogError(
                f"{self.path}: records are missing, because writing one failed; the state cannot be restored"
            )
        records: list[bytes] = []
        ends = True
        for number in reversed(logs):
            data = self._files.read("log", number)
            where = self._files.describe("log", number)
            # A log with only its head does not count as the last one.
            found, size_bytes = records_of(data, where, ends, dropped)
            ends = ends and len(found) <= 1
            if size_bytes < len(data):
                with self._storage.write(self._files.path("log", number)) as file:
                    file.write(data[:size_bytes] or LOG_HEAD)
            # The first record identifies the writer.
            records = found[1:] + records
        age_s = max(0.0, time.time() - _TIME.unpack_from(records[-1])[0]) if records else 0.0
        self.recovered = Replay(snapshot, tuple(r[_TIME.size :] for r in records), tuple(dropped), age_s)
        number = max([base, *logs]) + 1 if logs else base
        try:
            self._start_log(number)
        except StorageError:
            if number in self._files.numbers()["log"]:
                return False
            raise
        return True
