"""The growth of a job that is on its way, which a shrink behind it has aborted.

Source: EPS §4 has no word of the two meeting; the job master, too, aborts an addition that a removal waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any


class Growth:
    """Whether a job grows, by which plan, and whether that is still wanted.  For any thread.

    Parameters
    ----------
    abort : callable
        Takes the plan to abort.  It may block: it is called on the thread that has news of the plan, or on a new one.
    """

    def __init__(self, abort: Callable[[int], None]) -> None:
        self._abort = abort
        self._lock = threading.Lock()
        self._is_on = self._is_unwanted = False
        self._plan_id: int | None = None

    def ordered(self) -> None:
        """Note that the job is to grow."""
        with self._lock:
            self._is_on, self._is_unwanted, self._plan_id = True, False, None

    def note(self, change: Mapping[str, Any]) -> None:
        """Take news of a plan of it: of each role one after the other."""
        plan_id = int(change["plan_id"])
        with self._lock:
            is_new, self._plan_id = plan_id != self._plan_id, plan_id
            is_unwanted = self._is_unwanted
        if is_new and is_unwanted:
            self._abort(plan_id)

    def over(self) -> None:
        """Note that it is done, or has failed."""
        with self._lock:
            self._is_on = False

    def give_up(self) -> None:
        """Have it aborted, where it is on and can be; returns at once."""
        with self._lock:
            if not self._is_on or self._is_unwanted:
                return
            self._is_unwanted, plan_id = True, self._plan_id
        if plan_id is not None:
            threading.Thread(target=self._abort, args=(plan_id,), name=f"abort plan {plan_id}", daemon=True).start()
