"""What is free on which node, and how containers would fit: node by node, never as a sum over the cluster.

Source: EPS Algorithm 1 lines 3-4 and 31.  Deviation: the paper adds free resources up over the cluster; eight times
4 GB free on eight nodes need not hold one container of 8 GB, so containers are placed on nodes, each on the one with
the least free that holds it.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence
from types import MappingProxyType

from hscheduler.core.resources import Resources


class FreeIndex:
    """The free resources of every node, found by amount.

    Nodes with equally much free share a bucket, and a cluster has few different amounts: finding a node takes as
    long with ten thousand nodes as with ten.

    Parameters
    ----------
    nodes : mapping
        Name -> what is free on it.  Their order decides between nodes that are alike.
    """

    def __init__(self, nodes: Mapping[str, Resources]) -> None:
        self._free = dict(nodes)
        #: Amount -> nodes, in the order in which they came to have it.
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
        """Say what is free on a node, also a new one."""
        self.drop(node)
        self._free[node] = free
        bucket = self._buckets.get(free)
        if bucket is None:
            self._buckets[free] = {node: None}
        else:
            bucket[node] = None

    def drop(self, node: str) -> None:
        """Forget a node; harmless for one that is not known."""
        before = self._free.pop(node, None)
        if before is not None:
            bucket = self._buckets[before]
            del bucket[node]
            if not bucket:
                del self._buckets[before]

    def buckets(self) -> ItemsView[Resources, dict[str, None]]:
        """Return each amount that is free somewhere, with its nodes; not to be changed."""
        return self._buckets.items()


class Room:
    """A trial of placements: what would be free if containers came and went; the index itself stays as it is.

    Parameters
    ----------
    index : FreeIndex
        Not to be changed while the trial lasts.
    changed : mapping, optional
        Node -> what is free there instead.
    """

    def __init__(self, index: FreeIndex, changed: Mapping[str, Resources] = MappingProxyType({})) -> None:
        self._index = index
        self._changed = FreeIndex(changed)
        #: Amount -> the nodes of the index that were not looked at yet, and the next of them.
        self._unchanged: dict[Resources, tuple[Iterator[str], str | None]] = {}

    def copy(self) -> Room:
        """Return a trial that begins where this one is."""
        return Room(self._index, {node: self._changed[node] for node in self._changed})

    def free(self, node: str) -> Resources:
        """Return what is free on a node; it may be below nothing where more was promised than there is."""
        return self._changed[node] if node in self._changed else self._index[node]

    def num_free(self) -> int:
        """Return how many processors are free on nodes that have memory too, before anything was changed."""
        return sum(
            free.vcores * len(nodes) for free, nodes in self._index.buckets() if free.vcores > 0 and free.memory_mb > 0
        )

    def give(self, node: str, resources: Resources) -> None:
        """Let something become free; nothing where the node is gone."""
        if node in self._index:
            self._changed.set(node, self.free(node) + resources)

    def take(self, need: Resources) -> str | None:
        """Place a container; return its node, the one with the least free that holds it, or None."""
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
        """Place these containers together again and again, at most so often; return how often they fitted."""
        for number in range(most):
            if any(self.take(need) is None for need, count in needs for _ in range(count)):
                return number
        return most

    def _first_unchanged(self, free: Resources, nodes: Mapping[str, None]) -> str | None:
        """Return the first node of a bucket that was not changed; those before it are never looked at again."""
        rest, node = self._unchanged.get(free, (None, None))
        if rest is None:
            rest = iter(nodes)
            node = next(rest, None)
        while node is not None and node in self._changed:
            node = next(rest, None)
        self._unchanged[free] = rest, node
        return node
