"""Which containers are to be given back so that an application of YARN starts, and why.  Pure.

The choice is Algorithm 1's (:mod:`hscheduler.policies.elastic`), over what the ResourceManager has free.  Deviations:

- YARN places containers and decides in which order applications get them; here only room is made.
- Others shrink only where room is what is missing.  Where YARN holds an application back by the share of job masters,
  by the share of a user, or since no node has its label, that is said, and nothing is taken.
- Before its job master runs, of an application only that container is known; its tags may say the rest:
  ``eps.workers=3 eps.servers=1 eps.worker=4096x1 eps.server=4096x1`` (memory in MB, cores).
- Where containers are of other sizes than those that are missing, as few are taken as it takes
  (:mod:`hscheduler.yarn.fewest`).
- What is marked already counts as free, since it will be; so nothing is taken twice.  Where somebody else gets it, the
  next snapshot shows that, and it is planned again.
- A plan takes for one application.  Those after it in the queue wait for the next.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hscheduler.core.decisions import Decision, Shrink, Start
from hscheduler.core.jobs import Direction, Job, JobRequest, Phase
from hscheduler.core.resources import NOTHING, Container, Resources, Role
from hscheduler.core.room import FreeIndex, Room
from hscheduler.core.words import count_of, counted
from hscheduler.policies.elastic import schedule_incoming, unplaced
from hscheduler.policies.placing import listed
from hscheduler.yarn.facts import Facts
from hscheduler.yarn.fewest import spared, start_with_fewest
from hscheduler.yarn.snapshot import Application, Ask, Held, Plan, Snapshot

_SIZE = re.compile(r"(\d{1,9})x(\d{1,6})")
_MOST_MEMBERS = 100_000


def make_plan(snapshot: Snapshot, facts: Mapping[str, Facts]) -> Plan:
    """Return what is to be given back now.

    Parameters
    ----------
    snapshot : Snapshot
    facts : mapping
        Application id -> how its job is; from one that is not there nothing is taken.
    """
    planner = _Planner(snapshot, facts)
    waiting = sorted(
        (a for a in snapshot.applications if waits(a, facts.get(a.application_id))),
        key=lambda a: (-a.priority, a.submitted_ms, a.application_id),
    )
    takes: tuple[str, ...] = ()
    taker = ""
    for application in waiting:
        takes = planner.make_room(application)
        if takes:
            taker = application.application_id
            break
    marked = [held.container_id for a in snapshot.applications for held in a.containers if held.marked]
    return Plan(
        snapshot.instance,
        snapshot.taken_ms,
        takes,
        () if planner.needs_room else tuple(sorted(marked)),
        tuple(planner.sentences),
        taker,
        frozenset(planner.held),
    )


def waits(application: Application, facts: Facts | None = None) -> bool:
    """Return whether an application is to start: it lacks its job master, or that runs and lacks its first members.

    One that has members and asks for more grows, or replaces what it lost, unless its job master says that it has not
    started: nobody shrinks for that.
    """
    if any(ask.for_master for ask in application.asks):
        return True
    has_members = any(not held.is_master for held in application.containers)
    starts = not has_members or (facts is not None and facts.starting)
    return application.state == "RUNNING" and bool(application.asks) and starts


class _Planner:
    """One plan on its way."""

    def __init__(self, snapshot: Snapshot, facts: Mapping[str, Facts]) -> None:
        self._snapshot = snapshot
        self._facts = facts
        self.sentences: list[str] = []
        #: Somebody waits who can be helped; what is marked is spared otherwise.
        self.needs_room = False
        #: Applications for which others could give nothing, as they are.
        self.held: set[str] = set()
        #: Node -> what applications before this one will get there.
        self._promised: dict[str, Resources] = {}

    def make_room(self, application: Application) -> tuple[str, ...]:
        """Return what others give so that an application can start; () where nothing is to be taken for it."""
        partition = application.asks[0].label
        limit = _limit_of_yarn(self._snapshot, application, partition)
        if limit:
            self.held.add(application.application_id)
            self.sentences.append(f"{application} waits: {limit}; others shrinking would not help")
            return ()
        request, wanted = _request(application)
        need = self._counted(_total(request))
        view = _YarnView(self._snapshot, self._facts, Job(request, 0), partition, application, need, self._promised)
        decision = start_with_fewest(view, view.queue[0]) or schedule_incoming(view)
        shrinks = [action for action in decision.actions if isinstance(action, Shrink)]
        taken = {container_id for shrink in shrinks for container_id in shrink.containers}
        over = _user_limit(self._snapshot, application, partition, need, taken) if decision.actions else ""
        if over:
            self.held.add(application.application_id)
            self.sentences.append(f"{application} waits: {over}; others shrinking would not help")
            return ()
        if not decision.actions:
            if view.gives_all:
                self.held.add(application.application_id)
            self.sentences.append(f"{application} waits for {wanted}: {_infeasible(decision, view, application, need)}")
            return ()
        self.needs_room = True
        if not shrinks:
            self._promise(decision, request)
            if not any(held.marked for a in self._snapshot.applications for held in a.containers):
                self.sentences.append(f"{application} waits for {wanted}: there is room, YARN has not granted it yet")
            return ()
        given = [f"{view.application(shrink.job_id)} gives {view.told(shrink)}" for shrink in shrinks]
        self.sentences.append(f"{application} waits for {wanted}: {listed(given)}")
        return tuple(sorted(taken))

    def _promise(self, decision: Decision, request: JobRequest) -> None:
        for action in decision.actions:
            for place in action.places if isinstance(action, Start) else ():
                size = self._counted(request.resources(place.role))
                self._promised[place.node] = self._promised.get(place.node, NOTHING) + size

    def _counted(self, size: Resources) -> Resources:
        return size if self._snapshot.counts_cores else replace(size, vcores=0)


# ---- what an application waits for


def _request(application: Application) -> tuple[JobRequest, str]:
    """Return what an application waits for as a job of the core, and in words; what it has takes no room."""
    master = next((ask.size for ask in application.asks if ask.for_master), None)
    if master is not None:
        # What outlived the attempt before is not asked for again: then only the master is.
        kept = any(not held.is_master for held in application.containers)
        tags = dict(tag.partition("=")[::2] for tag in (() if kept else application.tags))
        counts = [_number(tags.get(f"eps.{role}s", "")) for role in ("worker", "server")]
        sizes = [_size(tags.get(f"eps.{role}", "")) for role in ("worker", "server")]
        known = all(counts) and all(size is not None for size in sizes)
        workers, servers = counts if known else (1, 1)
        worker, server = (size or NOTHING for size in sizes) if known else (NOTHING, NOTHING)
        wanted = f"its job master ({master})" + (f", {count_of(workers, servers)}" if known else "")
    else:
        first, *others = application.asks
        workers, worker = first.number, first.size
        servers, server = sum(ask.number for ask in others), _largest(others)
        wanted = counted(workers + servers, "container")
        servers = servers or 1
    request = JobRequest(
        application.application_id, "", workers, servers, worker, server, master or NOTHING, workers, servers
    )
    return request, wanted


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and int(text) <= _MOST_MEMBERS else 0


def _size(text: str) -> Resources | None:
    found = _SIZE.fullmatch(text)
    return Resources(int(found[2]), int(found[1])) if found else None


def _largest(asks: Sequence[Ask]) -> Resources:
    vcores = max((ask.size.vcores for ask in asks), default=0)
    return Resources(vcores, max((ask.size.memory_mb for ask in asks), default=0))


def _total(request: JobRequest) -> Resources:
    vcores = sum(size.vcores * number for size, number in request.needs())
    return Resources(vcores, sum(size.memory_mb * number for size, number in request.needs()))


# ---- what holds it that is no lack of room


def _limit_of_yarn(snapshot: Snapshot, application: Application, partition: str) -> str:
    """Return which limit holds an application whatever is free, as words; empty where none does."""
    queue = application.queue
    if any(ask.for_master for ask in application.asks) and "AM resource limit exceeded" in application.diagnostics:
        if "User's AM" in application.diagnostics:
            return f"its user's job masters have the share of queue {queue} that one user's may have (user AM limit)"
        return (
            f"job masters have the share of queue {queue} that they may have (AM limit: "
            "yarn.scheduler.capacity.maximum-am-resource-percent)"
        )
    if "User capacity has reached its maximum limit" in application.diagnostics:
        return f"user {application.user} has all that one user of queue {queue} may have now (user limit)"
    if not any(node.partition == partition for node in snapshot.nodes):
        return f"no node that runs has the label {partition!r}" if partition else "no node without a label runs"
    return ""


def _user_limit(snapshot: Snapshot, application: Application, partition: str, need: Resources, taken: set[str]) -> str:
    """Return that a user has all that one may have, as words, even when what is taken is given back; or nothing."""
    nodes = {node.node for node in snapshot.nodes if node.partition == partition}
    who = application.queue, application.user, partition
    for user in snapshot.users:
        if (user.queue, user.user, user.partition) != who or user.limit == NOTHING:
            continue
        freed = NOTHING
        for other in snapshot.applications:
            if (other.queue, other.user) == (user.queue, user.user):
                for held in other.containers:
                    leaves = held.node in nodes and (held.marked or held.container_id in taken)
                    freed += held.size if leaves else NOTHING
        left = user.limit - user.used + freed
        cores = snapshot.counts_cores and need.vcores > left.vcores
        if cores or need.memory_mb > left.memory_mb:
            return (
                f"user {user.user} has {user.used} of the {user.limit} that one user of queue {user.queue} may have "
                "(user limit)"
            )
    return ""


def _infeasible(decision: Decision, view: _YarnView, application: Application, need: Resources) -> str:
    """Return why others have too little to give, of the ``need`` of who waits."""
    why = next(iter(decision.waiting.values()), "there is no room")
    if not any(ask.for_master for ask in application.asks):
        # YARN says how large containers are that are asked for, not what they are for.
        missing = counted(len(unplaced(view, view.queue[0])), "container")
        why = f"infeasible: there is no room for {missing}, and jobs with early feedback can spare too little"
    given = list(spared(view))
    size = sum((container.resources for container in given), NOTHING)
    spare = f"{counted(len(given), 'container')} of {view.amount(size)}" if given else "no container"
    why = f"{why}: {view.amount(need)} are wanted, and beside what is free {spare} could be spared"
    for label, number in sorted(Counter(view.elsewhere).items()):
        told = f"labelled {label!r}, which it does not ask for" if label else f"without the label {view.label!r}"
        why = f"{why}, {number} more on nodes {told}"
    held_back = [
        f"{a.name} has not given its early feedback"
        for a, facts in view.others
        if facts is not None and not facts.early_feedback
    ]
    unknown = [f"nobody knows how {a.name} is" for a, facts in view.others if facts is None and a.containers]
    reasons = [*held_back, *unknown]
    return f"{why} ({listed(reasons)})" if reasons else why


# ---- the cluster, as Algorithm 1 sees it


class _YarnView:
    """One partition, with one application that waits and the jobs that may give.

    The queue that it is in may have less than the nodes have free: then that much is free, and only jobs of the same
    queue can make room.
    """

    number_of_decision = 0
    seed = 0

    def __init__(
        self,
        snapshot: Snapshot,
        facts: Mapping[str, Facts],
        head: Job,
        partition: str,
        application: Application,
        need: Resources,
        promised: Mapping[str, Resources],
    ) -> None:
        self.queue: Sequence[Job] = [head]
        self._cores = snapshot.counts_cores
        if not self._cores:
            worker, server, master = map(self._counted, (head.request.worker, head.request.server, head.request.master))
            head.request = replace(head.request, worker=worker, server=server, master=master)
        applications = [a for a in snapshot.applications if a.application_id != application.application_id]
        self.others = [(a, facts.get(a.application_id)) for a in applications]
        self._applications = {a.application_id: a for a in snapshot.applications}
        self.label = partition
        #: The label of the node of each container that jobs could spare, were it not for that label.
        self.elsewhere: list[str] = []
        self._labels = {n.node: n.partition for n in snapshot.nodes}
        nodes = {n.node: self._counted(n.free) for n in snapshot.nodes if n.partition == partition}
        freed: dict[str, Resources] = {}
        for a in applications:
            for held in a.containers:
                if held.marked and held.node in nodes:
                    nodes[held.node] += self._counted(held.size)
                    freed[a.queue] = freed.get(a.queue, NOTHING) + self._counted(held.size)
        for node, size in promised.items():
            if node in nodes:
                nodes[node] -= size
        left = self._left_of_queue(snapshot, application.queue, partition, freed.get(application.queue, NOTHING))
        if left is not None:
            for size in promised.values():
                left -= size
        bound = left is not None and not need.fits_into(left)
        self._room = FreeIndex(_capped(nodes, left) if left is not None and bound else nodes)
        givers = [(a, f) for a, f in self.others if f is not None and (not bound or a.queue == application.queue)]
        self._containers: dict[str, dict[Role, list[Container]]] = {}
        self._jobs: list[Job] = []
        for number, (a, known) in enumerate(givers, 1):
            if known is not None and known.early_feedback and known.may_shrink:
                self._add(number, a, known, nodes)

    def _add(self, number: int, application: Application, facts: Facts, nodes: Mapping[str, Resources]) -> None:
        """Add a job that may give; what it has elsewhere counts as the one that it keeps."""
        there: dict[Role, list[Container]] = {Role.WORKER: [], Role.SERVER: []}
        elsewhere: dict[Role, list[str]] = {role: [] for role in there}
        newest: list[Held] = sorted(application.containers, key=lambda held: (held.age_ms, held.container_id))
        for held in newest:
            role = facts.roles.get(held.container_id)
            if role not in there or held.is_master or held.marked:
                continue
            if held.node not in nodes:
                elsewhere[role].append(self._labels.get(held.node, self.label))
                continue
            size = self._counted(held.size)
            there[role].append(Container(held.container_id, application.application_id, role, size, held.node))
        workers, servers = (len(there[role]) + min(1, len(elsewhere[role])) for role in (Role.WORKER, Role.SERVER))
        most = max(1, workers), max(1, servers)
        request = JobRequest(application.application_id, "", *most, NOTHING, NOTHING, NOTHING, *most)
        job = Job(request, number, Phase.TRAINING, feedback=0.0, workers=workers, servers=servers)
        for labels in elsewhere.values():
            self.elsewhere += [label for label in labels[:-1] if label != self.label]
        self._jobs.append(job)
        self._containers[application.application_id] = there

    def _counted(self, size: Resources) -> Resources:
        return size if self._cores else replace(size, vcores=0)

    def amount(self, size: Resources) -> str:
        """Return an amount in words, as far as it counts."""
        return str(size) if self._cores else f"{size.memory_mb} MiB"

    def _left_of_queue(self, snapshot: Snapshot, queue: str, partition: str, freed: Resources) -> Resources | None:
        for found in snapshot.queues:
            # One without a maximum of its own says nothing.
            if (found.queue, found.partition) == (queue, partition) and found.most != NOTHING:
                return self._counted(found.most) - self._counted(found.used) + freed
        return None

    @property
    def gives_all(self) -> bool:
        """Whether all others gave what they could: only the end of one of them would help."""
        known = [facts for application, facts in self.others if application.containers]
        return all(facts is not None and facts.early_feedback and facts.may_shrink for facts in known)

    def application(self, application_id: str) -> Application:
        """Return an application."""
        return self._applications[application_id]

    def told(self, shrink: Shrink) -> str:
        """Return what a job gives, in words."""
        roles = self._containers[shrink.job_id]
        workers = sum(c.container_id in shrink.containers for c in roles[Role.WORKER])
        parts = [(workers, "worker"), (len(shrink.containers) - workers, "server")]
        return listed([counted(number, noun) for number, noun in parts if number])

    # ---- as in :class:`hscheduler.core.decisions.View`

    @property
    def releasing(self) -> int:
        """See :class:`View`; what is marked counts as free here."""
        return 0

    def room(self) -> Room:
        """See :class:`View`."""
        return Room(self._room)

    def containers(self, job: Job, role: Role) -> list[Container]:
        """See :class:`View`."""
        return self._containers[job.job_id][role]

    def removable(self, role: Role) -> Iterator[Job]:
        """See :class:`View`."""
        return iter(sorted((j for j in self._jobs if j.count(role) > 1), key=lambda j: (-j.count(role), j.number)))

    def growable(self, role: Role) -> Iterator[Job]:
        """See :class:`View`: somebody waits; who may grow is :mod:`hscheduler.yarn.giving_back`'s."""
        return iter(())

    def running(self) -> Sequence[Job]:
        """See :class:`View`."""
        return self._jobs

    def in_training(self, sweep: str) -> Sequence[Job]:
        """See :class:`View`."""
        return self._jobs

    def finished(self, sweep: str) -> Sequence[tuple[int, float]]:
        """See :class:`View`."""
        return ()

    def sweeps(self) -> Sequence[str]:
        """See :class:`View`."""
        return ()

    def crowded(self) -> Sequence[tuple[str, int]]:
        """See :class:`View`: nobody is ended here."""
        return ()

    def worst_in_training(self, sweep: str) -> Job:
        """See :class:`View`."""
        return self._jobs[-1]

    def threshold(self, sweep: str) -> int:
        """See :class:`View`."""
        return len(self._jobs)

    def direction(self, sweep: str) -> Direction:
        """See :class:`View`."""
        return Direction.MINIMIZE

    def slowed(self) -> Sequence[Job]:
        """See :class:`View`."""
        return ()

    def totals(self) -> tuple[int, int]:
        """See :class:`View`."""
        workers = sum(job.workers for job in self._jobs)
        return workers, sum(job.servers for job in self._jobs)


def _capped(nodes: Mapping[str, Resources], left: Resources) -> dict[str, Resources]:
    """Return of what nodes have free only as much as a queue may still have."""
    found: dict[str, Resources] = {}
    for node, free in nodes.items():
        size = Resources(max(0, min(free.vcores, left.vcores)), max(0, min(free.memory_mb, left.memory_mb)))
        found[node] = size
        left -= size
    return found
