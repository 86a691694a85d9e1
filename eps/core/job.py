"""The state of a job, composed of parts: ``Job.step(event, now_s) -> commands``.

Each part is a state machine and knows none of the others.  The job passes data between them:

=============================  ========================================================================================
event                          parts, in this order
=============================  ========================================================================================
container granted, launched    members -> plans (its newcomer)
member registered              masters -> members -> plans or recovery (its newcomer) -> its unacknowledged orders
container exited, member lost  members -> plans (leaves, or comes) or startup, recovery (a loss) -> evictions
containers warned              evictions -> plans (abort, if a newcomer is warned)
room seen                      size -> plans
report of a clock              progress
report of a plan's step        plans
report of a warning            as containers warned
membership acknowledged        members -> plans
inventory                      recovery -> progress
checkpoint part, done          checkpoints
cut staged, failed             cuts
checkpoint cannot be read      checkpoints -> recovery
change, cancel                 plans -> members (newcomers of an aborted plan)
export done, failed            export
tick                           recovery and plans (timeouts) -> startup -> orders to resend
master restarted               masters -> members -> plans, checkpoints, export (repeated)
=============================  ========================================================================================

After every event the job does all that has become possible, in this order (:meth:`Job._advance`):

1. recovery, progress: a fatal failure ends the job
2. evictions that have ended -> size
3. members: all first ones have registered -> the first membership -> size
4. recovery: losses -> questions to the survivors; all have answered -> one membership -> members, progress,
   checkpoints, plans
5. plans: triggers; steps of the plan in flight -> members, size; evictions -> the drain of warned members; size ->
   replacements; the next plan of the queue
6. checkpoints, with the current clocks; progress: the next clocks are granted
7. export, when training is complete

Driver contract: 1 one owner calls ``step``, never re-entrantly; 2 commands are executed in list order, and a
``Journal`` command with ``sync`` is on disk before the next one; 3 every container that is requested ends in exactly
one ``ContainerExited``; 4 ``Tick`` comes at least every second from :attr:`Job.tick_due_s` on; 5 array bytes never
enter an event.

No I/O, no clock, no threads.  The same class runs live, in tests and in the simulator.

Source: EPS §3.1.3 (global decision making), §3.2, §3.3, §5.2 (the four calls); design sections 4 to 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import CheckpointContext, Checkpoints, Export, Schedule, Timetable
from eps.core.cuts import Cuts
from eps.core.events import ENDED_STATES, Command, CommandBuffer, JobState
from eps.core.evictions import NOTICE_S, TAKEN_AWAY, EvictionOutcome, Evictions, may_continue
from eps.core.hosting import Hosting
from eps.core.members import MISSING, Masters, Member, Members, container_of
from eps.core.membership import Membership
from eps.core.messages import Orders
from eps.core.plans import ADDITION, CANCELLED, REGISTRATION_PATIENCE_S, PlanContext, Plans
from eps.core.progress import Progress
from eps.core.reconfig import TAKINGS, Change, Operation, Phase, Plan, Purpose, Trigger
from eps.core.recovery import Loss, Recovery
from eps.core.size import PacedRequests, Size, StartStep, Startup
from eps.core.tiers import StageRule, TiersView
from eps.core.types import CoreSettings, MemberId, Role, Tier
from eps.errors import EpsError, JobFinishedError, PlanError, TransferError

#: Reason recorded for a container whose process ended while no master ran.
ENDED_AWAY = "ended while the job master was down"


class Job:
    """Members, size, plans, clocks, recoveries and checkpoints of one job.

    Parameters
    ----------
    settings : CoreSettings
    num_workers, num_servers : int
        The initial size.
    triggers : iterable of Trigger
        Changes that are requested at a clock.
    stop_on_divergence : bool
        Whether a loss that is not finite fails the job.
    checkpoints : Checkpoints, optional
        By default no checkpoints are taken.
    first_container : int
        Number of the first container; lower numbers belong to log files of earlier runs.
    managed : bool
        Whether a scheduler decides the job's size: then the job does not replace what the cluster takes away.
    start_with : float
        The share of its workers, and of its servers, with which the job may start, 0 to 1.
    seed : str
        Random numbers of the job begin here; differs from job to job.
    tiers : mapping, optional
        Number of containers of each tier: each has a worker and a server, and the job decides which take part.  Then
        ``num_workers`` and ``num_servers`` are both their sum.
    stage_rule : StageRule
        How the job chooses the stage, if it has tiers.
    max_lag_s : float
        By how much the consistent clock may lag behind; 0: by any time.

    Raises
    ------
    PlanError
        More workers than splits, or, without tiers, more servers than partitions.
    """

    def __init__(
        self,
        settings: CoreSettings,
        num_workers: int,
        num_servers: int,
        triggers: Iterable[Trigger] = (),
        *,
        stop_on_divergence: bool = True,
        checkpoints: Checkpoints | None = None,
        first_container: int = 1,
        managed: bool = False,
        start_with: float = 0.5,
        seed: str = "",
        tiers: Mapping[Tier, int] | None = None,
        stage_rule: StageRule = StageRule.AUTO,
        max_lag_s: float = 0.0,
    ) -> None:
        limits = (num_workers, settings.num_splits, "splits"), (num_servers, settings.num_partitions, "partitions")
        for role, (number, limit, items) in zip(Role, limits, strict=True):
            # A host without partitions only works.
            if not 1 <= number or (number > limit and (tiers is None or role is Role.WORKER)):
                raise PlanError(f"{number} {role}s for {limit} {items}: need 1 to {limit}")
        self.settings = settings
        self.state = JobState.STARTING
        #: Why the job ended; empty if it finished.
        self.reason = ""
        self.masters = Masters()
        self.members = Members(first_container)
        self.evictions = Evictions()
        #: None if the containers of the job have one member each.
        most = settings.num_partitions, settings.num_splits
        self.hosting = None if tiers is None else Hosting(tiers, stage_rule, *most, managed=managed)
        self.cuts = Cuts(settings.num_partitions, settings.iterations, max_lag_s)
        self.size = Size(num_workers, num_servers, managed=managed, follows=tiers is not None)
        reliable = None if tiers is None else dict.fromkeys(Role, tiers[Tier.RELIABLE])
        self.startup = Startup(self.size.wanted, managed=managed, start_with=start_with, seed=seed, reliable=reliable)
        self.paced = PacedRequests()
        self.plans = Plans(settings, triggers)
        self.progress = Progress(settings, stop_on_divergence=stop_on_divergence)
        self.recovery = Recovery(settings.first_clock)
        self.checkpoints = checkpoints or Checkpoints(
            Timetable(Schedule(), settings.iterations), settings.num_partitions
        )
        self.export = Export()
        self.out = CommandBuffer()

    @property
    def membership(self) -> Membership | None:
        """The newest membership; None while the job starts."""
        return self.members.membership

    def start(self, now_s: float) -> list[Command]:
        """Request the first containers."""
        self.out.begin(now_s)
        first = self.startup.first()
        self.out.sync("started", **{f"{role}s": number for role, number in first.items()})
        self._request_first()
        return self.out.take()

    def _request_first(self) -> None:
        """Request the containers with which the job starts."""
        if self.hosting is None:
            self.out.add(self.members.request_all(self.startup.first(), self.out.now_s))
        else:
            self.out.add(self.hosting.request_first(self.members, self.out.now_s))

    def step(self, event: e.Event, now_s: float) -> list[Command]:
        """Process one event and return the commands to execute, in order."""
        self.out.begin(now_s)
        self.masters.steps += 1
        if self.state not in ENDED_STATES:
            self._take(event)
            self._advance()
            return self.out.take()
        match event:
            case e.ChangeRequested() | e.CancelRequested():
                error = JobFinishedError(f"the job has {self.state}: it can no longer be changed")
                self.out.say(e.Answer(event.request_id, error=error))
            case e.MemberRegistered():
                self.out.say(e.ReleaseContainer(container_of(event.seat)))
            case e.MasterRestarted():
                self._on_restarted(event)
        return self.out.take()

    def _take(self, event: e.Event) -> None:
        now_s = self.out.now_s
        match event:
            case e.ContainerGranted(container_id):
                for member in self.members.granted(container_id, now_s):
                    self.plans.flight.follow(member, now_s)
            case e.ContainerLaunched(container_id, pid):
                for member in self.members.launched(container_id, pid, now_s):
                    self.plans.flight.follow(member, now_s)
            case e.ContainerExited(container_id, reason, taken):
                self._on_exited(container_id, reason, taken=taken)
            case e.MemberLost(seat, reason):
                self._on_exited(container_of(seat), reason, taken=False, silent=True)
            case e.ContainersWarned():
                self._on_warned(event)
            case e.RoomSeen(fits):
                regain = self.size.to_regain(fits) if self.looks_for_room else None
                if regain is not None:
                    role, number = regain
                    self.out.add(self.plans.ask_own(Change(ADDITION[role], number), Purpose.REGAIN, self._plan_context))
            case e.MemberRegistered():
                self._on_registered(event)
            case e.ReportReceived(report, age_s):
                self._on_report(report, now_s - age_s)
            case e.ChangeRequested():
                self.out.add(self.plans.request(event, self._plan_context))
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
                self._on_restarted(event)
            case e.Tick(silent_s):
                self._on_tick(silent_s)

    # ---- how the parts handle an event

    def _on_registered(self, event: e.MemberRegistered) -> None:
        """Name a registered process; one that registers again also gets its unacknowledged orders."""
        known, now_s, membership = self.members.by_seat.get(event.seat), self.out.now_s, self.membership
        if known is not None and known.container in self.members.hosts and known.address not in (None, event.address):
            # The process of a host has ended one member and begins the next.
            self.members.left(known)
            self._on_ended(known, "its process began another member", own=False, silent=False, granted=True)
            known = None
        if known is None:
            known = self.members.successor(event.seat, now_s)
            if known is not None and event.heard_generation:
                # Its member was dismissed, but the order to shut down got lost with a master.
                self.members.registered(event, self.masters.generation, now_s)
                self.out.say(e.Name(event.seat, known.name))
                self.out.add(self.members.dismiss([known.name], "its member was dismissed"))
                return
        if known is None:
            self.out.say(e.ReleaseContainer(container_of(event.seat)))
            return
        if self.masters.miss(known.generation, event.heard_generation, event.heard_step):
            self._end(JobState.FAILED, MISSING.format(who=known.name))
            return
        name, again = known.name, self.members.registered(event, self.masters.generation, now_s)[1]
        self.out.say(e.Name(event.seat, name))
        if not again:
            if not self.plans.flight.follow(known, now_s):
                self.recovery.registered(name, event.address)
            return
        if membership is None:
            return
        self.out.forget(name)
        orders: Orders = []
        if name in membership.members:
            turn = self.plans.flight.turn_of_membership()
            if name in self.members.unacked or not turn:
                # Otherwise the plan sends it.
                orders += self.members.orders([name], turn)
            self.out.add(self.checkpoints.resend_order(name, membership.partitions.owned_by(name)))
            self.out.add(self.cuts.dropped(name) if name in membership.servers else ())
        orders += [found for found in self._outstanding() if found[0] == name and found not in orders]
        self.out.send(orders)

    def _on_exited(self, container_id: str, reason: str, *, taken: bool, silent: bool = False) -> None:
        """Handle the end of a container: its process ended, or (``silent``) it stopped responding."""
        now_s, completed, starts = self.out.now_s, self.progress.completed, self.membership is None
        known, host = container_id in self.members.containers, self.members.hosts.get(container_id)
        members = self.members.ended(container_id)
        if not known:
            self.recovery.container_ended(container_id, completed, now_s, taken=taken, starts=starts)
            return
        # If its container was taken away, its end says nothing about the job.
        own = not taken and container_id not in self.evictions.containers
        early = own and all(member.address is None for member in members)
        if early and (starts or self.recovery.inquiry is not None):
            self.paced.failed(now_s)
        became, took_part = EvictionOutcome.WITHDRAWN, False
        for member in members:
            took_part = took_part or (self.membership is not None and member.name in self.membership.members)
            found = self._on_ended(member, reason, own=own, silent=silent, granted=member.granted)
            became = found if found is not EvictionOutcome.WITHDRAWN else became
        if starts and host is not None and not self.recovery.fatal:
            # A job that can start does not wait for another transient container.
            begins = host.tier is Tier.TRANSIENT and self.startup.may_begin(self.members.by_name.values())
            self.paced.add(() if begins else self.members.request_host(host.tier, now_s))
        elif host is not None and early and self.recovery.inquiry is not None:
            # The recovery waits for such a container: the job must not request them forever.
            why = self.recovery.count_failure(completed, now_s, starts=False)
            if why:
                self.recovery.fatal = f"{container_id} {reason} before it registered; {why}"
        self.out.add(self.evictions.end(container_id, became, now_s, took_part=took_part))

    def _on_ended(self, member: Member, reason: str, *, own: bool, silent: bool, granted: bool) -> EvictionOutcome:
        """Handle the end of a member, which is not among the members any more; return what it means for an eviction."""
        now_s, completed, starts = self.out.now_s, self.progress.completed, self.membership is None
        name, flight, is_hosted = member.name, self.plans.flight, member.seat != member.container
        took_part = self.membership is not None and name in self.membership.members
        if flight.exited(name) and not self.recovery.is_newcomer(name):
            if not is_hosted:
                self.out.say(e.ReleaseContainer(member.container))
            return EvictionOutcome.DRAINED
        if (plan := flight.adding(name)) is not None:
            self._abort(plan, f"{name} ended before it took part: {reason}")
        elif starts and not granted and self.startup.may_begin(self.members.by_name.values()):
            self.out.note("smaller", without=[name])
        elif starts or took_part or self.recovery.is_newcomer(name) or flight.concerns(name):
            loss = Loss(name, reason, completed, now_s)
            self.out.add(self.recovery.lost(member, loss, own=own, silent=silent, starts=starts))
            if starts and not is_hosted and not self.recovery.fatal:
                self.paced.add(self.members.request_another(member, now_s))
            return EvictionOutcome.LOST
        return EvictionOutcome.WITHDRAWN

    def _on_warned(self, event: e.ContainersWarned) -> None:
        """Record that containers will be taken away; abort a plan that adds a member in one of them."""
        now_s = self.out.now_s
        for warning in event.warnings:
            container_id, members = warning.container_id, self.members.in_container(warning.container_id)
            if container_id not in self.members.containers:
                # It has ended, or is being released.
                continue
            names = tuple(member.name for member in members)
            roles = frozenset(role for member in members for role in member.roles)
            self.out.add(self.evictions.warn(names, roles, warning, now_s))
            host = self.members.hosts.get(container_id)
            if host is not None:
                if self.membership is None and not self.members.runs(container_id):
                    self.out.add(self.members.release_host(container_id, TAKEN_AWAY))
                    self.out.add(self.members.request_host(host.tier, now_s))
                continue
            for member in members:
                expected = self.membership is None or self.recovery.is_newcomer(member.name)
                if expected and not member.launched:
                    # Nothing runs there yet, and the job cannot continue without the member.
                    self.out.add(self.members.dismiss([member.name], TAKEN_AWAY))
                    self.out.add(self.members.request_another(member, now_s))
        if self.plans.flight.committed is not None:
            self.evictions.drained_by(self.plans.flight.committed)
        elif (plan := self.plans.flight.uncommitted) is not None:
            coming = [name for name in plan.added if self.evictions.of(name) is not None]
            if coming:
                self._abort(plan, f"the container of {', '.join(coming)} {TAKEN_AWAY}")

    def _on_report(self, report: m.Report, at_s: float) -> None:
        """Process a member's report, which was made at ``at_s``."""
        now_s, flight, membership = self.out.now_s, self.plans.flight, self.membership
        match report:
            case m.ClockReported():
                if membership is not None:
                    self.progress.hear(report, membership.incarnation, at_s)
            case m.MemberFailed(name, kind, message):
                if (plan := flight.adding(name)) is not None:
                    self._abort(plan, f"{name}: {kind}: {message}")
                elif name in self.members.by_name and not flight.is_drained(name):
                    self._end(JobState.FAILED, f"{name}: {message}")
            case m.TransferFailed(name, turn, message, target):
                in_flight = flight.plan is not None and flight.plan.turn == turn
                member = self.members.by_name.get(target)
                if in_flight and flight.uncommitted is not None:
                    self._abort(flight.uncommitted, f"{name}: {message}")
                elif (turn == 0 or in_flight) and member is not None and Role.SERVER in member.roles:
                    # An owner may not serve updates that a standing follower does not receive.
                    self.out.say(e.KillContainer(member.container))
                    why = f"cannot be reached: {name}: {message}"
                    self._on_exited(member.container, why, taken=False, silent=True)
            case m.PeerReached():
                self.members.connected(report)
            case m.EvictionWarned(name, notice_s, reason):
                if (member := self.members.by_name.get(name)) is not None:
                    in_s = notice_s - (now_s - at_s)
                    self._on_warned(e.ContainersWarned((e.ContainerWarning(member.container, in_s, reason),)))
            case m.CheckpointUnusable(_, checkpoint, message):
                if membership is None or self.recovery.inquiry is not None:
                    return
                if self.checkpoints.restores(membership, checkpoint):
                    self.out.add(self.checkpoints.unusable(checkpoint, message, now_s))
                    self.recovery.unreadable(report)
            case m.Inventory():
                if membership is not None:
                    self.out.send(self.recovery.hear(report, membership))
                    for results in report.results:
                        self.progress.hear(results, membership.incarnation, now_s)
            case m.CheckpointPartWritten() | m.CheckpointPartFailed() | m.CheckpointPartWaits():
                self.out.add(self.checkpoints.hear(report, now_s))
            case m.CutStaged() | m.CutFailed():
                self.cuts.hear(report, now_s)
            case _:
                if isinstance(report, m.MembershipAcked):
                    self.members.acknowledged(report)
                try:
                    self.out.add(flight.hear(report))
                except TransferError as error:
                    if flight.uncommitted is not None:
                        self._abort(flight.uncommitted, str(error))

    def _on_tick(self, silent_s: float) -> None:
        """Time out what has waited too long, and resend orders that have had no effect."""
        now_s, inquiry = self.out.now_s, self.recovery.inquiry
        for name in list(inquiry.newcomers) if inquiry is not None else ():
            member = self.members.by_name[name]
            if member.is_late(now_s, REGISTRATION_PATIENCE_S):
                self.out.say(e.ReleaseContainer(member.container))
                why = f"did not register within {REGISTRATION_PATIENCE_S:g} s"
                self._on_exited(member.container, why, taken=False)
        reason, without = self.plans.late(self._plan_context)
        if reason and self.plans.flight.uncommitted is not None:
            self._abort(self.plans.flight.uncommitted, reason)
        elif without:
            self.out.add(self.plans.flight.continue_with_granted(now_s))
            self.out.add(self.members.dismiss(without, "the change continues without it"))
        if self.membership is None:
            self._step_start(silent_s > 0)
        self.out.send_due(self._outstanding())

    def _step_start(self, silent: bool) -> None:
        """Take the next step of the start: wait, request, start, release, or fail."""
        first = list(self.members.by_name.values())
        step, why = self.startup.step(first, silent, self.out.now_s)
        match step:
            case StartStep.ASK:
                self._request_first()
            case StartStep.BEGIN:
                without = [member.name for member in first if not member.is_ready]
                self.out.add(self.members.dismiss(without, "the job starts without it"))
                if without:
                    self.out.note("smaller", without=without)
            case StartStep.GIVE_BACK:
                why = "the job cannot start with the containers that it has, and releases them"
                for container_id in list(self.members.hosts):
                    self.out.add(self.members.release_host(container_id, why))
                self.out.add(self.members.dismiss([member.name for member in first], why))
                self.out.note("gives-back", members=[member.name for member in first if member.granted])
            case StartStep.FAIL:
                self._end(JobState.FAILED, why)

    def _on_restarted(self, event: e.MasterRestarted) -> None:
        """Continue after a restart of the master.

        Members get their orders when they register again: until then this master has no connection to them.
        """
        now_s, ended = self.out.now_s, self.state in ENDED_STATES
        self.masters.begin(event.generation)
        self.paced.drop()
        self.out.sync("restarted", generation=event.generation, running=len(event.running))
        for container_id in event.running:
            # Its release was decided, but perhaps not carried out.
            if ended or container_id not in self.members.containers:
                self.out.say(e.ReleaseContainer(container_id))
        if ended:
            self.out.say(e.EndJob(self.state, self.reason))
            return
        for container_id in sorted(self.members.containers):
            pid = event.running.get(container_id)
            if container_id not in self.members.containers:
                # An aborted plan has released it.
                continue
            if pid is not None:
                for member in self.members.launched(container_id, pid, now_s):
                    self.plans.flight.follow(member, now_s)
            elif self.members.runs(container_id):
                # Usually its node is lost, too.
                self._on_exited(container_id, ENDED_AWAY, taken=True)
            else:
                self.out.add(self.members.repeat_request(container_id, now_s))
                for member in self.members.in_container(container_id):
                    self.plans.flight.follow(member, now_s)
        self.out.forget()
        self.checkpoints.taken_over()
        self.out.add(self.export.restarted())

    # ---- what has become possible

    def _advance(self) -> None:
        """Take every step that has become possible, in the order given in the module's docstring."""
        now_s, failed = self.out.now_s, self.recovery.fatal or self.progress.fatal
        if failed and self.state not in ENDED_STATES:
            self._end(JobState.FAILED, failed)
        if self.state in ENDED_STATES:
            return
        over, commands = self.evictions.settle(self.members.containers, now_s)
        self.out.add(commands)
        for eviction in over:
            held, others = self.members.held, eviction.for_others
            self.size.taken(eviction.roles, held, for_others=others, lost=eviction.lost)
            if self.hosting is not None and eviction.lost:
                self.hosting.taken()
        if self.membership is None:
            if self.hosting is None:
                first = self.members.first_membership(self.settings)
            else:
                first = self.hosting.first_membership(self.members, self.settings)
            if first is not None:
                self.paced.succeeded()
                self.out.sync("membership", version=1, from_clock=first.from_clock)
                self.out.send(self.members.announce(first, 0))
                self._note_stage()
                self.size.begun(self.members.held)
        self._recover()
        self.out.add(self.paced.due(self.members.containers, now_s))
        membership = self.membership
        if membership is None or self.recovery.inquiry is not None or self.members.unacked:
            return
        if self.state is JobState.EXPORTING:
            self.out.add(self.export.due(now_s))
            return
        self.state = JobState.RUNNING
        if self.hosting is not None:
            self._cut(self.hosting, membership)
        self._change()
        progress, membership = self.progress, self.membership
        assert membership is not None
        draining = bool(self.evictions.next_to_drain(membership))
        if not self.checkpoints.is_idle:
            self.out.add(self.checkpoints.advance(self._checkpoint_context(membership), now_s))
        if progress.grant(undecided=self.plans.undecided, hurried=draining):
            self.out.send(progress.orders(membership, self.plans.flight.owing()))
        if progress.finished and self.plans.is_idle:
            self.state = JobState.EXPORTING
            self.out.sync("trained", clock=self.settings.iterations)
            self.out.add(self.export.start())

    def _recover(self) -> None:
        """Start an inquiry after a loss; install the new membership once all survivors have answered."""
        recovery, before, now_s = self.recovery, self.membership, self.out.now_s
        if before is None:
            return
        if recovery.must_ask:
            if self.plans.flight.uncommitted is not None:
                self._abort(self.plans.flight.uncommitted, recovery.must_ask)
            self.out.send(recovery.begin(before, bool(self.members.unacked), self.progress.completed))
        inquiry = recovery.inquiry
        if inquiry is None:
            return
        for role in inquiry.empty_roles(before):
            if self.hosting is not None:
                self._add_spare(self.hosting, role)
                continue
            name, commands = self.members.request(role, now_s)
            recovery.add(name, role)
            self.paced.add(commands)
        if inquiry.empty_roles(before) or inquiry.missing(before):
            return
        self.paced.succeeded()
        point, clocks = self.checkpoints.restore_point(self.settings.seeded_clock), self.progress.next_clocks()
        cut = self.cuts.committed.point if self.cuts.committed is not None else None
        safe = self.hosting.safe(self.members.by_name, self.members) if self.hosting is not None else ()
        after = recovery.membership(before, self.settings, point, clocks, cut, safe)
        self.out.add(recovery.end(before, after, self.progress.completed, now_s))
        servers = sorted(name for name in inquiry.lost if name in before.servers)
        if after.goes_back:
            self.out.add(self.checkpoints.roll_back(self.checkpoints.epoch + 1, after.from_clock, now_s))
            self.cuts.roll_back(after.checkpoint, self.progress.completed, now_s)
            self.progress.roll_back(after.from_clock)
            if self.state is JobState.EXPORTING:
                self.state = JobState.RUNNING
                self.export.close()
        elif servers:
            self.out.add(self.checkpoints.abandon(f"lost with {', '.join(servers)}", now_s))
            self.cuts.abandon(f"lost with {', '.join(servers)}", now_s)
        flight = self.plans.flight
        # A released member owes nothing; its shutdown order may come at any moment.
        leaving = [name for name in flight.leaving() if name in self.members.by_name]
        flight.take_over(after, inquiry.lost)
        turn = flight.turn_of_membership()
        self.out.send(self.members.announce(after, turn) + self.members.orders(leaving, turn))
        self.size.settle(self.members.held)
        self._note_stage()

    def _note_stage(self) -> None:
        """Record stage and number of containers after a change of the membership."""
        if self.hosting is not None and self.membership is not None:
            self.hosting.note(self.membership, self.members)

    def _change(self) -> None:
        """Process changes one after the other, until one has to wait or none is left."""
        plans, now_s = self.plans, self.out.now_s
        while (trigger := plans.due_trigger(self.progress.completed)) is not None:
            if trigger.change.operation in TAKINGS:
                self._take_containers(trigger)
            else:
                self.out.add(plans.fire(trigger, self._plan_context))
        while True:
            while (stepped := plans.step(self.progress.horizon, now_s, self._may_commit)) is not None:
                self.out.add(stepped.commands)
                if stepped.committed is not None and stepped.committed.membership is not None:
                    self.members.adopt(stepped.committed.membership, waits=False)
                    self.size.committed(stepped.committed, self.members.held)
                    self._note_stage()
                if stepped.released is not None and self.hosting is not None:
                    self.out.add(self.hosting.released(self.members, stepped.released))
            assert self.membership is not None
            warned = self.evictions.next_to_drain(self.membership)
            if self.hosting is not None:
                self._arrange(self.hosting, self.membership)
            elif warned and plans.may_drain(now_s):
                self._drain(self.membership, warned)
            if plans.is_idle and not warned:
                follows = not self._is_exposed(self.membership.partitions.owners)
                self.out.add(plans.ask_missing(self.size.pending(self.members.held), self._plan_context, follows))
            if plans.flight.plan is not None or not plans.queue:
                return
            plan = plans.queue[0]
            try:
                self.out.add(plans.propose(plan, self._plan_context))
            except PlanError as error:
                self._abort(plan, str(error))
                continue
            if self.hosting is not None:
                self.out.add(self.hosting.request(self.members, plan, now_s))
                if plan.purpose is Purpose.DRAIN:
                    self.evictions.drained_by(plan)
                for name in plan.added:
                    # Spare members are there already.
                    plans.flight.follow(self.members.by_name.get(name), now_s)
                continue
            coming = {role: len(plan.coming.of_role(role)) for role in Role}
            self.out.add(self.members.request_all(coming, now_s))

    def _drain(self, membership: Membership, names: tuple[MemberId, ...]) -> None:
        """Queue a plan that drains warned members first; it aborts an uncommitted plan that is in its way."""
        plan = self.plans.flight.uncommitted
        if self.progress.horizon >= self.settings.iterations - 1:
            # The job ends soon after its last iteration is granted; members lost before that are recovered.
            return
        if plan is not None and may_continue(plan, membership, names):
            self.evictions.drained_by(plan)
            return
        if plan is not None:
            why = f"cancelled to drain {', '.join(names)}, whose containers will be taken away"
            self._abort(plan, why, failed=False)
        self.out.add(self.plans.drain(names, self.out.now_s))

    # ---- containers of two tiers

    @property
    def _tiers(self) -> TiersView:
        """The containers that may be used.  A job that starts uses what it has, and drains it afterwards."""
        assert self.hosting is not None
        warned = self.evictions.containers if self.membership is not None else ()
        exposed = self.membership is not None and self._is_exposed(self.membership.partitions.owners)
        holders = self.cuts.committed.holders if exposed and self.cuts.committed is not None else ()
        return self.hosting.view(self.members, warned, self.plans.flight.plan, holders)

    def _is_exposed(self, owners: Collection[MemberId]) -> bool:
        """Return whether a container that can be taken away has parameters."""
        return self.hosting is not None and self.hosting.is_exposed(owners, self.members)

    @property
    def _may_commit(self) -> bool:
        """Whether the plan in flight may commit.

        If it exposes parameters, it waits until servers that stay keep a cut; if they are exposed already, it does so
        before it removes a server that keeps the committed one.  It does not wait if no such server is left.
        """
        plan, membership = self.plans.flight.plan, self.membership
        if self.hosting is None or plan is None or plan.phase is not Phase.COPIED:
            return True
        if plan.transfer is None or membership is None:
            return True
        if not self._is_exposed(plan.transfer.partitions.owners):
            return True
        stays = {target.target for target in self._backups(self.hosting, membership)}
        is_late = self.cuts.is_too_late(self._checkpoint_context(membership))
        if not stays or (is_late and plan.purpose is Purpose.DRAIN):
            return True
        if not self._is_exposed(membership.partitions.owners):
            return self.cuts.is_held_by(stays)
        committed = self.cuts.committed
        return is_late or committed is None or set(committed.holders).isdisjoint(plan.removed)

    def _backups(self, hosting: Hosting, membership: Membership) -> tuple[m.Target, ...]:
        return hosting.backups(membership, self.members, self.evictions.containers, self.plans.flight.plan)

    def _cut(self, hosting: Hosting, membership: Membership) -> None:
        """Take cuts while containers that can be taken away have parameters, or are about to get them."""
        plan, cuts = self.plans.flight.plan, self.cuts
        exposed = self._is_exposed(membership.partitions.owners)
        if exposed:
            cuts.note_lag(self.progress.completed, self.out.now_s)
        elif plan is None or plan.transfer is None or not self._is_exposed(plan.transfer.partitions.owners):
            self.out.add(cuts.forget(membership.servers) if plan is None else ())
            return
        context, backups = self._checkpoint_context(membership), self._backups(hosting, membership)
        self.out.add(cuts.advance(context, backups, self.out.now_s))
        uncommitted = self.plans.flight.uncommitted
        why = cuts.failure or ("the job ends before" if cuts.is_too_late(context) else "")
        if why and uncommitted is not None and uncommitted.phase is Phase.COPIED and not self._may_commit:
            self._abort(uncommitted, f"reliable containers could not take copies: {why}")

    def _add_spare(self, hosting: Hosting, role: Role) -> None:
        """Let a recovery continue with a spare member of a role that has none left, once there is one."""
        member = hosting.spare(self.members, self._tiers, role, self.plans.flight.leaving())
        if member is not None and member.address is not None:
            self.recovery.add(member.name, role)
            self.recovery.registered(member.name, member.address)
            return
        self.paced.add(hosting.request_lacking(self.members, self._tiers, self.out.now_s))

    def _take_containers(self, trigger: Trigger) -> None:
        """Evict transient containers, or make them fail, as a trigger requests: those that have run longest."""
        hosts = self._tiers.hosts if self.hosting is not None else ()
        found = sorted((host for host in hosts if host.tier is Tier.TRANSIENT), key=lambda host: host.rank)
        chosen = [host.container for host in found[: trigger.change.count or len(found)]]
        if not chosen:
            self.out.add(self.plans.refuse(trigger, "the job has no transient container", self.out.now_s))
            return
        self.out.note(str(trigger.change.operation), clock=trigger.clock, containers=chosen)
        if trigger.change.operation is Operation.FAIL:
            for container_id in chosen:
                self.out.say(e.KillContainer(container_id))
            return
        warnings = (e.ContainerWarning(name, NOTICE_S, "is evicted as requested") for name in chosen)
        self._on_warned(e.ContainersWarned(tuple(warnings)))

    def _arrange(self, hosting: Hosting, membership: Membership) -> None:
        """Release drained hosts; plan who takes part, and the replacement of reliable containers."""
        plans, now_s = self.plans, self.out.now_s
        for container_id in self._drained(hosting, membership):
            self.out.add(self.members.release_host(container_id, TAKEN_AWAY))
            self.out.add(self.evictions.end(container_id, EvictionOutcome.DRAINED, now_s, took_part=False))
            hosting.taken()
        if self.progress.horizon >= self.settings.iterations - 2 or plans.flight.committed is not None:
            return
        warned = self.evictions.next_to_drain(membership)
        purpose = Purpose.DRAIN if warned else Purpose.ARRANGE
        if not plans.is_due(purpose, now_s) or not (warned or plans.is_idle):
            return
        hosting.measure(self.progress.history.completed_s, self.settings.iterations)
        tiers = self._tiers
        if hosting.decision(membership, tiers) is None:
            change = hosting.replacement(tiers, len(self.evictions.containers))
            if change is not None and plans.is_idle:
                self.out.add(plans.ask_own(change, Purpose.REPLACE, self._plan_context))
            return
        if (plan := plans.flight.uncommitted) is not None:
            keeps = {host.server for host in tiers.hosts if host.leaving}
            replaces = plan.purpose is Purpose.REPLACE and set(warned) - keeps <= set(plan.removed)
            if replaces or plan.purpose is Purpose.DRAIN:
                return
            self._abort(plan, "cancelled to drain containers that will be taken away", failed=False)
        if not any(plan.purpose is purpose for plan in plans.queue):
            self.out.add(plans.arrange(purpose, now_s))

    def _drained(self, hosting: Hosting, membership: Membership) -> list[str]:
        """Return the containers to release: they will be taken away, and nothing needs them any more."""
        driver, evictions = self.plans.flight.driver, self.evictions
        flight = (driver.plan.turn, len(driver.lost)) if driver is not None else ()
        if not evictions.are_open or not hosting.has_news(
            (membership.version, *flight, self.members.changes, len(evictions.all))
        ):
            return []
        needed = {*membership.members, *(driver.concerned if driver is not None else ())}
        return hosting.drained(self.members, evictions.containers, needed)

    # ---- between the parts

    @property
    def looks_for_room(self) -> bool:
        """Return whether the job would grow back into free capacity that no other application wants."""
        membership = self.membership
        if membership is None or self.state is not JobState.RUNNING:
            return False
        if self.recovery.inquiry is not None or self.members.unacked or self.evictions.next_to_drain(membership):
            return False
        can = self.plans.is_idle and self.progress.horizon < self.settings.iterations - 2
        return can and self.size.lacks_room and self.plans.is_due(Purpose.REGAIN, self.out.now_s)

    @property
    def _plan_context(self) -> PlanContext:
        exports = self.state is JobState.EXPORTING
        completed, horizon = self.progress.completed, self.progress.horizon
        tiers = None if self.hosting is None else self._tiers
        copies = self.cuts.committed.holders if self.cuts.committed is not None else ()
        return PlanContext(
            self.membership, self.members.next_number, completed, horizon, exports, self.out.now_s, tiers, copies
        )

    @property
    def tick_due_s(self) -> float:
        """The time of the next tick that can have an effect, if no event comes before; in the past while the job waits.

        A job that only trains does not wait: its ticks only resend the horizon and take checkpoints by time.
        """
        if self.state in ENDED_STATES:
            return inf
        membership, plans = self.membership, self.plans
        if membership is None or self.state is not JobState.RUNNING or not plans.is_idle or self.evictions.are_open:
            return -inf
        if self.recovery.inquiry is not None or self.members.unacked or self.checkpoints.pending is not None:
            return -inf
        if self._is_exposed(membership.partitions.owners):
            return -inf
        if any(self.size.pending(self.members.held).values()) or plans.lacks_followers(membership):
            return -inf
        if self.size.lacks_room:
            return -inf
        checkpoint_s = self.checkpoints.timetable.due_s(self._checkpoint_context(membership))
        return min(self.out.due_s(self._outstanding()), checkpoint_s)

    def _checkpoint_context(self, membership: Membership) -> CheckpointContext:
        progress, warned_s = self.progress, self.evictions.servers_warned_s(membership)
        clocks = progress.horizon, progress.lookahead, progress.completed
        if self.hosting is None:
            size = self.size.asked(self.plans.open)
        else:
            size = self.hosting.size(self.members)
        return CheckpointContext(membership, *clocks, warned_s, size)

    def _outstanding(self) -> Orders:
        """Return the orders that have had no effect yet, or no acknowledgement."""
        membership, flight, unacked = self.membership, self.plans.flight, sorted(self.members.unacked)
        if membership is None:
            return []
        if self.recovery.inquiry is not None:
            return self.recovery.orders(membership)
        orders = flight.orders(membership.members) + self.members.orders(unacked, flight.turn_of_membership())
        if self.state is JobState.RUNNING and not unacked:
            orders += self.progress.orders(membership, flight.owing())
        return orders

    def _abort(self, plan: Plan, reason: str, *, failed: bool = True) -> None:
        """Abort an uncommitted plan and release its newcomers."""
        self.out.add(self.plans.abort(plan, reason, self.out.now_s, failed=failed))
        why = f"plan {plan.plan_id} was aborted: {reason}"
        for container_id in plan.requested:
            if container_id in self.members.hosts:
                self.out.add(self.members.release_host(container_id, why))
        self.out.add(self.members.dismiss(plan.added, why))

    def _end(self, state: JobState, reason: str) -> None:
        """End the job."""
        for plan in self.plans.open:
            self._abort(plan, f"the job {state}" + (f": {reason}" if reason else ""))
        self.state, self.reason = state, reason
        self.export.close()
        self.out.sync("ended", state=str(state), reason=reason)
        shutdown = m.Shutdown(f"the job {state}")
        self.out.send((name, shutdown) for name, member in sorted(self.members.by_name.items()) if member.address)
        self.out.say(e.EndJob(state, reason))

    def waits_for(self, now_s: float) -> str:
        """Return a sentence about what the start or a recovery waits for; empty if the wait is short."""
        if self.state in ENDED_STATES:
            return ""
        if self.membership is None:
            return self.paced.waits_for(now_s) or self.startup.waits_for(self.members.by_name.values(), now_s)
        return self.recovery.waits_for(self.members.by_name, now_s)

    def validate(self) -> None:
        """Assert the invariants of the parts and between them (design section 3)."""
        for part in (self.members, self.startup, self.evictions, self.plans, self.recovery, self.checkpoints):
            part.validate()
        self.cuts.validate()
        self.export.validate()
        if self.membership is None:
            return
        self.progress.validate()
        self.size.validate(self.members.held)
        horizon, settings = self.progress.horizon, self.settings
        assert self.membership.from_clock <= max(horizon + 1, settings.first_clock)
        if self.plans.undecided and self.state is JobState.RUNNING:
            assert horizon <= max(settings.first_clock, settings.iterations - 2), horizon
        if self.state not in ENDED_STATES:
            coming = self.plans.flight.uncommitted.added if self.plans.flight.uncommitted is not None else ()
            assert set(coming) <= set(self.members.by_name), "a newcomer has a container, or is asked for"
            lost = self.recovery.inquiry.lost if self.recovery.inquiry is not None else {}
            assert set(self.membership.members) <= set(self.members.by_name) | set(lost), "a member has a container"
