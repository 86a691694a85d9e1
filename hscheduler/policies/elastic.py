"""Algorithm 1: a new job starts on a full cluster with containers of jobs that have reported early feedback.

Containers that no queued job needs go to the jobs in the training phase.

Source: EPS §4 and Algorithm 1.  Deviations, where the paper is silent or its loop contradicts its text:

- Lines 19-26 do not terminate if all removable jobs together have too few containers.  Here the job stays queued, and
  its status says why.
- Line 7 is negative if only workers or only servers are missing.  Here nothing is removed from the other role.
- Resources are counted per node (:mod:`hscheduler.core.placement`).  If the removed containers make no room on any
  node, more are removed one by one; those that turn out to be unnecessary stay.
- Algorithm 1 does not count the job's master.  If the master does not fit, a worker is removed for it.
- Line 27 removes servers for servers.  If the jobs have too few servers to give, they give workers instead, and the
  other way round.  Otherwise four jobs with two workers and one server each could never make room for a fifth.
- The paper does not say which containers are removed.  Here it is the newest.
- A job that refused to shrink is asked again only after some iterations.
- The paper does not order the queue.  If the first job cannot start, a smaller one behind it may start, a bounded
  number of times.
- Line 30 names the workers twice; the second is read as the servers.
- Lines 36-39 are one pass, but the text says round-robin.  Here passes repeat until nothing more fits or a job has
  doubled.  The bound keeps the spirit of the single pass: the job's speed is measured before it grows further.
- Lines 29-40 let no job grow while one is queued, so containers idle behind a job that needs most of the cluster.
  Here, once that job waits only for others to end, jobs that gave containers may get them back, up to the size they
  asked for.  They can be removed again.
- Line 33: a job does not grow if it has no splits or partitions for more members, if it is growing already, if it
  became slower the last time it grew from this size, or if it has not yet completed the ten iterations that a growth
  is judged by.
- Lines 34-40 add without measuring, but §4.2 undoes an addition that makes a job slower.  Here that means: the median
  of the next ten iterations is more than 5 % above that of the ten before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from hscheduler.core.decisions import Action, AdmissionView, Decision, Grow, Place, Shrink, Start, View, needing
from hscheduler.core.jobs import Job, Phase
from hscheduler.core.placement import FreeSpace
from hscheduler.core.resources import Container, Role
from hscheduler.core.words import count_of, counted, listed, words_of
from hscheduler.policies.placing import (
    first_of,
    pass_the_head,
    place,
    roles_of,
    size_of,
    start_in_what_is_free,
)


@needing(takes=True, stop="threshold")
def elastic(view: View) -> Decision:
    """Decide by Algorithm 1: undo a growth, schedule the head of the queue, or let running jobs grow."""
    return first_of(view, undo_growth, schedule)


def schedule(view: View) -> Decision:
    """Schedule the head of the queue.  If the queue is empty or waits only for jobs to end, let running jobs grow."""
    if not view.queue:
        return schedule_running(view)
    decision = schedule_incoming(view)
    return decision if decision.actions else replace(regrow(view), waiting=decision.waiting)


# ---- lines 1 to 27


def round_robin(counts: Sequence[int], wanted: int) -> list[int] | None:
    """Return how many to remove from each job, one from each in turn until there are enough (lines 18-26).

    Parameters
    ----------
    counts : sequence of int
        Workers (or servers) of the removable jobs, in decreasing order.
    wanted : int

    Returns
    -------
    list of int, or None
        None if every job would be down to one before there are enough.
    """
    if sum(count - 1 for count in counts) < wanted:
        return None
    removed = [0] * len(counts)
    done = 0
    while done < wanted:
        for k, count in enumerate(counts):
            if done == wanted:
                break
            if count - removed[k] > 1:
                removed[k] += 1
                done += 1
    return removed


def schedule_incoming(view: AdmissionView) -> Decision:
    """Start the head of the queue in free resources and in those that running jobs give (lines 1 to 27)."""
    head = view.queue[0]
    return start_with_what_others_give(view, head) or pass_the_head(
        view, _why_queued(view, head), start_with_what_others_give
    )


def start_with_what_others_give(view: AdmissionView, job: Job) -> Decision | None:
    """Return the plan that starts a job in free and donated resources; None if these are not enough."""
    roles = roles_of(job.request, *size_of(job))
    _, left = place(view.room(), job.request, roles)
    return _take_from_others(view, job, roles, left) if left else start_in_what_is_free(view, job)


Removal = dict[Job, list[Container]]


def _take_from_others(view: AdmissionView, head: Job, roles: Sequence[Role], left: Sequence[Role]) -> Decision | None:
    # A master that does not fit takes a worker's place.
    workers = sum(role is not Role.SERVER for role in left)
    servers = len(left) - workers
    for more in _numbers_more(view, len(roles), len(left)):
        # The first round removes what Algorithm 1 asks for; later rounds remove more, if no node had room.  A round
        # robin never reaches more jobs than containers are to be removed.
        most = len(left) + more
        givers = {role: list(islice(view.removable(role), most)) for role in (Role.WORKER, Role.SERVER)}
        removal = _removal(view, givers, workers + -(-more // 2), servers + more // 2)
        if removal is None:
            return None
        room = view.room()
        for container in chain.from_iterable(removal.values()):
            room.give(container.node, container.resources)
        _, missing = place(room, head.request, roles)
        if not missing:
            return _admission(view, head, roles, _least(view, head, roles, removal) if more else removal)
    return None


def _numbers_more(view: AdmissionView, one_by_one: int, missing: int) -> Iterator[int]:
    """Yield how many containers beyond the missing ones to remove: one by one first, then doubling, up to all."""
    yield from range(one_by_one)
    spare = sum(job.count(role) - 1 for role in (Role.WORKER, Role.SERVER) for job in view.removable(role))
    more = one_by_one
    while more < spare - missing:
        yield more
        more *= 2
    if spare - missing >= one_by_one:
        yield spare - missing


def _least(view: AdmissionView, head: Job, roles: Sequence[Role], removal: Removal) -> Removal:
    """Return the containers of a removal that the job really needs; the others do not have to be removed."""
    needed = {container.container_id: container for container in chain.from_iterable(removal.values())}
    for container_id in list(needed):
        room = view.room()
        for other in needed.values():
            if other.container_id != container_id:
                room.give(other.node, other.resources)
        if not place(room, head.request, roles)[1]:
            del needed[container_id]
    kept = {job: [c for c in containers if c.container_id in needed] for job, containers in removal.items()}
    return {job: containers for job, containers in kept.items() if containers}


def _removal(view: AdmissionView, givers: Mapping[Role, Sequence[Job]], workers: int, servers: int) -> Removal | None:
    """Return the containers that jobs give for this many workers and servers; None if they have too few."""
    spare = {role: sum(job.count(role) - 1 for job in jobs) for role, jobs in givers.items()}
    # A role that has too few to give is made up for by the other.
    short_workers, short_servers = max(0, workers - spare[Role.WORKER]), max(0, servers - spare[Role.SERVER])
    wanted_of = {
        Role.WORKER: workers - short_workers + short_servers,
        Role.SERVER: servers - short_servers + short_workers,
    }
    removal: Removal = {}
    for role, wanted in wanted_of.items():
        jobs = givers[role]
        counts = round_robin([job.count(role) for job in jobs], wanted)
        if counts is None:
            return None
        for job, count in zip(jobs, counts, strict=True):
            if count:
                removal.setdefault(job, []).extend(view.containers(job, role)[:count])
    return removal


def _admission(view: AdmissionView, head: Job, roles: Sequence[Role], removal: Removal) -> Decision:
    room = view.room()
    for container in chain.from_iterable(removal.values()):
        room.give(container.node, container.resources)
    placed, _ = place(room, head.request, roles)
    shrinks: list[Action] = [
        Shrink(job.job_id, tuple(container.container_id for container in containers))
        for job, containers in removal.items()
    ]
    given = listed([f"{job.job_id} gives {_words(job, containers)}" for job, containers in removal.items()])
    sentence = f"{head.job_id} starts with {count_of(*size_of(head))}: {given}"
    return Decision((*shrinks, Start(head.job_id, tuple(placed))), sentence)


def _words(job: Job, containers: Sequence[Container | Place]) -> str:
    return words_of((container.role for container in containers), job.request.hosts)


def unplaced(view: AdmissionView, head: Job) -> Sequence[Role]:
    """Return the roles of a queued job's members for which no resources are free."""
    _, left = place(view.room(), head.request, roles_of(head.request, *size_of(head)))
    return left


