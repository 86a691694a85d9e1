"""The state of a job, composed of parts: ``Job.step(event, now_s) -> commands``.

Each part is a state machine of its own and knows none of the others.  The job passes what one says to the next:

=============================  ========================================================================================
event                          parts, in this order
=============================  ========================================================================================
container granted, launched,   members -> plans (its newcomer) or recovery (its newcomer) or the first membership
registered
container exited, member lost  members -> plans (leaves, or comes) or recovery (loss, inquiry) -> evictions -> size
containers warned              evictions -> plans (a newcomer is warned: abort)
room seen                      size -> plans
report of a clock              progress
report of a plan's step        plans -> members (who may end)
inventory                      recovery
checkpoint part, done          checkpoints
change, cancel                 plans
export done, failed            export
tick                           recovery and plans (what waits too long) -> size (a job that starts) -> resent orders
master restarted               masters -> members -> plans, checkpoints, export (what is said again)
=============================  ========================================================================================

After every event the job does all that has become possible, in this order (:meth:`Job._advance`):

1. recovery: all have answered -> one membership -> members, progress, checkpoints, plans
2. plans: triggers; the drain of warned members (evictions -> plans); steps of the plan in flight -> members, size
3. size: what is missing -> plans
4. checkpoints, with what is known of the clocks; progress: the next clocks are granted
5. export, when all is trained

Driver contract: 1 one owner calls ``step``, never re-entrantly; 2 commands are executed in list order, and a
``Journal`` command with ``sync`` is on disk before the next one; 3 every container that is requested ends in exactly
one ``ContainerExited``; 4 ``Tick`` comes at least every second; 5 array bytes never enter an event.

L0: no I/O, no clock, no threads.  The same class runs live, in tests and in the simulator.

Source: EPS §3.1.3 (global decision making), §3.2, §3.3, §5.2 (the four calls); design sections 4 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from eps.core import checkpoints as c
from eps.core import events as e
from eps.core import messages as m
from eps.core.events import ENDED_STATES, Command, JobState
from eps.core.evictions import TAKEN_AWAY, Evictions, Outcome, may_go_on
from eps.core.export import Export
from eps.core.flight import Standing
from eps.core.masters import MISSING, Masters
from eps.core.members import Member, Members
from eps.core.membership import Membership
from eps.core.outbox import Outbox
from eps.core.plan_driver import REGISTRATION_PATIENCE_S, Orders
from eps.core.plans import CANCELLED, Plans
from eps.core.progress import Progress
from eps.core.reconfig import Change, Operation, Plan, Purpose
from eps.core.recovery import Recovery
from eps.core.settings import CoreSettings, Trigger
from eps.core.size import Size, StartStep
from eps.core.take_over import measured_again, roll_back, take_over
from eps.core.types import MemberId, Role
from eps.core.waiting import TOLD_S, containers_waited_for
from eps.errors import DIVERGED, EpsError, JobFinishedError, PlanError, TransferError

#: A job has failed if one of its first members was started and has not registered after this long.
START_PATIENCE_S = 300.0
#: Why a container is taken to have ended whose process did not outlive the master's.
ENDED_AWAY = "ended while the job master was away"
_ADDITION = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}


class Job:
    """Members, size, plans, clocks, recoveries and checkpoints of one job.

    Parameters
    ----------
    settings : CoreSettings
    num_workers, num_servers : int
        The size that the job starts with.
    triggers : iterable of Trigger
        Changes that are asked at a clock.
    stop_on_divergence : bool
        A loss that is not finite fails the job.
    checkpoints : Checkpoints, optional
        When checkpoints are taken; by default never.
    first_container : int
        Number of the first container: log files of an earlier run have those before.
    managed : bool
        A scheduler decides about the job's size: what is taken away of it is not asked for again.
    start_with : float
        The part of its workers, and of its servers, with which the job may begin, 0 to 1.
    seed : str
        Differs from job to job.

    Raises
    ------
    PlanError
        There would be more members than they have work for.
    """

    def __init__(
        self,
        settings: CoreSettings,
        num_workers: int,
        num_servers: int,
        triggers: Iterable[Trigger] = (),
        *,
        stop_on_divergence: bool = True,
        checkpoints: c.Checkpoints | None = None,
        first_container: int = 1,
        managed: bool = False,
        start_with: float = 0.5,
        seed: str = "",
    ) -> None:
        limits = (num_workers, settings.num_splits, "splits"), (num_servers, settings.num_partitions, "partitions")
        for role, (number, limit, items) in zip(Role, limits, strict=True):
            if not 1 <= number <= limit:
                raise PlanError(f"{number} {role}s for {limit} {items}: need 1 to {limit}")
        self.settings = settings
        self.state = JobState.STARTING
        #: Why the job ended as it did.
        self.reason = ""
        self.masters = Masters()
        self.members = Members(first_container)
        self.evictions = Evictions()
        self.size = Size(num_workers, num_servers, managed=managed, start_with=start_with, seed=seed)
        self.plans = Plans(settings, triggers)
        self.progress = Progress(settings)
        self.recovery = Recovery(settings.first_clock)
        self.checkpoints = checkpoints or c.Checkpoints(c.Schedule(), settings.num_partitions, settings.iterations)
        self.export = Export()
        self._stop_on_divergence = stop_on_divergence
        self.out = Outbox()

    @property
    def membership(self) -> Membership | None:
        """The newest membership; None while the job starts."""
        return self.members.membership

    def start(self, now_s: float) -> list[Command]:
        """Ask for the first containers."""
        self.out.begin(now_s)
        self.out.sync("started", **{f"{role}s": number for role, number in self.size.first().items()})
        _request_first(self)
        return self.out.take()

    def step(self, event: e.Event, now_s: float) -> list[Command]:
        """Take one event in and return what to do, in order."""
        self.out.begin(now_s)
        self.masters.steps += 1
        if self.state in ENDED_STATES:
            self._after_the_end(event)
        else:
            self._take(event)
            self._advance()
        return self.out.take()

    def _take(self, event: e.Event) -> None:
        now_s = self.out.now_s
        match event:
            case e.ContainerGranted(container_id):
                _follow(self, self.members.granted(container_id, now_s))
            case e.ContainerLaunched(container_id, pid):
                _follow(self, self.members.launched(container_id, pid, now_s))
            case e.ContainerExited(container_id, reason, taken):
                _on_exited(self, container_id, reason, taken=taken)
            case e.MemberLost(container_id, reason):
                _on_exited(self, container_id, reason, taken=False, silent=True)
            case e.ContainersWarned():
                _on_warned(self, event)
            case e.RoomSeen(fits):
                _on_room(self, fits)
            case e.MemberRegistered():
                _on_registered(self, event)
            case e.ReportReceived(report, age_s):
                _on_report(self, report, now_s - age_s)
            case e.ChangeRequested():
                self.out.add(self.plans.request(event, self._standing()))
            case e.CancelRequested(request_id, plan_id):
                found = self.plans.cancel(plan_id)
                if isinstance(found, Plan):
                    self._abort(found, CANCELLED)
                error = found if isinstance(found, EpsError) else None
                self.out.say(e.Answer(request_id, plan_id, error=error))
            case e.KillRequested(reason):
                self._end(JobState.KILLED, reason)
            case e.ResourcesLost(reason):
                self._end(JobState.FAILED, reason)
            case e.ExportDone():
                if self.export.done(event):
                    self._end(JobState.FINISHED, "")
            case e.ExportFailed():
                if reason := self.export.failed(event, now_s):
                    self._end(JobState.FAILED, reason)
            case e.CheckpointDone() | e.CheckpointFailed() | e.CheckpointWaits():
                self.out.add(self.checkpoints.finished(event, now_s))
            case e.MasterRestarted():
                _on_restarted(self, event)
            case e.Tick(silent_s):
                _on_tick(self, silent_s)

    def _advance(self) -> None:
        """Do everything that has become possible."""
        if self.state in ENDED_STATES:
            return
        _recover(self)
        waits = self.membership is None or self.recovery.inquiry is not None or bool(self.members.unacked)
        if waits or self.state in ENDED_STATES:
            return
        if self.state is JobState.STARTING:
            self.state = JobState.RUNNING
        if self.state is JobState.EXPORTING:
            self.out.add(self.export.due(self.out.now_s))
            return
        if self.plans.triggers:
            self.out.add(self.plans.fire(self._standing()))
        _drain(self)
        _step_plan(self)
        if self.plans.driver is None:
            _drain(self)
            _step_plan(self)
        if self.plans.driver is None and not self.plans.queue and not self.draining:
            _ask_for_members(self)
        while self.plans.driver is None and self.plans.queue:
            _propose(self, self.plans.queue[0])
            _step_plan(self)
        if not self.checkpoints.is_idle:
            self.out.add(self.checkpoints.advance(self._for_checkpoints(), self.out.now_s))
        if self.progress.grant(undecided=self.plans.undecided, hurried=self.draining):
            self.out.send(_grants(self))
        if self.progress.finished and self.plans.driver is None and not self.plans.queue:
            self.state = JobState.EXPORTING
            self.out.sync("trained", clock=self.settings.iterations)
            self.out.add(self.export.start())

    @property
    def draining(self) -> bool:
        """True while warned members must leave that no committed plan has taken away: its commit should be near."""
        return self.membership is not None and bool(self.evictions.next_to_drain(self.membership))

    @property
    def looks_for_room(self) -> bool:
        """True while room that no other application wants would let the job grow back."""
        runs = self.state is JobState.RUNNING and self.recovery.inquiry is None and not self.members.unacked
        idle = self.plans.driver is None and not self.plans.queue and not self.draining
        can = runs and idle and self.progress.horizon < self.settings.iterations - 2
        return can and self.size.lacks_room and self.plans.is_due(Purpose.REGAIN, self.out.now_s)

    def _abort(self, plan: Plan, reason: str, *, failed: bool = True) -> None:
        self.out.add(self.plans.abort(plan, reason, self.out.now_s, failed=failed))
        for name in plan.added:
            self.out.add(self.members.dismiss(name, f"plan {plan.plan_id} was aborted: {reason}"))

    def _standing(self) -> Standing:
        exports = self.state is JobState.EXPORTING
        completed, horizon = self.progress.completed, self.progress.horizon
        return Standing(self.membership, self.members.next_number, completed, horizon, exports, self.out.now_s)

    def _for_checkpoints(self) -> c.Standing:
        membership, progress = self.membership, self.progress
        assert membership is not None
        warned_s, size = self.evictions.servers_warned_s(membership), self.size.asked(self.plans.open)
        return c.Standing(membership, progress.horizon, progress.lookahead, progress.completed, warned_s, size)

    def _begin_generation(self, event: e.MasterRestarted) -> None:
        self.masters.begin(event.generation)
        self.out.sync("restarted", generation=event.generation, running=len(event.running))
        for container_id in event.running:
            # Its release was decided, and perhaps not done.
            if self.state in ENDED_STATES or container_id not in self.members.by_container:
                self.out.say(e.ReleaseContainer(container_id))

    def _after_the_end(self, event: e.Event) -> None:
        """Answer what comes after a job has ended."""
        if isinstance(event, e.ChangeRequested | e.CancelRequested):
            error = JobFinishedError(f"the job has {self.state}: it cannot be changed any more")
            self.out.say(e.Answer(event.request_id, error=error))
        elif isinstance(event, e.MemberRegistered):
            self.out.say(e.ReleaseContainer(event.container_id))
        elif isinstance(event, e.MasterRestarted):
            self._begin_generation(event)
            self.out.say(e.EndJob(self.state, self.reason))

    def _end(self, state: JobState, reason: str) -> None:
        for plan in self.plans.open:
            self._abort(plan, f"the job {state}" + (f": {reason}" if reason else ""))
        self.state, self.reason = state, reason
        self.export.close()
        self.out.sync("ended", state=str(state), reason=reason)
        shutdown = m.Shutdown(f"the job {state}")
        self.out.send((name, shutdown) for name, member in sorted(self.members.by_name.items()) if member.address)
        self.out.say(e.EndJob(state, reason))

    def start_waits_for(self, now_s: float) -> str:
        """Return what a job that starts waits for, and for how long, as a sentence; empty where that is not long."""
        if self.state is not JobState.STARTING or self.membership is not None:
            return ""
        waits_s = self.size.gang_waits_s(now_s)
        if waits_s is not None:
            times = f"{self.size.num_given_back} time{'s' if self.size.num_given_back > 1 else ''}"
            return (
                "has given back the containers with which it could not begin, so that others can, "
                f"{times} so far; asks again in {waits_s:.0f} s"
            )
        return containers_waited_for([each for each in self.members.by_name.values() if not each.granted], now_s)

    def recovery_waits_for(self, now_s: float) -> str:
        """Return which newcomers a recovery waits for, as a sentence; empty where that is not long.

        Members that are left have answered within moments, or are lost, too.
        """
        names = self.recovery.inquiry.newcomers if self.recovery.inquiry is not None else ()
        members = [self.members.by_name[name] for name in names if self.members.by_name[name].address is None]
        waits = containers_waited_for([member for member in members if not member.launched], now_s)
        late = [member.name for member in members if member.is_late(now_s, TOLD_S)]
        register = f"waits for {', '.join(late)} to register" if late else ""
        return " and ".join(filter(None, (waits, register)))

    def validate(self) -> None:
        """Assert what must always be true of the parts, and between them (design section 3)."""
        held = self.members.held
        for part in (self.members, self.evictions, self.plans, self.recovery, self.checkpoints):
            part.validate()
        if self.membership is None:
            return
        self.progress.validate()
        self.size.validate(held)
        horizon, settings = self.progress.horizon, self.settings
        assert self.membership.from_clock <= max(horizon + 1, settings.first_clock)
        if self.plans.undecided and self.state is JobState.RUNNING:
            assert horizon <= max(settings.first_clock, settings.iterations - 2), horizon
        if self.state not in ENDED_STATES:
            lost = self.recovery.inquiry.lost if self.recovery.inquiry is not None else {}
            assert set(self.membership.members) <= set(self.members.by_name) | set(lost), "a member has a container"


# ---- members come and go


def _request_first(job: Job) -> None:
    for role, number in job.size.first().items():
        for _ in range(number):
            job.out.add(job.members.request(role, job.out.now_s)[1])


def _follow(job: Job, member: Member | None) -> bool:
    """Tell the plan in flight how far its newcomer is; return False where the member is none."""
    if member is None:
        return False
    return job.plans.flight.follow(member.name, member.phase, member.address, job.out.now_s)


def _on_registered(job: Job, event: e.MemberRegistered) -> None:
    known = job.members.by_container.get(event.container_id)
    if known is None:
        job.out.say(e.ReleaseContainer(event.container_id))
        return
    if job.masters.miss(known.generation, event.heard_generation, event.heard_step):
        job._end(JobState.FAILED, MISSING.format(who=known.name))
        return
    _, again = job.members.registered(event, job.masters.generation, job.out.now_s)
    job.out.say(e.Name(event.container_id, known.name))
    if again:
        _say_again(job, known.name)
    elif not _follow(job, known) and not job.recovery.registered(known.name, event.address):
        _begin(job)


def _begin(job: Job) -> None:
    """Let the first membership hold, once all members of a job that starts have registered."""
    if job.membership is not None:
        return
    first = job.members.first_membership(job.settings)
    if first is not None:
        job.out.sync("membership", version=1, from_clock=first.from_clock)
        _announce(job, first)
        job.size.begun(job.members.held)


def _announce(job: Job, membership: Membership) -> None:
    """Tell all members a membership; nothing goes on until they have acknowledged it."""
    job.members.adopt(membership, waits=True)
    job.out.send(_membership_for(job, membership.members))


def _membership_for(job: Job, names: Iterable[MemberId]) -> Orders:
    return job.members.orders(names, job.plans.flight.turn_of_membership())


def _on_exited(job: Job, container_id: str, reason: str, *, taken: bool, silent: bool = False) -> None:
    """Take in that a member is lost, or has left: its container ended, or (``silent``) the member is not heard of."""
    member = job.members.ended(container_id)
    if member is None:
        found = job.recovery.was_silent(container_id)
        if found is not None and not taken:
            _fail_if_in_vain(job, *found)
        return
    name, became = member.name, Outcome.WITHDRAWN
    took_part = job.membership is not None and name in job.membership.members
    if job.plans.flight.exited(name):
        job.out.say(e.ReleaseContainer(container_id))
        became = Outcome.DRAINED
    elif job.plans.flight.is_newcomer(name):
        assert job.plans.driver is not None
        job._abort(job.plans.driver.plan, f"{name} ended before it took part: {reason}")
    elif job.membership is None and not member.granted:
        _not_granted(job, member, reason)
    elif took_part or job.membership is None or _waits_for(job, name):
        # The end of a member whose container is taken says nothing about the job.
        in_vain = not taken and job.evictions.of(name) is None
        if in_vain and silent:
            job.recovery.fell_silent(container_id, name, reason)
        _lose(job, member, reason, in_vain=in_vain and not silent)
        became = Outcome.LOST
    _end_eviction(job, container_id, became, took_part=took_part)


def _waits_for(job: Job, name: MemberId) -> bool:
    return job.recovery.is_newcomer(name) or job.plans.flight.concerns(name)


def _not_granted(job: Job, member: Member, reason: str) -> None:
    """A job that starts goes on without a container that the resource manager gave up, or asks once more."""
    if job.size.may_begin(_granted(job)):
        job.out.note("smaller", without=[member.name])
        _begin(job)
        return
    job.out.note("not-granted", member=member.name, reason=reason)
    if job.recovery.in_vain(job.progress.completed, job.out.now_s, starts=True):
        job._end(JobState.FAILED, f"{member.name} was never granted a container: the last one asked for {reason}")
        return
    job.out.add(job.members.request_another(member, job.out.now_s))


def _lose(job: Job, member: Member, reason: str, *, in_vain: bool) -> None:
    """Take in the loss of a member; ask the rest what it holds, where the member took part."""
    name, membership = member.name, job.membership
    job.out.add(job.recovery.lost(name, reason, job.progress.completed, job.out.now_s))
    if in_vain and _fail_if_in_vain(job, name, reason):
        return
    if membership is None:
        job.recovery.replaced()
        job.out.add(job.members.request_another(member, job.out.now_s))
    elif job.recovery.is_newcomer(name):
        # Another is requested in its place.
        job.recovery.replaced()
        job.recovery.drop(name)
    else:
        _inquire(job, membership, f"{name} ended unexpectedly: {reason}", lost={name: reason})


def _fail_if_in_vain(job: Job, name: MemberId, reason: str) -> bool:
    """Count a failure of the job's own; return whether it ends the job."""
    why = job.recovery.in_vain(job.progress.completed, job.out.now_s, starts=job.membership is None)
    if why:
        job._end(JobState.FAILED, f"{name} ended unexpectedly: {reason}; {why}")
    return bool(why)


