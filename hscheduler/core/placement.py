"""Free resources by node, and the placement of containers (best fit).

Source: EPS Algorithm 1 lines 3-4 and 31.  Deviation: the paper sums free resources over the cluster.  Eight nodes with
4 GB free each cannot hold one container of 8 GB.  So each container is placed on a node: the one with the least free
resources that holds it.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence
from types import MappingProxyType

from hscheduler.core.resources import Resources


class FreeIndex:
    """Nodes indexed by their free resources.

    Nodes with the same free resources share a bucket, and a cluster has few distinct amounts.  So a lookup takes as
    long with ten thousand nodes as with ten.

    Parameters
    ----------
    nodes : mapping
        Name -> free resources.  The order breaks ties between nodes with the same amount.
    """

    def __init__(self, nodes: Mapping[str, Resources]) -> None:
        self._free = dict(nodes)
        #: Free resources -> nodes, in the order in which they reached that amount.
        self._buckets: dict[Resources, dict[str, None]] = {}
        for name, free in self._free.items():
            self._buckets.setdefault(free, {})[name] = None

    def __getitem__(self, node: str) -> Resources:
        return self._free[node]

    def __contains__(self, node: object) -> bool:
        return node in self._free

    def __iter__(self) -> Iterator[str]:
        return iter(self._free)

    def __len__(self) -> int:
        return len(self._free)

    def set(self, node: str, free: Resources) -> None:
        """Set the free resources of a node; adds it if it is new."""
        self.drop(node)
        self._free[node] = free
        bucket = self._buckets.get(free)
        if bucket is None:
            self._buckets[free] = {node: None}
        else:
            bucket[node] = None

    def drop(self, node: str) -> None:
        """Remove a node.  Idempotent."""
        before = self._free.pop(node, None)
        if before is not None:
            bucket = self._buckets[before]
            del bucket[node]
            if not bucket:
                del self._buckets[before]

    def buckets(self) -> ItemsView[Resources, dict[str, None]]:
        """Return (free resources, nodes) pairs; read-only."""
        return self._buckets.items()


class FreeSpace:
    """Free space under trial placements; the index itself does not change.

    Parameters
    ----------
    index : FreeIndex
        Must not change while this object is in use.
    changed : mapping, optional
        Node -> free resources that override the index.
    """

    def __init__(self, index: FreeIndex, changed: Mapping[str, Resources] = MappingProxyType({})) -> None:
        self._index = index
        self._changed = FreeIndex(changed)
        #: Free resources -> iterator over the index's nodes not visited yet, and the next of them.
        self._unchanged: dict[Resources, tuple[Iterator[str], str | None]] = {}

    def copy(self) -> FreeSpace:
        """Return an independent copy."""
        return FreeSpace(self._index, {node: self._changed[node] for node in self._changed})

    def free(self, node: str) -> Resources:
        """Return the free resources of a node; negative if more is promised than it has."""
        return self._changed[node] if node in self._changed else self._index[node]

    def num_free(self) -> int:
        """Return the free processors on nodes with free memory, without trial placements."""
        return sum(
            free.vcores * len(nodes) for free, nodes in self._index.buckets() if free.vcores > 0 and free.memory_mb > 0
        )

    def give(self, node: str, resources: Resources) -> None:
        """Free resources on a node; ignored if the node is gone."""
        if node in self._index:
            self._changed.set(node, self.free(node) + resources)

    def take(self, need: Resources) -> str | None:
        """Place a container on the node with the least free resources that holds it; return the node or None."""
        vcores, memory_mb = need.vcores, need.memory_mb
        best: tuple[Resources, str] | None = None
        for free, nodes in self._changed.buckets():
            if vcores <= free.vcores and memory_mb <= free.memory_mb and (best is None or free < best[0]):
                best = free, next(iter(nodes))
        for free, nodes in self._index.buckets():
            if vcores <= free.vcores and memory_mb <= free.memory_mb and (best is None or free < best[0]):
                node = self._first_unchanged(free, nodes)
                if node is not None:
                    best = free, node
        if best is None:
            return None
        free, node = best
        self._changed.set(node, free - need)
        return node

    def take_often(self, needs: Sequence[tuple[Resources, int]], most: int) -> int:
        """Place copies of this set of containers, at most ``most``; return how many fit."""
        for number in range(most):
            if any(self.take(need) is None for need, count in needs for _ in range(count)):
                return number
        return most

    def _first_unchanged(self, free: Resources, nodes: Mapping[str, None]) -> str | None:
        """Return the first node of a bucket without trial placements; earlier nodes are not visited again."""
        rest, node = self._unchanged.get(free, (None, None))
        if rest is None:
            rest = iter(nodes)
            node = next(rest, None)
        while node is not None and node in self._changed:
            node = next(rest, None)
        self._unchanged[free] = rest, node
        return node
