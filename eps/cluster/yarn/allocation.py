"""State of an application master's containers.  Pure.

Input are the job master's requests and YARN's answers.  Output are the next heartbeat (:meth:`Allocation.take_turn`),
orders to NodeManagers (:meth:`Allocation.take_orders`) and events for the job master (:meth:`Allocation.take_events`).
Rules:

1. Equal requests share a number (:class:`Asks`).  A heartbeat tells YARN by how many its count differs.
2. A grant goes to the oldest request of its number.  A grant without a request is released.
3. Later news about a request that has ended changes nothing.
4. Within one heartbeat, ended containers count before new grants, because they made room for them.
5. An eviction warning is kept, because YARN sends it once.
6. Preempted capacity belongs to others: request it again only after it has been idle for a while.
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
#: Advice for a request that was not granted.
ASK_LESS = (
    "ask for fewer or smaller ones (--workers, --servers, --memory-mb, --vcores) or wait longer (--container-timeout)"
)
#: Reasons of eviction warnings: strict preemption, and one that the job can avoid by releasing as much elsewhere.
PREEMPTED = "is being preempted: another queue or application needs its capacity"
WANTED_BACK = "may be preempted, unless this job releases as much elsewhere: another queue or application needs it"
ENDED_WITH_JOB = "was ended with the job"


@dataclass(frozen=True, slots=True)
class Placement:
    """Node label, execution type, preferred hosts, priority and size of the containers of a kind."""

    label: str = ""
    execution: Execution = Execution.GUARANTEED
    #: Preferred hosts; YARN may choose others.
    nodes: tuple[str, ...] = ()
    #: YARN serves lower numbers first, and preempts higher ones first.
    priority: int = 1
    #: Size of one container; if it is None, :meth:`Allocation.room` cannot tell how many fit.
    size: Resource | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts, in seconds, and the number of failed starts before a host is avoided."""

    #: A request ends if it is not granted within this; None: it never times out.
    grant_s: float | None = None
    #: From a preemption message to the kill: the ResourceManager's
    #: ``yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill``, which its messages do not contain.
    preemption_s: float = 15.0
    #: Time that a decommissioning node leaves its containers if YARN does not say: the default of
    #: ``yarn.resourcemanager.nodemanager-graceful-decommission-timeout-secs``.
    decommission_s: float = 3600.0
    #: A container counts as lost if its node has been unusable for this long and YARN has not reported its end.
    lost_node_s: float = 30.0
    #: A node counts as lost if it has not answered a stop order for this long after YARN released the container.
    answer_s: float = 5.0
    #: Capacity counts as idle after it has been free for this long.
    quiet_s: float = 15.0
    #: Failed starts in a row on a host after which no more containers are requested there.
    start_failures: int = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """Content of the next heartbeat."""

    asks: tuple[Ask, ...] = ()
    withdrawn: tuple[int, ...] = ()
    releases: tuple[str, ...] = ()
    blacklist: tuple[str, ...] = ()
    unblacklist: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.asks or self.withdrawn or self.releases or self.blacklist or self.unblacklist)


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Order the node of ``grant`` to start the container of ``request``."""

    request: ContainerRequest
    grant: Grant


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Order a node to stop a container at once; :meth:`Allocation.on_stopping` and ``on_stopped`` must follow."""

    container: str
    node: str


Order = StartContainer | StopContainer


