"""What a server does with each request: accept, refuse, hold, forward, step.  Ids only, no arrays.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership
from eps.core.settings import CoreSettings
from eps.core.types import MemberId


class Holding(StrEnum):
    """What a server is to a partition that it holds."""

    OWNER = "owner"
    #: Applies the owner's updates; becomes the owner at a commit.
    FOLLOWER = "follower"
    #: Gave the partition away; answers for the clocks before, forwards the rest.
    FORWARDER = "forwarder"


@dataclass
class PartitionState:
    """Clocks, followers and waiting requests of one partition on one server."""

    partition: int
    holding: Holding
    #: Per split, the next clock that it contributes.  Invariant: ``completed == min(next_clock)``.
    next_clock: list[int]
    completed: int
    #: Contributions, one for each (clock, split), that were added to the parameters.
    applied: int = 0
    duplicates_refused: int = 0
    #: Splits that contributed to clock ``completed`` (BSP).
    arrived: set[int] = field(default_factory=set)
    #: Number of the next update for followers, or expected from the owner.
    sequence: int = 0
    #: Donor side: follower -> plan.
    followers: dict[MemberId, int] = field(default_factory=dict)
    #: Follower side: the plan that brought it.
    plan_id: int = 0
    #: Owner after this one.
    forward_to: MemberId | None = None
    #: BSP: the clock at which this server becomes, or stops being, the owner.
    promote_at: int | None = None
    #: The arrays are gone; only where they went is known.
    dropped: bool = False
    held: list[s.PushArrived | s.PullArrived] = field(default_factory=list)
    #: Updates that overtook earlier ones, by sequence number.
    early: dict[int, s.UpdateArrived | s.PromoteArrived] = field(default_factory=dict)


class ServerState:
    """The pure state of one server."""

    def __init__(self, name: MemberId, settings: CoreSettings) -> None:
        self.name = name
        #: Partition -> what the checkpoint says that the job starts from; empty where it starts from its seed.
        self.resumed: Mapping[int, s.Counters] = {}
        #: The checkpoint that was ordered last, and the partitions that need no more for it.
        self._checkpoint: s.CheckpointOrdered | None = None
        self._taken: set[int] = set()
        self.settings = settings
        self.membership: Membership | None = None
        self.partitions: dict[int, PartitionState] = {}
        self.addresses: dict[MemberId, object] = {}
        #: Plans that were aborted or released; late bytes of theirs are ignored.
        self.closed_plans: set[int] = set()
        #: The latest plan heard of.  Plans change the job one after another, so all before it have ended.
        self._newest_plan = 0
        self._releasing: dict[int, bool] = {}
        self._outstanding = 0
        self._out: list[s.ServerCommand] = []

    def step(self, event: s.ServerEvent) -> list[s.ServerCommand]:
        """Take one event in; return what to do, in order."""
        self._out = []
        match event:
            case s.PushArrived():
                self._on_push(event)
            case s.PullArrived():
                self._on_pull(event)
            case s.UpdateArrived():
                self._on_update(event)
            case s.MembershipArrived():
                self._on_membership(event)
            case s.ForwardAnswered():
                self._on_forwarded()
            case s.SendOrdered():
                self._on_send(event)
            case s.SnapshotArrived():
                self._on_snapshot(event)
            case s.PromoteArrived():
                self._on_promote(event)
            case s.PlanAborted():
                self._on_abort(event)
            case s.PlanReleaseOrdered():
                self._on_release(event)
            case s.CheckpointOrdered():
                self._on_checkpoint(event)
        return self._out

    # ---- membership

    def _on_membership(self, event: s.MembershipArrived) -> None:
        membership = event.membership
        self._close_before(event.plan_id)
        if self.membership is None or membership.version > self.membership.version:
            first = self.membership is None and membership.version == 1
            self.membership = membership
            if first:
                self._create(membership.partitions.owned_by(self.name))
            for state in list(self.partitions.values()):
                self._follow_owner(state, membership)
        self._out.append(s.ReportToMaster(m.MembershipAcked(self.name, membership.version)))
        for state in list(self.partitions.values()):
            if event.plan_id and state.plan_id == event.plan_id and state.holding is Holding.OWNER:
                self._report_promoted(state)

    def _create(self, partitions: Iterable[int]) -> None:
        first = s.Counters((self.settings.first_clock,) * self.settings.num_splits, 0, 0)
        for partition in partitions:
            begin = self.resumed.get(partition, first)
            self.partitions[partition] = PartitionState(
                partition,
                Holding.OWNER,
                list(begin.next_clock),
                min(begin.next_clock),
                applied=begin.applied,
                duplicates_refused=begin.duplicates_refused,
            )
            self._out.append(s.CreatePartition(partition))

    def _follow_owner(self, state: PartitionState, membership: Membership) -> None:
        """Adjust what this server is to a partition to a new membership."""
        owner = membership.partitions.owners[state.partition]
        if owner == self.name:
            if state.holding is Holding.FOLLOWER and self.settings.bsp:
                state.promote_at = membership.from_clock
                self._maybe_promote(state)
            return
        if state.holding is Holding.OWNER and owner in state.followers:
            state.forward_to = owner
            if self.settings.bsp:
                state.promote_at = membership.from_clock
                self._maybe_hand_over(state)
            else:
                self._out.append(s.SendPromote(state.followers[owner], state.partition, owner, state.sequence))
                state.sequence += 1
                state.holding = Holding.FORWARDER
                self._retry_held(state)
        elif state.holding is Holding.FORWARDER:
            state.forward_to = owner

    def _maybe_promote(self, state: PartitionState) -> None:
        if state.promote_at is not None and state.completed >= state.promote_at:
            self._become_owner(state)

    def _become_owner(self, state: PartitionState) -> None:
        state.holding, state.promote_at = Holding.OWNER, None
        self._report_promoted(state)
        self._maybe_take(state)
        self._retry_held(state)

    def _report_promoted(self, state: PartitionState) -> None:
        self._out.append(s.ReportToMaster(m.PartitionPromoted(self.name, state.plan_id, state.partition)))

    def _maybe_hand_over(self, state: PartitionState) -> None:
        if state.promote_at is not None and state.completed >= state.promote_at:
            state.holding = Holding.FORWARDER
            self._retry_held(state)

    # ---- pushes

    def _on_push(self, event: s.PushArrived) -> None:
        state = self.partitions.get(event.partition)
        if state is None:
            self._refuse(event, f"{self.name} does not hold partition {event.partition}")
            return
        known = all(0 <= split < self.settings.num_splits for split in event.splits)
        if not event.splits or not known or len(set(event.splits)) < len(event.splits):
            rule = f"the job has splits 0 to {self.settings.num_splits - 1}, each named once"
            self._out.append(s.Fail(event.request, f"a push names splits {event.splits}; {rule}"))
            return
        if event.clock >= self.settings.iterations:
            rule = f"the last is {self.settings.iterations - 1}"
            self._out.append(s.Fail(event.request, f"a push for clock {event.clock}; {rule}"))
            return
        behind = [split for split in event.splits if event.clock < state.next_clock[split]]
        if state.holding is Holding.FOLLOWER and len(behind) < len(event.splits):
            state.held.append(event)
            return
        # A follower answers what it knows to be applied: held, that answer would wait for a commit clock which its
        # sender cannot reach without it (a partition that comes back to a server that gave it away).
        if self.settings.bsp and event.clock == state.completed:
            behind = [split for split in event.splits if split in state.arrived]
        if len(behind) == len(event.splits):
            state.duplicates_refused += len(behind)
            self._out.append(s.AckPush(event.request, event.partition, tuple(behind)))
        elif state.holding is Holding.FORWARDER:
            self._forward(event, state)
        elif behind:
            # A sum cannot be taken apart: the worker sends the missing splits again, one by one.
            state.duplicates_refused += len(behind)
            self._out.append(s.AckPush(event.request, event.partition, tuple(behind), accepted=False))
        elif any(event.clock > state.next_clock[split] for split in event.splits):
            if self.settings.bsp:
                # Its sender cannot have read this clock's parameters: they do not exist.
                rule = f"the partition is at clock {state.completed}"
                self._out.append(s.Fail(event.request, f"a push of clock {event.clock}; {rule}"))
            else:
                state.held.append(event)
        elif self.settings.bsp:
            self._accept_bsp(event, state)
        else:
            self._accept_stale(event, state)

    def _accept_bsp(self, event: s.PushArrived, state: PartitionState) -> None:
        self._out.append(s.Accumulate(event.request, event.partition, event.clock, event.splits, not state.arrived))
        self._out.append(s.AckPush(event.request, event.partition, ()))
        state.arrived.update(event.splits)
        if len(state.arrived) < self.settings.num_splits:
            return
        self._out.append(s.StepPartition(event.partition, event.clock))
        everyone = tuple(range(self.settings.num_splits))
        self._advance_clocks(state, event.clock, everyone)
        state.arrived.clear()
        self._send_updates(state, event.clock, everyone)
        self._maybe_take(state)
        self._maybe_hand_over(state)
        self._retry_held(state)

    def _accept_stale(self, event: s.PushArrived, state: PartitionState) -> None:
        self._out.append(s.ApplyPush(event.request, event.partition, event.clock, event.splits))
        self._out.append(s.AckPush(event.request, event.partition, ()))
        self._advance_clocks(state, event.clock, event.splits)
        self._send_updates(state, event.clock, event.splits)
        self._maybe_take(state)
        self._retry_held(state)

    def _advance_clocks(self, state: PartitionState, clock: int, splits: Iterable[int]) -> None:
        for split in splits:
            assert state.next_clock[split] == clock, (state.partition, split, clock, state.next_clock[split])
            state.next_clock[split] = clock + 1
            state.applied += clock >= 0
        state.completed = min(state.next_clock)

    def _send_updates(self, state: PartitionState, clock: int, splits: tuple[int, ...]) -> None:
        for follower, plan_id in sorted(state.followers.items()):
            self._out.append(s.SendUpdate(plan_id, state.partition, follower, state.sequence, clock, splits))
        state.sequence += 1

    # ---- pulls

    def _on_pull(self, event: s.PullArrived) -> None:
        state = self.partitions.get(event.partition)
        if event.min_clock > self.settings.iterations:
            rule = f"the last is {self.settings.iterations}"
            self._out.append(s.Fail(event.request, f"a pull of clock {event.min_clock}; {rule}"))
        elif state is None:
            self._refuse(event, f"{self.name} does not hold partition {event.partition}")
        elif state.holding is Holding.FOLLOWER:
            state.held.append(event)
        elif state.dropped or (state.holding is Holding.FORWARDER and not self.settings.bsp):
            self._forward(event, state)
        elif self.settings.bsp:
            self._pull_bsp(event, state)
        elif state.completed >= event.min_clock:
            self._out.append(s.AnswerPull(event.request, event.partition, state.completed))
        else:
            state.held.append(event)

    def _pull_bsp(self, event: s.PullArrived, state: PartitionState) -> None:
        if event.min_clock > state.completed:
            if state.holding is Holding.FORWARDER:
                self._forward(event, state)
            else:
                state.held.append(event)
        elif event.min_clock == state.completed or (event.min_clock == state.completed - 1 and not state.arrived):
            self._out.append(s.AnswerPull(event.request, event.partition, event.min_clock))
        else:
            self._out.append(
                s.Fail(
                    event.request,
                    f"partition {event.partition} is at clock {state.completed}; "
                    f"its parameters of clock {event.min_clock} are not kept any more",
                )
            )

    def _forward(self, event: s.PushArrived | s.PullArrived, state: PartitionState) -> None:
        if state.forward_to is None:
            self._refuse(event, f"{self.name} gave partition {state.partition} away")
            return
        self._outstanding += 1
        self._out.append(s.Forward(event.request, event.partition, state.forward_to))

    def _on_forwarded(self) -> None:
        self._outstanding -= 1
        self._finish_releases()

    def _refuse(self, event: s.PushArrived | s.PullArrived, why: str) -> None:
        version = self.membership.version if self.membership is not None else 0
        self._out.append(s.RefuseStale(event.request, f"{why} under membership {version}", version))

    def _retry_held(self, state: PartitionState) -> None:
        """Judge again what had to wait; whatever still has to is held again."""
        waiting, state.held = state.held, []
        for event in waiting:
            if isinstance(event, s.PushArrived):
                self._on_push(event)
            else:
                self._on_pull(event)

    # ---- follow, catch up, promote: the donor

    def _on_send(self, event: s.SendOrdered) -> None:
        order = event.order
        self._close_before(order.plan_id)
        if self._closed(order.plan_id):
            return
        for target in order.transfers:
            state = self.partitions.get(target.item)
            if state is None or state.holding is not Holding.OWNER:
                continue
            self.addresses[target.target] = target.address
            if target.target not in state.followers:
                state.followers[target.target] = order.plan_id
                self._out.append(
                    s.SendSnapshot(
                        order.plan_id,
                        target.item,
                        target.target,
                        state.sequence,
                        state.completed,
                        tuple(state.next_clock),
                        state.applied,
                        state.duplicates_refused,
                    )
                )
            else:
                self._out.append(s.RepeatSnapshotReport(order.plan_id, target.item, target.target))

    # ---- follow, catch up, promote: the follower

    def _on_snapshot(self, event: s.SnapshotArrived) -> None:
        self._close_before(event.plan_id)
        known = self.partitions.get(event.partition)
        if self._closed(event.plan_id) or (known is not None and known.holding is not Holding.FORWARDER):
            self._out.append(s.DropUpdate(event.request))
            if known is not None and known.plan_id == event.plan_id:
                self._out.append(s.ReportCaughtUp(event.plan_id, event.partition, None))
            return
        state = PartitionState(
            event.partition,
            Holding.FOLLOWER,
            list(event.next_clock),
            event.completed,
            applied=event.applied,
            duplicates_refused=event.duplicates_refused,
            sequence=event.sequence,
            plan_id=event.plan_id,
        )
        if known is not None:
            state.held = known.held
        self.partitions[event.partition] = state
        self._out.append(s.InstallSnapshot(event.request, event.partition))
        self._out.append(s.ReportCaughtUp(event.plan_id, event.partition, event.request))

    def _on_update(self, event: s.UpdateArrived) -> None:
        state = self._following(event)
        if state is None or event.sequence < state.sequence:
            self._out.append(s.DropUpdate(event.request))
            return
        if event.sequence > state.sequence:
            self._keep_early(state, event)
            return
        self._out.append(s.ApplyUpdate(event.request, event.partition, event.clock, event.splits))
        self._advance_clocks(state, event.clock, event.splits)
        state.sequence += 1
        self._maybe_promote(state)
        self._after_update(state)

    def _on_promote(self, event: s.PromoteArrived) -> None:
        state = self._following(event)
        if state is None or event.sequence < state.sequence:
            self._out.append(s.DropUpdate(event.request))
            return
        if event.sequence > state.sequence:
            self._keep_early(state, event)
            return
        state.sequence += 1
        self._out.append(s.DropUpdate(event.request))
        self._become_owner(state)

    def _keep_early(self, state: PartitionState, event: s.UpdateArrived | s.PromoteArrived) -> None:
        if event.sequence in state.early:
            self._out.append(s.DropUpdate(event.request))
        else:
            state.early[event.sequence] = event

    def _after_update(self, state: PartitionState) -> None:
        following = state.early.pop(state.sequence, None)
        if isinstance(following, s.UpdateArrived):
            self._on_update(following)
        elif following is not None:
            self._on_promote(following)

    def _following(self, event: s.UpdateArrived | s.PromoteArrived) -> PartitionState | None:
        state = self.partitions.get(event.partition)
        if state is None or state.holding is not Holding.FOLLOWER or state.plan_id != event.plan_id:
            return None
        return state

    # ---- end of a plan

    def _closed(self, plan_id: int) -> bool:
        return plan_id in self.closed_plans or plan_id < self._newest_plan

    def _close_before(self, plan_id: int) -> None:
        """Whatever an earlier plan left open was aborted, and the abort got lost."""
        if plan_id <= self._newest_plan:
            return
        self._newest_plan = plan_id
        states = self.partitions.values()
        stale = {v.plan_id for v in states if v.holding is Holding.FOLLOWER}
        stale.update(plan for v in states for plan in v.followers.values())
        for earlier in sorted(p for p in stale if p < plan_id):
            self._on_abort(s.PlanAborted(earlier))

    def _on_abort(self, event: s.PlanAborted) -> None:
        self._close_before(event.plan_id)
        self.closed_plans.add(event.plan_id)
        for partition, state in sorted(self.partitions.items()):
            for follower in [f for f, plan in state.followers.items() if plan == event.plan_id]:
                del state.followers[follower]
                self._out.append(s.StopSending(event.plan_id, partition, follower))
            if state.holding is Holding.FOLLOWER and state.plan_id == event.plan_id:
                for held in state.held:
                    self._refuse(held, f"plan {event.plan_id} was aborted")
                self._out.extend(s.DropUpdate(early.request) for early in state.early.values())
                del self.partitions[partition]
                self._out.append(s.DropPartition(partition))

    def _on_release(self, event: s.PlanReleaseOrdered) -> None:
        if event.plan_id not in self.closed_plans:
            self.closed_plans.add(event.plan_id)
            for partition, state in sorted(self.partitions.items()):
                for follower in [f for f, plan in state.followers.items() if plan == event.plan_id]:
                    del state.followers[follower]
                    self._out.append(s.StopSending(event.plan_id, partition, follower))
                if state.holding is Holding.FORWARDER and not state.dropped:
                    state.dropped = True
                    self._out.append(s.DropPartition(partition))
        self._releasing[event.plan_id] = self.name in event.removed
        self._finish_releases()

    def _finish_releases(self) -> None:
        """Report releases; a server that leaves first waits for the answers that it relays."""
        for plan_id, leaving in sorted(self._releasing.items()):
            if not leaving or self._outstanding == 0:
                del self._releasing[plan_id]
                self._out.append(s.ReportToMaster(m.PlanReleased(self.name, plan_id)))

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
