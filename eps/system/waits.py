"""Polling waits, for conditions without a notification."""

from __future__ import annotations

import time
from collections.abc import Callable

from eps.errors import DeadlineError


def wait_for(condition: Callable[[], bool], timeout_s: float | None, what: str, poll_s: float = 0.02) -> None:
    """Wait until ``condition`` holds.

    Raises
    ------
    DeadlineError
        The condition did not hold within ``timeout_s`` seconds; None waits for ever.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not condition():
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise DeadlineError(f"{what}: not within {timeout_s:g} s")
        time.sleep(poll_s)
