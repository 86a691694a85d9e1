"""The decisions of a worker: the next clock, its splits, and what to resend.  Pure, no arrays.

Source: EPS §2.2 Fig. 1b (receive, check the clock list, compute, push by the server list), §3.1.4, Figs 7, 8 and 11;
design section 5 (work is identified by clock and split, so that an heir can do what a lost worker owed), section 6
(the horizon, one clock divides donor and receiver).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import CoreSettings, MemberId


@dataclass(frozen=True, slots=True)
class Work:
    """Splits of one clock to compute (at clock ``iterations``: to evaluate).  Without splits: push what is computed."""

    clock: int
    #: Active splits of that clock that are not computed yet, ascending.
    splits: tuple[int, ...]
    #: The clocks that partitions must have completed before they are read.
    min_clock: int


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A read of a clock before a worker leaves: once answered, every copy has the worker's pushes."""

    clock: int


@dataclass(frozen=True, slots=True)
class Begun:
    """The start of a task, in counts of losses and rollbacks."""

    epoch: int
    incarnation: int


class Memberships:
    """The memberships that still matter to a worker, oldest first."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._known: list[Membership] = []

    def __iter__(self) -> Iterator[Membership]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def newest(self) -> Membership:
        """The newest membership."""
        return self._known[-1]

    @property
    def version(self) -> int:
        """The version of the newest membership; 0 before the first."""
        return self.newest.version if self._known else 0

    @property
    def recovery(self) -> int:
        """The latest recovery that is known to have ended."""
        return self.newest.recovery if self._known else 0

    @property
    def incarnation(self) -> int:
        """The incarnation of the newest membership."""
        return self.newest.incarnation if self._known else 0

    def begins(self, membership: Membership) -> bool:
        """Return whether the worker starts, or the job has rolled back: no earlier state counts.

        The rollback itself may never reach a leaving worker, only the membership of a later recovery.
        """
        return not self._known or membership.incarnation > self.incarnation

    def add(self, membership: Membership) -> None:
        """Add a plan's membership, which takes effect at its clock."""
        self._known.append(membership)

    def replace(self, membership: Membership) -> None:
        """Install the membership of a recovery, which takes effect at once and replaces all others."""
        self._known = [membership]

    def forget_before(self, clock: int) -> None:
        """Forget memberships that are not in force at ``clock`` or later."""
        while len(self._known) > 1 and self._known[1].from_clock <= clock:
            del self._known[0]

    def at(self, clock: int) -> Membership:
        """Return the membership in force at ``clock``."""
        found = self._known[0]
        for membership in self._known:
            if membership.from_clock <= clock:
                found = membership
        return found

    def route(self, clock: int) -> Membership:
        """Return the membership whose partition table routes a request of ``clock``.

        Under BSP it is the one in force at that clock; under SSP and ASP the newest, because the owner commits.
        """
        return self.at(clock) if self._settings.bsp else self.newest

    def validate(self) -> None:
        """Assert the invariants."""
        versions = [membership.version for membership in self._known]
        assert versions == sorted(set(versions)), "memberships in another order than they were made"
        clocks = [membership.from_clock for membership in self._known]
        assert clocks == sorted(clocks), "a later membership holds earlier"
        assert not any(membership.takes_over for membership in self._known[1:]), "what takes over holds alone"

    def clock_list(self, partition_clocks: dict[int, int]) -> dict[MemberId, int]:
        """Return the clock list: server -> clock of its partitions as last received (EPS Figs 1b and 7)."""
        owners = self.newest.partitions
        first = self._settings.first_clock
        return {
            server: min((partition_clocks.get(p, first) for p in owners.owned_by(server)), default=first)
            for server in self.newest.servers
        }


@dataclass(slots=True, eq=False)
class Kept:
    """The results of a clock, kept until no loss of a member can undo them.

    Under BSP that is when the next clock's parameters have been read, otherwise when every owner has acknowledged.
    """

    clock: int
    splits: tuple[int, ...]
    report: m.ClockReported
    #: The push, or the inputs to compute it again; opaque here.
    content: Any
    #: Partitions whose owner has all of it.
    held: set[int] = field(default_factory=set)


