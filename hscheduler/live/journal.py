"""The journal of a live scheduler: every event, before anything is done about it.

The state is what its events make of it, so a scheduler that is started again takes the events of its journal and is
where it was; what it ordered and what was not answered it orders again, under the same number.

It does not grow for ever: from time to time it is begun anew with a snapshot of where the scheduler is (see
:mod:`hscheduler.live.known`), written beside it and renamed, so that at every moment one of the two is there, whole.

A running job says several times a second how far it is.  Of such news only the latest matter while nothing is decided
by them, so they are written late and as one, before the next event that is written.

Source: style section 16; EPS is silent about a scheduler that dies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, StorageError
from eps.storage.atomic import sync_directory, write_bytes_atomic
from eps.storage.journal import Journal, Replay, encode_line
from hscheduler.core import events as e
from hscheduler.core.codec import decode_event, encode_event
from hscheduler.live.held import TIME_DIGITS, HeldNews

VERSION = 2
#: It is begun anew when it has grown by so much, and to so many times what it was when it was begun.
GROWN_BYTES = 2 << 20
GROWN_TIMES = 4
#: What a user was told must not be lost with the machine's power; news of jobs may be, as the jobs are.
DURABLE = e.JobSubmitted | e.SweepOpened | e.SweepClosed | e.CancelAsked


@dataclass(frozen=True)
class Header:
    """What a journal was begun with; a scheduler that goes on with it is the same in all of this."""

    policy: str
    seed: int
    #: Node -> vcores and memory in MiB.
    nodes: Mapping[str, list[int]]
    threshold: int | None
    restart_s: float
    feedback_iteration: int
    metric: str
    #: Keeps the names of these jobs apart from those of other schedulers.
    tag: str
    #: Which start of the machine :attr:`began_s` is of; empty where that cannot be known.
    boot: str = ""
    #: The scheduler's beginning on the machine's monotonic clock, seconds.
    began_s: float = 0.0
    version: int = VERSION
    #: Settings that every job has.
    job_settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One event of a journal."""

    at_s: float
    event: e.Event
    #: What stands beside it, such as the settings of a job that was submitted.
    beside: Mapping[str, Any] = field(default_factory=dict)
    #: Orders that had been given before it, and their checksum.
    given: int = 0
    checksum: int = 0


def check_writable(beside: Mapping[str, Any], what: str) -> None:
    """Refuse what could not be written beside an event, before anything is done about it.

    Raises
    ------
    ConfigError
        It is more than JSON can say.
    """
    try:
        encode_line(beside)
    except (StorageError, RecursionError) as error:
        raise ConfigError(f"{what}: {error}") from None


