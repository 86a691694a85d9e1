"""The kill-based approach of Optimus: a job changes its size by a checkpoint, its end and a new start.

Source: EPS §2.3 (a job restarts smaller for the newcomer, larger when that has ended), §6 ("checkpoint and kill the job
in the training phase with the worst early feedback, distribute the released resources to the killed job and the
incoming job, and run both"), §7.3 (it grows jobs too).  Deviations: how the resources are shared is not said: the
newcomer gets what it asks for, and where that leaves the other with less, both get about half; a job is restarted
larger where it gains at least a quarter of its members, and never again from a size from which that made it slower.
"""

from __future__ import annotations

from hscheduler.core.decisions import Decision, Place, Restart, Start, View
from hscheduler.core.jobs import Job, JobRequest, Size, worst
from hscheduler.core.resources import Role
from hscheduler.core.room import Room
from hscheduler.policies.placing import count_of, interleaved, pass_the_head, place, size_of, start_in_what_is_free
from hscheduler.policies.stopping import stop_the_worst

#: A restart costs: a job must gain this share of its members by it.
WORTH_A_RESTART = 0.25


def kill(view: View) -> Decision:
    """Decide by restarts: stop, undo, share with the head of the queue, or let a running job grow."""
    for decide in (stop_the_worst, _undo):
        decision = decide(view)
        if decision.actions:
            return decision
    return _incoming(view) if view.queue else _idle(view)


def _undo(view: View) -> Decision:
    for job in view.slowed():
        assert job.slowed is not None
        before, factor = job.slowed
        longer = f"{100 * (factor - 1):.0f} % longer"
        sentence = f"{job.job_id} restarts with {count_of(*before)}: its iterations take {longer} with what it got"
        return Decision((Restart(job.job_id, *before, undoes_growth=True),), sentence)
    return Decision()


def _incoming(view: View) -> Decision:
    head = view.queue[0]
    now = start_in_what_is_free(view, head)
    if now is not None:
        return now
    # One that restarts has been given its share; it waits until that is there.
    victim = None if head.restart_size is not None else _worst_in_training(view)
    shared = None if victim is None else _share(view, head, victim)
    if victim is None or shared is None:
        return pass_the_head(view, f"queued because {count_of(*size_of(head))} and a master are not free together")
    places, left = shared
    workers = sum(place.role is Role.WORKER for place in places)
    mine = count_of(workers, len(places) - workers - 1)
    sentence = (
        f"{head.job_id} starts with {mine}: {victim.job_id}, whose early feedback {victim.feedback:g} is the worst, is "
        f"checkpointed, killed and restarted with {count_of(*left)} instead of {count_of(*victim.size)}"
    )
    return Decision((Restart(victim.job_id, *left), Start(head.job_id, tuple(places))), sentence)


def _worst_in_training(view: View) -> Job | None:
    """Return the job that restarts for a newcomer: of the newcomer's sweep, where it has one, the worst."""
    sweeps = sorted(view.sweeps(), key=lambda sweep: sweep != view.queue[0].request.sweep)
    for sweep in sweeps:
        jobs = {job.number: job for job in view.in_training(sweep) if job.workers + job.servers > 2}
        if jobs:
            feedback = [(job.feedback, number) for number, job in jobs.items() if job.feedback is not None]
            return jobs[worst(feedback, view.direction(sweep))]
    return None


def _share(view: View, head: Job, victim: Job) -> tuple[list[Place], Size] | None:
    """Return the newcomer's places and the other's new size, in what is free when that has ended."""
    room = _without(view, victim)
    members = head.request.workers + head.request.servers
    for mine in range(members, 1, -1):
        trial = room.copy()
        places, missing = _placed(trial, head.request, mine)
        if missing:
            continue
        left = _largest(trial, victim.request, most=victim.workers + victim.servers)
        if left is not None and (sum(left) >= mine or sum(left) == victim.workers + victim.servers):
            return places, left
    return None


def _idle(view: View) -> Decision:
    if not view.room().num_free() or view.releasing:
        return Decision()
    for job in view.growable(Role.WORKER):
        now = job.workers + job.servers
        larger = _largest(_without(view, job), job.request, most=2 * now)
        if larger is not None and sum(larger) >= (1 + WORTH_A_RESTART) * now:
            sentence = (
                f"nothing waits and there is room: {job.job_id} is checkpointed, killed and restarted with "
                f"{count_of(*larger)} instead of {count_of(*job.size)}"
            )
            return Decision((Restart(job.job_id, *larger),), sentence)
    return Decision()


def _without(view: View, job: Job) -> Room:
    room = view.room()
    for role in Role:
        for container in view.containers(job, role):
            room.give(container.node, container.resources)
    return room


def _placed(room: Room, request: JobRequest, members: int) -> tuple[list[Place], list[Role]]:
    return place(room, request, [Role.MASTER, *interleaved(*scaled(request, members))])


def _largest(room: Room, request: JobRequest, most: int) -> Size | None:
    """Return the largest size, of at most so many members, that a job could start with; None if there is none."""
    most = min(most, request.most_workers + request.most_servers)
    for members in range(most, 1, -1):
        if not _placed(room.copy(), request, members)[1]:
            return scaled(request, members)
    return None


def scaled(request: JobRequest, members: int) -> Size:
    """Return about so many workers and servers, in the ratio that a job asks for and at least one of each."""
    workers = round(members * request.workers / (request.workers + request.servers))
    workers = min(max(1, workers), members - 1, request.most_workers)
    return workers, min(members - workers, request.most_servers)
