"""The interface between the job master and any resource backend.

The life of a request, the same for every backend::

    request -> Allocated -> Running -> Exited        it ran
    request -> [Allocated ->] Exited                 it was withdrawn, refused, or could not be launched
    EvictionWarning                                  any number of times between Allocated and Exited

Every request ends in exactly one :class:`Exited`, and no event about a container follows it.

Source: AgileML/Proteus §3.3 (evictions are announced).  The shape of the interface follows YARN's allocate heartbeat:
``poll`` returns the events since the last call, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from eps.errors import ConfigError


@dataclass(frozen=True)
class ContainerRequest:
    """A request of a job for one container."""

    #: Chosen by the job master; never reused within a job.
    container_id: str
    #: ``worker``, ``server``, or ``server+worker``: both in one process.
    role: str
    memory_mb: int = 1024
    vcores: int = 1
    #: Set in the process's environment.
    env: Mapping[str, str] = field(default_factory=dict)
    #: ``reliable`` or ``transient``; empty if the job has no tiers.
    tier: str = ""

    def __post_init__(self) -> None:
        for name, value in (("memory_mb", self.memory_mb), ("vcores", self.vcores)):
            if value < 1:
                raise ConfigError(f"{self.container_id}: {name} is {value}, but must be at least 1")

    @property
    def kind(self) -> str:
        """What decides where the container goes: its tier if the job has tiers, else its role."""
        return self.tier or self.role


@dataclass(frozen=True, slots=True)
class Allocated:
    """The resource manager granted the container; its process has not started yet."""

    container_id: str


@dataclass(frozen=True, slots=True)
class Running:
    """The container's process was started."""

    container_id: str
    #: Process id on ``host``.  A backend that does not know it gives a positive number, unique per container.
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The container has ended."""

    container_id: str
    #: Exit code of its process; None if a signal ended it or it never started.
    code: int | None
    #: How it ended, to follow the container's name: ``exited with code 1``, ``was withdrawn``.
    reason: str
    #: The cluster preempted or lost the container: not the fault of its process.
    taken: bool = False


@dataclass(frozen=True, slots=True)
class EvictionWarning:
    """The container will be taken away."""

    container_id: str
    #: Seconds from now.
    deadline_s: float
    #: Why, to follow the container's name; empty if unknown: ``is preempted``.
    reason: str = ""
    #: Its resources go to another job.
    for_others: bool = False


ContainerEvent = Allocated | Running | Exited | EvictionWarning

#: Progress in the heartbeat of a master that does not know its job's progress yet.
NO_NEWS = -1

#: Reason in the ``Exited`` of a request that was withdrawn before it was granted.
WITHDRAWN = "was withdrawn"


class ResourceManager(Protocol):
    """A source of containers.

    One thread may wait and poll while another requests and releases.
    """

    def adopt(self, known: Mapping[str, int]) -> Mapping[str, int]:
        """Take over the containers of the previous job master; call it once, before anything else.

        They are released, warned about and reported as exited like others; no ``Allocated`` or ``Running`` comes for
        them.

        Parameters
        ----------
        known : mapping
            Containers that ran according to the job's log -> pid.  Backends that can list their containers ignore it.

        Returns
        -------
        mapping
            Running containers -> pid.
        """

    def request(self, request: ContainerRequest) -> None:
        """Request a container; it may be granted at once, later, or never.

        Raises
        ------
        ResourceError
            The container id was used before, or the manager is closed.
        """

    def withdraw(self, container_id: str) -> bool:
        """Withdraw a request that is not granted yet; return whether it was withdrawn.

        Has no effect on a granted, ended or unknown container.
        """

    def release(self, container_id: str) -> None:
        """Release a container: end its process, or withdraw the request.

        No effect on a container that has ended or is unknown: a release and an exit may cross.
        """

    def kill(self, container_id: str) -> None:
        """Send SIGKILL to a container's process; no effect if it is not running."""

    def poll(self) -> list[ContainerEvent]:
        """Return the events since the last call, in order; never blocks.

        Raises
        ------
        ResourceError
            The resource manager is gone for good.
        """

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until :meth:`poll` has events; return False at the timeout."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while :meth:`poll` has events."""

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        """Send a heartbeat of the job master to the process that restarts it after a crash.

        Parameters
        ----------
        changes : int
            Changes whenever the job makes progress; the value itself has no meaning.  :data:`NO_NEWS` or less: not
            known yet.
        patience_s : float, seconds
            How long the next heartbeat may take, if longer than usual.
        clock : int
            Completed clocks of the job, for backends that show progress.
        """

    def room(self) -> Mapping[str, int]:
        """Return how many more containers of each role fit into capacity that no other job requests.

        Role -> containers, assuming that only this role is requested.  A missing role has none, also if nothing is
        known.
        """

    def silent_s(self) -> float:
        """Return for how many seconds the resource manager has not responded; 0.0 while it responds."""

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Report the end of the job and end all its containers; the last act of the job master.

        Parameters
        ----------
        exit_code : int
            0 to 255.
        state : str
            ``finished``, ``failed`` or ``killed``.
        reason : str
            Why the job ended, as a sentence.
        """

    def close(self) -> None:
        """Disconnect from the resource manager; containers keep running.  Idempotent."""
