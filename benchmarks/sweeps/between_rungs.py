"""A policy that resizes trials between rungs only, as RubberBand (EuroSys 2021): a size for each rung, planned before.

The plan comes from the measured speed-up: for each rung the size with which its trials are through first.  A trial
gets the size of its rung when it starts or is promoted, and keeps it to the next rung.  Deviation: RubberBand restarts
trials to resize them; here a trial that is promoted while it runs grows in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.sweeps.fluid import Sweep, fixed_stage
from hscheduler.core.decisions import Decision, Grow, Place, Policy, Start, View, needing
from hscheduler.core.jobs import Job
from hscheduler.core.resources import Role


def plan_of(sweep: Sweep) -> list[int]:
    """Return the size of a trial in each stage."""
    sizes = []
    for trials, iterations in sweep.stages():
        times = [(fixed_stage(sweep, size, trials, iterations), size) for size in range(1, sweep.containers + 1)]
        sizes.append(min(times)[1])
    return sizes


def between_rungs(plan: Sequence[int]) -> Policy:
    """Return the policy of a plan; jobs must be on containers that host a worker and a server."""

    def size_of(job: Job) -> int:
        return plan[min(job.rungs_passed, len(plan) - 1)]

    @needing(progress=True)
    def decide(view: View) -> Decision:
        for job in view.queue:
            places = _places(view, job, size_of(job))
            if len(places) == size_of(job):
                return Decision((Start(job.job_id, tuple(places)),), f"{job.job_id} starts in {len(places)} containers")
            # In order: smaller jobs do not pass it.
            break
        for job in view.growable(Role.WORKER):
            missing = size_of(job) - job.workers
            places = _places(view, job, missing)
            if 0 < missing == len(places):
                return Decision((Grow(job.job_id, tuple(places)),), f"{job.job_id} gets {missing} more for its rung")
        return Decision()

    return decide


def _places(view: View, job: Job, number: int) -> list[Place]:
    room, places = view.room(), []
    for _ in range(number):
        node = room.take(job.request.resources(Role.WORKER))
        if node is None:
            break
        places.append(Place(Role.WORKER, node))
    return places
