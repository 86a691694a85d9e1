"""What an application master decides about its containers: the one state behind the heartbeats.  Pure.

Wishes of the job master and answers of YARN come in.  Out come what the next heartbeat says
(:meth:`Allocation.take_turn`), what NodeManagers are told (:meth:`Allocation.take_orders`) and what the job master
hears (:meth:`Allocation.take_events`).  Rules:

1. Requests that want the same have the same number (:class:`Asks`); a heartbeat says by how many YARN's count is off.
2. A grant goes to the oldest request of its number.  One that nobody wants any more is given back by its name.
3. What is over is over: whatever comes later about a request that has ended changes nothing.
4. Of one heartbeat, ends come before grants: what has ended made the room.
5. A warning is kept, for YARN gives it once.
6. What is preempted is for others: until room has been free for long again, nobody should ask for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from eps.cluster.api import (
    WITHDRAWN,
    Allocated,
    ContainerEvent,
    ContainerRequest,
    EvictionWarning,
    Exited,
    Running,
)
from eps.cluster.yarn.exit_status import ABORTED, exit_of, is_lost, is_taken, lost_with
from eps.cluster.yarn.headroom import Headroom, Home, why_not_granted
from eps.cluster.yarn.killed_containers import KILLED, KilledContainers
from eps.cluster.yarn.types import (
    AllocateResult,
    Ask,
    Completed,
    ContainerState,
    Execution,
    Grant,
    NodeChange,
    NodeUpdate,
    Preemption,
    Registration,
    Resource,
    host_of,
)
from eps.errors import ConfigError, ResourceError

RELEASED = "was released"
#: What to do where a request is not granted.
ASK_LESS = (
    "ask for fewer or smaller ones (--workers, --servers, --memory-mb, --vcores) or wait longer (--container-timeout)"
)
#: Of a container that is taken away whatever the job does, and of one that is unless the job gives as much otherwise.
PREEMPTED = "is preempted: YARN gives its room to another queue or application"
WANTED_BACK = "is wanted back: YARN takes its room, or as much of this job elsewhere, for another queue or application"
ENDED_WITH_JOB = "was ended with the job"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where containers of a role go, and how."""

    label: str = ""
    execution: Execution = Execution.GUARANTEED
    #: Hosts that would suit; others will do.
    nodes: tuple[str, ...] = ()
    #: Lower goes first.
    priority: int = 1
    #: What one takes; where it is not known, no room is told of (:meth:`Allocation.room`).
    size: Resource | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds."""

    #: A request that is not granted within this ends; None: it waits as long as it takes.
    grant_s: float | None = None
    #: From a preemption message to the end of the container: the ResourceManager's
    #: ``yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill``, which it does not tell.
    preemption_s: float = 15.0
    #: What a node that is decommissioned leaves its containers, where YARN does not say: the default of
    #: ``yarn.resourcemanager.nodemanager-graceful-decommission-timeout-secs``.
    decommission_s: float = 3600.0
    #: A container on a node that YARN cannot use counts as ended after this, if nothing is heard of it.
    lost_node_s: float = 30.0
    #: A node that has not answered so long after it was told to end what YARN has released counts as lost.
    answer_s: float = 5.0
    #: Room that has been free for so long, nobody else waits for.
    quiet_s: float = 15.0
    #: Starts in a row that fail on a host before nothing more is wanted there.
    start_failures: int = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """What the next heartbeat says."""

    asks: tuple[Ask, ...] = ()
    withdrawn: tuple[int, ...] = ()
    releases: tuple[str, ...] = ()
    blacklist: tuple[str, ...] = ()
    unblacklist: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.asks or self.withdrawn or self.releases or self.blacklist or self.unblacklist)


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Have the node of ``grant`` start what ``request`` wants."""

    request: ContainerRequest
    grant: Grant


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Have its node end a container at once; :meth:`Allocation.on_stopping` and ``on_stopped`` are to hear of it."""

    container: str
    node: str


Order = StartContainer | StopContainer


class Asks:
    """What YARN is asked for: equal asks share a number, so that it keeps one key for all of them, and their count.

    What a heartbeat has to say follows from the difference between the requests that are asked and the count that
    YARN's client has, so a grant and a withdrawal may cross.
    """

    def __init__(self) -> None:
        #: Without its number -> with it; numbers are given in the order of first use, from 1.
        self._numbered: dict[Ask, Ask] = {}
        #: Number -> container ids that are asked for under it, oldest first.
        self._asked: dict[int, dict[str, None]] = {}
        #: Number -> how many YARN's client asks for.
        self._said: Counter[int] = Counter()
        #: Numbers that go into a turn of their own: one of them was refused.
        self._alone: set[int] = set()

    def add(self, container_id: str, ask: Ask) -> Ask:
        """Ask for a container; return the ask with its number."""
        numbered = self._numbered.setdefault(ask, replace(ask, number=len(self._numbered) + 1))
        self._asked.setdefault(numbered.number, {})[container_id] = None
        return numbered

    def take_back(self, container_id: str, number: int) -> None:
        """Ask no more for a container."""
        del self._asked[number][container_id]

    def on_granted(self, number: int) -> None:
        """Note a grant: YARN's client has taken it off its count, whoever gets the container."""
        self._said[number] = max(0, self._said[number] - 1)

    def take_oldest(self, number: int) -> str | None:
        """Return the container id that a grant is for, which is asked for no more; None where there is none."""
        asked = self._asked.get(number)
        oldest = next(iter(asked), None) if asked else None
        if oldest is not None:
            self.take_back(oldest, number)
        return oldest

    def on_refused(self, asks: Sequence[Ask]) -> list[str]:
        """Return the container ids that YARN refuses; of several numbers, each is asked again in a turn of its own."""
        refused = Counter(ask.number for ask in asks)
        for number, count in refused.items():
            self._said[number] = max(0, self._said[number] - count)
        if len(refused) > 1:
            self._alone |= set(refused)
            return []
        # What YARN had taken before it goes on to ask for.
        return [name for number in refused for name in list(self._asked[number])[self._said[number] :]]

    def forget(self) -> None:
        """YARN knows of no ask any more."""
        self._said.clear()

    def __bool__(self) -> bool:
        return any(len(asked) != self._said[number] for number, asked in self._asked.items())

    def take_turn(self) -> tuple[tuple[Ask, ...], tuple[int, ...]]:
        """Return the asks that the next heartbeat says, and the number of each one that it takes back, once."""
        asks: list[Ask] = []
        withdrawn: list[int] = []
        more = {number: len(asked) - self._said[number] for number, asked in self._asked.items()}
        self._alone = {number for number in self._alone if more[number] > 0}
        alone = min(self._alone, default=None)
        for ask in self._numbered.values():
            number = ask.number
            if more[number] > 0 and alone in (None, number):
                asks += [ask] * more[number]
                self._alone.discard(number)
            elif more[number] < 0:
                withdrawn += [number] * -more[number]
            else:
                continue
            self._said[number] = len(self._asked[number])
        return tuple(asks), tuple(withdrawn)


