"""Measure the speed of a job before and after it grows; a growth that makes it slower is undone.

Source: EPS §4.2.  Our rule: slower means that the median of ten iterations is more than 5 % longer than before.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hscheduler.core.jobs import SLOWER, WATCHED_ITERATIONS, Job, Phase, Size


def baseline(job: Job) -> tuple[Size, float] | None:
    """Return a job's size and the median of its latest iterations in seconds; None if too few were measured."""
    return (job.size, median(job.recent_s)) if len(job.recent_s) == WATCHED_ITERATIONS else None


def take(job: Job, durations_s: Sequence[float]) -> bool:
    """Add the durations of a job's latest iterations; its size must not be changing.

    Returns
    -------
    bool
        Whether a decision may follow: the latest growth was judged, or the speed became known.
    """
    known = len(job.recent_s)
    for duration_s in durations_s:
        if job.watched is not None and len(job.recent_s) == WATCHED_ITERATIONS:
            break
        job.recent_s.append(duration_s)
    if job.watched is None:
        del job.recent_s[:-WATCHED_ITERATIONS]
    elif len(job.recent_s) == WATCHED_ITERATIONS:
        before, before_s = job.watched
        # With a median of zero seconds before, the factor is undefined.
        factor = median(job.recent_s) / before_s if before_s else 1.0
        job.watched = None
        if factor > 1 + SLOWER and job.phase is Phase.TRAINING:
            job.slowed = before, factor
    return known < WATCHED_ITERATIONS == len(job.recent_s)


def may_decide(job: Job, iteration: int) -> bool:
    """Return whether a report that this many iterations are complete may lead to a decision.

    It may judge the latest growth, allow the next one, or end the wait after a failed change or replacement.
    """
    awaited = job.watched is not None or (job.phase.runs and len(job.recent_s) < WATCHED_ITERATIONS)
    return awaited or ends_wait(job, iteration)


def ends_wait(job: Job, iteration: int) -> bool:
    """Return whether this many iterations end a job's wait after a failed change of size or replacement."""
    return any(job.iteration < least <= iteration for least in (job.no_shrink_before, job.no_return_before))
