"""Recovery from lost members: asks the survivors, derives one membership from their answers, counts losses.

A recovery asks every survivor for an :class:`~eps.core.messages.Inventory`.  It remembers nothing that members can
answer.  In particular, the clock from which heirs compute follows from what the servers hold, not from earlier reports.
A job that keeps losing members without progress ends.  Pure.

Source: design section 4 ("a crash is a promotion nobody planned"), section 5 (exactly once when a worker dies after
pushing to some servers); Proteus §3.3 (the previous owner takes over); Spotnik §4.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from eps.core import events as e
from eps.core import messages as m
from eps.core.members import REPORTED_WAIT_S, Member, containers_waited_for
from eps.core.membership import Membership, PartitionTable, cut_clock, spread_evenly
from eps.core.planner import heirs, standing_followers
from eps.core.types import Address, CoreSettings, MemberId, Role


@dataclass
class Inquiry:
    """The question to the survivors after a loss, and their answers."""

    number: int
    #: Member -> how it ended.
    lost: dict[MemberId, str] = field(default_factory=dict)
    inventories: dict[MemberId, m.Inventory] = field(default_factory=dict)
    #: Requested because no member of a role is left; they join with the next membership.
    newcomers: dict[MemberId, Address | None] = field(default_factory=dict)
    #: Newcomer -> its role.
    roles: dict[MemberId, Role] = field(default_factory=dict)
    #: Whether members' state is useless, because a checkpoint could not be read after the rollback to it had begun.
    must_roll_back: bool = False
    #: Which member could not read it, and why.
    unreadable: str = ""
    #: The first clock whose results the job master lacks.
    from_clock: int = 0

    def survivors(self, before: Membership) -> tuple[MemberId, ...]:
        """Return the members of ``before`` that are not lost."""
        return tuple(name for name in before.members if name not in self.lost)

    def missing(self, before: Membership) -> tuple[MemberId, ...]:
        """Return the members that have not answered and the newcomers that have not registered."""
        silent = tuple(name for name in self.survivors(before) if name not in self.inventories)
        return silent + tuple(name for name, address in self.newcomers.items() if address is None)

    def asked(self, before: Membership) -> tuple[MemberId, ...]:
        """Return the members whose answers are due: first the workers, then, once all have answered, the servers.

        A worker that has answered reads no more, so the servers' later answers cover everything that was read.  If they
        were asked at once, a server could answer before a push completes a clock that a worker still reads.
        """
        silent = tuple(name for name in self.survivors(before) if name not in self.inventories)
        return tuple(name for name in silent if name in before.workers) or silent

    def orders(self, before: Membership) -> list[tuple[MemberId, m.Order]]:
        """Return the question as orders for the members whose answers are due."""
        order = m.TakeInventory(self.number, self.from_clock)
        return [(name, order) for name in self.asked(before)]

    def hear(self, inventory: m.Inventory) -> None:
        """Store an answer; answers to earlier questions are ignored."""
        if inventory.recovery == self.number and inventory.name not in self.lost:
            self.inventories[inventory.name] = inventory

    def empty_roles(self, before: Membership) -> tuple[Role, ...]:
        """Return the roles without a survivor or requested newcomer."""
        left = {role: [n for n in before.of_role(role) if n not in self.lost] for role in Role}
        return tuple(role for role in Role if not left[role] and role not in self.roles.values())


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The point from which a job restarts after a rollback: a checkpoint, or its seed."""

    #: Name of the checkpoint; empty for the seed.
    checkpoint: str
    #: The clock from which every split restarts, even if a checkpoint under SSP or ASP has more of it: servers refuse
    #: what they have, but the results of those clocks may be lost.
    clock: int


