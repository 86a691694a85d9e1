"""Which members take over what from lost ones, and from which clock on.

A recovery asks all that are left for an :class:`~eps.core.messages.Inventory` and derives one membership from the
answers.  Nothing is remembered that cannot be asked: the clock from which heirs compute follows from what the servers
hold, so no member has to have reported it before.  L0, pure.

Source: design section 4 ("a crash is a promotion nobody planned"), section 5 (exactly once when a worker dies after
pushing to some servers); Proteus §3.3 (the previous owner takes over); Spotnik §4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.settings import CoreSettings
from eps.core.tables import PartitionTable, SplitTable, spread_evenly
from eps.core.types import Address, MemberId, Role


@dataclass
class Inquiry:
    """The question to the rest, after members were lost, what it holds; and the answers."""

    number: int
    #: Member -> how it ended.
    lost: dict[MemberId, str] = field(default_factory=dict)
    inventories: dict[MemberId, m.Inventory] = field(default_factory=dict)
    #: Requested because no member of a role is left; they join with the membership that takes over.
    newcomers: dict[MemberId, Address | None] = field(default_factory=dict)
    #: Newcomer -> its role.
    roles: dict[MemberId, Role] = field(default_factory=dict)
    #: What members hold is of no use: a checkpoint could not be read when the job had begun to go back to it.
    must_go_back: bool = False
    #: Who could not read it, and why.
    unreadable: str = ""

    def survivors(self, before: Membership) -> tuple[MemberId, ...]:
        """Return the members of ``before`` that are left."""
        return tuple(name for name in before.members if name not in self.lost)

    def missing(self, before: Membership) -> tuple[MemberId, ...]:
        """Return the members that have not answered, and the newcomers that have not registered."""
        silent = tuple(name for name in self.survivors(before) if name not in self.inventories)
        return silent + tuple(name for name, address in self.newcomers.items() if address is None)

    def orders(self, before: Membership) -> list[tuple[MemberId, m.Order]]:
        """Return the question for the members that have not answered."""
        order = m.TakeInventory(self.number)
        return [(name, order) for name in self.survivors(before) if name not in self.inventories]

    def hear(self, inventory: m.Inventory) -> None:
        """Take an answer in; one to an earlier question says too little."""
        if inventory.recovery == self.number and inventory.name not in self.lost:
            self.inventories[inventory.name] = inventory

    def empty_roles(self, before: Membership) -> tuple[Role, ...]:
        """Return the roles of which no member is left or on its way."""
        left = {role: [n for n in before.of_role(role) if n not in self.lost] for role in Role}
        return tuple(role for role in Role if not left[role] and role not in self.roles.values())


@dataclass(frozen=True, slots=True)
class Start:
    """Where a job that must go back begins again: a checkpoint, or the seeded start."""

    #: Name of the checkpoint; empty for the seeded start.
    checkpoint: str
    #: All splits begin again here, also those that a checkpoint under SSP or ASP has further: servers refuse what they
    #: have, but what was measured there may have been lost.
    clock: int


def take_over(before: Membership, inquiry: Inquiry, settings: CoreSettings) -> Membership | None:
    """Return the membership without the lost members, or None where the only copy of a partition went with them.

    Under BSP it holds from the first clock that some partition lacks.  No survivor is beyond it: who computes clock c
    has read every partition at c.  A member that leaves by a committed plan is not asked: the membership takes its
    splits away at once, and what it pushed of them counts where it arrived.  It is not beyond that clock either: a plan
    is committed when its receivers have all that was served before, and from then on nothing is served that they lack.

    Parameters
    ----------
    before : Membership
        The newest one; where a plan is committed and not finished, the plan's, which then holds early.
    inquiry : Inquiry
        Complete: nothing is missing.
    """
    holders = _holders(before, inquiry, settings)
    if holders is None:
        return None
    from_clock = min(min(held.next_clock) for _, held in holders)
    if settings.bsp and any(held.oldest_clock > from_clock for _, held in holders):
        # Heirs must read that clock everywhere.
        holders = _holders(before, inquiry, settings, readable=from_clock)
        if holders is None:
            return None
    owners = tuple(name for name, _ in holders)
    clocks = [held.next_clock for _, held in holders]
    split_clocks = tuple(min(column) for column in zip(*clocks, strict=True))
    # One that was never told to follow has nothing: what it was told before may have been lost on its way.
    holding = {n: {held.partition for held in v.partitions} for n, v in inquiry.inventories.items()}
    followers = tuple(
        # A new owner does not feed the follower of the one before.
        tuple(f for f in before.partitions.followers_of(p) if p in holding.get(f, ()) and f != owner)
        if owner == before.partitions.owners[p]
        else ()
        for p, owner in enumerate(owners)
    )
    return _membership(before, inquiry, PartitionTable(owners, followers), min(split_clocks), split_clocks)


def measured_again(after: Membership, next_clocks: Sequence[int]) -> Membership:
    """Return a membership that takes over, with which no split begins beyond its first result that is lost.

    Under SSP and ASP a checkpoint has some splits further than the clock at which all begin again.  The worker that
    was to measure those clocks once more may have been lost before; servers refuse what they have of them.

    Parameters
    ----------
    after : Membership
        Of :func:`take_over`, under SSP or ASP.
    next_clocks : sequence of int
        Per split, the first clock of which the job master has no result.
    """
    split_clocks = tuple(map(min, after.split_clocks, next_clocks))
    return replace(after, from_clock=min(split_clocks), split_clocks=split_clocks)


def roll_back(before: Membership, inquiry: Inquiry, start: Start) -> Membership:
    """Return the membership with which all members go back to ``start``, in a new incarnation."""
    servers = _left(before.servers, inquiry, Role.SERVER)
    owners = spread_evenly(len(before.partitions), servers)
    followers = standing_followers(owners, servers, ()) if before.partitions.followers else ()
    table = PartitionTable(owners, followers)
    split_clocks = (start.clock,) * len(before.splits.active)
    found = _membership(before, inquiry, table, start.clock, split_clocks)
    return replace(found, incarnation=before.incarnation + 1, checkpoint=start.checkpoint, goes_back=True)


def _membership(
    before: Membership,
    inquiry: Inquiry,
    partitions: PartitionTable,
    from_clock: int,
    split_clocks: tuple[int, ...],
) -> Membership:
    workers, servers = (_left(before.of_role(role), inquiry, role) for role in (Role.WORKER, Role.SERVER))
    registered = {name: address for name, address in inquiry.newcomers.items() if address is not None}
    known = {**before.addresses, **registered}
    return Membership(
        version=before.version + 1,
        from_clock=from_clock,
        workers=workers,
        servers=servers,
        partitions=partitions,
        splits=heirs(before.splits, workers),
        addresses={name: known[name] for name in workers + servers},
        split_clocks=split_clocks,
        incarnation=before.incarnation,
        checkpoint=before.checkpoint,
        recovery=inquiry.number,
    )


def _left(members: Sequence[MemberId], inquiry: Inquiry, role: Role) -> tuple[MemberId, ...]:
    new = [n for n, address in inquiry.newcomers.items() if address is not None and inquiry.roles[n] is role]
    return tuple([n for n in members if n not in inquiry.lost] + new)


def _holders(
    before: Membership, inquiry: Inquiry, settings: CoreSettings, readable: int | None = None
) -> list[tuple[MemberId, m.HeldPartition]] | None:
    """Return for each partition who shall own it and what it has; None where one of them is lost.

    ``readable``: only who has it at this clock.
    """
    need = max((v.read_clock for v in inquiry.inventories.values() if v.name in before.workers), default=None)
    found: list[tuple[MemberId, m.HeldPartition]] = []
    for partition, owner in enumerate(before.partitions.owners):
        copies = {
            name: held
            for name, inventory in inquiry.inventories.items()
            for held in inventory.partitions
            if held.partition == partition
        }
        trusted = [owner, *(n for n, held in copies.items() if held.holding == "owner")]
        trusted += before.partitions.followers_of(partition)
        if settings.bsp:
            # Any version that no worker has read beyond will do: the clock's contributions are pushed to it again.
            trusted += sorted(copies, key=lambda name: (-min(copies[name].next_clock), name))
        for name in trusted:
            held = copies.get(name)
            if held is not None and readable is not None and not held.oldest_clock <= readable <= min(held.next_clock):
                continue
            if held is not None and (not settings.bsp or need is None or min(held.next_clock) >= need):
                found.append((name, held))
                break
        else:
            return None
    return found


def heirs(splits: SplitTable, workers: Sequence[MemberId]) -> SplitTable:
    """Return the table when only ``workers`` are left.

    A split goes to the worker with the fewest, before others to one that has an inactive copy (EPS §3.1.4; Proteus
    §3.3), then to the first.  Splits of workers that are left stay where they are.
    """
    loads = {name: splits.counts(workers)[name] for name in workers}
    changes: dict[int, MemberId] = {}
    for split, holder in enumerate(splits.active):
        if holder in loads:
            continue
        copies = splits.inactive[split]
        heir = min(workers, key=lambda name: (loads[name], name not in copies))
        loads[heir] += 1
        changes[split] = heir
    active = tuple(changes.get(split, holder) for split, holder in enumerate(splits.active))
    inactive = tuple(
        tuple(name for name in holders if name in loads and name != active[split])
        for split, holders in enumerate(splits.inactive)
    )
    return SplitTable(active, inactive)


def standing_followers(
    owners: Sequence[MemberId], servers: Sequence[MemberId], now: Sequence[Sequence[MemberId]]
) -> tuple[tuple[MemberId, ...], ...]:
    """Return one follower for each partition, on another server than its owner; none where there is one server only.

    Followers that there are stay, as far as no server follows more than its share; the partitions of one owner are
    followed by all others in turn, so that no single server inherits everything.
    """
    if len(servers) < 2:
        return tuple(() for _ in owners)
    share = -(-len(owners) // len(servers))
    loads = dict.fromkeys(servers, 0)
    #: (owner, follower) -> partitions.
    pairs: dict[tuple[MemberId, MemberId], int] = {}
    found: dict[int, MemberId] = {}

    def take(partition: int, follower: MemberId) -> None:
        found[partition] = follower
        loads[follower] += 1
        pair = owners[partition], follower
        pairs[pair] = pairs.get(pair, 0) + 1

    for partition, standing in enumerate(now):
        if standing and standing[0] in loads and standing[0] != owners[partition] and loads[standing[0]] < share:
            take(partition, standing[0])
    place = {name: number for number, name in enumerate(servers)}

    def rank(owner: MemberId, name: MemberId) -> tuple[int, bool, int]:
        # Round-robin from the owner on: what is left over of each owner's partitions goes to the one after it.
        return pairs.get((owner, name), 0), loads[name] >= share, (place[name] - place[owner]) % len(servers)

    for partition, owner in enumerate(owners):
        if partition not in found:
            take(partition, min((n for n in servers if n != owner), key=lambda n, o=owner: rank(o, n)))  # type: ignore[misc]
    return tuple((found[partition],) for partition in range(len(owners)))
