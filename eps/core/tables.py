"""The two ownership tables: who owns each partition, who holds each split.

Both are values: every change returns a new table.  L0: imports types and errors only.

Source: EPS §3.1.3 (metadata of partitions and splits at the master), §3.1.4 (active and inactive dataset).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eps.core.types import MemberId


def spread_evenly(items: int, members: Sequence[MemberId]) -> tuple[MemberId, ...]:
    """Give ``items`` consecutive ids to ``members`` in order, counts within one, the first get more.

    Source: EPS Fig. 4 (P1 and P2 on S1, D1 to D3 on W1, ...; contents inferred from Figs 6, 8 and 12).
    """
    base, extra = divmod(items, len(members))
    holders: list[MemberId] = []
    for position, member in enumerate(members):
        holders.extend([member] * (base + (position < extra)))
    return tuple(holders)


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """Partition -> owning server (EPS's server list, seen from the partition)."""

    #: Owner of partition ``i`` at position ``i``.  Invariant: every partition has exactly one.
    owners: tuple[MemberId, ...]
    #: Followers of partition ``i``, in name order; empty until a job keeps standing followers.
    followers: tuple[tuple[MemberId, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.owners)

    def owned_by(self, server: MemberId) -> tuple[int, ...]:
        """Return the partitions of ``server``, ascending."""
        return tuple(p for p, owner in enumerate(self.owners) if owner == server)

    def followers_of(self, partition: int) -> tuple[MemberId, ...]:
        """Return the standing followers of a partition."""
        return self.followers[partition] if self.followers else ()

    def followed_by(self, server: MemberId) -> tuple[int, ...]:
        """Return the partitions that ``server`` follows, ascending."""
        return tuple(p for p, names in enumerate(self.followers) if server in names)

    def held_by(self, server: MemberId) -> tuple[int, ...]:
        """Return the partitions that ``server`` owns or follows, ascending."""
        return tuple(sorted({*self.owned_by(server), *self.followed_by(server)}))

    def counts(self, servers: Iterable[MemberId]) -> dict[MemberId, int]:
        """Return how many partitions each of ``servers`` owns."""
        found = dict.fromkeys(servers, 0)
        for owner in self.owners:
            found[owner] = found.get(owner, 0) + 1
        return found

    def with_owners(self, changes: Mapping[int, MemberId], leaving: Iterable[MemberId] = ()) -> PartitionTable:
        """Return the table after ``changes`` (partition -> new owner), without followers on ``leaving`` servers.

        What moves has no follower until it gets one.
        """
        gone = frozenset(leaving)
        owners = tuple(changes.get(p, owner) for p, owner in enumerate(self.owners))
        followers = tuple(
            () if p in changes else tuple(name for name in names if name not in gone)
            for p, names in enumerate(self.followers)
        )
        return PartitionTable(owners, followers)


@dataclass(frozen=True, slots=True)
class SplitTable:
    """Split -> active worker and the workers that hold it inactive (EPS §3.1.4)."""

    #: Active holder of split ``i`` at position ``i``.  Invariant: exactly one.
    active: tuple[MemberId, ...]
    #: Workers that keep split ``i`` on disk only, those that gave it away last at the end; never the active one.
    inactive: tuple[tuple[MemberId, ...], ...]

    @classmethod
    def of(cls, active: Sequence[MemberId]) -> SplitTable:
        """Return the table with these active holders and no inactive copy."""
        return cls(tuple(active), tuple(() for _ in active))

    def __len__(self) -> int:
        return len(self.active)

    def active_on(self, worker: MemberId) -> tuple[int, ...]:
        """Return the splits of the worker's active dataset, ascending."""
        return tuple(s for s, holder in enumerate(self.active) if holder == worker)

    def inactive_on(self, worker: MemberId) -> tuple[int, ...]:
        """Return the splits of the worker's inactive dataset, ascending."""
        return tuple(s for s, holders in enumerate(self.inactive) if worker in holders)

    def counts(self, workers: Iterable[MemberId]) -> dict[MemberId, int]:
        """Return how many active splits each of ``workers`` has."""
        found = dict.fromkeys(workers, 0)
        for holder in self.active:
            found[holder] = found.get(holder, 0) + 1
        return found

    def with_active(self, changes: Mapping[int, MemberId], leaving: Iterable[MemberId] = ()) -> SplitTable:
        """Return the table after splits became active elsewhere.

        A donor that stays keeps an inactive copy (EPS Fig. 8); copies of ``leaving`` workers vanish with them.
        """
        gone = frozenset(leaving)
        active, inactive = list(self.active), list(self.inactive)
        for split in range(len(active)):
            target = changes.get(split, active[split])
            copies = inactive[split]
            if target != active[split]:
                copies += (active[split],)
                active[split] = target
            inactive[split] = tuple(name for name in copies if name not in gone and name != target)
        return SplitTable(tuple(active), tuple(inactive))
