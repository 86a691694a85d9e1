"""How the containers of a job are placed: what all policies have in common.

Source: EPS Algorithm 1 lines 2-6 and 31.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from hscheduler.core.decisions import AdmissionView, Decision, Place, Start
from hscheduler.core.jobs import Job, JobRequest
from hscheduler.core.resources import Resources, Role
from hscheduler.core.room import Room
from hscheduler.core.words import count_of

#: Jobs that may pass the head of the queue because they are smaller; then everybody waits with it.
MOST_PASSES = 3
#: Jobs behind the head of the queue that are looked at.
MOST_TRIED = 100


def interleaved(workers: int, servers: int) -> list[Role]:
    """Return so many workers and servers in an order in which every beginning has about their ratio.

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


def place(room: Room, request: JobRequest, roles: Iterable[Role]) -> tuple[list[Place], list[Role]]:
    """Place containers of a job one after the other; return (what was placed, what did not fit).

    Those that do not fit are left out, and the ones after them are tried.
    """
    placed, left = [], []
    too_large: list[Resources] = []
    for role in roles:
        need = request.resources(role)
        # What did not fit before does not fit now.
        node = None if need in too_large else room.take(need)
        if node is None:
            left.append(role)
            too_large.append(need)
        else:
            placed.append(Place(role, node))
    return placed, left


def roles_of(request: JobRequest, workers: int = 0, servers: int = 0) -> list[Role]:
    """Return what a job needs to start, its master first: with so many members, by default what it asks for."""
    return [Role.MASTER, *interleaved(workers or request.workers, servers or request.servers)]


def size_of(job: Job) -> tuple[int, int]:
    """Return with how many workers and servers a queued job starts."""
    return job.restart_size or (job.request.workers, job.request.servers)


def start_if_it_fits(view: AdmissionView, job: Job) -> Start | None:
    """Return the start of a job where all that it asks for is free."""
    room, places = view.room(), []
    for role in roles_of(job.request, *size_of(job)):
        node = room.take(job.request.resources(role))
        if node is None:
            return None
        places.append(Place(role, node))
    return Start(job.job_id, tuple(places))


def start_in_what_is_free(view: AdmissionView, job: Job) -> Decision | None:
    """Return the plan that starts a job where all that it asks for is free."""
    start = start_if_it_fits(view, job)
    if start is None:
        return None
    return Decision((start,), f"{job.job_id} starts with {count_of(*size_of(job))}: they are free")


_V = TypeVar("_V", bound=AdmissionView)


def pass_the_head(
    view: _V, why: str, schedule: Callable[[_V, Job], Decision | None] = start_in_what_is_free
) -> Decision:
    """Start a job behind the head of the queue, which does not fit for the reason given; or say that all wait.

    A job that fits may pass the head a bounded number of times: it must not wait for ever.

    Parameters
    ----------
    view : AdmissionView
    why : str
        Why the head waits.
    schedule : callable
        Returns the plan that starts a job, if there is one.
    """
    head, others = view.queue[0], view.queue[1 : 1 + MOST_TRIED]
    if head.passed < MOST_PASSES:
        latest = _needs(head)
        tried = {latest}
        for job in others:
            needs = _needs(job)
            # Most are alike: seen without asking for a hash.
            if needs == latest or needs in tried:
                continue
            latest = needs
            tried.add(needs)
            decision = schedule(view, job)
            if decision is not None:
                left = MOST_PASSES - head.passed - 1
                sentence = f"{decision.sentence}; {head.job_id}, before it in the queue, needs more; {left} more may"
                return Decision(decision.actions, sentence, {head.job_id: why})
    waiting = {head.job_id: why}
    behind = f"queued behind {head.job_id}"
    waiting.update((job.job_id, behind) for job in others if job.why != behind)
    return Decision(waiting=waiting)


def _needs(job: Job) -> tuple[object, ...]:
    """Return what decides whether a job fits."""
    return size_of(job), job.request.worker, job.request.server, job.request.master


def listed(parts: Sequence[str]) -> str:
    """Return parts of a sentence, joined; the rest of a long list is counted."""
    shown = list(parts[:6])
    if len(parts) > len(shown):
        shown.append(f"{len(parts) - len(shown)} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
