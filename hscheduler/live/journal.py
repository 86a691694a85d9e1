"""The journal of a live scheduler: every event, before anything is done about it.

The state is what its events make of it, so a scheduler that is started again takes the events of its journal and is
where it was; what it ordered and what was not answered it orders again, under the same number.

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
from eps.storage.journal import Journal, Replay, encode_line
from hscheduler.core import events as e
from hscheduler.core.codec import decode_event, encode_event
from hscheduler.core.jobs import WATCHED_ITERATIONS
from hscheduler.core.thinned import Thinned

VERSION = 1
#: Of seconds: microseconds, as the scheduler itself counts them where it has a journal.
TIME_DIGITS = 6
#: Losses that are written of all that a job told between two events.
MOST_LOSSES = 50
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
    #: Keeps the names of these jobs apart from those of other schedulers.
    tag: str
    #: When it was begun, in seconds since 1970.
    began_unix_s: float
    version: int = VERSION


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


@dataclass
class _Held:
    """News of a job that are written as one."""

    at_s: float = 0.0
    iteration: int = 0
    durations_s: tuple[float, ...] = ()
    #: (time, iterations complete, loss), some of them.
    losses: Thinned[tuple[float, int, float]] = field(default_factory=lambda: Thinned(MOST_LOSSES))


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
        self._journal = Journal(path)
        self._records = self._journal.recovered.records
        #: What was dropped at its end, as a sentence; empty if nothing was.
        self.dropped = self._journal.recovered.dropped
        #: Job -> its news that are not written yet.
        self._held: dict[str, _Held] = {}
        self.header: Header | None = None
        if self._records:
            try:
                self.header = Header(**self._records[0])
            except TypeError as error:
                raise self._bad(1, error) from error
            if self.header.version != VERSION:
                raise self._bad(1, ValueError(f"its version is {self.header.version}, but must be {VERSION}"))

    def begin(self, header: Header) -> None:
        """Begin a journal that is empty."""
        if self.header is not None:
            raise ConfigError(f"{self.path} has begun already")
        self.header = header
        self._journal.append(vars(header), sync=True)

    def entries(self) -> Iterator[Entry]:
        """Yield what it held when it was opened.

        Raises
        ------
        StorageError
            An entry is not one of ours.
        """
        for number, record in enumerate(self._records[1:], 2):
            try:
                event = decode_event(record["event"])
                given, checksum = map(int, record["given"])
                yield Entry(float(record["at_s"]), event, record.get("beside", {}), given, checksum)
            except (KeyError, TypeError, ValueError) as error:
                raise self._bad(number, error) from error
        # Not needed any more, and as long as the journal.
        self._records = ()
        self._journal.recovered = Replay((), self._journal.recovered.size_bytes)

    def append(self, entry: Entry) -> None:
        """Write an event, which nothing was done about so far.

        Raises
        ------
        StorageError
            It could not be written.
        """
        self._write_held(entry)
        self._write(entry)

    def hold(self, at_s: float, news: e.Iterated) -> None:
        """Note news of a job by which nothing is decided; they are written before the next event that is."""
        held = self._held.setdefault(news.job_id, _Held())
        held.at_s, held.iteration = at_s, news.iteration
        held.durations_s = (*held.durations_s, *news.durations_s)[-WATCHED_ITERATIONS:]
        for ago_s, iteration, loss in news.losses:
            held.losses.add((at_s - ago_s, iteration, loss))

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        self._journal.close()

    def __enter__(self) -> EventJournal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write_held(self, before: Entry) -> None:
        held, self._held = self._held, {}
        for job_id, each in sorted(held.items(), key=lambda item: item[1].at_s):
            losses = tuple(
                (round(each.at_s - at_s, TIME_DIGITS), iteration, loss)
                for at_s, iteration, loss in each.losses.points()
            )
            news = e.Iterated(job_id, each.iteration, each.durations_s, losses)
            self._write(Entry(each.at_s, news, given=before.given, checksum=before.checksum))

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
