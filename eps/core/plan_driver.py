"""Drives one plan through its phases: what must be said to whom, and what is still missing.

The outstanding orders of a phase are derived from what is missing, never remembered, so that sending them again (a lost
message, a member that connects again) is the same call.  L0, pure.

Source: EPS §3.2-3.3, Figs 5 and 10; design section 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from eps.core import messages as m
from eps.core.members import MemberPhase
from eps.core.membership import Membership
from eps.core.planner import Move, TransferPlan, plan_partitions, plan_splits
from eps.core.reconfig import Operation, Phase, Plan
from eps.core.tables import PartitionTable
from eps.core.take_over import standing_followers
from eps.core.types import Address, MemberId, Role, Team
from eps.errors import PlanError, TransferError

#: A removal aborts the addition before it once that has waited this long for containers (design section 4).
GROWTH_PATIENCE_S = 1.0
#: A newcomer that has its container registers within this time, or its plan is aborted.
REGISTRATION_PATIENCE_S = 60.0
#: In the place of a checksum, where nothing has to be sent.
STANDING = "standing"
#: (member, order) pairs.
Orders = list[tuple[MemberId, m.Order]]


def plan_transfer(membership: Membership, coming: Team, going: Team) -> TransferPlan:
    """Return what moves when some members come and others go, workers, servers or both."""
    found = TransferPlan((), (), membership.partitions, membership.splits)
    if coming.servers or going.servers:
        moves, partitions = plan_partitions(found.partitions, membership.servers, coming.servers, going.servers)
        found = replace(found, partition_moves=moves, partitions=partitions)
    if coming.workers or going.workers:
        moves, splits = plan_splits(found.splits, membership.workers, coming.workers, going.workers)
        found = replace(found, split_moves=moves, splits=splits)
    return found


def follow_transfer(membership: Membership) -> TransferPlan:
    """Return what gives a standing follower to each partition that has none.

    Raises
    ------
    PlanError
        All have one.
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