class Asks:
    """Open asks.  Equal asks share a number, so that YARN keeps one key and a count for them.

    A heartbeat sends the difference between the open asks of a number and the count of YARN's client.  So a grant and a
    withdrawal may cross.
    """

    def __init__(self) -> None:
        #: Ask without its number -> with it; numbers are in the order of first use, from 1.
        self._numbered: dict[Ask, Ask] = {}
        #: Number -> container ids with an open ask, oldest first.
        self._asked: dict[int, dict[str, None]] = {}
        #: Number -> count of YARN's client.
        self._sent: Counter[int] = Counter()
        #: Numbers that are each sent in a heartbeat of their own: YARN refused one of them.
        self._one_by_one: set[int] = set()

    def add(self, container_id: str, ask: Ask) -> Ask:
        """Open an ask for a container; return it with its number."""
        numbered = self._numbered.setdefault(ask, replace(ask, number=len(self._numbered) + 1))
        self._asked.setdefault(numbered.number, {})[container_id] = None
        return numbered

    def take_back(self, container_id: str, number: int) -> None:
        """Withdraw the ask for a container."""
        del self._asked[number][container_id]

    def on_granted(self, number: int) -> None:
        """Note a grant: YARN's client has reduced its count, whether or not the container is still wanted."""
        self._sent[number] = max(0, self._sent[number] - 1)

    def take_oldest(self, number: int) -> str | None:
        """Close the oldest ask of a number and return its container id; None if there is none."""
        asked = self._asked.get(number)
        oldest = next(iter(asked), None) if asked else None
        if oldest is not None:
            self.take_back(oldest, number)
        return oldest

    def on_refused(self, asks: Sequence[Ask]) -> list[str]:
        """Return the container ids that YARN refused.

        If the asks have several numbers, return none: each number is sent again in a heartbeat of its own.
        """
        refused = Counter(ask.number for ask in asks)
        for number, count in refused.items():
            self._sent[number] = max(0, self._sent[number] - count)
        if len(refused) > 1:
            self._one_by_one |= set(refused)
            return []
        # YARN keeps the asks that it had accepted before.
        return [name for number in refused for name in list(self._asked[number])[self._sent[number] :]]

    def forget(self) -> None:
        """Note that YARN has lost all asks."""
        self._sent.clear()

    def __bool__(self) -> bool:
        return any(len(asked) != self._sent[number] for number, asked in self._asked.items())

    def take_turn(self) -> tuple[tuple[Ask, ...], tuple[int, ...]]:
        """Return, once, the new asks of the next heartbeat, and the number of each withdrawn one."""
        asks: list[Ask] = []
        withdrawn: list[int] = []
        more = {number: len(asked) - self._sent[number] for number, asked in self._asked.items()}
        self._one_by_one = {number for number in self._one_by_one if more[number] > 0}
        alone = min(self._one_by_one, default=None)
        for ask in self._numbered.values():
            number = ask.number
            if more[number] > 0 and alone in (None, number):
                asks += [ask] * more[number]
                self._one_by_one.discard(number)
            elif more[number] < 0:
                withdrawn += [number] * -more[number]
            else:
                continue
            self._sent[number] = len(self._asked[number])
        return tuple(asks), tuple(withdrawn)


