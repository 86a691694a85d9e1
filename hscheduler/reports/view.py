"""What people see of a sweep while it runs: taken event by event on the scheduler's thread, looked at from any.

The terminal's table and the metrics are made of it; neither ever looks at the scheduler's state itself.
"""

from __future__ import annotations

import dataclasses
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase, best
from hscheduler.core.state import Scheduler
from hscheduler.core.timeline import Timeline

#: Decisions that are shown.
LATEST_DECISIONS = 20
#: Jobs of the queue whose reason is looked at: more are not shown.
LOOKED_AT = 50
#: Bounds of the early-feedback latencies that are counted together, seconds.
LATENCY_BOUNDS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)


@dataclass(slots=True)
class Row:
    """One trial as it is now.  Times are seconds since the sweep began."""

    job_id: str
    arrived_s: float
    phase: Phase = Phase.QUEUED
    workers: int = 0
    servers: int = 0
    iteration: int = 0
    #: Iterations that it is to do; 0 where that is not known.
    iterations: int = 0
    #: The median of its latest iterations, seconds.
    iteration_s: float | None = None
    feedback: float | None = None
    #: Training loss.
    loss: float | None = None
    #: What it ended with, by the sweep's metric.
    result: float | None = None
    why: str = ""
    ended_s: float | None = None
    sweep: str = ""

    @property
    def eta_s(self) -> float | None:
        """Seconds until it will have finished, if it goes on like this."""
        if not self.phase.runs or self.iteration_s is None or not self.iterations:
            return None
        return max(0, self.iterations - self.iteration) * self.iteration_s


@dataclass(frozen=True)
class Look:
    """A sweep at one moment."""

    now_s: float = 0.0
    policy: str = ""
    metric: str = "loss"
    #: Trials that there will be.
    trials: int = 0
    rows: Sequence[Row] = ()
    #: Job and why it waits, the head first; of a long queue the first :data:`LOOKED_AT`.
    queue: Sequence[tuple[str, str]] = ()
    num_queued: int = 0
    #: Time and sentence, the latest last.
    decisions: Sequence[tuple[float, str]] = ()
    num_decisions: int = 0
    #: Of the finished ones.
    best: Row | None = None
    vcores: int = 0
    used_vcores: int = 0
    #: Node -> containers on it.
    nodes: Sequence[tuple[str, int]] = ()
    #: How many early-feedback latencies were at most each of :data:`LATENCY_BOUNDS_S` and above the one before; and how
    #: many were above all.
    latencies: Sequence[int] = (0,) * (len(LATENCY_BOUNDS_S) + 1)
    latency_sum_s: float = 0.0
    #: Jobs by phase; a trial has as many as it was tried with.
    jobs: Mapping[Phase, int] = field(default_factory=dict)
    #: By sweep and phase, trials without a row: the record has them.
    gone_trials: Mapping[tuple[str, Phase], int] = field(default_factory=dict)

    def count(self, phase: Phase) -> int:
        """Return how many trials are in a phase."""
        return sum(row.phase is phase for row in self.rows)


