"""What a worker may do next: which clock, with which splits, under which membership.  Pure, no arrays.  L0.

Source: EPS §2.2 Fig. 1b (receive, check the clock list, compute, push by the server list), §3.1.4, Figs 7, 8 and 11;
design section 5 (work is identified by clock and split, so that an heir can do what a lost worker owed), section 6
(the horizon, one clock divides donor and receiver).
"""

from __future__ import annotations

from dataclasses import dataclass

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.settings import CoreSettings
from eps.core.types import MemberId


@dataclass(frozen=True, slots=True)
class Work:
    """Splits of one clock to compute (or, at clock ``iterations``, to measure)."""

    clock: int
    #: Active splits at that clock that are still to be computed, ascending.
    splits: tuple[int, ...]
    #: Partitions must have completed this many clocks before they are read.
    min_clock: int


class WorkerState:
    """Clock, horizon and memberships of one worker.

    A clock is computed (:meth:`computed`) and then pushed everywhere (:meth:`done`).  Between the two a membership that
    takes over from lost members may bring further splits of the same clock.
    """

    def __init__(self, name: MemberId, settings: CoreSettings) -> None:
        self.name = name
        self.settings = settings
        #: Memberships that still matter, oldest first.
        self.memberships: list[Membership] = []
        #: The clock that is computed and pushed now; None until the first membership that includes this worker.
        self.clock: int | None = None
        #: The last clock whose parameters were read completely.
        self.read_clock = settings.first_clock - 1
        self.horizon = settings.first_clock - 1
        #: Split -> next clock to compute, where it was computed here or taken over.
        self._next: dict[int, int] = {}
        #: Split -> the first clock that is owed here, where it was taken over.
        self._inherited: dict[int, int] = {}
        self._grant: m.GrantHorizon | None = None
        #: The membership that began the incarnation; horizons of earlier ones are void.
        self._begun = 0
        #: Plan that is not released here yet -> first clock under its membership.
        self._commit_clocks: dict[int, int] = {}

    @property
    def newest(self) -> Membership:
        """The newest membership known."""
        return self.memberships[-1]

    @property
    def version(self) -> int:
        """The number of the newest membership; 0 before the first."""
        return self.newest.version if self.memberships else 0

    @property
    def recovery(self) -> int:
        """The latest recovery that is known to be over."""
        return self.newest.recovery if self.memberships else 0

    @property
    def incarnation(self) -> int:
        """The incarnation of the newest membership."""
        return self.newest.incarnation if self.memberships else 0

    def on_membership(self, membership: Membership) -> m.MembershipAcked:
        """Take a committed membership in (again); return the acknowledgement."""
        if not self.memberships or membership.version > self.newest.version:
            if membership.takes_over:
                self._take_over(membership)
            else:
                self.memberships.append(membership)
            if self.clock is None and self.name in membership.workers:
                self.clock = membership.from_clock
            self._use_grant()
        return m.MembershipAcked(self.name, membership.version)

    def note_commit(self, plan_id: int, membership: Membership) -> None:
        """Keep from which clock on a plan holds, after its membership was taken in.

        One that comes late, after that of a recovery, says nothing any more: who left before that clock, because
        somebody was lost meanwhile, would never come to it, and never be released.
        """
        if membership.version == self.version:
            self._commit_clocks[plan_id] = membership.from_clock

    def commit_clock(self, plan_id: int) -> int:
        """Return from which clock on a plan holds; the clock of now where that is not known, or not any more."""
        return self._commit_clocks.get(plan_id, 0 if self.clock is None else self.clock)

    def note_released(self, plan_id: int) -> None:
        """Forget from when on a plan held, after its release was reported."""
        self._commit_clocks.pop(plan_id, None)

    def _take_over(self, membership: Membership) -> None:
        """Work by ``membership`` alone from now on, for what is on its way too."""
        active = membership.splits.active_on(self.name)
        starts = {split: membership.split_clocks[split] for split in active}
        before = self.newest if self.memberships else None
        if before is None or membership.goes_back:
            # It begins, or everything begins again at the checkpoint.
            self.clock = self._grant = None
            self.horizon, self.read_clock, self._next = membership.from_clock - 1, membership.from_clock - 1, starts
            self._inherited, self._begun = dict(starts), membership.version
        elif self.clock is not None:
            for split in active:
                if not self._held(split, starts[split]):
                    self._next[split] = self._inherited[split] = starts[split]
                self._next[split] = max(starts[split], self._next.get(split, starts[split]))
                # A membership that was to hold later holds now; and under SSP and ASP, what a lost worker was behind
                # must be caught up.
                self.clock = min(self.clock, self._next[split])
        self.memberships = [membership]
        if self.name not in membership.workers:
            self.clock = membership.from_clock if self.clock is None else max(self.clock, membership.from_clock)

    def _held(self, split: int, clock: int) -> bool:
        """Return whether ``split`` was owed here at ``clock``, as far as it is known.

        What a lost worker had done everywhere was not owed by its heir, and must be done again where an owner is lost
        before its follower had it.
        """
        known = [membership for membership in self.memberships if membership.from_clock <= clock]
        active = bool(known) and known[-1].splits.active[split] == self.name
        return active and clock >= self._inherited.get(split, clock)

    def on_grant(self, grant: m.GrantHorizon) -> None:
        """Take a horizon in; it counts once the membership that came with it is known."""
        if grant.membership_version < self._begun:
            return
        if self._grant is None or (grant.membership_version, grant.horizon) > (
            self._grant.membership_version,
            self._grant.horizon,
        ):
            self._grant = grant
            self._use_grant()

    def _use_grant(self) -> None:
        if self._grant is not None and self.memberships and self.newest.version >= self._grant.membership_version:
            self.horizon = max(self.horizon, self._grant.horizon)

    def membership_at(self, clock: int) -> Membership:
        """Return the membership in force at ``clock``."""
        found = self.memberships[0]
        for membership in self.memberships:
            if membership.from_clock <= clock:
                found = membership
        return found

    def route(self, clock: int) -> Membership:
        """Return the membership that says who owns which partition for a request of ``clock``.

        Under BSP the one in force at that clock; under SSP and ASP the newest (the commit happens at the owner).
        """
        return self.membership_at(clock) if self.settings.bsp else self.newest

    def active_at(self, clock: int) -> tuple[int, ...]:
        """Return the splits that are active here at ``clock``."""
        return self.membership_at(clock).splits.active_on(self.name)

    def due_at(self, clock: int) -> tuple[int, ...]:
        """Return the splits that are active here at ``clock`` and not computed yet."""
        return tuple(split for split in self.active_at(clock) if self._next.get(split, clock) <= clock)

    def needed(self) -> tuple[int, ...]:
        """Return the splits that must be in memory: active now or under any later membership known."""
        if self.clock is None:
            return ()
        wanted = set(self.active_at(self.clock))
        for membership in self.memberships:
            if membership.from_clock > self.clock:
                wanted.update(membership.splits.active_on(self.name))
        return tuple(sorted(wanted))

    @property
    def left(self) -> bool:
        """True once every clock that this worker owes is computed."""
        return self.clock is not None and self.name not in self.membership_at(self.clock).workers

    @property
    def finished(self) -> bool:
        """True once the final parameters have been measured."""
        return self.clock is not None and self.clock > self.settings.iterations

    def next_work(self) -> Work | None:
        """Return what may be computed now, or None while the horizon is not granted (or nothing is left)."""
        if self.clock is None or self.left or self.finished or self.clock > self.horizon:
            return None
        return Work(self.clock, self.due_at(self.clock), self.settings.min_clock_to_read(self.clock))

    def computed(self, clock: int, splits: tuple[int, ...]) -> None:
        """These splits of a clock were computed; whoever needs them will get them from here."""
        for split in splits:
            self._next[split] = clock + 1

    def done(self, clock: int) -> bool:
        """All of a clock that was computed is pushed: go on to the next.

        Returns
        -------
        bool
            False where lost members left something of it, or of an earlier one, to this worker meanwhile.
        """
        assert self.clock is not None and clock >= self.clock, (clock, self.clock)
        if clock > self.clock or self.due_at(clock):
            return False
        self.clock = clock + 1
        while not self.left and not self.finished and not self.due_at(self.clock) and self.active_at(self.clock):
            # SSP and ASP: every split that is active here is further.
            self.clock += 1
        while len(self.memberships) > 1 and self.memberships[1].from_clock <= self.clock:
            del self.memberships[0]
        return True

    def waits_for(self) -> str:
        """Return what this worker waits for, as a sentence."""
        if self.clock is None:
            return "a membership that includes it"
        return f"the horizon to reach clock {self.clock}; it is {self.horizon}"

    def clock_list(self, partition_clocks: dict[int, int]) -> dict[MemberId, int]:
        """Return the clock list: server -> clock of its partitions as last received (EPS Figs 1b and 7)."""
        owners = self.newest.partitions
        first = self.settings.first_clock
        return {
            server: min((partition_clocks.get(p, first) for p in owners.owned_by(server)), default=first)
            for server in self.newest.servers
        }
