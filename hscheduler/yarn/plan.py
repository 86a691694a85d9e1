"""Choose the containers that jobs must release so that a waiting YARN application can start, with the reason.  Pure.

The choice is Algorithm 1's (:mod:`hscheduler.policies.elastic`), over the free resources of the ResourceManager.
Deviations:

- YARN places containers and orders applications; this plan only frees resources.
- Jobs shrink only when resources are missing.  If YARN holds an application back by its AM limit, by its user limit,
  or for lack of a labelled node, the plan says so and takes nothing.
- Before its job master runs, YARN knows only the master's container.  Tags of the application may give the rest:
  ``eps.workers=3 eps.servers=1 eps.worker=4096x1 eps.server=4096x1`` (memory in MB, cores).
- Algorithm 1 takes one container for each missing one.  On YARN each job has its own container sizes, and several
  small containers may fit into a large one.  Where sizes differ, the plan takes as few as possible.  The order is that
  of Algorithm 1 (lines 18-26: one from each job in turn, the largest first, workers before servers).
- A marked container already counts as free, so nothing is taken twice.  If another application gets the resources,
  the next snapshot shows it and the plan is made again.
- A plan takes containers for one application; later ones in the queue wait for the next plan.
- Nothing is taken from a queue from which YARN itself preempts: the two would undo each other's work.
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
from hscheduler.core.words import count_of, counted, listed
from hscheduler.policies.elastic import schedule_incoming, unplaced
from hscheduler.policies.placing import place, roles_of, size_of
from hscheduler.yarn.wire import Application, Ask, Held, Plan, Snapshot

_SIZE = re.compile(r"(\d{1,9})x(\d{1,6})")
_MOST_MEMBERS = 100_000


@dataclass(frozen=True, slots=True)
class Facts:
    """The state of a job that its master knows and YARN does not."""

    #: It has early feedback, so it may be shrunk for others.
    early_feedback: bool
    #: Container -> worker or server; other containers are neither counted nor taken.
    roles: Mapping[str, Role] = field(default_factory=dict)
    #: No change of its size is in progress.
    may_shrink: bool = True
    #: It waits for its first workers and servers; it may have some of them.
    starting: bool = False


def make_plan(snapshot: Snapshot, facts: Mapping[str, Facts]) -> Plan:
    """Return the plan for a snapshot.

    Parameters
    ----------
    snapshot : Snapshot
    facts : mapping
        Application id -> facts of its job; nothing is taken from applications that are missing here.
    """
    planner = _Planner(snapshot, facts)
    waiting = sorted(
        (a for a in snapshot.applications if waits(a, facts.get(a.application_id))),
        key=lambda a: (-a.priority, a.submitted_ms, a.application_id),
    )
    # In queue order, up to the first application for which containers are taken.
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
    """Return whether an application is starting: it waits for its job master, or for its first members.

    An application with members that requests more is growing or replacing lost members, unless its job master reports
    that it is starting.  No job shrinks for that.
    """
    if any(ask.for_master for ask in application.asks):
        return True
    has_members = any(not held.is_master for held in application.containers)
    starts = not has_members or (facts is not None and facts.starting)
    return application.state == "RUNNING" and bool(application.asks) and starts


class _Planner:
    """Builds one plan."""

    def __init__(self, snapshot: Snapshot, facts: Mapping[str, Facts]) -> None:
        self._snapshot = snapshot
        self._facts = facts
        self.sentences: list[str] = []
        #: A waiting application can be helped; otherwise the marked containers are spared.
        self.needs_room = False
        #: Node -> resources that earlier applications will get there.
        self._promised: dict[str, Resources] = {}

    def make_room(self, application: Application) -> tuple[str, ...]:
        """Return the containers that others release so that an application can start; () if none."""
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
            self.sentences.append(f"{application} waits for {wanted}: {_why_queued(decision, view, application, need)}")
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
    """Return advice for each queue from which YARN itself preempts."""
    return [
        f"nothing is taken from queue {queue}: YARN's own preemption may take from it, and would fight with "
        f"H-scheduler's; set yarn.scheduler.capacity.PATH.disable_preemption to true for the path of {queue} in "
        "capacity-scheduler.xml, and run yarn rmadmin -refreshQueues"
        for queue in sorted(_preempted(snapshot))
    ]


def _preempted(snapshot: Snapshot) -> set[str]:
    """Return the queues from which YARN itself preempts."""
    return {queue.queue for queue in snapshot.queues if not queue.preemption_disabled}


# ---- the request of a waiting application


def _request(application: Application) -> tuple[JobRequest, str]:
    """Return the missing containers of an application as a request, and as text."""
    master = next((ask.size for ask in application.asks if ask.for_master), None)
    if master is not None:
        # Containers kept from the previous attempt are not requested again: only the master is missing.
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


# ---- limits of YARN other than missing resources


def _limit_of_yarn(snapshot: Snapshot, application: Application, partition: str) -> str:
    """Return the limit that holds an application back regardless of free resources, as text; empty if none."""
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
    """Return that the user limit holds an application back even after the release of ``taken``, as text; or empty."""
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


def _why_queued(decision: Decision, view: _YarnView, application: Application, need: Resources) -> str:
    """Return why other jobs cannot release enough for the ``need`` of the application."""
    why = next(iter(decision.waiting.values()), "there is no room")
    if not any(ask.for_master for ask in application.asks):
        # YARN reports the size of requested containers, not their role.
        missing = counted(len(unplaced(view, view.queue[0])), "container")
        why = f"there is no room for {missing}, and jobs with early feedback can spare too little"
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


# ---- the view for Algorithm 1


class _YarnView:
    """One partition as Algorithm 1 sees it: the waiting application, and the jobs that may shrink.

    The application's queue may have less left than the nodes have free.  Then only that amount counts as free, and only
    jobs of the same queue can release more.
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
        #: Node labels of the containers that jobs could spare if they were in this partition.
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
        """Add a job that may shrink; members in other partitions count as the one that it must keep."""
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
        """Return an amount as text, without cores if YARN does not count them."""
        return str(size) if self._cores else f"{size.memory_mb} MiB"

    def _left_of_queue(self, snapshot: Snapshot, queue: str, partition: str, freed: Resources) -> Resources | None:
        for found in snapshot.queues:
            # A queue without its own maximum sets no limit.
            if (found.queue, found.partition) == (queue, partition) and found.most != NOTHING:
                return self._counted(found.most) - self._counted(found.used) + freed
        return None

    def application(self, application_id: str) -> Application:
        """Return an application by its id."""
        return self._applications[application_id]

    def told(self, shrink: Shrink) -> str:
        """Return the numbers of workers and servers that a job releases, as text."""
        roles = self._containers[shrink.job_id]
        workers = sum(c.container_id in shrink.containers for c in roles[Role.WORKER])
        parts = [(workers, "worker"), (len(shrink.containers) - workers, "server")]
        return listed([counted(number, noun) for number, noun in parts if number])

    # ---- as in :class:`hscheduler.core.decisions.AdmissionView`

    def room(self) -> FreeSpace:
        """Return the free space for trial placements; marked containers count as free."""
        return FreeSpace(self._room)

    def containers(self, job: Job, role: Role) -> list[Container]:
        """Return a job's unmarked containers in this partition, the newest first."""
        return self._containers[job.job_id][role]

    def removable(self, role: Role) -> Iterator[Job]:
        """Yield jobs that may shrink and have at least two members of a role, those with most members first."""
        return iter(sorted((j for j in self._jobs if j.count(role) > 1), key=lambda j: (-j.count(role), j.number)))

    def running(self) -> Sequence[Job]:
        """Return the jobs that may shrink."""
        return self._jobs


