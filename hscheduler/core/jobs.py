"""The scheduler's record of a job: its request, phase, size and early feedback.

Source: EPS §2.1 (early feedback phase and training phase), §6 (one metric; the worst is killed past the threshold).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hscheduler.core.resources import NOTHING, Resources, Role


class Phase(StrEnum):
    """Phase of a job."""

    #: It waits in the queue.
    QUEUED = "queued"
    #: Its containers are promised.  Other jobs may still be releasing some, or its processes are starting.
    STARTING = "starting"
    #: It runs and has not reached the feedback iteration.
    EARLY_FEEDBACK = "early feedback"
    #: It runs past the feedback iteration.
    TRAINING = "training"
    #: It stops, to restart from its latest checkpoint with another size (only under the ``kill`` policy).
    RESTARTING = "restarting"
    #: It stops at a rung; its containers are not free yet.
    PAUSING = "pausing"
    #: It waits at a rung, without containers.
    PAUSED = "paused"
    #: It was ordered to end and will not restart.
    ENDING = "ending"
    FINISHED = "finished"
    KILLED = "killed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True for FINISHED, KILLED and FAILED."""
        return self in (Phase.FINISHED, Phase.KILLED, Phase.FAILED)

    @property
    def runs(self) -> bool:
        """True while it computes."""
        return self in (Phase.EARLY_FEEDBACK, Phase.TRAINING)


def reason_of(job_id: str, why: str) -> str:
    """Return why a job ended without its name, with which the explanation of a Kill begins."""
    return why.removeprefix(f"{job_id} is killed: ")


def end_text(job_id: str, phase: Phase, why: str) -> str:
    """Return a sentence that says how a job ended and why; ``phase`` is FINISHED, KILLED or FAILED."""
    if phase is Phase.FINISHED:
        return f"{job_id} finished"
    reason = reason_of(job_id, why)
    return f"{job_id} {'was killed' if phase is Phase.KILLED else phase}" + (f": {reason}" if reason else "")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The resources that a user requests for a job.

    Raises
    ------
    ValueError
        A count is below 1, or a maximum is below its count.
    """

    job_id: str
    #: Jobs are ranked within their sweep.
    sweep: str
    workers: int
    #: 0: each of its ``workers`` containers hosts a worker and a server.
    servers: int
    worker: Resources
    server: Resources
    #: :data:`NOTHING`: its master needs no container.
    master: Resources
    #: Limits of growth: its numbers of splits and of partitions.
    most_workers: int
    most_servers: int
    #: Total iterations; 0: unknown.
    iterations: int = 0
    #: Seconds of a restart, from the order to end to the next iteration.
    restart_s: float = 0.0
    #: The failed attempt at the same trial that it replaces; empty for a trial's first job.
    retry_of: str = ""

    def __post_init__(self) -> None:
        for name, count, least, most in (
            ("workers", self.workers, 1, self.most_workers),
            ("servers", self.servers, min(1, self.most_servers), self.most_servers),
        ):
            if count < least:
                raise ValueError(f"{self.job_id}: {name} is {count}, but must be at least {least}")
            if most < count:
                raise ValueError(f"{self.job_id}: it asks for {count} {name} and may have {most}")

    @property
    def hosts(self) -> bool:
        """Whether each of its containers hosts a worker and a server; their role is WORKER."""
        return not self.servers

    @property
    def least(self) -> int:
        """The fewest containers of workers and servers with which it can run."""
        return 1 if self.hosts else 2

    def count(self, role: Role) -> int:
        """Return how many containers of a role it requests."""
        masters = int(self.master != NOTHING)
        return {Role.MASTER: masters, Role.WORKER: self.workers, Role.SERVER: self.servers}[role]

    def most(self, role: Role) -> int:
        """Return how many containers of a role it may have."""
        most = {Role.WORKER: self.most_workers, Role.SERVER: self.most_servers}
        return most.get(role, self.count(role))

    def resources(self, role: Role) -> Resources:
        """Return what a container of a role needs."""
        return {Role.MASTER: self.master, Role.WORKER: self.worker, Role.SERVER: self.server}[role]

    def needs(self) -> list[tuple[Resources, int]]:
        """Return (resources, number) of its containers by role, the master first."""
        return [(self.resources(role), self.count(role)) for role in Role]


class Direction(StrEnum):
    """Direction in which early feedback is better: lower or higher."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


#: How ties are broken, as the end of a sentence.
EARLIER = " (of equal ones, the trial that arrived earlier is better)"


def worst(feedback: Sequence[tuple[float, int]], direction: Direction) -> int:
    """Return the arrival number of the job with the worst early feedback.

    NaN is the worst value; among equal values the newest job is the worst.

    Parameters
    ----------
    feedback : sequence of (float, int)
        Early feedback and arrival number of each job; at least one.
    direction : Direction

    Source: EPS §6 ("the one with the worst early feedback is killed").  The paper does not define ties and NaN.
    """

    return max(feedback, key=lambda entry: (badness(entry[0], direction), entry[1]))[1]


