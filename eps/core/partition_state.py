"""One partition on one server: its contributions, followers and waiting requests.  Pure.

Source: EPS §2.2 Fig. 1c; design sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.types import MemberId

#: Updates of one incarnation have numbers below 2**32.
INCARNATION_BITS = 32

Commands = list[s.ServerCommand]


class Holding(StrEnum):
    """A server's role for a partition that it holds."""

    OWNER = "owner"
    #: Applies the owner's updates; becomes the owner at a commit.
    FOLLOWER = "follower"
    #: Gave the partition away; answers for earlier clocks, refuses the rest.
    FORMER = "former"
    #: Former owner after the plan's release: the arrays are freed, only the counters are left.
    DROPPED = "dropped"


@dataclass(slots=True)
class Clocks:
    """The contributions that were added to a partition."""

    #: Per split, the next clock that is due.  Invariant: ``completed == min(next_clock)``.
    next_clock: list[int]
    completed: int
    #: BSP: the first clock whose parameters are still kept; a received snapshot has the newest version only.
    oldest: int
    #: Contributions, one for each (clock, split), added to the parameters.
    applied: int = 0
    duplicates_refused: int = 0
    #: Splits that have contributed to clock ``completed`` (BSP).
    arrived: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, counters: s.Counters) -> Clocks:
        """Return the clocks of a partition with this progress."""
        completed = counters.completed
        return cls(list(counters.next_clock), completed, completed, counters.applied, counters.duplicates_refused)

    def counters(self) -> s.Counters:
        """Return the progress of the partition, without contributions to an incomplete clock."""
        return s.Counters(tuple(self.next_clock), self.applied, self.duplicates_refused)

    @property
    def readable_from(self) -> int:
        """The first clock whose parameters are kept; the first push of a clock frees the version before."""
        return self.completed if self.arrived else self.oldest

    def advance(self, clock: int, splits: Iterable[int]) -> None:
        """Count the contributions of ``splits`` to ``clock``."""
        for split in splits:
            assert self.next_clock[split] == clock, (split, clock, self.next_clock[split])
            self.next_clock[split] = clock + 1
            self.applied += clock >= 0
        self.completed, self.oldest = min(self.next_clock), clock

    def close(self) -> None:
        """Complete clock ``completed``, to which every split contributed: a faster :meth:`advance` for all at once."""
        clock, num_splits = self.completed, len(self.next_clock)
        assert self.next_clock.count(clock) == num_splits, (clock, self.next_clock)
        self.completed, self.oldest = clock + 1, clock
        self.next_clock = [clock + 1] * num_splits
        self.applied += num_splits if clock >= 0 else 0
        self.arrived.clear()

    def forget_begun(self) -> None:
        """Drop the contributions to an incomplete clock: all of it is pushed again."""
        if self.arrived:
            self.oldest = self.completed
            self.arrived.clear()

    def validate(self, bsp: bool) -> None:
        """Assert the invariants."""
        assert self.completed == min(self.next_clock)
        assert not self.arrived or len(self.arrived) < len(self.next_clock)
        assert not bsp or max(self.next_clock) == self.completed, "BSP: every split is at the partition's clock"
        counted = sum(max(0, clock) for clock in self.next_clock)
        assert self.applied == counted, f"{self.applied} applied, clocks say {counted}"


@dataclass(slots=True)
class Follower:
    """An owner's record of a server to which it sends a partition."""

    #: The plan that asked for it; 0 if it stands since the incarnation began.
    plan_id: int
    #: Number of the first update that it has not acknowledged; None until it has its snapshot.
    acked: int | None = None
    #: The owner's next update number when the snapshot was acknowledged; None once the follower has all before.  No
    #: plan may count on it earlier: workers may have been served or told what it lacks.
    joined_at: int | None = None
    #: The report about its snapshot, sent once ``joined_at`` is reached; None if it stands since the incarnation began.
    sent: m.PartitionSent | None = None


