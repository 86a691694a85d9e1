"""Keep the record of a scheduler: write its events, compact the record, and restore a scheduler from it.

The state follows from its events, so a restarted scheduler replays the events of its record.  Orders without an answer
are given again, under the same numbers.

A running job reports its progress several times a second.  Only the latest reports matter while no decision depends on
them, so they are merged and written before the next event.

Source: style section 16; EPS is silent about a scheduler that dies.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, ResourceError, StorageDeniedError, StorageError
from hscheduler.core import events as e
from hscheduler.core.cohort import Rule
from hscheduler.core.decisions import Policy
from hscheduler.core.state import Scheduler
from hscheduler.live.inbox import HeldNews
from hscheduler.live.registry import LookUps, Registry
from hscheduler.record.api import Entry, Header, SchedulerRecord

logger = logging.getLogger(__name__)

#: Seconds between attempts to write, for example while the disk is full.
_RETRY_S = 0.5
#: The record is compacted when its entries exceed both this size and this multiple of its snapshot.
GROWN_BYTES = 2 << 20
GROWN_TIMES = 4
#: Users rely on the answers to these events, so they must survive a power failure.  Progress of jobs need not: a power
#: failure ends the jobs, too.
DURABLE = e.JobSubmitted | e.SweepOpened | e.SweepClosed | e.CancelAsked
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of the machine's current boot; empty if it is unknown."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def start_time_s(of_boot: str, began_s: float, last_s: float) -> float:
    """Return when a scheduler started, on this machine's monotonic clock.

    All processes of one boot share that clock.  Time without a scheduler counts, because its jobs kept running.  After
    a reboot, or if the boot is unknown, time continues from the last entry of the record.  The wall clock is not used:
    setting it ends no trial.

    Parameters
    ----------
    of_boot : str
        Boot id of ``began_s``.
    began_s : float, seconds
        Start on the monotonic clock of that boot.
    last_s : float, seconds
        The latest known time since the start; the scheduler's time never falls below it.
    """
    latest_s = time.monotonic() - last_s
    return min(began_s, latest_s) if of_boot and of_boot == boot_id() else latest_s


def check_writable(details: Mapping[str, Any], what: str) -> None:
    """Refuse details of an event that a record cannot hold, before they have any effect.

    Raises
    ------
    ConfigError
        They are not valid JSON.
    """
    try:
        json.dumps(details, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} must be JSON: {error}") from None


def option_values(header: Header) -> dict[str, str]:
    """Return a scheduler's settings, by the names that ``hscheduler serve`` uses."""
    found = {name: repr(value) for name, value in vars(header).items() if name not in ("nodes", "job_settings")}
    sizes = Counter(f"of {vcores} vcores and {memory_mb}MiB" for vcores, memory_mb in header.nodes.values())
    found["nodes"] = ", ".join(f"{number} {size}" for size, number in sizes.items())
    settings = header.job_settings
    found["--on"] = settings.get("on", "local")
    # Local jobs have no containers.
    found["--container-memory"] = f"{settings['memory_mb']}MiB" if "memory_mb" in settings else "unset"
    found["--container-vcores"] = settings.get("vcores", "unset")
    return found


def describe_differences(begun: Header, asked: Header) -> str:
    """Return how a scheduler's settings differ from those in its record.

    Differences in settings without an option, such as the names of its nodes, are described as in the header.
    """
    was, now = option_values(begun), option_values(asked)
    if was == now:
        was, now = ({name: repr(value) for name, value in vars(header).items()} for header in (begun, asked))
    return ", ".join(f"{name} {was[name]} (not {now[name]})" for name in was if now[name] != was[name])


