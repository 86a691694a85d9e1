"""One real job under H-scheduler: starts it, changes its size, watches it, ends it.

Orders are obeyed one after the other on a thread of the job; another one watches the job.  What happens is said as
events of the scheduler's state.

Source: EPS §5.1 (the scheduler calls the four operations of each job's master).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

from eps.client import Job
from eps.config import JobSpec
from eps.core.reconfig import Operation
from eps.errors import EpsError, JobFinishedError
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Container, Role

logger = logging.getLogger(__name__)

#: A job has this long to end after it was told to.
END_TIMEOUT_S = 30.0
_PHASES = {"finished": Phase.FINISHED, "killed": Phase.KILLED}
_ADD = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}
_REMOVE = {Role.WORKER: Operation.REMOVE_WORKERS, Role.SERVER: Operation.REMOVE_SERVERS}

Order = e.StartJob | e.GrowJob | e.ShrinkJob | e.EndJob


class LiveJob:
    """A job of this host.

    Parameters
    ----------
    job_id : str
        In the sweep.
    name : str
        Of the job under ``EPS_HOME``.
    spec : JobSpec
        Its size is that of the containers that it is started in.
    metric : str
        ``loss``, or a metric of the test data as the report's history names it.
    feedback_iteration : int
    say : callable
        Takes events, from any thread.
    restart_s : float, seconds
        A declared delay of a restart, from the order to end until the end is said; 0.0 is what it takes.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        spec: JobSpec,
        metric: str,
        feedback_iteration: int,
        say: Callable[[e.Event], None],
        restart_s: float = 0.0,
    ) -> None:
        self.job_id = job_id
        self.name = name
        #: What it ended with, by its metric; None before, and where it did not finish.
        self.loss: float | None = None
        #: Its own report, once it has ended.
        self.report: dict[str, Any] | None = None
        #: Seconds that changes of its size cost, as its own report has them.
        self.pause_s = 0.0
        self._spec = spec
        self._metric = metric
        self._feedback_iteration = feedback_iteration
        self._say = say
        self._restart_s = restart_s
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._job: Job | None = None
        #: Container id -> name of the member in it.
        self._members: dict[str, str] = {}
        self._given_feedback = False
        self._why = ""
        #: When it was told to end for a restart, on the monotonic clock.
        self._told_to_restart_s: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"orders of {name}", daemon=True)
        self._watcher: threading.Thread | None = None
        self._thread.start()

    def obey(self, order: Order) -> None:
        """Take an order; returns at once."""
        self._orders.put(order)

    def close(self) -> None:
        """End the job, wherever it is, and wait for its threads."""
        self._closing.set()
        self._orders.put(None)
        self._thread.join(END_TIMEOUT_S)
        if self._watcher is not None:
            self._watcher.join(END_TIMEOUT_S)

    # ---- orders

    def _serve(self) -> None:
        while True:
            order = self._orders.get()
            if order is None:
                break
            try:
                self._do(order)
            except JobFinishedError:
                # Its watcher says so.
                logger.info("%s ended before it was told: %s", self.name, type(order).__name__)
        if self._job is not None:
            self._kill(self._job, "the sweep ends")
            self._job.close()

    def _do(self, order: Order) -> None:
        match order:
            case e.StartJob(_, containers, resumes):
                self._start(containers, resumes)
            case e.GrowJob(_, containers):
                self._grow(containers)
            case e.ShrinkJob(_, containers):
                self._shrink(containers)
            case e.EndJob(_, restarts, why):
                self._why, self._told_to_restart_s = why, time.monotonic() if restarts else None
                if self._job is not None:
                    self._kill(self._job, why)

    def _start(self, containers: tuple[Container, ...], resumes: bool) -> None:
        members = {role: [c.container_id for c in containers if c.role is role] for role in (Role.WORKER, Role.SERVER)}
        workers, servers = members[Role.WORKER], members[Role.SERVER]
        for role, names in members.items():
            self._members.update({name: f"{role}-{number}" for number, name in enumerate(names, 1)})
        self._why = ""
        try:
            if resumes:
                self._job = Job.resume(self.name, workers=len(workers), servers=len(servers))
            else:
                spec = dataclasses.replace(self._spec, workers=len(workers), servers=len(servers))
                self._job = Job.start(spec, name=self.name)
        except EpsError as error:
            self._say(e.JobEnded(self.job_id, Phase.FAILED, f"it could not be started: {error}"))
            return
        self._watcher = threading.Thread(target=self._watch, args=(self._job,), name=f"watch {self.name}", daemon=True)
        self._watcher.start()

    def _grow(self, containers: tuple[Container, ...]) -> None:
        assert self._job is not None
        groups = self._by_role([container.container_id for container in containers], containers)
        failed: list[str] = []
        why = ""
        for role, names in groups.items():
            try:
                record = self._job.change(_ADD[role], len(names))
            except JobFinishedError:
                raise
            except EpsError as error:
                failed, why = failed + names, str(error)
                continue
            self._members.update(zip(names, record["added"], strict=True))
        if failed:
            self._say(e.GrowthFailed(self.job_id, tuple(failed), why))
        else:
            self._say(e.GrowthDone(self.job_id))

    def _shrink(self, names: tuple[str, ...]) -> None:
        assert self._job is not None
        by_role: dict[Role, list[str]] = {}
        for name in names:
            role = Role(self._members[name].rpartition("-")[0])
            by_role.setdefault(role, []).append(name)
        for role, group in by_role.items():
            try:
                self._job.change(_REMOVE[role], [self._members[name] for name in group])
            except JobFinishedError:
                raise
            except EpsError as error:
                self._say(e.ShrinkFailed(self.job_id, tuple(group), str(error)))
            else:
                self._say(e.ContainersGone(self.job_id, tuple(group)))

    @staticmethod
    def _by_role(names: list[str], containers: tuple[Container, ...]) -> dict[Role, list[str]]:
        roles = {container.container_id: container.role for container in containers}
        found: dict[Role, list[str]] = {}
        for name in names:
            found.setdefault(roles[name], []).append(name)
        return found

    def _kill(self, job: Job, why: str) -> None:
        try:
            job.kill(why, END_TIMEOUT_S)
        except EpsError as error:
            logger.warning("%s: %s; it is ended at once", self.name, error)
            job.kill_at_once()

    # ---- news

    def _watch(self, job: Job) -> None:
        started = False
        seen_s: list[float] = []
        try:
            for progress in job.watch():
                if not started and progress.status["state"] != "starting":
                    started = True
                    self._say(e.JobStarted(self.job_id))
                if progress.history:
                    seen_s = [*seen_s[-1:], *(float(entry["seconds"]) for entry in progress.history)]
                    durations = tuple(later - earlier for earlier, later in pairwise(seen_s))
                    self._say(e.Iterated(self.job_id, int(progress.history[-1]["clock"]), durations))
                    self._look_for_feedback(progress.history)
            report = job.wait(END_TIMEOUT_S)
        except EpsError as error:
            self._say(e.JobEnded(self.job_id, Phase.FAILED, str(error)))
            return
        self._ended(report)

    def _look_for_feedback(self, history: tuple[dict[str, Any], ...]) -> None:
        if self._given_feedback:
            return
        for entry in history:
            if entry["clock"] >= self._feedback_iteration and self._metric in entry:
                self._given_feedback = True
                self._say(e.FeedbackGiven(self.job_id, _number(entry[self._metric])))
                return

    def _ended(self, report: dict[str, Any]) -> None:
        self.report = report
        self.pause_s += sum(change["pause_s"] for change in report["changes"] if change.get("pause_s"))
        phase = _PHASES.get(report["state"], Phase.FAILED)
        history = [entry for entry in report["history"] if self._metric in entry]
        if phase is Phase.FINISHED and history:
            self.loss = _number(history[-1][self._metric])
            if not self._given_feedback:
                self._say(e.FeedbackGiven(self.job_id, self.loss))
        if phase is Phase.KILLED and self._told_to_restart_s is not None:
            left_s = self._told_to_restart_s + self._restart_s - time.monotonic()
            self._closing.wait(max(0.0, left_s))
        self._say(e.JobEnded(self.job_id, phase, self._why or str(report.get("reason") or "")))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