@dataclass(slots=True)
class PartitionState:
    """Clocks, followers and waiting requests of one partition on one server.

    Methods append their commands to ``out``, in order.
    """

    partition: int
    bsp: bool
    holding: Holding
    clocks: Clocks
    #: Number of the next update, which is sent to followers or expected from the owner.
    sequence: int = 0
    #: Number of its first update as the owner: no other server makes updates from that number on.
    owned_from: int | None = None
    #: Follower side: the plan that brought it, and the checksum of the received snapshot.
    plan_id: int = 0
    checksum: str = ""
    #: BSP: the clock at which this server becomes the owner, or stops being it.
    promote_at: int | None = None
    #: Servers that receive its updates.  Under BSP nothing is served that a caught-up follower lacks.
    followers: dict[MemberId, Follower] = field(default_factory=dict)
    #: BSP: a recovery gave the partition to a server that may lack the newest clock: no worker may read that here.
    withheld: bool = False
    #: SSP and ASP: acknowledgements that wait until followers reach a sequence number.
    unstable: list[tuple[int, s.AckPush]] = field(default_factory=list)
    held: list[s.PushArrived | s.PullArrived] = field(default_factory=list)
    #: Updates that arrived before earlier ones, by sequence number.
    early: dict[int, s.UpdateArrived | s.PromoteArrived] = field(default_factory=dict)
    #: Every split of the job.
    everyone: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.everyone = tuple(range(len(self.clocks.next_clock)))

    # ---- requests of workers

    def push(self, event: s.PushArrived, out: Commands, sums: Commands) -> bool:
        """Accept, hold or refuse a push; return whether it advanced the clock of the partition or of a split.

        Parameters
        ----------
        event : PushArrived
            With valid splits and clock.
        out : list
        sums : list
            Receives sums and steps: ``out``, or a list that is put before it.
        """
        clocks, splits, clock = self.clocks, event.splits, event.clock
        if not (
            # Fast path for nearly every push; the general rules, which check each split, agree with it.
            self.bsp
            and clock == clocks.completed
            and self.holding is Holding.OWNER
            and clocks.arrived.isdisjoint(splits)
        ):
            if not self._is_due(event, out):
                return False
            if not self.bsp:
                self._accept_stale(event, out)
                return True
        request, partition = event.request, self.partition
        sums.append(s.Accumulate(request, partition, clock, splits, not clocks.arrived))
        out.append(s.AckPush(request, partition, ()))
        clocks.arrived.update(splits)
        if len(clocks.arrived) < len(self.everyone):
            return False
        sums.append(s.StepPartition(partition, clock, bool(self.followers)))
        clocks.close()
        self._send_updates(clock, self.everyone, out)
        return True

    def _is_due(self, event: s.PushArrived, out: Commands) -> bool:
        """Return whether a push is to be added; otherwise answer or hold it."""
        clocks, splits, clock = self.clocks, event.splits, event.clock
        behind = [split for split in splits if clock < clocks.next_clock[split]]
        if self.holding is Holding.FOLLOWER and len(behind) < len(splits):
            self.held.append(event)
            return False
        # A follower answers for what it knows to be applied.  Held, the answer would wait for a commit clock
        # that the sender cannot reach without it (a partition that returns to a server that gave it away).
        if self.bsp and clock == clocks.completed:
            behind = [split for split in splits if split in clocks.arrived]
        if len(behind) == len(splits):
            clocks.duplicates_refused += len(behind)
            self._ack_stable(s.AckPush(event.request, event.partition, tuple(behind)), out)
        elif self.holding is not Holding.OWNER:
            out.append(s.RefuseStale(event.request))
        elif behind:
            # A sum cannot be taken apart: the worker resends the missing splits one by one.
            clocks.duplicates_refused += len(behind)
            out.append(s.AckPush(event.request, event.partition, tuple(behind), accepted=False))
        elif not any(clock > clocks.next_clock[split] for split in splits):
            return True
        elif self.bsp:
            # The sender cannot have read this clock's parameters: they do not exist yet.
            rule = f"the partition is at clock {clocks.completed}"
            out.append(s.Fail(event.request, f"a push of clock {clock}; {rule}"))
        else:
            self.held.append(event)
        return False

    def _accept_stale(self, event: s.PushArrived, out: Commands) -> None:
        followed = bool(self.followers)
        out.append(s.ApplyPush(event.request, self.partition, event.clock, event.splits, followed))
        self.clocks.advance(event.clock, event.splits)
        self._send_updates(event.clock, event.splits, out)
        self._ack_stable(s.AckPush(event.request, self.partition, ()), out)

    def pull(self, event: s.PullArrived, out: Commands) -> None:
        """Answer, hold or refuse a pull."""
        completed, asked = self.clocks.completed, event.min_clock
        if self.holding is Holding.FOLLOWER:
            self.held.append(event)
        elif self.holding is Holding.DROPPED or (self.holding is Holding.FORMER and not self.bsp):
            out.append(s.RefuseStale(event.request))
        elif self.withheld and asked >= completed:
            out.append(s.RefuseStale(event.request))
        elif not self.bsp:
            if completed >= asked:
                out.append(s.AnswerPull(event.request, self.partition, completed))
            else:
                self.held.append(event)
        elif asked > completed:
            if self.holding is Holding.FORMER:
                out.append(s.RefuseStale(event.request))
            else:
                self.held.append(event)
        elif asked == completed and self.followers and self.holding is Holding.OWNER and not self.stable:
            # A follower that lacks it could become the owner, so no worker may read it yet.
            self.held.append(event)
        elif asked == completed or (asked == completed - 1 and not self.clocks.arrived):
            out.append(s.AnswerPull(event.request, self.partition, asked))
        else:
            # Some worker has started the next clock, so this one is complete everywhere.  Only an heir asks for it, if
            # the lost worker had pushed everything.
            out.append(s.RefusePassed(event.request))

    def refuse_waiting(self, out: Commands) -> None:
        """Refuse all waiting requests: this server will not serve them."""
        out.extend(s.RefuseStale(held.request) for held in self.held)
        out.extend(s.DropUpdate(early.request) for early in self.early.values())

    # ---- followers

    @property
    def stable(self) -> bool:
        """Return whether every caught-up follower has everything that was applied."""
        for follower in self.followers.values():
            if follower.acked is not None and follower.acked < self.sequence:
                return False
        return True

    def _everywhere(self) -> int:
        """Return the number of the first update that some caught-up follower has not acknowledged."""
        return min([f.acked for f in self.followers.values() if f.acked is not None], default=self.sequence)

    def send_to(self, follower: MemberId, plan_id: int, out: Commands) -> None:
        """Start sending the partition to a follower; if that was started before, repeat the report."""
        known = self.followers.get(follower)
        if known is not None:
            if known.sent is not None and known.joined_at is None and known.plan_id == plan_id:
                out.append(s.ReportToMaster(known.sent))
            return
        self.followers[follower] = Follower(plan_id)
        out.append(s.SendSnapshot(plan_id, self.partition, follower, self.sequence, self.clocks.counters()))

    def _send_updates(self, clock: int, splits: tuple[int, ...], out: Commands) -> None:
        for to, follower in sorted(self.followers.items()) if self.followers else ():
            out.append(s.SendUpdate(follower.plan_id, self.partition, to, self.sequence, clock, splits))
        self.sequence += 1

    def acked(self, event: s.UpdateAcked, out: Commands) -> None:
        """Record that a follower has everything before a number."""
        follower = self.followers.get(event.follower)
        # From an aborted plan: the next plan's snapshot has not arrived, and its updates follow that one.
        if follower is None or follower.plan_id != event.plan_id:
            return
        if follower.acked is None:
            # It may lack what was served or acknowledged until now, and workers no longer keep those contributions.
            follower.acked, follower.joined_at, follower.sent = event.sequence, self.sequence, event.sent
        elif event.sequence > follower.acked + 1:
            # It refused an earlier update: it no longer follows this server.
            return
        follower.acked = max(event.sequence, follower.acked)
        if follower.joined_at is not None and follower.acked >= follower.joined_at:
            follower.joined_at = None
            assert follower.sent is not None, "the first that a follower acknowledges is its snapshot"
            out.append(s.ReportToMaster(follower.sent))
        self._settle(out)

    def stop_sending(self, follower: MemberId, out: Commands) -> None:
        """Stop sending updates to a follower and waiting for it."""
        out.append(s.StopSending(self.followers.pop(follower).plan_id, self.partition, follower))
        self._settle(out)

    def _ack_stable(self, ack: s.AckPush, out: Commands) -> None:
        """Acknowledge a push as soon as no loss can undo it.

        Under BSP that is at once: the worker keeps its push until it has the next clock's parameters.
        """
        # A promotion has a number, too, but is not acknowledged.
        needed = self.sequence - (self.holding is not Holding.OWNER)
        if self.bsp or not self.followers or self._everywhere() >= needed:
            out.append(ack)
        else:
            self.unstable.append((needed, ack))

    def _settle(self, out: Commands) -> None:
        if self.unstable:
            reached = self._everywhere()
            out.extend(ack for sequence, ack in self.unstable if sequence <= reached)
            self.unstable = [(sequence, ack) for sequence, ack in self.unstable if sequence > reached]

    # ---- updates of the owner

    def update(self, event: s.UpdateArrived | s.PromoteArrived, out: Commands) -> bool:
        """Apply an owner's update or promotion if it is the next one; return whether it was.

        Known or unwanted updates are acknowledged, but never updates that an owner made after it was replaced.  Such an
        owner was cut off or suspended, and does not know that it was replaced.  Without the acknowledgement it serves
        nothing later (design section 4: a member that was given up must not be believed).
        """
        follows, promotion = self.holding is Holding.FOLLOWER, isinstance(event, s.PromoteArrived)
        # The plan does not matter: a number denotes the same update from every sender.
        if not follows or event.sequence < self.sequence:
            own = not follows and self.owned_from is not None and event.sequence >= self.owned_from
            out.append(s.RefuseUpdate(event.request) if own and not promotion else s.DropUpdate(event.request))
            return False
        if event.sequence > self.sequence:
            if event.sequence in self.early:
                out.append(s.DropUpdate(event.request))
            else:
                self.early[event.sequence] = event
            return False
        self.sequence += 1
        if isinstance(event, s.PromoteArrived):
            out.append(s.DropUpdate(event.request))
            self._own()
        else:
            out.append(s.ApplyUpdate(event.request, self.partition, event.clock, event.splits))
            self.clocks.advance(event.clock, event.splits)
            self.change_hands()
        return True

    # ---- ownership

    def change_hands(self) -> bool:
        """BSP: become the owner, or stop being it, if the clock has come; return whether that happened."""
        if self.promote_at is None or self.clocks.completed < self.promote_at:
            return False
        if self.holding is Holding.FOLLOWER:
            self._own()
        else:
            self.holding, self.promote_at = Holding.FORMER, None
        return True

    def _own(self) -> None:
        self.holding, self.promote_at, self.owned_from = Holding.OWNER, None, self.sequence

    def give_to(self, owner: MemberId, from_clock: int, out: Commands) -> bool:
        """Make a follower the owner: from a clock on (BSP) or at once; return whether it is the owner now."""
        if self.bsp:
            self.promote_at = from_clock
            return self.change_hands()
        out.append(s.SendPromote(self.followers[owner].plan_id, self.partition, owner, self.sequence))
        self.sequence += 1
        self.holding = Holding.FORMER
        return True

    def take_over(self, here: bool, followers: Collection[MemberId], out: Commands) -> None:
        """After a loss: own the partition at once, with these followers, or give it up."""
        self.promote_at = None
        if self.holding is Holding.FOLLOWER and not here:
            return
        self.withheld = not here and (self.withheld or not self.stable)
        for follower in sorted(f for f in self.followers if not here or f not in followers):
            self.stop_sending(follower, out)
        if not here:
            if self.holding is Holding.OWNER:
                self.holding = Holding.FORMER
            # Contributions to the incomplete clock are pushed again, to the new owner, or here if it comes back.
            self.clocks.forget_begun()
            return
        assert self.holding is not Holding.DROPPED, (
            f"partition {self.partition} is to be owned by a server that gave it away"
        )
        out.extend(s.RefuseUpdate(early.request) for early in self.early.values())
        self.early.clear()
        if self.holding is not Holding.OWNER:
            self._own()

    def validate(self) -> None:
        """Assert the invariants."""
        self.clocks.validate(self.bsp)
        if self.holding is Holding.FOLLOWER:
            assert not self.followers, "a follower is followed"
            assert not self.early or min(self.early) > self.sequence, "an update that was due waits"
        assert self.promote_at is None or (self.bsp and self.clocks.completed < self.promote_at), "a commit is overdue"
        for name, follower in self.followers.items():
            assert follower.acked is not None or follower.joined_at is None, f"{name} joined without a snapshot"
