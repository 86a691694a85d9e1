"""How long a job stands still because it is started again: from the order until its next iteration.

A job may be told to start again before it has iterated: then it stands still since the first order.  Its parts are
watched one after the other; an order comes from another thread.

Source: EPS §7.4 (Table 2 counts what restarts cost).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """What was known when a part of a job began."""

    since_s: float | None
    told_s: float | None


class Standstill:
    """The standstills of one job.

    Parameters
    ----------
    clock : callable
        Returns the time, in seconds; it is never set.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Seconds of those that are over.
        self.total_s = 0.0
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._told_s: float | None = None

    def told(self, restarts: bool) -> None:
        """Note an order to end, for a restart or for good."""
        with self._lock:
            self._told_s = self._clock() if restarts else None
            if self._since_s is None:
                self._since_s = self._told_s

    def begun(self) -> Part:
        """Return what :meth:`iterated` needs: news of a part that was told to end do not end the standstill."""
        with self._lock:
            return Part(self._since_s, self._told_s)

    def iterated(self, part: Part) -> None:
        """Note the first iteration of a part."""
        if part.since_s is None:
            return
        with self._lock:
            now_s = self._clock()
            self.total_s += now_s - part.since_s
            if self._told_s == part.told_s:
                self._since_s = self._told_s = None
            else:
                # It was told to start again meanwhile, or to end.
                self._since_s = None if self._told_s is None else now_s

    def told_before_s(self) -> float | None:
        """Return how long ago the job was told to start again, which it has not; None if it was not."""
        with self._lock:
            return None if self._told_s is None else self._clock() - self._told_s

    def over(self) -> None:
        """Note that the job has ended and is not started again."""
        with self._lock:
            if self._since_s is not None:
                self.total_s += self._clock() - self._since_s
            self._since_s = self._told_s = None
