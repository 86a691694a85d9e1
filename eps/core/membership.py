"""The numbered membership, its two ownership tables, and the three lists derived from it.

Workers and servers derive their server list, worker list and clock list from one numbered value.  So lists can be
compared by number and cannot drift apart.  All values are immutable: a change returns a new one.

Source: EPS §2.2 and §3.1.1-3.1.4, Figs 1, 4, 7 and 9.  Design: one value instead of four separately updated lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from eps.core.types import Address, MemberId, Role


def spread_evenly(items: int, members: Sequence[MemberId]) -> tuple[MemberId, ...]:
    """Assign ``items`` consecutive ids to ``members`` in order; counts differ by at most one, the first get more.

    Source: EPS Fig. 4 (P1 and P2 on S1, D1 to D3 on W1, ...; contents inferred from Figs 6, 8 and 12).
    """
    base, extra = divmod(items, len(members))
    holders: list[MemberId] = []
    for position, member in enumerate(members):
        holders.extend([member] * (base + (position < extra)))
    return tuple(holders)


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """Partition -> owning server (the server list of EPS, indexed by partition)."""

    #: Owner of partition ``i`` at position ``i``.  Invariant: every partition has exactly one.
    owners: tuple[MemberId, ...]
    #: Followers of partition ``i``, in name order; empty if the job has no standing followers.
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

        A partition that moves has no follower until one is assigned.
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
    """Split -> its active worker, and the workers that hold an inactive copy (EPS §3.1.4)."""

    #: Active worker of split ``i``.  Invariant: exactly one.
    active: tuple[MemberId, ...]
    #: Workers that hold split ``i`` on disk only, most recent donor last.  Never contains the active one.
    inactive: tuple[tuple[MemberId, ...], ...]

    @classmethod
    def of(cls, active: Sequence[MemberId]) -> SplitTable:
        """Return a table with these active workers and no inactive copies."""
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
        """Return the table after ``changes`` (split -> new active worker).

        A donor that stays keeps an inactive copy (EPS Fig. 8); copies on ``leaving`` workers are dropped.
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


_CUT = "cut-"


def cut_name(clock: int) -> str:
    """Return the name of a cut among the restore points of memberships."""
    return f"{_CUT}{clock:08d}"


def cut_clock(name: str) -> int | None:
    """Return the clock of a cut from its name; None if it names a checkpoint, or is empty."""
    return int(name.removeprefix(_CUT)) if name.startswith(_CUT) else None


@dataclass(frozen=True)
class Membership:
    """The members of a job and what each holds, from a clock on."""

    #: Grows by one with every committed plan and every recovery; the first is 1.
    version: int
    #: First clock that is computed under this membership.
    from_clock: int
    #: In the order in which they joined.
    workers: tuple[MemberId, ...]
    #: In the order in which they joined.
    servers: tuple[MemberId, ...]
    partitions: PartitionTable
    splits: SplitTable
    #: Invariant: keys are exactly workers and servers.
    addresses: Mapping[MemberId, Address] = field(default_factory=dict)
    #: After a loss: per split, the first clock that some server may lack or whose result is lost.  Such a membership
    #: takes effect at once, also for messages in flight.  Empty if a plan made the membership.
    split_clocks: tuple[int, ...] = ()
    #: How often this run of the job has rolled back to a checkpoint.  Messages of earlier incarnations are void.
    incarnation: int = 0
    #: The checkpoint or cut with which the incarnation began; empty if it began from the seed.
    checkpoint: str = ""
    #: Number of the latest recovery up to this membership.
    recovery: int = 0
    #: Whether it begins an incarnation: every member discards what happened after the checkpoint.
    goes_back: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "addresses", MappingProxyType(dict(self.addresses)))

    @property
    def cut(self) -> int | None:
        """The clock of the cut with which the incarnation began; None if it began otherwise."""
        return cut_clock(self.checkpoint)

    @property
    def takes_over(self) -> bool:
        """Return whether it was made because members were lost."""
        return bool(self.split_clocks)

    @property
    def members(self) -> tuple[MemberId, ...]:
        """The workers, followed by the servers."""
        return self.workers + self.servers

    def of_role(self, role: Role) -> tuple[MemberId, ...]:
        """Return the members of one role, in the order in which they joined."""
        return self.workers if role is Role.WORKER else self.servers

    def holdings(self, role: Role) -> dict[MemberId, list[int]]:
        """Return the worker list or the server list: active splits or partitions, ascending (EPS Figs 1, 7, 9)."""
        found: dict[MemberId, list[int]] = {name: [] for name in self.of_role(role)}
        for item, name in enumerate(self.splits.active if role is Role.WORKER else self.partitions.owners):
            found[name].append(item)
        return found

    def validate(self) -> None:
        """Assert the invariants of a membership (design section 3)."""
        assert len(set(self.members)) == len(self.members), self.members
        assert self.workers and self.servers, "a job has at least one worker and one server"
        assert set(self.addresses) == set(self.members), "addresses are those of the members"
        assert set(self.partitions.owners) <= set(self.servers), "every owner is a server of the job"
        workers = set(self.workers)
        assert set(self.splits.active) <= workers, "every active holder is a worker of the job"
        for split, holders in enumerate(self.splits.inactive):
            assert set(holders) <= workers, f"split {split} is inactive on a worker that is gone"
            assert self.splits.active[split] not in holders, f"split {split} is active and inactive on one worker"

    def balance(self, *, with_backups: bool = False) -> tuple[int, int]:
        """Return the spread of partitions and of splits: largest minus smallest load, at most 1 after a plan.

        Parameters
        ----------
        with_backups : bool
            Whether servers that own nothing are BackupPSs, and not counted.
        """
        owners = set(self.partitions.owners)
        servers = [name for name in self.servers if name in owners or not with_backups]
        partitions = self.partitions.counts(servers).values()
        splits = self.splits.counts(self.workers).values()
        return max(partitions) - min(partitions), max(splits) - min(splits)
