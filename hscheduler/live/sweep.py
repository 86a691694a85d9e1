"""A sweep of real jobs on this host, with H-scheduler in this process.

The cluster is simulated: its nodes are numbers in the scheduler's ledger, and all processes run here.  Everything else
is real.
"""

from __future__ import annotations

import threading
from random import Random
from typing import Any

from eps.errors import ConfigError
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.core.state import Scheduler
from hscheduler.live.scheduler import LiveScheduler, LiveSettings, OnEvent, Submission
from hscheduler.points import Points, points_of
from hscheduler.report import report
from hscheduler.simulator.workload import Arrival
from hscheduler.spec import Spec

SWEEP = "sweep"


class Sweep:
    """One sweep from its first point to its report.

    Parameters
    ----------
    spec : Spec
    policy : str
    on_event : callable, optional
        Called after every event with the seconds since the sweep began, the event and what it brought about.
    points : Points, optional
        By default those of the sweep's algorithm.

    Raises
    ------
    ConfigError
        The algorithm needs something that is not installed.
    """

    def __init__(self, spec: Spec, policy: str, on_event: OnEvent | None = None, points: Points | None = None) -> None:
        self.points: dict[str, dict[str, Any]] = {}
        #: Trial -> iterations that it is to do.
        self.iterations: dict[str, int] = {}
        self._spec = spec
        self._on_event = on_event
        self._source = points_of(spec) if points is None else points
        self._settings = LiveSettings(
            policy,
            spec.sweep.seed,
            spec.sweep.metric,
            spec.sweep.feedback_iteration,
            max(0.0, spec.sweep.kill_restart_s),
        )
        self._arrivals = Arrival(spec.sweep.mean_gap_s()).times_s(Random(f"arrivals:{spec.sweep.seed}"))
        self._submissions: dict[str, Submission] = {}
        #: Set whenever a trial is over.
        self._news = threading.Event()
        self.scheduler: LiveScheduler | None = None

    def run(self) -> dict[str, Any]:
        """Run all points; return the report.  Jobs that are left by an interruption are ended.

        Raises
        ------
        RuntimeError
            The scheduler failed.
        """
        sweep = self._spec.sweep
        with LiveScheduler(self._spec.cluster.capacities(), self._settings, self._take) as scheduler:
            self.scheduler = scheduler
            scheduler.open_sweep(e.SweepOpened(SWEEP, Direction(sweep.direction), sweep.threshold or None))
            told: set[str] = set()
            due_s = next(self._arrivals)
            while len(told) < sweep.trials:
                self._news.clear()
                for submission in self._submissions.values():
                    if submission.is_over and submission.job_id not in told:
                        told.add(submission.job_id)
                        loss = submission.feedback if submission.loss is None else submission.loss
                        self._source.tell(submission.job_id, loss)
                left_s = 1.0
                if self._may_submit(len(told)):
                    left_s = due_s - scheduler.now_s()
                    if left_s <= 0:
                        due_s = next(self._arrivals)
                        self._submit(scheduler)
                        continue
                self._news.wait(min(1.0, left_s))
            scheduler.check()
        return self.report()

    def report(self) -> dict[str, Any]:
        """Return the report as of now."""
        assert self.scheduler is not None
        losses = {each.job_id: each.loss for each in list(self._submissions.values()) if each.loss is not None}
        return report(
            self.scheduler.record,
            policy=self._settings.policy,
            direction=Direction(self._spec.sweep.direction),
            losses=losses,
            points=self.points,
            leaked=self.scheduler.leaked(),
            names={each.job_id: each.name for each in list(self._submissions.values())},
            waiting={job.job_id: job.why for job in list(self.scheduler.state.queue)},
            metric=self._spec.sweep.metric,
        )

    @property
    def state(self) -> Scheduler:
        """The scheduler's state; only its own thread may look at it."""
        assert self.scheduler is not None
        return self.scheduler.state

    def name_of(self, job_id: str) -> str:
        """Return a trial's name under ``EPS_HOME``; empty where it is not known yet."""
        submission = self._submissions.get(job_id)
        return "" if submission is None else submission.name

    def result_of(self, job_id: str) -> float | None:
        """Return what a trial ended with, by the sweep's metric; None before, and where it did not finish."""
        submission = self._submissions.get(job_id)
        return None if submission is None else submission.loss

    def _may_submit(self, over: int) -> bool:
        submitted, limit = len(self.points), self._spec.sweep.parallelism
        return submitted < self._spec.sweep.trials and (not limit or submitted - over < limit)

    def _submit(self, scheduler: LiveScheduler) -> None:
        job_id = f"trial-{len(self.points) + 1}"
        self.points[job_id] = point = self._source.ask(job_id)
        try:
            spec = self._spec.job_spec(point)
            request = self._spec.request(job_id, SWEEP, point)
        except ConfigError as error:
            refused = scheduler.refuse(job_id, SWEEP, self._spec.job_spec(), f"its settings cannot work: {error}")
            self._submissions[job_id] = refused
            return
        self.iterations[job_id] = spec.iterations
        self._submissions[job_id] = scheduler.submit(e.JobSubmitted(request), spec)

    def _take(self, now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        if self._on_event is not None:
            self._on_event(now_s, event, commands)
        if any(isinstance(command, e.JobOver) for command in commands):
            self._news.set()
