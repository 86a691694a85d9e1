"""The jobs in the training phase: by sweep, against its threshold, and the worst of each.

Source: EPS §6 (one metric; the worst is killed past the threshold).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hscheduler.core.jobs import Badness, Direction, Job, badness


class Training:
    """Jobs in the training phase.

    Finding the worst takes about as long with thousands of jobs as with ten: the jobs of a sweep are a heap, from which
    those that have left are taken when they come to its top.
    """

    def __init__(self) -> None:
        #: Sweep -> its jobs in the training phase, by number; only sweeps that have some.
        self._jobs: dict[str, dict[int, Job]] = {}
        self._thresholds: dict[str, int] = {}
        #: Sweeps with more jobs than their threshold.
        self._crowded: dict[str, None] = {}
        self._directions: dict[str, Direction] = {}
        #: Sweep -> (how good, number), the worst first; also of jobs that have left.
        self._ranked: dict[str, list[tuple[Badness, int]]] = {}
        #: Sweep -> arrival number and early feedback of its jobs that have finished; the jobs may be forgotten.
        self._finished: dict[str, list[tuple[int, float]]] = {}

    def set_direction(self, sweep: str, direction: Direction) -> None:
        """Say which early feedback of a sweep is better."""
        if self.direction(sweep) != direction:
            self._directions[sweep] = direction
            # It is ranked anew when it is asked for.
            self._ranked.pop(sweep, None)

    def direction(self, sweep: str) -> Direction:
        """Return which early feedback of a sweep is better; the lower one, where nobody has said."""
        return self._directions.get(sweep, Direction.MINIMIZE)

    def has_threshold(self, sweep: str) -> bool:
        """Return whether a sweep has a threshold."""
        return sweep in self._thresholds

    def set_threshold(self, sweep: str, threshold: int) -> None:
        """Say how many jobs of a sweep may be in the training phase."""
        self._thresholds[sweep] = threshold
        self._look(sweep)

    def threshold(self, sweep: str) -> int:
        """Return how many jobs of a sweep may be in the training phase."""
        return self._thresholds[sweep]

    def enter(self, job: Job) -> None:
        """Note that a job has entered the training phase; its early feedback stays as it is."""
        sweep = job.request.sweep
        self._jobs.setdefault(sweep, {})[job.number] = job
        if sweep in self._ranked:
            heapq.heappush(self._ranked[sweep], self._rank(job))
        self._look(sweep)

    def leave(self, job: Job) -> None:
        """Note that a job has left it."""
        sweep = job.request.sweep
        del self._jobs[sweep][job.number]
        if not self._jobs[sweep]:
            del self._jobs[sweep]
            self._ranked.pop(sweep, None)
        self._look(sweep)

    def note_finished(self, job: Job) -> None:
        """Note that a job with early feedback has finished."""
        assert job.feedback is not None
        self._finished.setdefault(job.request.sweep, []).append((job.number, job.feedback))

    def finished(self, sweep: str) -> Sequence[tuple[int, float]]:
        """Return arrival number and early feedback of a sweep's jobs that have finished, in the order of their ends."""
        return self._finished.get(sweep, ())

    def sweeps(self) -> Sequence[str]:
        """Return the sweeps that have jobs in the training phase."""
        return list(self._jobs)

    def of(self, sweep: str) -> Sequence[Job]:
        """Return a sweep's jobs, by arrival."""
        jobs = self._jobs.get(sweep, {})
        return [jobs[number] for number in sorted(jobs)]

    def crowded(self) -> Sequence[tuple[str, int]]:
        """Return the sweeps that have more jobs than their threshold, and how many they have."""
        order = self._crowded if len(self._crowded) < 2 else [s for s in self._jobs if s in self._crowded]
        return [(sweep, len(self._jobs[sweep])) for sweep in order]

    def worst(self, sweep: str) -> Job:
        """Return the job of a sweep, which has some, with the worst early feedback."""
        jobs = self._jobs[sweep]
        if sweep not in self._ranked:
            self._ranked[sweep] = sorted(self._rank(job) for job in jobs.values())
        ranked = self._ranked[sweep]
        # One that has left and come back is there twice, equally good.
        while -ranked[0][1] not in jobs:
            heapq.heappop(ranked)
        return jobs[-ranked[0][1]]

    def _rank(self, job: Job) -> tuple[Badness, int]:
        # A job in the training phase has given it.
        assert job.feedback is not None
        flag, value = badness(job.feedback, self.direction(job.request.sweep))
        # Among equals the newest first.
        return (-flag, -value), -job.number

    def _look(self, sweep: str) -> None:
        if len(self._jobs.get(sweep, ())) > self._thresholds[sweep]:
            self._crowded[sweep] = None
        else:
            self._crowded.pop(sweep, None)
