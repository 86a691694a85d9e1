"""A YARN without processes, behind the facade of ``eps/cluster/yarn/facade.py``: every rare event is a method.

Containers are granted when an application master beats, oldest ask first; nothing happens by itself.  Thread-safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eps.cluster.supervisor.process import CONTAINER_ID
from eps.cluster.yarn.types import (
    AllocateResult,
    Ask,
    Completed,
    ContainerState,
    Execution,
    FinalStatus,
    Grant,
    Launch,
    NodeChange,
    NodeUpdate,
    Preemption,
    Registration,
    Resource,
)
from eps.errors import EpsError, PeerUnavailableError, ResourceError
from eps.hadoop.errors import AskRefusedError, AttemptEndedError, NotRegisteredError

#: Roles and tiers for which a test has containers.
KINDS = ("worker", "server", "server+worker", "reliable", "transient")
LARGEST = Resource(4096, 4)
SMALL = Resource(1024, 1)


@dataclass
class FakeContainer:
    """A container that has been granted and has not ended."""

    grant: Grant
    launch: Launch | None = None

    @property
    def container_id(self) -> str:
        """What the application calls it; empty before it is started."""
        return "" if self.launch is None else self.launch.env.get(CONTAINER_ID, "")


@dataclass
class _News:
    """What the next answer says, once."""

    granted: list[Grant] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)
    nodes: list[NodeUpdate] = field(default_factory=list)
    kept: list[Grant] = field(default_factory=list)
    strict: list[str] = field(default_factory=list)
    negotiable: list[str] = field(default_factory=list)


class FakeYarn:
    """A cluster and one application on it.

    Parameters
    ----------
    nodes : mapping, optional
        ``host:port`` -> capacity.
    """

    def __init__(self, nodes: Mapping[str, Resource] | None = None) -> None:
        self.lock = threading.Condition()
        self.capacity = dict(nodes or {f"node-{n}:8041": Resource(16384, 16) for n in (1, 2, 3)})
        self.containers: dict[str, FakeContainer] = {}
        #: What is to be granted: every ask that was said, and how many of its number are left.
        self.asks: dict[int, Ask] = {}
        self.num_wanted: Counter[int] = Counter()
        #: Every ask and every release that was ever said, in order.
        self.said_asks: list[int] = []
        self.released: list[str] = []
        self.blacklist: set[str] = set()
        self.attempt = 0
        self.registered = False
        self.num_beats = 0
        self.num_registered = 0
        self.progress = 0.0
        self.place: tuple[str, int, str] | None = None
        #: How the application ended, as it said itself.
        self.ended: tuple[FinalStatus, str] | None = None
        #: Nothing is granted while this is set.
        self.hold = False
        #: Containers that are granted beyond each ask.
        self.surplus = 0
        #: Node -> its label; who asks for none may have any.
        self.labels: dict[str, str] = {}
        self._sequence = 1
        self._news = _News()
        self._unusable: set[str] = set()
        self._silent = ""
        #: Asks that came while it was silent.
        self.unheard: set[int] = set()
        #: What a node says when it is asked after a container; None: the truth.
        self.odd_answer: EpsError | None = None
        self._refusal = ""
        self._refused: tuple[int, ...] = ()
        self._unstartable: dict[str, EpsError] = {}
        self._killed = ""

    def clients(self) -> tuple[FakeAm, FakeNm]:
        """Begin an attempt: what the one before has asked is forgotten, its containers stay."""
        with self.lock:
            self.attempt += 1
            self.registered = False
            self.asks.clear()
            self.num_wanted.clear()
            self._news = _News(completed=self._news.completed)
            return FakeAm(self, self.attempt), FakeNm(self)

    # ---- what is there

    def named(self, container_id: str) -> FakeContainer:
        """Return the container that was started for a request."""
        with self.lock:
            found = [c for c in self.containers.values() if c.container_id == container_id]
            assert len(found) == 1, f"{len(found)} containers are {container_id}"
            return found[0]

    def started(self) -> set[str]:
        """Return what the application calls the containers that run."""
        with self.lock:
            return {c.container_id for c in self.containers.values() if c.launch is not None}

    def outstanding(self) -> list[Ask]:
        """Return what is asked for and was not granted."""
        with self.lock:
            return [ask for ask in self.asks.values() for _ in range(self.num_wanted[ask.number])]

    def wait_for(self, what: str, number_of_beats: int = 2, timeout_s: float = 20.0) -> None:
        """Wait until the application master has beaten so often again."""
        with self.lock:
            until = self.num_beats + number_of_beats
            assert self.lock.wait_for(lambda: self.num_beats >= until, timeout_s), f"no beats: {what}"

    def wait_for_unheard(self, number: int, timeout_s: float = 20.0) -> None:
        """Wait until an ask has come while this was silent."""
        with self.lock:
            assert self.lock.wait_for(lambda: number in self.unheard, timeout_s), f"{number} was not asked for"

    # ---- what happens to it

    def crash(self, container_id: str, status: int = 137, diagnostics: str = "") -> None:
        """Let the process of a container end by itself."""
        with self.lock:
            self._complete(self.named(container_id).grant.container, status, diagnostics)

    def preempt(self, *container_ids: str, strict: bool = False) -> None:
        """Want containers back; what is not given back ends with :meth:`take`."""
        with self.lock:
            names = [self.named(container_id).grant.container for container_id in container_ids]
            (self._news.strict if strict else self._news.negotiable).extend(names)

    def take(self, container_id: str, status: int = -102) -> None:
        """Take a container whose time is over."""
        self.crash(container_id, status)

    def decommission(self, node: str, deadline_s: float | None) -> None:
        """Announce that a node is taken out of the cluster."""
        with self.lock:
            self._news.nodes.append(NodeUpdate(node, NodeChange.DECOMMISSIONING, "DECOMMISSIONING", deadline_s))

    def lose_node(self, node: str, *, silently: bool = False) -> None:
        """Lose a node with its containers; ``silently``: nothing is said of the containers."""
        with self.lock:
            self._unusable.add(node)
            self._news.nodes.append(NodeUpdate(node, NodeChange.UNUSABLE, "LOST"))
            for container in [c for c in self.containers.values() if c.grant.node == node]:
                if silently:
                    del self.containers[container.grant.container]
                    self._over(container.grant.container)
                else:
                    self._complete(container.grant.container, -100, "Container released on a *lost* node")

    def bring_back(self, node: str) -> None:
        """Say that a node can be used again."""
        with self.lock:
            self._unusable.discard(node)
            self._news.nodes.append(NodeUpdate(node, NodeChange.USABLE, "RUNNING"))

    def restart(self) -> None:
        """Let the ResourceManager start again: it knows what runs, and has forgotten the rest."""
        with self.lock:
            self.registered = False
            self.num_wanted.clear()
            for container in [c for c in self.containers.values() if c.launch is None]:
                del self.containers[container.grant.container]
            self._news = _News(completed=self._news.completed)

    def grant_unheard(self) -> str:
        """Grant a container of which the application master does not hear before its end."""
        with self.lock:
            return self._new_grant(Ask(1, SMALL), next(iter(self.capacity))).container

    def cut_off(self, node: str) -> None:
        """Let a node be out of the application master's reach, while its containers run."""
        with self.lock:
            self._unusable.add(node)

    def find_late(self) -> str:
        """Find a container of an attempt before, after the application master has registered."""
        with self.lock:
            grant = self._new_grant(Ask(1, SMALL), next(iter(self.capacity)))
            self.containers[grant.container].launch = Launch("found late")
            self._news.kept.append(grant)
            return grant.container

    def be_silent(self, reason: str) -> None:
        """Answer no beat while ``reason`` is not empty."""
        with self.lock:
            self._silent = reason

    def refuse_asks(self, reason: str, *numbers: int) -> None:
        """Refuse the asks of these numbers (none: all) while ``reason`` is not empty."""
        with self.lock:
            self._refusal, self._refused = reason, numbers

    def fail_start(self, container_id: str, reason: str, kind: type[EpsError] = ResourceError) -> None:
        """Let no node start a container for this request."""
        with self.lock:
            self._unstartable[container_id] = kind(reason)

    def end_attempt(self, reason: str) -> None:
        """End the attempt, as a kill of the application does."""
        with self.lock:
            self._killed = reason

    # ---- with the lock held

    def _complete(self, container: str, status: int, diagnostics: str = "") -> None:
        if self.containers.pop(container, None) is not None:
            self._news.completed.append(Completed(container, status, diagnostics))
            self._over(container)

    def _begun(self, container: FakeContainer) -> None:
        """Take note that a container was started; whoever has processes starts one."""

    def _over(self, container: str) -> None:
        """Take note that a container has ended, or is to end."""

    def _new_grant(self, ask: Ask, node: str) -> Grant:
        self._sequence += 1
        name = f"container_1700000000000_0001_{self.attempt:02d}_{self._sequence:06d}"
        grant = Grant(name, node, ask.number, ask.resource, ask.execution)
        self.containers[name] = FakeContainer(grant)
        return grant

    def _free(self, node: str) -> Resource:
        memory_mb, vcores = self.capacity[node].memory_mb, self.capacity[node].vcores
        for container in self.containers.values():
            if container.grant.node == node:
                memory_mb -= container.grant.resource.memory_mb
                vcores -= container.grant.resource.vcores
        return Resource(memory_mb, vcores)

    def _node_for(self, ask: Ask) -> str | None:
        usable = self._usable(ask)
        wanted = [n for n in usable if n.rpartition(":")[0] in ask.nodes]
        others = sorted(usable, key=lambda n: -self._free(n).memory_mb)
        return next((n for n in (*wanted, *others) if ask.resource.fits_in(self._free(n))), None)

    def _usable(self, ask: Ask) -> list[str]:
        there = [n for n in self.capacity if n not in self._unusable and n.rpartition(":")[0] not in self.blacklist]
        return [n for n in there if not ask.label or self.labels.get(n) == ask.label]

    def _make_room(self, ask: Ask) -> None:
        """End opportunistic containers where a guaranteed one fits in their place; nobody is warned."""
        for node in self._usable(ask):
            victims = [c.grant for c in self.containers.values() if c.grant.node == node]
            victims = [grant for grant in victims if grant.execution is Execution.OPPORTUNISTIC]
            free, gained = self._free(node), [grant.resource for grant in victims]
            room = Resource(
                free.memory_mb + sum(r.memory_mb for r in gained), free.vcores + sum(r.vcores for r in gained)
            )
            if ask.resource.fits_in(room):
                for grant in victims:
                    self._complete(grant.container, -108, "Container Killed to make room for Guaranteed Container.")
                return

    def _grant(self) -> None:
        for ask in sorted(self.outstanding(), key=lambda a: (a.priority, a.number)):
            node = None if self.hold else self._node_for(ask)
            if node is None and not self.hold and ask.execution is Execution.GUARANTEED:
                self._make_room(ask)
                node = self._node_for(ask)
            if node is not None:
                self.num_wanted[ask.number] -= 1
                self._news.granted += [self._new_grant(ask, node) for _ in range(1 + self.surplus)]

    def _headroom(self) -> Resource:
        free = [self._free(node) for node in self.capacity if node not in self._unusable]
        return Resource(sum(f.memory_mb for f in free), sum(f.vcores for f in free))


