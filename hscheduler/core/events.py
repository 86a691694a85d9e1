"""Events that H-scheduler reacts to, and commands that it issues.

Events are past tense, commands imperative (style 11).

Source: design section 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from hscheduler.core.decisions import Action
from hscheduler.core.jobs import Direction, JobRequest, Phase
from hscheduler.core.resources import Container, Resources
from hscheduler.core.rungs import DEFAULT, Stopping

# ---- events


@dataclass(frozen=True, slots=True)
class SweepOpened:
    """A sweep opened; the event says how its jobs are ranked."""

    sweep: str
    direction: Direction = Direction.MINIMIZE
    #: Most jobs in the training phase; None: as many as fit the cluster at their requested size.
    threshold: int | None = None
    #: ``loss``, or a metric of the test data; empty: the scheduler's metric.
    metric: str = ""
    #: 0: the scheduler's setting.
    feedback_iteration: int = 0
    #: Its rule may be empty: then that of the scheduler or of its policy applies.
    stopping: Stopping = DEFAULT
    #: Number of its trials; 0: unknown.  A sweep may be opened again when the number is known.
    trials: int = 0
    #: What its next trial will request, at least.  The scheduler then says when that trial can start
    #: (:class:`TrialWanted`).  None: trials arrive by themselves.
    coming: JobRequest | None = None
    #: Most trials that are queued or run at once, for a sweep with ``coming``; 0 sets no limit.
    parallelism: int = 0
    #: Whether to end a trial whose loss grows by orders of magnitude.
    stop_diverged: bool = True


@dataclass(frozen=True, slots=True)
class SweepClosed:
    """The user closed a sweep: it gets no more jobs."""

    sweep: str
    why: str


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job has arrived."""

    request: JobRequest

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self.request.job_id

    @property
    def sweep(self) -> str:
        """Sweep of the job."""
        return self.request.sweep


@dataclass(frozen=True, slots=True)
class JobRefused:
    """A job was rejected on arrival, because it cannot run."""

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
    #: Number of completed iterations.
    iteration: int
    #: Seconds of each iteration since the last event, except those during a change of the job's size.
    durations_s: tuple[float, ...] = ()
    #: Some of its losses since the last event: (seconds before this event, completed iterations, loss).
    losses: tuple[tuple[float, int, float], ...] = ()
    #: The same of the sweep's metric, if that is measured on other data than the loss.
    values: tuple[tuple[float, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FeedbackGiven:
    """A job has reached the feedback iteration."""

    job_id: str
    #: Value of the metric; may be NaN.
    value: float


@dataclass(frozen=True, slots=True)
class RungReached:
    """A job has reached an iteration at which the stopping rule judges it."""

    job_id: str
    #: The iteration of the rung.
    iteration: int
    #: Value of the metric there; may be NaN.
    value: float


@dataclass(frozen=True, slots=True)
class LossDiverged:
    """The training loss of a job has grown by orders of magnitude (:mod:`hscheduler.stopping.divergence`)."""

    job_id: str
    #: From which value to which, as a sentence.
    why: str


@dataclass(frozen=True, slots=True)
class GrowthDone:
    """The members that were added last have joined the job.

    The members are part of this event.  A crash could lose a separate event; the next scheduler would then repeat the
    growth.
    """

    job_id: str
    #: As in :class:`MembersFound`; empty when unknown.
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class GrowthFailed:
    """A growth was aborted; these containers are gone."""

    job_id: str
    containers: tuple[str, ...]
    why: str
    #: As in :class:`GrowthDone`; some of the new members may have joined.
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ContainersGone:
    """Containers of a job are gone: released on order, or lost."""

    job_id: str
    containers: tuple[str, ...]
    #: Why the cluster took them, as a sentence; empty: the job released them on order.
    why: str = ""


@dataclass(frozen=True, slots=True)
class ShrinkFailed:
    """A job could not release these containers and keeps them."""

    job_id: str
    containers: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class MembersFound:
    """The job reported which member runs in which container."""

    job_id: str
    #: (container, member) of all members.
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job has ended, with all of its processes."""

    job_id: str
    #: ``FINISHED``, ``KILLED`` or ``FAILED``; a job that restarts first ends with ``KILLED``.
    phase: Phase
    why: str = ""
    #: Early feedback of a job that finished before the feedback iteration.
    feedback: float | None = None
    #: Final value of the sweep's metric, if the job finished.
    loss: float | None = None
    #: Seconds for which changes of its size paused it, without restarts; None: unknown, or told before.
    pause_s: float | None = None
    #: It ended because its loss or a gradient was not finite.
    has_diverged: bool = False


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A user cancelled a job."""

    job_id: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeCame:
    """A node joined the cluster, or changed its size."""

    node: str
    capacity: Resources


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, with all containers on it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A cluster that places containers itself lost a node; the jobs report which containers are gone."""

    #: A slot of the ledger, not a machine; all slots have the same size.
    node: str
    #: Which machine left, and why, as a sentence.
    why: str


#: Events of one submitted job.
JobEvent = (
    JobStarted
    | Iterated
    | FeedbackGiven
    | RungReached
    | LossDiverged
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
    """Start a job in these granted containers."""

    job_id: str
    containers: tuple[Container, ...]
    #: Whether it resumes from its checkpoint.
    resumes: bool


@dataclass(frozen=True, slots=True)
class GrowJob:
    """Add workers and servers to a job in these granted containers."""

    job_id: str
    containers: tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class ShrinkJob:
    """Remove the workers and servers in these containers, after any change of the job in progress."""

    job_id: str
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndJob:
    """End a job."""

    job_id: str
    #: Whether it restarts from its latest checkpoint.
    restarts: bool
    why: str
    #: It pauses: it ends once it has a checkpoint of this iteration or a later one; 0: at once.
    after: int = 0


@dataclass(frozen=True, slots=True)
class JobOver:
    """Report that a job has ended and will not restart."""

    job_id: str
    phase: Phase
    why: str


@dataclass(frozen=True, slots=True)
class TrialWanted:
    """Draw the next trial of a sweep and submit it: it could start now."""

    sweep: str


@dataclass(frozen=True, slots=True)
class Explain:
    """Record a decision with its explanation."""

    sentence: str
    jobs: tuple[str, ...]
    actions: tuple[Action, ...] = ()


#: Commands that one job carries out.
Order = StartJob | GrowJob | ShrinkJob | EndJob
Command = Order | JobOver | TrialWanted | Explain
