"""Room for an application whose containers are of other sizes than those of the jobs that give.  Pure.

Algorithm 1 takes a container for each that is missing.  On YARN every job has containers of its own size, and in the
place of one with eight gigabytes several fit: here as few are taken as it takes, in the order in which it removes them
(EPS Algorithm 1 lines 18-26: one from each job in turn, the largest first, workers before servers).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from hscheduler.core.decisions import Action, Decision, Shrink, Start, View
from hscheduler.core.jobs import Job
from hscheduler.core.resources import NOTHING, Container, Role
from hscheduler.policies.placing import place, roles_of, size_of


def start_with_fewest(view: View, head: Job) -> Decision | None:
    """Return the plan that starts a job with as few containers of others as it takes.

    None where Algorithm 1 decides: their containers are of the size of its own, there is room, or all that can be
    spared is too little.
    """
    spare = list(spared(view))
    if not _differ(spare, head) or _fits(view, head, ()) or not _fits(view, head, spare):
        return None
    enough = bisect_left(range(len(spare)), True, key=lambda number: _fits(view, head, spare[:number]))
    needed = spare[:enough]
    # What was taken before it turned out that it lies where it is of no use is left to its job.
    for container in needed[-2::-1]:
        others = [other for other in needed if other is not container]
        if _fits(view, head, others):
            needed = others
    room = view.room()
    for container in needed:
        room.give(container.node, container.resources)
    places, _ = place(room, head.request, roles_of(head.request, *size_of(head)))
    by_job: dict[str, list[str]] = {}
    for container in needed:
        by_job.setdefault(container.job_id, []).append(container.container_id)
    shrinks: list[Action] = [Shrink(job_id, tuple(names)) for job_id, names in by_job.items()]
    return Decision((*shrinks, Start(head.job_id, tuple(places))), "as few containers as it takes")


def spared(view: View) -> Iterator[Container]:
    """Yield what jobs can spare, one of each in turn; each keeps one worker and one server."""
    for role in (Role.WORKER, Role.SERVER):
        given = [view.containers(job, role)[: job.count(role) - 1] for job in view.removable(role)]
        for turn in range(max(map(len, given), default=0)):
            yield from (containers[turn] for containers in given if turn < len(containers))


def _differ(spare: Sequence[Container], head: Job) -> bool:
    """Return whether one of the containers is of another size than one of the job's."""
    sizes = [size for size, number in head.request.needs() if number and size != NOTHING]
    return any(size != container.resources for size in sizes for container in spare)


def _fits(view: View, head: Job, given: Sequence[Container]) -> bool:
    """Return whether the job starts in what is free and what is given."""
    room = view.room()
    for container in given:
        room.give(container.node, container.resources)
    return not place(room, head.request, roles_of(head.request, *size_of(head)))[1]
