"""The changes of a job: queued, in flight with their driver, and ended.  Pure.

:class:`PlanDriver` knows which orders a phase needs and which effects are missing.  Outstanding orders are derived from
what is missing, never remembered.  So the same call resends them after a lost message or a reconnect.
:class:`Flight` takes a plan through its phases; :class:`Plans` has all plans.

Source: EPS §3.2, §3.3, Figs 5 and 10, §5.2 (the four calls); design section 4 (changes queue, one commits at a time).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import noted, synced
from eps.core.members import Member, MemberPhase
from eps.core.membership import Membership
from eps.core.messages import Orders
from eps.core.planner import Move, TransferPlan, follow_transfer, plan_transfer
from eps.core.reconfig import (
    ENDED,
    TRANSITIONS,
    Change,
    Operation,
    Phase,
    Plan,
    Purpose,
    Roster,
    Trigger,
    after_plans,
    resolve,
)
from eps.core.retries import Backoff
from eps.core.tiers import TiersView
from eps.core.types import Address, CoreSettings, MemberId, Role, Team, Tier
from eps.errors import EpsError, JobFinishedError, PlanError, TransferError

#: A removal aborts the addition before it if that has waited this long for containers (design section 4).
GROWTH_PATIENCE_S = 1.0
#: A plan is aborted if a newcomer does not register this long after its container was granted.
REGISTRATION_PATIENCE_S = 60.0
#: Stands for a checksum if nothing has to be sent.
STANDING = "standing"


#: What a phase waits for: the collection that will contain a key, the key, and a sentence.
Wait = tuple[Container[object], MemberId | int, str]


@dataclass
class PlanDriver:
    """The plan that is changing the job now."""

    plan: Plan
    #: The membership before the change.
    before: Membership
    transfer: TransferPlan
    #: Added member -> address, once registered.
    newcomers: dict[MemberId, Address] = field(default_factory=dict)
    #: Added member that has a container -> its phase.
    phases: dict[MemberId, MemberPhase] = field(default_factory=dict)
    #: When a container was last requested or granted.
    waits_since_s: float = 0.0
    lists_updated: set[MemberId] = field(default_factory=set)
    #: Partition -> checksum, from its donor and from its receiver.
    sent: dict[int, str] = field(default_factory=dict)
    received: dict[int, str] = field(default_factory=dict)
    #: Splits that are in memory on their new worker.
    loaded: set[int] = field(default_factory=set)
    promoted: set[int] = field(default_factory=set)
    acked: set[MemberId] = field(default_factory=set)
    released: set[MemberId] = field(default_factory=set)
    exited: set[MemberId] = field(default_factory=set)
    #: Members that ended during the plan; it no longer waits for them.
    lost: set[MemberId] = field(default_factory=set)
    #: The members of ``plan.added``.
    added: frozenset[MemberId] = field(init=False)
    #: Some of what was missing: while the last of it is, nothing else has to be looked at.
    _waits: list[Wait] = field(init=False, default_factory=list)
    #: A worker before the change that has not released, if that is known.
    _owing: MemberId = field(init=False, default="")

    def __post_init__(self) -> None:
        self.added = frozenset(self.plan.added)
        for move in self.transfer.partition_moves:
            if move.target in self.before.partitions.followers_of(move.item):
                # A standing follower already has the partition.
                self.sent[move.item] = self.received[move.item] = STANDING

    def with_granted(self, now_s: float) -> PlanDriver:
        """Return a driver for the newcomers that have a container; members do not know of any newcomer yet."""
        coming = (tuple(n for n in self.plan.coming.of_role(role) if n in self.granted) for role in Role)
        self.plan.coming = Team(*coming)
        self.plan.transfer = plan_transfer(self.before, self.plan.coming, self.plan.going)
        found = replace(self, transfer=self.plan.transfer, sent={}, received={})
        found._pass_first_barrier(now_s)
        return found

    def follow(self, name: MemberId, phase: MemberPhase, address: Address | None, now_s: float) -> None:
        """Record the phase of a newcomer."""
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
        """Pass barrier 1 of an addition once every newcomer's container is launched."""
        if len(self.phases) < len(self.added) or "B1" in self.plan.barriers_s:
            return
        if self.added == {name for name, phase in self.phases.items() if phase is not MemberPhase.GRANTED}:
            self.plan.barriers_s.setdefault("B1", now_s)

    @property
    def granted(self) -> set[MemberId]:
        """Added members that have a container."""
        return set(self.phases)

    @property
    def concerned(self) -> tuple[MemberId, ...]:
        """The members that take part: those before the change and the added ones, without lost ones."""
        return tuple(name for name in self.before.members + self.plan.added if name not in self.lost)

    @property
    def addresses(self) -> dict[MemberId, Address]:
        """The addresses of old and new members."""
        return {**self.before.addresses, **self.newcomers}

    def next_membership(self, from_clock: int) -> Membership:
        """Return the membership that the commit announces."""
        gone, addresses = set(self.plan.removed), self.addresses
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
            addresses={name: addresses[name] for name in everyone},
            incarnation=self.before.incarnation,
            checkpoint=self.before.checkpoint,
            recovery=self.before.recovery,
        )

    # ---- what is missing

    def missing(self) -> list[str]:
        """Return what the current phase waits for, as sentences; empty when it is complete."""
        return [sentence for _, _, sentence in self._missing()]

    def _missing(self) -> Iterator[Wait]:
        match self.plan.phase:
            case Phase.PROPOSED:
                yield from ((self.newcomers, n, f"{n} to register") for n in self.plan.added if n not in self.newcomers)
            case Phase.PREPARED:
                yield from self._not_in(self.lists_updated, "update its lists")
            case Phase.LISTS_UPDATED:
                for v in self._partitions_to_copy():
                    lacks = self.sent if v.item not in self.sent else self.received
                    yield lacks, v.item, f"partition {v.item} to be copied to {v.target}"
                for v in self._splits_to_copy():
                    yield self.loaded, v.item, f"split {v.item} to be copied to {v.target}"
            case Phase.COMMITTED:
                yield from self._not_in(self.acked, "acknowledge the membership")
                for v in self._unpromoted():
                    yield self.promoted, v.item, f"partition {v.item} to be promoted on {v.target}"
            case Phase.SWITCHED:
                yield from self._not_in(self.released, "release")
                yield from ((self.exited, name, f"{name} to end") for name in self._to_end())

    def _not_in(self, done: set[MemberId], what: str) -> Iterator[Wait]:
        return ((done, name, f"{name} to {what}") for name in self.concerned if name not in done)

    @property
    def is_complete(self) -> bool:
        """Whether the current phase waits for nothing.  Over all reports of a phase this costs about one look."""
        while self._waits and (self._waits[-1][1] in self._waits[-1][0] or self._waits[-1][1] in self.lost):
            self._waits.pop()
        self._waits = self._waits or list(self._missing())
        return not self._waits

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
        """Continue under the membership of a recovery, which replaces the plan's own."""
        self.lost.update(lost)
        # A recovery without a worker, or a server, keeps one that was about to leave.
        self.plan.going = self.plan.going.without(membership.members)
        self.plan.membership = membership
        self.acked.clear()
        self._waits.clear()
        if rolled_back:
            self.promoted.update(v.item for v in self.transfer.partition_moves)

    def overdue(self, now_s: float, shrink: str, last: bool) -> str:
        """Return why an addition has waited too long for its newcomers; empty if it has not.

        Parameters
        ----------
        now_s : float
        shrink : str
            The next removal in the queue, which may free the containers; empty if there is none.
        last : bool
            Whether only the last iteration is left to train: it waits for this plan.
        """
        if self.plan.phase is not Phase.PROPOSED:
            return ""
        if self.granted == set(self.plan.added):
            late = now_s - self.waits_since_s >= REGISTRATION_PATIENCE_S and self.missing()
            return f"waited {REGISTRATION_PATIENCE_S:g} s for {self.missing()[0]}" if late else ""
        if now_s - self.plan.reached_s[Phase.PROPOSED] < GROWTH_PATIENCE_S:
            return ""
        if shrink:
            return f"still waiting for containers when {shrink} was requested"
        return "still waiting for containers when only the last iteration was left" if last else ""

    # ---- which orders to send

    def orders(self) -> Orders:
        """Return the orders of the current phase whose effect is missing."""
        phase, plan_id = self.plan.phase, self.plan.turn
        if phase is Phase.PREPARED:
            added = tuple(
                m.Newcomer(n, self.newcomers[n], frozenset({role}))
                for role in Role
                for n in self.plan.coming.of_role(role)
            )
            late = [n for n in self.concerned if n not in self.lists_updated]
            # An added server allocates its partitions.
            coming: dict[MemberId, list[int]] = {name: [] for name in late}
            for move in self.transfer.partition_moves:
                if move.target in self.added and move.target in coming:
                    coming[move.target].append(move.item)
            return [(n, m.UpdateLists(plan_id, added, tuple(coming[n]))) for n in late]
        if phase is Phase.LISTS_UPDATED:
            return self._transfer_orders()
        if phase is Phase.COMMITTED and self.plan.membership is not None:
            waiting = {n for n in self.concerned if n not in self.acked} | {v.target for v in self._unpromoted()}
            order = m.UpdateMembership(plan_id, self.plan.membership)
            return [(n, order) for n in self.concerned if n in waiting]
        if phase is Phase.SWITCHED:
            release = m.ReleasePlan(plan_id)
            orders: Orders = []
            if self.plan.membership is not None and self.plan.membership.takes_over:
                # A leaving member is not in it, but may owe something to the heirs.
                told = m.UpdateMembership(plan_id, self.plan.membership)
                orders += [(n, told) for n in self._to_end() if n not in self.acked and n not in self.released]
            orders += [(n, release) for n in self.concerned if n not in self.released]
            return orders + [
                (name, m.Shutdown("removed from the job")) for name in self.plan.removed if self.may_end(name)
            ]
        return []

    def may_end(self, name: MemberId) -> bool:
        """Return whether a removed member is drained and may end.

        A server also waits until the workers have finished their last exchange with it.  If its answer gets lost, the
        worker repeats the request to the same server.
        """
        if name not in self.released or name in self.exited or name in self.lost:
            return False
        return name in self.plan.going.workers or (self.workers_released and name in self.plan.going.servers)

    @property
    def workers_released(self) -> bool:
        """Whether every worker before the change has released, or is lost."""
        if not self._owing or self._owing in self.released or self._owing in self.lost:
            owing = (n for n in reversed(self.before.workers) if n not in self.released and n not in self.lost)
            self._owing = next(owing, "")
        return not self._owing

    def _to_end(self) -> list[MemberId]:
        return [n for n in self.plan.removed if n not in self.exited and n not in self.lost]

    def _transfer_orders(self) -> Orders:
        plan_id, splits = self.plan.turn, self._splits_to_copy()
        to_load: dict[MemberId, list[int]] = {}
        for move in splits:
            if not move.sends_bytes:
                # The copy is there (Fig. 11); it is loaded before the commit, so that no clock waits for the disk.
                to_load.setdefault(move.target, []).append(move.item)
        partitions = _by_source(self._partitions_to_copy(), self.addresses)
        orders: Orders = [(s, m.SendPartitions(plan_id, t)) for s, t in partitions]
        sent = _by_source([v for v in splits if v.sends_bytes], self.addresses)
        orders += [(s, m.SendSplits(plan_id, t)) for s, t in sent]
        return orders + [(t, m.LoadSplits(plan_id, tuple(items))) for t, items in sorted(to_load.items())]

    # ---- reports

    def hear(self, report: m.Report) -> None:
        """Process a report.

        Raises
        ------
        TransferError
            The receiver's checksum differs from the sender's.
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
                    _check_sums(item, checksum, self.received.get(item))
            case m.PartitionCaughtUp(_, reported, item, checksum) if reported == plan_id:
                _check_sums(item, self.sent.get(item), self.received.setdefault(item, checksum))
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


def _by_source(
    moves: Iterable[Move], addresses: Mapping[MemberId, Address]
) -> list[tuple[MemberId, tuple[m.Target, ...]]]:
    found: dict[MemberId, list[m.Target]] = {}
    for move in moves:
        found.setdefault(move.source, []).append(m.Target(move.item, move.target, addresses[move.target]))
    return [(source, tuple(targets)) for source, targets in sorted(found.items())]


def _check_sums(item: int, left: str | None, arrived: str | None) -> None:
    """Compare the donor's and the receiver's checksum of a partition, once both are known."""
    if left is not None and arrived is not None and left != arrived:
        raise TransferError(f"partition {item} left with checksum {left} and arrived with {arrived}")


#: A request for lent members is cancelled after this long without a grant: a standing request would take containers
#: that are meant for other applications.
REGAIN_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class PlanContext:
    """The facts about a job that plans depend on, at one moment."""

    #: None while the job starts.
    membership: Membership | None
    #: Role -> number of the next member.
    next_number: Mapping[Role, int]
    completed: int
    horizon: int
    #: Whether training is complete and the model is being exported.
    exports: bool
    now_s: float
    #: The containers of a job on reliable and transient containers; None for other jobs.
    tiers: TiersView | None = None
    #: The BackupPS of each partition; empty without a cut.
    copies: tuple[MemberId, ...] = ()


def roster(job: PlanContext) -> Roster:
    """Return the current members."""
    assert job.membership is not None
    numbers = job.next_number
    return Roster(job.membership.workers, job.membership.servers, numbers[Role.WORKER], numbers[Role.SERVER], job.tiers)


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of one step of the plan in flight."""

    commands: list[e.Command]
    committed: Plan | None = None
    released: Plan | None = None


