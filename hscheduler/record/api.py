"""The record of a scheduler: every event, before anything is done about it; from it follows where the scheduler is.

It has four things, and one change of it is whole or not at all:

* a header: what the scheduler was begun with;
* a snapshot: what events have led to, which are not kept any more; none before the first compaction;
* entries: the events since;
* rows: jobs that are over, and what was decided about them, which the snapshot has left out.

One process writes it.  The suite of its two implementations is ``tests/contract/test_scheduler_record.py``.

Source: style section 16; EPS is silent about a scheduler that dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from eps._version import __version__
from eps.errors import StorageError
from hscheduler.core import events as e
from hscheduler.core.codec import FORMAT, decoded, encoded
from hscheduler.record.ended_jobs import Decided, EndedJob, Rows

#: Of seconds: microseconds, as the scheduler itself counts them.
TIME_DIGITS = 6


@dataclass(frozen=True)
class Header:
    """What a record was begun with; a scheduler that goes on with it is the same in all of this."""

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
    #: Settings that every job has.
    job_settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One event."""

    at_s: float
    event: e.Event
    #: What stands beside it, such as the settings of a job that was submitted.
    beside: Mapping[str, Any] = field(default_factory=dict)
    #: Orders that had been given before it, and their checksum.
    given: int = 0
    checksum: int = 0


class SchedulerRecord(Protocol):
    """See the head of this module.  Its methods are called on one thread.

    All raise StorageError where the record cannot be read, or written.
    """

    #: As a person would look for it.
    where: str
    rows: Rows
    #: None of a record that has not begun.
    header: Header | None
    #: What was dropped at its end, as a sentence; empty if nothing was.
    dropped: str
    #: How much the snapshot takes, and the entries after it.
    snapshot_bytes: int
    entries_bytes: int

    def begin(self, header: Header) -> None:
        """Begin a record that is empty."""

    def snapshot(self) -> Any:
        """Return the snapshot, as JSON; None where there is none.  Once, before :meth:`entries`."""

    def entries(self) -> Iterator[Entry]:
        """Yield what it held when it was opened.  Once."""

    def append(self, entries: Sequence[Entry], *, durable: bool) -> None:
        """Add entries, all or none of them; they survive the end of this process when this returns.

        Parameters
        ----------
        entries : sequence
        durable : bool
            They survive a loss of power, too.

        Raises
        ------
        StorageError
            They cannot be written: try again; where it fails again, :meth:`compact` may help.
        ValueError, TypeError
            JSON cannot say them.
        """

    def compact(self, header: Header, snapshot: Any, jobs: Sequence[EndedJob], decisions: Sequence[Decided]) -> None:
        """Replace entries by the snapshot to which they led, and add rows; all of it or nothing.

        Rows that are there already are left as they are.
        """

    def close(self) -> None:
        """Close it; harmless when repeated."""


def entry_text(entry: Entry) -> str:
    """Return an entry as text.  Raises ValueError or TypeError where JSON cannot say it."""
    at_s, given = round(entry.at_s, TIME_DIGITS), [entry.given, entry.checksum]
    values = [at_s, given, encoded(entry.event), dict(entry.beside)]
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def entry_of(text: str | bytes, where: str) -> Entry:
    """Return the entry that :func:`entry_text` wrote.

    Raises
    ------
    StorageError
        It is none.
    """
    try:
        at_s, (given, checksum), event, beside = json.loads(text)
        return Entry(float(at_s), decoded(event), beside, int(given), int(checksum))
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{where}: an entry cannot be read: {type(error).__name__}: {error}") from error


def check_format(found: str, written_by: str, where: str) -> None:
    """Refuse a record that other code wrote.

    Raises
    ------
    StorageError
        It is in another format.
    """
    if found != FORMAT:
        raise StorageError(
            f"{where} is in format {found}, which eps {written_by} wrote; this is eps {__version__}, which reads "
            f"{FORMAT}"
        )
