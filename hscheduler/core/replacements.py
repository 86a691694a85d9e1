"""Replacement of containers that the cluster took from jobs.

A scheduled job does not replace a drained member itself (:mod:`eps.core.evictions`): only the scheduler grants
containers.  So one component requests replacements, and containers that the cluster needs are not requested back at
once.

Source: Proteus §3.3 (a job continues with its remaining members).  EPS does not cover containers that are taken away.
"""

from __future__ import annotations

from collections.abc import Sequence

from hscheduler.core.decisions import Decision, Grow, Place, View
from hscheduler.core.jobs import Job, Phase
from hscheduler.core.resources import Role
from hscheduler.core.words import words_of


def may_replace(job: Job, others_come_first: bool) -> bool:
    """Return whether the lost containers of a job may be replaced now.

    Parameters
    ----------
    job : Job
    others_come_first : bool
        Jobs are queued for which the policy shrinks jobs in the training phase.
    """
    settled = job.phase.runs and not job.growing and job.iteration >= job.no_return_before
    return settled and not (others_come_first and job.phase is Phase.TRAINING)


def replace_lost(view: View, jobs: Sequence[Job]) -> Decision:
    """Return the plan that replaces the lost containers of jobs, in this order, as far as resources are free."""
    room = view.room()
    actions: list[Grow] = []
    gains: list[str] = []
    for job in jobs:
        places = []
        for role, count in zip((Role.WORKER, Role.SERVER), job.lacking, strict=True):
            for _ in range(count):
                node = room.take(job.request.resources(role))
                if node is None:
                    break
                places.append(Place(role, node))
        if places:
            actions.append(Grow(job.job_id, tuple(places), replaces=True))
            got = words_of((place.role for place in places), job.request.hosts)
            gains.append(f"{job.job_id} gets {got} again, which the cluster took ({job.taken_because})")
    return Decision(tuple(actions), "; ".join(gains))
