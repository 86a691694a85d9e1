"""How many jobs are ended: some at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)

#: Jobs that are ended at the same time; with more of them a host would not be ready sooner.
MOST_ENDED_AT_ONCE = 16


def end_all(ends: Sequence[Callable[[], None]]) -> None:
    """End jobs, many at the same time: each takes some tenths of a second."""
    with ThreadPoolExecutor(MOST_ENDED_AT_ONCE, "end") as pool:
        for ended in [pool.submit(end) for end in ends]:
            if (error := ended.exception()) is not None:
                logger.error("a job could not be ended", exc_info=error)
