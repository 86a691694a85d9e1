"""The kill-based approach of Optimus: to resize a job, checkpoint it, kill it and restart it.

Source: EPS §2.3 (a job restarts smaller for a new job and larger when that has ended), §6 ("checkpoint and kill the job
in the training phase with the worst early feedback, distribute the released resources to the killed job and the
incoming job, and run both"), §7.3 (it grows jobs too).  Deviations, where the paper is silent:

- The new job gets the size it asks for.  If that leaves the killed job with less, both get about half.
- If the worst job alone has too little to share, several jobs restart smaller, the worst first.  Otherwise jobs with
  two workers and one server could never make room for another.
- A job restarts larger only if it gains at least a quarter of its members, and never again from a size from which
  growing made it slower.
- A restart that would make a job end later does not take place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import median

from hscheduler.core.decisions import Decision, Place, Restart, Start, View, needing
from hscheduler.core.jobs import Job, JobRequest, Size, worst
from hscheduler.core.placement import FreeSpace
from hscheduler.core.resources import Role
from hscheduler.core.words import count_of, listed
from hscheduler.policies.placing import (
    first_of,
    not_free,
    pass_the_head,
    place,
    roles_of,
    start_in_what_is_free,
)

#: A restart costs time, so a job must gain at least this share of its members.
WORTH_A_RESTART = 0.25


@needing(progress=True, checkpoints=True, takes=True, stop="threshold")
def kill(view: View) -> Decision:
    """Decide by restarts: undo a growth, share with the head of the queue, or let a running job grow."""
    return first_of(view, _undo, _incoming if view.queue else _idle)


def _undo(view: View) -> Decision:
    for job in view.slowed():
        assert job.slowed is not None
        before, factor = job.slowed
        if not _pays(job, 1 / factor):
            continue
        longer = f"{100 * (factor - 1):.0f} % longer"
        sentence = f"{job.job_id} restarts with {count_of(*before)}: its iterations take {longer} with what it got"
        return Decision((Restart(job.job_id, *before, undoes_growth=True),), sentence)
    return Decision()


def _incoming(view: View) -> Decision:
    head = view.queue[0]
    now = start_in_what_is_free(view, head)
    if now is not None:
        return now
    # A restarting job has its share already and waits until those containers are free.
    shared = None if head.restart_size is not None else _share(view, head)
    if shared is None:
        return pass_the_head(view, f"waits because {not_free(head)}")
    places, left = shared
    roles = [place.role for place in places]
    mine = count_of(roles.count(Role.WORKER), roles.count(Role.SERVER))
    (first, size), *others = left.items()
    sizes = [f"{job.job_id} with {count_of(*size)} instead of {count_of(*job.size)}" for job, size in left.items()]
    given = (
        f"as {first.job_id}, whose early feedback {first.feedback:g} is the worst, has too little to share, they are "
        f"checkpointed, killed and restarted: {listed(sizes)}"
        if others
        else f"{first.job_id}, whose early feedback {first.feedback:g} is the worst, is checkpointed, killed and "
        f"restarted with {count_of(*size)} instead of {count_of(*first.size)}"
    )
    restarts = [Restart(job.job_id, *size) for job, size in left.items()]
    return Decision((*restarts, Start(head.job_id, tuple(places))), f"{head.job_id} starts with {mine}: {given}")


#: The newcomer's places, and the new sizes of those that restart for it, the worst first.
Shared = tuple[list[Place], dict[Job, Size]]


def _share(view: View, head: Job) -> Shared | None:
    jobs = _may_restart(view)
    if not jobs:
        return None
    alone = _share_with_one(view, head, jobs[0])
    # Containers that are being released may be enough.
    return alone if alone is not None or view.releasing else _share_with_several(view, head, jobs)


def _may_restart(view: View) -> list[Job]:
    """Return the jobs that can restart smaller for a new job, the worst first; its own sweep is preferred."""
    sweeps = sorted(view.sweeps(), key=lambda sweep: sweep != view.queue[0].request.sweep)
    for sweep in sweeps:
        jobs = {job.number: job for job in view.in_training(sweep) if job.workers + job.servers > job.request.least}
        if jobs:
            ranked = []
            while jobs:
                feedback = [(job.feedback, number) for number, job in jobs.items() if job.feedback is not None]
                ranked.append(jobs.pop(worst(feedback, view.direction(sweep))))
            return ranked
    return []


def _share_with_one(view: View, head: Job, victim: Job) -> Shared | None:
    """Share the resources that are free once the worst job has ended."""
    room = _without(view, [victim])
    members = head.request.workers + head.request.servers
    for mine in range(members, head.request.least - 1, -1):
        trial = room.copy()
        places, missing = _placed(trial, head.request, mine)
        if missing:
            continue
        left = _largest(trial, victim.request, most=victim.workers + victim.servers)
        if left is not None and (sum(left) >= mine or sum(left) == victim.workers + victim.servers):
            return places, {victim: left}
    return None


def _share_with_several(view: View, head: Job, jobs: Sequence[Job]) -> Shared | None:
    """Start the new job at the size it asks for; as few jobs as possible restart smaller."""
    for number in range(2, len(jobs) + 1):
        smaller = jobs[:number]
        room = _without(view, smaller)
        places, missing = _placed(room, head.request, head.request.workers + head.request.servers)
        members = [job.workers + job.servers - 1 for job in smaller]
        while not missing:
            trial = room.copy()
            if not any(_placed(trial, job.request, count)[1] for job, count in zip(smaller, members, strict=True)):
                sizes = [scaled(job.request, count) for job, count in zip(smaller, members, strict=True)]
                return places, dict(zip(smaller, sizes, strict=True))
            largest = max(range(number), key=lambda k: (members[k], -k))
            if members[largest] == smaller[largest].request.least:
                break
            members[largest] -= 1
    return None


def _idle(view: View) -> Decision:
    if not view.room().num_free() or view.releasing:
        return Decision()
    for job in view.growable(Role.WORKER):
        now = job.workers + job.servers
        larger = _largest(_without(view, [job]), job.request, most=2 * now)
        if larger is None or sum(larger) < (1 + WORTH_A_RESTART) * now:
            continue
        # At best, iterations become shorter in proportion to the members.
        if _pays(job, now / sum(larger)):
            sentence = (
                f"nothing waits and there is room: {job.job_id} is checkpointed, killed and restarted with "
                f"{count_of(*larger)} instead of {count_of(*job.size)}"
            )
            return Decision((Restart(job.job_id, *larger),), sentence)
    return Decision()


def _pays(job: Job, shorter: float) -> bool:
    """Return whether a job ends sooner if a restart scales its iterations by ``shorter``; True if that is unknown."""
    if not job.request.iterations or not job.recent_s:
        return True
    left_s = (job.request.iterations - job.iteration) * median(job.recent_s)
    return left_s * (1 - shorter) > job.request.restart_s


def _without(view: View, jobs: Sequence[Job]) -> FreeSpace:
    room = view.room()
    for job, role in product(jobs, Role):
        for container in view.containers(job, role):
            room.give(container.node, container.resources)
    return room


def _placed(room: FreeSpace, request: JobRequest, members: int) -> tuple[list[Place], list[Role]]:
    return place(room, request, roles_of(request, *scaled(request, members)))


def _largest(room: FreeSpace, request: JobRequest, most: int) -> Size | None:
    """Return the largest size, of at most ``most`` members, that fits into ``room``; None if none fits."""
    most = min(most, request.most_workers + request.most_servers)
    for members in range(most, request.least - 1, -1):
        if not _placed(room.copy(), request, members)[1]:
            return scaled(request, members)
    return None


def scaled(request: JobRequest, members: int) -> Size:
    """Return ``members`` as (workers, servers), in the ratio that a job asks for and at least one of each.

    Where each container hosts both, there are 0 servers.
    """
    if request.hosts:
        return min(members, request.most_workers), 0
    workers = round(members * request.workers / (request.workers + request.servers))
    workers = min(max(1, workers), members - 1, request.most_workers)
    return workers, min(members - workers, request.most_servers)
