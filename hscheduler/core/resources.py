"""Amounts of processors and memory, and the containers that hold them.  Imports nothing of ours.

Source: EPS §6 (a worker or server has one vCPU and 4 GB).  A job master takes a container, too.  Only then is the
threshold 11: 36 nodes of 4 vCPU hold 144 / (8 + 4 + 1) = 11 jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Role of the process in a container."""

    MASTER = "master"
    WORKER = "worker"
    SERVER = "server"


@dataclass(frozen=True, slots=True, order=True)
class Resources:
    """Processors and memory (MiB) of a node or a container."""

    vcores: int
    memory_mb: int

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.vcores + other.vcores, self.memory_mb + other.memory_mb)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.vcores - other.vcores, self.memory_mb - other.memory_mb)

    def fits_into(self, room: Resources) -> bool:
        """Return whether ``room`` has at least these amounts."""
        return self.vcores <= room.vcores and self.memory_mb <= room.memory_mb

    def at_most(self, memory_mb: int) -> Resources:
        """Return the same resources with the memory capped at ``memory_mb`` (MiB)."""
        return Resources(self.vcores, min(memory_mb, self.memory_mb))

    def __str__(self) -> str:
        return f"{self.vcores} vcore{'' if self.vcores == 1 else 's'} and {self.memory_mb} MiB"


#: Nothing.
NOTHING = Resources(0, 0)


@dataclass(frozen=True, slots=True)
class Container:
    """A container on a node, promised or granted to a job."""

    container_id: str
    job_id: str
    role: Role
    resources: Resources
    node: str