class Outbox:
    """Contributions that a worker may have to resend, oldest first; under BSP all of one clock."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._everywhere = frozenset(range(settings.num_partitions))
        self._kept: list[Kept] = []
        self._untold: list[m.ClockReported] = []

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept)

    @property
    def newest(self) -> Kept | None:
        """The latest computed clock that is still kept, or None."""
        return self._kept[-1] if self._kept else None

    def add(self, kept: Kept) -> None:
        """Keep what was computed, before it is pushed or reported to the master."""
        self._kept.append(kept)
        self._untold.append(kept.report)

    def unpushed(self, up_to: int | None = None) -> list[Kept]:
        """Return the kept clocks up to ``up_to`` that some owner may lack."""
        return [
            kept
            for kept in self._kept
            if len(kept.held) < len(self._everywhere) and (up_to is None or kept.clock <= up_to)
        ]

    def missing(self, kept: Kept) -> list[int]:
        """Return the partitions whose owner may lack some of it, ascending."""
        return sorted(self._everywhere - kept.held)

    def untold(self) -> list[m.ClockReported]:
        """Return the reports that the master lacks, and mark them as sent."""
        reports, self._untold = self._untold, []
        return reports

    def on_held(self, partition: int, clock: int, splits: tuple[int, ...]) -> None:
        """Record that a partition's owner has what was computed for these splits.

        Single splits that a partition lacked do not make it complete.
        """
        for kept in self._kept:
            if kept.clock == clock and kept.splits == splits:
                kept.held.add(partition)

    def on_read(self, partition: int, clock: int) -> None:
        """Record that a partition was read at a clock: under BSP its owner has everything of earlier clocks."""
        for kept in self._kept if self._settings.bsp else ():
            if kept.clock < clock:
                kept.held.add(partition)

    def on_pushed(self, pushed: Iterable[Kept]) -> None:
        """Record that every owner has these."""
        for kept in pushed:
            kept.held.update(self._everywhere)
        if not self._settings.bsp:
            # An acknowledged push is in every copy that could take over.
            self._kept = [kept for kept in self._kept if len(kept.held) < len(self._everywhere)]

    def forget_before(self, clock: int) -> None:
        """Forget the clocks before ``clock``, which no loss can undo."""
        self._kept = [kept for kept in self._kept if kept.clock >= clock]

    def forget_all(self) -> None:
        """Forget everything, because the job rolls back or nothing can be needed any more."""
        self._kept, self._untold = [], []

    def take_over(self, before: Mapping[int, Sequence[MemberId]], owners: Sequence[MemberId]) -> None:
        """Mark as missing what was held by owners that have changed.

        Parameters
        ----------
        before : mapping
            Kept clock -> owner of each partition before the change.
        owners : sequence
            Owner of each partition after it.
        """
        for kept in self._kept:
            until_now = before[kept.clock]
            kept.held = {partition for partition in kept.held if until_now[partition] == owners[partition]}

    def validate(self) -> None:
        """Assert the invariants."""
        assert all(kept.held <= self._everywhere for kept in self._kept), "held by partitions that the job lacks"
        assert all(kept.splits for kept in self._kept), "kept without a split"


class Releases:
    """Plans whose release this worker reports once it is past the clocks before them."""

    def __init__(self) -> None:
        #: Unreleased plan -> first clock under its membership.
        self._commit_clocks: dict[int, int] = {}
        self._asked: list[int] = []

    def note_commit(self, plan_id: int, clock: int) -> None:
        """Record the first clock of a plan's membership."""
        self._commit_clocks[plan_id] = clock

    def ask(self, plan_id: int) -> None:
        """Record that the master waits for the release of a plan."""
        self._asked.append(plan_id)

    def asked(self) -> list[tuple[int, int | None]]:
        """Return the plans whose release the master waits for, each with its first clock if known."""
        return [(plan_id, self._commit_clocks.get(plan_id)) for plan_id in self._asked]

    def done(self, plans: Collection[int]) -> None:
        """Forget released plans."""
        for plan_id in plans:
            self._commit_clocks.pop(plan_id, None)
        self._asked = [plan_id for plan_id in self._asked if plan_id not in plans]


