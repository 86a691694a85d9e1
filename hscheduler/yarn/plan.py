"""Which containers are to be given back so that an application of YARN starts, and why.  Pure.

The choice is Algorithm 1's (:mod:`hscheduler.policies.elastic`), over what the ResourceManager has free.  Deviations:

- YARN places containers and decides in which order applications get them; here only room is made.
- Others shrink only where room is what is missing.  Where YARN holds an application back by the share of job masters,
  by the share of a user, or since no node has its label, that is said, and nothing is taken.
- Before its job master runs, of an application only that container is known; its tags may say the rest:
  ``eps.workers=3 eps.servers=1 eps.worker=4096x1 eps.server=4096x1`` (memory in MB, cores).
- Algorithm 1 takes a container for each that is missing.  On YARN every job has containers of its own size, and in the
  place of one with eight gigabytes several fit: where sizes differ as few are taken as it takes, in the order in which
  Algorithm 1 removes them (lines 18-26: one from each job in turn, the largest first, workers before servers).
- What is marked already counts as free, since it will be; so nothing is taken twice.  Where somebody else gets it, the
  next snapshot shows that, and it is planned again.
- A plan takes for one application.  Those after it in the queue wait for the next.
- Nothing is taken from a queue from which YARN itself preempts: one would undo what the other does.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hscheduler.core.decisions import Action, AdmissionView, Decision, Shrink, Start
from hscheduler.core.jobs import Job, JobRequest, Phase
from hscheduler.core.placement import FreeIndex, FreeSpace
from hscheduler.core.resources import NOTHING, Container, Resources, Role
from hscheduler.core.words import count_of, counted
from hscheduler.policies.elastic import schedule_incoming, unplaced
from hscheduler.policies.placing import listed, place, roles_of, size_of
from hscheduler.yarn.wire import Application, Ask, Held, Plan, Snapshot

_SIZE = re.compile(r"(\d{1,9})x(\d{1,6})")
_MOST_MEMBERS = 100_000


@dataclass(frozen=True, slots=True)
class Facts:
    """How a job is: what YARN does not know of it, and its master does."""

    #: It has given its early feedback: others may get what it has.
    early_feedback: bool
    #: Container -> worker or server; what is not in it is neither counted nor taken.
    roles: Mapping[str, Role] = field(default_factory=dict)
    #: Its size is not changing just now.
    may_shrink: bool = True
    #: It waits for its first workers and servers, of which it may have some.
    starting: bool = False


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
    # One after the other, up to the first for which something is taken.
    takes = next(filter(None, map(planner.make_room, waiting)), ())
    marked = [held.container_id for a in snapshot.applications for held in a.containers if held.marked]
    return Plan(
        snapshot.instance,
        snapshot.taken_ms,
        takes,
        () if planner.needs_room else tuple(sorted(marked)),
        (*_fought_over(snapshot), *planner.sentences),
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
        #: Node -> what applications before this one will get there.
        self._promised: dict[str, Resources] = {}

    def make_room(self, application: Application) -> tuple[str, ...]:
        """Return what others give so that an application can start; () where nothing is to be taken for it."""
        partition = application.asks[0].label
        limit = _limit_of_yarn(self._snapshot, application, partition)
        if limit:
            self.sentences.append(f"{application} waits: {limit}; others shrinking would not help")
            return ()
        request, wanted = _request(application)
        need = self._snapshot.counted(_total(request))
        view = _YarnView(self._snapshot, self._facts, Job(request, 0), partition, application, need, self._promised)
        decision = start_with_fewest(view, view.queue[0]) or schedule_incoming(view)
        shrinks = [action for action in decision.actions if isinstance(action, Shrink)]
        taken = {container_id for shrink in shrinks for container_id in shrink.containers}
        over = _user_limit(self._snapshot, application, partition, need, taken) if decision.actions else ""
        if over:
            self.sentences.append(f"{application} waits: {over}; others shrinking would not help")
            return ()
        if not decision.actions:
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
            for promised in action.places if isinstance(action, Start) else ():
                size = self._snapshot.counted(request.resources(promised.role))
                self._promised[promised.node] = self._promised.get(promised.node, NOTHING) + size


def _fought_over(snapshot: Snapshot) -> list[str]:
    """Return what is to be set where YARN's own preemption takes from the same queues."""
    return [
        f"nothing is taken from queue {queue}: YARN's own preemption may take from it, and would fight with "
        f"H-scheduler's; set yarn.scheduler.capacity.PATH.disable_preemption to true for the path of {queue} in "
        "capacity-scheduler.xml, and run yarn rmadmin -refreshQueues"
        for queue in sorted(_preempted(snapshot))
    ]


