"""Beats for the job master's owner thread while that thread works or waits for the disk.  L2.

The owner thread counts what it has done and says when it waits; another thread beats for it.  So a beat does not wait
behind the orders of a large job, and a disk that stalls costs time but not the master.  A process that is stopped, or
whose owner thread hangs, does not beat: the supervisor starts the next master.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Pulse:
    """Beats as long as the owner thread gets on.

    Parameters
    ----------
    beat : callable
        Tells the supervisor; called on a thread of its own.
    beat_s : float, seconds
        Between two looks at the owner thread.
    """

    def __init__(self, beat: Callable[[], None], beat_s: float) -> None:
        self._beat, self._beat_s = beat, beat_s
        self._acts, self._seen = 0, -1
        #: Until when the owner thread may do nothing; it waits for the disk meanwhile.
        self._patient_until_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Beat at once and from now on, until :meth:`stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; harmless before :meth:`start`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self) -> None:
        """Count one thing that the owner thread has done: an event, a command."""
        self._acts += 1

    @contextmanager
    def patience(self, most_s: float) -> Iterator[None]:
        """Beat while the owner thread waits, but for no longer than ``most_s``: what takes no end then is a hang."""
        self._patient_until_s = time.monotonic() + most_s
        try:
            yield
        finally:
            self._patient_until_s = 0.0
            self._acts += 1

    def look(self) -> None:
        """Beat where the owner thread has done something since the last look, or waits for the disk."""
        if self._acts != self._seen or time.monotonic() < self._patient_until_s:
            self._seen = self._acts
            self._beat()

    def _run(self) -> None:
        # At once: a master that is killed soon has told how far the job is, and does not count as one without progress.
        self.look()
        while not self._stop.wait(self._beat_s):
            self.look()
