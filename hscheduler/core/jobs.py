"""A job as H-scheduler knows it: what it asked for, its phase, its early feedback.

Source: EPS §2.1 (early feedback phase and training phase), §6 (one metric; the worst is killed past the threshold).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hscheduler.core.resources import Resources, Role

#: Nobody is told to give containers less memory (MiB): Python and its libraries take about half of it.
LEAST_MEMORY_MB = 256


class Phase(StrEnum):
    """Where a job is."""

    #: Waits for its containers.
    QUEUED = "queued"
    #: Its containers are promised; some are still with jobs that shrink for it, or its processes start.
    STARTING = "starting"
    #: It has not reached the feedback iteration.
    EARLY_FEEDBACK = "early feedback"
    #: It has, and goes on.
    TRAINING = "training"
    #: It ends, to start again with another size from its latest checkpoint (only under the ``kill`` policy).
    RESTARTING = "restarting"
    #: It was told to end, for good.
    ENDING = "ending"
    FINISHED = "finished"
    KILLED = "killed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True for the three ways to end."""
        return self in (Phase.FINISHED, Phase.KILLED, Phase.FAILED)

    @property
    def runs(self) -> bool:
        """True while it computes."""
        return self in (Phase.EARLY_FEEDBACK, Phase.TRAINING)


def end_text(job_id: str, phase: Phase, why: str) -> str:
    """Return that a job is over, and why, as a sentence; ``phase`` is one of the three ways to end."""
    if phase is Phase.FINISHED:
        return f"{job_id} finished"
    # The sentence of a decision to kill says so itself.
    reason = why.removeprefix(f"{job_id} is killed: ")
    return f"{job_id} {'was killed' if phase is Phase.KILLED else phase}" + (f": {reason}" if reason else "")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a user asks for.

    Raises
    ------
    ValueError
        A count is below one, or the most is below what is asked for.
    """

    job_id: str
    #: Jobs are ranked within their sweep.
    sweep: str
    workers: int
    servers: int
    worker: Resources
    server: Resources
    master: Resources
    #: As far as it may grow: it has splits and partitions for no more.
    most_workers: int
    most_servers: int
    #: That it is to do; 0: nobody has said it.
    iterations: int = 0
    #: What a restart takes it, from the order to end to its next iteration.
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        for name, count, most in (
            ("workers", self.workers, self.most_workers),
            ("servers", self.servers, self.most_servers),
        ):
            if count < 1:
                raise ValueError(f"{self.job_id}: {name} is {count}, but must be at least 1")
            if most < count:
                raise ValueError(f"{self.job_id}: it asks for {count} {name} and may have {most}")

    def count(self, role: Role) -> int:
        """Return how many of a role it asks for; one master."""
        return {Role.MASTER: 1, Role.WORKER: self.workers, Role.SERVER: self.servers}[role]

    def most(self, role: Role) -> int:
        """Return how many of a role it may have."""
        return {Role.MASTER: 1, Role.WORKER: self.most_workers, Role.SERVER: self.most_servers}[role]

    def resources(self, role: Role) -> Resources:
        """Return what a container of a role needs."""
        return {Role.MASTER: self.master, Role.WORKER: self.worker, Role.SERVER: self.server}[role]

    def needs(self) -> list[tuple[Resources, int]]:
        """Return what its containers need, and how many need that, its master first: there may be any number."""
        return [(self.resources(role), self.count(role)) for role in Role]

    def smaller(self, fits: Callable[[JobRequest], bool]) -> str:
        """Return what to set so that a job fits which does not, as the end of a sentence.

        Parameters
        ----------
        fits : callable
            Says whether a request would.

        Returns
        -------
        str
            Empty where less memory for its containers is of no help: cores are lacking, or it would be too little.
        """
        memory_mb = max(size.memory_mb for size, _ in self.needs()) // 2
        while memory_mb >= LEAST_MEMORY_MB:
            worker, server, master = (size.at_most(memory_mb) for size in (self.worker, self.server, self.master))
            if fits(replace(self, worker=worker, server=server, master=master)):
                return (
                    f"; with {memory_mb} MiB for each container it would fit: set container_memory in [cluster], or "
                    "hscheduler serve --container-memory"
                )
            memory_mb //= 2
        return ""


class Direction(StrEnum):
    """Which early feedback is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