class EventJournal:
    """The open journal of one scheduler.

    Parameters
    ----------
    path : Path

    Raises
    ------
    StorageError
        It is damaged, cannot be opened, or was written by another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            # Of a process that was killed while it began a journal anew.
            left.unlink(missing_ok=True)
        self._journal = Journal(path)
        self._records = self._journal.recovered.records
        #: What was dropped at its end, as a sentence; empty if nothing was.
        self.dropped = self._journal.recovered.dropped
        #: Job -> its news that are not written yet.
        self._held: dict[str, HeldNews] = {}
        self.header: Header | None = None
        #: What it was begun anew with; None where it never was, and when its entries were read.
        self.snapshot: dict[str, Any] | None = None
        #: So large it was when it was begun, and so large it is to be at least before it is begun anew.
        self._begun_bytes = self._patient_bytes = 0
        #: Whether its name in the directory is durable.
        self._is_named = True
        if self._records:
            try:
                self.header = self._header()
            except StorageError:
                self.close()
                raise
            self.snapshot = self._records[1].get("snapshot") if len(self._records) > 1 else None
            self._begun_bytes = sum(len(encode_line(record)) for record in self._records[: self._begun_lines])

    def _header(self) -> Header:
        try:
            header = Header(**self._records[0])
        except TypeError as error:
            raise self._bad(1, error) from error
        if header.version != VERSION:
            raise self._bad(1, ValueError(f"its version is {header.version}, but must be {VERSION}"))
        return header

    @property
    def _begun_lines(self) -> int:
        return 1 if self.snapshot is None else 2

    def begin(self, header: Header) -> None:
        """Begin a journal that is empty."""
        if self.header is not None:
            raise ConfigError(f"{self.path} has begun already")
        self.header = header
        self._journal.append(vars(header), sync=True)

    def begin_anew(self, header: Header, snapshot: Mapping[str, Any]) -> None:
        """Begin the journal anew, with what its events have led to; whatever fails, the old one or the new one is used.

        Raises
        ------
        StorageError
            The new one could not be written, opened, or made durable.
        """
        before, lines = self._file(), encode_line(vars(header)) + encode_line({"snapshot": dict(snapshot)})
        try:
            write_bytes_atomic(self.path, lines)
        except StorageError:
            if before is None or self._file() != before:
                self._is_named = False
                self._use_new(header, len(lines))
            raise
        self._use_new(header, len(lines))

    def _use_new(self, header: Header, size_bytes: int) -> None:
        """Use the journal that has taken this one's place; while it cannot be opened, nothing can be written."""
        self._journal.close()
        # It is in the snapshot.
        self._held = {}
        self._journal = Journal(self.path)
        self._journal.recovered = Replay((), size_bytes)
        self.header, self._begun_bytes, self._patient_bytes = header, size_bytes, 0

    def be_patient(self) -> None:
        """Let it grow once more before it is begun anew: it may not be possible now."""
        self._patient_bytes = self.size_bytes() + GROWN_BYTES

    @property
    def is_grown(self) -> bool:
        """Whether it is time to begin it anew."""
        enough = max(self._patient_bytes, self._begun_bytes + GROWN_BYTES, GROWN_TIMES * self._begun_bytes)
        return self.size_bytes() > enough

    def size_bytes(self) -> int:
        """Return how large it is; 0 where that cannot be found out."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _file(self) -> tuple[int, int] | None:
        """Return which file is at its place."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def entries(self) -> Iterator[Entry]:
        """Yield what it held when it was opened.

        Raises
        ------
        StorageError
            An entry is not one of ours.
        """
        begun = self._begun_lines
        for number, record in enumerate(self._records[begun:], begun + 1):
            try:
                event = decode_event(record["event"])
                given, checksum = map(int, record["given"])
                yield Entry(float(record["at_s"]), event, record.get("beside", {}), given, checksum)
            except (KeyError, TypeError, ValueError) as error:
                raise self._bad(number, error) from error
        # Not needed any more, and as long as the journal.
        self._records, self.snapshot = (), None
        self._journal.recovered = Replay((), self._journal.recovered.size_bytes)

    def append(self, entry: Entry) -> None:
        """Write an event, which nothing was done about so far.

        Raises
        ------
        StorageError
            It could not be written: it, and the news that are held and were not written, can be once more.
        """
        if not self._is_named:
            sync_directory(self.path.parent)
            self._is_named = True
        self._write_held(entry)
        self._write(entry)

    def hold(self, at_s: float, news: e.Iterated) -> None:
        """Note news of a job by which nothing is decided; they are written before the next event that is."""
        self._held.setdefault(news.job_id, HeldNews(news.job_id)).add(at_s, news)

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        self._journal.close()

    def __enter__(self) -> EventJournal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write_held(self, before: Entry) -> None:
        for job_id, each in sorted(self._held.items(), key=lambda item: item[1].at_s):
            self._write(Entry(each.at_s, each.event(each.at_s), given=before.given, checksum=before.checksum))
            del self._held[job_id]

    def _write(self, entry: Entry) -> None:
        record: dict[str, Any] = {
            "at_s": round(entry.at_s, TIME_DIGITS),
            "given": [entry.given, entry.checksum],
            "event": encode_event(entry.event),
        }
        if entry.beside:
            record["beside"] = dict(entry.beside)
        self._journal.append(record, sync=isinstance(entry.event, DURABLE))

    def _bad(self, number: int, error: Exception) -> StorageError:
        return StorageError(f"{self.path}: line {number} cannot be used: {error}")