@dataclass
class SweepView:
    """What is known of a sweep.

    Parameters
    ----------
    policy, metric : str
    direction : Direction
    trials : int
        That there will be.
    iterations_of, result_of : callable
        A job's iterations (0 where that is not known), and what it ended with.
    trial_of : callable
        The trial that a job is an attempt of, the id of its first one; by default each job is a trial.
    """

    policy: str
    metric: str
    direction: Direction
    trials: int
    iterations_of: Callable[[str], int]
    result_of: Callable[[str], float | None]
    trial_of: Callable[[str], str] = lambda job_id: job_id
    _rows: dict[str, Row] = field(default_factory=dict)
    #: Of jobs that are forgotten: how many ended how, and how many trials of each sweep.
    _gone: tuple[Counter[Phase], Counter[tuple[str, Phase]]] = field(default_factory=lambda: (Counter(), Counter()))
    _decisions: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=LATEST_DECISIONS))
    _num_decisions: int = 0
    _latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    _latency_sum_s: float = 0.0
    _look: Look = field(default_factory=Look)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, now_s: float, event: e.Event, commands: Sequence[e.Command], scheduler: Scheduler) -> None:
        """Take what one event has brought; on the thread that owns ``scheduler``."""
        with self._lock:
            match event:
                case e.JobSubmitted(request):
                    self._rows[request.job_id] = Row(request.job_id, now_s, sweep=request.sweep)
                case e.JobRefused(job_id, sweep):
                    self._rows[job_id] = Row(job_id, now_s, sweep=sweep)
                case e.FeedbackGiven(job_id):
                    self._feedback_came(self._rows[job_id], now_s)
                case e.Iterated(job_id, _, _, losses) if losses:
                    self._rows[job_id].loss = losses[-1][2]
            touched = {getattr(each, "job_id", "") for each in (event, *commands)}
            for job_id in sorted(touched & self._rows.keys()):
                self._update(self._rows[job_id], scheduler)
            for command in commands:
                self._take_command(now_s, command)
            self._look_at(now_s, scheduler, changed=not isinstance(event, e.Iterated) or bool(commands))

    def look_back(self, record: Timeline, scheduler: Scheduler) -> None:
        """Take what was before the first event: all that is known of it; on the thread that owns ``scheduler``."""
        with self._lock:
            for trial in record.trials.values():
                row = self._rows[trial.job_id] = Row(trial.job_id, trial.arrived_s, sweep=trial.sweep)
                if trial.feedback_s is not None:
                    self._feedback_came(row, trial.feedback_s)
                self._update(row, scheduler)
                if trial.curve.last is not None:
                    row.loss = trial.curve.last[2]
                if trial.finished_s is not None:
                    self._take_command(trial.finished_s, e.JobOver(trial.job_id, trial.phase, trial.why))
            self._decisions.extend((decision.at_s, decision.sentence) for decision in record.decisions)
            self._num_decisions = scheduler.number_of_decision
            self._look_at(record.end_s, scheduler, changed=True)

    def forget(self, jobs: Iterable[str], gone: Counter[Phase], gone_trials: Counter[tuple[str, Phase]]) -> None:
        """Let go of the rows of jobs that are over.

        Parameters
        ----------
        jobs : iterable of str
        gone, gone_trials : Counter
            How many jobs without a row ended how, and how many trials of each sweep.
        """
        with self._lock:
            for job_id in jobs:
                self._rows.pop(job_id, None)
            self._gone = gone, gone_trials

    def look(self) -> Look:
        """Return the sweep as it is now."""
        with self._lock:
            jobs = [dataclasses.replace(row) for row in self._rows.values()]
            gone, gone_trials = self._gone
            look = dataclasses.replace(
                self._look,
                policy=self.policy,
                metric=self.metric,
                trials=self.trials,
                decisions=list(self._decisions),
                num_decisions=self._num_decisions,
                latencies=list(self._latencies),
                latency_sum_s=self._latency_sum_s,
                gone_trials=gone_trials,
            )
        # Without the lock: which trial a job is of may be looked up in a file.
        rows = self._by_trial(jobs)
        return dataclasses.replace(
            look, rows=rows, jobs=gone + Counter(row.phase for row in jobs), best=self._best(rows)
        )

    def _by_trial(self, jobs: Sequence[Row]) -> list[Row]:
        """Return a row for each trial: that of its latest job, since the first one's arrival."""
        found: dict[str, Row] = {}
        for row in jobs:
            trial = self.trial_of(row.job_id)
            first = found.get(trial, row)
            found[trial] = dataclasses.replace(row, job_id=trial, arrived_s=first.arrived_s)
        return list(found.values())

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
        # A job says one more when it has measured what it ends with.
        row.iteration = min(job.iteration, row.iterations or job.iteration)
        row.iteration_s = median(job.recent_s) if job.recent_s else None

    def _take_command(self, now_s: float, command: e.Command) -> None:
        match command:
            case e.JobOver(job_id, phase, why) if job_id in self._rows:
                row = self._rows[job_id]
                row.phase, row.why, row.ended_s = phase, why, now_s
                row.workers = row.servers = 0
                row.result = self.result_of(job_id)
            case e.Explain(_, sentence, _):
                self._decisions.append((now_s, sentence))
                self._num_decisions += 1

    def _look_at(self, now_s: float, scheduler: Scheduler, *, changed: bool) -> None:
        """Look at what is not of one job; while jobs iterate nothing of it changes."""
        if not changed:
            self._look = dataclasses.replace(self._look, now_s=now_s)
            return
        ledger = scheduler.ledger
        self._look = Look(
            now_s,
            queue=[(job.job_id, job.why) for job in scheduler.queue[:LOOKED_AT]],
            num_queued=len(scheduler.queue),
            vcores=ledger.total().vcores,
            used_vcores=ledger.used().vcores,
            nodes=[(node, ledger.num_on(node)) for node in ledger.capacity],
        )

    def _best(self, rows: Sequence[Row]) -> Row | None:
        finished = [row for row in rows if row.phase is Phase.FINISHED]
        first = best([row.result for row in finished], self.direction)
        return None if first is None else finished[first]
