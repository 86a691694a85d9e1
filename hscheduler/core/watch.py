"""How fast a job is, before and after it grows: an addition that makes it slower is taken back.

Source: EPS §4.2; the rule is ours: the medians of ten iterations on either side, 5 % longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hscheduler.core.jobs import SLOWER, WATCHED_ITERATIONS, Job, Phase, Size


def baseline(job: Job) -> tuple[Size, float] | None:
    """Return a job's size and the median of its latest iterations in seconds; None where too few of them are known."""
    return (job.size, median(job.recent_s)) if len(job.recent_s) == WATCHED_ITERATIONS else None


def take(job: Job, durations_s: Sequence[float]) -> bool:
    """Take what the latest iterations of a job took that has its size and is not about to change it.

    Returns
    -------
    bool
        Whether anything may be decided by it: the growth that was watched is judged, or the next one can be.
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
        # Of iterations that took no time it cannot be told how much longer they are.
        factor = median(job.recent_s) / before_s if before_s else 1.0
        job.watched = None
        if factor > 1 + SLOWER and job.phase is Phase.TRAINING:
            job.slowed = before, factor
    return known < WATCHED_ITERATIONS == len(job.recent_s)


def is_telling(job: Job, iteration: int) -> bool:
    """Return whether news of a job that has completed so many iterations may lead to a decision.

    They tell how it has grown, or that it may, or that it may be asked once more to shrink or to have back what it had.
    """
    awaited = job.watched is not None or (job.phase is Phase.TRAINING and len(job.recent_s) < WATCHED_ITERATIONS)
    return awaited or waited_for(job, iteration)


def waited_for(job: Job, iteration: int) -> bool:
    """Return whether a job was to have completed so many iterations before it is asked for something once more."""
    return any(job.iteration < least <= iteration for least in (job.no_shrink_before, job.no_return_before))