class Recorder:
    """Keeps the record of one scheduler.

    All methods but :meth:`check_room` and :meth:`end` run on the scheduler's thread.

    Parameters
    ----------
    record : SchedulerRecord
        Is closed with this.
    header : Header
        Of the scheduler.  An existing record's tag and start time replace those in it.
    wait : callable
        Waits this many seconds before the next attempt to write, on the scheduler's thread.

    Raises
    ------
    ConfigError
        The record was created with other nodes or settings.
    StorageError
        The record cannot be written.
    """

    def __init__(self, record: SchedulerRecord, header: Header, wait: Callable[[float], None]) -> None:
        self._record, self._wait = record, wait
        #: Job -> its merged progress that is not written yet.
        self._held: dict[str, HeldNews] = {}
        #: Why the last write failed; empty if it succeeded.
        self._stuck = ""
        self._is_to_end = False
        #: Whether to compact soon, however small the record is.
        self._is_due = False
        #: Entries must exceed this size before the next attempt to compact; the last one may have failed.
        self._patient_bytes = 0
        #: Jobs that left the registry since the last call of :meth:`pop_evicted`.
        self._evicted: list[str] = []
        if record.header is None:
            record.begin(header)
        self.header = record.header or header
        asked = dataclasses.replace(header, tag=self.header.tag, boot=self.header.boot, began_s=self.header.began_s)
        if asked != self.header:
            record.close()
            told = describe_differences(self.header, asked)
            raise ConfigError(f"{record.where} was created with {told}: use the same, or another directory")

    def recover(
        self,
        registry: Registry,
        policy: Policy,
        rules: Mapping[str, Rule],
        take: Callable[[Entry, list[e.Command], Scheduler], None],
    ) -> Registry:
        """Return the registry to which the record leads.

        Parameters
        ----------
        registry : Registry
            Of a new scheduler.
        policy : Policy
        rules : mapping
            Name -> stopping rule.
        take : callable
            Called after each entry with the entry, the commands that followed from it and the state.

        Raises
        ------
        StorageError
            The entries do not lead to the orders that the record notes, or cannot be replayed.
        """
        where = "its snapshot"
        try:
            if (snapshot := self._record.snapshot()) is not None:
                registry = Registry.of_snapshot(snapshot, policy, rules)
            self._registry = registry
            for entry in self._record.entries():
                where = f"{type(entry.event).__name__} at {entry.at_s:.3f} s"
                outstanding = registry.outstanding
                if (entry.given, entry.checksum) != (outstanding.given, outstanding.checksum):
                    led = f"{outstanding.given}" if outstanding.given != entry.given else "other orders"
                    told = f"the record notes {entry.given} orders before {where}, but its events lead to {led}"
                    raise StorageError(f"{self._record.where}: {told}")
                take(entry, registry.take(entry)[0], registry.state)
        except StorageError:
            raise
        except Exception as error:
            # A record of another version may raise any exception.
            told = f"{where} cannot be replayed: {type(error).__name__}: {error}"
            raise StorageError(f"{self._record.where}: {told}") from error
        # The time of this start, and that none ran before it, are in no entry.
        self._is_due = True
        began_s = start_time_s(self.header.boot, self.header.began_s, registry.timeline.end_s)
        self.header = dataclasses.replace(self.header, boot=boot_id(), began_s=began_s)
        return registry

    def append(self, entry: Entry) -> None:
        """Write an event; retry until it succeeds, or the scheduler closes.

        Raises
        ------
        StorageError
            The scheduler closes, or has no permission to write.
        """
        while True:
            held = [
                Entry(each.at_s, each.event(each.at_s), given=entry.given, checksum=entry.checksum)
                for each in sorted(self._held.values(), key=lambda each: each.at_s)
            ]
            try:
                self._record.append([*held, entry], durable=isinstance(entry.event, DURABLE))
                break
            except StorageError as error:
                # A denied write, for example after a token expired, stays denied.
                if self._is_to_end or isinstance(error, StorageDeniedError):
                    raise
                if not self._stuck:
                    logger.error("%s; events wait, and EPS retries", error)
                self._stuck = str(error.__cause__ or error)
            self._wait(_RETRY_S)
            # A write may have succeeded in part; a compaction replaces it.
            with suppress(StorageError):
                self._compact()
        self._held = {}
        if self._stuck:
            logger.warning("the record can be written again")
            self._stuck = ""

    def hold(self, at_s: float, news: e.Iterated) -> None:
        """Merge progress of a job that no decision depends on; it is written before the next event."""
        self._held.setdefault(news.job_id, HeldNews(news.job_id)).add(at_s, news)

    def compact_if_grown(self) -> None:
        """Compact the record if it has grown, or a scheduler has just been restored from it."""
        enough = max(self._patient_bytes, GROWN_BYTES, GROWN_TIMES * self._record.snapshot_bytes)
        if not self._is_due and self._record.entries_bytes <= enough:
            return
        self._is_due = False
        self._patient_bytes = self._record.entries_bytes + GROWN_BYTES
        try:
            self._compact()
        except StorageError as error:
            logger.warning("the record could not be compacted, and keeps growing: %s", error)

    def _compact(self) -> None:
        registry = self._registry
        over = registry.evictable()
        rows = registry.rows(over, LookUps(registry, self._record.rows).submission)
        snapshot = registry.without(over).snapshot() if over else registry.snapshot()
        self._record.compact(self.header, snapshot, rows, registry.decided())
        # The snapshot includes the merged progress.
        self._held, self._patient_bytes = {}, 0
        if over:
            # Forget jobs only once the table of ended jobs has them.
            registry.forget(over)
            self._evicted += over

    def pop_evicted(self) -> list[str]:
        """Return the jobs that have left the registry since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def check_room(self) -> None:
        """Raise ResourceError while the record cannot be written, so that no new job is accepted."""
        if self._stuck:
            raise ResourceError(
                f"H-scheduler cannot write its record ({self._stuck}): running jobs continue, and their events wait "
                "(of progress only the latest is kept); retry once the record can be written"
            )

    def end(self) -> None:
        """Stop retrying to write."""
        self._is_to_end = True

    def close(self) -> None:
        """Close the record.  Idempotent."""
        self._record.close()
