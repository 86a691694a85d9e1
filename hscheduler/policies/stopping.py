"""The stopping rule: past the threshold the worst early feedback ends.

Source: EPS §6 ("when the number of running jobs is larger than the threshold, the one with the worst early feedback is
killed").  Deviation: jobs are ranked within their sweep; jobs in the training phase are counted, as §1 defines the
threshold.
"""

from __future__ import annotations

from hscheduler.core.decisions import Decision, Kill, View
from hscheduler.core.jobs import worst


def stop_the_worst(view: View) -> Decision:
    """Kill the worst job of a sweep that has more in the training phase than its threshold."""
    for sweep in view.sweeps():
        threshold = view.threshold(sweep)
        if view.num_in_training(sweep) > threshold:
            jobs = view.in_training(sweep)
            feedback = {job.number: job for job in jobs}
            number = worst([(_feedback(job.feedback), job.number) for job in jobs], view.direction(sweep))
            job = feedback[number]
            sentence = (
                f"{job.job_id} is killed: {len(jobs)} jobs of {sweep} are in the training phase, the threshold is "
                f"{threshold}, and its early feedback {job.feedback:g} is the worst"
            )
            return Decision((Kill(job.job_id),), sentence)
    return Decision()


def _feedback(value: float | None) -> float:
    # A job in the training phase has given it.
    assert value is not None
    return value