def _inquire(job: Job, membership: Membership, why: str, *, lost: dict[MemberId, str], unreadable: str = "") -> None:
    """Ask the rest what it holds."""
    driver = job.plans.driver
    if driver is not None and driver.plan.undecided:
        job._abort(driver.plan, why)
    job.recovery.begin(membership, bool(job.members.unacked), lost, unreadable)
    job.out.send(job.recovery.orders(membership))


# ---- members that are warned


def _on_warned(job: Job, event: e.ContainersWarned) -> None:
    driver = job.plans.driver
    for warning in event.warnings:
        member = job.members.by_container.get(warning.container_id)
        if member is None:
            # It has ended, or is being given back.
            continue
        job.out.add(job.evictions.warn(member.name, member.roles, warning, job.out.now_s))
        expected = job.membership is None or job.recovery.is_newcomer(member.name)
        if expected and not member.launched:
            # Nothing runs there yet, and the job cannot go on without the member.
            job.out.add(job.members.dismiss(member.name, TAKEN_AWAY))
            job.out.add(job.members.request_another(member, job.out.now_s))
    if driver is not None and driver.plan.undecided:
        coming = [name for name in driver.plan.added if job.evictions.of(name) is not None]
        if coming:
            job._abort(driver.plan, f"the container of {', '.join(coming)} {TAKEN_AWAY}")
    elif driver is not None:
        job.evictions.drained_by(driver.plan)
    _settle_evictions(job)


