"""Where a job's latest master says that it listens, in a store that processes of several hosts share.  L2.

When a master is lost, every worker and server of the job looks for the next one, just when that one opens its log in
the same store.  So each looks seldom, at moments of its own, asks for one thing, and does not wait long for it.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from eps.storage.api import Storage

T = TypeVar("T")

#: Between two looks: at first, and at most; each pause is this many times the one before.
FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 0.5, 2.0, 1.3
#: Each pause is so much of itself, by chance: processes that lost the same master do not look at the same moment.
LEAST_PART, GREATEST_PART = 0.5, 1.5
#: Whoever has not looked for this long begins with short pauses again.
FORGET_S = 10.0
#: How long a look waits for a store that does not answer; the next look comes soon enough.
PATIENCE_S = 2.0


class Seldom(Generic[T]):
    """A function that is called often and looks seldom: in between it returns what it saw last.  Thread-safe.

    The first call after a while does not look either: it decides when the look will be, within the first pause.

    Parameters
    ----------
    look : callable
        Called by one thread at a time; the others are told what was seen before.
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


class WithStatus(Storage, Protocol):
    """A store that says what a file is without reading it, as HDFS does."""

    def status(self, path: str) -> Any:
        """Return what tells a file from the one that was there before."""


class SharedFile:
    """A small file of JSON that is replaced now and then, in a store where each request counts.

    Parameters
    ----------
    storage : WithStatus
    name : str
    """

    def __init__(self, storage: WithStatus, name: str) -> None:
        self._storage = storage
        self._name = name
        self._status: Any = None
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
