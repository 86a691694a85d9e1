"""The job master as a pure state machine: ``step(event, now_s) -> commands``.

Driver contract: 1 one owner calls ``step``, never re-entrantly; 2 commands are executed in list order, and a
``Journal`` command with ``sync`` is on disk before the next one; 3 every container that is requested ends in exactly
one ``ContainerExited``; 4 ``Tick`` comes at least every second; 5 array bytes never enter an event.

L0: no I/O, no clock, no threads.  The same class runs live, in tests and in the simulator.

Source: EPS §3.1.3 (global decision making), §3.2, §3.3, §5.2 (the four calls); design sections 4 to 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eps.core import events as e
from eps.core import messages as m
from eps.core.changes import Roster, after_plans, resolve
from eps.core.checkpoints import CheckpointDriver, Schedule
from eps.core.events import ENDED_STATES, Command, JobState
from eps.core.invariants import check_master
from eps.core.plan_driver import Orders, PlanDriver, follow_transfer, plan_transfer
from eps.core.reconfig import ENDED, OPERATIONS, Change, Operation, Phase, Plan, Purpose
from eps.core.repeats import Repeats
from eps.core.restart import RestartedJob
from eps.core.settings import CoreSettings, Trigger
from eps.core.types import MemberId, Role, Team
from eps.errors import DIVERGED, EpsError, JobFinishedError, PlanError, TransferError

#: Why a plan was aborted that its user gave up.
CANCELLED = "cancelled"
#: An export that failed is tried again after this long, and this often in all.
EXPORT_AGAIN_S = 0.5
MOST_EXPORTS = 4


class MasterState(RestartedJob):
    """Membership, clocks and plans of one job.

    Parameters
    ----------
    settings : CoreSettings
    num_workers, num_servers : int
        The size that the job starts with.
    triggers : iterable of Trigger
        Changes that are asked at a clock.
    stop_on_divergence : bool
        A loss that is not finite fails the job.
    checkpoints : CheckpointDriver, optional
        When checkpoints are taken; by default never.
    first_container : int
        Number of the first container: log files of an earlier run have those before.
    managed : bool
        Somebody else decides about the job's size: what is taken away of it is not asked for again.
    interchangeable : collection of Role
        Roles in whose room one of the other can be had.
    start_with : float
        The part of its workers, and of its servers, with which the job may begin, 0 to 1.
    seed : str
        Differs from job to job.
    """

    def __init__(
        self,
        settings: CoreSettings,
        num_workers: int,
        num_servers: int,
        triggers: Iterable[Trigger] = (),
        *,
        stop_on_divergence: bool = True,
        checkpoints: CheckpointDriver | None = None,
        first_container: int = 1,
        managed: bool = False,
        interchangeable: Collection[Role] = tuple(Role),
        start_with: float = 0.5,
        seed: str = "",
    ) -> None:
        super().__init__(settings, num_workers, num_servers)
        self._managed, self._interchangeable = managed, interchangeable
        self._start_with, self._seed = start_with, seed
        self._next_container = first_container
        self._queue: list[Plan] = []
        self._triggers = sorted(triggers, key=lambda t: t.clock)
        self._answers: dict[str, e.Answer] = {}
        #: Turn of the last plan that was proposed.
        self._turn = 0
        #: The last plan aborted after its proposal, until a later one is released: nobody acknowledges an abort.
        self._aborted = 0
        self._stop_on_divergence = stop_on_divergence
        self.checkpoints = checkpoints or CheckpointDriver(Schedule(), settings.num_partitions, settings.iterations)
        self._repeats = Repeats()
        #: Number of the export that runs, or ran last.
        self._export = 0
        #: What the export found that ended the job (:class:`eps.core.events.ExportDone`), for the report; empty before.
        #: One from before the job went back to a checkpoint may end later than the one that counts, or not at all.
        self.exported: Mapping[str, Any] = {}
        self._export_again_s: float | None = None

    # ---- entry

    def start(self, now_s: float) -> list[Command]:
        """Ask for the first containers."""
        self._out, self._now_s = [], now_s
        workers, servers = (len(self._initial_of(role)) for role in Role)
        self._journal({"kind": "started", "workers": workers, "servers": servers}, sync=True)
        for name, role in self._initial.items():
            self._request_container(name, role)
        return self._out

    def step(self, event: e.Event, now_s: float) -> list[Command]:
        """Take one event in and return what to do, in order."""
        self._out, self._now_s = [], now_s
        self.steps += 1
        if self.state in ENDED_STATES:
            self._after_the_end(event)
            return self._out
        match event:
            case e.ContainerGranted(container_id):
                self._on_granted(container_id)
            case e.ContainerLaunched():
                self._on_launched(event)
            case e.ContainerExited() | e.MemberLost():
                self._on_exited(event)
            case e.ContainersWarned():
                self._on_warned(event)
            case e.RoomSeen():
                self._on_room(event)
            case e.MemberRegistered():
                self._on_registered(event)
            case e.ReportReceived(report, age_s):
                self._on_report(report, age_s)
            case e.ChangeRequested():
                self._on_change(event)
            case e.CancelRequested():
                self._on_cancel(event)
            case e.KillRequested(reason):
                self._end(JobState.KILLED, reason)
            case e.ResourcesLost(reason):
                self._end(JobState.FAILED, reason)
            case e.ExportDone(found, number):
                if self.export_counts(number):
                    self.exported = found or {}
                    self._end(JobState.FINISHED, "")
            case e.ExportFailed(message, number):
                self._on_export_failed(message, number)
            case e.CheckpointDone() | e.CheckpointFailed() | e.CheckpointWaits():
                self._out.extend(self.checkpoints.finished(event, now_s))
            case e.MasterRestarted():
                self._on_restarted(event)
            case e.Tick(silent_s):
                self._on_tick(silent_s)
        self._advance()
        for command in self._out:
            if isinstance(command, e.Send):
                self._repeats.note(command.to, command.order, now_s)
        return self._out

    # ---- reports

    def _on_report(self, report: m.Report, age_s: float) -> None:
        match report:
            case m.MemberFailed(name, kind, message):
                if self.driver is not None and name in self.driver.plan.added and self.driver.plan.undecided:
                    self._abort(self.driver.plan, f"{name}: {kind}: {message}")
                elif name in self.members and not self._is_drained(name):
                    self._end(JobState.FAILED, f"{name}: {message}")
                return
            case m.TransferFailed(name, plan_id, message, target):
                self._on_transfer_failed(plan_id, f"{name}: {message}", target)
                return
            case m.ClockReported():
                self._on_clock(report, self._now_s - age_s)
                return
            case m.PeerReached():
                self._on_reached(report)
                return
            case m.CheckpointUnusable():
                self._on_unusable(report)
                return
            case m.Inventory():
                if self.recovery is not None:
                    self.recovery.hear(report)
                return
            case m.CheckpointPartWritten() | m.CheckpointPartFailed() | m.CheckpointPartWaits():
                self._out.extend(self.checkpoints.hear(report, self._now_s))
                return
            case m.MembershipAcked(name, version):
                if self.membership is not None and version == self.membership.version:
                    self._unacked.discard(name)
        if self.driver is not None:
            ending = self.driver.ending()
            try:
                self.driver.hear(report)
            except TransferError as error:
                self._on_transfer_failed(self.driver.plan.turn, str(error))
                return
            for name in self.driver.ending():
                if name not in ending:
                    self._send(name, m.Shutdown("removed from the job"))

    def _is_drained(self, name: MemberId) -> bool:
        """Whether a member that leaves has released everything, so that nothing of it is needed any more."""
        return self.driver is not None and name in self.driver.plan.removed and name in self.driver.released

    def _on_transfer_failed(self, turn: int, reason: str, target: MemberId = "") -> None:
        driver = self.driver
        if driver is not None and driver.plan.turn == turn and driver.plan.undecided:
            self._abort(driver.plan, reason)
            return
        needed = turn == 0 or (driver is not None and driver.plan.turn == turn)
        record = self.members.get(target)
        if needed and record is not None and record.role is Role.SERVER:
            # Its owner cannot serve what a follower that others count on does not get: it must not be counted on.
            self._out.append(e.KillContainer(record.container_id))
            self._on_exited(e.MemberLost(record.container_id, f"cannot be reached: {reason}"))

    def _on_clock(self, report: m.ClockReported, at_s: float) -> None:
        if self.membership is None or report.incarnation != self.membership.incarnation:
            return
        for record in self.progress.add(report.clock, report.results, at_s):
            loss = record.loss_sum
            if self._stop_on_divergence and (loss != loss or loss in (float("inf"), float("-inf"))):
                self._end(
                    JobState.FAILED,
                    f"the loss at clock {record.clock} is {loss}: {DIVERGED}; try a smaller learning rate",
                )
                return

    # ---- changes

    def _roster(self) -> Roster:
        """Return who is there now."""
        assert self.membership is not None
        return Roster(
            self.membership.workers,
            self.membership.servers,
            self._next_number[Role.WORKER],
            self._next_number[Role.SERVER],
        )

    def _expected_roster(self) -> Roster:
        """Return who will be there after every plan on its way."""
        in_flight = [self.driver.plan] if self.driver is not None and self.driver.plan.undecided else []
        return after_plans(self._roster(), in_flight + self._queue, self.settings)

    def asked_size(self) -> dict[Role, int]:
        """Return how many members of each role users have asked for, with every change that is not decided yet."""
        asked = dict(self.wanted)
        for plan in [*([self.driver.plan] if self.driver is not None else ()), *self._queue]:
            operation = plan.change.operation
            if operation in OPERATIONS and not plan.purpose.own:
                # One that was not granted all goes on with less.
                count = len(plan.added) or plan.change.count
                asked[operation.role] += count if operation.adds else -count
        return asked

    def _on_change(self, event: e.ChangeRequested) -> None:
        known = self._answers.get(event.request_id)
        if known is not None:
            asked = self.plans[known.plan_id]
            if (asked.change, asked.purpose) != (event.change, event.purpose):
                other = f"for {event.change}" if asked.change != event.change else "for that purpose"
                error = PlanError(f"request id {event.request_id!r} asked for {asked.change}, not {other}")
                known = e.Answer(event.request_id, error=error)
            self._out.append(known)
            return
        try:
            if event.dry_run:
                answer = e.Answer(event.request_id, text=self._dry_run(event.change))
            else:
                plan = self._accept(event.change, event.purpose, event.request_id)
                answer = self._answers[event.request_id] = e.Answer(event.request_id, plan.plan_id)
        except EpsError as refusal:
            answer = e.Answer(event.request_id, error=refusal)
        self._out.append(answer)

    def _accept(self, change: Change, purpose: Purpose, request_id: str = "") -> Plan:
        self._check(change)
        plan = self._new_plan(change, purpose, request_id)
        self._queue.append(plan)
        return plan

    def _check(self, change: Change) -> tuple[Team, Team]:
        """Return whom a change would add and remove; raise where it is refused."""
        if self.state is JobState.EXPORTING or self.progress.completed >= self.settings.iterations:
            raise JobFinishedError(f"{change} refused: the job has finished its {self.settings.iterations} iterations")
        if self.horizon >= self.settings.iterations - 1 and self.membership is not None:
            raise JobFinishedError(
                f"{change} refused: the last iteration ({self.settings.iterations - 1}) has been granted already"
            )
        if self.membership is None:
            raise PlanError(f"{change} refused: the job is still starting")
        return resolve(self._expected_roster(), change, self.settings)[1:]

    def _new_plan(self, change: Change, purpose: Purpose, request_id: str = "") -> Plan:
        plan = Plan(len(self.plans) + 1, request_id, change, purpose=purpose)
        plan.reached_s[Phase.QUEUED] = self._now_s
        self.plans[plan.plan_id] = plan
        asked = {"purpose": str(purpose), "request": request_id, "change": str(change)}
        self._journal({"kind": "asked", "plan": plan.plan_id, **asked})
        return plan

    def _dry_run(self, change: Change) -> str:
        added, removed = self._check(change)
        assert self.membership is not None
        who = f"{change}: adds {', '.join(added.members) or 'nobody'}, removes {', '.join(removed.members) or 'nobody'}"
        ahead = len(self._queue) + (self.driver is not None)
        if ahead:
            return f"{who}; {ahead} changes come first, so the moves are not known"
        return "\n".join([who, *plan_transfer(self.membership, added, removed).lines()])

    def _on_cancel(self, event: e.CancelRequested) -> None:
        plan = self.plans.get(event.plan_id)
        error: EpsError | None = None
        if plan is None:
            error = PlanError(f"there is no plan {event.plan_id}; the job has plans 1 to {len(self.plans)}")
        elif plan.phase is Phase.ABORTED and plan.reason == CANCELLED:
            # The request is repeated where its answer was lost.
            error = None
        elif plan.phase in ENDED:
            error = PlanError(f"plan {plan.plan_id} has ended already: {plan.phase}")
        elif not plan.undecided:
            error = PlanError(f"plan {plan.plan_id} is committed at clock {plan.commit_clock} and rolls forward")
        else:
            self._abort(plan, CANCELLED)
        self._out.append(e.Answer(event.request_id, event.plan_id, error=error))

    # ---- the plan in flight

    def _advance(self) -> None:
        """Do everything that has become possible."""
        if self.state in ENDED_STATES:
            return
        if self.recovery is not None:
            self._recover()
        if self.recovery is not None or self._unacked or self.membership is None:
            return
        if self.state is JobState.STARTING:
            self.state = JobState.RUNNING
        if self.state is JobState.EXPORTING and self._export_again_s is not None:
            if self._now_s >= self._export_again_s:
                self._start_export()
        if self.state is JobState.RUNNING:
            self._fire_triggers()
            self._go_on()
            if self.driver is None and not self._queue and not self.draining:
                self._replace()
            while self.driver is None and self._queue:
                self._propose(self._queue.pop(0))
                self._step_plans()
            self._out.extend(self.checkpoints.advance(self, self._now_s))
            self._grant()
            if self.progress.finished and self.driver is None and not self._queue:
                self.state = JobState.EXPORTING
                self._journal({"kind": "trained", "clock": self.settings.iterations}, sync=True)
                self._start_export()

    def _go_on(self) -> None:
        """Step the plan in flight; a drain comes before one that is not committed, and right after one that is."""
        self._drain()
        self._step_plans()
        if self.driver is None:
            self._drain()
            self._step_plans()

    def _step_plans(self) -> None:
        while self.driver is not None and self._step_plan():
            pass

    def _start_export(self) -> None:
        self._export += 1
        self._export_again_s = None
        self._out.append(e.StartExport(self._export))

    def export_counts(self, number: int) -> bool:
        """Return whether the job waits for the export of that number; one from before it went back does not count."""
        return number == self._export and self.state is JobState.EXPORTING

    def _give_again(self) -> None:
        self._repeats.reset()
        self.checkpoints.taken_over()
        if self.state is JobState.EXPORTING:
            self._out.append(e.StartExport(self._export))

    def _on_export_failed(self, message: str, number: int) -> None:
        if not self.export_counts(number):
            return
        if self._export >= MOST_EXPORTS:
            self._end(JobState.FAILED, message)
            return
        # A server may have ended meanwhile; then another one has what it had.
        self._export_again_s = self._now_s + EXPORT_AGAIN_S

    def _fire_triggers(self) -> None:
        while self._triggers and self.progress.completed >= self._triggers[0].clock:
            trigger = self._triggers.pop(0)
            try:
                self._accept(trigger.change, Purpose.ASKED).asked_at = trigger.clock
            except EpsError as error:
                plan = Plan(len(self.plans) + 1, "", trigger.change, asked_at=trigger.clock, reason=str(error))
                plan.reached_s[Phase.QUEUED] = self._now_s
                plan.enter(Phase.ABORTED, self._now_s)
                self.plans[plan.plan_id] = plan
                self._journal({"kind": "aborted", "plan": plan.plan_id, "reason": str(error)})

    def _propose(self, plan: Plan) -> None:
        assert self.membership is not None
        try:
            roster, added, removed = resolve(self._roster(), plan.change, self.settings)
            if plan.change.operation is Operation.FOLLOW:
                transfer = follow_transfer(self.membership)
            else:
                transfer = plan_transfer(self.membership, added, removed)
        except PlanError as error:
            self._abort(plan, str(error))
            return
        self._next_number = {Role.WORKER: roster.next_worker, Role.SERVER: roster.next_server}
        plan.coming, plan.going, plan.transfer = added, removed, transfer
        self._turn = plan.turn = max(plan.plan_id, self._turn + 1)
        plan.enter(Phase.PROPOSED, self._now_s)
        self._journal(
            {
                "kind": "proposed",
                "plan": plan.plan_id,
                "added": list(plan.added),
                "removed": list(plan.removed),
                "moves": [[v.item, v.source, v.target] for v in transfer.partition_moves + transfer.split_moves],
            }
        )
        self.driver = PlanDriver(plan, self.membership, transfer)
        for role in Role:
            for name in added.of_role(role):
                self._request_container(name, role)

    def _step_plan(self) -> bool:
        """Move the plan in flight one phase on if nothing is missing; return whether it moved."""
        driver = self.driver
        assert driver is not None
        plan = driver.plan
        if driver.missing():
            return False
        match plan.phase:
            case Phase.PROPOSED:
                plan.enter(Phase.PREPARED, self._now_s)
                self._journal({"kind": "prepared", "plan": plan.plan_id})
            case Phase.PREPARED:
                plan.enter(Phase.LISTS_UPDATED, self._now_s)
            case Phase.LISTS_UPDATED:
                plan.enter(Phase.COPIED, self._now_s)
                self._journal({"kind": "copied", "plan": plan.plan_id, "bytes": plan.bytes_moved})
            case Phase.COPIED:
                self._commit(driver)
            case Phase.COMMITTED:
                plan.enter(Phase.SWITCHED, self._now_s)
            case Phase.SWITCHED:
                plan.enter(Phase.RELEASED, self._now_s)
                self._journal({"kind": "released", "plan": plan.plan_id})
                self._note_own_plan(plan)
                self._count_size(plan)
                self.driver, self._aborted = None, 0
                return False
        self._out.extend(e.Send(to, order) for to, order in driver.orders())
        return True

    def _commit(self, driver: PlanDriver) -> None:
        """Commit just after the horizon: no worker can have started that clock, so nobody has to stop."""
        plan = driver.plan
        plan.commit_clock = self.horizon + 1
        plan.membership = driver.next_membership(plan.commit_clock)
        plan.enter(Phase.COMMITTED, self._now_s)
        self._journal(
            {
                "kind": "committed",
                "plan": plan.plan_id,
                "version": plan.membership.version,
                "clock": plan.commit_clock,
                "workers": list(plan.membership.workers),
                "servers": list(plan.membership.servers),
                "owners": list(plan.membership.partitions.owners),
                "active": list(plan.membership.splits.active),
                "inactive": [list(holders) for holders in plan.membership.splits.inactive],
            },
            sync=True,
        )
        self.membership = plan.membership
        self.memberships.append(plan.membership)

    def _abort(self, plan: Plan, reason: str) -> None:
        plan.reason = reason
        self._journal({"kind": "aborted", "plan": plan.plan_id, "reason": reason}, sync=True)
        if plan in self._queue:
            self._queue.remove(plan)
        plan.enter(Phase.ABORTED, self._now_s)
        self._note_own_plan(plan)
        driver = self.driver
        if driver is None or driver.plan is not plan:
            return
        self.driver, self._aborted = None, plan.turn
        for name in driver.before.members:
            self._send(name, m.AbortPlan(plan.turn))
        for name in plan.added:
            self._dismiss(name, f"plan {plan.plan_id} was aborted: {reason}")

    # ---- horizon, time, end

    @property
    def undecided(self) -> bool:
        """True while a change waits, is on its way, or is still to be asked: the last clock is held back."""
        in_flight = self.driver is not None and self.driver.plan.undecided
        return in_flight or bool(self._queue) or bool(self._triggers)

    def _grant(self) -> None:
        assert self.membership is not None
        wanted = self.progress.wanted_horizon(self.undecided, hurried=self.draining)
        step = max(1, self.progress.lookahead // 2)
        at_cap = wanted >= self.settings.iterations or self.undecided
        if wanted > self.horizon and (at_cap or wanted >= self.horizon + step or wanted < 2):
            self.horizon = wanted
            order = self._horizon_order()
            for name in self._horizon_audience():
                self._send(name, order)

    def _horizon_audience(self) -> tuple[MemberId, ...]:
        """Return the workers, with those that leave and still owe the clocks before the commit."""
        assert self.membership is not None
        leaves = self.driver is not None and not self.driver.plan.undecided
        return self.membership.workers + (self.driver.plan.going.workers if self.driver is not None and leaves else ())

    def _horizon_order(self) -> m.GrantHorizon:
        assert self.membership is not None
        return m.GrantHorizon(self.horizon, self.progress.completed, self.membership.version)

    def _on_tick(self, silent_s: float) -> None:
        self._replace_silent()
        if self.state in ENDED_STATES:
            return
        self._make_room()
        if self.driver is not None:
            shrink = next((str(p.change) for p in self._queue if not p.change.operation.adds), "")
            last = self.progress.completed >= self.settings.iterations - 1
            plan = self.driver.plan
            overdue = self.driver.overdue(self._now_s, shrink, last)
            if last and plan.phase is Phase.PROPOSED and plan.purpose.keeps_size:
                # Nobody has asked for that: the last iteration is not to wait for processes that train nothing.
                overdue = "only the last iteration was left, for which nobody else is needed"
            if overdue:
                self._abort(plan, overdue)
        self._look_at_return()
        self._look_at_start(silent_s)
        if self.state not in ENDED_STATES:
            self._out.extend(e.Send(to, order) for to, order in self._repeats.due(self._unacknowledged(), self._now_s))

    def _unacknowledged(self) -> Orders:
        """Return the orders whose effect is missing, and those that have no acknowledgement."""
        if self.membership is None:
            return []
        if self.recovery is not None:
            return self.recovery.orders(self.membership)
        orders = self.driver.orders() if self.driver is not None else []
        if self._unacked:
            told = self._membership_order()
            orders += [(name, told) for name in sorted(self._unacked)]
        if self._aborted and self.driver is None:
            abort = m.AbortPlan(self._aborted)
            orders += [(name, abort) for name in self.membership.members]
        if self.state is JobState.RUNNING and not self._unacked:
            grant = self._horizon_order()
            orders += [(name, grant) for name in self._horizon_audience()]
        return orders

    def _say_again(self, name: MemberId) -> None:
        """Tell a member that registered again everything that it has not acknowledged."""
        if self.membership is None or name not in self.members:
            return
        self._repeats.reset(name)
        if name in self.membership.members:
            # A commit on its way is said below, with the plan's number.
            if self.driver is None or self.driver.plan.undecided or name in self._unacked:
                self._send(name, self._membership_order())
            if self.recovery is not None:
                self._ask()
            elif self.state is JobState.RUNNING and not self._unacked and name in self.membership.workers:
                self._send(name, self._horizon_order())
            self._out.extend(self.checkpoints.say_again(name, self.membership.partitions.owned_by(name)))
        if self.driver is not None:
            self._out.extend(e.Send(to, order) for to, order in self.driver.orders() if to == name)

    def _end(self, state: JobState, reason: str) -> None:
        for plan in ([self.driver.plan] if self.driver else []) + list(self._queue):
            if plan.undecided:
                self._abort(plan, f"the job {state}" + (f": {reason}" if reason else ""))
        self.state, self.reason = state, reason
        self._journal({"kind": "ended", "state": str(state), "reason": reason}, sync=True)
        for name, record in sorted(self.members.items()):
            if record.address is not None:
                self._send(name, m.Shutdown(f"the job {state}"))
        self._out.append(e.EndJob(state, reason))

    def validate(self) -> None:
        """Assert what must always be true (design section 3); see :mod:`eps.core.invariants`."""
        check_master(self)