def _settle_evictions(job: Job) -> None:
    """Note the end of warnings for containers that were given back before the job counted on them."""
    for container_id in job.evictions.withdrawn(job.members.by_container):
        _end_eviction(job, container_id, Outcome.WITHDRAWN)


def _end_eviction(job: Job, container_id: str, became: Outcome, *, took_part: bool = False) -> None:
    eviction, commands = job.evictions.end(container_id, became, job.out.now_s)
    job.out.add(commands)
    if eviction is not None:
        lost = became is Outcome.LOST and took_part
        job.size.taken(eviction.roles, job.members.held, for_others=eviction.for_others, lost=lost)


def _drain(job: Job) -> None:
    """Begin to drain warned members; a plan that is not committed makes way."""
    _settle_evictions(job)
    assert job.membership is not None
    names = job.evictions.next_to_drain(job.membership)
    if not names or job.progress.horizon >= job.settings.iterations - 1:
        # With its last iteration granted the job ends soon; members that are lost before are recovered from.
        return
    driver = job.plans.driver
    if driver is not None and not driver.plan.undecided:
        return
    if not job.plans.is_due(Purpose.DRAIN, job.out.now_s):
        return
    if driver is not None and may_go_on(driver.plan, job.membership, names):
        job.evictions.drained_by(driver.plan)
        return
    if driver is not None:
        why = f"it made way for {', '.join(names)}, whose containers are to be taken away"
        job._abort(driver.plan, why, failed=False)
    plan, commands = job.plans.drain(names, job.out.now_s)
    job.out.add(commands)
    _propose(job, plan)
    job.evictions.drained_by(plan)