@dataclass
class PlanDriver:
    """The plan that is changing the job now."""

    plan: Plan
    #: The membership that it starts from.
    before: Membership
    transfer: TransferPlan
    #: Addresses of added members, as they register.
    newcomers: dict[MemberId, Address] = field(default_factory=dict)
    #: Added members that have a container -> how far they are.
    phases: dict[MemberId, MemberPhase] = field(default_factory=dict)
    #: When a container was requested or granted last.
    waits_since_s: float = 0.0
    lists_updated: set[MemberId] = field(default_factory=set)
    #: Partition -> checksum, as its donor and as its receiver said.
    sent: dict[int, str] = field(default_factory=dict)
    received: dict[int, str] = field(default_factory=dict)
    #: Splits that are in memory where they are to be active.
    loaded: set[int] = field(default_factory=set)
    promoted: set[int] = field(default_factory=set)
    acked: set[MemberId] = field(default_factory=set)
    released: set[MemberId] = field(default_factory=set)
    exited: set[MemberId] = field(default_factory=set)
    #: Members that ended while the plan was on its way; nothing is expected of them any more.
    lost: set[MemberId] = field(default_factory=set)

    def __post_init__(self) -> None:
        for move in self.transfer.partition_moves:
            if move.target in self.before.partitions.followers_of(move.item):
                # A standing follower has it already.
                self.sent[move.item] = self.received[move.item] = STANDING

    def with_granted(self, now_s: float) -> PlanDriver:
        """Return the way on with those newcomers alone that have a container; no member has been told of any yet."""
        coming = (tuple(n for n in self.plan.coming.of_role(role) if n in self.granted) for role in Role)
        self.plan.coming = Team(*coming)
        self.plan.transfer = plan_transfer(self.before, self.plan.coming, self.plan.going)
        found = replace(self, transfer=self.plan.transfer, sent={}, received={})
        found._pass_first_barrier(now_s)
        return found

    def follow(self, name: MemberId, phase: MemberPhase, address: Address | None, now_s: float) -> None:
        """Take in how far a newcomer is."""
        if phase is MemberPhase.REQUESTED:
            self.phases.pop(name, None)
            self.waits_since_s = now_s
            return
        if name not in self.phases:
            self.waits_since_s = now_s
        self.phases[name] = phase
        if address is not None:
            self.newcomers[name] = address
        self._pass_first_barrier(now_s)

    def _pass_first_barrier(self, now_s: float) -> None:
        """Pass barrier 1 of an addition once the container of every newcomer is up."""
        up = {name for name, phase in self.phases.items() if phase is not MemberPhase.GRANTED}
        if up == set(self.plan.added):
            self.plan.barriers_s.setdefault("B1", now_s)

    @property
    def granted(self) -> set[MemberId]:
        """Added members that have a container."""
        return set(self.phases)

    @property
    def concerned(self) -> tuple[MemberId, ...]:
        """All that take part: members before the change, and those that come."""
        return tuple(name for name in self.before.members + self.plan.added if name not in self.lost)

    def address_of(self, name: MemberId) -> Address:
        """Return where a member, old or new, listens."""
        return self.newcomers[name] if name in self.newcomers else self.before.addresses[name]

    def next_membership(self, from_clock: int) -> Membership:
        """Return the membership that the commit announces."""
        gone = set(self.plan.removed)
        everyone = [n for n in self.before.members if n not in gone] + list(self.plan.added)
        by_role = {
            role: tuple(n for n in self.before.of_role(role) if n not in gone) + self.plan.coming.of_role(role)
            for role in Role
        }
        return Membership(
            version=self.before.version + 1,
            from_clock=from_clock,
            workers=by_role[Role.WORKER],
            servers=by_role[Role.SERVER],
            partitions=self.transfer.partitions,
            splits=self.transfer.splits,
            addresses={name: self.address_of(name) for name in everyone},
            incarnation=self.before.incarnation,
            checkpoint=self.before.checkpoint,
            recovery=self.before.recovery,
        )

    # ---- what is missing

    def missing(self) -> list[str]:
        """Return what the current phase waits for, as sentences; empty when it is complete."""
        phase = self.plan.phase
        if phase is Phase.PROPOSED:
            return [f"{name} to register" for name in self.plan.added if name not in self.newcomers]
        if phase is Phase.PREPARED:
            return [f"{name} to update its lists" for name in self.concerned if name not in self.lists_updated]
        if phase is Phase.LISTS_UPDATED:
            waits = [f"partition {v.item} to be copied to {v.target}" for v in self._partitions_to_copy()]
            return waits + [f"split {v.item} to be copied to {v.target}" for v in self._splits_to_copy()]
        if phase is Phase.COMMITTED:
            waits = [f"{name} to acknowledge the membership" for name in self.concerned if name not in self.acked]
            waits += [f"partition {v.item} to be promoted on {v.target}" for v in self._unpromoted()]
            return waits
        if phase is Phase.SWITCHED:
            waits = [f"{name} to release" for name in self.concerned if name not in self.released]
            return waits + [f"{name} to end" for name in self._to_end()]
        return []

    def waits_for(self) -> str:
        """Return what the current phase waits for, in few words; empty when it is complete."""
        missing = self.missing()
        if not missing:
            return ""
        if self.plan.phase is Phase.PROPOSED and (count := len(set(self.plan.added) - self.granted)):
            return f"{count} container{'s' if count > 1 else ''}"
        return missing[0] + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")

    def _partitions_to_copy(self) -> list[Move]:
        return [v for v in self.transfer.partition_moves if v.item not in self.received or v.item not in self.sent]

    def _splits_to_copy(self) -> list[Move]:
        return [v for v in self.transfer.split_moves if v.item not in self.loaded]

    def _unpromoted(self) -> list[Move]:
        if self.plan.membership is None or self.plan.change.operation is Operation.FOLLOW:
            return []
        owners = self.plan.membership.partitions.owners
        moves = self.transfer.partition_moves
        return [v for v in moves if v.item not in self.promoted and owners[v.item] == v.target]

    def take_over(self, membership: Membership, lost: Iterable[MemberId], *, rolled_back: bool) -> None:
        """Go on under the membership that takes over from lost members in the place of the plan's own."""
        self.lost.update(lost)
        self.plan.membership = membership
        self.acked.clear()
        if rolled_back:
            self.promoted.update(v.item for v in self.transfer.partition_moves)

    def overdue(self, now_s: float, shrink: str, last: bool) -> str:
        """Return why an addition has waited too long for its newcomers, or nothing.

        Parameters
        ----------
        now_s : float
        shrink : str
            The removal that waits behind it, which may be what frees the containers; empty for none.
        last : bool
            Only the last iteration is left to train, and it waits for this plan.
        """
        if self.plan.phase is not Phase.PROPOSED:
            return ""
        if self.granted == set(self.plan.added):
            late = now_s - self.waits_since_s >= REGISTRATION_PATIENCE_S and self.missing()
            return f"waited {REGISTRATION_PATIENCE_S:g} s for {self.missing()[0]}" if late else ""
        if now_s - self.plan.reached_s[Phase.PROPOSED] < GROWTH_PATIENCE_S:
            return ""
        if shrink:
            return f"still waiting for containers when {shrink} was asked"
        return "still waiting for containers when the last iteration was due" if last else ""

    # ---- what to say

    def orders(self) -> Orders:
        """Return the orders whose effect is still missing in the current phase."""
        phase, plan_id = self.plan.phase, self.plan.turn
        if phase is Phase.PREPARED:
            added = tuple(
                m.Newcomer(n, self.newcomers[n], frozenset({role}))
                for role in Role
                for n in self.plan.coming.of_role(role)
            )
            late = [n for n in self.concerned if n not in self.lists_updated]
            # An added server gets the memory of its partitions ready.
            coming: dict[MemberId, list[int]] = {name: [] for name in late}
            for move in self.transfer.partition_moves:
                if move.target in self.plan.added and move.target in coming:
                    coming[move.target].append(move.item)
            return [(n, m.UpdateLists(plan_id, added, tuple(coming[n]))) for n in late]
        if phase is Phase.LISTS_UPDATED:
            return self._transfer_orders()
        if phase is Phase.COMMITTED and self.plan.membership is not None:
            waiting = {n for n in self.concerned if n not in self.acked} | {v.target for v in self._unpromoted()}
            order = m.UpdateMembership(plan_id, self.plan.membership)
            return [(n, order) for n in self.concerned if n in waiting]
        if phase is Phase.SWITCHED:
            release = m.ReleasePlan(plan_id, self.plan.removed)
            orders: Orders = []
            if self.plan.membership is not None and self.plan.membership.takes_over:
                # A member that leaves is not in it, and may owe something to those that take over.
                told = m.UpdateMembership(plan_id, self.plan.membership)
                orders += [(n, told) for n in self._to_end() if n not in self.acked and n not in self.released]
            orders += [(n, release) for n in self.concerned if n not in self.released]
            return orders + [(name, m.Shutdown("removed from the job")) for name in self.ending()]
        return []

    def ending(self) -> tuple[MemberId, ...]:
        """Return the removed members that are drained and may end.

        A server is drained when the workers are past their last exchange with it, too: an answer of its own that got
        lost is asked for again, at the same server.
        """
        drained = self._to_end()
        if not set(self.before.workers) <= self.released | self.lost:
            drained = [name for name in drained if name in self.plan.going.workers]
        return tuple(n for n in drained if n in self.released)

    def _to_end(self) -> list[MemberId]:
        return [n for n in self.plan.removed if n not in self.exited and n not in self.lost]

    def _transfer_orders(self) -> Orders:
        plan_id, splits = self.plan.turn, self._splits_to_copy()
        to_load: dict[MemberId, list[int]] = {}
        for move in splits:
            if not move.sends_bytes:
                # The copy is there (Fig. 11); it is read before the commit, so that no clock waits for the disk.
                to_load.setdefault(move.target, []).append(move.item)
        orders: Orders = [(s, m.SendPartitions(plan_id, t)) for s, t in _by_source(self, self._partitions_to_copy())]
        orders += [(s, m.SendSplits(plan_id, t)) for s, t in _by_source(self, (v for v in splits if v.sends_bytes))]
        return orders + [(t, m.LoadSplits(plan_id, tuple(items))) for t, items in sorted(to_load.items())]

    # ---- what was heard

    def hear(self, report: m.Report) -> None:
        """Take a report in.

        Raises
        ------
        TransferError
            A checksum at the receiver differs from the sender's.
        """
        plan_id = self.plan.turn
        match report:
            case m.MembershipAcked(name, version):
                if self.plan.membership is not None and version >= self.plan.membership.version:
                    self.acked.add(name)
            case m.ListsUpdated(name, reported) if reported == plan_id:
                self.lists_updated.add(name)
            case m.PartitionSent(_, reported, item, size_bytes, checksum) if reported == plan_id:
                if item not in self.sent:
                    self.sent[item] = checksum
                    self.plan.bytes_moved += size_bytes
                    _check(self, item)
            case m.PartitionCaughtUp(_, reported, item, checksum) if reported == plan_id:
                self.received.setdefault(item, checksum)
                _check(self, item)
            case m.SplitReceived(_, reported, item, size_bytes) if reported == plan_id:
                if item not in self.loaded:
                    self.loaded.add(item)
                    self.plan.bytes_moved += size_bytes
            case m.PartitionPromoted(_, reported, item) if reported == plan_id:
                self.promoted.add(item)
            case m.PlanReleased(name, reported) if reported == plan_id:
                self.released.add(name)
            case _:
                pass


def _by_source(driver: PlanDriver, moves: Iterable[Move]) -> list[tuple[MemberId, tuple[m.Target, ...]]]:
    found: dict[MemberId, list[m.Target]] = {}
    for move in moves:
        found.setdefault(move.source, []).append(m.Target(move.item, move.target, driver.address_of(move.target)))
    return [(source, tuple(targets)) for source, targets in sorted(found.items())]


def _check(driver: PlanDriver, item: int) -> None:
    left, arrived = driver.sent.get(item), driver.received.get(item)
    if left is not None and arrived is not None and left != arrived:
        raise TransferError(f"partition {item} left with checksum {left} and arrived with {arrived}")