class Duties:
    """The clocks and splits that a worker owes, given its memberships and horizon.

    A clock is computed (:meth:`computed`), then pushed everywhere (:meth:`done`).  In between, the membership of a
    recovery may add further splits of the same clock.
    """

    def __init__(self, name: MemberId, settings: CoreSettings) -> None:
        self.name = name
        self.settings = settings
        self.memberships = Memberships(settings)
        #: The clock that is computed and pushed now; None before the first membership with this worker.
        self.clock: int | None = None
        self.horizon = settings.first_clock - 1
        #: Split that was computed or inherited here -> next clock to compute.
        self._next: dict[int, int] = {}
        #: Split that was inherited from a lost worker -> first clock that is owed here.
        self._inherited: dict[int, int] = {}
        self._grant: m.GrantHorizon | None = None
        #: Version of the membership that began the incarnation; horizons of earlier ones are void.
        self._begun = 0

    def on_membership(self, membership: Membership) -> m.MembershipAcked:
        """Install a committed membership; idempotent.  Return the acknowledgement."""
        if membership.version > self.memberships.version:
            if membership.takes_over:
                self._take_over(membership)
            else:
                self.memberships.add(membership)
            if self.clock is None and self.name in membership.workers:
                self.clock = membership.from_clock
            self._use_grant()
        return m.MembershipAcked(self.name, membership.version)

    def _take_over(self, membership: Membership) -> None:
        """Switch to ``membership`` at once, also for work in progress."""
        active = membership.splits.active_on(self.name)
        starts = {split: membership.split_clocks[split] for split in active}
        if self.memberships.begins(membership):
            self.clock = self._grant = None
            self.horizon, self._next = membership.from_clock - 1, starts
            self._inherited, self._begun = dict(starts), membership.version
        elif self.clock is not None:
            for split in active:
                if not self._held(split, starts[split]):
                    self._next[split] = self._inherited[split] = starts[split]
                self._next[split] = max(starts[split], self._next.get(split, starts[split]))
                # A membership planned for a later clock takes effect now.  Under SSP and ASP the worker must also catch
                # up on clocks that a lost worker was behind.
                self.clock = min(self.clock, self._next[split])
        self.memberships.replace(membership)
        if self.name not in membership.workers:
            self.clock = membership.from_clock if self.clock is None else max(self.clock, membership.from_clock)

    def _held(self, split: int, clock: int) -> bool:
        """Return whether ``split`` was owed here at ``clock``, as far as known.

        What a lost worker had pushed everywhere was not owed by its heir.  It must be recomputed if an owner was lost
        before its follower had it.
        """
        known = [membership for membership in self.memberships if membership.from_clock <= clock]
        active = bool(known) and known[-1].splits.active[split] == self.name
        return active and clock >= self._inherited.get(split, clock)

    def on_grant(self, grant: m.GrantHorizon) -> None:
        """Record a horizon; it takes effect once its membership is known."""
        if grant.membership_version < self._begun:
            return
        if self._grant is None or (grant.membership_version, grant.horizon) > (
            self._grant.membership_version,
            self._grant.horizon,
        ):
            self._grant = grant
            self._use_grant()

    def _use_grant(self) -> None:
        if self._grant is not None and self.memberships and self.memberships.version >= self._grant.membership_version:
            self.horizon = max(self.horizon, self._grant.horizon)

    def active_at(self, clock: int) -> tuple[int, ...]:
        """Return the splits that are active here at ``clock``."""
        return self.memberships.at(clock).splits.active_on(self.name)

    def due_at(self, clock: int) -> tuple[int, ...]:
        """Return the splits that are active here at ``clock`` and not yet computed."""
        return tuple(split for split in self.active_at(clock) if self._next.get(split, clock) <= clock)

    def needed(self) -> tuple[int, ...]:
        """Return the splits that must be in memory: active now or under a later known membership."""
        if self.clock is None:
            return ()
        wanted = set(self.active_at(self.clock))
        for membership in self.memberships:
            if membership.from_clock > self.clock:
                wanted.update(membership.splits.active_on(self.name))
        return tuple(sorted(wanted))

    @property
    def left(self) -> bool:
        """Return whether this worker is removed and has computed every clock that it owed."""
        return self.clock is not None and self.name not in self.memberships.at(self.clock).workers

    @property
    def finished(self) -> bool:
        """Return whether the final parameters have been evaluated."""
        return self.clock is not None and self.clock > self.settings.iterations

    def next_work(self) -> Work | None:
        """Return what can be computed now; None while the horizon is not granted, or if nothing is left."""
        if self.clock is None or self.left or self.finished or self.clock > self.horizon:
            return None
        return Work(self.clock, self.due_at(self.clock), self.settings.min_clock_to_read(self.clock))

    def owes_before(self, work: Work) -> bool:
        """Return whether an earlier clock of these splits is due: inherited while this one was computed (SSP, ASP)."""
        if self.clock is None or self.clock >= work.clock:
            return False
        return not set(work.splits).isdisjoint(self.due_at(work.clock - 1))

    def computed(self, clock: int, splits: tuple[int, ...]) -> None:
        """Mark these splits of a clock as computed."""
        for split in splits:
            self._next[split] = clock + 1

    def done(self, clock: int) -> bool:
        """Go on to the next clock, because all of this one is pushed.

        Returns
        -------
        bool
            False if this worker meanwhile inherited some of it, or of an earlier clock, from lost members.
        """
        assert self.clock is not None and clock >= self.clock, (clock, self.clock)
        if clock > self.clock or self.due_at(clock):
            return False
        self.clock = clock + 1
        while not self.left and not self.finished and not self.due_at(self.clock) and self.active_at(self.clock):
            # SSP and ASP: every split that is active here is already further.
            self.clock += 1
        self.memberships.forget_before(self.clock)
        return True

    def validate(self) -> None:
        """Assert the invariants."""
        self.memberships.validate()
        assert self._inherited.keys() <= self._next.keys(), "a split was taken over without a clock"
        if self.clock is None:
            return
        assert self.memberships, "a clock without a membership"
        assert self.clock <= self.settings.iterations + 1, "a clock after the evaluation"

    def waits_for(self) -> str:
        """Return what this worker waits for, as a phrase."""
        return f"the horizon to reach clock {self.clock}; it is {self.horizon}"


