"""What a job does about lost members: asks the rest, derives one membership from the answers, counts losses.

A recovery asks all that are left for an :class:`~eps.core.messages.Inventory`.  Nothing is remembered that cannot be
asked: the clock from which heirs compute follows from what the servers hold, so no member has to have reported it
before.  A job that loses members in vain ends.  Pure.

Source: design section 4 ("a crash is a promotion nobody planned"), section 5 (exactly once when a worker dies after
pushing to some servers); Proteus §3.3 (the previous owner takes over); Spotnik §4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from eps.core import events as e
from eps.core import messages as m
from eps.core.members import TOLD_S, Member, containers_waited_for
from eps.core.membership import Membership, PartitionTable, spread_evenly
from eps.core.planner import heirs, standing_followers
from eps.core.types import Address, CoreSettings, MemberId, Role


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
    #: The first clock of which the job master lacks results.
    from_clock: int = 0

    def survivors(self, before: Membership) -> tuple[MemberId, ...]:
        """Return the members of ``before`` that are left."""
        return tuple(name for name in before.members if name not in self.lost)

    def missing(self, before: Membership) -> tuple[MemberId, ...]:
        """Return the members that have not answered, and the newcomers that have not registered."""
        silent = tuple(name for name in self.survivors(before) if name not in self.inventories)
        return silent + tuple(name for name, address in self.newcomers.items() if address is None)

    def asked(self, before: Membership) -> tuple[MemberId, ...]:
        """Return the members whose answers are due: the workers first, and the servers once all workers have answered.

        A worker that has answered reads nothing more.  So a server that answers after it holds all that was read: asked
        at once, it could answer before a push completes a clock which a worker reads before that one answers.
        """
        silent = tuple(name for name in self.survivors(before) if name not in self.inventories)
        return tuple(name for name in silent if name in before.workers) or silent

    def orders(self, before: Membership) -> list[tuple[MemberId, m.Order]]:
        """Return the question for the members whose answers are due."""
        order = m.TakeInventory(self.number, self.from_clock)
        return [(name, order) for name in self.asked(before)]

    def hear(self, inventory: m.Inventory) -> None:
        """Take an answer in; one to an earlier question says too little."""
        if inventory.recovery == self.number and inventory.name not in self.lost:
            self.inventories[inventory.name] = inventory

    def empty_roles(self, before: Membership) -> tuple[Role, ...]:
        """Return the roles of which no member is left or on its way."""
        left = {role: [n for n in before.of_role(role) if n not in self.lost] for role in Role}
        return tuple(role for role in Role if not left[role] and role not in self.roles.values())


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """Where a job that must go back begins again: a checkpoint, or the seeded start."""

    #: Name of the checkpoint; empty for the seeded start.
    checkpoint: str
    #: All splits begin again here, also those that a checkpoint under SSP or ASP has further: servers refuse what they
    #: have, but what was measured there may have been lost.
    clock: int


def take_over(before: Membership, inquiry: Inquiry, settings: CoreSettings) -> Membership | None:
    """Return the membership without the lost members, or None where the only copy of a partition went with them.

    Under BSP it holds from the first clock that some partition lacks.  No survivor is beyond it: a worker that
    computes clock c has read every partition at c, and the servers answered after the workers.  A member that
    leaves by a committed plan is not asked: the membership takes its splits away at once, and what it pushed of
    them counts where it arrived.  It is not beyond that clock either: a plan is committed when its receivers have
    all that was served before, and from then on nothing is served that they lack.

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


def roll_back(before: Membership, inquiry: Inquiry, point: RestorePoint) -> Membership:
    """Return the membership with which all members go back to ``point``, in a new incarnation."""
    servers = _left(before.servers, inquiry, Role.SERVER)
    owners = spread_evenly(len(before.partitions), servers)
    followers = standing_followers(owners, servers, ()) if before.partitions.followers else ()
    table = PartitionTable(owners, followers)
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


#: A job ends at so many incidents without a complete clock between them: its members die of what it does.
MOST_INCIDENTS = 12
#: While a job starts nothing is lost by ending it: so much sooner.
MOST_INCIDENTS_AT_START = 3
#: Losses within so many seconds of the first are one incident: a machine takes all its members along.
INCIDENT_S = 2.0


class LossOutcome(StrEnum):
    """What came of the loss of a member."""

    #: It is not decided, or the job ended before it was.
    OPEN = "open"
    TAKEN_OVER = "taken-over"
    ROLLED_BACK = "rolled-back"
    #: It held nothing yet: another was requested.
    REPLACED = "replaced"


@dataclass
class Loss:
    """A member that was lost, for people."""

    name: MemberId
    reason: str
    #: Clocks that were complete.
    clock: int
    at_s: float
    #: The clock that the job went back to; None where it did not.
    back_to: int | None = None
    outcome: LossOutcome = LossOutcome.OPEN


