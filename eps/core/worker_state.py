"""What a worker may do next: which clock, with which splits, under which membership.  Pure, no arrays.  L0.

Source: EPS §2.2 Fig. 1b (receive, check the clock list, compute, push by the server list), §3.1.4, Figs 7, 8 and 11;
design section 6 (the horizon, one clock divides donor and receiver).
"""

from __future__ import annotations

from dataclasses import dataclass

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.settings import CoreSettings
from eps.core.types import MemberId


@dataclass(frozen=True, slots=True)
class Work:
    """One clock to compute (or, at clock ``iterations``, to measure)."""

    clock: int
    #: Active splits at that clock, ascending.
    splits: tuple[int, ...]
    #: Partitions must have completed this many clocks before they are read.
    min_clock: int


class WorkerState:
    """Clock, horizon and memberships of one worker."""

    def __init__(self, name: MemberId, settings: CoreSettings) -> None:
        self.name = name
        self.settings = settings
        #: Memberships that still matter, oldest first.
        self.memberships: list[Membership] = []
        #: The next clock to compute; None until the first membership that includes this worker.
        self.clock: int | None = None
        self.horizon = settings.first_clock - 1
        self._grant: m.GrantHorizon | None = None

    @property
    def newest(self) -> Membership:
        """The newest membership known."""
        return self.memberships[-1]

    def on_membership(self, membership: Membership) -> m.MembershipAcked:
        """Take a committed membership in (again); return the acknowledgement."""
        if not self.memberships or membership.version > self.newest.version:
            self.memberships.append(membership)
            if self.clock is None and self.name in membership.workers:
                self.clock = membership.from_clock
            self._use_grant()
        return m.MembershipAcked(self.name, membership.version)

    def on_grant(self, grant: m.GrantHorizon) -> None:
        """Take a horizon in; it counts once the membership that came with it is known."""
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
        """Return the splits that this worker computes at ``clock``."""
        return self.membership_at(clock).splits.active_on(self.name)

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
        clock = self.clock
        if clock is None or self.left or self.finished or clock > self.horizon:
            return None
        return Work(clock, self.active_at(clock), self.settings.min_clock_to_read(clock))

    def done(self, clock: int) -> None:
        """The clock was computed and pushed."""
        assert clock == self.clock, (clock, self.clock)
        self.clock = clock + 1
        while len(self.memberships) > 1 and self.memberships[1].from_clock <= self.clock:
            del self.memberships[0]

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
