"""The ledger of containers by node and by job: the only place that accounts for resources.

A decision *promises* a container.  It is *granted* when its node has enough free resources.  It is *releasing* from
the decision that takes it back until its job reports the release.  Each node has two amounts:

- really free: capacity less granted and releasing containers.  Promises are granted against it;
- planned to be free: capacity less promised and granted containers.  Decisions use it, so that containers that are
  being released can be promised at once.

Free resources are observed, not assumed: a releasing container counts until its job reports that it is gone.  (EPS
§5.1 reads free resources from the resource manager.)

Source: EPS §4; design section 8 (one owner of resource accounting).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from hscheduler.core.placement import FreeIndex, FreeSpace
from hscheduler.core.resources import NOTHING, Container, Resources, Role


class Hold(StrEnum):
    """State of a container that a job holds."""

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
        #: Node -> number of granted and releasing containers on it.
        self._num_on: dict[str, int] = {}
        #: Job -> number of its releasing containers, if any.
        self._releasing: dict[str, int] = {}
        self._used = NOTHING
        self._total = sum(nodes.values(), NOTHING)

    # ---- reading

    @property
    def capacity(self) -> Mapping[str, Resources]:
        """Node -> its capacity."""
        return self._capacity

    @property
    def num_releasing(self) -> int:
        """Number of releasing containers."""
        return self._num_releasing

    def is_releasing(self, job_id: str) -> bool:
        """Return whether a job has releasing containers."""
        return job_id in self._releasing

    def room(self) -> FreeSpace:
        """Return the planned free space, for trial placements."""
        return FreeSpace(self._planned)

    def empty(self) -> FreeSpace:
        """Return the space of an empty cluster, for trial placements."""
        return FreeSpace(
            FreeIndex({node: capacity for node, capacity in self._capacity.items() if node in self._planned})
        )

    def container(self, container_id: str) -> Container:
        """Return a container by its id."""
        return self._containers[container_id]

    def hold(self, container_id: str) -> Hold | None:
        """Return the state of a container; None if it is gone."""
        return self._holds.get(container_id)

    def of_job(self, job_id: str, role: Role | None = None, *holds: Hold) -> list[Container]:
        """Return a job's containers, oldest first; filtered by role and by state if these are given."""
        mine = (self._containers[name] for name in self._by_job.get(job_id, ()))
        return [
            container
            for container in mine
            if (role is None or container.role is role) and (not holds or self._holds[container.container_id] in holds)
        ]

    def all(self) -> list[Container]:
        """Return all held containers; those left when no job is left were leaked."""
        return list(self._containers.values())

    def total(self) -> Resources:
        """Return the capacity of all nodes together."""
        return self._total

    def used(self) -> Resources:
        """Return the resources of granted and releasing containers on all nodes."""
        return self._used

    def num_on(self, node: str) -> int:
        """Return the number of granted and releasing containers on a node."""
        return self._num_on.get(node, 0)

    # ---- changing

    def promise(self, container: Container) -> None:
        """Promise a container to a job."""
        name = container.container_id
        if name in self._containers:
            raise ValueError(f"container {name} is already promised")
        self._containers[name], self._holds[name] = container, Hold.PROMISED
        self._by_job.setdefault(container.job_id, {})[name] = None
        self._promises.setdefault(container.node, {})[name] = None
        self._plan(container.node, NOTHING - container.resources)

    def grant_what_fits(self, nodes: Iterable[str]) -> list[Container]:
        """Grant promises on these nodes, oldest first, as far as resources are really free; return them."""
        granted = []
        for node in nodes:
            for name in list(self._promises.get(node, ())):
                container = self._containers[name]
                if not container.resources.fits_into(self._real[node]):
                    # A smaller promise behind it must not starve the oldest one.
                    break
                self._unpromise(container)
                self._holds[name] = Hold.GRANTED
                self._real[node] = self._real[node] - container.resources
                self._used = self._used + container.resources
                self._num_on[node] = self._num_on.get(node, 0) + 1
                granted.append(container)
        return granted

    def take_back(self, container_id: str) -> Hold:
        """Take a container from its job; return its former state.

        A promise is removed at once.  A granted container is *releasing* until :meth:`gone`.
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
        """Return a releasing container to its job, which could not release it."""
        if self._holds.get(container_id) is Hold.RELEASING:
            container = self._containers[container_id]
            self._holds[container_id] = Hold.GRANTED
            self._count_releasing(container.job_id, -1)
            self._plan(container.node, NOTHING - container.resources)

    def gone(self, container_id: str) -> None:
        """Remove a container that is gone.  Idempotent."""
        container = self._containers.get(container_id)
        if container is not None:
            self._remove(container)

    def set_node(self, node: str, capacity: Resources) -> None:
        """Add a node, or change its capacity."""
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
        """Return all nodes except retired ones."""
        return list(self._planned)

    def retire(self, node: str) -> None:
        """Retire a node: a cluster that places containers itself has one slot less.

        The capacity of a retired node shrinks to its held containers.  It disappears when these are gone, or when
        :meth:`settle` moves them to other slots.  Only the cluster knows which container is on which machine.

        Raises
        ------
        ValueError
            A container is promised on the node.
        """
        if node in self._promises:
            raise ValueError(f"node {node} cannot be retired: containers are promised on it")
        self._planned.drop(node)
        self._cut(node)

    def settle(self) -> None:
        """Move containers from retired nodes to others with enough free resources, before promises are granted."""
        if len(self._capacity) == len(self._planned):
            return
        for old in [node for node in self._capacity if node not in self._planned]:
            for container in self.containers_on(old):
                new = self._home_for(container.resources)
                if new is not None:
                    self._move(container, new)

    def _home_for(self, need: Resources) -> str | None:
        nodes = [node for node in self._planned if need.fits_into(self._real[node])]
        # Prefer a node where no promise needs the space.
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
        """Shrink a retired node to its held containers; remove it when there are none."""
        free = self._real[node]
        self._capacity[node] = self._capacity[node] - free
        self._total = self._total - free
        self._real[node] = NOTHING
        if not self.num_on(node):
            self.drop_node(node)

    def containers_on(self, node: str) -> list[Container]:
        """Return the containers on a node, promised ones included."""
        return [container for container in self._containers.values() if container.node == node]

    def drop_node(self, node: str) -> None:
        """Remove a node with all containers on it."""
        for container in self.containers_on(node):
            self._remove(container)
        self._total = self._total - self._capacity.pop(node, NOTHING)
        self._real.pop(node, None)
        self._num_on.pop(node, None)
        self._planned.drop(node)

    def overdrawn(self) -> list[str]:
        """Return the nodes on which more is promised than will be free, since a release failed there."""
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
        """Raise AssertionError if the totals are inconsistent or a node holds more than its capacity."""
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
                assert real == capacity and there, f"retired node {node} has capacity {capacity}, but holds {real}"
            assert real.fits_into(capacity), f"{node} holds {real} of {capacity}"
        used = [capacity - self._real[node] for node, capacity in self._capacity.items()]
        assert self._used == sum(used, NOTHING), (self._used, used)
        releasing = Counter(
            self._containers[name].job_id for name, hold in self._holds.items() if hold is Hold.RELEASING
        )
        assert releasing == self._releasing, (releasing, self._releasing)
        assert releasing.total() == self._num_releasing, (releasing, self._num_releasing)