def worst(feedback: Sequence[tuple[float, int]], direction: Direction) -> int:
    """Return the arrival number of the job with the worst early feedback.

    NaN is worst of all, and among equals the newest.

    Parameters
    ----------
    feedback : sequence of (float, int)
        Early feedback and arrival number of each job; at least one.
    direction : Direction

    Source: EPS §6 ("the one with the worst early feedback is killed").  Deviation: the paper is silent about ties and
    values that are no numbers.
    """

    return max(feedback, key=lambda entry: (badness(entry[0], direction), entry[1]))[1]


def best(results: Sequence[float | None], direction: Direction) -> int | None:
    """Return the position of the best result, the first among equals; None where none is a finite number."""
    sign = 1.0 if direction is Direction.MINIMIZE else -1.0
    known = [(sign * value, k) for k, value in enumerate(results) if value is not None and math.isfinite(value)]
    return min(known)[1] if known else None


#: Compares as early feedback does, the worst highest.
Badness = tuple[int, float]


def badness(value: float, direction: Direction) -> Badness:
    """Return how bad an early feedback is: NaN is worst of all."""
    if math.isnan(value):
        return 1, 0.0
    return 0, value if direction is Direction.MINIMIZE else -value


#: Iterations before and after a growth whose medians are compared.
WATCHED_ITERATIONS = 10
#: A growth is undone where the iterations after it are longer by more than this share.
SLOWER = 0.05


#: Workers and servers.
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
    #: Workers and servers that it has, or is promised, less those that it is losing.
    workers: int = 0
    servers: int = 0
    #: Jobs that came later and started before it while it was the head of the queue.
    passed: int = 0
    #: Why it waits, or how it ended.
    why: str = ""
    #: Containers are being added: the growth is not complete.
    growing: bool = False
    #: Seconds of its latest iterations with the size that it has, at most :data:`WATCHED_ITERATIONS`.
    recent_s: list[float] = field(default_factory=list)
    #: A growth whose effect is watched: the size before it, and the median iteration then, in seconds.
    watched: tuple[Size, float] | None = None
    #: A growth that made it slower: the size before it, and by which factor; until the policy has answered.
    slowed: tuple[Size, float] | None = None
    #: The size from which growing made it slower; not tried again while it has that size.
    no_growth_from: Size | None = None
    #: The size from which it could not let go of what it was to release; while it has that size, it is asked again only
    #: when so many iterations are complete, twice as many more of them with every time that it could not.
    no_shrink_from: Size | None = None
    no_shrink_before: int = 0
    failed_shrinks: int = 0
    #: The size that it is to have again, where the cluster took containers from it, and why it did.
    due: Size | None = None
    taken_because: str = ""
    #: They could not be had: asked for again when so many iterations are complete, twice as many more with every time.
    no_return_before: int = 0
    failed_returns: int = 0
    #: The size to start again with, where it was restarted.
    restart_size: Size | None = None
    #: Container -> the member in it, as far as the job has said.
    members: Mapping[str, str] = field(default_factory=dict)
    #: What it ended with, where it finished.
    loss: float | None = None

    @property
    def job_id(self) -> str:
        """Its name."""
        return self.request.job_id

    def count(self, role: Role) -> int:
        """Return how many workers or servers it has, as planned."""
        return self.workers if role is Role.WORKER else self.servers

    def may_have_one_more(self, role: Role) -> bool:
        """Return whether it may grow now: it trains, has not reached its size, and its speed is known.

        Known are enough iterations to judge the next growth by, and what the latest one has brought.
        """
        judged = not self.growing and self.watched is None and self.slowed is None
        settled = judged and len(self.recent_s) == WATCHED_ITERATIONS
        may = self.phase is Phase.TRAINING and settled and self.no_growth_from != self.size
        return may and self.count(role) < self.request.most(role)

    @property
    def may_shrink(self) -> bool:
        """True where it may be asked to let go of containers: it could, or has gone on for a while since."""
        return self.no_shrink_from != self.size or self.iteration >= self.no_shrink_before

    @property
    def lacking(self) -> Size:
        """Workers and servers that the cluster took and that it is to have again."""
        workers, servers = self.due or self.size
        return max(0, workers - self.workers), max(0, servers - self.servers)

    @property
    def size(self) -> Size:
        """Workers and servers, as planned."""
        return self.workers, self.servers
