"""The decisions of a server about each request: accept, refuse, hold, step.  Ids only, no arrays.

The shell (``eps.server``) calls :meth:`ServerState.step` under its lock and executes the commands on the arrays, in
order; the simulator executes them on stand-ins.  Pure.

A partition's clock is the number of clocks that every split has contributed to it.  Completion is counted in splits,
not in workers, so it does not matter which worker computes what.  The clock list of the paper (worker -> clock) is
derived from it and the membership by :meth:`ServerState.clock_list`.

Source: EPS §2.2 Fig. 1c (push, step, send), §3.2 Fig. 9, §3.3; design sections 4 to 6; reproducible.md ("Exactly once
goes with it"); Proteus §3.3.
Deviation: under BSP a partition moves at a clock, and the follower applies the same updates, so its bits are the
owner's.  The paper stops the job for the transfer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership
from eps.core.partition_state import INCARNATION_BITS, Clocks, Commands, Follower, Holding, PartitionState
from eps.core.progress import LatestResults
from eps.core.types import CoreSettings, MemberId


@dataclass(slots=True)
class Due:
    """A checkpoint or a cut that was ordered."""

    number: int
    clock: int
    #: Partitions that are done with it.
    done: set[int] = field(default_factory=set)

    def is_reached(self, state: PartitionState) -> bool:
        """Return, once, whether a partition owned here has reached the clock."""
        if state.holding is not Holding.OWNER or state.partition in self.done:
            return False
        # If the partition moves at that clock or before, its next owner copies it.
        if state.clocks.completed < self.clock or (state.promote_at is not None and state.promote_at <= self.clock):
            return False
        self.done.add(state.partition)
        return True


class Served:
    """The partitions on this server, and the answers to workers, owners and followers about them.

    Every method appends its commands to ``out``, in order.

    Parameters
    ----------
    name : str
        The server's.
    settings : CoreSettings
    """

    def __init__(self, name: MemberId, settings: CoreSettings) -> None:
        self._name = name
        #: Derived from the settings, because every part of every message needs them.
        self._bsp, self._num_splits, self._iterations = settings.bsp, settings.num_splits, settings.iterations
        #: The last splits of a push that were checked and are valid.
        self._right_splits: tuple[int, ...] | None = None
        self.partitions: dict[int, PartitionState] = {}
        #: The checkpoint and the cut that were ordered last.
        self._checkpoint: Due | None = None
        self._cut: Due | None = None
        #: Partition -> clock of a cut -> progress of the copy that is kept here.
        self.cuts: dict[int, dict[int, s.Counters]] = {}
        #: The latest cut that this server knows of.
        self._newest_cut = 0

    # ---- requests of workers

    def exchange(self, pushes: Sequence[s.PushArrived], pulls: Sequence[s.PullArrived], out: Commands) -> None:
        """Process the parts of a message; sums and steps come first, so that the shell can compute them together.

        This order is safe: the message has one push for each partition, and if that is added, no other push of the
        partition waits.
        """
        sums: Commands = []
        rest: Commands = []
        for push in pushes:
            self.push(push, rest, sums)
        for pull in pulls:
            self.pull(pull, rest)
        out += sums
        out += rest

    def push(self, event: s.PushArrived, out: Commands, sums: Commands) -> None:
        """Process a push; sums and steps go to ``sums``."""
        state = self.partitions.get(event.partition)
        if state is None:
            out.append(s.RefuseStale(event.request))
            return
        splits = event.splits
        # All pushes of a message share one tuple of splits.
        if splits is not self._right_splits:
            if not splits or min(splits) < 0 or max(splits) >= self._num_splits or len(set(splits)) < len(splits):
                rule = f"the job has splits 0 to {self._num_splits - 1}, each named once"
                out.append(s.Fail(event.request, f"a push names splits {splits}; {rule}"))
                return
            self._right_splits = splits
        if event.clock >= self._iterations:
            rule = f"the last is {self._iterations - 1}"
            out.append(s.Fail(event.request, f"a push for clock {event.clock}; {rule}"))
        elif state.push(event, out, sums):
            self.take(state, out)
            state.change_hands()
            if state.held:
                self.retry(state, out, sums)

    def pull(self, event: s.PullArrived, out: Commands) -> None:
        """Process a pull."""
        state = self.partitions.get(event.partition)
        if event.min_clock > self._iterations:
            rule = f"the last is {self._iterations}"
            out.append(s.Fail(event.request, f"a pull of clock {event.min_clock}; {rule}"))
        elif state is None:
            out.append(s.RefuseStale(event.request))
        else:
            state.pull(event, out)

    def retry(self, state: PartitionState, out: Commands, sums: Commands | None = None) -> None:
        """Process held requests again; those that must still wait are held again."""
        waiting, state.held = state.held, []
        for event in waiting:
            if isinstance(event, s.PushArrived):
                self.push(event, out, out if sums is None else sums)
            else:
                self.pull(event, out)

    # ---- messages of other servers

    def update(self, event: s.UpdateArrived | s.PromoteArrived, out: Commands) -> None:
        """Process an owner's update or promotion, and those that arrived early and follow it."""
        state = self.partitions.get(event.partition)
        if state is None:
            out.append(s.DropUpdate(event.request))
            return
        following: s.UpdateArrived | s.PromoteArrived | None = event
        while following is not None and state.update(following, out):
            if state.holding is Holding.OWNER:
                self.promoted(state, out)
            following = state.early.pop(state.sequence, None)

    def acked(self, event: s.UpdateAcked, out: Commands) -> None:
        """Record a follower's acknowledgement."""
        state = self.partitions.get(event.partition)
        if state is not None:
            state.acked(event, out)
            if state.held and state.stable:
                self.retry(state, out)

    def stop_sending(self, state: PartitionState, follower: MemberId, out: Commands) -> None:
        """Stop sending updates to a follower, and process requests that waited for it."""
        state.stop_sending(follower, out)
        self.retry(state, out)

    # ---- partitions come and go

    def promoted(self, state: PartitionState, out: Commands) -> None:
        """Serve a partition that this server owns from now on."""
        self.report_promoted(state, out)
        self.take(state, out)
        self.retry(state, out)

    def report_promoted(self, state: PartitionState, out: Commands) -> None:
        """Report to the job master that this server owns a partition."""
        out.append(s.ReportToMaster(m.PartitionPromoted(self._name, state.plan_id, state.partition)))

    def drop(self, state: PartitionState, out: Commands) -> None:
        """Drop a partition."""
        state.refuse_waiting(out)
        del self.partitions[state.partition]
        out.append(s.DropPartition(state.partition))

    def clear(self, out: Commands) -> None:
        """Drop every partition, the current checkpoint and the current cut."""
        for partition, state in sorted(self.partitions.items()):
            for to, follower in sorted(state.followers.items()):
                out.append(s.StopSending(follower.plan_id, partition, to))
            state.refuse_waiting(out)
            if state.holding is not Holding.DROPPED:
                out.append(s.DropPartition(partition))
        self.partitions.clear()
        self._checkpoint = self._cut = None

    # ---- checkpoints and cuts

    def order(self, event: s.CheckpointOrdered, out: Commands) -> None:
        """Start a checkpoint, unless it or a later one was ordered before."""
        if self._checkpoint is not None and event.checkpoint_id <= self._checkpoint.number:
            return
        self._checkpoint = Due(event.checkpoint_id, event.clock)
        for _, state in sorted(self.partitions.items()):
            self.take(state, out)

    def take(self, state: PartitionState, out: Commands) -> None:
        """Copy a partition for the ordered checkpoint and the ordered cut, once it has reached their clock."""
        partition, clocks = state.partition, state.clocks
        for due in (self._checkpoint, self._cut):
            if due is None or not due.is_reached(state):
                continue
            if self._bsp and clocks.completed > due.clock:
                what, skip = ("cut", s.SkipCut) if due is self._cut else ("checkpoint", s.SkipSnapshot)
                why = f"it was at clock {clocks.completed} when the {what} of clock {due.clock} was ordered"
                out.append(skip(due.number, partition, why))
            elif due is self._cut:
                counters = self.cuts.setdefault(partition, {})[due.clock] = clocks.counters()
                out.append(s.CopyForCut(due.number, partition, due.clock, counters))
            else:
                out.append(s.TakeSnapshot(due.number, partition, clocks.counters()))

    def order_cut(self, event: s.CutOrdered, out: Commands) -> None:
        """Start a cut, unless it or a later one was ordered before; drop the copies of all others but the kept one."""
        if event.cut_id < self._newest_cut or (self._cut is not None and event.cut_id == self._cut.number):
            return
        self._cut, self._newest_cut = Due(event.cut_id, event.clock), event.cut_id
        for partition in sorted(self.cuts):
            # Another owner may have sent its partition of the new cut before this order arrived.
            self.keep_cuts(partition, (event.kept, event.clock), out)
        for _, state in sorted(self.partitions.items()):
            self.take(state, out)

    def store_cut(self, event: s.CutArrived, incarnation: int, out: Commands) -> None:
        """Keep an owner's partition of a cut, unless it is from before a rollback or a later cut is known."""
        if event.incarnation != incarnation or event.cut_id < self._newest_cut:
            out.append(s.RefuseUpdate(event.request))
            return
        if event.cut_id > self._newest_cut:
            # The cut that was ordered here has ended.
            self._newest_cut, self._cut = event.cut_id, None
        self.keep_cuts(event.partition, (event.kept, event.clock), out)
        self.cuts.setdefault(event.partition, {})[event.clock] = event.counters
        out.append(s.StoreCut(event.request, event.partition, event.clock))

    def drop_cuts(self, cut_id: int, out: Commands) -> None:
        """Drop all copies, and refuse what arrives of this cut or an earlier one."""
        if cut_id < self._newest_cut:
            return
        self._cut, self._newest_cut = None, cut_id + 1
        for partition in sorted(self.cuts):
            self.keep_cuts(partition, (), out)

    def keep_cuts(self, partition: int, clocks: Collection[int], out: Commands) -> None:
        """Drop the copies of a partition, except those of cuts at these clocks."""
        kept = self.cuts.get(partition, {})
        for clock in [clock for clock in kept if clock not in clocks]:
            del kept[clock]
            out.append(s.DropCut(partition, clock))
        if not kept:
            self.cuts.pop(partition, None)

    def validate(self) -> None:
        """Assert the invariants."""
        for partition, kept in self.cuts.items():
            assert 0 < len(kept) <= 2, f"partition {partition} is kept for the cuts {sorted(kept)}"
        for partition, state in self.partitions.items():
            assert state.partition == partition
            state.validate()