def take_over(before: Membership, inquiry: Inquiry, settings: CoreSettings) -> Membership | None:
    """Return the membership without the lost members, or None if no usable copy of a partition is left.

    Under BSP it holds from the first clock that some partition lacks.  No survivor is beyond that clock: a worker that
    computes clock c has read every partition at c, and the servers answered after the workers.

    A member that leaves by a committed plan is not asked.  The membership reassigns its splits at once, and what it
    pushed of them counts where it arrived.  It is not beyond that clock either: a plan commits when its receivers have
    everything that was served before, and afterwards nothing is served that they lack.

    Parameters
    ----------
    before : Membership
        The newest one; that of a committed, unfinished plan takes effect early.
    inquiry : Inquiry
        Complete: all survivors have answered, all newcomers have registered.
    """
    holders = _holders(before, inquiry, settings)
    if holders is None:
        return None
    from_clock = min(min(held.next_clock) for _, held in holders)
    if settings.bsp and any(held.oldest_clock > from_clock for _, held in holders):
        # Heirs must read that clock everywhere.  A copy that a plan has just sent may lack it: the job rolls back.
        holders = _holders(before, inquiry, settings, readable=from_clock)
        if holders is None:
            return None
    owners = tuple(name for name, _ in holders)
    clocks = [held.next_clock for _, held in holders]
    split_clocks = tuple(min(column) for column in zip(*clocks, strict=True))
    # A follower that never received the order to follow has no copy.
    holding = {n: {held.partition for held in v.partitions} for n, v in inquiry.inventories.items()}
    followers = tuple(
        # A new owner does not update the follower of the old one.
        tuple(f for f in before.partitions.followers_of(p) if p in holding.get(f, ()) and f != owner)
        if owner == before.partitions.owners[p]
        else ()
        for p, owner in enumerate(owners)
    )
    return _membership(before, inquiry, PartitionTable(owners, followers), min(split_clocks), split_clocks)


def with_lost_results(after: Membership, next_clocks: Sequence[int]) -> Membership:
    """Return ``after`` with split clocks lowered so that every lost result is computed again.

    Under SSP and ASP a checkpoint may hold more of some splits than the clock from which all restart.  The worker that
    should have recomputed those results may have been lost; servers refuse the contributions that they already have.

    Parameters
    ----------
    after : Membership
        From :func:`take_over`, under SSP or ASP.
    next_clocks : sequence of int
        Per split, the first clock for which the job master has no result.
    """
    split_clocks = tuple(map(min, after.split_clocks, next_clocks))
    return replace(after, from_clock=min(split_clocks), split_clocks=split_clocks)


def cut_owners(before: Membership, inquiry: Inquiry, point: RestorePoint) -> tuple[MemberId, ...] | None:
    """Return the owner of each partition after a rollback to a cut; None if a copy is lost.

    An owner that is left has its own copy; a lost one's partitions go to a server that keeps theirs, the BackupPS.
    """
    kept: dict[int, list[MemberId]] = {}
    for name, inventory in sorted(inquiry.inventories.items()):
        for cut in inventory.cuts:
            if cut.clock == cut_clock(point.checkpoint) and name in before.servers:
                kept.setdefault(cut.partition, []).append(name)
    owners: list[MemberId] = []
    for partition, owner in enumerate(before.partitions.owners):
        copies = kept.get(partition)
        if not copies:
            return None
        owners.append(owner if owner in copies else min(copies, key=owners.count))
    return tuple(owners)


