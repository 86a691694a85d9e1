"""The interface of policies: the view that a policy gets, and the plan that it returns with an explanation.

A policy is a pure function ``decide(view) -> Decision``.  The scheduler calls it until it returns an empty plan; the
view includes the effects of its earlier plans.  Live and in the simulator the call is the same.

Source: design section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from hscheduler.core.jobs import Direction, Job
from hscheduler.core.placement import FreeSpace
from hscheduler.core.resources import Container, Role
from hscheduler.core.speed import Curve


@dataclass(frozen=True, slots=True)
class Place:
    """A node for one container of a job, with its role."""

    role: Role
    node: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start a queued job in containers on these nodes."""

    job_id: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Grow:
    """Add workers and servers to a running job."""

    job_id: str
    places: tuple[Place, ...]
    #: They replace containers that the cluster took: the effect on the job's speed is not measured.
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take these containers, by id, from a running job."""

    job_id: str
    containers: tuple[str, ...]
    #: It undoes a growth that made the job slower; the job does not grow again from the remaining size.
    undoes_growth: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """End a job; it does not restart."""

    job_id: str
    #: Why, as a sentence; empty: the decision's.
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop a job at the rung that it has reached: it releases its containers, and may be promoted later."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Promote:
    """Queue a paused job again; it resumes from its rung."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Release all containers of a job, and restart it from its checkpoint with another size."""

    job_id: str
    workers: int
    servers: int
    #: As in :class:`Shrink`.
    undoes_growth: bool = False


Action = Start | Grow | Shrink | Kill | Restart | Pause | Promote


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan.

    Attributes
    ----------
    actions : tuple of Action
        Carried out together; empty when there is nothing to do.
    sentence : str
        Explains the plan to the user; empty when there is nothing to do.
    waiting : mapping
        Job -> why it stays in the queue.
    """

    actions: tuple[Action, ...] = ()
    sentence: str = ""
    waiting: Mapping[str, str] = field(default_factory=dict)


class AdmissionView(Protocol):
    """View for the admission of a queued job: free resources, and containers that running jobs can give up."""

    @property
    def queue(self) -> Sequence[Job]:
        """Queued jobs, the head first."""

    def room(self) -> FreeSpace:
        """Return the free space, for trial placements that do not change the ledger."""

    def containers(self, job: Job, role: Role) -> list[Container]:
        """Return a job's containers except those being released, the newest first."""

    def removable(self, role: Role) -> Iterator[Job]:
        """Yield jobs in the training phase with at least two members of a role, those with most members first."""

    def running(self) -> Sequence[Job]:
        """Return the running jobs, by arrival."""


class View(AdmissionView, Protocol):
    """The cluster and its jobs, read-only, for a policy."""

    @property
    def releasing(self) -> int:
        """Number of containers that are being released."""

    @property
    def number_of_decision(self) -> int:
        """Number of earlier plans; randomised policies derive their random numbers from it."""

    @property
    def seed(self) -> int:
        """Seed of randomised policies."""

    def growable(self, role: Role) -> Iterator[Job]:
        """Yield jobs in the training phase that may get one more member of a role, those with fewest first."""

    def in_training(self, sweep: str) -> Sequence[Job]:
        """Return a sweep's jobs in the training phase, by arrival."""

    def sweeps(self) -> Sequence[str]:
        """Return the sweeps with jobs in the training phase."""

    def milestone(self, job: Job) -> int:
        """Return the iteration at which the stopping rule judges a job next, or its last one; 0: unknown."""

    def pauses(self, sweep: str) -> bool:
        """Return whether the stopping rule of a sweep pauses jobs, which give up their containers at their rungs."""

    def direction(self, sweep: str) -> Direction:
        """Return whether lower or higher early feedback is better in a sweep."""

    def slowed(self) -> Sequence[Job]:
        """Return the jobs that became slower when they grew."""

    def totals(self) -> tuple[int, int]:
        """Return the number of workers and servers in the cluster."""

    def is_settled(self, job: Job) -> bool:
        """Return whether a job runs and no change of its size is in progress."""

    def curve(self, job: Job) -> Curve:
        """Return the seconds of a job's iteration by its number of containers, as far as measured."""

    def explored(self, sweep: str) -> int:
        """Return the largest number of containers in which a job of a sweep was measured; 0 if there is none."""

    def change_s(self) -> float:
        """Return the seconds until a growth takes effect, as measured."""

    def awaits(self, sweep: str) -> bool:
        """Return whether more jobs of a sweep are to arrive, as far as that is known."""


class Policy(Protocol):
    """A rule for sharing a cluster among jobs."""

    def __call__(self, view: View) -> Decision:
        """Return the next plan; an empty one ends the round."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Optional features that a policy needs from its scheduler."""

    #: It reads the current iteration count of jobs.  Without it the scheduler learns only of the first iteration, the
    #: feedback iteration, and those after which the speed of a job is known.
    progress: bool = False
    #: It restarts jobs from their checkpoints.
    checkpoints: bool = False
    #: It shrinks jobs in the training phase for queued jobs.  While jobs are queued, containers that the cluster took
    #: from such jobs are not replaced.
    takes: bool = False
    #: The stopping rule of sweeps that name none.
    stop: str = "none"
    #: Jobs begin in one container that hosts a worker and a server, whatever size they ask for.
    hosts: bool = False


_P = TypeVar("_P", bound=Policy)


def needing(
    *,
    progress: bool = False,
    checkpoints: bool = False,
    takes: bool = False,
    stop: str = "none",
    hosts: bool = False,
) -> Callable[[_P], _P]:
    """Declare what a policy needs, as a decorator; a policy without it needs nothing."""

    def declared(policy: _P) -> _P:
        vars(policy)["needs"] = Needs(progress, checkpoints, takes, stop, hosts)
        return policy

    return declared


def needs_of(policy: Policy) -> Needs:
    """Return the needs that a policy declared."""
    needs: Needs = getattr(policy, "needs", Needs())
    return needs
