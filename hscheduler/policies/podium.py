"""Algorithm 1 with a stricter stopping rule, of our own: who has finished keeps a place.

EPS §6 counts the jobs that run: as soon as one of them finishes, the next newcomer goes on to its end, however bad it
is, and in a sweep most of what finishes late is of that kind.  Here a sweep has as many places as its threshold, a job
that finishes keeps the one that it has, and a running job goes on while its early feedback is among the best so many
of both.  The job with the best early feedback always finishes, as with the paper's rule.
"""

from __future__ import annotations

from hscheduler.core.decisions import Decision, Kill, View, needing
from hscheduler.core.jobs import worst
from hscheduler.policies.elastic import schedule, undo_growth
from hscheduler.policies.stopping import first_of


@needing(takes=True)
def podium(view: View) -> Decision:
    """Decide as :func:`~hscheduler.policies.elastic.elastic`, but for who is stopped."""
    return first_of(view, stop_whom_no_place_is_left, undo_growth, schedule)


def stop_whom_no_place_is_left(view: View) -> Decision:
    """Kill a job in the training phase when as many as the threshold are better, finished ones included."""
    for sweep in view.sweeps():
        running = {job.number: job for job in view.in_training(sweep)}
        ranked = {job.number: job.feedback for job in running.values()} | dict(view.finished(sweep))
        threshold = view.threshold(sweep)
        while len(ranked) > threshold:
            feedback = [(value, number) for number, value in ranked.items() if value is not None]
            number = worst(feedback, view.direction(sweep))
            job = running.get(number)
            if job is not None:
                sentence = (
                    f"{job.job_id} is killed: {threshold} jobs of {sweep} that finished or go on have better early "
                    f"feedback than its {job.feedback:g}"
                )
                return Decision((Kill(job.job_id),), sentence)
            del ranked[number]
    return Decision()