class ServerState:
    """The pure state of one server.

    :class:`Served` answers requests about partitions.  This class decides which partitions the server holds, and in
    which role: from memberships, plans and losses.

    Parameters
    ----------
    name : str
    settings : CoreSettings
    """

    def __init__(self, name: MemberId, settings: CoreSettings) -> None:
        self.name = name
        self.settings = settings
        self.membership: Membership | None = None
        self._served = Served(name, settings)
        self.partitions = self._served.partitions
        #: Plans that were aborted or released; their late messages are ignored.
        self._closed_plans: set[int] = set()
        #: The latest known plan.  Plans change the job one after another, so all earlier ones have ended.
        self._newest_plan = 0
        self._results = LatestResults()
        #: The latest recovery that has asked for an inventory.
        self._asked = 0

    def step(self, event: s.ServerEvent) -> list[s.ServerCommand]:
        """Process one event; return the commands to execute, in order."""
        out: Commands = []
        match event:
            case s.ExchangeArrived(pushes, pulls):
                self._served.exchange(pushes, pulls, out)
            case s.PushArrived():
                self._served.push(event, out, out)
            case s.PullArrived():
                self._served.pull(event, out)
            case s.UpdateArrived() | s.PromoteArrived():
                self._served.update(event, out)
            case s.UpdateAcked():
                self._served.acked(event, out)
            case s.ResultsArrived(report):
                self._on_results(report, out)
            case s.MembershipArrived():
                self._on_membership(event, out)
            case s.SendOrdered():
                self._on_send(event, out)
            case s.SnapshotArrived():
                self._on_snapshot(event, out)
            case s.SendingFailed():
                self._on_sending_failed(event, out)
            case s.PlanAborted(plan_id):
                self._on_abort(plan_id, out)
            case s.PlanReleaseOrdered(plan_id):
                self._on_release(plan_id, out)
            case s.CheckpointOrdered():
                self._served.order(event, out)
            case s.CutOrdered():
                self._served.order_cut(event, out)
            case s.CutArrived():
                self._served.store_cut(event, self.incarnation, out)
            case s.CutsDropped(cut_id):
                self._served.drop_cuts(cut_id, out)
        return out

    # ---- membership

    @property
    def version(self) -> int:
        """The version of the membership; 0 before the first."""
        return self.membership.version if self.membership is not None else 0

    @property
    def incarnation(self) -> int:
        """The incarnation of the membership."""
        return self.membership.incarnation if self.membership is not None else 0

    def _on_membership(self, event: s.MembershipArrived, out: Commands) -> None:
        membership = event.membership
        self._close_before(event.plan_id, out)
        if self.membership is None or membership.version > self.membership.version:
            # The rollback itself may never reach a leaving server, only the membership of a later recovery.
            missed = self.membership is not None and membership.incarnation > self.incarnation
            begins = membership.goes_back or missed or (self.membership is None and membership.version == 1)
            self.membership = membership
            if begins:
                self._begin_incarnation(membership, event.counters, out)
            for state in list(self.partitions.values()):
                if membership.takes_over:
                    self._take_over(state, membership, event.plan_id, out)
                else:
                    self._follow_owner(state, membership, event.plan_id, out)
            if membership.takes_over:
                # A server that leaves was not asked for an inventory.  One that stays may have received a lost worker's
                # push after its answer: then the heir has nothing left to compute and reports nothing.
                from_clock = membership.from_clock if self.name in membership.servers else self.settings.first_clock
                reports = self._results.reports(self.name, self.incarnation, from_clock)
                out.extend(s.ReportToMaster(report) for report in reports)
        out.append(s.ReportToMaster(m.MembershipAcked(self.name, membership.version)))
        for state in list(self.partitions.values()):
            if event.plan_id and state.plan_id == event.plan_id and state.holding is Holding.OWNER:
                self._served.report_promoted(state, out)

    def _begin_incarnation(self, membership: Membership, counters: Mapping[int, s.Counters], out: Commands) -> None:
        """Initialise partitions from the seed, or the checkpoint or cut of a rollback; drop what was before."""
        self._served.clear(out)
        self._results.clear()
        seeded = s.Counters((self.settings.seeded_clock,) * self.settings.num_splits)
        cut = membership.cut
        cuts = self._served.cuts
        for partition in sorted(cuts):
            # What is left of later cuts is from before the rollback.
            self._served.keep_cuts(partition, () if cut is None else (cut,), out)
        owned = membership.partitions.owned_by(self.name)
        # Delayed updates of earlier incarnations have lower numbers.
        sequence = membership.incarnation << INCARNATION_BITS
        for partition in membership.partitions.held_by(self.name):
            holding = Holding.OWNER if partition in owned else Holding.FOLLOWER
            found = counters.get(partition, seeded) if cut is None else cuts[partition][cut]
            clocks = Clocks.of(found)
            state = PartitionState(partition, self.settings.bsp, holding, clocks, sequence)
            if partition in owned:
                standing = membership.partitions.followers_of(partition)
                state.followers = {follower: Follower(0, sequence) for follower in standing}
            self.partitions[partition] = state
            out.append(s.CreatePartition(partition, cut))

    def _take_over(self, state: PartitionState, membership: Membership, plan_id: int, out: Commands) -> None:
        """Adjust a partition to the membership of a recovery, which takes effect at once."""
        here = membership.partitions.owners[state.partition] == self.name
        followers = membership.partitions.followers_of(state.partition)
        followed = state.holding is Holding.FOLLOWER
        state.take_over(here, followers, out)
        if here:
            # A plan may promote a standing follower, even before the plan's own membership arrives.
            state.plan_id = plan_id or state.plan_id
        if followed and here:
            self._served.promoted(state, out)
        elif not followed:
            self._served.retry(state, out)
        elif self.name not in followers:
            self._served.drop(state, out)

    def _follow_owner(self, state: PartitionState, membership: Membership, plan_id: int, out: Commands) -> None:
        """Adjust a partition to a plan's membership."""
        owner = membership.partitions.owners[state.partition]
        staying = (owner, *membership.partitions.followers_of(state.partition))
        for name, follower in list(state.followers.items()):
            if follower.plan_id != plan_id and name not in staying:
                self._served.stop_sending(state, name, out)
        follows = state.holding is Holding.FOLLOWER
        if follows and state.plan_id != plan_id and self.name not in staying:
            self._served.drop(state, out)
        elif owner == self.name:
            # A plan may promote a standing follower.
            state.plan_id = plan_id or state.plan_id
            if follows and self.settings.bsp:
                state.promote_at = membership.from_clock
                if state.change_hands():
                    self._served.promoted(state, out)
        elif state.holding is Holding.OWNER and owner in state.followers:
            if state.give_to(owner, membership.from_clock, out):
                self._served.retry(state, out)

    # ---- new followers

    def _on_send(self, event: s.SendOrdered, out: Commands) -> None:
        self._close_before(event.plan_id, out)
        state = self.partitions.get(event.partition)
        if state is not None and state.holding is Holding.OWNER and not self._closed(event.plan_id):
            state.send_to(event.to, event.plan_id, out)

    def _on_snapshot(self, event: s.SnapshotArrived, out: Commands) -> None:
        self._close_before(event.plan_id, out)
        known = self.partitions.get(event.partition)
        earlier = self.membership is not None and event.sequence >> INCARNATION_BITS != self.membership.incarnation
        held = known is not None and known.holding in (Holding.OWNER, Holding.FOLLOWER)
        if earlier or held or self._closed(event.plan_id):
            out.append(s.DropUpdate(event.request))
            if known is not None and known.plan_id == event.plan_id and not self._closed(event.plan_id):
                self._report_caught_up(known, out)
            return
        clocks = Clocks.of(event.counters)
        state = PartitionState(
            event.partition,
            self.settings.bsp,
            Holding.FOLLOWER,
            clocks,
            event.sequence,
            plan_id=event.plan_id,
            checksum=event.checksum,
        )
        if known is not None:
            state.held = known.held
        self.partitions[event.partition] = state
        out.append(s.InstallSnapshot(event.request, event.partition))
        self._report_caught_up(state, out)

    def _report_caught_up(self, state: PartitionState, out: Commands) -> None:
        caught_up = m.PartitionCaughtUp(self.name, state.plan_id, state.partition, state.checksum)
        out.append(s.ReportToMaster(caught_up))

    def _on_sending_failed(self, event: s.SendingFailed, out: Commands) -> None:
        # The plan that brought a standing follower may have ended long ago.
        counts_on = any(
            event.follower in v.followers
            and v.followers[event.follower].plan_id == event.plan_id
            and self._stands(v, event.follower)
            for v in self.partitions.values()
        )
        needed_by = 0 if counts_on else event.plan_id
        why = f"sending to {event.follower} failed: {event.why}"
        out.append(s.ReportToMaster(m.TransferFailed(self.name, needed_by, why, event.follower)))

    def _stands(self, state: PartitionState, name: MemberId) -> bool:
        """Return whether ``name`` is a standing follower, which outlives the plan that brought it."""
        return self.membership is not None and name in self.membership.partitions.followers_of(state.partition)

    def sends(self, plan_id: int, to: MemberId) -> bool:
        """Return whether anything remains to be sent to ``to`` for that plan."""
        found = [state.followers[to] for state in self.partitions.values() if to in state.followers]
        return any(follower.plan_id == plan_id for follower in found)

    # ---- the end of a plan

    @property
    def _counted_on(self) -> bool:
        """Return whether a recovery may count on everything held here; if so, orders that end plans are ignored."""
        return self._asked > (self.membership.recovery if self.membership is not None else 0)

    def _closed(self, plan_id: int) -> bool:
        return plan_id in self._closed_plans or plan_id < self._newest_plan

    def _close_before(self, plan_id: int, out: Commands) -> None:
        """Abort what an earlier plan left open: its abort got lost."""
        if plan_id <= self._newest_plan:
            return
        self._newest_plan = plan_id
        states = self.partitions.values()
        stale = {v.plan_id for v in states if v.holding is Holding.FOLLOWER and not self._stands(v, self.name)}
        stale.update(f.plan_id for v in states for name, f in v.followers.items() if not self._stands(v, name))
        for earlier in sorted(p for p in stale if p < plan_id):
            self._on_abort(earlier, out)

    def _on_abort(self, plan_id: int, out: Commands) -> None:
        if self._counted_on:
            return
        self._close_before(plan_id, out)
        self._closed_plans.add(plan_id)
        for _, state in sorted(self.partitions.items()):
            self._stop_plan(state, plan_id, out)
            here = state.holding is Holding.FOLLOWER and state.plan_id == plan_id
            if here and not self._stands(state, self.name):
                self._served.drop(state, out)

    def _on_release(self, plan_id: int, out: Commands) -> None:
        if self._counted_on:
            return
        if plan_id not in self._closed_plans:
            self._closed_plans.add(plan_id)
            for partition, state in sorted(self.partitions.items()):
                self._stop_plan(state, plan_id, out)
                if state.holding is Holding.FORMER:
                    # The new owner may have been a standing follower, which no plan brought.
                    for name in list(state.followers):
                        self._served.stop_sending(state, name, out)
                    state.holding = Holding.DROPPED
                    out.append(s.DropPartition(partition))
        out.append(s.ReportToMaster(m.PlanReleased(self.name, plan_id)))

    def _stop_plan(self, state: PartitionState, plan_id: int, out: Commands) -> None:
        for name, follower in list(state.followers.items()):
            if follower.plan_id == plan_id and not self._stands(state, name):
                self._served.stop_sending(state, name, out)

    # ---- inventory and results

    def _on_results(self, report: m.ClockReported, out: Commands) -> None:
        if report.incarnation != self.incarnation:
            return
        if self.membership is not None and self.membership.takes_over and report.clock <= self.membership.from_clock:
            # Perhaps of a lost worker, after the inventory: then its heir has nothing left to compute.
            out.append(s.ReportToMaster(replace(report, name=self.name)))
        self._results.add(report)

    def inventory(self, recovery: int, from_clock: int) -> m.Inventory:
        """Return what this server holds, with the results that it knows from ``from_clock`` on.

        From then on the server drops nothing, until the master has decided the new owners.
        """
        self._asked = max(self._asked, recovery)
        return m.Inventory(
            self.name,
            recovery,
            partitions=tuple(
                m.HeldPartition(partition, state.holding, tuple(state.clocks.next_clock), state.clocks.readable_from)
                for partition, state in sorted(self.partitions.items())
                if state.holding is not Holding.DROPPED
            ),
            results=self._results.reports(self.name, self.incarnation, from_clock),
            cuts=tuple(m.KeptCut(p, clock) for p, kept in sorted(self._served.cuts.items()) for clock in sorted(kept)),
        )

    def clock_list(self) -> dict[MemberId, int]:
        """Return the clock list: worker -> clocks that all of its active splits have contributed here (EPS Fig. 9)."""
        if self.membership is None:
            return {}
        clocks: dict[MemberId, int] = {}
        owned = [state.clocks.next_clock for state in self.partitions.values() if state.holding is Holding.OWNER]
        for worker in self.membership.workers:
            active = self.membership.splits.active_on(worker)
            clocks[worker] = min(
                (next_clock[a] for next_clock in owned for a in active), default=self.settings.first_clock
            )
        return clocks

    def owned(self) -> tuple[int, ...]:
        """Return the partitions that this server owns, ascending."""
        return tuple(p for p, state in sorted(self.partitions.items()) if state.holding is Holding.OWNER)

    def validate(self) -> None:
        """Assert the invariants of a server."""
        self._served.validate()
        assert self._newest_plan >= max((state.plan_id for state in self.partitions.values()), default=0)