# ---- reports


def _on_report(job: Job, report: m.Report, at_s: float) -> None:
    match report:
        case m.ClockReported():
            _on_clock(job, report, at_s)
        case m.MemberFailed(name, kind, message):
            driver = job.plans.driver
            if driver is not None and job.plans.flight.is_newcomer(name):
                job._abort(driver.plan, f"{name}: {kind}: {message}")
            elif name in job.members.by_name and not job.plans.flight.is_drained(name):
                job._end(JobState.FAILED, f"{name}: {message}")
        case m.TransferFailed(name, turn, message, target):
            _on_transfer_failed(job, turn, f"{name}: {message}", target)
        case m.PeerReached():
            job.members.connected(report)
        case m.CheckpointUnusable():
            _on_unusable(job, report)
        case m.Inventory():
            job.recovery.hear(report)
        case m.CheckpointPartWritten() | m.CheckpointPartFailed() | m.CheckpointPartWaits():
            job.out.add(job.checkpoints.hear(report, job.out.now_s))
        case _:
            if isinstance(report, m.MembershipAcked):
                job.members.acknowledged(report)
            try:
                job.out.add(job.plans.flight.hear(report))
            except TransferError as error:
                _on_transfer_failed(job, job.plans.flight.turn_in_flight, str(error))


