"""The job master when members are lost: lets the rest take over, goes back where it must, replaces.  L0, pure.

The second layer of :class:`eps.core.master_state.MasterState`.  What is decided is in :mod:`eps.core.recovery`; here is
when, and what must be said.

Source: design sections 4 and 5; Proteus §3.3; Spotnik §4.
"""

from __future__ import annotations

from abc import abstractmethod

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import CheckpointDriver
from eps.core.events import JobState
from eps.core.master_members import JobMembers
from eps.core.membership import Membership
from eps.core.plan_driver import REGISTRATION_PATIENCE_S
from eps.core.reconfig import Change, Operation, Phase, Plan, Purpose
from eps.core.recovery import (
    MOST_FRUITLESS,
    STARTING_NUM,
    STARTING_S,
    TAKEN_PATIENCE_S,
    GoingBack,
    Loss,
    LossOutcome,
    Recovery,
    Start,
    measured_again,
    roll_back,
    take_over,
)
from eps.core.settings import CoreSettings
from eps.core.types import MemberId, Role
from eps.core.waiting import TOLD_S, containers_waited_for
from eps.errors import EpsError

#: A job that is smaller than it was asked to be asks for containers this often.
REPLACE_S = 1.0
#: What fails again and again is tried about once a minute in the end.
MOST_DOUBLINGS = 6
_ADDITION = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}


