"""The live view of a sweep: updated event by event on the scheduler's thread, readable from any thread.

The terminal's table and the metrics read it, never the scheduler's state.
"""

from __future__ import annotations

import dataclasses
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase, best
from hscheduler.core.state import Scheduler
from hscheduler.core.thinned import Thinned
from hscheduler.core.timeline import Timeline

#: Most values of a trial's curve: enough for a sparkline.
CURVE_POINTS = 40
#: Number of decisions shown.
LATEST_DECISIONS = 20
#: Upper bounds of the histogram of early-feedback latencies, seconds.
LATENCY_BOUNDS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)


@dataclass(slots=True)
class Row:
    """The current state of one trial.  Times are seconds since the sweep began."""

    job_id: str
    arrived_s: float
    phase: Phase = Phase.QUEUED
    workers: int = 0
    servers: int = 0
    iteration: int = 0
    #: Total iterations; 0 if unknown.
    iterations: int = 0
    #: The median of its latest iterations, seconds.
    iteration_s: float | None = None
    feedback: float | None = None
    #: Final value of the sweep's metric.
    result: float | None = None
    why: str = ""
    sweep: str = ""
    #: Its hyperparameters.
    point: Mapping[str, Any] = field(default_factory=dict)
    #: Values of the sweep's metric so far, thinned, the latest last; empty in a view without a metric.
    curve: Sequence[float] = ()

    @property
    def value(self) -> float | None:
        """The sweep's metric: the final value, else the latest."""
        if self.result is not None:
            return self.result
        return self.curve[-1] if self.curve else self.feedback

    @property
    def eta_s(self) -> float | None:
        """Estimated seconds until it finishes at its current speed."""
        if not self.phase.runs or self.iteration_s is None or not self.iterations:
            return None
        return max(0, self.iterations - self.iteration) * self.iteration_s


@dataclass(frozen=True)
class Look:
    """A snapshot of a sweep."""

    now_s: float = 0.0
    policy: str = ""
    metric: str = "loss"
    direction: Direction = Direction.MINIMIZE
    #: Name of the sweep, and its stopping rule; empty in a view of several sweeps.
    name: str = ""
    stop: str = ""
    #: Total number of trials.
    trials: int = 0
    rows: Sequence[Row] = ()
    num_queued: int = 0
    #: (time, sentence), the latest last.
    decisions: Sequence[tuple[float, str]] = ()
    num_decisions: int = 0
    #: The best finished trial.
    best: Row | None = None
    vcores: int = 0
    used_vcores: int = 0
    #: Node -> containers on it.
    nodes: Sequence[tuple[str, int]] = ()
    #: Histogram of early-feedback latencies: counts by :data:`LATENCY_BOUNDS_S`, then the count above all bounds.
    latencies: Sequence[int] = (0,) * (len(LATENCY_BOUNDS_S) + 1)
    latency_sum_s: float = 0.0
    #: Jobs by phase; a trial has one job for each attempt.
    jobs: Mapping[Phase, int] = field(default_factory=dict)
    #: (sweep, phase) -> number of trials without a row; they are in the record.
    gone_trials: Mapping[tuple[str, Phase], int] = field(default_factory=dict)

    def count(self, phase: Phase) -> int:
        """Return how many trials are in a phase."""
        return sum(row.phase is phase for row in self.rows)


