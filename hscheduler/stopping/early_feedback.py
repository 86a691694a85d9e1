"""Rules that judge a trial by its early feedback.

Source: EPS §6 ("when the number of running jobs is larger than the threshold, the one with the worst early feedback is
killed").  Deviation: jobs are ranked within their sweep; jobs in the training phase are counted, as §1 defines the
threshold.

Of jobs with equal early feedback the one that arrived earlier is better.
"""

from __future__ import annotations

from collections.abc import Iterable

from hscheduler.core.cohort import Cohort
from hscheduler.core.decisions import Decision, Kill
from hscheduler.core.jobs import EARLIER
from hscheduler.core.words import counted


def stop_nothing(cohort: Cohort) -> Decision:
    """Return no decision."""
    return Decision()


def stop_the_worst(cohort: Cohort) -> Decision:
    """Kill the worst trial while more are in the training phase than the threshold."""
    if not cohort.is_crowded:
        return Decision()
    job = cohort.worst_in_training()
    tie = _tie(job.feedback, (other.feedback for other in cohort.in_training() if other is not job))
    sentence = (
        f"{job.job_id} is killed: its early feedback {job.feedback:g} is the worst of "
        f"{counted(len(cohort.in_training()), 'trial')} in training{tie}, and the threshold is {cohort.threshold}"
    )
    return Decision((Kill(job.job_id),), sentence)


def _tie(value: float | None, others: Iterable[float | None]) -> str:
    """Return how a tie was broken, as the end of a sentence; empty if no other has the value."""
    return EARLIER if value in others else ""
