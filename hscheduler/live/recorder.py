"""Keeps the record of a scheduler: takes a new scheduler where the last one was, writes events, and compacts it.

The state is what its events make of it, so a scheduler that is started again takes the events of its record and is
where it was; what it ordered and what was not answered it orders again, under the same number.

A running job says several times a second how far it is.  Of such news only the latest matter while nothing is decided
by them, so they are written late and as one, before the next event that is written.

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
from hscheduler.core.decisions import Policy
from hscheduler.live.inbox import HeldNews
from hscheduler.live.registry import LookUps, Registry
from hscheduler.record.api import Entry, Header, SchedulerRecord

logger = logging.getLogger(__name__)

#: A record that cannot be written, as where a disk is full, is tried again so often.
_RETRY_S = 0.5
#: It is compacted when its entries have grown by so much, and to so many times what its snapshot takes.
GROWN_BYTES = 2 << 20
GROWN_TIMES = 4
#: What a user was told must not be lost with the machine's power; news of jobs may be, as the jobs are.
DURABLE = e.JobSubmitted | e.SweepOpened | e.SweepClosed | e.CancelAsked
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return which start of the machine this is; empty where that cannot be known."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def start_time_s(of_boot: str, began_s: float, last_s: float) -> float:
    """Return when a scheduler began, on this machine's monotonic clock, which nobody sets.

    Between two starts of one machine that clock goes on, whichever process looks at it, so the time during which no
    scheduler was there is counted: jobs went on meanwhile.  Where the machine was started again since, or that cannot
    be known, time goes on where it was when the record was written last.  The wall clock is never asked: setting it
    ends no trial.

    Parameters
    ----------
    of_boot : str
        The start of the machine that ``began_s`` is of.
    began_s : float, seconds
        When it began, on the monotonic clock of that.
    last_s : float, seconds
        The latest time after its beginning that is known: it never goes back behind that.
    """
    latest_s = time.monotonic() - last_s
    return min(began_s, latest_s) if of_boot and of_boot == boot_id() else latest_s


def check_writable(beside: Mapping[str, Any], what: str) -> None:
    """Refuse what could not be written beside an event, before anything is done about it.

    Raises
    ------
    ConfigError
        It is more than JSON can say.
    """
    try:
        json.dumps(beside, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} must be JSON: {error}") from None


def option_values(header: Header) -> dict[str, str]:
    """Return what a scheduler is, as whoever starts one says it."""
    found = {name: repr(value) for name, value in vars(header).items() if name not in ("nodes", "job_settings")}
    sizes = Counter(f"of {vcores} vcores and {memory_mb}MiB" for vcores, memory_mb in header.nodes.values())
    found["nodes"] = ", ".join(f"{number} {size}" for size, number in sizes.items())
    settings = header.job_settings
    found["--on"] = settings.get("on", "local")
    # Of a place without containers there are none.
    found["--container-memory"] = f"{settings['memory_mb']}MiB" if "memory_mb" in settings else "unset"
    found["--container-vcores"] = settings.get("vcores", "unset")
    return found


def describe_differences(begun: Header, asked: Header) -> str:
    """Return in what a scheduler differs from what its record was begun with.

    What whoever starts one has no word for, such as the names of its nodes, is told as it is written there.
    """
    was, now = option_values(begun), option_values(asked)
    if was == now:
        was, now = ({name: repr(value) for name, value in vars(header).items()} for header in (begun, asked))
    return ", ".join(f"{name} {was[name]} (not {now[name]})" for name in was if now[name] != was[name])


class Recorder:
    """Keeps the record of one scheduler; but for :meth:`check_room` and :meth:`end` on the scheduler's thread.

    Parameters
    ----------
    record : SchedulerRecord
        Is closed with this.
    header : Header
        What the scheduler is; of one that goes on tag and time are the record's.
    wait : callable
        Waits so many seconds for room, on the scheduler's thread.

    Raises
    ------
    ConfigError
        The record was begun with other nodes or settings.
    StorageError
        It cannot be written.
    """

    def __init__(self, record: SchedulerRecord, header: Header, wait: Callable[[float], None]) -> None:
        self._record, self._wait = record, wait
        #: Job -> its news that are not written yet.
        self._held: dict[str, HeldNews] = {}
        #: Why the record cannot be written just now; empty where it can.
        self._stuck = ""
        self._is_to_end = False
        self._is_of_another_boot = False
        #: So large its entries are to be at least before it is compacted: it may not have been possible before.
        self._patient_bytes = 0
        #: Jobs that left the registry, which nobody has asked for yet.
        self._left: list[str] = []
        if record.header is None:
            record.begin(header)
        self.header = record.header or header
        asked = dataclasses.replace(header, tag=self.header.tag, boot=self.header.boot, began_s=self.header.began_s)
        if asked != self.header:
            record.close()
            told = describe_differences(self.header, asked)
            raise ConfigError(f"{record.where} was begun with {told}: go on with that, or with another directory")

    def recover(
        self,
        registry: Registry,
        policy: Policy,
        look_back: Callable[[Registry], None],
        take: Callable[[Registry, Entry, list[e.Command]], None],
    ) -> Registry:
        """Return where the record leads to.

        Parameters
        ----------
        registry : Registry
            Of a scheduler that has only begun.
        policy : Policy
        look_back : callable
            Called with what was known before the first entry.
        take : callable
            Called with what is known after each entry, the entry, and what it brought about.

        Raises
        ------
        StorageError
            It does not lead to what was ordered when it was written, or cannot be taken.
        """
        where = "what it begins with"
        try:
            if (snapshot := self._record.snapshot()) is not None:
                registry = Registry.of_snapshot(snapshot, policy)
            self._registry = registry
            look_back(registry)
            for entry in self._record.entries():
                where = f"{type(entry.event).__name__} at {entry.at_s:.3f} s"
                outstanding = registry.outstanding
                if (entry.given, entry.checksum) != (outstanding.given, outstanding.checksum):
                    led = f"{outstanding.given}" if outstanding.given != entry.given else "others"
                    told = f"{entry.given} orders had been given before {where}, but what stands there leads to {led}"
                    raise StorageError(f"{self._record.where}: {told}")
                take(registry, entry, registry.take(entry)[0])
        except StorageError:
            raise
        except Exception as error:
            # Code of another version may fail in any way.
            told = f"{where} cannot be taken: {type(error).__name__}: {error}"
            raise StorageError(f"{self._record.where}: {told}") from error
        self._is_of_another_boot = self.header.boot != boot_id()
        began_s = start_time_s(self.header.boot, self.header.began_s, registry.timeline.end_s)
        self.header = dataclasses.replace(self.header, boot=boot_id(), began_s=began_s)
        return registry

    def append(self, entry: Entry) -> None:
        """Write an event; retry until it succeeds, or the scheduler closes.

        Raises
        ------
        StorageError
            The scheduler closes, or may not write.
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
                # What is denied, as where a token has expired, stays so.
                if self._is_to_end or isinstance(error, StorageDeniedError):
                    raise
                if not self._stuck:
                    logger.error("%s: events wait until it can be", error)
                self._stuck = str(error.__cause__ or error)
            self._wait(_RETRY_S)
            # Of what was written in part, or not made durable, nobody knows how it ends.
            with suppress(StorageError):
                self._compact()
        self._held = {}
        if self._stuck:
            logger.warning("the record can be written again")
            self._stuck = ""

    def hold(self, at_s: float, news: e.Iterated) -> None:
        """Note news of a job by which nothing is decided; they are written before the next event that is."""
        self._held.setdefault(news.job_id, HeldNews(news.job_id)).add(at_s, news)

    def compact_if_grown(self) -> None:
        """Compact the record where it has grown, or is of an earlier boot."""
        enough = max(self._patient_bytes, GROWN_BYTES, GROWN_TIMES * self._record.snapshot_bytes)
        if not self._is_of_another_boot and self._record.entries_bytes <= enough:
            return
        self._is_of_another_boot = False
        self._patient_bytes = self._record.entries_bytes + GROWN_BYTES
        try:
            self._compact()
        except StorageError as error:
            logger.warning("the record could not be compacted, and goes on: %s", error)

    def _compact(self) -> None:
        registry = self._registry
        over = registry.over()
        rows = registry.rows(over, LookUps(registry, self._record.rows).submission)
        snapshot = registry.without(over).snapshot() if over else registry.snapshot()
        self._record.compact(self.header, snapshot, rows, registry.decided())
        # It is in the snapshot.
        self._held, self._patient_bytes = {}, 0
        if over:
            # Not before they are in the rows.
            registry.forget(over)
            self._left += over

    def left(self) -> list[str]:
        """Return the jobs that have left the registry since this was asked last."""
        left, self._left = self._left, []
        return left

    def check_room(self) -> None:
        """Raise ResourceError while the record cannot be written: nothing new is to be asked for."""
        if self._stuck:
            raise ResourceError(
                f"H-scheduler cannot write its record ({self._stuck}): jobs go on, and what it was told last waits "
                "until there is room (of how far jobs are only the latest is kept); ask again then"
            )

    def end(self) -> None:
        """Have nobody wait for room any more."""
        self._is_to_end = True

    def close(self) -> None:
        """Close the record; harmless when repeated."""
        self._record.close()
