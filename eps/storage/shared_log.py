"""The event log of a job master whose successor may be on another host: in a store instead of a directory.

It says the same as :class:`eps.storage.wal.EventLog`, with four differences that a store such as HDFS makes:

* A log is written by one process from front to back and never opened again, so a master that takes over begins the next
  one at once; a torn end, which only the last log can have, is cut off by writing that log anew.
* Before it reads, it fences: who had the last log open can write no more of it (as HBase does with the logs of region
  servers).  A master that only seemed to be dead finds that there is a later log than its own, and is told so.
* A log has its name only when its head is written, and the head says who wrote it: so a log that this process tried to
  begin, and does not know whether it did, is not taken for another master's.
* A file of its own says that records are missing (``gap-``): its name does, so that it takes no room.  Where the store
  takes not even that, it is tried with every snapshot again; a master that is restored before learns from its members
  that it misses something (:mod:`eps.core.members`).
* Each record carries the time at which it was written: the store does not keep it for a file that is open.

Whoever fences looks for a gap afterwards; whoever cannot write says that there is a gap, and then looks whether it was
fenced: so one of the two learns of the other, and where a gap can be noted, nothing is restored that misses what the
master before has done unlogged.
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

#: Whoever was cut off begins at most one more log before it finds out, or YARN tells it to go.
MOST_FENCES = 10
_TIME = struct.Struct("<d")
_IDENTITY_BYTES = 16


class DamagedLogError(StorageError):
    """Nothing can be restored from what a log says, however often it is tried."""


class AppendFile(Protocol):
    """A new file that one process writes from front to back."""

    def write(self, data: bytes) -> None:
        """Add ``data``; it survives the end of this process when this returns."""

    def sync(self) -> None:
        """Return when everything written would survive a loss of power."""

    def is_fenced(self) -> bool:
        """Return whether somebody has fenced it; who is at it just now is waited for.

        Raises
        ------
        StorageError
            That cannot be known.
        """

    def close(self) -> None:
        """Write no more; harmless when repeated."""


class LogStorage(Storage, Protocol):
    """A store in which a log can be kept."""

    def append(self, path: str, head: bytes) -> AppendFile:
        """Make the file ``path``, which begins with ``head``, with the folders that it needs.

        Nobody finds it without its head.

        Raises
        ------
        StorageError
            There is such a file, or it cannot be made; it may be there where the store's answer was lost.
        """

    def mark(self, path: str) -> None:
        """Make an empty file, also where no content can be written; one that is there stays."""

    def fence(self, path: str) -> None:
        """See to it that nobody who has ``path`` open can write to it any more, and that all that was written shows."""


class SharedLog:
    """The open log of a job master; one process writes it, one thread at a time.

    Made by :meth:`open`.
    """

    def __init__(
        self, storage: LogStorage, folder: str, on_superseded: Callable[[], None], marks_gaps: bool = True
    ) -> None:
        self._storage = storage
        self._marks_gaps = marks_gaps
        self._on_superseded = on_superseded
        self._files = LogFolder(storage, folder)
        #: As a person would look for it.
        self.path = storage.describe(folder)
        #: What the log held when it was opened.
        self.recovered = Replay(None, ())
        #: Why nothing is appended any more, until a snapshot is written; empty while all is well.
        self.error = ""
        self._file: AppendFile | None = None
        self._number = -1
        #: What each log begins with that this process writes.
        self._head = LOG_HEAD + frame(secrets.token_bytes(_IDENTITY_BYTES))
        #: Logs that it could not begin, or does not know to have begun.
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
        """Open the log in ``folder``, which need not be there.

        Parameters
        ----------
        storage : LogStorage
        folder : str
        on_superseded : callable
            Called when another master has opened the log: this process is not the master any more, and must end.
        then : LogStorage, optional
            The same store for all that follows, with less patience: whoever begins can wait, whoever is at work cannot.
        marks_gaps : bool
            False where nothing is done about a record before it is written: none is ever missing then.

        Raises
        ------
        DamagedLogError
            It is damaged, or misses records.
        StorageError
            It cannot be read or written.
        """
        log = cls(storage, folder, on_superseded, marks_gaps)
        for _ in range(MOST_FENCES):
            if log._recover():
                log._storage = then or storage
                log._files = LogFolder(log._storage, folder)
                return log
        raise StorageError(f"{log.path}: another job master writes this log")

    def append(self, record: bytes) -> None:
        """Add one record, which survives the end of this process when this returns.

        Raises
        ------
        StorageError
            It cannot be written; everything after it is refused too, until the next snapshot.
        """
        try:
            self._opened().write(frame(_TIME.pack(time.time()) + record))
        except StorageError as error:
            self._give_up(error)

    def sync(self) -> None:
        """Return when everything that was appended would survive a loss of power.

        Raises
        ------
        StorageError
            Nobody knows what is kept; everything after it is refused, until the next snapshot.
        """
        try:
            self._opened().sync()
        except StorageError as error:
            self._give_up(error)

    def snapshot(self, *parts: bytes, sync: bool = True) -> None:
        """Begin the log anew after ``parts``, which say everything that led here; see :meth:`begin`.

        Raises
        ------
        StorageError
            It cannot be written; where the log missed no records, it still misses none.
        """
        if self.error:
            # It may not have been taken before; until the new snapshot is there it must be known.
            self._check_not_superseded(self._files.numbers())
            self._mark_gap()
        self.write_snapshot(self.begin(), parts)
        self.error = ""

    def begin(self) -> int:
        """Begin the next log, and return the number of the snapshot that it needs; write it soon, on any thread.

        Raises
        ------
        StorageError
            The next log cannot be made; the log is as it was.
        """
        # One look: what it chooses must not be beyond a log that another master begins meanwhile.
        numbers = self._files.numbers()
        self._check_not_superseded(numbers)
        number = next_number(numbers, self._number)
        self._start_log(number)
        return number

    def write_snapshot(self, number: int, parts: Sequence[bytes]) -> None:
        """Write the snapshot at which log ``number`` began, and drop what it makes needless.

        Raises
        ------
        StorageError
            It cannot be written; the log says the same without it.
        """
        with self._storage.write(self._files.path("snapshot", number)) as file:
            for piece in snapshot_bytes(parts):
                file.write(piece)
        self._files.remove_older(number)

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(StorageError):
                file.close()

    # ---- files

    def _opened(self) -> AppendFile:
        if self.error or self._file is None:
            raise StorageError(f"{self.path}: {self.error or 'no snapshot has begun the log'}")
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
        """Refuse everything until the next snapshot, and see to it that nobody restores a state that misses events."""
        if not self.error and self._file is not None:
            self.error = str(error)
            if self._answers():
                if self._seems_superseded(self._file):
                    self._supersede()
                self._mark_gap()
                # Whoever fences it after this sees the mark.
                if self._seems_superseded(self._file):
                    self._supersede()
        raise error

    def _answers(self) -> bool:
        """Return whether the store answers, which is soon known; a client that appends may wait for it for longer."""
        try:
            self._files.numbers()
        except StorageError:
            return False
        return True

    def _seems_superseded(self, file: AppendFile) -> bool:
        """Return whether another master has taken over; False also where that cannot be known."""
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
        """Return whether this process began a log; raises StorageError where that cannot be known."""
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
        """Take the log over; return False where whoever was still writing has begun another one meanwhile."""
        numbers = self._files.numbers()
        logs = numbers["log"]
        if logs:
            self._storage.fence(self._files.path("log", logs[-1]))
        dropped: list[str] = []
        snapshot, base = self._files.newest_snapshot(dropped)
        for number in logs[:-1]:
            # Its writer may have failed to close it, or to begin the last.
            if number >= base:
                self._storage.fence(self._files.path("log", number))
        numbers = self._files.numbers()
        if numbers["log"] != logs:
            return False
        logs = [number for number in logs if number >= base]
        if snapshot is None:
            if not numbers["snapshot"] and len(logs) <= 1:
                # The process died before there was anything to say.
                self._number = logs[-1] if logs else -1
                return True
            raise DamagedLogError(f"{self.path}: no snapshot can be read: {'; '.join(dropped) or 'there is none'}")
        if logs and logs != list(range(base, logs[-1] + 1)):
            missing = next(number for number in range(base, logs[-1]) if number not in logs)
            # One that still writes may have removed it meanwhile, with what it said in a later snapshot.
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
            # One that was begun, and that nothing was written to, ends none.
            found, size_bytes = records_of(data, where, ends, dropped)
            ends = ends and len(found) <= 1
            if size_bytes < len(data):
                with self._storage.write(self._files.path("log", number)) as file:
                    file.write(data[:size_bytes] or LOG_HEAD)
            # The first says who wrote it.
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
