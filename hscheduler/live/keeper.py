"""The keeper of a scheduler's journal: takes a new scheduler where the last one was, writes events, and begins the
journal anew when it has grown.

Source: style section 16; EPS is silent about a scheduler that dies.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from eps.errors import ConfigError, ResourceError, StorageError
from hscheduler.core import events as e
from hscheduler.core.decisions import Policy
from hscheduler.core.snapshot import OtherVersionError
from hscheduler.live.clock import beginning_s, boot
from hscheduler.live.journal import Entry, EventJournal, Header
from hscheduler.live.known import Known
from hscheduler.live.past import Past

logger = logging.getLogger(__name__)

#: A journal that cannot be written, as where a disk is full, is tried again so often.
_RETRY_S = 0.5


def told_values(header: Header) -> dict[str, str]:
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


def told_differences(begun: Header, asked: Header) -> str:
    """Return in what a scheduler differs from what its journal was begun with.

    What whoever starts one has no word for, such as the names of its nodes, is told as it is written there.
    """
    was, now = told_values(begun), told_values(asked)
    if was == now:
        was, now = ({name: repr(value) for name, value in vars(header).items()} for header in (begun, asked))
    return ", ".join(f"{name} {was[name]} (not {now[name]})" for name in was if now[name] != was[name])


class Keeper:
    """Keeps the journal of one scheduler; but for :meth:`check_room` and :meth:`end` on the scheduler's thread.

    Parameters
    ----------
    journal : EventJournal
        Is closed with this.
    header : Header
        What the scheduler is; of one that goes on tag and time are the journal's.
    known : callable
        Returns what the scheduler knows now.
    wait : callable
        Waits so many seconds for room, on the scheduler's thread.

    Raises
    ------
    ConfigError
        The journal was begun with other nodes or settings.
    StorageError
        It cannot be written.
    """

    def __init__(
        self, journal: EventJournal, header: Header, known: Callable[[], Known], wait: Callable[[float], None]
    ) -> None:
        self._journal = journal
        self._known, self._wait = known, wait
        #: Why the journal cannot be written just now; empty where it can.
        self._stuck = ""
        self._is_to_end = False
        self._is_of_another_boot = False
        if journal.header is None:
            journal.begin(header)
        self.header = journal.header or header
        asked = dataclasses.replace(header, tag=self.header.tag, boot=self.header.boot, began_s=self.header.began_s)
        if asked != self.header:
            told = told_differences(self.header, asked)
            raise ConfigError(f"{journal.path} was begun with {told}: go on with that, or with another directory")
        #: Of this journal only: one that is begun with another tag has another past.
        self.past = Past(journal.path.with_name(f"past-{self.header.tag}.sqlite"))

    def replay(self, policy: Policy, take_known: Callable[[Known], None], take: Callable[[Entry], None]) -> None:
        """Have a scheduler take what the journal holds: where it was begun anew what was known then, and each event.

        Raises
        ------
        StorageError
            It does not lead to what was ordered when it was written, or cannot be taken.
        """
        path, where = self._journal.path, "what it begins with"
        try:
            if self._journal.snapshot is not None:
                take_known(Known.of_snapshot(self._journal.snapshot, policy))
            for entry in self._journal.entries():
                where = f"{type(entry.event).__name__} at {entry.at_s:.3f} s"
                outstanding = self._known().outstanding
                if (entry.given, entry.checksum) != (outstanding.given, outstanding.checksum):
                    led = f"{outstanding.given}" if outstanding.given != entry.given else "others"
                    told = f"{entry.given} orders had been given before {where}, but what stands there leads to {led}"
                    raise StorageError(f"{path}: {told}")
                take(entry)
        except StorageError:
            raise
        except OtherVersionError as error:
            raise StorageError(f"{path}: what it begins with cannot be taken: {error}") from error
        except Exception as error:
            # Code of another version may fail in any way.
            raise StorageError(f"{path}: {where} cannot be taken: {type(error).__name__}: {error}") from error
        self._is_of_another_boot = self.header.boot != boot()
        began_s = beginning_s(self.header.boot, self.header.began_s, self._known().record.end_s)
        self.header = dataclasses.replace(self.header, boot=boot(), began_s=began_s)

    def append(self, entry: Entry) -> None:
        """Write an event; where that is not possible now, as where the disk is full, wait until it is, or for the end.

        Raises
        ------
        StorageError
            It is told to end, or the event is more than JSON can say.
        """
        while True:
            try:
                self._journal.append(entry)
                break
            except StorageError as error:
                cannot_be_said = isinstance(error.__cause__, TypeError | ValueError)
                if cannot_be_said or self._is_to_end:
                    raise
                if not self._stuck:
                    logger.error("%s: events wait until it can be", error)
                self._stuck = str(getattr(error.__cause__, "strerror", None) or error)
            self._wait(_RETRY_S)
            # Of one that was written in part, or not made durable, nobody knows how it ends.
            with suppress(StorageError):
                self._begin_anew()
        if self._stuck:
            logger.warning("the journal can be written again")
            self._stuck = ""

    def hold(self, at_s: float, news: e.Iterated) -> None:
        """Note news of a job by which nothing is decided."""
        self._journal.hold(at_s, news)

    def begin_anew_if_grown(self) -> list[str]:
        """Begin the journal anew where it has grown, or is of an earlier boot; return the jobs that are forgotten."""
        if self._is_of_another_boot or self._journal.is_grown:
            self._is_of_another_boot = False
            self._journal.be_patient()
            try:
                return self._begin_anew()
            except StorageError as error:
                logger.warning("the journal could not be begun anew, and goes on: %s", error)
        return []

    def _begin_anew(self) -> list[str]:
        known = self._known()
        forgotten = known.forget(self.past)
        self._journal.begin_anew(self.header, known.snapshot())
        return forgotten

    def check_room(self) -> None:
        """Raise ResourceError while the journal cannot be written: nothing new is to be asked for."""
        if self._stuck:
            raise ResourceError(
                f"H-scheduler cannot write its journal ({self._stuck}): jobs go on, and what it was told last waits "
                "until there is room (of how far jobs are only the latest is kept); ask again then"
            )

    def end(self) -> None:
        """Have nobody wait for room any more."""
        self._is_to_end = True

    def close(self) -> None:
        """Close its files; harmless when repeated."""
        self._journal.close()
        self.past.close()