@dataclass
class SweepView:
    """Collects the live view of a sweep.

    Parameters
    ----------
    policy, metric : str
    direction : Direction
    trials : int
        Total number of trials.
    iterations_of, result_of : callable
        Job -> its total iterations (0 if unknown), and its final result.
    trial_of : callable
        Job -> its trial, which has the id of the first attempt; by default each job is a trial.
    point_of : callable
        Trial -> its hyperparameters.
    name, stop : str
        Of the sweep, and of its stopping rule.
    """

    policy: str
    metric: str
    direction: Direction
    trials: int
    iterations_of: Callable[[str], int]
    result_of: Callable[[str], float | None]
    trial_of: Callable[[str], str] = lambda job_id: job_id
    point_of: Callable[[str], Mapping[str, Any]] = lambda trial_id: {}
    name: str = ""
    stop: str = ""
    _curves: dict[str, Thinned[float]] = field(default_factory=dict)
    _rows: dict[str, Row] = field(default_factory=dict)
    #: Dropped jobs by phase, and dropped trials by sweep and phase.
    _gone: tuple[Counter[Phase], Counter[tuple[str, Phase]]] = field(default_factory=lambda: (Counter(), Counter()))
    _decisions: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=LATEST_DECISIONS))
    _num_decisions: int = 0
    _latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    _latency_sum_s: float = 0.0
    _look: Look = field(default_factory=Look)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, now_s: float, event: e.Event, commands: Sequence[e.Command], scheduler: Scheduler) -> None:
        """Record an event and its commands; call it on the thread that owns ``scheduler``."""
        with self._lock:
            match event:
                case e.JobSubmitted(request):
                    self._rows[request.job_id] = Row(request.job_id, now_s, sweep=request.sweep)
                case e.JobRefused(job_id, sweep):
                    self._rows[job_id] = Row(job_id, now_s, sweep=sweep)
                case e.FeedbackGiven(job_id):
                    self._feedback_came(self._rows[job_id], now_s)
                case e.Iterated(job_id, _, _, losses, values):
                    self._draw(job_id, losses if self.metric == "loss" else values)
            touched = {getattr(each, "job_id", "") for each in (event, *commands)}
            for job_id in sorted(touched & self._rows.keys()):
                self._update(self._rows[job_id], scheduler)
            for command in commands:
                self._take_command(now_s, command)
            self._look_at(now_s, scheduler, changed=not isinstance(event, e.Iterated) or bool(commands))

    def look_back(self, record: Timeline, scheduler: Scheduler) -> None:
        """Load the history of a restored scheduler; call it on the thread that owns ``scheduler``."""
        with self._lock:
            for trial in record.trials.values():
                row = self._rows[trial.job_id] = Row(trial.job_id, trial.arrived_s, sweep=trial.sweep)
                if trial.feedback_s is not None:
                    self._feedback_came(row, trial.feedback_s)
                self._update(row, scheduler)
                self._draw(row.job_id, (trial.curve if self.metric == "loss" else trial.values).points())
                if trial.finished_s is not None:
                    self._take_command(trial.finished_s, e.JobOver(trial.job_id, trial.phase, trial.why))
            self._decisions.extend((decision.at_s, decision.sentence) for decision in record.decisions)
            self._num_decisions = scheduler.number_of_decision
            self._look_at(record.end_s, scheduler, changed=True)

    def forget(self, jobs: Iterable[str], gone: Counter[Phase], gone_trials: Counter[tuple[str, Phase]]) -> None:
        """Drop the rows of ended jobs.

        Parameters
        ----------
        jobs : iterable of str
        gone, gone_trials : Counter
            Numbers of jobs without a row by phase, and of trials by sweep and phase.
        """
        with self._lock:
            for job_id in jobs:
                self._rows.pop(job_id, None)
                self._curves.pop(job_id, None)
            self._gone = gone, gone_trials

    def look(self) -> Look:
        """Return the current snapshot."""
        with self._lock:
            jobs = [
                dataclasses.replace(row, curve=curve.points() if (curve := self._curves.get(row.job_id)) else ())
                for row in self._rows.values()
            ]
            gone, gone_trials = self._gone
            look = dataclasses.replace(
                self._look,
                policy=self.policy,
                metric=self.metric,
                direction=self.direction,
                name=self.name,
                stop=self.stop,
                trials=self.trials,
                decisions=list(self._decisions),
                num_decisions=self._num_decisions,
                latencies=list(self._latencies),
                latency_sum_s=self._latency_sum_s,
                gone_trials=gone_trials,
            )
        # Outside the lock, since ``trial_of`` may read a file.
        rows = self._by_trial(jobs)
        return dataclasses.replace(
            look, rows=rows, jobs=gone + Counter(row.phase for row in jobs), best=self._best(rows)
        )

    def _by_trial(self, jobs: Sequence[Row]) -> list[Row]:
        """Return a row for each trial: that of its latest job, with the arrival of the first."""
        found: dict[str, Row] = {}
        for row in jobs:
            trial = self.trial_of(row.job_id)
            first = found.get(trial, row)
            found[trial] = dataclasses.replace(row, job_id=trial, arrived_s=first.arrived_s, point=self.point_of(trial))
        return list(found.values())

    def _draw(self, job_id: str, points: Sequence[tuple[float, int, float]]) -> None:
        """Add points (time, iteration, value) to the curve of a job's metric."""
        if self.metric and points:
            curve = self._curves.setdefault(job_id, Thinned(CURVE_POINTS))
            for _, _, value in points:
                curve.add(value)

    def _feedback_came(self, row: Row, now_s: float) -> None:
        if row.feedback is None:
            latency_s = now_s - row.arrived_s
            self._latencies[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
            self._latency_sum_s += latency_s

    def _update(self, row: Row, scheduler: Scheduler) -> None:
        row.iterations = row.iterations or self.iterations_of(row.job_id)
        job = scheduler.jobs.get(row.job_id)
        if job is None:
            return
        row.phase, row.why, row.feedback = job.phase, job.why, job.feedback
        row.workers, row.servers = job.size
        # After its final evaluation a job reports one iteration more.
        row.iteration = min(job.iteration, row.iterations or job.iteration)
        row.iteration_s = median(job.recent_s) if job.recent_s else None

    def _take_command(self, now_s: float, command: e.Command) -> None:
        match command:
            case e.JobOver(job_id, phase, why) if job_id in self._rows:
                row = self._rows[job_id]
                row.phase, row.why = phase, why
                row.workers = row.servers = 0
                row.result = self.result_of(job_id)
            case e.Explain(sentence):
                self._decisions.append((now_s, sentence))
                self._num_decisions += 1

    def _look_at(self, now_s: float, scheduler: Scheduler, *, changed: bool) -> None:
        """Update the figures of the cluster and the queue; progress of jobs does not change them."""
        if not changed:
            self._look = dataclasses.replace(self._look, now_s=now_s)
            return
        ledger = scheduler.ledger
        self._look = Look(
            now_s,
            num_queued=len(scheduler.queue),
            vcores=ledger.total().vcores,
            used_vcores=ledger.used().vcores,
            nodes=[(node, ledger.num_on(node)) for node in ledger.capacity],
        )

    def _best(self, rows: Sequence[Row]) -> Row | None:
        finished = [row for row in rows if row.phase is Phase.FINISHED]
        first = best([row.result for row in finished], self.direction)
        return None if first is None else finished[first]
