"""What jobs gave so that applications of YARN could start, given back when nobody waits and there is room.  Pure.

Who gets how many is Algorithm 1's, lines 29-40 (:mod:`hscheduler.policies.elastic`): one to each job in turn, the
smallest first.  Deviations:

- A job gets no more than it gave, and of one role at a time: what is asked must not stand for long.
- Jobs have containers of their own sizes on YARN: those of the same sizes are looked at together.
- What counts as free was free all the while (:class:`Settled`).  YARN gives what is free to whoever asks for it within
  about a second, of whatever queue or type; so nobody who asks now can use what nobody has taken for so much longer.
- Of what is free a queue may have only as much as it is below its most, and a user as much as below his.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hscheduler.core.jobs import Job, JobRequest, Phase
from hscheduler.core.resources import NOTHING, Resources, Role
from hscheduler.core.room import BoundedRoom, FreeIndex, Room
from hscheduler.policies.elastic import MostMore, additions, most_again
from hscheduler.yarn.facts import Facts
from hscheduler.yarn.snapshot import Application, Held, Plan, Snapshot

_ROLES = (Role.WORKER, Role.SERVER)
#: A look that took longer makes a break; of one that saw nothing whoever looks says so (:meth:`Settled.begin_again`).
SLOW_LOOK_S = 10.0


@dataclass(frozen=True, slots=True)
class Return:
    """What a job is to ask for again."""

    application_id: str
    role: Role
    number: int


def starts(application: Application, facts: Facts | None, plan: Plan) -> bool:
    """Return whether room is to be left to an application: it has not got its first containers, and may soon.

    Parameters
    ----------
    application : Application
    facts : Facts or None
        How its job is, where that is known.
    plan : Plan
        Says who waits for something else than what others could give.
    """
    if application.application_id in plan.held:
        return False
    has_members = any(not held.is_master for held in application.containers)
    return application.state != "RUNNING" or not has_members or (facts is not None and facts.starting)


class Settled:
    """What has been free for a while, without a break.

    Parameters
    ----------
    settle_s : float, seconds
    every_s : float, seconds
        Between a look and the next.  What was free while one took long nobody knows.
    """

    def __init__(self, settle_s: float, every_s: float) -> None:
        self._settle_s = settle_s
        self._most_apart_s = every_s + SLOW_LOOK_S
        #: (When, what), oldest first; each holds until the next.
        self._seen: list[tuple[float, Snapshot]] = []
        self._since_s = 0.0
        self._latest: Snapshot | None = None

    def begin_again(self) -> None:
        """Forget what was seen: somebody is being given room, or is to have it, or nothing could be seen."""
        self._seen, self._latest = [], None

    def note(self, snapshot: Snapshot, now_s: float) -> None:
        """Take in what there is."""
        if self._seen and now_s - self._seen[-1][0] > self._most_apart_s:
            self.begin_again()
        if not self._seen:
            self._since_s = now_s
        self._latest = snapshot
        self._seen.append((now_s, replace(snapshot, applications=())))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - self._settle_s:
            del self._seen[0]

    def least(self, now_s: float) -> Snapshot | None:
        """Return the latest with what was free on each node, of each queue and for each user at all times.

        None where it has not been seen for long enough.
        """
        latest = self._latest
        if latest is None or now_s - self._since_s < self._settle_s:
            return None
        seen = [snapshot for _, snapshot in self._seen]
        free = [{node.node: node.free for node in each.nodes} for each in seen]
        used = [{(q.queue, q.partition): q.used for q in each.queues} for each in seen]
        of_users = [{(u.queue, u.user, u.partition): u.used for u in each.users} for each in seen]
        return replace(
            latest,
            nodes=tuple(replace(n, free=_least(each.get(n.node, NOTHING) for each in free)) for n in latest.nodes),
            queues=tuple(
                replace(q, used=_most(each.get((q.queue, q.partition), NOTHING) for each in used))
                for q in latest.queues
            ),
            users=tuple(
                replace(u, used=_most(each.get((u.queue, u.user, u.partition), NOTHING) for each in of_users))
                for u in latest.users
            ),
        )


def _least(amounts: Iterable[Resources]) -> Resources:
    found = list(amounts)
    return Resources(min(a.vcores for a in found), min(a.memory_mb for a in found))


def _most(amounts: Iterable[Resources]) -> Resources:
    found = list(amounts)
    return Resources(max(a.vcores for a in found), max(a.memory_mb for a in found))


def give_back(
    snapshot: Snapshot, facts: Mapping[str, Facts], carefully: Collection[str] = frozenset()
) -> tuple[Return, ...]:
    """Return what jobs are to ask for again, of what they gave.

    Parameters
    ----------
    snapshot : Snapshot
        What has been free for a while.
    facts : mapping
        Application id -> how its job is, of those that may grow now.
    carefully : collection of str
        Applications that asked in vain: one container is tried.
    """
    free = _Free(snapshot)
    found = [
        _owed(a, facts[a.application_id], number, free, a.application_id in carefully)
        for number, a in enumerate(snapshot.applications)
        if a.application_id in facts
    ]
    owed = [each for each in found if each is not None]
    totals = sum(each.job.workers for each in owed), sum(each.job.servers for each in owed)
    kinds: dict[tuple[object, ...], list[_Owed]] = {}
    for each in sorted(owed, key=lambda each: (each.job.workers + each.job.servers, each.job.number)):
        kinds.setdefault(each.kind, []).append(each)
    gets: dict[str, dict[Role, int]] = {each.job.job_id: dict.fromkeys(_ROLES, 0) for each in owed}

    def more(job: Job, role: Role) -> int:
        return most_again(job, role) - gets[job.job_id][role]

    for alike in kinds.values():
        # Nodes without a label come first.
        for partition in sorted({name for each in alike for names in each.partitions.values() for name in names}):
            jobs = {role: _smallest_first(alike, role, partition, more) for role in _ROLES}
            room = free.room(partition, alike[0].application)
            for job, places in additions(room, jobs, totals, more).items():
                for place in places:
                    gets[job.job_id][place.role] += 1
                    free.take(place.node, job.request.resources(place.role), alike[0].application)
    return tuple(
        # One role at a time: the other follows when this one has come.
        next(Return(name, role, number) for role, number in numbers.items() if number)
        for name, numbers in gets.items()
        if any(numbers.values())
    )


@dataclass(frozen=True, slots=True)
class _Owed:
    """A job that is to have something again."""

    application: Application
    job: Job
    #: Labels of the nodes on which its containers of a role may be; empty: nodes without one.
    partitions: Mapping[Role, frozenset[str]]

    @property
    def kind(self) -> tuple[object, ...]:
        """Jobs with the same have containers of the same sizes, and the same limits."""
        return self.application.queue, self.application.user, self.job.request.worker, self.job.request.server


def _owed(application: Application, facts: Facts, number: int, free: _Free, careful: bool) -> _Owed | None:
    """Return a job with what it is to have again; None for one that is owed nothing, or that cannot be seen whole."""
    held: dict[Role, list[Held]] = {role: [] for role in _ROLES}
    for each in application.containers:
        role = facts.roles.get(each.container_id)
        if role in held and not each.is_master and not each.marked:
            held[role].append(each)
    if not any(facts.lent.values()) or not all(held.values()):
        return None
    newest = {role: min(all_of, key=lambda each: (each.age_ms, each.container_id)) for role, all_of in held.items()}
    worker, server = (free.counted(newest[role].size) for role in _ROLES)
    workers, servers = (len(held[role]) for role in _ROLES)
    lacks = {role: min(count, 1) if careful else count for role, count in facts.lent.items()}
    had = workers + lacks.get(Role.WORKER, 0), servers + lacks.get(Role.SERVER, 0)
    request = JobRequest(application.application_id, "", *had, worker, server, NOTHING, *had)
    job = Job(request, number, Phase.TRAINING, workers=workers, servers=servers)
    partitions = {}
    for role in _ROLES:
        # Where others leave it free, YARN also puts what asks for no label on nodes that have one.
        found = free.partitions_of(each.node for each in held[role])
        asked = facts.labels.get(role)
        partitions[role] = found if asked is None else frozenset({asked}) if asked else found | {""}
    return _Owed(application, job, partitions)


def _smallest_first(owed: Sequence[_Owed], role: Role, partition: str, limit: MostMore) -> list[Job]:
    jobs = [each.job for each in owed if partition in each.partitions[role] and limit(each.job, role) > 0]
    return sorted(jobs, key=lambda job: (job.count(role), job.number))


class _Free:
    """What is free on nodes, and what queues and users may still have of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._cores = snapshot.counts_cores
        self._partitions = {node.node: node.partition for node in snapshot.nodes}
        self._nodes = {node.node: self.counted(node.free) for node in snapshot.nodes}
        #: Partition and queue, or these and a user -> what is left; others have no limit.
        self._left: dict[tuple[str, ...], Resources] = {}
        for queue in snapshot.queues:
            if queue.most != NOTHING:
                self._left[queue.partition, queue.queue] = self.counted(queue.most - queue.used)
        for user in snapshot.users:
            if user.limit != NOTHING:
                self._left[user.partition, user.queue, user.user] = self.counted(user.limit - user.used)

    def counted(self, size: Resources) -> Resources:
        """Return what counts of an amount."""
        return size if self._cores else replace(size, vcores=0)

    def partitions_of(self, nodes: Iterable[str]) -> frozenset[str]:
        """Return the labels that nodes have, of those that run."""
        return frozenset(self._partitions[node] for node in nodes if node in self._partitions)

    def room(self, partition: str, application: Application) -> Room:
        """Return what is free for applications of a queue and a user."""
        nodes = {node: free for node, free in self._nodes.items() if self._partitions[node] == partition}
        limits = [self._left[key] for key in _limits(partition, application) if key in self._left]
        return BoundedRoom(FreeIndex(nodes), limits)

    def take(self, node: str, size: Resources, application: Application) -> None:
        """Count something as taken."""
        self._nodes[node] -= size
        for key in _limits(self._partitions[node], application):
            if key in self._left:
                self._left[key] -= size


def _limits(partition: str, application: Application) -> list[tuple[str, ...]]:
    return [(partition, application.queue), (partition, application.queue, application.user)]
