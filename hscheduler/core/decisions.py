"""What a policy sees, and what it answers: a plan and the sentence that explains it.

A policy is ``decide(view) -> Decision``: pure, asked again after each of its plans until it answers with an empty one.
What it sees already counts what it decided before.  The same call is made live and in the simulator.

Source: design section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from hscheduler.core.jobs import Direction, Job
from hscheduler.core.resources import Container, Role
from hscheduler.core.room import Room


@dataclass(frozen=True, slots=True)
class Place:
    """A container for a role of a job, on a node."""

    role: Role
    node: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start a queued job, with these containers."""

    job_id: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Grow:
    """Add workers and servers to a running job."""

    job_id: str
    places: tuple[Place, ...]
    #: They are in the place of others, which the cluster took: it is not judged by what they bring.
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take these containers, by id, from a running job."""

    job_id: str
    containers: tuple[str, ...]
    #: A growth that made it slower is undone: it is not tried again from the size that is left.
    undoes_growth: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """End a job for good."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Restart:
    """End a job, and start it again with another size from its checkpoint: all of its containers are given back."""

    job_id: str
    workers: int
    servers: int
    #: As in :class:`Shrink`.
    undoes_growth: bool = False


Action = Start | Grow | Shrink | Kill | Restart


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan.

    Attributes
    ----------
    actions : tuple of Action
        Done together; empty where there is nothing to do.
    sentence : str
        Why, for whoever asks; empty where there is nothing to do.
    waiting : mapping
        Job -> why it stays in the queue.
    """

    actions: tuple[Action, ...] = ()
    sentence: str = ""
    waiting: Mapping[str, str] = field(default_factory=dict)


class AdmissionView(Protocol):
    """What must be seen to admit a job that waits: what is free, and what others can give."""

    @property
    def queue(self) -> Sequence[Job]:
        """Jobs that wait, the head first."""

    def room(self) -> Room:
        """Return a trial of placements."""

    def containers(self, job: Job, role: Role) -> list[Container]:
        """Return a job's containers that it is not losing, the newest first."""

    def removable(self, role: Role) -> Iterator[Job]:
        """Yield running jobs with early feedback and more than one of a role, those with most of it first."""

    def running(self) -> Sequence[Job]:
        """Return the jobs that run, by arrival."""


class View(AdmissionView, Protocol):
    """The cluster and its jobs, as a policy may see them."""

    @property
    def releasing(self) -> int:
        """How many containers are on their way out."""

    @property
    def number_of_decision(self) -> int:
        """How many plans there were before: what a policy that draws lots counts them by."""

    @property
    def seed(self) -> int:
        """Seed of the policies that draw lots."""

    def growable(self, role: Role) -> Iterator[Job]:
        """Yield jobs in the training phase that may have one more of a role, those with least of it first."""

    def in_training(self, sweep: str) -> Sequence[Job]:
        """Return a sweep's jobs in the training phase, by arrival."""

    def finished(self, sweep: str) -> Sequence[tuple[int, float]]:
        """Return arrival number and early feedback of a sweep's jobs that have finished, in the order of their ends."""

    def sweeps(self) -> Sequence[str]:
        """Return the sweeps that have jobs in the training phase."""

    def crowded(self) -> Sequence[tuple[str, int]]:
        """Return the sweeps with more jobs in the training phase than their threshold, and how many they have."""

    def worst_in_training(self, sweep: str) -> Job:
        """Return the job with the worst early feedback of a sweep that has jobs in the training phase."""

    def threshold(self, sweep: str) -> int:
        """Return how many jobs of a sweep may be in the training phase."""

    def direction(self, sweep: str) -> Direction:
        """Return which early feedback of a sweep is better."""

    def slowed(self) -> Sequence[Job]:
        """Return the jobs that a growth made slower."""

    def totals(self) -> tuple[int, int]:
        """Return the number of workers and of servers in the cluster."""


class Policy(Protocol):
    """A way to share a cluster."""

    def __call__(self, view: View) -> Decision:
        """Return what is to be done now."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a policy needs of whoever drives it, beyond what all do."""

    #: It decides by how many iterations of jobs are complete at that moment, not only at what it is told anyway: the
    #: first one, the feedback iteration, and those after which the speed of a job is known.
    progress: bool = False
    #: It has jobs started again, which go on from their checkpoints.
    checkpoints: bool = False
    #: It takes from jobs in the training phase what those that wait need: while anybody waits, such jobs are not given
    #: back what the cluster took from them.
    takes: bool = False


_P = TypeVar("_P", bound=Policy)


def needing(*, progress: bool = False, checkpoints: bool = False, takes: bool = False) -> Callable[[_P], _P]:
    """Declare what a policy needs, as a decorator; without it a policy needs nothing."""

    def declared(policy: _P) -> _P:
        vars(policy)["needs"] = Needs(progress, checkpoints, takes)
        return policy

    return declared


def needs_of(policy: Policy) -> Needs:
    """Return what a policy has declared that it needs."""
    needs: Needs = getattr(policy, "needs", Needs())
    return needs
