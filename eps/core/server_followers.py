"""A server's partitions and who follows them: send, keep up, promote, stop.  L0, pure.

The lower layer of :class:`eps.core.server_state.ServerState`: what passes between servers.  What workers ask for is the
upper one's.

Source: design section 4 (follow, catch up, promote); EPS §3.3; Proteus §3.3.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership
from eps.core.partition_state import INCARNATION_BITS, Holding, PartitionState
from eps.core.results import LatestResults
from eps.core.settings import CoreSettings
from eps.core.types import MemberId


class ReplicatingServer:
    """A server that sends partitions to others, and is sent some.

    Parameters
    ----------
    name : str
    settings : CoreSettings
    """

    def __init__(self, name: MemberId, settings: CoreSettings) -> None:
        self.name = name
        self.settings = settings
        #: Derived from the settings, and asked for with every part of every message.
        self._bsp, self._num_splits = settings.bsp, settings.num_splits
        self._everyone = tuple(range(settings.num_splits))
        #: The last ones that were looked at and can be.
        self._right_splits: tuple[int, ...] | None = None
        self.membership: Membership | None = None
        self.partitions: dict[int, PartitionState] = {}
        #: Plans that were aborted or released; late bytes of theirs are ignored.
        self.closed_plans: set[int] = set()
        #: The latest plan heard of.  Plans change the job one after another, so all before it have ended.
        self._newest_plan = 0
        self._results = LatestResults()
        #: The checkpoint that was ordered last, and the partitions that need no more for it.
        self._checkpoint: s.CheckpointOrdered | None = None
        self._taken: set[int] = set()
        #: The latest recovery for which the job master was told what is here.
        self._asked = 0
        self._out: list[s.ServerCommand] = []
        #: Where sums and steps go: ``_out``, or in a message what is put before it.
        self._sums: list[s.ServerCommand] = []

    @property
    def version(self) -> int:
        """The number of the membership; 0 before the first."""
        return self.membership.version if self.membership is not None else 0

    @abstractmethod
    def _retry_held(self, state: PartitionState) -> None: ...

    @abstractmethod
    def _maybe_take(self, state: PartitionState) -> None: ...

    @abstractmethod
    def _refuse(self, event: s.PushArrived | s.PullArrived) -> None: ...

    # ---- the owner

    def _on_send(self, event: s.SendOrdered) -> None:
        order = event.order
        self._close_before(order.plan_id)
        if self._closed(order.plan_id):
            return
        for target in order.transfers:
            state = self.partitions.get(target.item)
            if state is None or state.holding is not Holding.OWNER:
                continue
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

    def _send_updates(self, state: PartitionState, clock: int, splits: tuple[int, ...]) -> None:
        for follower, plan_id in sorted(state.followers.items()) if state.followers else ():
            self._out.append(s.SendUpdate(plan_id, state.partition, follower, state.sequence, clock, splits))
        state.sequence += 1

    def _on_acked(self, event: s.UpdateAcked) -> None:
        state = self.partitions.get(event.partition)
        # Of a plan that was aborted: the next one's snapshot is not there yet, and its updates follow on that.
        if state is None or state.followers.get(event.follower) != event.plan_id:
            return
        if event.follower not in state.in_sync:
            # It may lack what was served or acknowledged until now, and no worker keeps what led to that.
            state.joining[event.follower] = state.sequence
        elif event.sequence > state.in_sync[event.follower] + 1:
            # One before it was refused: its receiver does not follow this server any more.
            return
        reached = state.in_sync[event.follower] = max(event.sequence, state.in_sync.get(event.follower, 0))
        if reached >= state.joining.get(event.follower, reached + 1):
            del state.joining[event.follower]
            self._out.append(s.ReportSent(state.followers[event.follower], state.partition))
        if state.unstable:
            self._settle_unstable(state)
        if state.held and state.stable:
            self._retry_held(state)

    def _on_sending_failed(self, event: s.SendingFailed) -> None:
        # The plan that brought a standing follower may have ended long ago.
        needed_by = 0 if self._counts_on(event.plan_id, event.follower) else event.plan_id
        why = f"sending to {event.follower} failed: {event.why}"
        self._out.append(s.ReportToMaster(m.TransferFailed(self.name, needed_by, why, event.follower)))

    def _counts_on(self, plan_id: int, to: MemberId) -> bool:
        """Return whether a standing follower is among what is sent to ``to`` for that plan."""
        return any(v.followers.get(to) == plan_id and self._stands(v, to) for v in self.partitions.values())

    def _ack_stable(self, state: PartitionState, ack: s.AckPush) -> None:
        """Acknowledge what was applied as soon as it cannot be lost any more.

        Under BSP at once: whoever pushed keeps it until the next clock's parameters have come.
        """
        # A promotion has a number too, and is not acknowledged.
        needed = state.sequence - (state.holding is Holding.FORWARDER)
        if self._bsp or min(state.in_sync.values(), default=needed) >= needed:
            self._out.append(ack)
        else:
            state.unstable.append((needed, ack))

    def _settle_unstable(self, state: PartitionState) -> None:
        reached = min(state.in_sync.values(), default=state.sequence)
        self._out.extend(ack for sequence, ack in state.unstable if sequence <= reached)
        state.unstable = [(sequence, ack) for sequence, ack in state.unstable if sequence > reached]

    def _advance_clocks(self, state: PartitionState, clock: int, splits: Iterable[int]) -> None:
        for split in splits:
            assert state.next_clock[split] == clock, (state.partition, split, clock, state.next_clock[split])
            state.next_clock[split] = clock + 1
            state.applied += clock >= 0
        state.completed, state.oldest_clock = min(state.next_clock), clock

    # ---- the follower

    def _on_snapshot(self, event: s.SnapshotArrived) -> None:
        self._close_before(event.plan_id)
        known = self.partitions.get(event.partition)
        earlier = self.membership is not None and event.sequence >> INCARNATION_BITS != self.membership.incarnation
        if earlier or self._closed(event.plan_id) or (known is not None and known.holding is not Holding.FORWARDER):
            self._out.append(s.DropUpdate(event.request))
            if known is not None and known.plan_id == event.plan_id:
                self._out.append(s.ReportCaughtUp(event.plan_id, event.partition, None))
            return
        state = PartitionState(
            event.partition,
            Holding.FOLLOWER,
            list(event.next_clock),
            event.completed,
            oldest_clock=event.completed,
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
            self._drop_late(event)
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

    def _drop_late(self, event: s.UpdateArrived) -> None:
        """Acknowledge what is known or not wanted; never what an owner did after it was taken over from.

        Such an owner does not know it yet: it was cut off, or stopped, and woke up.  Without the acknowledgement it
        serves nothing that came after (design section 4: a member that was given up must not be believed).
        """
        state = self.partitions.get(event.partition)
        owned_from = state.owned_from if state is not None and state.holding is not Holding.FOLLOWER else None
        refused = owned_from is not None and event.sequence >= owned_from
        self._out.append(s.RefuseUpdate(event.request) if refused else s.DropUpdate(event.request))

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
        # The plan does not matter: what a number stands for is the same whoever sends it.
        state = self.partitions.get(event.partition)
        return None if state is None or state.holding is not Holding.FOLLOWER else state

    def _maybe_promote(self, state: PartitionState) -> None:
        if state.promote_at is not None and state.completed >= state.promote_at:
            self._become_owner(state)

    def _become_owner(self, state: PartitionState) -> None:
        state.holding, state.promote_at, state.owned_from = Holding.OWNER, None, state.sequence
        self._report_promoted(state)
        self._maybe_take(state)
        self._retry_held(state)

    def _report_promoted(self, state: PartitionState) -> None:
        self._out.append(s.ReportToMaster(m.PartitionPromoted(self.name, state.plan_id, state.partition)))

    def _drop_follower(self, state: PartitionState) -> None:
        for held in state.held:
            self._refuse(held)
        self._out.extend(s.DropUpdate(early.request) for early in state.early.values())
        del self.partitions[state.partition]
        self._out.append(s.DropPartition(state.partition))

    # ---- the end of a plan

    @property
    def _counted_on(self) -> bool:
        """True while a recovery may count on everything that is here; the orders that end plans come again."""
        return self._asked > (self.membership.recovery if self.membership is not None else 0)

    def _closed(self, plan_id: int) -> bool:
        return plan_id in self.closed_plans or plan_id < self._newest_plan

    def _close_before(self, plan_id: int) -> None:
        """Whatever an earlier plan left open was aborted, and the abort got lost."""
        if plan_id <= self._newest_plan:
            return
        self._newest_plan = plan_id
        states = self.partitions.values()
        stale = {v.plan_id for v in states if v.holding is Holding.FOLLOWER and not self._stands(v, self.name)}
        stale.update(plan for v in states for name, plan in v.followers.items() if not self._stands(v, name))
        for earlier in sorted(p for p in stale if p < plan_id):
            self._on_abort(s.PlanAborted(earlier))

    def _on_abort(self, event: s.PlanAborted) -> None:
        if self._counted_on:
            return
        self._close_before(event.plan_id)
        self.closed_plans.add(event.plan_id)
        for _, state in sorted(self.partitions.items()):
            self._stop_plan(state, event.plan_id)
            here = state.holding is Holding.FOLLOWER and state.plan_id == event.plan_id
            if here and not self._stands(state, self.name):
                self._drop_follower(state)

    def _stands(self, state: PartitionState, name: MemberId) -> bool:
        """Return whether ``name`` is a standing follower: it outlives the plan that brought it."""
        return self.membership is not None and name in self.membership.partitions.followers_of(state.partition)

    def _stop_plan(self, state: PartitionState, plan_id: int) -> None:
        for follower in [f for f, plan in state.followers.items() if plan == plan_id and not self._stands(state, f)]:
            self._stop_sending(state, follower)

    def _stop_sending(self, state: PartitionState, follower: MemberId) -> None:
        self._forget_follower(state, follower)
        self._settle_unstable(state)
        if state.held and state.holding is not Holding.FOLLOWER:
            self._retry_held(state)

    def _forget_follower(self, state: PartitionState, follower: MemberId) -> None:
        self._out.append(s.StopSending(state.followers.pop(follower), state.partition, follower))
        state.in_sync.pop(follower, None)
        state.joining.pop(follower, None)

    def _on_release(self, event: s.PlanReleaseOrdered) -> None:
        if self._counted_on:
            return
        if event.plan_id not in self.closed_plans:
            self.closed_plans.add(event.plan_id)
            for partition, state in sorted(self.partitions.items()):
                self._stop_plan(state, event.plan_id)
                if state.holding is Holding.FORWARDER and not state.dropped:
                    state.dropped = True
                    self._out.append(s.DropPartition(partition))
        self._out.append(s.ReportToMaster(m.PlanReleased(self.name, event.plan_id)))

    # ---- asked by the shell

    def sends(self, plan_id: int, to: MemberId) -> bool:
        """Return whether anything is still to be sent to ``to`` for that plan."""
        return any(state.followers.get(to) == plan_id for state in self.partitions.values())