def _on_transfer_failed(job: Job, turn: int, reason: str, target: MemberId = "") -> None:
    driver = job.plans.driver
    in_flight = driver is not None and driver.plan.turn == turn
    if driver is not None and in_flight and driver.plan.undecided:
        job._abort(driver.plan, reason)
        return
    member = job.members.by_name.get(target)
    if (turn == 0 or in_flight) and member is not None and Role.SERVER in member.roles:
        # Its owner cannot serve what a follower that others count on does not get: it must not be counted on.
        job.out.say(e.KillContainer(member.container))
        _on_exited(job, member.container, f"cannot be reached: {reason}", taken=False, silent=True)


def _on_clock(job: Job, report: m.ClockReported, at_s: float) -> None:
    if job.membership is None or report.incarnation != job.membership.incarnation:
        return
    for record in job.progress.add(report.clock, report.results, at_s):
        if job._stop_on_divergence and not math.isfinite(record.loss_sum):
            what = f"the loss at clock {record.clock} is {record.loss_sum}"
            job._end(JobState.FAILED, f"{what}: {DIVERGED}; try a smaller learning rate")
            return


def _on_unusable(job: Job, report: m.CheckpointUnusable) -> None:
    """Go back further, where a member could not read the checkpoint that the job went back to."""
    now = job.membership
    if now is None or job.recovery.inquiry is not None:
        return
    resumed = now.version == 1 and job.settings.resumed_clock is not None
    resumes = resumed and any(start.checkpoint == report.checkpoint for start in job.checkpoints.complete)
    if resumes or (now.goes_back and now.checkpoint == report.checkpoint):
        job.out.add(job.checkpoints.unusable(report.checkpoint, report.message, job.out.now_s))
        why = f"{report.name} cannot read checkpoint {report.checkpoint}: {report.message}"
        _inquire(job, now, why, lost={}, unreadable=why)


