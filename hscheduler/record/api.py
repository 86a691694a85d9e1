"""The record of a scheduler: a log of its events, each written before it takes effect.

A record has four parts, and each change of it is atomic:

* a header: the settings of the scheduler;
* a snapshot: the state after the events that were dropped; none before the first compaction;
* entries: the events since the snapshot;
* tables: ended jobs, and decisions about them, which the snapshot does not have.

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

#: Decimal digits of seconds: microseconds, the precision of the scheduler's time.
TIME_DIGITS = 6


@dataclass(frozen=True)
class Header:
    """Settings of the scheduler that created the record; a scheduler that resumes from it must have the same."""

    policy: str
    seed: int
    #: Node -> vcores and memory in MiB.
    nodes: Mapping[str, list[int]]
    threshold: int | None
    restart_s: float
    feedback_iteration: int
    metric: str
    #: Distinguishes the names of these jobs from those of other schedulers.
    tag: str
    #: Id of the boot to which :attr:`began_s` belongs; empty if unknown.
    boot: str = ""
    #: Start of the scheduler on the machine's monotonic clock, seconds.
    began_s: float = 0.0
    #: Settings that every job gets.
    job_settings: Mapping[str, str] = field(default_factory=dict)
    #: Stopping rule of sweeps that name none; empty: that of the policy.
    stop: str = ""


@dataclass(frozen=True)
class Entry:
    """One event."""

    at_s: float
    event: e.Event
    #: Further values of the event, such as the settings of a job that was submitted.
    details: Mapping[str, Any] = field(default_factory=dict)
    #: Number of orders before the event, and their checksum.
    given: int = 0
    checksum: int = 0


class SchedulerRecord(Protocol):
    """Interface of a record; see the docstring of this module.  Its methods are called on one thread.

    All raise StorageError if the record cannot be read or written.
    """

    #: Path of the record, for messages.
    where: str
    rows: Rows
    #: None until :meth:`begin`.
    header: Header | None
    #: A sentence on the damaged end that was dropped; empty if none was.
    dropped: str
    #: Sizes of the snapshot, and of the entries after it.
    snapshot_bytes: int
    entries_bytes: int

    def begin(self, header: Header) -> None:
        """Write the header of an empty record."""

    def snapshot(self) -> Any:
        """Return the snapshot as JSON values; None if there is none.  Call it once, before :meth:`entries`."""

    def entries(self) -> Iterator[Entry]:
        """Yield the entries that the record held when it was opened.  Call it once."""

    def append(self, entries: Sequence[Entry], *, durable: bool) -> None:
        """Add entries atomically; on return they survive a crash of this process.

        Parameters
        ----------
        entries : sequence
        durable : bool
            The entries survive a power failure, too.

        Raises
        ------
        StorageError
            The entries cannot be written.  Retry; if that fails, :meth:`compact` may help.
        ValueError, TypeError
            An entry has no representation as JSON.
        """

    def compact(self, header: Header, snapshot: Any, jobs: Sequence[EndedJob], decisions: Sequence[Decided]) -> None:
        """Replace the entries by the snapshot to which they led, and add rows to the tables; atomic.

        Existing rows stay as they are.
        """

    def close(self) -> None:
        """Close the record.  Idempotent."""


def entry_text(entry: Entry) -> str:
    """Return an entry as text.  Raises ValueError or TypeError if it has no representation as JSON."""
    at_s, given = round(entry.at_s, TIME_DIGITS), [entry.given, entry.checksum]
    values = [at_s, given, encoded(entry.event), dict(entry.details)]
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def entry_of(text: str | bytes, where: str) -> Entry:
    """Return the entry that :func:`entry_text` wrote.

    Raises
    ------
    StorageError
        The text is no entry.
    """
    try:
        at_s, (given, checksum), event, details = json.loads(text)
        return Entry(float(at_s), decoded(event), details, int(given), int(checksum))
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{where}: an entry cannot be read: {type(error).__name__}: {error}") from error


def check_format(found: str, written_by: str, where: str) -> None:
    """Refuse a record of another format.

    Raises
    ------
    StorageError
        The record is in another format.
    """
    if found != FORMAT:
        raise StorageError(
            f"{where} is in format {found}, which eps {written_by} wrote; this is eps {__version__}, which reads "
            f"{FORMAT}"
        )