def _why_queued(view: AdmissionView, head: Job) -> str:
    left = unplaced(view, head)
    masters, workers = left.count(Role.MASTER), left.count(Role.WORKER)
    servers = len(left) - workers - masters
    parts = [(masters, "master"), (workers, "container" if head.request.hosts else "worker"), (servers, "server")]
    missing = listed([counted(number, noun) for number, noun in parts if number])
    # The reason comes first, because a terminal may cut the rest.
    why = f"there is no room for {missing}, and jobs with early feedback can spare too little"
    stuck = [
        f"{job.job_id} could not shrink and is asked again after its iteration {job.no_shrink_before}"
        for job in view.running()
        if not job.may_shrink
    ]
    return f"waits because {why}; {listed(stuck)}" if stuck else f"waits for a job to end: {why}"


# ---- lines 29 to 40

#: Returns how many more members of a role a job may get at once; below 1: none.
MostMore = Callable[[Job, Role], int]


def most_more(job: Job, role: Role) -> int:
    """Return how many more members of a role a job may get: at most it doubles, up to its maximum."""
    return min(job.count(role), job.request.most(role) - job.count(role))


def most_again(job: Job, role: Role) -> int:
    """Return how many members of a role a job may get back of those that it gave."""
    return min(most_more(job, role), job.request.count(role) - job.count(role))


