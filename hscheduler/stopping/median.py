"""The median stopping rule: a trial is killed at a rung if its best value is worse than the median of the others.

The median is that of the running averages of the other trials up to the rung.

Source: Golovin et al., "Google Vizier" (KDD 2017), section 3.2.2 (a trial is stopped "at step s if the trial's best
objective value by step s is strictly worse than the median value of the running averages of all completed trials'
objectives reported up to step s").  Deviations: all trials that have reached the rung count, as in Ray Tune, since of
trials that arrive together none would be completed in time; at least :data:`LEAST` must have.
"""

from __future__ import annotations

from statistics import median

from hscheduler.core.cohort import Cohort
from hscheduler.core.decisions import Decision, Kill
from hscheduler.core.jobs import badness
from hscheduler.core.rungs import Rungs, Stopping
from hscheduler.core.words import counted

#: Fewest other trials to compare with; the default of Ray Tune's rule.
LEAST = 3


def evenly(stopping: Stopping) -> Rungs:
    """Return the rungs: all multiples of the first."""
    return Rungs(stopping.grace_iterations, 0, stopping.max_iterations)


def median_rule(cohort: Cohort) -> Decision:
    """Kill a trial at a rung whose best value so far is worse than the median of the others."""
    direction = cohort.direction
    for job in cohort.fresh():
        rung = len(job.rungs) - 1
        averages = [value for number, value in cohort.averages(rung).items() if number != job.number]
        if len(averages) < LEAST:
            continue
        # NaN is the worst value and not part of an order.
        middle = median(value for value in averages if value == value) if any(v == v for v in averages) else None
        best = min(job.rungs, key=lambda value: badness(value, direction))
        if middle is not None and badness(best, direction) > badness(middle, direction):
            sentence = (
                f"{job.job_id} is killed: its best value by iteration {cohort.rungs.at(rung)}, {best:g}, is worse than "
                f"{middle:g}, the median of the averages of {counted(len(averages), 'other trial')}"
            )
            return Decision((Kill(job.job_id),), sentence)
    return Decision()
