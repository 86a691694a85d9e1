"""What happens to H-scheduler, and what it wants done.  Events are past tense, commands imperative (style 11).

Source: design section 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from hscheduler.core.decisions import Action
from hscheduler.core.jobs import Direction, JobRequest, Phase
from hscheduler.core.resources import Container, Resources

# ---- events


@dataclass(frozen=True, slots=True)
class SweepOpened:
    """A sweep says how its jobs are ranked."""

    sweep: str
    direction: Direction = Direction.MINIMIZE
    #: Jobs in the training phase; None: as many as fit the cluster as they ask.
    threshold: int | None = None
    #: ``loss``, or a metric of the test data; empty: that of the scheduler.
    metric: str = ""
    #: 0: that of the scheduler.
    feedback_iteration: int = 0


@dataclass(frozen=True, slots=True)
class SweepClosed:
    """No more jobs of a sweep will come: its user wants it to end."""

    sweep: str
    why: str


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job has arrived."""

    request: JobRequest

    @property
    def job_id(self) -> str:
        """Its name."""
        return self.request.job_id

    @property
    def sweep(self) -> str:
        """Whose it is."""
        return self.request.sweep


@dataclass(frozen=True, slots=True)
class JobRefused:
    """A job has arrived that cannot work: it is over at once."""

    job_id: str
    sweep: str
    why: str


@dataclass(frozen=True, slots=True)
class JobStarted:
    """All processes of a job are up."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Iterated:
    """A job has completed iterations."""

    job_id: str
    #: Iterations complete.
    iteration: int
    #: Seconds of each iteration since the last event; those during which the job changed its size left out.
    durations_s: tuple[float, ...] = ()
    #: Some of its losses since the last event: seconds before it, iterations complete, loss.
    losses: tuple[tuple[float, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FeedbackGiven:
    """A job has reached the feedback iteration."""

    job_id: str
    #: Its metric; may be NaN.
    value: float


@dataclass(frozen=True, slots=True)
class GrowthDone:
    """Everything that was added to a job last takes part in it.

    Who is where is said with it, not by itself: were the machine lost between the two, a job that goes on with all of
    its members would be told to grow once more.
    """

    job_id: str
    #: As :class:`MembersFound` has them; none where that is not known.
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class GrowthFailed:
    """An addition was given up; these containers are gone."""

    job_id: str
    containers: tuple[str, ...]
    why: str
    #: As of :class:`GrowthDone`: some may have come.
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ContainersGone:
    """Containers of a job are gone: released as it was told to, or lost."""

    job_id: str
    containers: tuple[str, ...]
    #: Why the cluster has taken them, as a sentence; empty: the job was told to release them.
    why: str = ""


@dataclass(frozen=True, slots=True)
class ShrinkFailed:
    """A job keeps containers that it was told to release."""

    job_id: str
    containers: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class MembersFound:
    """It is known which of a job's members are in which of its containers."""

    job_id: str
    #: Container and member, all that there are.
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job has ended, with all of its processes."""

    job_id: str
    #: ``FINISHED``, ``KILLED`` or ``FAILED``; of a job that restarts ``KILLED`` is the end of its first part.
    phase: Phase
    why: str = ""
    #: Of a job that finished before the feedback iteration.
    feedback: float | None = None
    #: What it ended with, by its sweep's metric, where it finished.
    loss: float | None = None
    #: Seconds for which changes of its size stopped it, restarts included.
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A user wants a job to end."""

    job_id: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeCame:
    """A node is there, or has another size."""

    node: str
    capacity: Resources


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, with what ran on it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A cluster that places containers itself has one node less; which containers go with it, their jobs say."""

    #: A place in the ledger, not a machine: all of these are alike.
    node: str
    #: Which machine it was, and what became of it, as a sentence.
    why: str


#: Events of one job that was submitted.
JobEvent = (
    JobStarted
    | Iterated
    | FeedbackGiven
    | GrowthDone
    | GrowthFailed
    | ContainersGone
    | ShrinkFailed
    | MembersFound
    | JobEnded
    | CancelAsked
)
#: Events of the cluster's nodes.
NodeEvent = NodeCame | NodeLost | NodeLeft
Event = SweepOpened | SweepClosed | JobSubmitted | JobRefused | NodeEvent | JobEvent

# ---- commands


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start a job in these containers, which it has been granted."""

    job_id: str
    containers: tuple[Container, ...]
    #: Whether it goes on from its checkpoint.
    resumes: bool


@dataclass(frozen=True, slots=True)
class GrowJob:
    """Add workers and servers to a job, in these containers, which it has been granted."""

    job_id: str
    containers: tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class ShrinkJob:
    """Remove the workers and servers in these containers, after whatever change of the job is on its way."""

    job_id: str
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndJob:
    """End a job."""

    job_id: str
    #: Whether it starts again, from its latest checkpoint.
    restarts: bool
    why: str


@dataclass(frozen=True, slots=True)
class JobOver:
    """Say that a job is over, for good."""

    job_id: str
    phase: Phase
    why: str


@dataclass(frozen=True, slots=True)
class Explain:
    """Write a decision down."""

    number: int
    sentence: str
    jobs: tuple[str, ...]
    actions: tuple[Action, ...] = ()


#: What the shell of a job obeys.
Order = StartJob | GrowJob | ShrinkJob | EndJob
Command = StartJob | GrowJob | ShrinkJob | EndJob | JobOver | Explain