def roll_back(
    before: Membership,
    inquiry: Inquiry,
    point: RestorePoint,
    owners: Sequence[MemberId] | None = None,
    safe: Collection[MemberId] = (),
) -> Membership:
    """Return the membership with which all members roll back to ``point``, in a new incarnation.

    Parameters
    ----------
    owners : sequence of str, optional
        The owner of each partition in a cut; by default servers read a checkpoint, or begin with the seed.
    safe : collection of str
        The servers that then own the partitions, if any of them is left; by default all.
    """
    if owners is None:
        left = _left(before.servers, inquiry, Role.SERVER)
        servers = tuple(name for name in left if name in safe) or left
        owners = spread_evenly(len(before.partitions), servers)
        followers = standing_followers(owners, servers, ()) if before.partitions.followers else ()
    else:
        followers = tuple(() for _ in before.partitions.followers)
    table = PartitionTable(tuple(owners), followers)
    split_clocks = (point.clock,) * len(before.splits.active)
    found = _membership(before, inquiry, table, point.clock, split_clocks)
    return replace(found, incarnation=before.incarnation + 1, checkpoint=point.checkpoint, goes_back=True)


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
    """Return for each partition its new owner and what that holds; None if no usable copy of some partition is left.

    With ``readable``, only copies that can be read at this clock are usable.
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
            # Any version that no worker has read beyond is enough: its missing contributions are pushed again.
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


#: A job ends after this many incidents without a complete clock between them: then the job itself is the cause.
MOST_INCIDENTS = 12
#: The same limit during the start, lower because no training is lost.
MOST_INCIDENTS_AT_START = 3
#: Losses within this time of the first are one incident: a crashed machine takes all its members with it.
INCIDENT_S = 2.0


class LossOutcome(StrEnum):
    """The outcome of the loss of a member."""

    #: Undecided, or the job ended before.
    OPEN = "open"
    TAKEN_OVER = "taken-over"
    ROLLED_BACK = "rolled-back"
    #: It held nothing yet, so another was requested.
    REPLACED = "replaced"


@dataclass
class Loss:
    """A lost member, for the report."""

    name: MemberId
    reason: str
    #: Number of complete clocks at the loss.
    clock: int
    at_s: float
    #: The clock to which the job rolled back; None if it did not.
    back_to: int | None = None
    outcome: LossOutcome = LossOutcome.OPEN


@dataclass(frozen=True, slots=True)
class GoingBack:
    """A rollback to a checkpoint or to the seed, for the report."""

    #: Number of complete clocks before, and the clock from which the job restarted.
    clock: int
    to: int
    at_s: float
    #: Lost member -> how it ended.
    lost: Mapping[MemberId, str]
    #: Which member could not read which checkpoint, and why; empty if that was not the cause.
    unreadable: str = ""
    #: The servers among the lost members, whose parameters are lost with them.
    servers: tuple[MemberId, ...] = ()
    #: The checkpoint or cut; empty for the seed.
    point: str = ""


class Recovery:
    """The recoveries of a job, and its losses."""

    def __init__(self, first_clock: int) -> None:
        #: The inquiry in flight.
        self.inquiry: Inquiry | None = None
        #: All lost members, oldest first.
        self.losses: list[Loss] = []
        #: All rollbacks, oldest first.
        self.goings_back: list[GoingBack] = []
        #: Why the job cannot continue; empty while it can.
        self.fatal = ""
        #: Why a new inquiry must begin; empty if none is needed.
        self.must_ask = ""
        #: Causes of the next inquiry: lost members -> how they ended, and the member that cannot read a checkpoint.
        self._lost: dict[MemberId, str] = {}
        self._unreadable = ""
        self._number = 0
        #: Container of a silent member -> what messages call it, and why it was given up.
        self._silent: dict[str, tuple[str, str]] = {}
        #: Incidents since the last complete clock, and when the latest of them began.
        self._incidents = 0
        self._incident_s = -math.inf
        #: The first incomplete clock at the last incident, or the clock of a later rollback.
        self._counted_at = first_clock

    # ---- losses

    def lost(self, member: Member, loss: Loss, *, own: bool, silent: bool, starts: bool) -> list[e.Command]:
        """Record the loss of a member.

        Parameters
        ----------
        own : bool
            Whether the loss counts against the job: its container was not taken away.
        silent : bool
            Whether it stopped responding: it hangs or its machine is lost.  How its container ends decides whether the
            loss counts.
        starts : bool
            Whether the job has no membership yet.
        """
        name, reason = loss.name, loss.reason
        who = f"{name} ({member.container})"
        if starts and not member.granted:
            # The resource manager gave up on its container: nothing is lost, but the job must not retry forever.
            if self.count_failure(loss.clock, loss.at_s, starts=True):
                self.fatal = f"{name} was never granted a container: the last one requested {reason}"
            return [e.noted("not-granted", loss.at_s, member=name, reason=reason)]
        self.losses.append(loss)
        if own and silent:
            self._silent[member.container] = who, reason
        elif own:
            self._count(who, reason, loss.clock, loss.at_s, starts=starts)
        newcomer = self.is_newcomer(name)
        if self.fatal:
            # The job ends first.
            pass
        elif starts or newcomer:
            # It held nothing, so another is requested in its place.
            loss.outcome = LossOutcome.REPLACED
            if self.inquiry is not None and newcomer:
                del self.inquiry.newcomers[name], self.inquiry.roles[name]
                # A spare member may also be leaving by a committed plan, which must not wait for it.
                self.inquiry.lost[name] = reason
        else:
            self._lost[name], self.must_ask = reason, f"{name} ended unexpectedly: {reason}"
        return [e.noted("lost", loss.at_s, member=name, reason=reason)]

    def container_ended(self, container_id: str, completed: int, now_s: float, *, taken: bool, starts: bool) -> None:
        """Record the end of an unknown container; the loss of a member that had fallen silent may count now."""
        found = self._silent.pop(container_id, None)
        if found is not None and not taken:
            self._count(*found, completed, now_s, starts=starts)

    def unreadable(self, report: m.CheckpointUnusable) -> None:
        """Record that a member cannot read the checkpoint of the current rollback: the job must roll back further."""
        self._unreadable = f"{report.name} cannot read checkpoint {report.checkpoint}: {report.message}"
        self.must_ask = self._unreadable

    def _count(self, who: str, reason: str, completed: int, now_s: float, *, starts: bool) -> None:
        why = self.count_failure(completed, now_s, starts=starts)
        if why:
            self.fatal = f"{who} ended unexpectedly: {reason}; {why}"

    def count_failure(self, completed: int, now_s: float, *, starts: bool) -> str:
        """Count a failure of the job's own; return why the job ends if the limit is reached, else an empty text.

        What the cluster takes away is not counted, because it says nothing about the job.
        """
        if completed > self._counted_at:
            # Clocks that are completed again after a rollback count as progress, too.
            self._incidents, self._counted_at = 0, completed
        if now_s - self._incident_s < INCIDENT_S:
            return ""
        self._incident_s = now_s
        self._incidents += 1
        if self._incidents < (MOST_INCIDENTS_AT_START if starts else MOST_INCIDENTS):
            return ""
        return f"{self._incidents} failures without one complete clock between them"

    # ---- the inquiry

    def begin(self, before: Membership, unacked: bool, completed: int) -> list[tuple[MemberId, m.Order]]:
        """Start an inquiry after a loss or an unreadable checkpoint; return its first questions.

        Parameters
        ----------
        before : Membership
            The newest one.
        unacked : bool
            Whether some member may not have installed it.
        completed : int
            The first clock whose results the job master lacks.
        """
        last = self.inquiry or Inquiry(0)
        # Some members may not have rolled back yet: then inventories would mix two incarnations.
        half_rolled_back = self.inquiry is None and before.goes_back and unacked
        self._number += 1
        self.inquiry = Inquiry(
            self._number,
            {**last.lost, **self._lost},
            newcomers=last.newcomers,
            roles=last.roles,
            must_roll_back=last.must_roll_back or half_rolled_back or bool(self._unreadable),
            unreadable=self._unreadable or last.unreadable,
            from_clock=completed,
        )
        self.must_ask, self._lost, self._unreadable = "", {}, ""
        return self.orders(before)

    def orders(self, before: Membership) -> list[tuple[MemberId, m.Order]]:
        """Return the unanswered questions."""
        return self.inquiry.orders(before) if self.inquiry is not None else []

    def hear(self, inventory: m.Inventory, before: Membership) -> list[tuple[MemberId, m.Order]]:
        """Process an answer; return the questions that it makes due."""
        if self.inquiry is None:
            return []
        asked = self.inquiry.asked(before)
        self.inquiry.hear(inventory)
        return [(name, order) for name, order in self.inquiry.orders(before) if name not in asked]

    def is_newcomer(self, name: MemberId) -> bool:
        """Return whether the member was requested by the current recovery."""
        return self.inquiry is not None and name in self.inquiry.newcomers

    def add(self, name: MemberId, role: Role) -> None:
        """Wait for a newcomer."""
        assert self.inquiry is not None
        self.inquiry.newcomers[name], self.inquiry.roles[name] = None, role

    def registered(self, name: MemberId, address: Address) -> bool:
        """Record that a newcomer registered; return False if the member is not one."""
        if self.inquiry is None or name not in self.inquiry.newcomers:
            return False
        self.inquiry.newcomers[name] = address
        return True

    def membership(
        self,
        before: Membership,
        settings: CoreSettings,
        point: RestorePoint,
        next_clocks: Sequence[int],
        cut: RestorePoint | None = None,
        safe: Collection[MemberId] = (),
    ) -> Membership:
        """Return the membership that follows from the complete answers.

        Parameters
        ----------
        point : RestorePoint
            Where the job restarts if the only copy of a partition is lost.
        next_clocks : sequence of int
            Per split, the first clock for which the job master has no result.
        cut : RestorePoint, optional
            The committed cut: the job restarts there if its copies are left and ``point`` is earlier.
        safe : collection of str
            See :func:`roll_back`.
        """
        assert self.inquiry is not None
        after = None if self.inquiry.must_roll_back else take_over(before, self.inquiry, settings)
        if after is None:
            if cut is not None and cut.clock >= point.clock:
                owners = cut_owners(before, self.inquiry, cut)
                if owners is not None:
                    return roll_back(before, self.inquiry, cut, owners)
            return roll_back(before, self.inquiry, point, safe=safe)
        return after if settings.bsp else with_lost_results(after, next_clocks)

    def end(self, before: Membership, after: Membership, completed: int, now_s: float) -> list[e.Command]:
        """End the recovery, and record its membership."""
        inquiry, self.inquiry = self.inquiry, None
        assert inquiry is not None
        if after.goes_back:
            self._note_rollback(inquiry, before, after, max(0, completed), now_s)
            self._counted_at = after.from_clock
        for loss in self.losses:
            if loss.name in inquiry.lost and loss.outcome is LossOutcome.OPEN:
                loss.outcome = LossOutcome.TAKEN_OVER
        record = {
            "lost": sorted(inquiry.lost),
            "version": after.version,
            "clock": after.from_clock,
            "incarnation": after.incarnation,
            "workers": list(after.workers),
            "servers": list(after.servers),
            "owners": list(after.partitions.owners),
            "active": list(after.splits.active),
        }
        return [e.synced("rolled-back" if after.goes_back else "taken-over", now_s, **record)]

    def _note_rollback(self, inquiry: Inquiry, before: Membership, after: Membership, clock: int, now_s: float) -> None:
        """Record a rollback; merge it with the one before if the job has not restarted in between."""
        lost, unreadable = dict(inquiry.lost), inquiry.unreadable
        owners, to = set(before.partitions.owners), max(0, after.from_clock)
        servers = tuple(name for name in lost if name in owners)
        if before.goes_back and inquiry.must_roll_back:
            last = self.goings_back.pop()
            clock, lost, servers = last.clock, {**last.lost, **lost}, last.servers + servers
            unreadable = "; ".join(filter(None, (last.unreadable, unreadable)))
        self.goings_back.append(GoingBack(clock, to, now_s, lost, unreadable, servers, after.checkpoint))
        for loss in self.losses:
            if loss.name in lost and loss.outcome in (LossOutcome.OPEN, LossOutcome.ROLLED_BACK):
                loss.outcome, loss.back_to = LossOutcome.ROLLED_BACK, to

    def waits_for(self, members: Mapping[MemberId, Member], now_s: float) -> str:
        """Return a sentence about the newcomers that the recovery waits for; empty if the wait is short.

        Survivors are not named: they answer within moments, or are lost, too.
        """
        names = self.inquiry.newcomers if self.inquiry is not None else ()
        coming = [members[name] for name in names if members[name].address is None]
        waits = containers_waited_for([member for member in coming if not member.launched], now_s)
        late = [member.name for member in coming if member.is_late(now_s, REPORTED_WAIT_S)]
        register = f"waits for {', '.join(late)} to register" if late else ""
        return " and ".join(filter(None, (waits, register)))

    def validate(self) -> None:
        """Assert the invariants of recoveries."""
        assert bool(self.must_ask) == bool(self._lost or self._unreadable)
        inquiry = self.inquiry
        if inquiry is None:
            return
        assert inquiry.number == self._number and set(inquiry.newcomers) == set(inquiry.roles)
        assert not set(inquiry.lost) & (set(inquiry.inventories) | set(inquiry.newcomers))
