"""The jobs in the training phase by sweep, the threshold of each sweep, and its worst job.

Source: EPS §6 (one metric; the worst is killed past the threshold).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hscheduler.core.jobs import Badness, Direction, Job, badness


class Training:
    """Jobs in the training phase.

    The jobs of a sweep are a heap, so finding the worst takes about as long with thousands of jobs as with ten.  Jobs
    that have left are removed from it when they reach the top.
    """

    def __init__(self) -> None:
        #: Sweep -> arrival number -> job in the training phase; only sweeps with such jobs.
        self._jobs: dict[str, dict[int, Job]] = {}
        self._thresholds: dict[str, int] = {}
        self._directions: dict[str, Direction] = {}
        #: Sweep -> heap of (rank, number), the worst first; may contain jobs that have left.
        self._ranked: dict[str, list[tuple[Badness, int]]] = {}

    def set_direction(self, sweep: str, direction: Direction) -> None:
        """Set whether lower or higher early feedback is better in a sweep, before its first job."""
        self._directions[sweep] = direction

    def direction(self, sweep: str) -> Direction:
        """Return whether lower or higher early feedback is better in a sweep; default: lower."""
        return self._directions.get(sweep, Direction.MINIMIZE)

    def has_threshold(self, sweep: str) -> bool:
        """Return whether a sweep has a threshold."""
        return sweep in self._thresholds

    def set_threshold(self, sweep: str, threshold: int) -> None:
        """Set how many jobs of a sweep may be in the training phase."""
        self._thresholds[sweep] = threshold

    def threshold(self, sweep: str) -> int:
        """Return how many jobs of a sweep may be in the training phase."""
        return self._thresholds[sweep]

    def enter(self, job: Job) -> None:
        """Add a job that enters the training phase; its early feedback no longer changes."""
        sweep = job.request.sweep
        self._jobs.setdefault(sweep, {})[job.number] = job
        if sweep in self._ranked:
            heapq.heappush(self._ranked[sweep], self._rank(job))

    def leave(self, job: Job) -> None:
        """Remove a job that leaves the training phase."""
        sweep = job.request.sweep
        del self._jobs[sweep][job.number]
        if not self._jobs[sweep]:
            del self._jobs[sweep]
            self._ranked.pop(sweep, None)

    def sweeps(self) -> Sequence[str]:
        """Return the sweeps with jobs in the training phase."""
        return list(self._jobs)

    def of(self, sweep: str) -> Sequence[Job]:
        """Return a sweep's jobs in the training phase, by arrival."""
        jobs = self._jobs.get(sweep, {})
        return [jobs[number] for number in sorted(jobs)]

    def is_crowded(self, sweep: str) -> bool:
        """Return whether a sweep has more jobs in the training phase than its threshold."""
        return sweep in self._jobs and len(self._jobs[sweep]) > self._thresholds[sweep]

    def worst(self, sweep: str) -> Job:
        """Return the job with the worst early feedback; the sweep must have jobs in the training phase."""
        jobs = self._jobs[sweep]
        if sweep not in self._ranked:
            self._ranked[sweep] = sorted(self._rank(job) for job in jobs.values())
        ranked = self._ranked[sweep]
        # A job that left and came back is in the heap twice with the same rank.
        while -ranked[0][1] not in jobs:
            heapq.heappop(ranked)
        return jobs[-ranked[0][1]]

    def _rank(self, job: Job) -> tuple[Badness, int]:
        # Every job in the training phase has early feedback.
        assert job.feedback is not None
        flag, value = badness(job.feedback, self.direction(job.request.sweep))
        # Ties: the newest first.
        return (-flag, -value), -job.number
