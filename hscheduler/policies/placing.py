"""Placing the containers of a job on nodes; shared by all policies.

Source: EPS Algorithm 1 lines 2-6 and 31.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from hscheduler.core.decisions import AdmissionView, Decision, Place, Start, View
from hscheduler.core.jobs import Job, JobRequest
from hscheduler.core.placement import FreeSpace
from hscheduler.core.resources import Resources, Role
from hscheduler.core.words import count_of

#: Smaller jobs that may start before the head of the queue; after that, all wait for it.
MOST_PASSES = 3
#: Jobs behind the head of the queue that are considered.
MOST_TRIED = 100


def first_of(view: View, *steps: Callable[[View], Decision]) -> Decision:
    """Return the decision of the first step that has actions, else that of the last one."""
    for step in steps:
        decision = step(view)
        if decision.actions:
            break
    return decision


def interleaved(workers: int, servers: int) -> list[Role]:
    """Return workers and servers in an order whose every prefix has about their ratio.

    Source: EPS Algorithm 1 line 3 (free resources are divided by the ratio of workers to servers).
    """
    order: list[Role] = []
    done_workers = done_servers = 0
    while done_workers < workers or done_servers < servers:
        # Compared without division: done_workers / workers <= done_servers / servers.
        if done_workers < workers and (done_servers == servers or done_workers * servers <= done_servers * workers):
            done_workers += 1
            order.append(Role.WORKER)
        else:
            done_servers += 1
            order.append(Role.SERVER)
    return order


def place(room: FreeSpace, request: JobRequest, roles: Iterable[Role]) -> tuple[list[Place], list[Role]]:
    """Place containers one after the other; return (the places, the roles that did not fit)."""
    placed, left = [], []
    too_large: list[Resources] = []
    for role in roles:
        need = request.resources(role)
        # Free space only shrinks here, so a size that did not fit before does not fit now.
        node = None if need in too_large else room.take(need)
        if node is None:
            left.append(role)
            too_large.append(need)
        else:
            placed.append(Place(role, node))
    return placed, left


def roles_of(request: JobRequest, workers: int, servers: int) -> list[Role]:
    """Return the roles that a job starts with in some size, its master first if that needs one."""
    return [Role.MASTER] * request.count(Role.MASTER) + interleaved(workers, servers)


def size_of(job: Job) -> tuple[int, int]:
    """Return the number of workers and servers that a queued job starts with."""
    return job.restart_size or (job.request.workers, job.request.servers)


def not_free(job: Job) -> str:
    """Return that what a queued job starts with is not free, as text."""
    size, masters = size_of(job), job.request.count(Role.MASTER)
    text = count_of(*size) + " and a master" * masters
    return f"{text} is not free" if sum(size) + masters == 1 else f"{text} are not free together"


def start_in_what_is_free(view: AdmissionView, job: Job) -> Decision | None:
    """Return the plan that starts a job if everything it asks for is free, else None."""
    places, left = place(view.room(), job.request, roles_of(job.request, *size_of(job)))
    if left:
        return None
    return Decision(
        (Start(job.job_id, tuple(places)),), f"{job.job_id} starts with {count_of(*size_of(job))}: they are free"
    )


_V = TypeVar("_V", bound=AdmissionView)


def pass_the_head(
    view: _V, why: str, schedule: Callable[[_V, Job], Decision | None] = start_in_what_is_free
) -> Decision:
    """Start a job behind the head of the queue, which does not fit; or say that all wait.

    Jobs may pass the head :data:`MOST_PASSES` times, so that it cannot starve.

    Parameters
    ----------
    view : AdmissionView
    why : str
        Why the head waits.
    schedule : callable
        Returns the plan that starts a job, or None.
    """
    head, others = view.queue[0], view.queue[1 : 1 + MOST_TRIED]
    if head.passed < MOST_PASSES:
        latest = _needs(head)
        tried = {latest}
        for job in others:
            needs = _needs(job)
            # Most jobs have equal needs; comparing is cheaper than hashing.
            if needs == latest or needs in tried:
                continue
            latest = needs
            tried.add(needs)
            decision = schedule(view, job)
            if decision is not None:
                left = MOST_PASSES - head.passed - 1
                sentence = f"{decision.sentence}; it passes {head.job_id}, which needs more ({left} more may pass it)"
                return Decision(decision.actions, sentence, {head.job_id: why})
    waiting = {head.job_id: why}
    behind = f"waits behind {head.job_id}"
    waiting.update((job.job_id, behind) for job in others if job.why != behind)
    return Decision(waiting=waiting)


def _needs(job: Job) -> tuple[object, ...]:
    """Return the properties of a job that decide whether it fits."""
    return size_of(job), job.request.worker, job.request.server, job.request.master