class Flight:
    """The plan that is changing the job now, if any."""

    def __init__(self) -> None:
        self.driver: PlanDriver | None = None
        #: Turn of the latest proposed plan.
        self._turn = 0
        #: Turn of the last plan aborted after its proposal, until a later one is released: aborts are not acknowledged.
        self._aborted = 0

    @property
    def plan(self) -> Plan | None:
        """The plan in flight, or None."""
        return self.driver.plan if self.driver is not None else None

    @property
    def uncommitted(self) -> Plan | None:
        """The plan if it can still be aborted, else None."""
        return self.plan if self.plan is not None and self.plan.undecided else None

    @property
    def committed(self) -> Plan | None:
        """The plan if it is committed, so that it can only roll forward, else None."""
        return self.plan if self.plan is not None and not self.plan.undecided else None

    def propose(self, plan: Plan, job: PlanContext, settings: CoreSettings) -> list[e.Command]:
        """Start a plan, while none is in flight.

        Raises
        ------
        PlanError
            The change has become impossible.
        """
        assert job.membership is not None and self.driver is None
        after, coming, going = resolve(roster(job), plan.change, settings)
        if job.tiers is not None and after.tiers is not None:
            stay = {host.container for host in after.tiers.hosts}
            plan.releases = tuple(host.container for host in job.tiers.hosts if host.container not in stay)
            plan.more_reliable = after.tiers.count(Tier.RELIABLE) - job.tiers.count(Tier.RELIABLE)
        if plan.change.operation is Operation.FOLLOW:
            transfer = follow_transfer(job.membership)
        else:
            transfer = plan_transfer(job.membership, coming, going, after.owners, job.copies)
        plan.coming, plan.going, plan.transfer = coming, going, transfer
        self._turn = plan.turn = max(plan.plan_id, self._turn + 1)
        plan.enter(Phase.PROPOSED, job.now_s)
        self.driver = PlanDriver(plan, job.membership, transfer, waits_since_s=job.now_s)
        moves = [[v.item, v.source, v.target] for v in transfer.partition_moves + transfer.split_moves]
        members = {"added": list(plan.added), "removed": list(plan.removed)}
        return [noted("proposed", job.now_s, plan=plan.plan_id, **members, moves=moves)]

    def step(self, horizon: int, now_s: float, may_commit: bool = True) -> Stepped | None:
        """Advance the plan by one phase; return None if something is missing or no plan is in flight.

        A plan commits just after the horizon: no worker can have started that clock, so none has to stop.
        """
        driver = self.driver
        if driver is None or not driver.is_complete:
            return None
        plan = driver.plan
        following = next(phase for phase in TRANSITIONS[plan.phase] if phase is not Phase.ABORTED)
        if following is Phase.COMMITTED:
            if not may_commit:
                return None
            plan.commit_clock = horizon + 1
            plan.membership = driver.next_membership(plan.commit_clock)
        plan.enter(following, now_s)
        commands = _records(plan, now_s)
        if following is Phase.RELEASED:
            self.driver, self._aborted = None, 0
            return Stepped(commands, released=plan)
        commands += [e.Send(to, order) for to, order in driver.orders()]
        return Stepped(commands, committed=plan if following is Phase.COMMITTED else None)

    def aborted(self, plan: Plan) -> list[e.Command]:
        """Clear an aborted plan if it is the one in flight, and notify its members."""
        driver = self.driver
        if driver is None or driver.plan is not plan:
            return []
        self.driver, self._aborted = None, plan.turn
        return [e.Send(name, m.AbortPlan(plan.turn)) for name in driver.before.members]

    def late(self, job: PlanContext, shrink: str, iterations: int) -> tuple[str, tuple[MemberId, ...]]:
        """Return why the plan must be aborted after a timeout, and the newcomers without which it continues.

        Parameters
        ----------
        shrink : str
            The next removal in the queue; empty if there is none.
        """
        driver = self.driver
        if driver is None or driver.plan.phase is not Phase.PROPOSED:
            return "", ()
        last = job.completed >= iterations - 1
        if last and driver.plan.purpose.keeps_size:
            # No user requested it, and the last iteration should not wait for processes that train nothing.
            return "only the last iteration was left, which needs no further members", ()
        overdue = driver.overdue(job.now_s, shrink, last)
        if overdue or driver.plan.purpose is not Purpose.REGAIN:
            return overdue, ()
        waiting = tuple(name for name in driver.plan.added if name not in driver.granted)
        # Free room is granted piece by piece: YARN grants one container for each node and heartbeat.
        if not waiting or job.now_s - driver.waits_since_s < REGAIN_PATIENCE_S:
            return "", ()
        if not driver.granted:
            return f"not granted within {REGAIN_PATIENCE_S:g} s: no room is free, or no container fits on one node", ()
        return "", waiting

    def continue_with_granted(self, now_s: float) -> list[e.Command]:
        """Continue without the newcomers that have no container: another request for them would fail, too."""
        assert self.driver is not None
        before = self.driver.plan.added
        self.driver = self.driver.with_granted(now_s)
        without = [name for name in before if name not in self.driver.plan.added]
        return [noted("smaller", now_s, plan=self.driver.plan.plan_id, without=without)]

    # ---- its members

    def follow(self, member: Member | None, now_s: float) -> bool:
        """Record the phase of a newcomer; return False if the member is not one."""
        if self.driver is None or member is None or member.name not in self.driver.added:
            return False
        self.driver.follow(member.name, member.phase, member.address, now_s)
        return True

    def adding(self, name: MemberId) -> Plan | None:
        """Return the uncommitted plan if it adds this member, else None."""
        return self.uncommitted if self.uncommitted is not None and name in self.uncommitted.added else None

    def concerns(self, name: MemberId) -> bool:
        """Return whether a member takes part in the plan."""
        driver = self.driver
        return (
            driver is not None and name not in driver.lost and (name in driver.before.addresses or name in driver.added)
        )

    def is_drained(self, name: MemberId) -> bool:
        """Return whether a leaving member has released everything, so that it is no longer needed."""
        return self.driver is not None and name in self.driver.plan.removed and name in self.driver.released

    def leaving(self) -> tuple[MemberId, ...]:
        """Return the members that leave by a committed plan and have not released everything."""
        if self.driver is None or self.committed is None:
            return ()
        return tuple(name for name in self.committed.removed if name not in self.driver.released)

    def owing(self) -> tuple[MemberId, ...]:
        """Return the workers that leave by a committed plan: they still owe the clocks before its commit."""
        return self.committed.going.workers if self.committed is not None else ()

    def exited(self, name: MemberId) -> bool:
        """Record that a member ended; return whether the plan waited for that.

        A server that ends while a worker waits for its last answer is lost: no other server has that answer.
        """
        if self.driver is None or self.driver.plan.phase is not Phase.SWITCHED or not self.driver.may_end(name):
            return False
        self.driver.exited.add(name)
        return True

    def hear(self, report: m.Report) -> list[e.Command]:
        """Process a report, and shut down the members that may end now.

        Raises
        ------
        TransferError
            The receiver's checksum differs from the sender's.
        """
        driver = self.driver
        if driver is None:
            return []
        number, waited = len(driver.released), not driver.workers_released
        driver.hear(report)
        if len(driver.released) == number:
            return []
        # With the last worker the servers may end.
        ending = (report.name, *(driver.plan.going.servers if waited and driver.workers_released else ()))
        return [e.Send(name, m.Shutdown("removed from the job")) for name in ending if driver.may_end(name)]

    def take_over(self, membership: Membership, lost: Iterable[MemberId]) -> None:
        """Continue under the membership of a recovery."""
        if self.driver is not None:
            self.driver.take_over(membership, lost, rolled_back=membership.goes_back)

    def turn_of_membership(self) -> int:
        """Return the turn of the plan that made the membership; 0 if no plan did.

        An uncommitted plan never counts, because members would keep what it brought although it may be aborted.
        """
        return self.committed.turn if self.committed is not None else 0

    def orders(self, members: Iterable[MemberId]) -> Orders:
        """Return the orders whose effect is missing, including an abort that members may not have received."""
        if self.driver is not None:
            return self.driver.orders()
        return [(name, m.AbortPlan(self._aborted)) for name in members] if self._aborted else []

    def validate(self) -> None:
        """Assert that the plan has not ended, and that turns only grow."""
        assert self.driver is None or (not self.driver.plan.ended and self.driver.plan.turn == self._turn)
        assert self._aborted <= self._turn


