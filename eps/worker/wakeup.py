"""The clock and the lock of a worker, and what wakes its loop.

Everything in :mod:`eps.worker` that waits or reads the time does it here, or in a wire: a simulation gives others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Wakeup:
    """What the session's thread and the loop's thread of a worker share, beside its state.

    Parameters
    ----------
    now_s : callable
        The clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        #: Held while the state is used.
        self.lock = threading.Condition()
        #: Counts what the session's thread says; -1 once it says that the worker is to stop.
        self._news = 0
        #: Of that, how much the loop has seen.
        self._seen = 0

    def tell(self) -> None:
        """Wake the loop: the state has changed."""
        with self.lock:
            if self._news >= 0:
                self._news += 1
                self.lock.notify_all()

    def stop(self) -> None:
        """Make the loop end soon."""
        with self.lock:
            self._news = -1
            self.lock.notify_all()

    def look(self) -> bool:
        """Return whether the loop is to go on; what was told before wakes it no more."""
        with self.lock:
            self._seen = self._news
            return self._seen >= 0

    def wait(self, until_s: float) -> None:
        """Wait for news, at most until a time of the clock."""
        with self.lock:
            self.lock.wait_for(lambda: self._news != self._seen, max(0.0, until_s - self.now_s()))