class _AvoidedHosts:
    """Hosts on which too many starts in a row have failed.

    A heartbeat sends the difference between these and the hosts that YARN knows.
    """

    def __init__(self, most_failures: int) -> None:
        self._most = most_failures
        self._failures: Counter[str] = Counter()
        #: Hosts that YARN's client avoids.
        self._sent: set[str] = set()

    def on_works(self, host: str) -> None:
        """Note that a container has started on a host, or that its node is usable again."""
        self._failures.pop(host, None)

    def on_failed(self, host: str) -> None:
        self._failures[host] += 1

    def forget(self) -> None:
        """Note that YARN has lost the list."""
        self._sent.clear()

    def _avoided(self) -> set[str]:
        return {host for host, failures in self._failures.items() if failures >= self._most}

    def __bool__(self) -> bool:
        return self._avoided() != self._sent

    def take_turn(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return, once, the hosts that the next heartbeat adds to YARN's list, and those that it removes."""
        before, self._sent = self._sent, self._avoided()
        return tuple(sorted(self._sent - before)), tuple(sorted(before - self._sent))


class _Phase(Enum):
    #: Not requested from YARN yet: the job has ``max_containers``.
    HELD = auto()
    ASKED = auto()
    STARTING = auto()
    RUNNING = auto()
    #: Released; YARN has not reported its end yet.
    LEAVING = auto()


@dataclass(slots=True)
class _Record:
    request: ContainerRequest
    phase: _Phase = _Phase.HELD
    #: Only in phase ASKED.
    ask: Ask | None = None
    asked_s: float = 0.0
    grant: Grant | None = None
    #: Why EPS released it, as words after its name.
    purpose: str = ""
    #: When YARN will take it, according to its warnings.
    doomed_s: float | None = None
    #: Whether another application, or the next attempt of the application master, needs its capacity.
    for_others: bool = False
    #: When it counts as lost, even if YARN has not reported its end.
    lost_s: float | None = None


class Allocation:
    """Requests of one job, and the containers that YARN granted for them.

    Parameters
    ----------
    placements : mapping
        Kind of container (role or tier) -> placement; other kinds cannot be requested.
    limits : Limits
    max_containers : int
        Most containers at once; further requests wait until one has ended.  0: no limit.
    home : Home, optional
        While its node is being decommissioned, capacity for the next attempt stays free.

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
        #: Requests that have not ended, by container id, in the order requested.
        self._records: dict[str, _Record] = {}
        self._used: set[str] = set()
        #: Granted ones by YARN's name.
        self._by_container: dict[str, _Record] = {}
        self._killed = KilledContainers(self._limits.answer_s)
        #: Containers of earlier attempts, and YARN's answers since, until :meth:`adopt` is called.
        self._kept: tuple[Grant, ...] = ()
        self._unread: list[tuple[AllocateResult, float]] = []
        self._largest: Resource | None = None
        self._counts_cores = True
        self._last = AllocateResult()
        self._headroom = Headroom(self._limits.quiet_s)
        #: An ask was withdrawn or timed out since the last heartbeat: its capacity is not idle.
        self._in_vain = False
        #: Decommissioning node -> when it stops its containers.
        self._doomed_nodes: dict[str, float] = {}
        # ---- output
        self._asks = Asks()
        self._releases: list[str] = []
        #: Released containers whose end YARN has not reported.
        self._unheard: dict[str, None] = {}
        self._avoided = _AvoidedHosts(self._limits.start_failures)
        self._orders: list[Order] = []
        self._events: list[ContainerEvent] = []

    # ---- requests of the job master

    def request(self, request: ContainerRequest, now_s: float) -> None:
        """Request a container.

        Raises
        ------
        ResourceError
            The container id was used before, or its role is unknown.
        """
        container_id = request.container_id
        if container_id in self._used:
            raise ResourceError(f"{container_id} was requested before: a container id is used once")
        if request.kind not in self._placements:
            raise ResourceError(f"{container_id}: unknown role {request.kind!r}")
        record = _Record(request)
        self._add(record)
        wanted = Resource(request.memory_mb, request.vcores)
        if self._largest is not None and not wanted.fits_in(self._largest):
            reason = f"was refused: it needs {wanted}, but YARN grants at most {self._largest} to one container"
            self._end(record, None, reason)
            return
        self._ask_what_fits(now_s)

    def withdraw(self, container_id: str) -> bool:
        """Withdraw a request unless its grant is known here; return whether it was withdrawn."""
        record = self._records.get(container_id)
        if record is None or record.phase not in (_Phase.HELD, _Phase.ASKED):
            return False
        self._in_vain |= record.phase is _Phase.ASKED
        self._end(record, None, WITHDRAWN)
        return True

    def release(self, container_id: str) -> None:
        """Release a container, or withdraw its request; does nothing for an ended or unknown one."""
        if not self.withdraw(container_id):
            self._leave(container_id, RELEASED)

    def kill(self, container_id: str) -> None:
        """Kill a container; does nothing for an ended or unknown one."""
        leaves = self._leave(container_id, KILLED)
        record = self._records.get(container_id)
        if record is None or record.phase is not _Phase.LEAVING or record.grant is None:
            return
        if leaves:
            self._killed.add(container_id, record.grant, record.lost_s is not None)
        self._killed.order(record.grant)
        self._orders.append(StopContainer(record.grant.container, record.grant.node))

    def end(self) -> None:
        """Withdraw all requests and release all containers."""
        for container_id in list(self._records):
            self.release(container_id)

    def finish(self) -> None:
        """End all remaining requests, because the application has ended."""
        for record in list(self._records.values()):
            self._end(record, None, record.purpose or ENDED_WITH_JOB)
        self._events += self._killed.take_ended(math.inf)

    # ---- answers of YARN

    def on_registered(self, registration: Registration) -> None:
        """Note YARN's answer to the registration; :meth:`adopt` must follow if earlier attempts left containers."""
        self._largest, self._counts_cores = registration.largest, registration.counts_cores
        self._kept = registration.kept

    @property
    def kept(self) -> tuple[Grant, ...]:
        """Containers of earlier attempts that were neither adopted nor released yet."""
        return self._kept

    def adopt(self, known: Mapping[str, int], states: Mapping[str, ContainerState]) -> dict[str, int]:
        """Take over the kept containers that are known and running; release the others.

        Parameters
        ----------
        known : mapping
            Container id -> number of its container (:attr:`Grant.pid`), from the job's log.
        states : mapping
            YARN's name of each kept container -> state on its node.

        Returns
        -------
        dict
            The entries of ``known`` whose containers run.
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
                # Never started, or unknown to the job, which requests again what it needs.
                self._give_back(grant.container)
        self._kept, unread, self._unread = (), self._unread, []
        for result, at_s in unread:
            self.on_allocated(result, at_s)
        return adopted

    def on_forgotten(self, registration: Registration) -> None:
        """Send everything again that the restarted ResourceManager has not answered."""
        self._largest, self._counts_cores = registration.largest, registration.counts_cores
        self._asks.forget()
        self._releases = list(self._unheard)
        self._avoided.forget()
        self._take_kept(registration.kept)

    def on_allocated(self, result: AllocateResult, now_s: float) -> None:
        """Process YARN's answer to a heartbeat."""
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
            # Granted and ended within one heartbeat.
            if completed.container in new:
                self._on_completed(completed, now_s)
        if result.preemption is not None:
            self._on_preemption(result.preemption, now_s)
        self.check_deadlines(now_s)
        self._ask_what_fits(now_s)

    def on_refused(self, asks: Sequence[Ask], reason: str) -> None:
        """End the requests of refused asks; if they have several numbers, first find the refused one."""
        for container_id in self._asks.on_refused(asks):
            self._end(self._records[container_id], None, f"was refused by YARN: {reason}")

    def check_deadlines(self, now_s: float, silent_s: float = 0.0) -> None:
        """End the requests that have timed out; ``silent_s`` is how long the ResourceManager has not answered."""
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
        """Note that a stop order is about to be sent; return False if it is not needed any more."""
        return self._killed.on_stopping(order.container, now_s)

    def on_stopped(self, order: StopContainer, *, reached: bool) -> None:
        """Note whether the node of a stop order could be ``reached``, with any answer."""
        self._killed.on_stopped(order.node, reached=reached)
        self._events += self._killed.take_ended()

    def on_started(self, container_id: str) -> None:
        """Note that a node has started a container."""
        record = self._records.get(container_id)
        if record is not None and record.phase is _Phase.STARTING and record.grant is not None:
            record.phase = _Phase.RUNNING
            self._avoided.on_works(record.grant.host)
            self._events.append(Running(container_id, record.grant.pid, record.grant.host))

    def on_start_failed(self, container_id: str, reason: str, *, unreachable: bool = False) -> None:
        """Note that a node refused to start a container, or is ``unreachable``."""
        record = self._records.get(container_id)
        if record is None or record.phase is not _Phase.STARTING or record.grant is None:
            return
        host = record.grant.host
        self._give_back(record.grant.container)
        self._end(record, None, f"could not be started on {host}: {reason}", taken=unreachable)
        self._avoided.on_failed(host)

    # ---- output

    def is_starting(self, container_id: str) -> bool:
        """Return whether a container is still to be started; it may have been released since the order."""
        record = self._records.get(container_id)
        return record is not None and record.phase is _Phase.STARTING

    @property
    def has_containers(self) -> bool:
        """Whether a granted container has not ended."""
        return any(r.grant is not None for r in self._records.values())

    def granted(self) -> dict[str, str]:
        """Return container id -> YARN's name, for each granted container that has not ended."""
        return {name: record.grant.container for name, record in self._records.items() if record.grant is not None}

    def waiting(self, silent_s: float = 0.0) -> dict[str, str]:
        """Return container id -> why its request has not been granted yet, as far as is known."""
        asked = {name: record.ask for name, record in self._records.items() if record.ask is not None}
        return {name: why_not_granted(ask, self._last, silent_s) for name, ask in asked.items()}

    def room(self, now_s: float) -> dict[str, int]:
        """Return how many containers of each kind fit into idle capacity.

        YARN's headroom leaves out capacity beyond the queue's own share, and on nodes with a label.  So if it shows
        none, the result is one container after a longer quiet period.
        """
        sizes = {kind: None if placement.label else placement.size for kind, placement in self._placements.items()}
        found = {kind: self._headroom.fits(size, self._counts_cores, now_s) for kind, size in sizes.items()}
        return {kind: number for kind, number in found.items() if number}

    @property
    def has_turn(self) -> bool:
        """Whether the next heartbeat has changes to send."""
        return bool(self._asks or self._releases or self._avoided)

    def take_turn(self) -> Turn:
        """Return, once, the content of the next heartbeat."""
        turn = Turn(*self._asks.take_turn(), tuple(self._releases), *self._avoided.take_turn())
        self._releases.clear()
        return turn

    def take_orders(self) -> list[Order]:
        """Return, once, the new orders to NodeManagers, in order."""
        orders, self._orders = self._orders, []
        return orders

    def take_events(self) -> list[ContainerEvent]:
        """Return, once, the new events for the job master, in order."""
        events, self._events = self._events, []
        return events

    # ---- steps

    def _ask_what_fits(self, now_s: float) -> None:
        taken = sum(r.phase is not _Phase.HELD for r in self._records.values())
        for record in self._records.values():
            if record.phase is not _Phase.HELD:
                continue
            if self.max_containers and taken >= self.max_containers:
                return
            taken += 1
            request, there = record.request, self._placements[record.request.kind]
            wanted = Resource(request.memory_mb, request.vcores, there.size.others if there.size is not None else ())
            ask = Ask(0, wanted, there.priority, there.nodes, there.label, there.execution)
            record.phase, record.asked_s = _Phase.ASKED, now_s
            record.ask = self._asks.add(request.container_id, ask)

    def _leave(self, container_id: str, purpose: str) -> bool:
        """Release a container; return False if it was released before, or is not granted."""
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
            # Its request was withdrawn meanwhile, or YARN granted more than requested.
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
            # It holds no capacity any more; its end is reported once its node has answered.
            self._forget(record)
            self._events += self._killed.take_ended(now_s)
        else:
            taken = is_taken(completed, record.purpose)
            self._end(record, *exit_of(completed, record.grant, record.purpose), taken)

    def _take_kept(self, kept: Sequence[Grant]) -> None:
        """Release containers that the job does not count on: it was told that those found late had ended."""
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
        # If the members took all free capacity, a full cluster would have none for the master's next attempt.
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
