"""The trials of one sweep, as its stopping rule sees them: who trains, who is paused, and their values at each rung.

Source: EPS §6 (jobs are ranked by one metric); Li et al. (MLSys 2020), Algorithm 2 (the rungs of ASHA).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hscheduler.core.decisions import Decision
from hscheduler.core.jobs import EARLIER, Badness, Direction, Job, JobRequest, badness
from hscheduler.core.rungs import NO_RUNGS, Rungs, Stopping
from hscheduler.core.training import Training

#: The rank of a trial that ended without a result.
_LAST: Badness = (2, 0.0)


class Cohort:
    """The trials of one sweep.  Rules read it; only the scheduler's state changes it.

    A trial that has ended counts as having reached all further rungs: with its final value if it finished, else behind
    all others, also those whose value is NaN.  If it ended while it was paused, that holds for its last rung, too.
    A retry replaces the attempt that failed, which then counts no more.

    Parameters
    ----------
    sweep : str
    training : Training
        The jobs in the training phase, of all sweeps.
    """

    def __init__(self, sweep: str, training: Training) -> None:
        self.sweep = sweep
        self.stopping = Stopping()
        #: When its trials give early feedback; 0: unknown.
        self.feedback_iteration = 0
        self.rungs = NO_RUNGS
        #: Number of trials of the sweep; 0: unknown.
        self.trials = 0
        #: Number of trials that have arrived, refused ones included.
        self.arrived = 0
        #: What its next trial will request, if the scheduler says when it can start; else None.
        self.coming: JobRequest | None = None
        #: Most trials that are queued or run at once, for a sweep with ``coming``; 0 sets no limit.
        self.parallelism = 0
        #: Whether to end a trial whose loss grows by orders of magnitude.
        self.stops_diverged = True
        #: Why the sweep was ended; empty while it is not.
        self.closed_because = ""
        self._training = training
        #: By arrival number: queued or running trials, paused ones, and running ones at a rung that are not judged yet.
        self._active: dict[int, Job] = {}
        self._paused: dict[int, Job] = {}
        self._fresh: dict[int, Job] = {}
        #: Of each rung, (rank, arrival number), the best first.
        self._ranked: list[list[tuple[Badness, int]]] = []
        #: Of each rung, arrival number -> the average of the values of a trial up to it.
        self._averages: list[dict[int, float]] = []
        #: Trials that have ended: arrival number -> how many rungs it had reached, and its rank at further ones.
        self._ended: dict[int, tuple[int, Badness]] = {}
        #: Job id -> arrival number of those that have ended without a result: a retry may replace them.
        self._unfinished: dict[str, int] = {}
        self._num_finished = 0

    # ---- for rules

    @property
    def direction(self) -> Direction:
        """Which values are better."""
        return self._training.direction(self.sweep)

    @property
    def threshold(self) -> int:
        """How many trials may be in the training phase."""
        return self._training.threshold(self.sweep)

    @property
    def is_crowded(self) -> bool:
        """Whether more trials are in the training phase than the threshold."""
        return self._training.is_crowded(self.sweep)

    def in_training(self) -> Sequence[Job]:
        """Return the trials in the training phase, by arrival."""
        return self._training.of(self.sweep)

    def worst_in_training(self) -> Job:
        """Return the trial with the worst early feedback; there must be one in the training phase."""
        return self._training.worst(self.sweep)

    @property
    def total(self) -> int:
        """Number of trials, as far as it is known."""
        return self.arrived if self.closed_because else max(self.trials, self.arrived)

    @property
    def gets_no_more(self) -> bool:
        """Whether all trials have arrived.  A sweep of unknown size may get more after this was true."""
        return self.arrived == self.total

    @property
    def has_finished(self) -> bool:
        """Whether a trial has finished."""
        return self._num_finished > 0

    @property
    def num_active(self) -> int:
        """Number of trials that are queued or run."""
        return len(self._active)

    @property
    def num_paused(self) -> int:
        """Number of trials that a rule has paused; also of those that still release their containers."""
        return len(self._paused)

    @property
    def may_draw(self) -> bool:
        """Whether the next trial is to be drawn as soon as it can start."""
        is_open = self.coming is not None and not self.closed_because and self.arrived < self.trials
        return is_open and (not self.parallelism or self.num_active < self.parallelism)

    def fresh(self) -> list[Job]:
        """Return the trials that have reached a rung since the last judgement, by arrival."""
        return [self._fresh[number] for number in sorted(self._fresh)]

    def paused(self) -> list[Job]:
        """Return the paused trials, by arrival; also those that still release their containers."""
        return [self._paused[number] for number in sorted(self._paused)]

    def num_rungs(self) -> int:
        """Return how many rungs a trial has reached."""
        return len(self._ranked)

    def ranking(self, rung: int) -> list[int]:
        """Return the arrival numbers of the trials at a rung, the best first; ended trials are at all further rungs."""
        return [number for _, number in self._ranked[rung]] if rung < len(self._ranked) else []

    def contenders(self, rung: int) -> list[int]:
        """Return the ranking without the trials that had ended before they were to reach the rung."""
        return [n for n in self.ranking(rung) if n not in self._ended or self._ended[n][0] >= rung]

    def tie(self, rung: int, ranking: Sequence[int], places: int) -> str:
        """Return how a tie for the last place was broken, as the end of a sentence; empty if there was none."""
        ranks = {number: rank for rank, number in self._ranked[rung]}
        is_tie = 0 < places < len(ranking) and ranks[ranking[places - 1]] == ranks[ranking[places]] != _LAST
        return EARLIER if is_tie else ""

    def averages(self, rung: int) -> Mapping[int, float]:
        """Return, by arrival number, the average value up to a rung of the trials that have reached it."""
        return self._averages[rung]

    # ---- for the scheduler

    def arrive(self, job: Job) -> None:
        """Add a trial, or the next attempt at one."""
        failed = self._unfinished.pop(job.request.retry_of, None)
        if failed is not None:
            self._remove(failed)
        self.arrived += 1
        self._active[job.number] = job

    def refuse(self, number: int) -> None:
        """Count a trial that was refused on arrival."""
        self.arrived += 1
        self._end(number, 0, _LAST)

    def reach(self, job: Job, value: float) -> None:
        """Note a trial's value at its next rung."""
        rung = len(job.rungs)
        job.rungs.append(value)
        if rung == len(self._ranked):
            self._ranked.append(sorted((rank, n) for n, (reached, rank) in self._ended.items() if reached <= rung))
            self._averages.append({})
        insort(self._ranked[rung], (badness(value, self.direction), job.number))
        self._averages[rung][job.number] = sum(job.rungs) / len(job.rungs)
        self._fresh[job.number] = job

    def judged(self) -> None:
        """Let the trials go on that the rule has left running."""
        for job in self._fresh.values():
            job.rungs_passed = len(job.rungs)
        self._fresh.clear()

    def pause(self, job: Job) -> None:
        """Note that a trial stops at its last rung."""
        self._fresh.pop(job.number, None)
        self._paused[job.number] = self._active.pop(job.number)

    def promote(self, job: Job) -> None:
        """Note that a paused trial goes on."""
        job.rungs_passed = len(job.rungs)
        self._active[job.number] = self._paused.pop(job.number)

    def end(self, job: Job, value: float | None) -> None:
        """Note that a trial has ended, or is about to; ``value`` is its final one if it finished, else None."""
        self._num_finished += value is not None
        if job.number in self._ended:
            return
        for there in (self._active, self._paused, self._fresh):
            there.pop(job.number, None)
        if value is not None:
            self._end(job.number, len(job.rungs), badness(value, self.direction))
            return
        for ranked, own in zip(self._ranked[job.rungs_passed :], job.rungs[job.rungs_passed :], strict=False):
            ranked.remove((badness(own, self.direction), job.number))
        self._unfinished[job.job_id] = job.number
        self._end(job.number, job.rungs_passed, _LAST)

    def _end(self, number: int, reached: int, rank: Badness) -> None:
        self._ended[number] = reached, rank
        for ranked in self._ranked[reached:]:
            insort(ranked, (rank, number))

    def _remove(self, number: int) -> None:
        """Remove a trial that has ended, as if it had never arrived."""
        self.arrived -= 1
        del self._ended[number]
        for ranked, averages in zip(self._ranked, self._averages, strict=True):
            ranked[:] = [entry for entry in ranked if entry[1] != number]
            averages.pop(number, None)


@dataclass(frozen=True)
class Rule:
    """A stopping rule."""

    #: Returns which trials to kill, pause and promote.  It is asked until it returns nothing; the trials at a rung that
    #: run then go on.
    judge: Callable[[Cohort], Decision]
    #: Returns the rungs of a sweep; their end is that of the longest trial.
    rungs: Callable[[Stopping], Rungs] = lambda stopping: NO_RUNGS
    #: It pauses trials, which therefore need checkpoints at the rungs.
    pauses: bool = False
    #: It judges early feedback, too.
    by_feedback: bool = False
