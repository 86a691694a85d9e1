"""What the job master asks of any resource backend.

The life of a request, the same for every backend::

    request -> Allocated -> Running -> Exited        it ran
    request -> [Allocated ->] Exited                 it was withdrawn, refused, or could not be launched
    EvictionWarning                                  any number of times between Allocated and Exited

Every request ends in exactly one :class:`Exited`, and no event about a container follows it.

Source: AgileML/Proteus §3.3 (evictions are announced); the shape of the interface follows YARN's allocate heartbeat:
``poll`` returns what has happened since, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from eps.errors import ConfigError


@dataclass(frozen=True)
class ContainerRequest:
    """One container that a job wants."""

    #: Chosen by the job master; never used again within a job.
    container_id: str
    #: ``worker`` or ``server``.
    role: str
    memory_mb: int = 1024
    vcores: int = 1
    #: Set in the process's environment.
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("memory_mb", self.memory_mb), ("vcores", self.vcores)):
            if value < 1:
                raise ConfigError(f"{self.container_id}: {name} is {value}, but must be at least 1")


@dataclass(frozen=True, slots=True)
class Allocated:
    """The resource manager granted the container; its process is not up yet."""

    container_id: str


@dataclass(frozen=True, slots=True)
class Running:
    """The container's process was started."""

    container_id: str
    #: Of its process on ``host``; a backend that is not told gives a number of the container's own, above 0.
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The container is gone."""

    container_id: str
    #: Exit code of its process; None where a signal ended it or there never was one.
    code: int | None
    #: How it ended, as words after the container's name: ``exited with code 1``, ``was withdrawn``.
    reason: str
    #: The cluster took or lost it: its process has done nothing to end.
    taken: bool = False


@dataclass(frozen=True, slots=True)
class EvictionWarning:
    """The container will be taken away."""

    container_id: str
    #: Seconds from now.
    deadline_s: float
    #: As words after the container's name, where it is known: ``is preempted``.
    reason: str = ""
    #: Another job is to get its resources.
    for_others: bool = False


ContainerEvent = Allocated | Running | Exited | EvictionWarning

#: What a job master beats that does not know yet how far its job is.
NO_NEWS = -1

#: Reason of the ``Exited`` of a request that was taken back before it was granted.
WITHDRAWN = "was withdrawn"


class ResourceManager(Protocol):
    """A source of containers.

    One thread may wait and poll while another requests and releases.
    """

    def adopt(self, known: Mapping[str, int]) -> Mapping[str, int]:
        """Take over the containers that the job master before has launched; to be called once, before all else.

        They are released, warned of and exit like others; there is no other event about them.

        Parameters
        ----------
        known : mapping
            Containers that the job has seen running -> pid, as its log has them; a backend that finds its containers by
            other means ignores it.

        Returns
        -------
        mapping
            Those that run -> pid.
        """

    def request(self, request: ContainerRequest) -> None:
        """Ask for a container; it may be granted at once, later, or never.

        Raises
        ------
        ResourceError
            The container id has been used before, or the manager is closed.
        """

    def withdraw(self, container_id: str) -> bool:
        """Take a request back that has not been granted; return whether that was so.

        A granted, ended or unknown container is left as it is.
        """

    def release(self, container_id: str) -> None:
        """Give a container back: end its process, or withdraw the request.

        Harmless for one that has ended or is unknown: a release and an exit may cross.
        """

    def kill(self, container_id: str) -> None:
        """End a container's process at once, with SIGKILL; harmless for one that is not running."""

    def poll(self) -> list[ContainerEvent]:
        """Return what has happened since the last call, in order; never blocks.

        Raises
        ------
        ResourceError
            The resource manager is gone for good.
        """

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until :meth:`poll` has something to say; return False at the timeout."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while :meth:`poll` has something to say."""

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        """Send a heartbeat of the job master to what restarts it after a crash.

        Parameters
        ----------
        changes : int
            A number that changes as the job gets further, and says nothing else; :data:`NO_NEWS`, or below, where that
            is not known yet.
        patience_s : float, seconds
            The next beat may take this long, where that is more than usual.
        clock : int
            Clocks that the job has completed; a backend that shows how far a job is takes it.
        """

    def room(self) -> Mapping[str, int]:
        """Return how many containers of a role fit into the resources that no other job seems to want.

        Role -> containers, if no other were asked for; a role that is not in it has none, as where nothing is known.
        """

    def silent_s(self) -> float:
        """Return for how long the resource manager has not listened, in seconds; 0.0 where it does."""

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Say that the job has ended, as the master's last act: every container that is left is ended.

        Parameters
        ----------
        exit_code : int
            0 to 255.
        state : str
            ``finished``, ``failed`` or ``killed``.
        reason : str
            A sentence that says why the job ended.
        """

    def close(self) -> None:
        """Disconnect from the resource manager; harmless when repeated.  Containers are left as they are."""
