"""Ids and small values shared by everything; imports nothing of ours.

Source: EPS §2.2 (workers, servers, partitions, splits), §3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

#: A worker's or a server's name, ``worker-3`` or ``server-2``: never used again within a job.  Partitions and
#: splits are numbered from 0 (P1 and D1 of the paper are 0).
MemberId = str
#: Most members of one role that a job has.
MOST_MEMBERS = 10_000


class Role(StrEnum):
    """What a member of a job does; one process may do both."""

    WORKER = "worker"
    SERVER = "server"


class Tier(StrEnum):
    """How long the container of a member can be counted on (Proteus §3)."""

    #: As long as the job lasts, failures aside.
    RELIABLE = "reliable"


@dataclass(frozen=True, slots=True)
class Team:
    """Members by role: those that a plan adds, or those that it removes."""

    workers: tuple[MemberId, ...] = ()
    servers: tuple[MemberId, ...] = ()

    @classmethod
    def of(cls, role: Role, names: Iterable[MemberId]) -> Team:
        """Return a team whose members all have one role."""
        return cls(workers=tuple(names)) if role is Role.WORKER else cls(servers=tuple(names))

    @property
    def members(self) -> tuple[MemberId, ...]:
        """Workers, then servers."""
        return self.workers + self.servers

    def of_role(self, role: Role) -> tuple[MemberId, ...]:
        """Return the members of one role."""
        return self.workers if role is Role.WORKER else self.servers


NO_TEAM = Team()


#: Begins the host of an address that is a Unix socket: its name in the folder of the job's sockets follows.
UNIX_SOCKET = "unix:"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process of a job listens: a host and a port, or ``unix:NAME`` and port 0."""

    host: str
    port: int

    @property
    def is_unix(self) -> bool:
        """True for a Unix socket, which only processes of this host can reach."""
        return self.host.startswith(UNIX_SOCKET)

    def __str__(self) -> str:
        return self.host if self.is_unix else f"{self.host}:{self.port}"


def member_name(role: Role, number: int) -> MemberId:
    """Return the name of the ``number``-th member of ``role``, counted from 1; no code reads the number back."""
    return f"{role.value}-{number}"
