"""Planning of the partitions and splits that move when members are added or removed.

Pure: tables in, :class:`TransferPlan` out.  The same plan is used for dry runs, the log, execution and simulation.

Source: EPS §3.2 (Figs 6 and 8), §3.3 (Figs 11 and 12).

Deviation: the paper gives no rule for several members at once.  One rule reproduces all four figures for any number.
With ``total = q * m + r`` items over the m members after the change, r members get ``q + 1`` and the others q.  The r
are chosen from the added members first, then from those with the most items; ties go to the member that joined first.
The scan for inactive copies (§3.3) is a maximum matching, so that as few splits as possible are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import MemberId, Team
from eps.errors import PlanError


class TakeRule(StrEnum):
    """The order in which a donor's items move."""

    LOWEST_FIRST = "lowest-first"
    HIGHEST_FIRST = "highest-first"


#: Fig. 6: S2 gives P3 and S3 gives P5, the first of each.
PARTITION_TAKE_RULE = TakeRule.LOWEST_FIRST
#: Fig. 8: W1, W2 and W3 give D3, D6 and D9, the last of each.
SPLIT_TAKE_RULE = TakeRule.HIGHEST_FIRST


@dataclass(frozen=True, slots=True)
class Move:
    """One partition or split that moves."""

    #: Partition id or split id.
    item: int
    source: MemberId
    target: MemberId
    #: False if the target already has an inactive copy, so that nothing is sent (Fig. 11).
    sends_bytes: bool = True


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The moves, and the tables after them."""

    partition_moves: tuple[Move, ...]
    split_moves: tuple[Move, ...]
    partitions: PartitionTable
    splits: SplitTable

    def lines(self) -> list[str]:
        """Return one line for each move."""
        texts = []
        for kind, moves in (("partition", self.partition_moves), ("split", self.split_moves)):
            for move in moves:
                how = "" if move.sends_bytes else " (inactive copy there: nothing is sent)"
                texts.append(f"{kind} {move.item}: {move.source} -> {move.target}{how}")
        return texts


def target_counts(
    held: Mapping[MemberId, int], members: Sequence[MemberId], added: Sequence[MemberId]
) -> dict[MemberId, int]:
    """Return how many items each of ``members`` has after the change.

    Parameters
    ----------
    held : mapping
        Items of each member before the change, leaving members included.
    members : sequence
        Members after the change, including ``added``, in the order in which they joined.
    """
    total = sum(held.values())
    base, extra = divmod(total, len(members))
    newcomers = set(added)
    by_claim = sorted(members, key=lambda m: (m not in newcomers, -held.get(m, 0)))
    with_one_more = set(by_claim[:extra])
    return {member: base + (member in with_one_more) for member in members}


def _taken(
    holders: Sequence[MemberId], members: Sequence[MemberId], targets: Mapping[MemberId, int], rule: TakeRule
) -> tuple[list[int], dict[MemberId, int]]:
    """Return the items to move, in giving order, and the free places of each member.

    Parameters
    ----------
    members : sequence
        Members before the change, in giving order.
    """
    items_of: dict[MemberId, list[int]] = {member: [] for member in members}
    for item, holder in enumerate(holders):
        items_of[holder].append(item)
    leaving: list[int] = []
    room = {member: max(0, count - len(items_of.get(member, ()))) for member, count in targets.items()}
    for donor, items in items_of.items():
        surplus = len(items) - targets.get(donor, 0)
        if surplus > 0:
            chosen = items[:surplus] if rule is TakeRule.LOWEST_FIRST else items[-surplus:]
            leaving.extend(chosen)
    return leaving, room


def _deal(items: Sequence[int], room: Mapping[MemberId, int]) -> dict[int, MemberId]:
    """Deal ``items`` round-robin, in the order of ``room``, to the members with free places."""
    left = {member: number for member, number in room.items() if number > 0}
    dealt: dict[int, MemberId] = {}
    queue = list(items)
    while queue:
        for member in list(left):
            if not queue:
                break
            dealt[queue.pop(0)] = member
            left[member] -= 1
            if left[member] == 0:
                del left[member]
    return dealt


def _match_copies(
    items: Sequence[int], holders_of: Mapping[int, Sequence[MemberId]], room: Mapping[MemberId, int]
) -> dict[int, MemberId]:
    """Return a largest assignment of items to members that hold an inactive copy, within their free places."""
    assigned: dict[int, MemberId] = {}
    at: dict[MemberId, list[int]] = {member: [] for member in room}

    def place(item: int, seen: set[MemberId]) -> bool:
        for member in holders_of[item]:
            if member in seen or room.get(member, 0) == 0:
                continue
            seen.add(member)
            if len(at[member]) < room[member]:
                at[member].append(item)
                assigned[item] = member
                return True
            for other in list(at[member]):
                if place(other, seen):
                    at[member].remove(other)
                    at[member].append(item)
                    assigned[item] = member
                    return True
        return False

    for item in items:
        place(item, set())
    return assigned


def plan_partitions(
    table: PartitionTable,
    servers: Sequence[MemberId],
    added: Sequence[MemberId],
    removed: Sequence[MemberId],
    copies: Sequence[MemberId] = (),
) -> tuple[tuple[Move, ...], PartitionTable]:
    """Plan the partitions that move when servers are added or removed.

    Parameters
    ----------
    table : PartitionTable
        Before the change.
    servers : sequence
        Servers before the change in the order in which they joined: with ``removed``, without ``added``.
    copies : sequence, optional
        Partition -> the server that has an earlier copy, to which less is sent; it is preferred if balance allows.

    Raises
    ------
    PlanError
        No server would be left, or there would be more servers than partitions.

    Source
    ------
    EPS §3.2 Fig. 6 (P3 and P5 to S4), §3.3 Fig. 12 (P5 to S1, P6 to S2).
    """
    after = _members_after(servers, added, removed, len(table), "server", "partitions")
    targets = target_counts(table.counts(servers), after, added)
    leaving, room = _taken(table.owners, servers, targets, PARTITION_TAKE_RULE)
    dealt = _match_copies(leaving, {p: (copies[p],) for p in leaving}, room) if copies else {}
    for member in dealt.values():
        room[member] -= 1
    dealt.update(_deal([p for p in leaving if p not in dealt], room))
    moves = tuple(Move(p, table.owners[p], dealt[p]) for p in sorted(dealt))
    return moves, table.with_owners(dealt, removed)


def plan_splits(
    table: SplitTable, workers: Sequence[MemberId], added: Sequence[MemberId], removed: Sequence[MemberId]
) -> tuple[tuple[Move, ...], SplitTable]:
    """Plan the splits that move when workers are added or removed; inactive copies are used if balance allows.

    Raises
    ------
    PlanError
        No worker would be left, or there would be more workers than splits.

    Source
    ------
    EPS §3.2 Fig. 8 (D3, D6 and D9 to W4), §3.3 Fig. 11 (nothing is sent back).
    """
    after = _members_after(workers, added, removed, len(table), "worker", "splits")
    targets = target_counts(table.counts(workers), after, added)
    leaving, room = _taken(table.active, workers, targets, SPLIT_TAKE_RULE)
    leaving.sort()
    order = {worker: position for position, worker in enumerate(after)}
    copies = {
        s: sorted((worker for worker in table.inactive[s] if worker in order), key=order.__getitem__) for s in leaving
    }
    dealt = _match_copies(leaving, copies, room)
    for member in dealt.values():
        room[member] -= 1
    dealt.update(_deal([s for s in leaving if s not in dealt], room))
    moves = tuple(Move(s, table.active[s], dealt[s], dealt[s] not in table.inactive[s]) for s in sorted(dealt))
    return moves, table.with_active(dealt, leaving=removed)


def _members_after(
    members: Sequence[MemberId],
    added: Sequence[MemberId],
    removed: Sequence[MemberId],
    num_items: int,
    role: str,
    items: str,
) -> list[MemberId]:
    gone = set(removed)
    after = [m for m in members if m not in gone] + list(added)
    if not after:
        raise PlanError(f"removing {len(gone)} of {len(members)} {role}s would leave none; a job keeps at least one")
    if len(after) > num_items:
        raise PlanError(
            f"{len(after)} {role}s would share {num_items} {items}; "
            f"a job has at most one {role} for each of its {items}"
        )
    return after


def plan_transfer(
    membership: Membership,
    coming: Team,
    going: Team,
    owners: Sequence[MemberId] | None = None,
    copies: Sequence[MemberId] = (),
) -> TransferPlan:
    """Return what moves when members of one or both roles are added and removed.

    Parameters
    ----------
    owners : sequence of str, optional
        The servers that own partitions afterwards; by default all.
    copies : sequence of str, optional
        See :func:`plan_partitions`.
    """
    found = TransferPlan((), (), membership.partitions, membership.splits)
    if owners is not None:
        holding = set(found.partitions.owners)
        before, after = [name for name in membership.servers if name in holding], frozenset(owners)
        more, fewer = [n for n in owners if n not in holding], [n for n in before if n not in after]
        if more or fewer:
            moves, partitions = plan_partitions(found.partitions, before, more, fewer, copies)
            found = replace(found, partition_moves=moves, partitions=partitions)
    elif coming.servers or going.servers:
        moves, partitions = plan_partitions(found.partitions, membership.servers, coming.servers, going.servers)
        found = replace(found, partition_moves=moves, partitions=partitions)
    if coming.workers or going.workers:
        moves, splits = plan_splits(found.splits, membership.workers, coming.workers, going.workers)
        found = replace(found, split_moves=moves, splits=splits)
    return found


def follow_transfer(membership: Membership) -> TransferPlan:
    """Return the moves that give a standing follower to each partition without one.

    Raises
    ------
    PlanError
        Every partition has one.
    """
    table = membership.partitions
    followers = standing_followers(table.owners, membership.servers, table.followers)
    moves = tuple(
        Move(partition, table.owners[partition], names[0])
        for partition, names in enumerate(followers)
        if names and names != table.followers_of(partition)
    )
    if not moves:
        raise PlanError("every partition has its follower")
    return TransferPlan(moves, (), PartitionTable(table.owners, followers), membership.splits)


def heirs(splits: SplitTable, workers: Sequence[MemberId]) -> SplitTable:
    """Return the split table after a loss, when only ``workers`` are left.

    The worker with the fewest splits takes the next one: if it can, one of which it has an inactive copy (EPS §3.1.4;
    Proteus §3.3).  Ties go to a worker with such copies, then to the first.  Splits of surviving workers do not move.
    """
    loads = {name: splits.counts(workers)[name] for name in workers}
    # Ordered sets.
    left = dict.fromkeys(split for split, holder in enumerate(splits.active) if holder not in loads)
    copies: dict[MemberId, dict[int, None]] = {name: {} for name in workers}
    for split in left:
        for name in loads.keys() & set(splits.inactive[split]):
            copies[name][split] = None
    changes: dict[int, MemberId] = {}
    while left:
        heir = min(workers, key=lambda name: (loads[name], not copies[name]))
        split = next(iter(copies[heir] or left))
        loads[heir] += 1
        changes[split] = heir
        del left[split]
        for name in splits.inactive[split]:
            copies.get(name, {}).pop(split, None)
    active = tuple(changes.get(split, holder) for split, holder in enumerate(splits.active))
    inactive = tuple(
        tuple(name for name in holders if name in loads and name != active[split])
        for split, holders in enumerate(splits.inactive)
    )
    return SplitTable(active, inactive)


def standing_followers(
    owners: Sequence[MemberId], servers: Sequence[MemberId], now: Sequence[Sequence[MemberId]]
) -> tuple[tuple[MemberId, ...], ...]:
    """Return one follower for each partition, on another server than its owner; none if there is only one server.

    Existing followers stay unless a server would follow more than its share.  The followers of one owner's partitions
    are spread over all other servers, so that no single server inherits everything.
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
        # Round-robin, starting after the owner: so the remainders of different owners go to different servers.
        return pairs.get((owner, name), 0), loads[name] >= share, (place[name] - place[owner]) % len(servers)

    for partition, owner in enumerate(owners):
        if partition not in found:
            take(partition, min((n for n in servers if n != owner), key=lambda n, o=owner: rank(o, n)))  # type: ignore[misc]
    return tuple((found[partition],) for partition in range(len(owners)))
