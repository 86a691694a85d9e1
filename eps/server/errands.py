"""What is to be done under a lock by whoever has it: nobody who brings an errand waits.

A server's lock is held for as long as a partition takes to add and to step, and is not fair: a thread that waits for it
beside training may wait for many such turns.  What a follower has acknowledged would wait with it, and the next
partition behind that.

Source: D. Hendler, I. Incze, N. Shavit, M. Tzafrir, "Flat combining and the synchronization-parallelism tradeoff", SPAA
2010.  Deviation: where nobody passes by, a thread of its own waits for the lock.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)

Errand = Callable[[], None]


class Errands:
    """Errands under one lock, done in the order in which they were brought.

    Parameters
    ----------
    lock : RLock
    after : callable
        Called without the lock when some were done.
    """

    def __init__(self, lock: threading.RLock, after: Callable[[], None]) -> None:
        self._lock = lock
        self._after = after
        self._waiting: deque[Errand] = deque()
        self._last_resort = ThreadPoolExecutor(1, thread_name_prefix="errands")

    def bring(self, errand: Errand) -> None:
        """Have an errand done with the lock held, at once or by another thread; call without the lock.

        What it raises is logged: it is nobody's business who happens to do it.
        """
        self._waiting.append(errand)
        if not self.run():
            try:
                self._last_resort.submit(self._wait_and_run)
            except RuntimeError:
                # Closed: nobody needs it any more.
                logger.debug("an errand is not done: the server ends")

    def run(self) -> bool:
        """Do what waits, if the lock is free; return False where it is not.  Whoever lets go of the lock calls it."""
        while self._waiting:
            if not self._lock.acquire(blocking=False):
                return False
            try:
                self._do_all()
            finally:
                self._lock.release()
            self._after()
        return True

    def _wait_and_run(self) -> None:
        with self._lock:
            self._do_all()
        self._after()

    def _do_all(self) -> None:
        while self._waiting:
            errand = self._waiting.popleft()
            try:
                errand()
            except Exception:
                logger.exception("an errand failed")

    def close(self) -> None:
        """Drop what waits."""
        self._last_resort.shutdown(wait=False, cancel_futures=True)
