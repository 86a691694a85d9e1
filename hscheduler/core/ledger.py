"""Who holds what on which node: the one owner of resource accounting.

A container is *promised* when a decision needs it, *granted* when its node really has the room, *releasing* from the
decision that takes it back until its job has let go of it, and then gone.  Two amounts of each node follow:

- what is really free: capacity less granted and releasing containers; a promise is granted against this;
- what is planned to be free: capacity less promised and granted ones; decisions are made against this, so that what
  is on its way out can be promised at once.

Free resources are observed, not assumed (EPS §5.1 reads them from the resource manager): a releasing container counts
until its job says that it is gone.

Source: EPS §4; design section 8 (one owner of resource accounting).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from hscheduler.core.resources import NOTHING, Container, Resources, Role
from hscheduler.core.room import FreeIndex, Room


class Hold(StrEnum):
    """How a job holds a container."""

    PROMISED = "promised"
    GRANTED = "granted"
    RELEASING = "releasing"


class Ledger:
    """Containers by node and by job.

    Parameters
    ----------
    nodes : mapping
        Name -> capacity.
    """

    def __init__(self, nodes: Mapping[str, Resources]) -> None:
        self._capacity = dict(nodes)
        self._planned = FreeIndex(nodes)
        self._real = dict(nodes)
        self._containers: dict[str, Container] = {}
        self._holds: dict[str, Hold] = {}
        #: Job -> its containers in the order in which they were promised.
        self._by_job: dict[str, dict[str, None]] = {}
        #: Node -> promises on it, oldest first.
        self._promises: dict[str, dict[str, None]] = {}
        self._num_releasing = 0
        #: Node -> containers that are really on it.
        self._num_on: dict[str, int] = {}
        #: Job -> how many of its containers are on their way out, where some are.
        self._releasing: dict[str, int] = {}
        self._used = NOTHING
        self._total = sum(nodes.values(), NOTHING)

    # ---- reading

    @property
    def capacity(self) -> Mapping[str, Resources]:
        """Node -> its size."""
        return self._capacity

    @property
    def num_releasing(self) -> int:
        """How many containers are on their way out."""
        return self._num_releasing

    def is_releasing(self, job_id: str) -> bool:
        """Return whether containers of a job are on their way out."""
        return job_id in self._releasing

    def room(self) -> Room:
        """Return a trial of placements that begins with what is planned to be free."""
        return Room(self._planned)

    def empty(self) -> Room:
        """Return a trial of placements on nodes where nothing is."""
        return Room(FreeIndex({node: capacity for node, capacity in self._capacity.items() if node in self._planned}))

    def container(self, container_id: str) -> Container:
        """Return a container by its id."""
        return self._containers[container_id]

    def hold(self, container_id: str) -> Hold | None:
        """Return how a container is held; None if it is gone."""
        return self._holds.get(container_id)

    def of_job(self, job_id: str, role: Role | None = None, *holds: Hold) -> list[Container]:
        """Return a job's containers, oldest first: of one role, and held in one of these ways, where that is said."""
        mine = (self._containers[name] for name in self._by_job.get(job_id, ()))
        return [
            container
            for container in mine
            if (role is None or container.role is role) and (not holds or self._holds[container.container_id] in holds)
        ]

    def all(self) -> list[Container]:
        """Return every container that anybody holds: what is left when no job is left was leaked."""
        return list(self._containers.values())

    def total(self) -> Resources:
        """Return what all nodes have."""
        return self._total

    def used(self) -> Resources:
        """Return what is really taken, over all nodes that are there."""
        return self._used

    def num_on(self, node: str) -> int:
        """Return how many containers are really on a node."""
        return self._num_on.get(node, 0)

    # ---- changing

    def promise(self, container: Container) -> None:
        """Promise a container to a job."""
        name = container.container_id
        if name in self._containers:
            raise ValueError(f"container {name} was promised before")
        self._containers[name], self._holds[name] = container, Hold.PROMISED
        self._by_job.setdefault(container.job_id, {})[name] = None
        self._promises.setdefault(container.node, {})[name] = None
        self._plan(container.node, NOTHING - container.resources)

    def grant_what_fits(self, nodes: Iterable[str]) -> list[Container]:
        """Grant promises on these nodes, oldest first, as far as there is really room; return them."""
        granted = []
        for node in nodes:
            for name in list(self._promises.get(node, ())):
                container = self._containers[name]
                if not container.resources.fits_into(self._real[node]):
                    # The oldest first: a smaller one behind it would keep it waiting.
                    break
                self._unpromise(container)
                self._holds[name] = Hold.GRANTED
                self._real[node] = self._real[node] - container.resources
                self._used = self._used + container.resources
                self._num_on[node] = self._num_on.get(node, 0) + 1
                granted.append(container)
        return granted

    def take_back(self, container_id: str) -> Hold:
        """Take a container from its job; return how it was held.

        A promise is gone at once.  What was granted is *releasing* until :meth:`gone`.
        """
        container, before = self._containers[container_id], self._holds[container_id]
        if before is Hold.PROMISED:
            self._remove(container)
        elif before is Hold.GRANTED:
            self._holds[container_id] = Hold.RELEASING
            self._count_releasing(container.job_id, 1)
            self._plan(container.node, container.resources)
        return before

    def keep(self, container_id: str) -> None:
        """Leave a container with its job after all: it could not be released."""
        if self._holds.get(container_id) is Hold.RELEASING:
            container = self._containers[container_id]
            self._holds[container_id] = Hold.GRANTED
            self._count_releasing(container.job_id, -1)
            self._plan(container.node, NOTHING - container.resources)

    def gone(self, container_id: str) -> None:
        """Note that a container is gone, for whatever reason; harmless when repeated."""
        container = self._containers.get(container_id)
        if container is not None:
            self._remove(container)

    def set_node(self, node: str, capacity: Resources) -> None:
        """Note that a node has come, or has another size."""
        before = self._capacity.get(node, NOTHING)
        self._capacity[node] = capacity
        more = capacity - before
        self._total = self._total + more
        self._real[node] = self._real.get(node, NOTHING) + more
        planned = self._planned[node] if node in self._planned else self._releasing_on(node)
        self._planned.set(node, planned + more)

    def _releasing_on(self, node: str) -> Resources:
        there = self.containers_on(node)
        return sum((c.resources for c in there if self._holds[c.container_id] is Hold.RELEASING), NOTHING)

    def in_use(self) -> list[str]:
        """Return the nodes that are counted with: all but those that were retired."""
        return list(self._planned)

    def retire(self, node: str) -> None:
        """Count with a node no more, as one place less in a cluster that places containers itself.

        Nothing is promised there, and it is as large as what is held on it, until that is gone or :meth:`settle` finds
        room elsewhere: which container is on which machine only the cluster knows.

        Raises
        ------
        ValueError
            Something is promised there.
        """
        if node in self._promises:
            raise ValueError(f"node {node} cannot be retired: something is promised there")
        self._planned.drop(node)
        self._cut(node)

    def settle(self) -> None:
        """Count what is held on retired nodes on others, as far as there is really room; promises come after it."""
        if len(self._capacity) == len(self._planned):
            return
        for old in [node for node in self._capacity if node not in self._planned]:
            for container in self.containers_on(old):
                new = self._home_for(container.resources)
                if new is not None:
                    self._move(container, new)

    def _home_for(self, need: Resources) -> str | None:
        nodes = [node for node in self._planned if need.fits_into(self._real[node])]
        # Rather where nobody was promised it.
        return next((node for node in nodes if need.fits_into(self._planned[node])), nodes[0] if nodes else None)

    def _move(self, container: Container, node: str) -> None:
        name, old = container.container_id, container.node
        self._containers[name] = replace(container, node=node)
        self._real[node] = self._real[node] - container.resources
        self._num_on[node] = self._num_on.get(node, 0) + 1
        if self._holds[name] is Hold.GRANTED:
            self._plan(node, NOTHING - container.resources)
        self._real[old] = self._real[old] + container.resources
        self._num_on[old] -= 1
        self._cut(old)

    def _cut(self, node: str) -> None:
        """Have a retired node no larger than what is held on it; it is gone where that is nothing."""
        free = self._real[node]
        self._capacity[node] = self._capacity[node] - free
        self._total = self._total - free
        self._real[node] = NOTHING
        if not self.num_on(node):
            self.drop_node(node)

    def containers_on(self, node: str) -> list[Container]:
        """Return what is held on a node."""
        return [container for container in self._containers.values() if container.node == node]

    def drop_node(self, node: str) -> None:
        """Note that a node is gone; nothing is held on it any more."""
        for container in self.containers_on(node):
            self._remove(container)
        self._total = self._total - self._capacity.pop(node, NOTHING)
        self._real.pop(node, None)
        self._num_on.pop(node, None)
        self._planned.drop(node)

    def overdrawn(self) -> list[str]:
        """Return the nodes on which more is promised than will be free: something there was not let go of."""
        short = (nodes for free, nodes in self._planned.buckets() if free.vcores < 0 or free.memory_mb < 0)
        return [node for nodes in short for node in nodes]

    def promised_on(self, node: str) -> list[Container]:
        """Return the promises on a node, oldest first."""
        return [self._containers[name] for name in self._promises.get(node, ())]

    # ---- inside

    def _plan(self, node: str, more: Resources) -> None:
        if node in self._planned:
            self._planned.set(node, self._planned[node] + more)

    def _count_releasing(self, job_id: str, more: int) -> None:
        self._num_releasing += more
        left = self._releasing.get(job_id, 0) + more
        if left:
            self._releasing[job_id] = left
        else:
            del self._releasing[job_id]

    def _unpromise(self, container: Container) -> None:
        promises = self._promises[container.node]
        del promises[container.container_id]
        if not promises:
            del self._promises[container.node]

    def _remove(self, container: Container) -> None:
        name, hold = container.container_id, self._holds.pop(container.container_id)
        del self._containers[name]
        mine = self._by_job[container.job_id]
        del mine[name]
        if not mine:
            del self._by_job[container.job_id]
        if hold is Hold.PROMISED:
            self._unpromise(container)
        elif container.node in self._real:
            self._real[container.node] = self._real[container.node] + container.resources
            self._used = self._used - container.resources
            self._num_on[container.node] -= 1
            if container.node not in self._planned:
                self._cut(container.node)
        if hold is Hold.RELEASING:
            self._count_releasing(container.job_id, -1)
        else:
            self._plan(container.node, container.resources)

    def check(self) -> None:
        """Raise AssertionError unless the books agree with each other and no node holds more than it has."""
        for node, capacity in self._capacity.items():
            real = planned = NOTHING
            for container in self._containers.values():
                if container.node == node:
                    hold = self._holds[container.container_id]
                    real = real if hold is Hold.PROMISED else real + container.resources
                    planned = planned if hold is Hold.RELEASING else planned + container.resources
            there = sum(self._holds[c.container_id] is not Hold.PROMISED for c in self.containers_on(node))
            assert self.num_on(node) == there, (node, self.num_on(node), there)
            assert self._real[node] == capacity - real, (node, self._real[node], capacity, real)
            if node in self._planned:
                assert self._planned[node] == capacity - planned, (node, self._planned[node], capacity, planned)
            else:
                assert real == capacity and there, f"{node} was retired with {capacity}, and holds {real}"
            assert real.fits_into(capacity), f"{node} holds {real} of {capacity}"
        used = [capacity - self._real[node] for node, capacity in self._capacity.items()]
        assert self._used == sum(used, NOTHING), (self._used, used)
        releasing = Counter(
            self._containers[name].job_id for name, hold in self._holds.items() if hold is Hold.RELEASING
        )
        assert releasing == self._releasing, (releasing, self._releasing)
        assert releasing.total() == self._num_releasing, (releasing, self._num_releasing)