def _records(plan: Plan, now_s: float) -> list[e.Command]:
    """Return the records to log for the phase that a plan has entered."""
    record = {"plan": plan.plan_id}
    if plan.phase is Phase.COPIED:
        return [noted("copied", now_s, **record, bytes=plan.bytes_moved)]
    if plan.phase is Phase.COMMITTED and plan.membership is not None:
        found = plan.membership
        lists = {"workers": list(found.workers), "servers": list(found.servers)}
        tables = {
            "owners": list(found.partitions.owners),
            "active": list(found.splits.active),
            "inactive": [list(holders) for holders in found.splits.inactive],
        }
        clock = {"version": found.version, "clock": plan.commit_clock}
        return [synced("committed", now_s, **record, **clock, **lists, **tables)]
    return [noted(str(plan.phase), now_s, **record)] if plan.phase in (Phase.PREPARED, Phase.RELEASED) else []


#: Reason of a plan that a user cancelled.
CANCELLED = "cancelled"
#: The operation that adds members of a role.
ADDITION = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}
#: Purpose of the job's own plans -> first and longest pause after an abort, in seconds.
RETRIES = {
    Purpose.REPLACE: (1.0, 64.0),
    Purpose.FOLLOW: (1.0, 64.0),
    Purpose.DRAIN: (0.25, 8.0),
    Purpose.REGAIN: (1.0, 64.0),
    Purpose.ARRANGE: (0.25, 8.0),
}


