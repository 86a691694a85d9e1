"""The stopping rule: if more jobs train than the threshold allows, the one with the worst early feedback is killed.

Source: EPS §6 ("when the number of running jobs is larger than the threshold, the one with the worst early feedback is
killed").  Deviation: jobs are ranked within their sweep; jobs in the training phase are counted, as §1 defines the
threshold.
"""

from __future__ import annotations

from collections.abc import Callable

from hscheduler.core.decisions import Decision, Kill, View


def first_of(view: View, *rules: Callable[[View], Decision]) -> Decision:
    """Return the decision of the first rule that has actions, else that of the last rule."""
    for rule in rules:
        decision = rule(view)
        if decision.actions:
            break
    return decision


def stop_the_worst(view: View) -> Decision:
    """Kill the worst job of a sweep with more jobs in the training phase than its threshold."""
    for sweep, number in view.crowded():
        job = view.worst_in_training(sweep)
        sentence = (
            f"{job.job_id} is killed: {number} jobs of {sweep} are in the training phase, the threshold is "
            f"{view.threshold(sweep)}, and its early feedback {job.feedback:g} is the worst"
        )
        return Decision((Kill(job.job_id),), sentence)
    return Decision()