def _capped(nodes: Mapping[str, Resources], left: Resources) -> dict[str, Resources]:
    """Return the free resources of nodes, capped in total at what a queue may still use."""
    found: dict[str, Resources] = {}
    for node, free in nodes.items():
        size = Resources(max(0, min(free.vcores, left.vcores)), max(0, min(free.memory_mb, left.memory_mb)))
        found[node] = size
        left -= size
    return found


# ---- containers of different sizes


def start_with_fewest(view: AdmissionView, head: Job) -> Decision | None:
    """Return the plan that starts a job by taking as few containers as possible.

    None where Algorithm 1 decides: all sizes are equal, enough is free, or too little can be spared.
    """
    spare = list(spared(view))
    if not _differ(spare, head) or _fits(view, head, ()) or not _fits(view, head, spare):
        return None
    enough = bisect_left(range(len(spare)), True, key=lambda number: _fits(view, head, spare[:number]))
    needed = spare[:enough]
    # Return containers whose nodes turned out not to help.
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
    """Yield the containers that jobs can spare, one of each job in turn; each keeps one worker and one server."""
    for role in (Role.WORKER, Role.SERVER):
        given = [view.containers(job, role)[: job.count(role) - 1] for job in view.removable(role)]
        for turn in range(max(map(len, given), default=0)):
            yield from (containers[turn] for containers in given if turn < len(containers))


def _differ(spare: Sequence[Container], head: Job) -> bool:
    """Return whether any spare container differs in size from any of the job's containers."""
    sizes = [size for size, number in head.request.needs() if number and size != NOTHING]
    return any(size != container.resources for size in sizes for container in spare)


def _fits(view: AdmissionView, head: Job, given: Sequence[Container]) -> bool:
    """Return whether the job fits into the free resources plus the given containers."""
    room = view.room()
    for container in given:
        room.give(container.node, container.resources)
    return not place(room, head.request, roles_of(head.request, *size_of(head)))[1]
