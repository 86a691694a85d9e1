"""What the cluster took from jobs is given back to them: by a scheduler, not by the jobs themselves.

A job that a scheduler manages asks for nobody in the place of a member that was drained (:mod:`eps.core.evictions`):
its containers are the scheduler's to grant.  So there is one who asks, and what the cluster took for somebody else is
not taken from that again.

Source: Proteus §3.3 (a job goes on with what is left); EPS is silent about containers that are taken away.
"""

from __future__ import annotations

from collections.abc import Sequence

from hscheduler.core.decisions import Decision, Grow, Place, View
from hscheduler.core.jobs import Job, Phase
from hscheduler.core.resources import Role
from hscheduler.core.words import words_of


def may_return(job: Job, others_come_first: bool) -> bool:
    """Return whether a job may have back now what it lacks.

    Parameters
    ----------
    job : Job
    others_come_first : bool
        Somebody waits, for whom jobs in the training phase may have to give anyway.
    """
    settled = job.phase.runs and not job.growing and job.iteration >= job.no_return_before
    return settled and not (others_come_first and job.phase is Phase.TRAINING)


def give_back(view: View, jobs: Sequence[Job]) -> Decision:
    """Return the plan that gives jobs what they lack, the first of them first, as far as it is free."""
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
            got = words_of(place.role for place in places)
            gains.append(f"{job.job_id} gets {got} again, which the cluster took ({job.taken_because})")
    return Decision(tuple(actions), "; ".join(gains))
