"""Algorithm 1: a job that arrives at a full cluster gets workers and servers of jobs that have given early feedback;
what nobody waits for goes to the jobs in the training phase.

Source: EPS §4 and Algorithm 1.  Deviations, each where the paper is silent or its loop would not do what its text says:

- Lines 19-26 never end where all removable jobs together have too little: the job stays queued, with that reason.
- Line 7 may be negative where only one of both is missing: nothing is removed of the other.
- Resources are counted node by node (:mod:`hscheduler.core.room`); where what Algorithm 1 removes does not make room on
  a node that has enough, one more is removed, and so on.
- Line 27 removes servers for servers.  Where the jobs have too few to give, as many workers are removed in their place,
  and the other way round: of four jobs with two workers and one server each, none could ever make room for a fifth.
- Which containers are removed is not said: the newest.
- Line 30 names the workers twice; the second is read as the servers.
- Lines 36-39 are one pass, the text says round-robin: passes are repeated until nothing more fits.
- Line 33: a job may also have reached its size (it has splits and partitions for no more), may be growing already, or
  may have become slower by growing from the size that it has.
- Lines 34-40 add without measuring; §4.2 says that an addition that makes a job slower is taken back: where the median
  of the next ten iterations is over 5 % above that of the ten before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

from hscheduler.core.decisions import Action, Decision, Grow, Place, Shrink, Start, View
from hscheduler.core.jobs import Job
from hscheduler.core.resources import Container, Role
from hscheduler.core.room import Room
from hscheduler.policies.placing import (
    count_of,
    counted,
    listed,
    pass_the_head,
    place,
    roles_of,
    size_of,
    start_in_what_is_free,
)
from hscheduler.policies.stopping import stop_the_worst


def elastic(view: View) -> Decision:
    """Decide by Algorithm 1: stop, undo, schedule the head of the queue, or let running jobs grow."""
    for decide in (stop_the_worst, undo_growth):
        decision = decide(view)
        if decision.actions:
            return decision
    return schedule_incoming(view) if view.queue else schedule_running(view)


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
        None where every job would be down to one before there are enough.
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


def schedule_incoming(view: View) -> Decision:
    """Start the head of the queue, in what is free and what others give (lines 1 to 27)."""
    head = view.queue[0]
    return start_with_what_others_give(view, head) or pass_the_head(
        view, _infeasible(view, head), start_with_what_others_give
    )


def start_with_what_others_give(view: View, job: Job) -> Decision | None:
    """Return the plan that starts a job, in what is free and what others give; None where that is not enough."""
    roles = roles_of(job.request, *size_of(job))
    _, left = place(view.room(), job.request, roles)
    return _take_from_others(view, job, roles, left) if left else start_in_what_is_free(view, job)


Removal = dict[Job, list[Container]]


def _take_from_others(view: View, head: Job, roles: Sequence[Role], left: Sequence[Role]) -> Decision | None:
    # A master that does not fit needs the place of a worker.
    workers = sum(role is not Role.SERVER for role in left)
    servers = len(left) - workers
    most = len(roles)
    # A round over as many jobs as are to give one each never comes to a further one.
    givers = {role: list(islice(view.removable(role), 2 * most)) for role in (Role.WORKER, Role.SERVER)}
    for more in range(most):
        # More than Algorithm 1 asks for where that did not make room on any node that has enough.
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


def _least(view: View, head: Job, roles: Sequence[Role], removal: Removal) -> Removal:
    """Return of a removal what is needed: containers were added to it until one lay where there was room."""
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


def _removal(view: View, givers: Mapping[Role, Sequence[Job]], workers: int, servers: int) -> Removal | None:
    """Return the containers that jobs give, for so many workers and servers; None if they have too few of both."""
    spare = {role: sum(job.count(role) - 1 for job in jobs) for role, jobs in givers.items()}
    # What is missing of one kind is given of the other: a container is a container.
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


def _admission(view: View, head: Job, roles: Sequence[Role], removal: Removal) -> Decision:
    room = view.room()
    for container in chain.from_iterable(removal.values()):
        room.give(container.node, container.resources)
    placed, _ = place(room, head.request, roles)
    shrinks: list[Action] = [
        Shrink(job.job_id, tuple(container.container_id for container in containers))
        for job, containers in removal.items()
    ]
    given = listed(
        [f"{job.job_id} gives {_roles([c.role for c in containers])}" for job, containers in removal.items()]
    )
    sentence = f"{head.job_id} starts with {count_of(*size_of(head))}: {given}"
    return Decision((*shrinks, Start(head.job_id, tuple(placed))), sentence)


def _roles(roles: Sequence[Role]) -> str:
    workers = roles.count(Role.WORKER)
    servers = len(roles) - workers
    if workers and servers:
        return count_of(workers, servers)
    return counted(workers, "worker") if workers else counted(servers, "server")


def _infeasible(view: View, head: Job) -> str:
    _, left = place(view.room(), head.request, roles_of(head.request, *size_of(head)))
    masters, workers = left.count(Role.MASTER), left.count(Role.WORKER)
    servers = len(left) - workers - masters
    parts = [(masters, "master"), (workers, "worker"), (servers, "server")]
    missing = listed([counted(number, noun) for number, noun in parts if number])
    return (
        f"infeasible: queued because {missing} of {count_of(*size_of(head))} and a master do not fit, and the running "
        "jobs that have given early feedback and have more than one worker or server cannot make room for them"
    )


# ---- lines 29 to 40


def schedule_running(view: View) -> Decision:
    """Let jobs in the training phase grow into what is free (lines 29 to 40)."""
    room = view.room()
    # A job that comes after as many as there are places gets nothing.
    most = room.num_free()
    jobs = {role: list(islice(view.growable(role), most)) for role in (Role.WORKER, Role.SERVER)}
    if not any(jobs.values()):
        return Decision()
    numbers = divide(room.copy(), jobs, view.totals())
    added: dict[Job, list[Place]] = {}
    for role, number in zip((Role.WORKER, Role.SERVER), numbers, strict=True):
        for job, node in one_each(room, jobs[role], role, number):
            added.setdefault(job, []).append(Place(role, node))
    if not added:
        return Decision()
    actions = tuple(Grow(job.job_id, tuple(places)) for job, places in added.items())
    gains = [f"{job.job_id} gets {_roles([place.role for place in places])}" for job, places in added.items()]
    return Decision(actions, f"nothing waits and there is room: {listed(gains)}")


def divide(room: Room, jobs: Mapping[Role, Sequence[Job]], totals: tuple[int, int]) -> tuple[int, int]:
    """Return how many workers and servers can be added, in the ratio that the cluster has (lines 30 and 31).

    Parameters
    ----------
    room : Room
        Used up.
    jobs : mapping
        Role -> jobs that may have more of it.
    totals : (int, int)
        Workers and servers in the cluster.
    """
    most = {role: sum(_most_more(job, role) for job in jobs[role]) for role in (Role.WORKER, Role.SERVER)}
    done = {Role.WORKER: 0, Role.SERVER: 0}
    workers, servers = max(1, totals[0]), max(1, totals[1])
    while True:
        # The one that is behind, of those that are wanted and fit.
        behind = done[Role.WORKER] * servers <= done[Role.SERVER] * workers
        for role in (Role.WORKER, Role.SERVER) if behind else (Role.SERVER, Role.WORKER):
            if done[role] < most[role] and room.take(jobs[role][0].request.resources(role)) is not None:
                done[role] += 1
                break
        else:
            return done[Role.WORKER], done[Role.SERVER]


def one_each(room: Room, jobs: Sequence[Job], role: Role, number: int) -> Iterator[tuple[Job, str]]:
    """Yield (job, node) of each addition: one to each job in turn, until there are enough (lines 36 to 39).

    At most twice as many as a job has: its speed is looked at before it gets more.
    """
    given = dict.fromkeys(jobs, 0)
    left = [job for job in jobs if _most_more(job, role)]
    while left and number > 0:
        taking, left = left, []
        for job in taking:
            node = room.take(job.request.resources(role)) if number > 0 else None
            if node is None:
                continue
            yield job, node
            number, given[job] = number - 1, given[job] + 1
            if given[job] < _most_more(job, role):
                left.append(job)


def _most_more(job: Job, role: Role) -> int:
    return min(job.count(role), job.request.most(role) - job.count(role))


# ---- section 4.2


def undo_growth(view: View) -> Decision:
    """Take back an addition that made a job slower (EPS §4.2)."""
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
            f"{job.job_id} gives {_roles([container.role for container in surplus])} back: its iterations take "
            f"{100 * (factor - 1):.0f} % longer with them"
        )
        return Decision((Shrink(job.job_id, names, undoes_growth=True),), sentence)
    return Decision()