class WorkerState:
    """The state of a worker: the work that it owes, the contributions that it keeps, and its current task.

    :meth:`begin` returns a task; the shell executes it, records the results here, and calls :meth:`end`.  A loss of
    members raises :attr:`epoch`: tasks of an earlier epoch are void, except for results of the same incarnation.
    """

    def __init__(self, name: MemberId, settings: CoreSettings) -> None:
        self.name = name
        self.settings = settings
        self.duties = Duties(name, settings)
        self.memberships = self.duties.memberships
        self.outbox = Outbox(settings)
        self.releases = Releases()
        #: The last clock whose parameters were read completely.
        self.read_clock = settings.first_clock - 1
        #: Grows when members are lost, and with the membership of their recovery.
        self.epoch = 0
        #: When the current task was started; None if there is none.
        self._under_way: Begun | None = None
        #: The latest recovery for which an inventory was taken.
        self._inventoried = 0

    # ---- orders of the master

    def on_membership(self, membership: Membership, plan_id: int | None = None) -> m.MembershipAcked:
        """Install a committed membership; idempotent.  Return the acknowledgement."""
        if membership.takes_over and membership.version > self.memberships.version:
            membership = self._take_over(membership)
        acked = self.duties.on_membership(membership)
        if plan_id is not None and membership.version == self.memberships.version:
            # A plan's membership that arrives after that of a recovery is void.  A worker that the recovery removed
            # before the plan's clock would never reach that clock, and so never be released.
            self.releases.note_commit(plan_id, membership.from_clock)
        return acked

    def _take_over(self, membership: Membership) -> Membership:
        """Adjust the outbox to a recovery, and return its membership; called before the duties change."""
        self.epoch += 1
        if self.memberships.begins(membership):
            self.outbox.forget_all()
            self.read_clock = membership.from_clock - 1
        else:
            before = {kept.clock: self.memberships.route(kept.clock).partitions.owners for kept in self.outbox}
            self.outbox.take_over(before, membership.partitions.owners)
            if self.settings.bsp:
                # This worker may have read later parameters since the master asked the servers.  Every split has
                # contributed to them, and they survive.
                clocks = tuple(max(clock, self.read_clock) for clock in membership.split_clocks)
                return replace(membership, split_clocks=clocks)
        return membership

    def inventory(self, recovery: int) -> m.Inventory:
        """Stop the current task, because members were lost; return this worker's progress."""
        if recovery > max(self._inventoried, self.memberships.recovery):
            self._inventoried = recovery
            self.epoch += 1
        return m.Inventory(self.name, recovery, self.read_clock)

    def released(self) -> list[m.PlanReleased]:
        """Return the releases that have become due since the last call."""
        past = [plan_id for plan_id, commit in self.releases.asked() if self._is_past(commit)]
        self.releases.done(past)
        return [m.PlanReleased(self.name, plan_id) for plan_id in past]

    def _is_past(self, commit: int | None) -> bool:
        """Return whether this worker and its current task are past the clocks before a commit.

        A worker that leaves owes something until it rests.  One that stays may release while it works on a later clock:
        otherwise a server that leaves, and waits for all workers, would wait for a whole iteration.
        """
        duties, clock = self.duties, self.duties.clock
        if clock is not None and not duties.finished and commit is not None and clock < commit:
            return False
        if self._under_way is None:
            return not (self.leaves and self._must_confirm)
        commit = clock if commit is None else commit
        stays = clock is not None and not duties.left and self._under_way.epoch == self.epoch
        return stays and commit is not None and all(kept.clock >= commit for kept in self.outbox.unpushed())

    # ---- the next task

    @property
    def leaves(self) -> bool:
        """Return whether nothing is left to compute, unless members are lost."""
        return self.duties.clock is not None and (self.duties.finished or self.duties.left)

    @property
    def stands_by(self) -> bool:
        """Whether this worker may wait as long as the master does: it is spare, or a recovery waits for containers."""
        return self.duties.clock is None or self._inventoried > self.memberships.recovery

    @property
    def _must_confirm(self) -> bool:
        """Return whether this leaving worker may still hold something that the loss of a server would require."""
        return len(self.outbox) > 0 and self.settings.followers > 0 and not self.duties.finished

    def begin(self) -> Work | Confirmation | None:
        """Start and return the next task, or return None if there is none."""
        task = self._next_task()
        if task is not None:
            self._under_way = self.now
        return task

    @property
    def now(self) -> Begun:
        """The epoch and incarnation of a task that starts now."""
        return Begun(self.epoch, self.memberships.incarnation)

    def is_void(self, task: Work | Confirmation, begun: Begun, computes: bool) -> bool:
        """Return whether a task must restart, because members were lost.

        Parameters
        ----------
        task : Work or Confirmation
        begun : Begun
        computes : bool
            Whether its parameters were read: then a recovery within the same incarnation affects it only if an earlier
            clock of its splits is due now.  Servers would not accept this one before.
        """
        if not computes:
            return begun.epoch != self.epoch
        inherits = isinstance(task, Work) and self.duties.owes_before(task)
        return inherits or begun.incarnation != self.memberships.incarnation

    def read_ahead(self, clock: int, splits: tuple[int, ...]) -> int | None:
        """Return the clock whose parameters can be requested with the push of ``clock``, or None.

        Parameters
        ----------
        clock : int
        splits : tuple of int
            The splits that are computed; if the next clock has others, it may need other keys.
        """
        following = clock + 1
        asks = following <= self.duties.horizon and self.duties.active_at(following) == splits
        return following if asks else None

    def _next_task(self) -> Work | Confirmation | None:
        if self.stands_by:
            return None
        newest = self.outbox.newest
        if self.leaves:
            return Confirmation(newest.clock + 1) if newest is not None and self._must_confirm else None
        work = self.duties.next_work()
        if work is None and newest is not None and self.outbox.unpushed():
            # What a lost owner had must be pushed again, even if no further clock is granted.
            return Work(newest.clock, (), 0)
        return work

    # ---- results

    def keep(self, kept: Kept) -> None:
        """Keep what was computed, until no loss can undo it."""
        self.outbox.add(kept)
        self.duties.computed(kept.clock, kept.splits)

    def read(self, clock: int) -> None:
        """Record that the parameters of a clock were read completely: no loss can undo earlier pushes."""
        self.read_clock = max(self.read_clock, clock)
        self.outbox.forget_before(clock)

    def pushed(self, clock: int) -> None:
        """Record that all of a clock is pushed."""
        if self.duties.clock == clock:
            self.duties.done(clock)

    def passed(self, work: Work) -> None:
        """Skip a clock that was complete when it was read: a lost worker had pushed everything."""
        self.duties.computed(work.clock, work.splits)
        self.outbox.forget_before(work.clock + 1)
        self.pushed(work.clock)

    def measured(self, work: Work) -> None:
        """Record that the final parameters were evaluated with these splits."""
        self.duties.computed(work.clock, work.splits)
        self.pushed(work.clock)

    def rest(self) -> bool:
        """Clear the outbox if nothing is owed, unless members are lost; return whether that is so."""
        if not self.leaves or self._must_confirm:
            return False
        self.outbox.forget_all()
        return True

    def end(self) -> None:
        """End the current task, complete or void."""
        self._under_way = None

    def validate(self) -> None:
        """Assert the invariants of a worker."""
        self.duties.validate()
        self.outbox.validate()
        assert self.read_clock >= self.settings.first_clock - 1, "read before the first clock"
        assert self.read_clock <= self.settings.iterations + 1, "read after the last clock"
        assert self._under_way is None or self._under_way.epoch <= self.epoch, "begun in an epoch to come"
        if self.settings.bsp:
            early = [kept.clock for kept in self.outbox if kept.clock < self.read_clock]
            assert not early, f"clocks {early} are kept though clock {self.read_clock} was read"