class FakeAm:
    """An application master's side of the ResourceManager."""

    def __init__(self, yarn: FakeYarn, attempt: int) -> None:
        self._yarn = yarn
        self._attempt = attempt
        #: Number -> how many are asked for, as Hadoop's client counts them: it says so when that has changed.
        self._counts: Counter[int] = Counter()
        self._changed: set[int] = set()
        #: What a call that failed was given: the next says it.
        self._unsaid: list[tuple[Sequence[Ask], Sequence[int], Sequence[str], Sequence[str], Sequence[str]]] = []
        self.closed = False

    def register(self, host: str, port: int, tracking_url: str = "") -> Registration:
        with self._yarn.lock:
            self._look()
            self._yarn.registered = True
            self._yarn.num_registered += 1
            self._yarn.place = host, port, tracking_url
            self._unsaid.clear()
            self._counts.clear()
            self._changed.clear()
            return Registration(LARGEST, tuple(c.grant for c in self._yarn.containers.values()))

    def allocate(
        self,
        asks: Sequence[Ask] = (),
        withdrawn: Sequence[int] = (),
        releases: Sequence[str] = (),
        blacklist: Sequence[str] = (),
        unblacklist: Sequence[str] = (),
        progress: float = 0.0,
    ) -> AllocateResult:
        yarn = self._yarn
        with yarn.lock:
            self._look()
            self._unsaid.append((asks, withdrawn, releases, blacklist, unblacklist))
            if yarn._silent:
                yarn.unheard |= {ask.number for ask in asks}
                yarn.lock.notify_all()
                raise PeerUnavailableError(yarn._silent)
            # What was not heard is said again, and judged with the rest.
            said = [ask for turn in self._unsaid for ask in turn[0]]
            if yarn._refusal and any(not yarn._refused or ask.number in yarn._refused for ask in said):
                self._unsaid = [((), *turn[1:]) for turn in self._unsaid]
                raise AskRefusedError(yarn._refusal)
            if not yarn.registered:
                raise NotRegisteredError("the application master is not registered")
            for said in self._unsaid:
                self._take(*said)
            self._unsaid.clear()
            for number in self._changed:
                yarn.num_wanted[number] = self._counts[number]
            yarn.progress = progress
            yarn._grant()
            news, yarn._news = yarn._news, _News()
            # What was granted meanwhile is granted once more: it hears of that later.
            self._changed = {grant.number for grant in news.granted}
            for number in self._changed:
                here = sum(grant.number == number for grant in news.granted)
                self._counts[number] = max(0, self._counts[number] - here)
            yarn.num_beats += 1
            yarn.lock.notify_all()
            preemption = Preemption(tuple(news.strict), tuple(news.negotiable))
            return AllocateResult(
                tuple(news.granted),
                tuple(news.completed),
                tuple(news.nodes),
                preemption if news.strict or news.negotiable else None,
                yarn._headroom(),
                len(yarn.capacity) - len(yarn._unusable),
                tuple(news.kept),
            )

    def unregister(self, status: FinalStatus, diagnostics: str = "") -> None:
        with self._yarn.lock:
            self._look()
            if self._yarn._silent:
                raise PeerUnavailableError(self._yarn._silent)
            if not self._yarn.registered:
                raise NotRegisteredError("the application master is not registered")
            self._yarn.ended = status, diagnostics
            for container in list(self._yarn.containers):
                del self._yarn.containers[container]
                self._yarn._over(container)

    def update_tracking_url(self, url: str) -> None:
        with self._yarn.lock:
            assert self._yarn.place is not None
            self._yarn.place = (*self._yarn.place[:2], url)

    def close(self) -> None:
        self.closed = True

    def _look(self) -> None:
        assert not self.closed, "a call after the end"
        if self._yarn._killed:
            raise AttemptEndedError(self._yarn._killed)
        if self._attempt != self._yarn.attempt:
            raise AttemptEndedError("another attempt has begun")

    def _take(
        self,
        asks: Sequence[Ask],
        withdrawn: Sequence[int],
        releases: Sequence[str],
        blacklist: Sequence[str],
        unblacklist: Sequence[str],
    ) -> None:
        for ask in asks:
            assert self._yarn.asks.setdefault(ask.number, ask) == ask, f"{ask} has the number of another"
            self._yarn.said_asks.append(ask.number)
            self._counts[ask.number] += 1
        for number in withdrawn:
            self._counts[number] = max(0, self._counts[number] - 1)
        self._changed.update(withdrawn, (ask.number for ask in asks))
        for container in releases:
            self._yarn.released.append(container)
            self._yarn._complete(container, -100, "Container released by application")
        self._yarn.blacklist.update(blacklist)
        self._yarn.blacklist.difference_update(unblacklist)


