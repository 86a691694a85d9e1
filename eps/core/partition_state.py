"""One partition on one server: which contributions it has, who follows it, what waits for it.  Pure.

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
    """What a server is to a partition that it holds."""

    OWNER = "owner"
    #: Applies the owner's updates; becomes the owner at a commit.
    FOLLOWER = "follower"
    #: Gave the partition away; answers for the clocks before, refuses the rest.
    FORMER = "former"
    #: Was the former owner until the plan was released: the arrays are gone, only what was applied is known.
    DROPPED = "dropped"


@dataclass(slots=True)
class Clocks:
    """Which contributions were added to a partition."""

    #: Per split, the next clock that it contributes.  Invariant: ``completed == min(next_clock)``.
    next_clock: list[int]
    completed: int
    #: BSP: the first clock whose parameters are still here; what came in one piece has the newest version only.
    oldest: int
    #: Contributions, one for each (clock, split), that were added to the parameters.
    applied: int = 0
    duplicates_refused: int = 0
    #: Splits that contributed to clock ``completed`` (BSP).
    arrived: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, counters: s.Counters) -> Clocks:
        """Return the clocks of a partition that is so far."""
        completed = counters.completed
        return cls(list(counters.next_clock), completed, completed, counters.applied, counters.duplicates_refused)

    def counters(self) -> s.Counters:
        """Return how far the partition is, without what contributed to a clock that is not complete."""
        return s.Counters(tuple(self.next_clock), self.applied, self.duplicates_refused)

    @property
    def readable_from(self) -> int:
        """The first clock whose parameters are kept; with the first push of a clock the version before goes."""
        return self.completed if self.arrived else self.oldest

    def advance(self, clock: int, splits: Iterable[int]) -> None:
        """Count the contributions of ``splits`` to ``clock``."""
        for split in splits:
            assert self.next_clock[split] == clock, (split, clock, self.next_clock[split])
            self.next_clock[split] = clock + 1
            self.applied += clock >= 0
        self.completed, self.oldest = min(self.next_clock), clock

    def close(self) -> None:
        """End clock ``completed``, to which every split contributed: as :meth:`advance`, but for all at once."""
        clock, num_splits = self.completed, len(self.next_clock)
        assert self.next_clock.count(clock) == num_splits, (clock, self.next_clock)
        self.completed, self.oldest = clock + 1, clock
        self.next_clock = [clock + 1] * num_splits
        self.applied += num_splits if clock >= 0 else 0
        self.arrived.clear()

    def forget_begun(self) -> None:
        """Forget what contributed to a clock that is not complete: all of it is pushed again."""
        if self.arrived:
            self.oldest = self.completed
            self.arrived.clear()

    def validate(self, bsp: bool) -> None:
        """Assert what must always be true."""
        assert self.completed == min(self.next_clock)
        assert not self.arrived or len(self.arrived) < len(self.next_clock)
        assert not bsp or max(self.next_clock) == self.completed, "BSP: every split is at the partition's clock"
        counted = sum(max(0, clock) for clock in self.next_clock)
        assert self.applied == counted, f"{self.applied} applied, clocks say {counted}"


@dataclass(slots=True)
class Follower:
    """What an owner knows of a server that it sends a partition to."""

    #: The plan that asked for it; 0: it stands since the incarnation began.
    plan_id: int
    #: Number of the first update that it has not acknowledged; None until it has its snapshot.
    acked: int | None = None
    #: Number of the first update that was made when it had its snapshot, until it has those before: no plan may count
    #: on it earlier, since workers were served or told what it may lack.
    joined_at: int | None = None
    #: What the job master is told of its snapshot, once ``joined_at`` is reached; None for one that stands since the
    #: incarnation began.
    sent: m.PartitionSent | None = None


@dataclass(slots=True)
class PartitionState:
    """Clocks, followers and waiting requests of one partition on one server.

    Methods append what is to be done to ``out``, in order.
    """

    partition: int
    bsp: bool
    holding: Holding
    clocks: Clocks
    #: Number of the next update for followers, or expected from the owner.
    sequence: int = 0
    #: Number of the first update of its own: nobody else can have made one with that number, or a later one.
    owned_from: int | None = None
    #: Follower side: the plan that brought it, and the checksum of its snapshot as it arrived.
    plan_id: int = 0
    checksum: str = ""
    #: BSP: the clock at which this server becomes, or stops being, the owner.
    promote_at: int | None = None
    #: Under BSP nothing is served that one of those lacks which have caught up.
    followers: dict[MemberId, Follower] = field(default_factory=dict)
    #: SSP and ASP: acknowledgements that wait for followers, with the sequence number that these must have reached.
    unstable: list[tuple[int, s.AckPush]] = field(default_factory=list)
    held: list[s.PushArrived | s.PullArrived] = field(default_factory=list)
    #: What overtook earlier updates, by sequence number.
    early: dict[int, s.UpdateArrived | s.PromoteArrived] = field(default_factory=dict)
    #: Every split of the job.
    everyone: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.everyone = tuple(range(len(self.clocks.next_clock)))

    # ---- what workers ask for

    def push(self, event: s.PushArrived, out: Commands, sums: Commands) -> bool:
        """Accept, hold or refuse a push; return whether it was one that moved the clock of the partition or a split.

        Parameters
        ----------
        event : PushArrived
            Of splits and a clock of the job.
        out : list
        sums : list
            Takes sums and steps: ``out``, or what is put before it.
        """
        clocks, splits, clock = self.clocks, event.splits, event.clock
        if not (
            # What comes of nearly every push; the rules, which look at each split, would say the same.
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
        """Return whether a push is to be added; answer it, or hold it, where it is not."""
        clocks, splits, clock = self.clocks, event.splits, event.clock
        behind = [split for split in splits if clock < clocks.next_clock[split]]
        if self.holding is Holding.FOLLOWER and len(behind) < len(splits):
            self.held.append(event)
            return False
        # A follower answers what it knows to be applied: held, that answer would wait for a commit clock which its
        # sender cannot reach without it (a partition that comes back to a server that gave it away).
        if self.bsp and clock == clocks.completed:
            behind = [split for split in splits if split in clocks.arrived]
        if len(behind) == len(splits):
            clocks.duplicates_refused += len(behind)
            self._ack_stable(s.AckPush(event.request, event.partition, tuple(behind)), out)
        elif self.holding is not Holding.OWNER:
            out.append(s.RefuseStale(event.request))
        elif behind:
            # A sum cannot be taken apart: the worker sends the missing splits again, one by one.
            clocks.duplicates_refused += len(behind)
            out.append(s.AckPush(event.request, event.partition, tuple(behind), accepted=False))
        elif not any(clock > clocks.next_clock[split] for split in splits):
            return True
        elif self.bsp:
            # Its sender cannot have read this clock's parameters: they do not exist.
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
            # A follower that lacks it could become the owner: then nobody may have read it.
            self.held.append(event)
        elif asked == completed or (asked == completed - 1 and not self.clocks.arrived):
            out.append(s.AnswerPull(event.request, self.partition, asked))
        else:
            # Somebody has begun the clock after it, so it is complete everywhere.  Only an heir asks, for what a lost
            # worker had pushed after all.
            out.append(s.RefusePassed(event.request))

    def refuse_waiting(self, out: Commands) -> None:
        """Answer everything that waits: nothing more comes of it here."""
        out.extend(s.RefuseStale(held.request) for held in self.held)
        out.extend(s.DropUpdate(early.request) for early in self.early.values())

    # ---- its followers

    @property
    def stable(self) -> bool:
        """True while every follower that has caught up has everything that was applied."""
        for follower in self.followers.values():
            if follower.acked is not None and follower.acked < self.sequence:
                return False
        return True

    def _everywhere(self) -> int:
        """Return the number of the first update that one of the followers which have caught up has not acknowledged."""
        return min([f.acked for f in self.followers.values() if f.acked is not None], default=self.sequence)

    def send_to(self, follower: MemberId, plan_id: int, out: Commands) -> None:
        """Begin to send the partition to a follower; where that was begun, repeat what was reported."""
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
        """Take in that a follower has everything before a number."""
        follower = self.followers.get(event.follower)
        # Of a plan that was aborted: the next one's snapshot is not there yet, and its updates follow on that.
        if follower is None or follower.plan_id != event.plan_id:
            return
        if follower.acked is None:
            # It may lack what was served or acknowledged until now, and no worker keeps what led to that.
            follower.acked, follower.joined_at, follower.sent = event.sequence, self.sequence, event.sent
        elif event.sequence > follower.acked + 1:
            # One before it was refused: its receiver does not follow this server any more.
            return
        follower.acked = max(event.sequence, follower.acked)
        if follower.joined_at is not None and follower.acked >= follower.joined_at:
            follower.joined_at = None
            assert follower.sent is not None, "the first that a follower acknowledges is its snapshot"
            out.append(s.ReportToMaster(follower.sent))
        self._settle(out)

    def stop_sending(self, follower: MemberId, out: Commands) -> None:
        """Send nothing more to a follower, and wait for it no more."""
        out.append(s.StopSending(self.followers.pop(follower).plan_id, self.partition, follower))
        self._settle(out)

    def _ack_stable(self, ack: s.AckPush, out: Commands) -> None:
        """Acknowledge what was applied as soon as it cannot be lost any more.

        Under BSP at once: whoever pushed keeps it until the next clock's parameters have come.
        """
        # A promotion has a number too, and is not acknowledged.
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

    # ---- what its owner sends

    def update(self, event: s.UpdateArrived | s.PromoteArrived, out: Commands) -> bool:
        """Apply an owner's update, or its promotion, if it is the next one; return whether it was.

        What is known or not wanted is acknowledged; never what an owner did after it was taken over from.  Such an
        owner does not know it yet: it was cut off, or stopped, and woke up.  Without the acknowledgement it serves
        nothing that came after (design section 4: a member that was given up must not be believed).
        """
        follows, promotion = self.holding is Holding.FOLLOWER, isinstance(event, s.PromoteArrived)
        # The plan does not matter: what a number stands for is the same whoever sends it.
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

    # ---- who owns it

    def change_hands(self) -> bool:
        """Under BSP: become the owner, or stop being it, if the clock of that has come; return whether it has."""
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
        """Let a follower own the partition from a clock on, under SSP and ASP from now on; return whether it does."""
        if self.bsp:
            self.promote_at = from_clock
            return self.change_hands()
        out.append(s.SendPromote(self.followers[owner].plan_id, self.partition, owner, self.sequence))
        self.sequence += 1
        self.holding = Holding.FORMER
        return True

    def take_over(self, here: bool, followers: Collection[MemberId], out: Commands) -> None:
        """Own the partition at once, with these followers, or not any more; members were lost."""
        self.promote_at = None
        if self.holding is Holding.FOLLOWER and not here:
            return
        for follower in sorted(f for f in self.followers if not here or f not in followers):
            self.stop_sending(follower, out)
        if not here:
            if self.holding is Holding.OWNER:
                self.holding = Holding.FORMER
            # What was begun is pushed to the new owner again, or here, where it comes back.
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
        """Assert what must always be true."""
        self.clocks.validate(self.bsp)
        if self.holding is Holding.FOLLOWER:
            assert not self.followers, "a follower is followed"
            assert not self.early or min(self.early) > self.sequence, "an update that was due waits"
        assert self.promote_at is None or (self.bsp and self.clocks.completed < self.promote_at), "a commit is overdue"
        for name, follower in self.followers.items():
            assert follower.acked is not None or follower.joined_at is None, f"{name} joined without a snapshot"