class Plans:
    """The plans of a job.

    Parameters
    ----------
    settings : CoreSettings
    triggers : iterable of Trigger
        Changes that are requested at a clock.
    """

    def __init__(self, settings: CoreSettings, triggers: Iterable[Trigger] = ()) -> None:
        self._settings = settings
        #: Every accepted plan, by number.
        self.all: dict[int, Plan] = {}
        self.queue: list[Plan] = []
        #: The plan that is changing the job now.
        self.flight = Flight()
        self.triggers = sorted(triggers, key=lambda trigger: trigger.clock)
        self._answers: dict[str, e.Answer] = {}
        #: When the job may request a change of its own, by purpose.
        self._retries = {purpose: Backoff(*pauses) for purpose, pauses in RETRIES.items()}

    @property
    def undecided(self) -> bool:
        """Return whether a change is queued, in flight or due at a clock; if so, the last clock is not granted."""
        return bool(self.open) or bool(self.triggers)

    @property
    def open(self) -> list[Plan]:
        """The plans that can still be aborted."""
        uncommitted = self.flight.uncommitted
        return ([uncommitted] if uncommitted is not None else []) + self.queue

    @property
    def is_idle(self) -> bool:
        """Return whether no change is queued or in flight."""
        return self.flight.plan is None and not self.queue

    # ---- requests

    def request(self, event: e.ChangeRequested, job: PlanContext) -> list[e.Command]:
        """Answer a request for a change; a repeated request id gets the same answer."""
        known = self._answers.get(event.request_id)
        if known is not None:
            asked = self.all[known.plan_id]
            if asked.change == event.change:
                return [known]
            error = PlanError(f"request id {event.request_id!r} asked for {asked.change}, not for {event.change}")
            return [e.Answer(event.request_id, error=error)]
        try:
            if event.dry_run:
                return [e.Answer(event.request_id, text=self._dry_run(event.change, job))]
            plan, commands = self.ask(event.change, Purpose.ASKED, job, event.request_id)
        except EpsError as refusal:
            return [e.Answer(event.request_id, error=refusal)]
        answer = self._answers[event.request_id] = e.Answer(event.request_id, plan.plan_id)
        return [*commands, answer]

    def ask(
        self, change: Change, purpose: Purpose, job: PlanContext, request_id: str = ""
    ) -> tuple[Plan, list[e.Command]]:
        """Queue a change.

        Raises
        ------
        EpsError
            The change is refused.
        """
        self._check(change, job)
        plan, commands = self._new(change, purpose, request_id, job.now_s)
        self.queue.append(plan)
        return plan, commands

    def ask_own(self, change: Change, purpose: Purpose, job: PlanContext) -> list[e.Command]:
        """Queue a change that the job itself wants, unless it must back off after a failure."""
        if not self.is_due(purpose, job.now_s):
            return []
        self._retries[purpose] = self._retries[purpose].tried(job.now_s)
        try:
            return self.ask(change, purpose, job)[1]
        except EpsError as error:
            role = str(change.operation.role)
            return [noted("not-replaced", job.now_s, role=role, count=change.count, reason=str(error))]

    def ask_missing(self, pending: Mapping[Role, int], job: PlanContext, follows: bool) -> list[e.Command]:
        """Queue changes that restore the job's size and give each partition its follower.

        Parameters
        ----------
        pending : mapping
            Missing members of each role.
        follows : bool
            Whether partitions need followers.
        """
        assert job.membership is not None
        commands: list[e.Command] = []
        if job.horizon >= self._settings.iterations - 2:
            return commands
        for role, number in pending.items():
            if number:
                commands += self.ask_own(Change(ADDITION[role], number), Purpose.REPLACE, job)
        if follows and self.lacks_followers(job.membership):
            commands += self.ask_own(Change(Operation.FOLLOW, 1), Purpose.FOLLOW, job)
        return commands

    def lacks_followers(self, membership: Membership) -> bool:
        """Return whether a partition lacks its follower."""
        partitions, follows = membership.partitions, self._settings.followers and len(membership.servers) > 1
        return bool(follows) and not (partitions.followers and all(partitions.followers))

    def is_due(self, purpose: Purpose, now_s: float) -> bool:
        """Return whether the job may request a change of its own."""
        return self._retries[purpose].is_due(now_s)

    def _new(self, change: Change, purpose: Purpose, request_id: str, now_s: float) -> tuple[Plan, list[e.Command]]:
        plan = Plan(len(self.all) + 1, request_id, change, purpose=purpose)
        plan.reached_s[Phase.QUEUED] = now_s
        self.all[plan.plan_id] = plan
        asked = {"purpose": str(purpose), "request": request_id, "change": str(change)}
        return plan, [noted("asked", now_s, plan=plan.plan_id, **asked)]

    def _check(self, change: Change, job: PlanContext) -> tuple[Roster, Team, Team]:
        """Return the members after a change, and those that it would add and remove; raise if it is refused."""
        iterations = self._settings.iterations
        if job.exports or job.completed >= iterations:
            raise JobFinishedError(f"{change} refused: the job has finished its {iterations} iterations")
        if job.membership is None:
            raise PlanError(f"{change} refused: the job is still starting")
        if job.horizon >= iterations - 1:
            raise JobFinishedError(f"{change} refused: the last iteration ({iterations - 1}) has already been granted")
        return resolve(after_plans(roster(job), self.open, self._settings), change, self._settings)

    def _dry_run(self, change: Change, job: PlanContext) -> str:
        after, coming, going = self._check(change, job)
        assert job.membership is not None
        added, removed = (", ".join(team.members) or "none" for team in (coming, going))
        who = f"{change}: adds {added}, removes {removed}"
        ahead = len(self.queue) + (self.flight.driver is not None)
        if ahead:
            return f"{who}; {ahead} changes come first, so the moves are not known"
        return "\n".join([who, *plan_transfer(job.membership, coming, going, after.owners, job.copies).lines()])

    def cancel(self, plan_id: int) -> Plan | EpsError | None:
        """Return the plan to abort, an error if it cannot be aborted, or None if it was cancelled before."""
        plan = self.all.get(plan_id)
        if plan is None:
            return PlanError(f"there is no plan {plan_id}; the job has plans 1 to {len(self.all)}")
        if plan.phase is Phase.ABORTED and plan.reason == CANCELLED:
            # A client repeats the request if the answer was lost.
            return None
        if plan.phase in ENDED:
            return PlanError(f"plan {plan.plan_id} has already ended: {plan.phase}")
        if not plan.undecided:
            return PlanError(f"plan {plan.plan_id} is committed at clock {plan.commit_clock}; it cannot be cancelled")
        return plan

    def due_trigger(self, completed: int) -> Trigger | None:
        """Return the next trigger whose clock has come, once; None if there is none."""
        return self.triggers.pop(0) if self.triggers and completed >= self.triggers[0].clock else None

    def fire(self, trigger: Trigger, job: PlanContext) -> list[e.Command]:
        """Request the change of a trigger."""
        try:
            plan, commands = self.ask(trigger.change, Purpose.ASKED, job)
        except EpsError as error:
            return self.refuse(trigger, str(error), job.now_s)
        plan.asked_at = trigger.clock
        return commands

    def refuse(self, trigger: Trigger, reason: str, now_s: float) -> list[e.Command]:
        """Record a trigger that is refused as an aborted change."""
        plan = Plan(len(self.all) + 1, "", trigger.change, reason=reason, asked_at=trigger.clock)
        plan.reached_s[Phase.QUEUED] = now_s
        plan.enter(Phase.ABORTED, now_s)
        self.all[plan.plan_id] = plan
        return [noted("aborted", now_s, plan=plan.plan_id, reason=reason)]

    # ---- the plan in flight

    def may_drain(self, now_s: float) -> bool:
        """Return whether a drain may start now, possibly by aborting the plan in flight."""
        return self.flight.committed is None and self.is_due(Purpose.DRAIN, now_s)

    def drain(self, names: Collection[MemberId], now_s: float) -> list[e.Command]:
        """Queue a plan that drains members, before all others."""
        plan, commands = self._new(Change(Operation.DRAIN, len(names), tuple(names)), Purpose.DRAIN, "", now_s)
        self.queue.insert(0, plan)
        return commands

    def arrange(self, purpose: Purpose, now_s: float) -> list[e.Command]:
        """Queue a plan that changes what containers host, before all others."""
        self._retries[purpose] = self._retries[purpose].tried(now_s)
        plan, commands = self._new(Change(Operation.TIERS, 0), purpose, "", now_s)
        self.queue.insert(0, plan)
        return commands

    def propose(self, plan: Plan, job: PlanContext) -> list[e.Command]:
        """Start a plan, while none is in flight.

        Raises
        ------
        PlanError
            The change has become impossible.
        """
        commands = self.flight.propose(plan, job, self._settings)
        if plan in self.queue:
            self.queue.remove(plan)
        return commands

    def late(self, job: PlanContext) -> tuple[str, tuple[MemberId, ...]]:
        """Return why to abort the plan in flight after a timeout, and the newcomers without which it continues."""
        shrink = next((str(plan.change) for plan in self.queue if plan.change.removes_members), "")
        return self.flight.late(job, shrink, self._settings.iterations)

    def step(self, horizon: int, now_s: float, may_commit: bool = True) -> Stepped | None:
        """Advance the plan in flight by one phase; return None if something is missing or no plan is in flight."""
        stepped = self.flight.step(horizon, now_s, may_commit)
        if stepped is not None and stepped.released is not None and stepped.released.purpose in self._retries:
            self._retries[stepped.released.purpose] = self._retries[stepped.released.purpose].succeeded()
        return stepped

    def abort(self, plan: Plan, reason: str, now_s: float, *, failed: bool = True) -> list[e.Command]:
        """Abort an uncommitted plan.  If it ``failed`` and is the job's own, it is retried only after a pause."""
        plan.reason = reason
        if plan in self.queue:
            self.queue.remove(plan)
        plan.enter(Phase.ABORTED, now_s)
        retry = self._retries.get(plan.purpose)
        if retry is not None:
            self._retries[plan.purpose] = retry.failed(now_s) if failed else replace(retry, due_s=now_s)
        record = synced("aborted", now_s, plan=plan.plan_id, reason=reason)
        return [record, *self.flight.aborted(plan)]

    def validate(self) -> None:
        """Assert that one plan at a time changes the job, and that each is where its phase says."""
        live = [plan for plan in self.all.values() if plan.phase not in (*ENDED, Phase.QUEUED)]
        assert live == ([self.flight.plan] if self.flight.plan is not None else []), (
            "one plan changes the job at a time"
        )
        assert self.queue == [plan for plan in self.all.values() if plan.phase is Phase.QUEUED]
        self.flight.validate()