class RecoveringJob(JobMembers):
    """A job that outlives its members.

    Parameters
    ----------
    settings, num_workers, num_servers
        As of :class:`~eps.core.master_members.JobMembers`.
    """

    def __init__(self, settings: CoreSettings, num_workers: int, num_servers: int) -> None:
        super().__init__(settings, num_workers, num_servers)
        #: How many members of each role were asked for; those that are lost are replaced.
        self.wanted = {Role.WORKER: num_workers, Role.SERVER: num_servers}
        self._recoveries = 0
        #: Incidents since the job got further in which members ended by themselves, and those in which they were taken.
        self._fruitless = self._taken = 0
        #: When the first of the latter was.
        self._taken_since_s = 0.0
        #: Container of a member that fell silent -> its name, the reason, and whether others were lost with it: how the
        #: container ends says whether that counts.
        self._silenced: dict[str, tuple[MemberId, str, bool]] = {}
        #: When the first of those was lost that fell silent together while the job started.
        self._silence_s = -1.0
        #: The first incomplete clock when the last loss was counted, or where the job has gone back to since.
        self._counted_at = settings.first_clock
        self._replace_at_s = 0.0
        #: Replacements that were aborted, one after the other.
        self._not_replaced = 0
        #: Every member that was lost, oldest first.
        self.losses: list[Loss] = []
        #: Each time that the job went back, oldest first.
        self.goings_back: list[GoingBack] = []

    #: When checkpoints are taken, and which there are.
    checkpoints: CheckpointDriver

    @abstractmethod
    def _abort(self, plan: Plan, reason: str) -> None: ...

    @abstractmethod
    def _end(self, state: JobState, reason: str) -> None: ...

    @abstractmethod
    def _on_clock(self, report: m.ClockReported, at_s: float) -> None: ...

    @abstractmethod
    def _accept(self, change: Change, purpose: Purpose, request_id: str = "") -> Plan: ...

    @abstractmethod
    def _announced(self, name: MemberId) -> bool:
        """Return whether it was said before that a member's container would be taken away."""

    # ---- a member ends

    def _on_exited(self, event: e.ContainerExited | e.MemberLost) -> None:
        record = self._by_container.pop(event.container_id, None)
        if record is None:
            self._on_end_of_silenced(event)
            return
        name, driver = record.name, self.driver
        self.members.pop(name, None)
        if driver is not None and name in driver.plan.removed and driver.plan.phase is Phase.SWITCHED:
            if name in driver.released:
                driver.exited.add(name)
                self._out.append(e.ReleaseContainer(event.container_id))
                return
        if driver is not None and name in driver.plan.added and driver.plan.undecided:
            self._abort(driver.plan, f"{name} ended before it took part: {event.reason}")
        elif self.recovery is not None and name in self.recovery.newcomers:
            # Somebody else is asked for in its place.
            del self.recovery.newcomers[name], self.recovery.roles[name]
            if self._note_loss(name, event):
                self.losses[-1].outcome = LossOutcome.REPLACED
        elif self.membership is None:
            together = isinstance(event, e.MemberLost) and record.launched_s <= self._silence_s
            if isinstance(event, e.MemberLost) and not together:
                self._silence_s = self._now_s
            if name in self._initial and self._note_loss(name, event, together=together):
                self.losses[-1].outcome = LossOutcome.REPLACED
                self._request_container(name, record.role)
        elif name in self.membership.members or (driver is not None and name in driver.concerned):
            self._lose(name, event)

    def _lose(self, name: MemberId, event: e.ContainerExited | e.MemberLost) -> None:
        """Begin to recover from the loss of a member, or of one more."""
        reason = event.reason
        if not self._note_loss(name, event, together=self.recovery is not None):
            return
        if self.driver is not None and self.driver.plan.undecided:
            self._abort(self.driver.plan, f"{name} ended unexpectedly: {reason}")
        before = self.recovery
        self._recoveries += 1
        self.recovery = Recovery(
            self._recoveries,
            {**(before.lost if before else {}), name: reason},
            newcomers=before.newcomers if before else {},
            roles=before.roles if before else {},
            must_go_back=before.must_go_back if before else self._going_back(),
            unreadable=before.unreadable if before else "",
        )
        self._ask()

    def _going_back(self) -> bool:
        """Return whether somebody may not have gone back yet: then what members hold is of two incarnations."""
        return self.membership is not None and self.membership.goes_back and bool(self._unacked)

    def _note_loss(self, name: MemberId, event: e.ContainerExited | e.MemberLost, *, together: bool = False) -> bool:
        """Write a loss down; return False where it ends the job, because nothing is gained by going on.

        Members that are lost ``together`` are one loss; newcomers that do not take part are each one more.
        """
        self._journal({"kind": "lost", "member": name, "reason": event.reason})
        self.losses.append(Loss(name, event.reason, self.progress.completed, self._now_s))
        # The end of who is evicted says nothing about the job.
        if self._announced(name):
            return self._count_loss(name, event.reason, together, taken=True)
        if isinstance(event, e.MemberLost):
            # A machine that was lost falls silent, and so does who hangs: the end of its container tells.
            self._silenced[event.container_id] = name, event.reason, together
            return True
        return self._count_loss(name, event.reason, together, event.taken)

    def _on_end_of_silenced(self, event: e.ContainerExited | e.MemberLost) -> None:
        if event.container_id in self._silenced and isinstance(event, e.ContainerExited):
            self._count_loss(*self._silenced.pop(event.container_id), event.taken)

    def _count_loss(self, name: MemberId, reason: str, together: bool, taken: bool) -> bool:
        """Count a loss; return False where it ends the job.

        Who ends by itself again and again dies of what the job does.  What the cluster takes or loses says nothing of
        that, and only has to end some time.
        """
        if self.progress.completed > self._counted_at:
            # A clock that is completed again after going back counts, too: the job makes progress.
            self._fruitless = self._taken = 0
            self._counted_at = self.progress.completed
        starts = self.membership is None
        limit = STARTING_NUM if starts else MOST_FRUITLESS
        also = ""
        if taken and not together:
            self._taken_since_s = self._taken_since_s if self._taken else self._now_s
            self._taken += 1
            lasted_s = self._now_s - self._taken_since_s
            if self._taken >= limit and lasted_s >= (STARTING_S if starts else TAKEN_PATIENCE_S):
                also = f"the cluster took members {self._taken} times within {lasted_s:.0f} s"
        elif not together:
            self._fruitless += 1
            if self._fruitless >= limit:
                also = f"{self._fruitless} members ended like that"
        if also:
            why = f"{name} ended unexpectedly: {reason}; {also} without one complete clock between them"
            self._end(JobState.FAILED, why)
        return not also

    def _ask(self) -> None:
        assert self.recovery is not None and self.membership is not None
        for to, order in self.recovery.orders(self.membership):
            self._send(to, order)

    # ---- who takes over

    def _recover(self) -> None:
        """Decide who takes over as soon as everybody who is left has answered."""
        recovery, before = self.recovery, self.membership
        assert recovery is not None and before is not None
        for role in recovery.empty_roles(before):
            name = self._new_name(role)
            recovery.newcomers[name], recovery.roles[name] = None, role
            self._request_container(name, role)
        if recovery.missing(before):
            return
        membership = None if recovery.must_go_back else take_over(before, recovery, self.settings)
        if membership is None:
            membership = roll_back(before, recovery, self._start_again())
        else:
            for inventory in recovery.inventories.values():
                for report in inventory.results:
                    self._on_clock(report, self._now_s)
            if not self.settings.bsp:
                membership = measured_again(membership, self.progress.next_clocks())
        self.recovery = None
        self._adopt(membership, recovery)

    def recovery_waits_for(self, now_s: float) -> str:
        """Return which newcomers stand between the job and who takes over, as a sentence; empty where it is not long.

        Those that are left have said what they have within moments, or are lost, too.
        """
        names = self.recovery.newcomers if self.recovery is not None else ()
        records = [self.members[name] for name in names if self.members[name].address is None]
        waits = containers_waited_for([record for record in records if not record.launched], now_s)
        late = [r.name for r in records if r.launched and now_s - r.launched_s >= TOLD_S]
        return " and ".join(
            part for part in (waits, f"waits for {', '.join(late)} to register" if late else "") if part
        )

    def _replace_silent(self) -> None:
        """Give up the newcomers of a recovery that do not register; others are asked for in their place."""
        for name, address in list(self.recovery.newcomers.items()) if self.recovery is not None else ():
            record = self.members[name]
            if address is None and record.launched and self._now_s - record.launched_s >= REGISTRATION_PATIENCE_S:
                self._out.append(e.ReleaseContainer(record.container_id))
                reason = f"did not register within {REGISTRATION_PATIENCE_S:g} s"
                self._on_exited(e.ContainerExited(record.container_id, reason))

    def _start_again(self) -> Start:
        """Return where a job that lost parameters begins again: at its latest checkpoint, or at its seed."""
        if self.checkpoints.complete:
            return self.checkpoints.complete[-1]
        return Start("", self.settings.seeded_clock)

    def _on_unusable(self, report: m.CheckpointUnusable) -> None:
        """Go back further, where a member could not read the checkpoint that the job went back to."""
        now = self.membership
        if now is None or self.recovery is not None:
            return
        resumed = now.version == 1 and self.settings.resumed_clock is not None
        resumes = resumed and any(start.checkpoint == report.checkpoint for start in self.checkpoints.complete)
        if not resumes and not (now.goes_back and now.checkpoint == report.checkpoint):
            return
        self._out.extend(self.checkpoints.unusable(report.checkpoint, report.message, self._now_s))
        self._recoveries += 1
        why = f"{report.name} cannot read checkpoint {report.checkpoint}: {report.message}"
        self.recovery = Recovery(self._recoveries, must_go_back=True, unreadable=why)
        self._ask()

    def _adopt(self, membership: Membership, recovery: Recovery) -> None:
        before = self.membership
        assert before is not None
        back = membership.goes_back
        self.membership = membership
        self.memberships.append(membership)
        self._journal(
            {
                "kind": "rolled-back" if back else "taken-over",
                "lost": sorted(recovery.lost),
                "version": membership.version,
                "clock": membership.from_clock,
                "incarnation": membership.incarnation,
                "workers": list(membership.workers),
                "servers": list(membership.servers),
                "owners": list(membership.partitions.owners),
                "active": list(membership.splits.active),
            },
            sync=True,
        )
        servers = sorted(name for name in recovery.lost if name in before.servers)
        if back:
            self._note_going_back(max(0, membership.from_clock), before, recovery)
        for loss in self.losses:
            if loss.name in recovery.lost and loss.outcome is LossOutcome.OPEN:
                loss.outcome = LossOutcome.TAKEN_OVER
        if back:
            epoch = self.checkpoints.epoch + 1
            self._out.extend(self.checkpoints.go_back(epoch, membership.from_clock, self._now_s))
        elif servers:
            self._out.extend(self.checkpoints.abandon(f"lost with {', '.join(servers)}", self._now_s))
        if back:
            self.progress.roll_back(membership.from_clock)
            self._counted_at = membership.from_clock
            self.horizon = membership.from_clock - 1
            if self.state is JobState.EXPORTING:
                self.state = JobState.RUNNING
        leaving: tuple[MemberId, ...] = ()
        if self.driver is not None:
            # A released member owes nothing; its shutdown order may come at any moment.
            leaving = tuple(n for n in self.driver.plan.removed if n in self.members and n not in self.driver.released)
            self.driver.take_over(membership, recovery.lost, rolled_back=back)
        self._announce()
        for name in leaving:
            self._send(name, self._membership_order())

    def _note_going_back(self, to: int, before: Membership, recovery: Recovery) -> None:
        """Write down that the job goes back; where it had not begun again since the last time, both are one."""
        clock, lost, unreadable = max(0, self.progress.completed), dict(recovery.lost), recovery.unreadable
        servers = [name for name in recovery.lost if name in before.servers]
        if before.goes_back and recovery.must_go_back:
            last = self.goings_back.pop()
            clock, lost, servers = last.clock, {**last.lost, **lost}, [*last.servers, *servers]
            unreadable = "; ".join(filter(None, (last.unreadable, unreadable)))
        self.goings_back.append(GoingBack(clock, to, self._now_s, lost, unreadable, tuple(servers)))
        for loss in self.losses:
            if loss.name in lost and loss.outcome in (LossOutcome.OPEN, LossOutcome.ROLLED_BACK):
                loss.outcome, loss.back_to = LossOutcome.ROLLED_BACK, to

    # ---- the size that was asked for

    def _replace(self) -> None:
        """Ask for members in the place of those that were lost, and for followers where they are missing."""
        assert self.membership is not None
        if self._now_s < self._replace_at_s or self.horizon >= self.settings.iterations - 2:
            return
        self._replace_members()
        unfollowed = any(not self.membership.partitions.followers_of(p) for p in range(self.settings.num_partitions))
        if unfollowed and self.settings.followers and len(self.membership.servers) > 1:
            self._replace_at_s = self._now_s + self._replace_interval_s
            self._accept(Change(Operation.FOLLOW, 1), Purpose.FOLLOWERS)

    @property
    def _replace_interval_s(self) -> float:
        """How long to wait before members are asked for again: longer where it has not helped."""
        return float(REPLACE_S * 2 ** min(self._not_replaced, MOST_DOUBLINGS))

    def _note_own_plan(self, plan: Plan) -> None:
        """Take in how a plan ended that the job itself asked for."""
        if plan.purpose.keeps_size or plan.purpose is Purpose.FOLLOWERS:
            if plan.phase is Phase.ABORTED:
                self._not_replaced += 1
                self._replace_at_s = max(self._replace_at_s, self._now_s + self._replace_interval_s)
            else:
                self._not_replaced = 0

    def _replace_members(self) -> None:
        for role in Role:
            self._ask_for(role, self._lack(role), Purpose.SIZE)

    def _lack(self, role: Role) -> int:
        """Return how many members of a role are to be asked for now, as far as the job is too small."""
        assert self.membership is not None
        return max(0, self.wanted[role] - len(self.membership.of_role(role)))

    def _ask_for(self, role: Role, count: int, purpose: Purpose) -> None:
        """Ask for so many members of a role."""
        if count <= 0:
            return
        self._replace_at_s = self._now_s + self._replace_interval_s
        try:
            self._accept(Change(_ADDITION[role], count), purpose)
        except EpsError as error:
            self._journal({"kind": "not-replaced", "role": str(role), "count": count, "reason": str(error)})
