"""A sweep of real jobs on this host, with H-scheduler in this process.

The cluster is simulated: its nodes are numbers in the scheduler's ledger, and all processes run here.  Everything else
is real.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.core.record import Record
from hscheduler.core.state import Scheduler
from hscheduler.live.job import LiveJob
from hscheduler.points import Points, points_of
from hscheduler.policies import POLICIES
from hscheduler.report import report
from hscheduler.simulator.workload import Arrival
from hscheduler.spec import Spec

SWEEP = "sweep"
#: How often jobs write checkpoints that may be ended and started again, where they do not say.
CHECKPOINT_EVERY = "1s"


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

    def __init__(
        self,
        spec: Spec,
        policy: str,
        on_event: Callable[[float, e.Event, list[e.Command]], None] | None = None,
        points: Points | None = None,
    ) -> None:
        self.scheduler = Scheduler(spec.cluster.capacities(), POLICIES[policy], spec.sweep.seed)
        self.record = Record()
        self.points: dict[str, dict[str, Any]] = {}
        self._spec = spec
        self._policy = policy
        self._on_event = on_event
        self._events: SimpleQueue[e.Event] = SimpleQueue()
        self._jobs: dict[str, LiveJob] = {}
        self._over: set[str] = set()
        #: Keeps the names of this sweep's jobs apart from those of others.
        self._tag = uuid.uuid4().hex[:6]
        self._source = points_of(spec) if points is None else points
        self._arrivals = Arrival(spec.sweep.mean_gap_s()).times_s(Random(f"arrivals:{spec.sweep.seed}"))
        self._next_arrival_s = next(self._arrivals)
        self._began_s = 0.0

    def run(self) -> dict[str, Any]:
        """Run all points; return the report.  Jobs that are left by an interruption are ended."""
        self._began_s = time.monotonic()
        self._step(e.SweepOpened(SWEEP, Direction(self._spec.sweep.direction), self._spec.sweep.threshold or None))
        try:
            while len(self._over) < self._spec.sweep.trials:
                self._submit_what_is_due()
                try:
                    self._step(self._events.get(timeout=self._patience_s()))
                except Empty:
                    continue
        finally:
            self._end_what_is_left()
        return self.report()

    def report(self) -> dict[str, Any]:
        """Return the report as of now."""
        for job in self._jobs.values():
            self.record.trials[job.job_id].resize_pause_s = job.pause_s
        return report(
            self.record,
            policy=self._policy,
            direction=Direction(self._spec.sweep.direction),
            losses=self._losses(),
            points=self.points,
            leaked=len(self.scheduler.ledger.all()),
        )

    def _losses(self) -> Mapping[str, float]:
        return {job.job_id: job.loss for job in self._jobs.values() if job.loss is not None}

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    # ---- arrivals

    def _may_submit(self) -> bool:
        submitted, limit = len(self.points), self._spec.sweep.parallelism
        return submitted < self._spec.sweep.trials and (not limit or submitted - len(self._over) < limit)

    def _patience_s(self) -> float:
        """Return how long to wait for an event before something else is due."""
        return min(1.0, max(0.0, self._next_arrival_s - self._now_s())) if self._may_submit() else 1.0

    def _submit_what_is_due(self) -> None:
        while self._may_submit() and self._now_s() >= self._next_arrival_s:
            job_id = f"trial-{len(self.points) + 1}"
            self.points[job_id] = self._source.ask(job_id)
            self._next_arrival_s = next(self._arrivals)
            self._step(e.JobSubmitted(self._spec.request(job_id, SWEEP)))

    # ---- events and commands

    def _step(self, event: e.Event) -> None:
        commands = self.scheduler.step(event)
        now_s = self._now_s()
        self.record.take(now_s, event, commands, self.scheduler)
        for command in commands:
            self._obey(command)
        if self._on_event is not None:
            self._on_event(now_s, event, commands)

    def _obey(self, command: e.Command) -> None:
        match command:
            case e.StartJob(job_id, _, _):
                if job_id not in self._jobs:
                    self._jobs[job_id] = self._live(job_id)
                self._jobs[job_id].obey(command)
            case e.GrowJob(job_id, _) | e.ShrinkJob(job_id, _) | e.EndJob(job_id, _, _):
                self._jobs[job_id].obey(command)
            case e.JobOver(job_id, _, _):
                self._over.add(job_id)
                loss = self._losses().get(job_id)
                self._source.tell(job_id, self.scheduler.jobs[job_id].feedback if loss is None else loss)
            case e.Explain():
                pass

    def _live(self, job_id: str) -> LiveJob:
        sweep = self._spec.sweep
        name = f"{SWEEP}-{self._tag}-{job_id}"
        spec = self._spec.job_spec(self.points[job_id])
        if self._policy == "kill" and not spec.checkpoint_every:
            # It goes on from there.
            spec = dataclasses.replace(spec, checkpoint_every=CHECKPOINT_EVERY)
        restart_s = max(0.0, sweep.kill_restart_s)
        return LiveJob(job_id, name, spec, sweep.metric, sweep.feedback_iteration, self._events.put, restart_s)

    def _end_what_is_left(self) -> None:
        for job in self._jobs.values():
            job.close()
        while not self._events.empty():
            self._step(self._events.get())
