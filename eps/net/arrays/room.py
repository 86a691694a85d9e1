"""Waiting for room in a queue of bytes that go to one peer.  L2."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from eps.errors import DeadlineError


def await_room(
    changed: threading.Condition,
    waiting_bytes: Callable[[], int],
    size_bytes: int,
    max_bytes: int,
    patience_s: float,
) -> None:
    """Wait until ``size_bytes`` more may wait to be sent; one message always may, however long it is.

    Parameters
    ----------
    changed : Condition
        Held by the caller, and notified when something has left or the queue was closed.
    waiting_bytes : callable
        Returns how many bytes wait; 0 of a queue that was closed.

    Raises
    ------
    DeadlineError
        There was no room in time.
    """
    deadline_s = time.monotonic() + patience_s
    while (waiting := waiting_bytes()) and waiting + size_bytes > max_bytes:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineError(
                f"waited {patience_s:g} s for room for {size_bytes} bytes: {waiting} bytes wait to be sent to this "
                f"peer, and {max_bytes} is the limit"
            )
        changed.wait(left_s)
