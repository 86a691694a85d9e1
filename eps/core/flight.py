"""The plan in flight: proposed, stepped through its phases, committed, released or aborted.  Pure.  L0.

Source: EPS §3.2, §3.3; design section 4 (one plan commits at a time).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eps.core import events as e
from eps.core import messages as m
from eps.core.changes import Roster, resolve
from eps.core.events import noted, synced
from eps.core.members import Member
from eps.core.membership import Membership
from eps.core.plan_driver import Orders, PlanDriver, follow_transfer, plan_transfer
from eps.core.reconfig import TRANSITIONS, Operation, Phase, Plan, Purpose
from eps.core.settings import CoreSettings
from eps.core.types import MemberId, Role

#: A request of lent members is taken back when none was granted for so long: one that stands takes what others are
#: given meanwhile.
REGAIN_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What plans must know of a job at one moment."""

    #: None while the job starts.
    membership: Membership | None
    #: Role -> number of the next member.
    next_number: Mapping[Role, int]
    completed: int
    horizon: int
    #: The job is trained.
    exports: bool
    now_s: float


def roster(job: Standing) -> Roster:
    """Return the members that there are now."""
    assert job.membership is not None
    numbers = job.next_number
    return Roster(job.membership.workers, job.membership.servers, numbers[Role.WORKER], numbers[Role.SERVER])


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one step of the plan in flight says, and whether it was its commit or its release."""

    commands: list[e.Command]
    committed: Plan | None = None
    released: Plan | None = None


class Flight:
    """The plan that is changing the job now, if there is one."""

    def __init__(self) -> None:
        self.driver: PlanDriver | None = None
        #: Turn of the last plan that was proposed.
        self._turn = 0
        #: Turn of the last plan aborted after its proposal, until a later one is released: aborts are not acknowledged.
        self._aborted = 0

    @property
    def plan(self) -> Plan | None:
        """The plan; None where none is in flight."""
        return self.driver.plan if self.driver is not None else None

    @property
    def uncommitted(self) -> Plan | None:
        """The plan while it may still be aborted."""
        return self.plan if self.plan is not None and self.plan.undecided else None

    @property
    def committed(self) -> Plan | None:
        """The plan while it can only go forward."""
        return self.plan if self.plan is not None and not self.plan.undecided else None

    def propose(self, plan: Plan, job: Standing, settings: CoreSettings) -> list[e.Command]:
        """Begin with a plan; none is in flight.

        Raises
        ------
        PlanError
            It cannot happen any more.
        """
        assert job.membership is not None and self.driver is None
        _, coming, going = resolve(roster(job), plan.change, settings)
        if plan.change.operation is Operation.FOLLOW:
            transfer = follow_transfer(job.membership)
        else:
            transfer = plan_transfer(job.membership, coming, going)
        plan.coming, plan.going, plan.transfer = coming, going, transfer
        self._turn = plan.turn = max(plan.plan_id, self._turn + 1)
        plan.enter(Phase.PROPOSED, job.now_s)
        self.driver = PlanDriver(plan, job.membership, transfer, waits_since_s=job.now_s)
        moves = [[v.item, v.source, v.target] for v in transfer.partition_moves + transfer.split_moves]
        members = {"added": list(plan.added), "removed": list(plan.removed)}
        return [noted("proposed", job.now_s, plan=plan.plan_id, **members, moves=moves)]

    def step(self, horizon: int, now_s: float) -> Stepped | None:
        """Move the plan one phase on; None where something is missing, or there is none.

        It commits just after the horizon: no worker can have started that clock, so none has to stop.
        """
        driver = self.driver
        if driver is None or driver.missing():
            return None
        plan = driver.plan
        following = next(phase for phase in TRANSITIONS[plan.phase] if phase is not Phase.ABORTED)
        if following is Phase.COMMITTED:
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
        """Let go of a plan that was aborted, if it is the one in flight; tell its members."""
        driver = self.driver
        if driver is None or driver.plan is not plan:
            return []
        self.driver, self._aborted = None, plan.turn
        return [e.Send(name, m.AbortPlan(plan.turn)) for name in driver.before.members]

    def late(self, job: Standing, shrink: str, iterations: int) -> tuple[str, tuple[MemberId, ...]]:
        """Return why the plan must be aborted for waiting, and the newcomers that it goes on without.

        Parameters
        ----------
        shrink : str
            The removal that waits behind it; empty for none.
        """
        driver = self.driver
        if driver is None or driver.plan.phase is not Phase.PROPOSED:
            return "", ()
        last = job.completed >= iterations - 1
        if last and driver.plan.purpose.keeps_size:
            # No user asked for that: the last iteration is not to wait for processes that train nothing.
            return "only the last iteration was left, for which nobody else is needed", ()
        overdue = driver.overdue(job.now_s, shrink, last)
        if overdue or driver.plan.purpose not in (Purpose.REGAIN, Purpose.LEND):
            return overdue, ()
        waiting = tuple(name for name in driver.plan.added if name not in driver.granted)
        # Free room is not granted all at once: YARN gives a container for each node and heartbeat.
        if not waiting or job.now_s - driver.waits_since_s < REGAIN_PATIENCE_S:
            return "", ()
        if not driver.granted:
            return f"not granted within {REGAIN_PATIENCE_S:g} s: no room is free, or none in one piece", ()
        return "", waiting

    def go_on_with_granted(self, now_s: float) -> list[e.Command]:
        """Go on without the newcomers that have no container: to ask for as many again would be in vain again."""
        assert self.driver is not None
        before = self.driver.plan.added
        self.driver = self.driver.with_granted(now_s)
        without = [name for name in before if name not in self.driver.plan.added]
        return [noted("smaller", now_s, plan=self.driver.plan.plan_id, without=without)]

    # ---- its members

    def follow(self, member: Member | None, now_s: float) -> bool:
        """Take in how far a newcomer is; return False where it is none."""
        if self.driver is None or member is None or member.name not in self.driver.plan.added:
            return False
        self.driver.follow(member.name, member.phase, member.address, now_s)
        return True

    def is_newcomer(self, name: MemberId) -> bool:
        """Return whether the plan adds a member, and is not committed."""
        return self.uncommitted is not None and name in self.uncommitted.added

    def concerns(self, name: MemberId) -> bool:
        """Return whether the plan counts on a member."""
        return self.driver is not None and name in self.driver.concerned

    def is_drained(self, name: MemberId) -> bool:
        """Return whether a member that leaves has released everything, so that nothing of it is needed any more."""
        return self.driver is not None and name in self.driver.plan.removed and name in self.driver.released

    def leaving(self) -> tuple[MemberId, ...]:
        """Return the members that leave by a committed plan and have not released everything."""
        if self.driver is None or self.committed is None:
            return ()
        return tuple(name for name in self.committed.removed if name not in self.driver.released)

    def owing(self) -> tuple[MemberId, ...]:
        """Return the workers that leave by a committed plan: they owe the clocks before its commit."""
        return self.committed.going.workers if self.committed is not None else ()

    def exited(self, name: MemberId) -> bool:
        """Take in that a member ended; return whether that is what the plan waits for."""
        if self.driver is None or self.driver.plan.phase is not Phase.SWITCHED or not self.is_drained(name):
            return False
        self.driver.exited.add(name)
        return True

    def hear(self, report: m.Report) -> list[e.Command]:
        """Take a report in; end the members that may end now.

        Raises
        ------
        TransferError
            A checksum at the receiver differs from the sender's.
        """
        if self.driver is None:
            return []
        before = self.driver.ending()
        self.driver.hear(report)
        return [e.Send(name, m.Shutdown("removed from the job")) for name in self.driver.ending() if name not in before]

    def take_over(self, membership: Membership, lost: Iterable[MemberId]) -> None:
        """Go on under the membership that takes over from lost members."""
        if self.driver is not None:
            self.driver.take_over(membership, lost, rolled_back=membership.goes_back)

    def turn_of_membership(self) -> int:
        """Return the turn of the plan that the membership is of; 0 where it is of none.

        A plan that is not committed has no part in it: members keep what a plan brought whose turn they hear.
        """
        return self.committed.turn if self.committed is not None else 0

    def orders(self, members: Iterable[MemberId]) -> Orders:
        """Return the orders whose effect is missing, and the abort that members may not have heard of."""
        if self.driver is not None:
            return self.driver.orders()
        return [(name, m.AbortPlan(self._aborted)) for name in members] if self._aborted else []

    def validate(self) -> None:
        """Assert that the plan is alive, and that turns only grow."""
        assert self.driver is None or (not self.driver.plan.ended and self.driver.plan.turn == self._turn)
        assert self._aborted <= self._turn


def _records(plan: Plan, now_s: float) -> list[e.Command]:
    """Return what is written down when a plan has entered its phase."""
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