def _recover(job: Job) -> None:
    """Let others take over from lost members as soon as all that are left have answered."""
    inquiry, before = job.recovery.inquiry, job.membership
    if inquiry is None or before is None:
        return
    for role in inquiry.empty_roles(before):
        name, commands = job.members.request(role, job.out.now_s)
        job.recovery.add(name, role)
        job.out.add(commands)
    if inquiry.missing(before):
        return
    after = None if inquiry.must_go_back else take_over(before, inquiry, job.settings)
    if after is None:
        after = roll_back(before, inquiry, job.checkpoints.start_again(job.settings.seeded_clock))
    else:
        for inventory in inquiry.inventories.values():
            for report in inventory.results:
                _on_clock(job, report, job.out.now_s)
        if not job.settings.bsp:
            after = measured_again(after, job.progress.next_clocks())
    _adopt(job, before, after)


def _adopt(job: Job, before: Membership, after: Membership) -> None:
    """Let the membership hold that came of a recovery."""
    assert job.recovery.inquiry is not None
    lost = tuple(job.recovery.inquiry.lost)
    job.out.add(job.recovery.end(before, after, job.progress.completed, job.out.now_s))
    servers = sorted(name for name in lost if name in before.servers)
    if after.goes_back:
        job.out.add(job.checkpoints.go_back(job.checkpoints.epoch + 1, after.from_clock, job.out.now_s))
        job.progress.roll_back(after.from_clock)
        if job.state is JobState.EXPORTING:
            job.state = JobState.RUNNING
            job.export.close()
    elif servers:
        job.out.add(job.checkpoints.abandon(f"lost with {', '.join(servers)}", job.out.now_s))
    # A released member owes nothing; its shutdown order may come at any moment.
    leaving = [name for name in job.plans.flight.leaving() if name in job.members.by_name]
    job.plans.flight.take_over(after, lost)
    _announce(job, after)
    job.out.send(_membership_for(job, leaving))
    job.size.settle(job.members.held)


