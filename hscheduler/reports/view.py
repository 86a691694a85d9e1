"""What the terminal's table and the metrics show of a scheduler at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

from hscheduler.core.jobs import Direction, Job, Phase, best
from hscheduler.core.timeline import LATENCY_BOUNDS_S, TrialRecord

#: Number of decisions shown.
SHOWN_DECISIONS = 20


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
    #: The sweep's metric: the final value, else the latest; None if it is unknown, or in a view of several sweeps.
    value: float | None = None
    why: str = ""
    sweep: str = ""
    #: Its hyperparameters.
    point: Mapping[str, Any] = field(default_factory=dict)
    #: Values of the metric so far, thinned, the latest last.
    curve: Sequence[float] = ()

    @classmethod
    def of(
        cls,
        trial: TrialRecord,
        job: Job | None,
        metric: str,
        iterations: int,
        final: float | None,
        point: Mapping[str, Any],
    ) -> Self:
        """Return the row of a job.

        Parameters
        ----------
        trial : TrialRecord
        job : Job or None
            None: the scheduler does not know it any more.
        metric : str
            Of the sweep; empty: the row has no values.
        iterations : int
            Its total; 0 if unknown.
        final : float or None
            Final value of the metric, if the job finished.
        point : mapping
            Its hyperparameters.
        """
        runs = job is not None and not trial.phase.ended
        workers, servers = job.size if job is not None and runs else (0, 0)
        iteration = trial.iteration if job is None else job.iteration
        curve = trial.curve if metric == "loss" else trial.values
        return cls(
            trial.job_id,
            trial.arrived_s,
            trial.phase,
            workers,
            servers,
            iteration,
            iterations,
            median(job.recent_s) if job is not None and job.recent_s else None,
            trial.latest(metric, final) if metric else None,
            job.why if job is not None and runs else trial.why,
            trial.sweep,
            dict(point),
            [value for _, _, value in curve.points()] if metric else (),
        )

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
    #: Whether the jobs' settings have their iterations; those of a callable may not.
    knows_iterations: bool = True

    def count(self, phase: Phase) -> int:
        """Return how many trials are in a phase."""
        return sum(row.phase is phase for row in self.rows)

    @property
    def best(self) -> Row | None:
        """The best finished trial."""
        finished = [row for row in self.rows if row.phase is Phase.FINISHED]
        first = best([row.value for row in finished], self.direction)
        return None if first is None else finished[first]
