"""Ids, settings and small values shared by all rooms.  Of this project it imports errors only.

Source: EPS §2.2 (workers, servers, partitions, splits; BSP, SSP, ASP), §3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from eps.errors import ConfigError

#: A worker's or a server's name, ``worker-3`` or ``server-2``.  A job never uses a name twice.  Partitions and splits
#: are numbered from 0 (P1 and D1 of the paper are 0).
MemberId = str
#: The largest number of members of one role in a job.
MOST_MEMBERS = 10_000


class Role(StrEnum):
    """The role of a member; one process may have both."""

    WORKER = "worker"
    SERVER = "server"


class Tier(StrEnum):
    """The expected lifetime of a member's container (Proteus §3)."""

    #: Until the job ends, unless it crashes.
    RELIABLE = "reliable"
    #: May be taken away at any time.
    TRANSIENT = "transient"


@dataclass(frozen=True, slots=True)
class Team:
    """Members by role: those that a plan adds or removes."""

    workers: tuple[MemberId, ...] = ()
    servers: tuple[MemberId, ...] = ()

    @classmethod
    def of(cls, role: Role, names: Iterable[MemberId]) -> Team:
        """Return a team in which every member has this role."""
        return cls(workers=tuple(names)) if role is Role.WORKER else cls(servers=tuple(names))

    @property
    def members(self) -> tuple[MemberId, ...]:
        """The workers, followed by the servers."""
        return self.workers + self.servers

    def of_role(self, role: Role) -> tuple[MemberId, ...]:
        """Return the members of one role."""
        return self.workers if role is Role.WORKER else self.servers

    def without(self, names: Collection[MemberId]) -> Team:
        """Return the team without these members."""
        workers, servers = (
            tuple(name for name in found if name not in names) for found in (self.workers, self.servers)
        )
        return Team(workers, servers)


NO_TEAM = Team()


#: Prefix of the host of a Unix socket's address.  The socket's file name in the job's socket folder follows it.
UNIX_SOCKET = "unix:"


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a process of a job listens: a host and a port, or ``unix:NAME`` and port 0."""

    host: str
    port: int

    @property
    def is_unix(self) -> bool:
        """Return whether this is a Unix socket, which only processes on the same host can reach."""
        return self.host.startswith(UNIX_SOCKET)

    def __str__(self) -> str:
        return self.host if self.is_unix else f"{self.host}:{self.port}"


def member_name(role: Role, number: int) -> MemberId:
    """Return the name of member ``number`` of ``role``, counted from 1.  No code parses the number back."""
    return f"{role.value}-{number}"


#: Staleness of ASP: no bound.
UNBOUNDED = -1


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Settings that the states of master, servers and workers share; independent of the job's size."""

    num_splits: int
    num_partitions: int
    #: Clocks to train.  Clock ``iterations`` itself only evaluates the final parameters.
    iterations: int
    #: Staleness bound in clocks: 0 is BSP, n > 0 is SSP, :data:`UNBOUNDED` is ASP.
    staleness: int = 0
    #: Add on a fixed grid, so that the model does not depend on who computed what.  BSP only; the default there.
    reproducible: bool = True
    #: Standing followers of each partition, if there is more than one server.
    followers: int = 0
    #: The first clock of a job that starts from a checkpoint; None if it starts from its seed.
    resumed_clock: int | None = None

    def __post_init__(self) -> None:
        if self.num_splits < 1 or self.num_partitions < 1 or self.iterations < 1:
            raise ConfigError(
                f"splits ({self.num_splits}), partitions ({self.num_partitions}) and iterations ({self.iterations}) "
                "must be at least 1"
            )
        if self.staleness < UNBOUNDED:
            raise ConfigError(f"staleness is {self.staleness}, but must be 0 (BSP), a bound, or {UNBOUNDED} (ASP)")
        if self.reproducible and self.staleness != 0:
            raise ConfigError("reproducible sums need BSP: under SSP and ASP the order of updates changes the result")

    @property
    def bsp(self) -> bool:
        """Return whether the job runs under BSP."""
        return self.staleness == 0

    @property
    def first_clock(self) -> int:
        """The checkpoint's clock if the job starts from one, else :attr:`seeded_clock`."""
        return self.seeded_clock if self.resumed_clock is None else self.resumed_clock

    @property
    def seeded_clock(self) -> int:
        """The first clock of a job that starts from its seed; clock -1 only measures the maxima for the first grid."""
        return -1 if self.reproducible else 0

    def min_clock_to_read(self, clock: int) -> int:
        """Return how many clocks a partition must have completed before a worker may compute ``clock``.

        Source: EPS §2.2 (BSP, SSP, ASP); design section 6 (b = 0 is BSP).  The evaluation of the final parameters
        needs every update, also under SSP and ASP.
        """
        if clock >= self.iterations or self.staleness == 0:
            return clock
        if self.staleness == UNBOUNDED:
            return 0
        return max(0, clock - self.staleness)