def _step_plan(job: Job) -> None:
    """Step the plan in flight as far as nothing is missing."""
    while (stepped := job.plans.step(job.progress.horizon, job.out.now_s)) is not None:
        job.out.add(stepped.commands)
        if stepped.committed is not None and stepped.committed.membership is not None:
            job.members.adopt(stepped.committed.membership, waits=False)
            job.size.committed(stepped.committed, job.members.held)


def _propose(job: Job, plan: Plan) -> None:
    try:
        job.out.add(job.plans.propose(plan, job._standing()))
    except PlanError as error:
        job._abort(plan, str(error))
        return
    for role in Role:
        for name in plan.coming.of_role(role):
            requested, commands = job.members.request(role, job.out.now_s)
            assert requested == name, "plans name newcomers as members are named"
            job.out.add(commands)


def _ask_for_members(job: Job) -> None:
    """Ask for members that are missing, and for followers."""
    assert job.membership is not None
    if job.progress.horizon >= job.settings.iterations - 2:
        return
    standing = job._standing()
    for role, number in job.size.pending(job.members.held).items():
        if number:
            job.out.add(job.plans.ask_own(Change(_ADDITION[role], number), Purpose.REPLACE, standing))
    follows = bool(job.settings.followers) and len(job.membership.servers) > 1
    if follows and not all(map(job.membership.partitions.followers_of, range(job.settings.num_partitions))):
        job.out.add(job.plans.ask_own(Change(Operation.FOLLOW, 1), Purpose.FOLLOW, standing))


def _on_room(job: Job, fits: Mapping[Role, int]) -> None:
    """Ask for lent members that fit into room that no other application wants."""
    regain = job.size.to_regain(fits) if job.looks_for_room else None
    if regain is not None:
        role, number = regain
        job.out.add(job.plans.ask_own(Change(_ADDITION[role], number), Purpose.REGAIN, job._standing()))


# ---- time