class FakeNm:
    """An application master's side of the NodeManagers."""

    def __init__(self, yarn: FakeYarn) -> None:
        self._yarn = yarn
        self.closed = False

    def start(self, container: str, launch: Launch) -> None:
        with self._yarn.lock:
            found = self._found(container)
            if failure := self._yarn._unstartable.get(launch.env.get(CONTAINER_ID, "")):
                raise failure
            assert found.launch is None, f"{container} is started twice"
            found.launch = launch
            self._yarn._begun(found)

    def stop(self, container: str, node: str) -> None:
        with self._yarn.lock:
            self._reach(node)
            self._found(container)
            self._yarn._complete(container, 137)

    def status(self, container: str) -> ContainerState:
        with self._yarn.lock:
            if self._yarn.odd_answer is not None:
                raise self._yarn.odd_answer
            found = self._yarn.containers.get(container)
            if found is None:
                return ContainerState.COMPLETE
            self._reach(found.grant.node)
            return ContainerState.UNKNOWN if found.launch is None else ContainerState.RUNNING

    def close(self) -> None:
        self.closed = True

    def _found(self, container: str) -> FakeContainer:
        found = self._yarn.containers.get(container)
        if found is None:
            raise ResourceError(f"{container} is not known")
        self._reach(found.grant.node)
        return found

    def _reach(self, node: str) -> None:
        if node in self._yarn._unusable:
            raise PeerUnavailableError(f"{node} cannot be reached")
