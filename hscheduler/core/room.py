"""What is free on which node, and how containers would fit: node by node, never as a sum over the cluster.

Source: EPS Algorithm 1 lines 3-4 and 31.  Deviation: the paper adds free resources up over the cluster; eight times
4 GB free on eight nodes need not hold one container of 8 GB, so containers are placed on nodes, each on the one with
the least free that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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

    def set(self, node: str, free: Resources) -> None:
        """Say what is free on a node, also a new one."""
        self.drop(node)
        self._free[node] = free
        self._buckets.setdefault(free, {})[node] = None

    def drop(self, node: str) -> None:
        """Forget a node; harmless for one that is not known."""
        before = self._free.pop(node, None)
        if before is not None:
            bucket = self._buckets[before]
            del bucket[node]
            if not bucket:
                del self._buckets[before]

    def buckets(self) -> Iterator[tuple[Resources, Mapping[str, None]]]:
        """Yield each amount that is free somewhere, with its nodes."""
        yield from self._buckets.items()


@dataclass
class Room:
    """A trial of placements: what would be free if containers came and went; the index itself stays as it is."""

    index: FreeIndex
    _changed: dict[str, Resources] = field(default_factory=dict)

    def copy(self) -> Room:
        """Return a trial that begins where this one is."""
        return Room(self.index, dict(self._changed))

    def free(self, node: str) -> Resources:
        """Return what is free on a node; it may be below nothing where more was promised than there is."""
        found = self._changed.get(node)
        return self.index[node] if found is None else found

    def is_full(self) -> bool:
        """Return whether no node has a processor left, in a trial that nothing was changed in."""
        return not any(free.vcores > 0 and free.memory_mb > 0 for free, _ in self.index.buckets())

    def give(self, node: str, resources: Resources) -> None:
        """Let something become free; nothing where the node is gone."""
        if node in self.index:
            self._changed[node] = self.free(node) + resources

    def take(self, need: Resources) -> str | None:
        """Place a container; return its node, the one with the least free that holds it, or None."""
        best: tuple[Resources, str] | None = None
        for node, free in self._changed.items():
            if need.fits_into(free) and (best is None or free < best[0]):
                best = free, node
        for free, nodes in self.index.buckets():
            if need.fits_into(free) and (best is None or free < best[0]):
                unchanged = next((node for node in nodes if node not in self._changed), None)
                if unchanged is not None:
                    best = free, unchanged
        if best is None:
            return None
        free, node = best
        self._changed[node] = free - need
        return node
