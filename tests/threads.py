"""Several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

#: What a test lets threads do takes milliseconds; a busy machine may take long.
TIMEOUT_S = 30.0


class SeenLock:
    """A lock that shows that a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waited = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As a lock does."""
        if self._lock.acquire(False):
            return True
        if not blocking:
            return False
        self.waited.set()
        return self._lock.acquire(True, timeout)

    def release(self) -> None:
        """As a lock does."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call ``work`` with 0, 1, 2, ... on a thread each; return what each call returned, or the error that it raised."""
    outcomes: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            outcomes[number] = work(number)
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), f"not within {TIMEOUT_S:g} s"
    return outcomes