class _AvoidedHosts:
    """Hosts on which nothing more is wanted: so many starts in a row have failed there, and none has come back since.

    What a heartbeat has to say follows from the difference between these and the hosts that YARN was told of.
    """

    def __init__(self, most_failures: int) -> None:
        self._most = most_failures
        self._failures: Counter[str] = Counter()
        #: What YARN was told to avoid.
        self._said: set[str] = set()

    def on_works(self, host: str) -> None:
        """Note that a container has started on a host, or that YARN can use a node of it again."""
        self._failures.pop(host, None)

    def on_failed(self, host: str) -> None:
        self._failures[host] += 1

    def forget(self) -> None:
        """YARN knows of none any more."""
        self._said.clear()

    def _avoided(self) -> set[str]:
        return {host for host, failures in self._failures.items() if failures >= self._most}

    def __bool__(self) -> bool:
        return self._avoided() != self._said

    def take_turn(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the hosts to avoid that the next heartbeat says, and those that are wanted again, once."""
        before, self._said = self._said, self._avoided()
        return tuple(sorted(self._said - before)), tuple(sorted(before - self._said))


class _Phase(Enum):
    #: Not asked: the job has as many containers as it may.
    HELD = auto()
    ASKED = auto()
    STARTING = auto()
    RUNNING = auto()
    #: Given back; its end is not heard of yet.
    LEAVING = auto()


@dataclass(slots=True)
class _Record:
    request: ContainerRequest
    phase: _Phase = _Phase.HELD
    #: While it is asked.
    ask: Ask | None = None
    asked_s: float = 0.0
    grant: Grant | None = None
    #: What was done to end it.
    purpose: str = ""
    #: When it will be taken, as far as YARN has said.
    doomed_s: float | None = None
    #: Another application waits for its room, or the next attempt of the application master will.
    for_others: bool = False
    #: When it counts as ended, whether or not YARN says so.
    lost_s: float | None = None


class Allocation:
    """Requests of one job, and the containers that YARN granted for them.

    Parameters
    ----------
    placements : mapping
        Role -> where its containers go; a role that is not in it cannot be requested.
    limits : Limits
    max_containers : int
        Containers that may be there at once; a request beyond it is not asked until another has ended.  0: no limit.
    home : Home, optional
        While its node is decommissioned, room for the next attempt stays free.

    Raises
    ------
    ConfigError
        ``max_containers`` is negative.
    """

    def __init__(
        self,
        placements: Mapping[str, Placement],
        limits: Limits | None = None,
        max_containers: int = 0,
        home: Home | None = None,
    ) -> None:
        if max_containers < 0:
            raise ConfigError(f"max_containers is {max_containers}, but must be at least 0")
        self.max_containers = max_containers
        self._placements = placements
        self._limits = limits or Limits()
        self._home = home
        #: Requests that have not ended, by container id and, once granted, by YARN's name; in the order requested.
        self._records: dict[str, _Record] = {}
        self._used: set[str] = set()
        self._by_container: dict[str, _Record] = {}
        self._killed = KilledContainers(self._limits.answer_s)
        #: What the attempts before have left, and what was heard since, until it is known which of it is wanted.
        self._kept: tuple[Grant, ...] = ()
        self._unread: list[tuple[AllocateResult, float]] = []
        self._largest: Resource | None = None
        self._counts_cores = True
        self._last = AllocateResult()
        self._headroom = Headroom(self._limits.quiet_s)
        #: Since the last heartbeat an ask was taken back: somebody else has the room.
        self._in_vain = False
        self._doomed_nodes: dict[str, float] = {}
        # ---- what comes out
        self._asks = Asks()
        self._releases: list[str] = []
        #: Given back, and not heard of since.
        self._unheard: dict[str, None] = {}
        self._avoided = _AvoidedHosts(self._limits.start_failures)
        self._orders: list[Order] = []
        self._events: list[ContainerEvent] = []

    # ---- wishes

    def request(self, request: ContainerRequest, now_s: float) -> None:
        """Want a container.

        Raises
        ------
        ResourceError
            The id was used before, or its role is not known.
        """
        container_id = request.container_id
        if container_id in self._used:
            raise ResourceError(f"{container_id} was requested before: a container id is used once")
        if request.role not in self._placements:
            raise ResourceError(f"{container_id}: nothing says how a {request.role!r} is started")
        record = _Record(request)
        self._add(record)
        wanted = Resource(request.memory_mb, request.vcores)
        if self._largest is not None and not wanted.fits_in(self._largest):
            reason = f"was refused: it asks for {wanted}, but YARN grants at most {self._largest} to one container"
            self._end(record, None, reason)
            return
        self._ask_what_fits(now_s)

    def withdraw(self, container_id: str) -> bool:
        """Take a request back that has not been granted, as far as it is known here; return whether that was so."""
        record = self._records.get(container_id)
        if record is None or record.phase not in (_Phase.HELD, _Phase.ASKED):
            return False
        self._in_vain |= record.phase is _Phase.ASKED
        self._end(record, None, WITHDRAWN)
        return True

    def release(self, container_id: str) -> None:
        """Give a container back, or withdraw the request; harmless for one that is ended or unknown."""
        if not self.withdraw(container_id):
            self._leave(container_id, RELEASED)

    def kill(self, container_id: str) -> None:
        """End a container at once; harmless for one that is not there."""
        leaves = self._leave(container_id, KILLED)
        record = self._records.get(container_id)
        if record is None or record.phase is not _Phase.LEAVING or record.grant is None:
            return
        if leaves:
            self._killed.add(container_id, record.grant, record.lost_s is not None)
        self._killed.order(record.grant)
        self._orders.append(StopContainer(record.grant.container, record.grant.node))

    def end(self) -> None:
        """Withdraw and release all that there is."""
        for container_id in list(self._records):
            self.release(container_id)

    def finish(self) -> None:
        """Count whatever is left as ended: the application is over."""
        for record in list(self._records.values()):
            self._end(record, None, record.purpose or ENDED_WITH_JOB)
        self._events += self._killed.take_ended(math.inf)

    # ---- what YARN says

    def on_registered(self, registration: Registration) -> None:
        """Take in what YARN grants; where the attempts before have left containers, :meth:`adopt` must follow."""
        self._largest, self._counts_cores = registration.largest, registration.counts_cores
        self._kept = registration.kept

    @property
    def kept(self) -> tuple[Grant, ...]:
        """What the attempts before have left, before it is adopted or given back."""
        return self._kept

    def adopt(self, known: Mapping[str, int], states: Mapping[str, ContainerState]) -> dict[str, int]:
        """Take over those of the kept containers that are known and run; give the others back.

        Parameters
        ----------
        known : mapping
            Container id -> number of its container (:attr:`Grant.pid`), as the job has noted it.
        states : mapping
            What NodeManagers say of each kept container.

        Returns
        -------
        dict
            Those of ``known`` that run.
        """
        names = {pid: container_id for container_id, pid in known.items()}
        adopted: dict[str, int] = {}
        for grant in self._kept:
            name, state = names.get(grant.pid), states.get(grant.container, ContainerState.UNKNOWN)
            if state is ContainerState.RUNNING and name is not None:
                request = ContainerRequest(name, "", grant.resource.memory_mb, grant.resource.vcores)
                self._add(_Record(request, _Phase.RUNNING, grant=grant))
                adopted[name] = grant.pid
            elif state is not ContainerState.COMPLETE:
                # Granted and never started, or nobody's: the job asks again for what it wants.
                self._give_back(grant.container)
        self._kept, unread, self._unread = (), self._unread, []
        for result, at_s in unread:
            self.on_allocated(result, at_s)
        return adopted

    def on_forgotten(self, registration: Registration) -> None:
        """Say again what a ResourceManager has not answered that knows the application no more."""
        self._largest, self._counts_cores = registration.largest, registration.counts_cores
        self._asks.forget()
        self._releases = list(self._unheard)
        self._avoided.forget()
        self._take_kept(registration.kept)

    def on_allocated(self, result: AllocateResult, now_s: float) -> None:
        """Take what a heartbeat brought."""
        if self._kept:
            self._unread.append((result, now_s))
            return
        self._last = result
        if self._in_vain or any(record.for_others for record in self._records.values()):
            self._in_vain = False
            self._headroom.begin_again(now_s)
        self._headroom.note(result.headroom, now_s)
        new = {grant.container for grant in result.granted}
        for completed in result.completed:
            if completed.container not in new:
                self._on_completed(completed, now_s)
        for update in result.nodes:
            self._on_node(update, now_s)
        self._take_kept(result.kept)
        for grant in result.granted:
            self._on_granted(grant, now_s)
        for completed in result.completed:
            # Taken back before it was given.
            if completed.container in new:
                self._on_completed(completed, now_s)
        if result.preemption is not None:
            self._on_preemption(result.preemption, now_s)
        self.look_at_deadlines(now_s)
        self._ask_what_fits(now_s)

    def on_refused(self, asks: Sequence[Ask], reason: str) -> None:
        """End the requests behind asks that YARN does not take; of several numbers, find it by saying one at a time."""
        for container_id in self._asks.on_refused(asks):
            self._end(self._records[container_id], None, f"was refused by YARN: {reason}")

    def look_at_deadlines(self, now_s: float, silent_s: float = 0.0) -> None:
        """End what has been waited for long enough; ``silent_s`` is for how long YARN has not answered."""
        for record in list(self._records.values()):
            if record.grant is not None and record.lost_s is not None and now_s >= record.lost_s:
                self._give_back(record.grant.container)
                self._end(record, None, lost_with(record.grant.host), taken=True)
                continue
            grant_s = self._limits.grant_s
            if record.ask is not None and grant_s is not None and now_s - record.asked_s >= grant_s:
                self._in_vain = True
                why = why_not_granted(record.ask, self._last, silent_s)
                self._end(record, None, f"was not granted within {grant_s:g} s: {why}; {ASK_LESS}")
        self._events += self._killed.take_ended(now_s)

    def on_stopping(self, order: StopContainer, now_s: float) -> bool:
        """Note that a node is about to be asked to stop; return False where it needs not be."""
        return self._killed.on_telling(order.container, now_s)

    def on_stopped(self, order: StopContainer, *, reached: bool) -> None:
        """Note what came of an order to stop: whether the node could be ``reached``, whatever it answered."""
        self._killed.on_told(order.node, reached=reached)
        self._events += self._killed.take_ended()

    def on_started(self, container_id: str) -> None:
        """Note that a node has started a container."""
        record = self._records.get(container_id)
        if record is not None and record.phase is _Phase.STARTING and record.grant is not None:
            record.phase = _Phase.RUNNING
            self._avoided.on_works(record.grant.host)
            self._events.append(Running(container_id, record.grant.pid, record.grant.host))

    def on_start_failed(self, container_id: str, reason: str, *, unreachable: bool = False) -> None:
        """Note that a node could not start a container, or is ``unreachable``."""
        record = self._records.get(container_id)
        if record is None or record.phase is not _Phase.STARTING or record.grant is None:
            return
        host = record.grant.host
        self._give_back(record.grant.container)
        self._end(record, None, f"could not be started on {host}: {reason}", taken=unreachable)
        self._avoided.on_failed(host)

    # ---- what comes out

    def is_starting(self, container_id: str) -> bool:
        """Whether a container is still to be started: it may have been given back since the order."""
        record = self._records.get(container_id)
        return record is not None and record.phase is _Phase.STARTING

    @property
    def has_containers(self) -> bool:
        """Whether a container is there whose end is not heard of."""
        return any(r.grant is not None for r in self._records.values())

    def granted(self) -> dict[str, str]:
        """Return what YARN calls each container that is there, by our id."""
        return {name: record.grant.container for name, record in self._records.items() if record.grant is not None}

    def waiting(self, silent_s: float = 0.0) -> dict[str, str]:
        """Return what is known of why each request that was asked has not been granted, by our id."""
        asked = {name: record.ask for name, record in self._records.items() if record.ask is not None}
        return {name: why_not_granted(ask, self._last, silent_s) for name, ask in asked.items()}

    def room(self, now_s: float) -> dict[str, int]:
        """Return how many containers of each role fit into room that nobody else seems to want.

        What YARN tells counts nothing beyond the queue's own share, nor what is on nodes with a label: where it tells
        of no room, one container is tried after a longer while.
        """
        sizes = {role: None if placement.label else placement.size for role, placement in self._placements.items()}
        found = {role: self._headroom.fits(size, self._counts_cores, now_s) for role, size in sizes.items()}
        return {role: number for role, number in found.items() if number}

    @property
    def has_turn(self) -> bool:
        """Whether the next heartbeat has something to say."""
        return bool(self._asks or self._releases or self._avoided)

    def take_turn(self) -> Turn:
        """Return what the next heartbeat says, once."""
        turn = Turn(*self._asks.take_turn(), tuple(self._releases), *self._avoided.take_turn())
        self._releases.clear()
        return turn

    def take_orders(self) -> list[Order]:
        """Return what NodeManagers are to be told, in order, once."""
        orders, self._orders = self._orders, []
        return orders

    def take_events(self) -> list[ContainerEvent]:
        """Return what the job master is to hear, in order, once."""
        events, self._events = self._events, []
        return events

    # ---- one thing each

    def _ask_what_fits(self, now_s: float) -> None:
        taken = sum(r.phase is not _Phase.HELD for r in self._records.values())
        for record in self._records.values():
            if record.phase is not _Phase.HELD:
                continue
            if self.max_containers and taken >= self.max_containers:
                return
            taken += 1
            request, there = record.request, self._placements[record.request.role]
            wanted = Resource(request.memory_mb, request.vcores, there.size.others if there.size is not None else ())
            ask = Ask(0, wanted, there.priority, there.nodes, there.label, there.execution)
            record.phase, record.asked_s = _Phase.ASKED, now_s
            record.ask = self._asks.add(request.container_id, ask)

    def _leave(self, container_id: str, purpose: str) -> bool:
        """Give a container back; return False where it does not begin to leave now."""
        record = self._records.get(container_id)
        if record is None or record.grant is None or record.phase not in (_Phase.STARTING, _Phase.RUNNING):
            return False
        record.phase, record.purpose = _Phase.LEAVING, purpose
        self._give_back(record.grant.container)
        return True

    def _give_back(self, container: str) -> None:
        self._releases.append(container)
        self._unheard[container] = None

    def _add(self, record: _Record) -> None:
        self._records[record.request.container_id] = record
        self._used.add(record.request.container_id)
        if record.grant is not None:
            self._by_container[record.grant.container] = record

    def _end(self, record: _Record, code: int | None, reason: str, taken: bool = False) -> None:
        if record.grant is not None:
            self._killed.drop(record.grant.container)
        self._forget(record)
        self._events.append(Exited(record.request.container_id, code, reason, taken))

    def _forget(self, record: _Record) -> None:
        del self._records[record.request.container_id]
        if record.ask is not None:
            self._asks.take_back(record.request.container_id, record.ask.number)
        if record.grant is not None:
            del self._by_container[record.grant.container]

    def _on_granted(self, grant: Grant, now_s: float) -> None:
        self._asks.on_granted(grant.number)
        if grant.container in self._by_container:
            return
        oldest = self._asks.take_oldest(grant.number)
        if oldest is None:
            # Of a request that was withdrawn meanwhile, or more than was asked for.
            self._give_back(grant.container)
            return
        record = self._records[oldest]
        record.phase, record.ask, record.grant = _Phase.STARTING, None, grant
        self._by_container[grant.container] = record
        self._events.append(Allocated(record.request.container_id))
        self._orders.append(StartContainer(record.request, grant))
        if grant.node in self._doomed_nodes:
            self._warn_of_node(record, grant.node, now_s)

    def _on_completed(self, completed: Completed, now_s: float) -> None:
        self._unheard.pop(completed.container, None)
        record = self._by_container.get(completed.container)
        if record is None or record.grant is None:
            return
        is_released = completed.exit_status == ABORTED and not is_lost(completed)
        if is_released and self._killed.on_released(completed.container, now_s):
            # It takes nobody's room any more; how it ended is said when its node has spoken.
            self._forget(record)
            self._events += self._killed.take_ended(now_s)
        else:
            taken = is_taken(completed, record.purpose)
            self._end(record, *exit_of(completed, record.grant, record.purpose), taken)

    def _take_kept(self, kept: Sequence[Grant]) -> None:
        """Give back what nobody counts on: of containers found late, the job master was told that they had ended."""
        if self._kept:
            there = {grant.container for grant in self._kept}
            self._kept += tuple(grant for grant in kept if grant.container not in there)
            return
        for grant in kept:
            if grant.container not in self._by_container:
                self._give_back(grant.container)

    def _on_node(self, update: NodeUpdate, now_s: float) -> None:
        if update.change is NodeChange.DECOMMISSIONING:
            left_s = self._limits.decommission_s if update.deadline_s is None else update.deadline_s
            self._doomed_nodes[update.node] = now_s + left_s
        else:
            self._doomed_nodes.pop(update.node, None)
        if self._home is not None and self._home.node == update.node:
            self._headroom.kept = self._home.size if update.node in self._doomed_nodes else None
        if update.change is NodeChange.USABLE:
            self._avoided.on_works(host_of(update.node))
        if update.change is NodeChange.UNUSABLE:
            self._killed.on_node(update.node, is_lost=True)
        for record in self._on(update.node):
            if update.change is NodeChange.DECOMMISSIONING:
                self._warn_of_node(record, update.node, now_s)
            elif update.change is NodeChange.UNUSABLE:
                record.lost_s = now_s + self._limits.lost_node_s
            else:
                record.lost_s = record.doomed_s = None

    def _on(self, node: str) -> list[_Record]:
        return [r for r in self._records.values() if r.grant is not None and r.grant.node == node]

    def _on_preemption(self, preemption: Preemption, now_s: float) -> None:
        for containers, reason in ((preemption.strict, PREEMPTED), (preemption.negotiable, WANTED_BACK)):
            for container in containers:
                record = self._by_container.get(container)
                if record is not None:
                    record.for_others = True
                    self._warn(record, now_s + self._limits.preemption_s, now_s, reason)

    def _warn_of_node(self, record: _Record, node: str, now_s: float) -> None:
        doomed_s = self._doomed_nodes[node]
        # Where its members went, a full cluster would have no room for the master that is to find them again.
        record.for_others |= self._home is not None and self._home.node == node
        left_s = max(0, round(doomed_s - now_s))
        self._warn(record, doomed_s, now_s, f"is on node {host_of(node)}, which is decommissioned within {left_s} s")

    def _warn(self, record: _Record, doomed_s: float, now_s: float, reason: str) -> None:
        if record.phase not in (_Phase.STARTING, _Phase.RUNNING):
            return
        if record.doomed_s is None or doomed_s < record.doomed_s:
            record.doomed_s = doomed_s
            left_s = max(0.0, doomed_s - now_s)
            self._events.append(EvictionWarning(record.request.container_id, left_s, reason, record.for_others))