def best(results: Sequence[float | None], direction: Direction) -> int | None:
    """Return the index of the best result, the first of equal ones; None if no result is a finite number."""
    sign = 1.0 if direction is Direction.MINIMIZE else -1.0
    known = [(sign * value, k) for k, value in enumerate(results) if value is not None and math.isfinite(value)]
    return min(known)[1] if known else None


#: Sort key of early feedback: the worst is the highest.
Badness = tuple[int, float]


def badness(value: float, direction: Direction) -> Badness:
    """Return the sort key of an early feedback; NaN is the worst."""
    if math.isnan(value):
        return 1, 0.0
    return 0, value if direction is Direction.MINIMIZE else -value


#: Iterations before and after a growth whose medians are compared.
WATCHED_ITERATIONS = 10
#: A growth is undone when it makes iterations longer by more than this fraction.
SLOWER = 0.05


#: Workers and servers; containers and 0 where each container hosts both.
Size = tuple[int, int]


@dataclass(slots=True, eq=False)
class Job:
    """A job's record.  Policies read it; only the scheduler's state changes it."""

    request: JobRequest
    #: Arrival number.
    number: int
    phase: Phase = Phase.QUEUED
    feedback: float | None = None
    iteration: int = 0
    #: Workers and servers that it holds or is promised, without those being released.
    workers: int = 0
    servers: int = 0
    #: Number of later jobs that started before it while it was the head of the queue.
    passed: int = 0
    #: Why it is queued, or why it ended.
    why: str = ""
    #: A growth is in progress.
    growing: bool = False
    #: Seconds of its latest iterations at its current size, at most :data:`WATCHED_ITERATIONS`.
    recent_s: list[float] = field(default_factory=list)
    #: A growth whose effect is being measured: the size before it, and the median iteration then, in seconds.
    watched: tuple[Size, float] | None = None
    #: A growth that made it slower: the size before it, and the slowdown factor; cleared when the policy reacts.
    slowed: tuple[Size, float] | None = None
    #: The size from which growing made it slower; it does not grow again from that size.
    no_growth_from: Size | None = None
    #: The size at which a shrink failed.  At that size the next shrink waits until ``no_shrink_before`` iterations are
    #: complete; the wait doubles with each failure.
    no_shrink_from: Size | None = None
    no_shrink_before: int = 0
    failed_shrinks: int = 0
    #: The size to restore after the cluster took containers, and why it took them.
    due: Size | None = None
    taken_because: str = ""
    #: Replacing them failed: the next attempt waits for this many iterations; the wait doubles with each failure.
    no_return_before: int = 0
    failed_returns: int = 0
    #: The size to restart with; None if it was never restarted.
    restart_size: Size | None = None
    #: It starts from its checkpoint: it was restarted or paused.
    resumes: bool = False
    #: Values of the metric at the rungs that it has reached, and how many of these rungs it may train past.
    rungs: list[float] = field(default_factory=list)
    rungs_passed: int = 0
    #: The rung at which the stopping rule stopped it, in iterations; None while it may train on.
    stopped_at: int | None = None
    #: Container -> the member in it, as far as the job has reported.
    members: Mapping[str, str] = field(default_factory=dict)
    #: Final value of the metric, if it finished.
    loss: float | None = None
    #: Its loss grew by orders of magnitude, or was not finite: it counts as killed, however it ends.
    has_diverged: bool = False

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self.request.job_id

    def count(self, role: Role) -> int:
        """Return the planned number of workers or servers."""
        return self.workers if role is Role.WORKER else self.servers

    def may_have_one_more(self, role: Role) -> bool:
        """Return whether it may grow now: it trains, is below its maximum, and its speed is known.

        The speed is known when the latest growth was judged and enough iterations were measured since.
        """
        judged = not self.growing and self.watched is None and self.slowed is None
        settled = judged and len(self.recent_s) == WATCHED_ITERATIONS
        may = self.phase is Phase.TRAINING and settled and self.no_growth_from != self.size
        return may and self.count(role) < self.request.most(role)

    @property
    def may_shrink(self) -> bool:
        """True unless a shrink failed at this size and too few iterations have completed since."""
        return self.no_shrink_from != self.size or self.iteration >= self.no_shrink_before

    @property
    def lacking(self) -> Size:
        """Workers and servers to replace, because the cluster took them."""
        workers, servers = self.due or self.size
        return max(0, workers - self.workers), max(0, servers - self.servers)

    @property
    def size(self) -> Size:
        """Planned numbers of workers and servers."""
        return self.workers, self.servers
