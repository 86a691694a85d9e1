"""Algorithm 1 with a stricter stopping rule (not from the paper): finished jobs count, too.

EPS §6 counts running jobs only.  Once one of them finishes, the next job trains to its end, however bad it is; most
jobs that finish late in a sweep are of that kind.  Here a sweep has ``threshold`` places.  A running job keeps training
while its early feedback is among the ``threshold`` best of the running and the finished jobs.  As with the paper's
rule, the job with the best early feedback always finishes.
"""

from __future__ import annotations

from hscheduler.core.decisions import Decision, Kill, View, needing
from hscheduler.core.jobs import worst
from hscheduler.policies.elastic import schedule, undo_growth
from hscheduler.policies.stopping import first_of


@needing(takes=True)
def podium(view: View) -> Decision:
    """Decide like :func:`~hscheduler.policies.elastic.elastic`, with the stricter stopping rule."""
    return first_of(view, stop_the_outranked, undo_growth, schedule)


def stop_the_outranked(view: View) -> Decision:
    """Kill a job in the training phase if ``threshold`` running or finished jobs have better early feedback."""
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
                    f"{job.job_id} is killed: {threshold} running or finished jobs of {sweep} have better early "
                    f"feedback than its {job.feedback:g}"
                )
                return Decision((Kill(job.job_id),), sentence)
            del ranked[number]
    return Decision()