def _on_tick(job: Job, silent_s: float) -> None:
    inquiry = job.recovery.inquiry
    for name in list(inquiry.newcomers) if inquiry is not None else ():
        member = job.members.by_name[name]
        if member.is_late(job.out.now_s, REGISTRATION_PATIENCE_S):
            job.out.say(e.ReleaseContainer(member.container))
            _on_exited(job, member.container, f"did not register within {REGISTRATION_PATIENCE_S:g} s", taken=False)
    if job.state in ENDED_STATES:
        return
    reason, without = job.plans.late(job._standing())
    if reason:
        assert job.plans.driver is not None
        job._abort(job.plans.driver.plan, reason)
    elif without:
        job.out.add(job.plans.flight.go_on_with_granted(job.out.now_s))
        for name in without:
            job.out.add(job.members.dismiss(name, "the change goes on without it"))
    _look_at_start(job, silent_s)
    if job.state not in ENDED_STATES:
        job.out.send_due(_outstanding(job))


def _look_at_start(job: Job, silent_s: float) -> None:
    """Let a job that starts begin, wait, ask again or fail."""
    if job.membership is not None:
        return
    first = list(job.members.by_name.values())
    late = next((member.name for member in first if member.is_late(job.out.now_s, START_PATIENCE_S)), "")
    if late:
        job._end(JobState.FAILED, f"{late} did not register within {START_PATIENCE_S:g} s")
        return
    last_s = max([0.0, *(max(member.asked_s, member.granted_s) for member in first)])
    match job.size.look_at_start(_granted(job), last_s, silent_s > 0, job.out.now_s):
        case StartStep.ASK:
            _request_first(job)
        case StartStep.BEGIN:
            without = [member.name for member in first if not member.granted]
            for name in without:
                job.out.add(job.members.dismiss(name, "the job begins without it"))
            if without:
                job.out.note("smaller", without=without)
            _begin(job)
        case StartStep.GIVE_BACK:
            for member in first:
                why = "the job cannot begin with what it has, and leaves it to others"
                job.out.add(job.members.dismiss(member.name, why))
            job.out.note("gives-back", members=[member.name for member in first if member.granted])


def _granted(job: Job) -> dict[Role, int]:
    return {role: sum(member.granted for member in job.members.of_role(role)) for role in Role}


# ---- what is said, and said again


def _grants(job: Job) -> Orders:
    """Return the horizon as an order for the workers, and for those that leave and owe clocks before the commit."""
    assert job.membership is not None
    driver, progress = job.plans.driver, job.progress
    leaving = driver.plan.going.workers if driver is not None and not driver.plan.undecided else ()
    order = m.GrantHorizon(progress.horizon, progress.completed, job.membership.version)
    return [(name, order) for name in (*job.membership.workers, *leaving)]


def _outstanding(job: Job) -> Orders:
    """Return the orders whose effect is missing, and those that have no acknowledgement."""
    membership, unacked = job.membership, job.members.unacked
    if membership is None:
        return []
    if job.recovery.inquiry is not None:
        return job.recovery.orders(membership)
    orders = job.plans.flight.orders(membership.members) + _membership_for(job, sorted(unacked))
    return orders + (_grants(job) if job.state is JobState.RUNNING and not unacked else [])


def _say_again(job: Job, name: MemberId) -> None:
    """Tell a member that registered again everything that it has not acknowledged."""
    if job.membership is None:
        return
    job.out.forget(name)
    orders: Orders = []
    if name in job.membership.members:
        if name in job.members.unacked or not job.plans.flight.turn_of_membership():
            # Else the plan says it.
            orders += _membership_for(job, [name])
        job.out.add(job.checkpoints.say_again(name, job.membership.partitions.owned_by(name)))
    orders += [found for found in _outstanding(job) if found[0] == name and found not in orders]
    job.out.send(orders)


# ---- masters, and the end


def _on_restarted(job: Job, event: e.MasterRestarted) -> None:
    """Take over from another master.

    Orders to members follow when they register again: until then they have no connection to this master.
    """
    job._begin_generation(event)
    for container_id, member in list(job.members.by_container.items()):
        if job.state in ENDED_STATES:
            return
        if container_id not in job.members.by_container:
            # The plan was aborted that wanted it.
            continue
        pid = event.running.get(container_id)
        if pid is not None:
            _follow(job, job.members.launched(container_id, pid, job.out.now_s))
        elif member.launched:
            # Most often its node is lost, too.
            _on_exited(job, container_id, ENDED_AWAY, taken=True)
        else:
            job.out.add(job.members.repeat_request(member, job.out.now_s))
            _follow(job, member)
    job.out.forget()
    job.checkpoints.taken_over()
    job.out.add(job.export.restarted())
