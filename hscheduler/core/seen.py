"""What H-scheduler knows, as policies may see it: jobs, the queue, the ledger, and what is found by them.

:class:`hscheduler.core.state.Scheduler` changes it.

Source: EPS §4, §6; design section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hscheduler.core import events as e
from hscheduler.core.counts import Counts
from hscheduler.core.decisions import Policy
from hscheduler.core.jobs import Direction, Job, JobRequest
from hscheduler.core.ledger import Hold, Ledger
from hscheduler.core.pending import Pending
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.core.room import Room
from hscheduler.core.training import Training


class Seen:
    """A scheduler's state as :class:`hscheduler.core.decisions.View` describes it.  Parameters as of a Scheduler."""

    def __init__(
        self, nodes: Mapping[str, Resources], policy: Policy, seed: int = 0, threshold: int | None = None
    ) -> None:
        self.ledger = Ledger(nodes)
        self.jobs: dict[str, Job] = {}
        self.number_of_decision = 0
        self.seed = seed
        self._policy = policy
        self._threshold = threshold
        self._by_number: dict[int, Job] = {}
        #: Jobs that have ever arrived.
        self._arrived = 0
        self._queue: list[Job] = []
        self._running: dict[int, Job] = {}
        self._training = Training()
        #: Those in the training phase, and of them those that may have one more.
        self._by_count = {Role.WORKER: Counts(), Role.SERVER: Counts()}
        self._growable = {Role.WORKER: Counts(), Role.SERVER: Counts()}
        #: Jobs of which something has changed since it was looked whether they may grow.
        self._touched: dict[int, Job] = {}
        self._totals = {Role.WORKER: 0, Role.SERVER: 0}
        self._slowed: dict[int, Job] = {}
        #: Jobs from which the cluster took containers that they are to have again; None: not looked for yet.
        self._short: dict[int, Job] | None = {}
        #: Whether news of iterations have told something that may be decided by.
        self._is_told = False
        self._pending: dict[str, Pending] = {}
        #: Jobs of which all that is pending was granted.
        self._complete: dict[str, None] = {}
        #: Sweeps whose threshold is what fits the cluster, with a request of theirs.
        self._default_thresholds: dict[str, JobRequest] = {}
        #: What a job asks for -> whether it fits an empty cluster.
        self._fits: dict[tuple[object, ...], bool] = {}
        self._next_container = 0
        self._commands: list[e.Command] = []
        #: Nodes on which something has become free, or was promised, since promises were looked at.
        self._look_at: dict[str, None] = {}

    # ---- the view of policies

    @property
    def queue(self) -> Sequence[Job]:
        """Jobs that wait, the head first."""
        return self._queue

    @property
    def releasing(self) -> int:
        """How many containers are on their way out."""
        return self.ledger.num_releasing

    def room(self) -> Room:
        """Return a trial of placements."""
        return self.ledger.room()

    def containers(self, job: Job, role: Role) -> list[Container]:
        """Return a job's containers that it is not losing, the newest first."""
        return self.ledger.of_job(job.job_id, role, Hold.PROMISED, Hold.GRANTED)[::-1]

    def removable(self, role: Role) -> Iterator[Job]:
        """Yield running jobs with early feedback and more than one of a role, those with most of it first."""
        for number in self._by_count[role].descending():
            job = self._by_number[number]
            if job.count(role) < 2:
                return
            if job.may_shrink:
                yield job

    def growable(self, role: Role) -> Iterator[Job]:
        """Yield jobs in the training phase that may have one more of a role, those with least of it first."""
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
        """Return the jobs that run, by arrival."""
        return [self._running[number] for number in sorted(self._running)]

    def in_training(self, sweep: str) -> Sequence[Job]:
        """Return a sweep's jobs in the training phase, by arrival."""
        return self._training.of(sweep)

    def worst_in_training(self, sweep: str) -> Job:
        """Return the job with the worst early feedback of a sweep that has jobs in the training phase."""
        return self._training.worst(sweep)

    def finished(self, sweep: str) -> Sequence[tuple[int, float]]:
        """Return arrival number and early feedback of a sweep's jobs that have finished, in the order of their ends."""
        return self._training.finished(sweep)

    def sweeps(self) -> Sequence[str]:
        """Return the sweeps that have jobs in the training phase."""
        return self._training.sweeps()

    def crowded(self) -> Sequence[tuple[str, int]]:
        """Return the sweeps with more jobs in the training phase than their threshold, and how many they have."""
        return self._training.crowded()

    def threshold(self, sweep: str) -> int:
        """Return how many jobs of a sweep may be in the training phase."""
        return self._training.threshold(sweep)

    def direction(self, sweep: str) -> Direction:
        """Return which early feedback of a sweep is better."""
        return self._training.direction(sweep)

    def slowed(self) -> Sequence[Job]:
        """Return the jobs that a growth made slower."""
        return list(self._slowed.values())

    def totals(self) -> tuple[int, int]:
        """Return the number of workers and of servers in the cluster."""
        return self._totals[Role.WORKER], self._totals[Role.SERVER]
