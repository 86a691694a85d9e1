"""The state of H-scheduler and the view that policies have of it: jobs, queue, ledger and lookup tables.

Only its subclass :class:`hscheduler.core.state.Scheduler` changes it.

Source: EPS §4, §6; design section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hscheduler.core import events as e
from hscheduler.core.cohort import Cohort, Rule
from hscheduler.core.counts import Counts
from hscheduler.core.decisions import Policy
from hscheduler.core.jobs import Direction, Job, JobRequest
from hscheduler.core.ledger import Hold, Ledger
from hscheduler.core.placement import FreeSpace
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.core.rungs import DEFAULT, Rungs, Stopping
from hscheduler.core.speed import Curve, Speeds
from hscheduler.core.training import Training


@dataclass(slots=True)
class Pending:
    """Containers of one start or growth that are promised to a job: they are handed to it together."""

    containers: list[Container]
    #: Ids of those that are not granted yet.
    missing: set[str]
    starts: bool
    #: Number of the last container; orders complete sets.
    number: int


class SchedulerView:
    """A scheduler's state; implements :class:`hscheduler.core.decisions.View`.  Parameters as for Scheduler."""

    def __init__(
        self,
        nodes: Mapping[str, Resources],
        policy: Policy,
        rules: Mapping[str, Rule],
        seed: int = 0,
        threshold: int | None = None,
        stopping: Stopping = DEFAULT,
    ) -> None:
        self.ledger = Ledger(nodes)
        self.jobs: dict[str, Job] = {}
        self.number_of_decision = 0
        self.seed = seed
        self._policy = policy
        self._rules = rules
        self._threshold = threshold
        #: The rule and its parameters for sweeps that do not set them.
        self._stopping = stopping
        self._cohorts: dict[str, Cohort] = {}
        #: Sweeps that changed since their rule was last asked.
        self._to_judge: dict[str, None] = {}
        self._by_number: dict[int, Job] = {}
        #: Number of jobs that have arrived so far.
        self._arrived = 0
        #: Sweeps whose next trial could start now, and is not drawn yet.
        self._wanted: dict[str, None] = {}
        self._queue: list[Job] = []
        self._running: dict[int, Job] = {}
        self._training = Training()
        #: Jobs in the training phase by member count, and those of them that may grow.
        self._by_count = {Role.WORKER: Counts(), Role.SERVER: Counts()}
        self._growable = {Role.WORKER: Counts(), Role.SERVER: Counts()}
        #: Jobs that changed since ``_growable`` was updated.
        self._touched: dict[int, Job] = {}
        self._totals = {Role.WORKER: 0, Role.SERVER: 0}
        self._slowed: dict[int, Job] = {}
        #: Jobs with containers to replace, because the cluster took them; None: not computed yet.
        self._short: dict[int, Job] | None = {}
        #: Whether the progress report of this step may lead to a decision.
        self._is_told = False
        self._pending: dict[str, Pending] = {}
        #: Jobs whose pending containers are all granted.
        self._complete: dict[str, None] = {}
        self._speeds = Speeds()
        #: Sweeps with the default threshold (what fits the cluster), each with one of its requests.
        self._default_thresholds: dict[str, JobRequest] = {}
        #: Requested resources -> whether they fit an empty cluster.
        self._fits: dict[tuple[object, ...], bool] = {}
        self._next_container = 0
        self._commands: list[e.Command] = []
        #: Nodes with freed resources or new promises since promises were last granted.
        self._look_at: dict[str, None] = {}

    # ---- the view of policies

    @property
    def queue(self) -> Sequence[Job]:
        """Queued jobs, the head first."""
        return self._queue

    @property
    def releasing(self) -> int:
        """Number of containers that are being released."""
        return self.ledger.num_releasing

    def room(self) -> FreeSpace:
        """Return the planned free space, for trial placements."""
        return self.ledger.room()

    def containers(self, job: Job, role: Role) -> list[Container]:
        """Return a job's containers except those being released, the newest first."""
        return self.ledger.of_job(job.job_id, role, Hold.PROMISED, Hold.GRANTED)[::-1]

    def removable(self, role: Role) -> Iterator[Job]:
        """Yield jobs in the training phase with at least two members of a role, those with most members first."""
        for number in self._by_count[role].descending():
            job = self._by_number[number]
            if job.count(role) < 2:
                return
            if job.may_shrink:
                yield job

    def growable(self, role: Role) -> Iterator[Job]:
        """Yield jobs in the training phase that may get one more member of a role, those with fewest first."""
        for job in self._touched.values():
            for each, counts in self._growable.items():
                if job.may_have_one_more(each):
                    counts.put(job.number, job.count(each))
                else:
                    counts.drop(job.number)
        self._touched.clear()
        for number in self._growable[role].ascending():
            yield self._by_number[number]

    def running(self) -> Sequence[Job]:
        """Return the running jobs, by arrival."""
        return [self._running[number] for number in sorted(self._running)]

    def in_training(self, sweep: str) -> Sequence[Job]:
        """Return a sweep's jobs in the training phase, by arrival."""
        return self._training.of(sweep)

    def sweeps(self) -> Sequence[str]:
        """Return the sweeps with jobs in the training phase."""
        return self._training.sweeps()

    def threshold(self, sweep: str) -> int:
        """Return how many jobs of a sweep may be in the training phase."""
        return self._training.threshold(sweep)

    def direction(self, sweep: str) -> Direction:
        """Return whether lower or higher early feedback is better in a sweep."""
        return self._training.direction(sweep)

    def milestone(self, job: Job) -> int:
        """Return the iteration at which the stopping rule judges a job next, or its last one; 0: unknown."""
        sweep = job.request.sweep
        cohort = self._cohorts[sweep]
        if self._rules[cohort.stopping.rule].by_feedback and job.feedback is None:
            return cohort.feedback_iteration or job.request.iterations
        return self.next_rung(job) or job.request.iterations

    def next_rung(self, job: Job) -> int | None:
        """Return the iteration of the next rung that a job is to reach; None if it is to reach none."""
        return self.rungs(job).at(len(job.rungs))

    def rungs(self, job: Job) -> Rungs:
        """Return the rungs of a job: those of its sweep, below its last iteration."""
        return self._cohorts[job.request.sweep].rungs.until(job.request.iterations)

    def pauses(self, sweep: str) -> bool:
        """Return whether the stopping rule of a sweep pauses jobs, which need checkpoints at their rungs."""
        return self._rules[self._cohorts[sweep].stopping.rule].pauses

    @property
    def num_paused(self) -> int:
        """Number of jobs that a stopping rule has paused."""
        return sum(cohort.num_paused for cohort in self._cohorts.values())

    def slowed(self) -> Sequence[Job]:
        """Return the jobs that became slower when they grew."""
        return list(self._slowed.values())

    def totals(self) -> tuple[int, int]:
        """Return the number of workers and servers in the cluster."""
        return self._totals[Role.WORKER], self._totals[Role.SERVER]

    def is_settled(self, job: Job) -> bool:
        """Return whether a job runs and no change of its size is in progress."""
        changes = job.growing or job.job_id in self._pending or self.ledger.is_releasing(job.job_id)
        return job.phase.runs and not changes

    def curve(self, job: Job) -> Curve:
        """Return the seconds of a job's iteration by its number of containers, as far as measured."""
        return self._speeds.curve(job)

    def explored(self, sweep: str) -> int:
        """Return the largest number of containers in which a job of a sweep was measured; 0 if there is none."""
        return self._speeds.largest(sweep)

    def change_s(self) -> float:
        """Return the seconds until a growth takes effect, as measured."""
        return self._speeds.change_s()

    def wants_trial(self, sweep: str) -> bool:
        """Return whether the next trial of a sweep could start now; see :class:`hscheduler.core.events.TrialWanted`."""
        return sweep in self._wanted

    def awaits(self, sweep: str) -> bool:
        """Return whether more jobs of a sweep are to arrive, as far as that is known."""
        return not self._cohorts[sweep].gets_no_more
