"""Where a job's latest master listens, and the search for the next one.

A master writes where it listens into the job's directory, or into a store that the job's hosts share.  There each
request counts: when a master is lost, every worker and server of the job looks for the next one, just when that one
opens its log in the same store.  So each looks seldom, at random moments, with one request, and times out soon.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eps.core.types import Address
from eps.errors import StorageError
from eps.storage.atomic import read_json
from eps.storage.jobdir import MASTER_FILE, JobDir

if TYPE_CHECKING:
    from eps.storage.hdfs import FileStatus, HdfsStorage

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Between two looks: at first, and at most; each pause is this many times the one before.
FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 0.5, 2.0, 1.3
#: Each pause is so much of itself, by chance: processes that lost the same master do not look at the same moment.
LEAST_PART, GREATEST_PART = 0.5, 1.5
#: After this long without a call the pauses are short again.
FORGET_S = 10.0
#: How long a look waits for a store that does not answer; the next look comes soon enough.
PATIENCE_S = 2.0
#: How often a member looks for the next master: at first, and once it has looked for :data:`POLL_SLOWER_AFTER_S`.
POLL_S, SLOW_POLL_S = 0.02, 0.1
POLL_SLOWER_AFTER_S = 2.0
#: The master that was there is tried again as well: after this long, doubled with each attempt.
RETRY_S, LONGEST_RETRY_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class MasterPlace:
    """Where a job master listens."""

    #: ``host:port``, or ``unix:NAME``.
    address: str
    #: 0 where it is not known.
    generation: int = 0


class Seldom(Generic[T]):
    """A function that is called often and looks seldom: in between it returns what it saw last.  Thread-safe.

    The first call after a while does not look either: it decides when the look will be, within the first pause.

    Parameters
    ----------
    look : callable
        Called by one thread at a time; the others get what was seen before.
    now_s : callable
        A clock that never goes back, in seconds.
    chance : random.Random
    """

    def __init__(
        self,
        look: Callable[[], T | None],
        now_s: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._look = look
        self._now_s = now_s
        self._chance = chance or random.Random()
        self._looking = threading.Lock()
        self._seen: T | None = None
        self._pause_s = FIRST_PAUSE_S
        self._due_s = self._called_s = float("-inf")

    def __call__(self) -> T | None:
        """Return what was seen last; None before anything was."""
        if not self._looking.acquire(blocking=False):
            return self._seen
        try:
            now_s = self._now_s()
            if now_s - self._called_s >= FORGET_S:
                self._pause_s = FIRST_PAUSE_S
                self._due_s = now_s + self._chance.random() * FIRST_PAUSE_S
            self._called_s = now_s
            if now_s >= self._due_s:
                self._seen = self._look()
                part = self._chance.uniform(LEAST_PART, GREATEST_PART)
                # The look may have taken long itself.
                self._called_s = self._now_s()
                self._due_s = self._called_s + part * self._pause_s
                self._pause_s = min(LONGEST_PAUSE_S, GROWTH * self._pause_s)
            return self._seen
        finally:
            self._looking.release()


class SharedFile:
    """A small file of JSON that is replaced now and then, in a store where each request counts.

    Parameters
    ----------
    storage : HdfsStorage
    name : str
    """

    def __init__(self, storage: HdfsStorage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._status: FileStatus | None = None
        self._content: Mapping[str, Any] = {}

    def read(self) -> Mapping[str, Any]:
        """Return what is in it: one request where it is the same as before.

        Raises
        ------
        StorageError
            It is not there, or cannot be read.
        ValueError
            It is no JSON.
        """
        status = self._storage.status(self._name)
        if status != self._status:
            with self._storage.read(self._name) as file:
                self._content = dict(json.loads(file.read()))
            # What was read may be newer than the status: then the next look reads it again.
            self._status = status
        return self._content


def master_finder(job_dir: Path) -> Callable[[], MasterPlace | None]:
    """Return a function that says where the job's latest master listens; None before the first, or while unknown.

    It looks into the job's directory, or, where the processes are on several hosts, into the store that they share.
    """
    shared = JobDir(job_dir).record().yarn.shared
    if not shared:
        return lambda: _place(lambda: read_json(JobDir(job_dir).master_json))
    # Only a job with such a store needs the import.
    from eps.storage.locations import RemotePath, location

    where = location(shared)
    if not isinstance(where, RemotePath):
        return lambda: _place(lambda: read_json(where / MASTER_FILE))
    file = SharedFile(where.storage(patience_s=PATIENCE_S), MASTER_FILE)
    return Seldom(lambda: _place(file.read))


def _place(written: Callable[[], Mapping[str, Any] | None]) -> MasterPlace | None:
    try:
        record = written()
        if record is None:
            return None
        return MasterPlace(str(Address(str(record["host"]), int(record["port"]))), int(record["generation"]))
    except (StorageError, KeyError, ValueError) as error:
        logger.warning("the job master cannot be found: %s", error)
        return None


class MasterSearch:
    """Looks for a job's next master.

    Parameters
    ----------
    find : callable
        Returns where the latest master listens, or None.
    """

    def __init__(self, find: Callable[[], MasterPlace | None]) -> None:
        self.find = find
        #: Streams in a row that did not last.
        self._attempts = 0

    def on_lasted(self) -> None:
        """Note that a stream worked: the next retry is soon again."""
        self._attempts = 0

    def next(self, last: MasterPlace, generation: int, deadline_s: float, over: threading.Event) -> MasterPlace | None:
        """Wait for a master to attach to, the last one included.

        Parameters
        ----------
        last : MasterPlace
            Of the master that was there, which is tried again after a while.
        generation : int
            The highest that was heard of.
        deadline_s : float, seconds
            On the monotonic clock.
        over : threading.Event
            Ends the search.

        Returns
        -------
        MasterPlace or None
            None where the deadline, or the end, came before.
        """
        began_s = time.monotonic()
        retry_s = began_s + min(LONGEST_RETRY_S, RETRY_S * 2.0 ** min(self._attempts, 10))
        self._attempts += 1
        while True:
            found = self.find()
            if found is not None and found.generation > generation:
                self._attempts = 0
                return found
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return None
            if now_s >= retry_s:
                return found if found is not None and found.generation == generation else last
            poll_s = POLL_S if now_s - began_s < POLL_SLOWER_AFTER_S else SLOW_POLL_S
            if over.wait(min(poll_s, max(0.0, min(retry_s, deadline_s) - now_s))):
                return None