@dataclass(frozen=True, slots=True)
class GoingBack:
    """The job went back to a checkpoint or to its seed, for people."""

    #: Clocks that were complete before, and where it began again.
    clock: int
    to: int
    at_s: float
    #: Members that were lost -> how they ended.
    lost: Mapping[MemberId, str]
    #: Which member could not read which checkpoint, and why; empty where that was not the cause.
    unreadable: str = ""
    #: The servers among those that were lost: parameters are lost with them.
    servers: tuple[MemberId, ...] = ()


class Recovery:
    """The recoveries of a job, and its losses."""

    def __init__(self, first_clock: int) -> None:
        #: The one in flight.
        self.inquiry: Inquiry | None = None
        #: Every member that was lost, oldest first.
        self.losses: list[Loss] = []
        #: Each time that the job went back, oldest first.
        self.goings_back: list[GoingBack] = []
        #: Why the job cannot go on; empty while it can.
        self.fatal = ""
        #: Why the members that are left must be asked, or asked again; empty where they need not.
        self.must_ask = ""
        #: What the next question is about: members that were lost -> how they ended; who could not read a checkpoint.
        self._lost: dict[MemberId, str] = {}
        self._unreadable = ""
        self._number = 0
        #: Container of a member that fell silent -> its name, and what was found.
        self._silent: dict[str, tuple[MemberId, str]] = {}
        #: Incidents since the last complete clock, and when the last of them began.
        self._incidents = 0
        self._incident_s = -math.inf
        #: The first incomplete clock at the last incident, or where the job has gone back to since.
        self._counted_at = first_clock

    # ---- losses

    def lost(self, member: Member, loss: Loss, *, own: bool, silent: bool, starts: bool) -> list[e.Command]:
        """Take in the loss of a member.

        Parameters
        ----------
        own : bool
            Nobody took its container: the loss counts against the job.
        silent : bool
            It is not heard of: it hangs, or its machine is lost; whether that counts, the end of its container tells.
        starts : bool
            The job has no membership yet.
        """
        name, reason = loss.name, loss.reason
        if starts and not member.granted:
            # The resource manager gave up its container: nothing is lost, and nothing is gained by asking for ever.
            if self.in_vain(loss.clock, loss.at_s, starts=True):
                self.fatal = f"{name} was never granted a container: the last one asked for {reason}"
            return [e.noted("not-granted", loss.at_s, member=name, reason=reason)]
        self.losses.append(loss)
        if own and silent:
            self._silent[member.container] = name, reason
        elif own:
            self._count(name, reason, loss.clock, loss.at_s, starts=starts)
        newcomer = self.is_newcomer(name)
        if self.fatal:
            # The job ends before anything comes of the loss.
            pass
        elif starts or newcomer:
            # It held nothing; another is requested in its place.
            loss.outcome = LossOutcome.REPLACED
            if self.inquiry is not None and newcomer:
                del self.inquiry.newcomers[name], self.inquiry.roles[name]
        else:
            self._lost[name], self.must_ask = reason, f"{name} ended unexpectedly: {reason}"
        return [e.noted("lost", loss.at_s, member=name, reason=reason)]

    def container_ended(self, container_id: str, completed: int, now_s: float, *, taken: bool, starts: bool) -> None:
        """Take in the end of a container that the job does not count on: perhaps of a member that had fallen silent."""
        found = self._silent.pop(container_id, None)
        if found is not None and not taken:
            self._count(*found, completed, now_s, starts=starts)

    def unreadable(self, report: m.CheckpointUnusable) -> None:
        """Take in that a member cannot read the checkpoint that the job goes back to: it must go back further."""
        self._unreadable = f"{report.name} cannot read checkpoint {report.checkpoint}: {report.message}"
        self.must_ask = self._unreadable

    def _count(self, name: MemberId, reason: str, completed: int, now_s: float, *, starts: bool) -> None:
        why = self.in_vain(completed, now_s, starts=starts)
        if why:
            self.fatal = f"{name} ended unexpectedly: {reason}; {why}"

    def in_vain(self, completed: int, now_s: float, *, starts: bool) -> str:
        """Count a failure that is the job's own; return why the job ends if it is one too many.

        What the cluster takes away is not counted: that says nothing about the job.
        """
        if completed > self._counted_at:
            # A clock that is completed again after a rollback counts, too: the job makes progress.
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
        """Return the first questions, after more members were lost or one could not read a checkpoint.

        Parameters
        ----------
        before : Membership
            The newest one.
        unacked : bool
            Some member may not have it yet.
        completed : int
            The first clock of which the job master lacks results.
        """
        last = self.inquiry or Inquiry(0)
        # Some may not have gone back yet: then what members hold is of two incarnations.
        half_back = self.inquiry is None and before.goes_back and unacked
        self._number += 1
        self.inquiry = Inquiry(
            self._number,
            {**last.lost, **self._lost},
            newcomers=last.newcomers,
            roles=last.roles,
            must_go_back=last.must_go_back or half_back or bool(self._unreadable),
            unreadable=self._unreadable or last.unreadable,
            from_clock=completed,
        )
        self.must_ask, self._lost, self._unreadable = "", {}, ""
        return self.orders(before)

    def orders(self, before: Membership) -> list[tuple[MemberId, m.Order]]:
        """Return the questions that are not answered."""
        return self.inquiry.orders(before) if self.inquiry is not None else []

    def hear(self, inventory: m.Inventory, before: Membership) -> list[tuple[MemberId, m.Order]]:
        """Take an answer in; return the questions that may follow it."""
        if self.inquiry is None:
            return []
        asked = self.inquiry.asked(before)
        self.inquiry.hear(inventory)
        return [(name, order) for name, order in self.inquiry.orders(before) if name not in asked]

    def is_newcomer(self, name: MemberId) -> bool:
        """Return whether the recovery waits for a member that was requested for it."""
        return self.inquiry is not None and name in self.inquiry.newcomers

    def add(self, name: MemberId, role: Role) -> None:
        """Wait for a newcomer."""
        assert self.inquiry is not None
        self.inquiry.newcomers[name], self.inquiry.roles[name] = None, role

    def registered(self, name: MemberId, address: Address) -> bool:
        """Take in that a newcomer registered; return False where it is none."""
        if self.inquiry is None or name not in self.inquiry.newcomers:
            return False
        self.inquiry.newcomers[name] = address
        return True

    def membership(
        self, before: Membership, settings: CoreSettings, point: RestorePoint, next_clocks: Sequence[int]
    ) -> Membership:
        """Return the membership that comes of the answers, which are complete.

        Parameters
        ----------
        point : RestorePoint
            Where the job begins again if the only copy of a partition is lost.
        next_clocks : sequence of int
            Per split, the first clock of which the job master has no result.
        """
        assert self.inquiry is not None
        after = None if self.inquiry.must_go_back else take_over(before, self.inquiry, settings)
        if after is None:
            return roll_back(before, self.inquiry, point)
        return after if settings.bsp else measured_again(after, next_clocks)

    def end(self, before: Membership, after: Membership, completed: int, now_s: float) -> list[e.Command]:
        """Note which membership came of it."""
        inquiry, self.inquiry = self.inquiry, None
        assert inquiry is not None
        if after.goes_back:
            self._note_going_back(inquiry, before, max(0, after.from_clock), max(0, completed), now_s)
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

    def _note_going_back(self, inquiry: Inquiry, before: Membership, to: int, clock: int, now_s: float) -> None:
        """Write down that the job goes back; where it had not begun again since the last time, both are one."""
        lost, unreadable = dict(inquiry.lost), inquiry.unreadable
        servers = tuple(name for name in lost if name in before.servers)
        if before.goes_back and inquiry.must_go_back:
            last = self.goings_back.pop()
            clock, lost, servers = last.clock, {**last.lost, **lost}, last.servers + servers
            unreadable = "; ".join(filter(None, (last.unreadable, unreadable)))
        self.goings_back.append(GoingBack(clock, to, now_s, lost, unreadable, servers))
        for loss in self.losses:
            if loss.name in lost and loss.outcome in (LossOutcome.OPEN, LossOutcome.ROLLED_BACK):
                loss.outcome, loss.back_to = LossOutcome.ROLLED_BACK, to

    def waits_for(self, members: Mapping[MemberId, Member], now_s: float) -> str:
        """Return which newcomers the recovery waits for, as a sentence; empty where that is not long.

        Members that are left have answered within moments, or are lost, too.
        """
        names = self.inquiry.newcomers if self.inquiry is not None else ()
        coming = [members[name] for name in names if members[name].address is None]
        waits = containers_waited_for([member for member in coming if not member.launched], now_s)
        late = [member.name for member in coming if member.is_late(now_s, TOLD_S)]
        register = f"waits for {', '.join(late)} to register" if late else ""
        return " and ".join(filter(None, (waits, register)))

    def validate(self) -> None:
        """Assert what is always true of recoveries."""
        assert bool(self.must_ask) == bool(self._lost or self._unreadable)
        inquiry = self.inquiry
        if inquiry is None:
            return
        assert inquiry.number == self._number and set(inquiry.newcomers) == set(inquiry.roles)
        assert not set(inquiry.lost) & (set(inquiry.inventories) | set(inquiry.newcomers))
