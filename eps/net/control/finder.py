"""The address of a job's latest master, and the search for the next one.

A master writes its address to the job's directory, or to a store that the job's hosts share.  Requests to that store
are expensive.  After the loss of a master, every worker and server searches for the next one, just when that one opens
its log in the same store.  So each member sends one request at a time, rarely, at random moments, with a short timeout.
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

#: First and longest pause between two reads of a shared store, and the growth of the pause.
FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 0.5, 2.0, 1.3
#: Random factor of each pause: processes that lost the same master must not read at the same moment.
LEAST_PART, GREATEST_PART = 0.5, 1.5
#: After this time without a call the pause is short again.
FORGET_S = 10.0
#: Retry deadline of a read; the next one follows soon enough.
PATIENCE_S = 2.0
#: How often a member looks for the next master: at first, and after :data:`POLL_SLOWER_AFTER_S`.
POLL_S, SLOW_POLL_S = 0.02, 0.1
POLL_SLOWER_AFTER_S = 2.0
#: Delay before the previous master is tried again; it doubles with each attempt up to the second value.
RETRY_S, LONGEST_RETRY_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class MasterPlace:
    """The address of a job master."""

    #: ``host:port``, or ``unix:NAME``.
    address: str
    #: 0 if unknown.
    generation: int = 0


class Seldom(Generic[T]):
    """A rate-limited function: between calls of ``look`` it returns the last result.  Thread-safe.

    The first call after a while does not look at once: it schedules the look at random within the first pause.

    Parameters
    ----------
    look : callable
        Called by one thread at a time; other threads get the last result.
    now_s : callable
        A monotonic clock, in seconds.
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
        """Return the last result of ``look``; None before the first one."""
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
                # The look itself may have taken long.
                self._called_s = self._now_s()
                self._due_s = self._called_s + part * self._pause_s
                self._pause_s = min(LONGEST_PAUSE_S, GROWTH * self._pause_s)
            return self._seen
        finally:
            self._looking.release()


class SharedFile:
    """A small JSON file in a remote store, cached by its status.

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
        """Return the content; takes one request if the file is unchanged.

        Raises
        ------
        StorageError
            The file is missing or cannot be read.
        ValueError
            The file is not JSON.
        """
        status = self._storage.status(self._name)
        if status != self._status:
            with self._storage.read(self._name) as file:
                self._content = dict(json.loads(file.read()))
            # The content may be newer than this status; then the next call reads it again.
            self._status = status
        return self._content


def master_finder(job_dir: Path) -> Callable[[], MasterPlace | None]:
    """Return a function that returns the address of the job's latest master; None before the first one, or if unknown.

    It reads the job's directory or, if the processes are on several hosts, the store that they share.
    """
    shared = JobDir(job_dir).record().yarn.shared
    if not shared:
        return lambda: _place(lambda: read_json(JobDir(job_dir).master_json))
    # Only jobs with such a store need this import.
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
    """Search for a job's next master.

    Parameters
    ----------
    find : callable
        Returns the address of the latest master, or None.
    """

    def __init__(self, find: Callable[[], MasterPlace | None]) -> None:
        self.find = find
        #: Number of consecutive short-lived streams.
        self._attempts = 0

    def on_lasted(self) -> None:
        """Reset the back-off after a stream that worked."""
        self._attempts = 0

    def next(self, last: MasterPlace, generation: int, deadline_s: float, over: threading.Event) -> MasterPlace | None:
        """Wait for a master to attach to, which may be the last one.

        Parameters
        ----------
        last : MasterPlace
            The previous master, which is tried again after a pause.
        generation : int
            The highest known generation.
        deadline_s : float, seconds
            On the monotonic clock.
        over : threading.Event
            Ends the search.

        Returns
        -------
        MasterPlace or None
            None if the deadline or the end came first.
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
