"""What a server does with each request: accept, refuse, hold, step.  Ids only, no arrays.

The shell (``eps.server``) calls :meth:`ServerState.step` under its lock and executes the commands in order on the
arrays; the simulator does the same on stand-ins.  L0, pure.

A partition's clock is the number of clocks that every split has contributed to it.  Completion is counted in splits,
never in workers, so that it does not matter who computes what; the clock list of the paper (worker -> clock) is
derived from it and the membership by :meth:`ServerState.clock_list`.

Source: EPS §2.2 Fig. 1c (push, step, send), §3.2 Fig. 9, §3.3; design sections 4 to 6; reproducible.md ("Exactly once
goes with it").
Deviation: under BSP a partition changes hands at a clock (the follower applies the same updates, so its bits are the
owner's); the paper stops the job for the transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership
from eps.core.partition_state import INCARNATION_BITS, Holding, PartitionState
from eps.core.server_followers import ReplicatingServer
from eps.core.types import MemberId


class ServerState(ReplicatingServer):
    """The pure state of one server.

    Parameters
    ----------
    name, settings
        As of :class:`~eps.core.server_followers.ReplicatingServer`.
    """

    def step(self, event: s.ServerEvent) -> list[s.ServerCommand]:
        """Take one event in; return what to do, in order."""
        self._out = self._sums = []
        match event:
            case s.ExchangeArrived(pushes, pulls):
                self._on_exchange(pushes, pulls)
            case s.PushArrived():
                self._on_push(event)
            case s.PullArrived():
                self._on_pull(event)
            case s.UpdateArrived():
                self._on_update(event)
            case s.MembershipArrived():
                self._on_membership(event)
            case s.SendOrdered():
                self._on_send(event)
            case s.SnapshotArrived():
                self._on_snapshot(event)
            case s.PromoteArrived():
                self._on_promote(event)
            case s.UpdateAcked():
                self._on_acked(event)
            case s.SendingFailed():
                self._on_sending_failed(event)
            case s.ResultsArrived(report):
                self._on_results(report)
            case s.PlanAborted():
                self._on_abort(event)
            case s.PlanReleaseOrdered():
                self._on_release(event)
            case s.CheckpointOrdered():
                self._on_checkpoint(event)
        # Not kept until the next event: they hold what was pushed, which is in the worker's memory.
        out, self._out, self._sums = self._out, [], []
        return out

    # ---- membership

    def _on_membership(self, event: s.MembershipArrived) -> None:
        membership = event.membership
        self._close_before(event.plan_id)
        if self.membership is None or membership.version > self.membership.version:
            begins = membership.goes_back or (self.membership is None and membership.version == 1)
            self.membership = membership
            if begins:
                self._begin_incarnation(membership, event.counters)
            for state in list(self.partitions.values()):
                if membership.takes_over:
                    self._take_over(state, membership, event.plan_id)
                else:
                    self._follow_owner(state, membership, event.plan_id)
            if membership.takes_over and self.name not in membership.servers:
                # Who leaves is not asked what it has, and may be the only one that knows what a lost worker measured.
                self._out.extend(s.ReportToMaster(r) for r in self._results.reports(self.name, self.incarnation))
        self._out.append(s.ReportToMaster(m.MembershipAcked(self.name, membership.version)))
        for state in list(self.partitions.values()):
            if event.plan_id and state.plan_id == event.plan_id and state.holding is Holding.OWNER:
                self._report_promoted(state)

    def _begin_incarnation(self, membership: Membership, counters: Mapping[int, s.Counters]) -> None:
        """Begin with the job's start, or with the checkpoint to which it goes back; forget what was before."""
        for partition, state in sorted(self.partitions.items()):
            for follower, plan_id in sorted(state.followers.items()):
                self._out.append(s.StopSending(plan_id, partition, follower))
            self._out.extend(s.DropUpdate(early.request) for early in state.early.values())
            for held in state.held:
                self._refuse(held)
            if not state.dropped:
                self._out.append(s.DropPartition(partition))
        self.partitions.clear()
        self._results.clear()
        self._checkpoint, self._taken = None, set()
        seeded = s.Counters((self.settings.seeded_clock,) * self.settings.num_splits)
        owned = membership.partitions.owned_by(self.name)
        for partition in membership.partitions.held_by(self.name):
            found = counters.get(partition, seeded)
            state = PartitionState(
                partition,
                Holding.OWNER if partition in owned else Holding.FOLLOWER,
                list(found.next_clock),
                min(found.next_clock),
                oldest_clock=min(found.next_clock),
                applied=found.applied,
                duplicates_refused=found.duplicates_refused,
                # Updates of earlier incarnations are on their way, perhaps; theirs have lower numbers.
                sequence=membership.incarnation << INCARNATION_BITS,
            )
            if partition in owned:
                state.followers = dict.fromkeys(membership.partitions.followers_of(partition), 0)
                state.in_sync = dict.fromkeys(state.followers, state.sequence)
            self.partitions[partition] = state
            self._out.append(s.CreatePartition(partition))

    def _take_over(self, state: PartitionState, membership: Membership, plan_id: int) -> None:
        """Adjust what this server is to a partition after others were lost; ``membership`` holds at once."""
        owner = membership.partitions.owners[state.partition]
        followers = membership.partitions.followers_of(state.partition)
        held_as, state.promote_at = state.holding, None
        if held_as is Holding.FOLLOWER and owner != self.name:
            if self.name not in followers:
                self._drop_follower(state)
            return
        for follower in sorted(f for f in state.followers if owner != self.name or f not in followers):
            self._forget_follower(state, follower)
        if owner == self.name:
            assert not state.dropped, f"{self.name} is to own partition {state.partition}, which it gave away"
            state.holding = Holding.OWNER
            self._out.extend(s.RefuseUpdate(early.request) for early in state.early.values())
            state.early.clear()
            if held_as is not Holding.OWNER:
                state.owned_from = state.sequence
            # A standing follower can be what a plan promotes, also before the plan's own membership came.
            state.plan_id = plan_id or state.plan_id
            if held_as is Holding.FOLLOWER:
                self._report_promoted(state)
                self._maybe_take(state)
        else:
            state.holding = Holding.FORWARDER
            if state.arrived:
                # What of it was not complete is pushed to the new owner again, or here, where it comes back.
                state.oldest_clock = state.completed
                state.arrived.clear()
        self._settle_unstable(state)
        self._retry_held(state)

    def _follow_owner(self, state: PartitionState, membership: Membership, plan_id: int) -> None:
        """Adjust what this server is to a partition to a new membership."""
        owner = membership.partitions.owners[state.partition]
        standing = membership.partitions.followers_of(state.partition)
        others = [f for f, plan in state.followers.items() if plan != plan_id and f not in (owner, *standing)]
        for follower in others:
            self._stop_sending(state, follower)
        stood = state.holding is Holding.FOLLOWER and state.plan_id != plan_id
        if stood and self.name not in (owner, *standing):
            self._drop_follower(state)
            return
        if owner == self.name:
            # A standing follower can be what a plan promotes.
            state.plan_id = plan_id or state.plan_id
            if state.holding is Holding.FOLLOWER and self.settings.bsp:
                state.promote_at = membership.from_clock
                self._maybe_promote(state)
            return
        if state.holding is Holding.OWNER and owner in state.followers:
            if self.settings.bsp:
                state.promote_at = membership.from_clock
                self._maybe_hand_over(state)
            else:
                self._out.append(s.SendPromote(state.followers[owner], state.partition, owner, state.sequence))
                state.sequence += 1
                state.holding = Holding.FORWARDER
                self._retry_held(state)

    def _maybe_hand_over(self, state: PartitionState) -> None:
        if state.promote_at is not None and state.completed >= state.promote_at:
            state.holding = Holding.FORWARDER
            self._retry_held(state)

    # ---- pushes

    def _on_exchange(self, pushes: Sequence[s.PushArrived], pulls: Sequence[s.PullArrived]) -> None:
        """Take the parts of a message in; sums and steps come first, so that the shell can compute them together.

        Nothing of a partition can be due before its sum: the message has one push for it, and where that is added no
        other push of the partition waits.
        """
        self._sums = []
        for push in pushes:
            self._on_push(push)
        for pull in pulls:
            self._on_pull(pull)
        self._out[:0] = self._sums

    def _on_push(self, event: s.PushArrived) -> None:
        state = self.partitions.get(event.partition)
        if state is None:
            self._refuse(event)
            return
        splits = event.splits
        # The pushes of a message name the same ones.
        if splits is not self._right_splits:
            if not splits or min(splits) < 0 or max(splits) >= self._num_splits or len(set(splits)) < len(splits):
                rule = f"the job has splits 0 to {self._num_splits - 1}, each named once"
                self._out.append(s.Fail(event.request, f"a push names splits {splits}; {rule}"))
                return
            self._right_splits = splits
        if event.clock >= self.settings.iterations:
            rule = f"the last is {self.settings.iterations - 1}"
            self._out.append(s.Fail(event.request, f"a push for clock {event.clock}; {rule}"))
            return
        if (
            self._bsp
            and event.clock == state.completed
            and state.holding is Holding.OWNER
            and state.arrived.isdisjoint(splits)
        ):
            # What comes of nearly every push; the rules below, which look at each split, would say the same.
            self._accept_bsp(event, state)
            return
        behind = [split for split in event.splits if event.clock < state.next_clock[split]]
        if state.holding is Holding.FOLLOWER and len(behind) < len(event.splits):
            state.held.append(event)
            return
        # A follower answers what it knows to be applied: held, that answer would wait for a commit clock which its
        # sender cannot reach without it (a partition that comes back to a server that gave it away).
        if self._bsp and event.clock == state.completed:
            behind = [split for split in event.splits if split in state.arrived]
        if len(behind) == len(event.splits):
            state.duplicates_refused += len(behind)
            self._ack_stable(state, s.AckPush(event.request, event.partition, tuple(behind)))
        elif state.holding is Holding.FORWARDER:
            self._refuse(event)
        elif behind:
            # A sum cannot be taken apart: the worker sends the missing splits again, one by one.
            state.duplicates_refused += len(behind)
            self._out.append(s.AckPush(event.request, event.partition, tuple(behind), accepted=False))
        elif any(event.clock > state.next_clock[split] for split in event.splits):
            if self._bsp:
                # Its sender cannot have read this clock's parameters: they do not exist.
                rule = f"the partition is at clock {state.completed}"
                self._out.append(s.Fail(event.request, f"a push of clock {event.clock}; {rule}"))
            else:
                state.held.append(event)
        elif self._bsp:
            self._accept_bsp(event, state)
        else:
            self._accept_stale(event, state)

    def _accept_bsp(self, event: s.PushArrived, state: PartitionState) -> None:
        request, partition = event.request, event.partition
        self._sums.append(s.Accumulate(request, partition, event.clock, event.splits, not state.arrived))
        self._out.append(s.AckPush(request, partition, ()))
        state.arrived.update(event.splits)
        if len(state.arrived) < self._num_splits:
            return
        self._sums.append(s.StepPartition(partition, event.clock, bool(state.followers)))
        # Every split contributed: the same as ``_advance_clocks``, which would take them one by one.
        assert state.next_clock.count(event.clock) == self._num_splits, (state.partition, event.clock, state.next_clock)
        state.completed, state.oldest_clock = event.clock + 1, event.clock
        state.next_clock = [state.completed] * self._num_splits
        state.applied += self._num_splits if event.clock >= 0 else 0
        state.arrived.clear()
        self._send_updates(state, event.clock, self._everyone)
        self._maybe_take(state)
        self._maybe_hand_over(state)
        if state.held:
            self._retry_held(state)

    def _accept_stale(self, event: s.PushArrived, state: PartitionState) -> None:
        followed = bool(state.followers)
        self._out.append(s.ApplyPush(event.request, event.partition, event.clock, event.splits, followed))
        self._advance_clocks(state, event.clock, event.splits)
        self._send_updates(state, event.clock, event.splits)
        self._ack_stable(state, s.AckPush(event.request, event.partition, ()))
        self._maybe_take(state)
        self._retry_held(state)

    # ---- pulls

    def _on_pull(self, event: s.PullArrived) -> None:
        state = self.partitions.get(event.partition)
        if event.min_clock > self.settings.iterations:
            rule = f"the last is {self.settings.iterations}"
            self._out.append(s.Fail(event.request, f"a pull of clock {event.min_clock}; {rule}"))
        elif state is None:
            self._refuse(event)
        elif state.holding is Holding.FOLLOWER:
            state.held.append(event)
        elif state.dropped or (state.holding is Holding.FORWARDER and not self._bsp):
            self._refuse(event)
        elif self._bsp:
            self._pull_bsp(event, state)
        elif state.completed >= event.min_clock:
            self._out.append(s.AnswerPull(event.request, event.partition, state.completed))
        else:
            state.held.append(event)

    def _pull_bsp(self, event: s.PullArrived, state: PartitionState) -> None:
        if event.min_clock > state.completed:
            if state.holding is Holding.FORWARDER:
                self._refuse(event)
            else:
                state.held.append(event)
        elif event.min_clock == state.completed and not state.stable and state.holding is Holding.OWNER:
            # A follower that lacks it could become the owner: then nobody may have read it.
            state.held.append(event)
        elif event.min_clock == state.completed or (event.min_clock == state.completed - 1 and not state.arrived):
            self._out.append(s.AnswerPull(event.request, event.partition, event.min_clock))
        else:
            # Somebody has begun the clock after it, so it is complete everywhere.  Only an heir asks, for what a lost
            # worker had pushed after all.
            self._out.append(s.RefusePassed(event.request))

    def _refuse(self, event: s.PushArrived | s.PullArrived) -> None:
        self._out.append(s.RefuseStale(event.request))

    def _retry_held(self, state: PartitionState) -> None:
        """Judge again what had to wait; whatever still has to is held again."""
        waiting, state.held = state.held, []
        for event in waiting:
            if isinstance(event, s.PushArrived):
                self._on_push(event)
            else:
                self._on_pull(event)

    # ---- what is here, when others were lost

    @property
    def incarnation(self) -> int:
        """The incarnation of the membership."""
        return self.membership.incarnation if self.membership is not None else 0

    def _on_results(self, report: m.ClockReported) -> None:
        if report.incarnation != self.incarnation:
            return
        if self.membership is not None and self.membership.takes_over and report.clock <= self.membership.from_clock:
            # Perhaps of a lost worker, after the inventory: its heir may find that there is nothing left to do.
            self._out.append(s.ReportToMaster(replace(report, name=self.name)))
        self._results.add(report)

    def inventory(self, recovery: int) -> m.Inventory:
        """Return what this server holds, for the master; until it has decided who takes over, nothing is given up."""
        self._asked = max(self._asked, recovery)
        return m.Inventory(
            self.name,
            recovery,
            partitions=tuple(
                m.HeldPartition(partition, state.holding, tuple(state.next_clock), state.readable_from)
                for partition, state in sorted(self.partitions.items())
                if not state.dropped
            ),
            results=self._results.reports(self.name, self.incarnation),
        )

    # ---- checkpoints

    def _on_checkpoint(self, event: s.CheckpointOrdered) -> None:
        if self._checkpoint is not None and event.checkpoint_id <= self._checkpoint.checkpoint_id:
            return
        self._checkpoint, self._taken = event, set()
        for _, state in sorted(self.partitions.items()):
            self._maybe_take(state)

    def _maybe_take(self, state: PartitionState) -> None:
        """Keep a partition for the checkpoint that is ordered, once it has reached its clock."""
        due, partition = self._checkpoint, state.partition
        if due is None or state.holding is not Holding.OWNER or partition in self._taken:
            return
        # Where the partition changes hands at the clock or before, its next owner takes it.
        if state.completed < due.clock or (state.promote_at is not None and state.promote_at <= due.clock):
            return
        self._taken.add(partition)
        if self.settings.bsp and state.completed > due.clock:
            why = f"it was at clock {state.completed} when the checkpoint of clock {due.clock} was ordered"
            self._out.append(s.SkipSnapshot(due.checkpoint_id, partition, why))
            return
        counted = tuple(state.next_clock), state.applied, state.duplicates_refused
        self._out.append(s.TakeSnapshot(due.checkpoint_id, partition, *counted))

    # ---- lists

    def clock_list(self) -> dict[MemberId, int]:
        """Return the clock list: worker -> clocks that all of its active splits have contributed here (EPS Fig. 9)."""
        if self.membership is None:
            return {}
        clocks: dict[MemberId, int] = {}
        for worker in self.membership.workers:
            active = self.membership.splits.active_on(worker)
            seen = [p.next_clock[a] for p in self.partitions.values() if p.holding is Holding.OWNER for a in active]
            clocks[worker] = min(seen, default=self.settings.first_clock)
        return clocks

    def owned(self) -> tuple[int, ...]:
        """Return the partitions that this server owns now, ascending."""
        return tuple(p for p, state in sorted(self.partitions.items()) if state.holding is Holding.OWNER)

    def validate(self) -> None:
        """Assert what must always be true of a server."""
        for partition, state in self.partitions.items():
            assert state.completed == min(state.next_clock), partition
            assert not state.arrived or len(state.arrived) < self.settings.num_splits, partition
            if self.settings.bsp:
                assert max(state.next_clock) == state.completed, "BSP: every split is at the partition's clock"
            counted = sum(max(0, clock) for clock in state.next_clock)
            assert state.applied == counted, f"partition {partition}: {state.applied} applied, clocks say {counted}"
