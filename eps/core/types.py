"""Ids and small values shared by everything; imports nothing of ours.

Source: EPS §2.2 (workers, servers, partitions, splits), §3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

#: ``worker-3``: a name is never used again within a job.
WorkerId = NewType("WorkerId", str)
#: ``server-2``.
ServerId = NewType("ServerId", str)
#: 0-based number of a fixed key range of the parameters (P1 of the paper is 0).
PartitionId = NewType("PartitionId", int)
#: 0-based number of a fixed piece of the training data (D1 of the paper is 0).
SplitId = NewType("SplitId", int)
#: A worker's or a server's name.
MemberId = str


class Role(StrEnum):
    """What a process of a job is."""

    WORKER = "worker"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a member's data plane listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def member_number(name: MemberId) -> int:
    """Return the number in a member's name (``worker-12`` -> 12).

    Raises
    ------
    ValueError
        ``name`` is not ``<role>-<number>``.
    """
    role, _, number = name.rpartition("-")
    if role not in (Role.WORKER, Role.SERVER) or not number.isdecimal():
        raise ValueError(f"{name!r} is not a member's name: expected worker-<n> or server-<n>")
    return int(number)


def member_name(role: Role, number: int) -> MemberId:
    """Return the name of the ``number``-th member of ``role``, counted from 1."""
    return f"{role.value}-{number}"