def _preempted(snapshot: Snapshot) -> set[str]:
    """Return the queues from which YARN itself preempts."""
    return {queue.queue for queue in snapshot.queues if not queue.preemption_disabled}


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
    """One partition as Algorithm 1 sees it, with one application that waits and the jobs that may give.

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
        self._cores, self._counted = snapshot.counts_cores, snapshot.counted
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
        self._containers: dict[str, dict[Role, list[Container]]] = {}
        self._jobs: list[Job] = []
        preempted = _preempted(snapshot)
        for number, (a, known) in enumerate(self.others, 1):
            if a.queue in preempted or (bound and a.queue != application.queue):
                continue
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

    def amount(self, size: Resources) -> str:
        """Return an amount in words, as far as it counts."""
        return str(size) if self._cores else f"{size.memory_mb} MiB"

    def _left_of_queue(self, snapshot: Snapshot, queue: str, partition: str, freed: Resources) -> Resources | None:
        for found in snapshot.queues:
            # One without a maximum of its own says nothing.
            if (found.queue, found.partition) == (queue, partition) and found.most != NOTHING:
                return self._counted(found.most) - self._counted(found.used) + freed
        return None

    def application(self, application_id: str) -> Application:
        """Return an application."""
        return self._applications[application_id]

    def told(self, shrink: Shrink) -> str:
        """Return what a job gives, in words."""
        roles = self._containers[shrink.job_id]
        workers = sum(c.container_id in shrink.containers for c in roles[Role.WORKER])
        parts = [(workers, "worker"), (len(shrink.containers) - workers, "server")]
        return listed([counted(number, noun) for number, noun in parts if number])

    # ---- as in :class:`hscheduler.core.decisions.AdmissionView`

    def room(self) -> FreeSpace:
        """Return a trial of placements; what is marked counts as free."""
        return FreeSpace(self._room)

    def containers(self, job: Job, role: Role) -> list[Container]:
        """Return what a job has in this partition and is not asked for already, the newest first."""
        return self._containers[job.job_id][role]

    def removable(self, role: Role) -> Iterator[Job]:
        """Yield jobs that may give and have more than one of a role, those with most of it first."""
        return iter(sorted((j for j in self._jobs if j.count(role) > 1), key=lambda j: (-j.count(role), j.number)))

    def running(self) -> Sequence[Job]:
        """Return the jobs that may give."""
        return self._jobs


def _capped(nodes: Mapping[str, Resources], left: Resources) -> dict[str, Resources]:
    """Return of what nodes have free only as much as a queue may still have."""
    found: dict[str, Resources] = {}
    for node, free in nodes.items():
        size = Resources(max(0, min(free.vcores, left.vcores)), max(0, min(free.memory_mb, left.memory_mb)))
        found[node] = size
        left -= size
    return found


# ---- where containers are of other sizes than those that are missing


def start_with_fewest(view: AdmissionView, head: Job) -> Decision | None:
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


def spared(view: AdmissionView) -> Iterator[Container]:
    """Yield what jobs can spare, one of each in turn; each keeps one worker and one server."""
    for role in (Role.WORKER, Role.SERVER):
        given = [view.containers(job, role)[: job.count(role) - 1] for job in view.removable(role)]
        for turn in range(max(map(len, given), default=0)):
            yield from (containers[turn] for containers in given if turn < len(containers))


def _differ(spare: Sequence[Container], head: Job) -> bool:
    """Return whether one of the containers is of another size than one of the job's."""
    sizes = [size for size, number in head.request.needs() if number and size != NOTHING]
    return any(size != container.resources for size in sizes for container in spare)


def _fits(view: AdmissionView, head: Job, given: Sequence[Container]) -> bool:
    """Return whether the job starts in what is free and what is given."""
    room = view.room()
    for container in given:
        room.give(container.node, container.resources)
    return not place(room, head.request, roles_of(head.request, *size_of(head)))[1]