def schedule_running(view: View) -> Decision:
    """Let jobs in the training phase grow into free resources (lines 29 to 40)."""
    return _grow(view, most_more, "nothing waits and there is room")


def regrow(view: View) -> Decision:
    """Give jobs back what they gave if no queued job can start before a running one ends."""
    if any(job.phase is not Phase.TRAINING for job in view.running()):
        return Decision()
    return _grow(view, most_again, "no queued job fits before a running one ends")


def _grow(view: View, limit: MostMore, why: str) -> Decision:
    room = view.room()
    # Each job takes at least one place, so later jobs get none.
    most = room.num_free()
    jobs = {
        role: list(islice((job for job in view.growable(role) if limit(job, role) > 0), most))
        for role in (Role.WORKER, Role.SERVER)
    }
    if not any(jobs.values()):
        return Decision()
    added = additions(room, jobs, view.totals(), limit)
    if not added:
        return Decision()
    actions = tuple(Grow(job.job_id, tuple(places)) for job, places in added.items())
    gains = [f"{job.job_id} gets {_words(job, places)}" for job, places in added.items()]
    return Decision(actions, f"{why}: {listed(gains)}")


def additions(
    room: FreeSpace, jobs: Mapping[Role, Sequence[Job]], totals: tuple[int, int], limit: MostMore
) -> dict[Job, list[Place]]:
    """Return the places that each job gets of the free resources (lines 30 to 40).

    Parameters
    ----------
    room : FreeSpace
        The free resources; consumed.
    jobs, totals, limit
        See :func:`divide`.
    """
    numbers = divide(room.copy(), jobs, totals, limit)
    added: dict[Job, list[Place]] = {}
    for role, number in zip((Role.WORKER, Role.SERVER), numbers, strict=True):
        for job, node in one_each(room, jobs[role], role, number, limit):
            added.setdefault(job, []).append(Place(role, node))
    return added


def divide(
    room: FreeSpace, jobs: Mapping[Role, Sequence[Job]], totals: tuple[int, int], limit: MostMore = most_more
) -> tuple[int, int]:
    """Return how many workers and servers can be added, in the cluster's ratio of both (lines 30 and 31).

    Parameters
    ----------
    room : FreeSpace
        The free resources; consumed.
    jobs : mapping
        Role -> jobs that may have more of it.
    totals : (int, int)
        Workers and servers in the cluster.
    limit : callable
        Returns how many of a role a job may get.
    """
    most = {role: sum(limit(job, role) for job in jobs[role]) for role in (Role.WORKER, Role.SERVER)}
    done = {Role.WORKER: 0, Role.SERVER: 0}
    workers, servers = max(1, totals[0]), max(1, totals[1])
    while True:
        # The role that lags behind the ratio goes first, if it is wanted and fits.
        behind = done[Role.WORKER] * servers <= done[Role.SERVER] * workers
        for role in (Role.WORKER, Role.SERVER) if behind else (Role.SERVER, Role.WORKER):
            if done[role] < most[role] and room.take(jobs[role][0].request.resources(role)) is not None:
                done[role] += 1
                break
        else:
            return done[Role.WORKER], done[Role.SERVER]


def one_each(
    room: FreeSpace, jobs: Sequence[Job], role: Role, number: int, limit: MostMore = most_more
) -> Iterator[tuple[Job, str]]:
    """Yield (job, node) of each addition: one to each job in turn, until there are enough (lines 36 to 39).

    A job at most doubles: its speed is measured before it gets more.
    """
    given = dict.fromkeys(jobs, 0)
    left = [job for job in jobs if limit(job, role) > 0]
    while left and number > 0:
        taking, left = left, []
        for job in taking:
            node = room.take(job.request.resources(role)) if number > 0 else None
            if node is None:
                continue
            yield job, node
            number, given[job] = number - 1, given[job] + 1
            if given[job] < limit(job, role):
                left.append(job)


# ---- section 4.2


def undo_growth(view: View) -> Decision:
    """Undo an addition that made a job slower (EPS §4.2)."""
    for job in view.slowed():
        assert job.slowed is not None
        before, factor = job.slowed
        surplus = [
            container
            for role, count in zip((Role.WORKER, Role.SERVER), before, strict=True)
            for container in view.containers(job, role)[: max(0, job.count(role) - count)]
        ]
        names = tuple(container.container_id for container in surplus)
        sentence = (
            f"{job.job_id} gives {_words(job, surplus)} back: its iterations take "
            f"{100 * (factor - 1):.0f} % longer with them"
        )
        return Decision((Shrink(job.job_id, names, undoes_growth=True),), sentence)
    return Decision()
