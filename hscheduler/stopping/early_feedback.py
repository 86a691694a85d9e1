"""Rules that judge a trial by its early feedback.

Source: EPS §6 ("when the number of running jobs is larger than the threshold, the one with the worst early feedback is
killed").  Deviation: jobs are ranked within their sweep; jobs in the training phase are counted, as §1 defines the
threshold.

``podium`` is stricter, and not from the paper.  EPS §6 counts running jobs only: once one of them finishes, the next
job trains to its end, however bad it is.  Under ``podium`` a sweep has ``threshold`` places, and a running job keeps
training while its early feedback is among the ``threshold`` best of the running and the finished jobs.  Under both
rules the job with the best early feedback always finishes.  Of jobs with equal early feedback the one that arrived
earlier is better.
"""

from __future__ import annotations

from collections.abc import Iterable

from hscheduler.core.cohort import Cohort
from hscheduler.core.decisions import Decision, Kill
from hscheduler.core.jobs import EARLIER, worst
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


def stop_the_outranked(cohort: Cohort) -> Decision:
    """Kill a trial in the training phase if ``threshold`` running or finished ones have better early feedback."""
    running = {job.number: job for job in cohort.in_training()}
    ranked = {job.number: job.feedback for job in running.values()} | dict(cohort.finished())
    while running and len(ranked) > cohort.threshold:
        feedback = [(value, number) for number, value in ranked.items() if value is not None]
        number = worst(feedback, cohort.direction)
        job = running.get(number)
        if job is not None:
            sentence = (
                f"{job.job_id} is killed: {counted(cohort.threshold, 'running or finished trial')} "
                f"{'has' if cohort.threshold == 1 else 'have'} better early feedback than its {job.feedback:g}"
                + _tie(job.feedback, (value for other, value in ranked.items() if other != number))
            )
            return Decision((Kill(job.job_id),), sentence)
        del ranked[number]
    return Decision()


def _tie(value: float | None, others: Iterable[float | None]) -> str:
    """Return how a tie was broken, as the end of a sentence; empty if no other has the value."""
    return EARLIER if value in others else ""
