"""One call of Hyperopt's ``fmin`` with several points at once: asks, evaluates on threads, tells, and stops.

Source: EPS §6; the order of what Hyperopt's own loop does, which sleeps a second between points.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from hyperopt import JOB_STATE_DONE, JOB_STATE_ERROR, JOB_STATE_NEW, JOB_STATE_RUNNING, STATUS_OK, Trials, base
from hyperopt.base import JOB_STATE_CANCEL
from hyperopt.utils import coarse_utcnow

from eps.errors import RpcError, StoppedEarlyError, TrainingError
from eps.job.client import submit_instead
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.system.threads import ThreadPerCall
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.live.attempts import attempt_id, worth_another
from hscheduler.live.scheduler import LiveSettings
from hscheduler.live.submission import Submission
from hscheduler.spec import ClusterSpec, request_of

if TYPE_CHECKING:
    from hscheduler.trials.htrials import HTrials

logger = logging.getLogger(__name__)

#: How often stopping conditions are looked at while nothing ends.
POLL_S = 0.1
#: Objectives have so long to end by themselves once their jobs have ended.
GRACE_S = 3.0
#: Why what still runs is ended.
STOPPED = "fmin stopped"


class JobScheduler(Protocol):
    """What submits jobs: a scheduler of this process, or the client of a service."""

    def open_sweep(self, opened: e.SweepOpened) -> None:
        """Say how a sweep's jobs are ranked."""

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        """Submit a job."""

    def wait(self, submission: Submission) -> None:
        """Wait until it is over."""

    def cancel(self, job_id: str, why: str) -> object:
        """End it."""

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        """Write report and model where they are wanted."""


@dataclass(frozen=True)
class Where:
    """Where the jobs of a search run."""

    scheduler: JobScheduler
    cluster: ClusterSpec
    threshold: int | None
    #: None: the scheduler's own.
    settings: LiveSettings | None

    def opened(self, sweep: str, direction: Direction) -> e.SweepOpened:
        """Return how the jobs of a search are ranked."""
        settings = self.settings
        if settings is None:
            return e.SweepOpened(sweep, direction, self.threshold)
        return e.SweepOpened(sweep, direction, self.threshold, settings.metric, settings.feedback_iteration)


class Stop:
    """When to stop before all points are tried; the clock runs from here."""

    def __init__(
        self,
        timeout_s: float | None,
        loss_threshold: float | None,
        early_stop_fn: Callable[..., tuple[bool, Sequence[Any]]] | None,
    ) -> None:
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._loss_threshold = loss_threshold
        self._early_stop_fn = early_stop_fn
        self._early_stop_args: Sequence[Any] = ()

    def too_late(self) -> bool:
        """Return whether its time is over."""
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s

    def after(self, finished: Trials) -> bool:
        """Look at what may be the best so far, once for each trial that ended."""
        stop = False
        if self._early_stop_fn is not None and len(finished):
            stop, self._early_stop_args = self._early_stop_fn(finished, *self._early_stop_args)
        best = best_loss(finished)
        # As in Hyperopt: below, not at.
        reached = self._loss_threshold is not None and best is not None and best < self._loss_threshold
        return bool(stop) or reached


def best_loss(trials: Trials) -> float | None:
    """Return the lowest loss of trials; None where there is none."""
    results = [result for result in trials.results if result["status"] == STATUS_OK]
    return min((float(r["loss"]) for r in results if not math.isnan(r["loss"])), default=None)


class Run:
    """One call of ``fmin``."""

    def __init__(
        self,
        trials: HTrials,
        domain: Any,
        algo: Callable[..., Any],
        max_evals: int,
        stop: Stop,
        rstate: np.random.Generator,
        catch: bool,
        progress: Callable[..., Any],
    ) -> None:
        self._trials = trials
        self._domain = domain
        self._algo = algo
        #: How many points it may still ask for.
        self._left = max_evals - len(trials)
        self._max_evals = max_evals
        self._stop = stop
        self._rstate = rstate
        self._catch = catch
        self._progress = progress
        #: Documents that are done, in the order in which they were.
        self._finished = [document for document in trials._dynamic_trials if document["state"] == JOB_STATE_DONE]
        #: Its jobs are ranked among each other only.
        self._sweep = f"fmin-{uuid.uuid4().hex[:8]}"

    def exhaust(self, where: Where) -> None:
        """Evaluate until there is no more to do, or a reason to stop."""
        trials, running = self._trials, dict[Future[Any], tuple[dict[str, Any], Submitter]]()
        where.scheduler.open_sweep(where.opened(self._sweep, trials.direction))
        # Neither this nor the end of the interpreter may wait for an objective that hangs.
        threads = ThreadPerCall("objective")
        try:
            with self._progress(initial=len(self._finished), total=self._max_evals) as shown:
                while not self._stop.too_late():
                    while len(running) < trials.parallelism and (document := self._next()) is not None:
                        submitter = Submitter(where, self._sweep, int(document["tid"]), trials.retries)
                        document["state"] = JOB_STATE_RUNNING
                        document["book_time"] = document["refresh_time"] = coarse_utcnow()
                        running[threads.submit(self._evaluate, document, submitter)] = document, submitter
                    if not running:
                        return
                    done, _ = wait(running, POLL_S, FIRST_COMPLETED)
                    stop = False
                    for future in done:
                        stop = self._conclude(*running.pop(future), future, shown) or stop
                    if stop:
                        return
        finally:
            self._end(running)
            trials.refresh()

    def _end(self, running: Mapping[Future[Any], tuple[dict[str, Any], Submitter]]) -> None:
        """End what still runs; an objective that goes on nevertheless is named and left behind."""
        _cancel_all([submitter for _, submitter in running.values()], STOPPED)
        left = set(running)
        deadline_s = time.monotonic() + GRACE_S
        while left and time.monotonic() < deadline_s:
            _, left = wait(left, POLL_S)
            if any(running[future][1].is_waiting for future in left):
                # Which ends with the job, and that has deadlines of its own.
                deadline_s = time.monotonic() + GRACE_S
        for future, (document, _) in running.items():
            self._cancelled(document, None if future in left else future)
        if left:
            numbers = ", ".join(str(tid) for tid in sorted(running[future][0]["tid"] for future in left))
            can = "" if self._trials.processes else ": a thread cannot be ended, but HTrials(processes=True) can end it"
            logger.warning("the objective of trial %s goes on outside eps.run and is left behind%s", numbers, can)

    def _next(self) -> dict[str, Any] | None:
        """Return the next point to try, as Hyperopt's document; None where there is none."""
        trials = self._trials
        waiting: list[dict[str, Any]] = [d for d in trials._dynamic_trials if d["state"] == JOB_STATE_NEW]
        if waiting:
            return waiting[0]
        if self._left <= 0:
            return None
        ids = trials.new_trial_ids(1)
        trials.refresh()
        documents = self._algo(ids, self._domain, trials, self._rstate.integers(2**31 - 1))
        if not documents:
            self._left = 0
            return None
        self._left -= len(documents)
        trials.insert_trial_docs(documents)
        trials.refresh()
        return self._next()

    def _evaluate(self, document: dict[str, Any], submitter: Submitter) -> Any:
        """Call the objective, on a thread of its own."""
        submit_instead.set(submitter)
        try:
            spec = base.spec_from_misc(document["misc"])
            found = self._domain.evaluate(spec, base.Ctrl(self._trials, current_trial=document))
            # Whatever the objective makes of it: a loss of a job that was ended early is not one of a whole job.
            why = submitter.why_ended_early()
            return found if why is None else {"why": why, **found, "killed": True}
        except StoppedEarlyError as stopped:
            # A loss is minimised, whatever the feedback is.
            sign = 1.0 if self._trials.direction is Direction.MINIMIZE else -1.0
            return {"status": STATUS_OK, "loss": sign * stopped.feedback, "killed": True, "why": str(stopped)}
        finally:
            submit_instead.set(None)

    def _conclude(self, document: dict[str, Any], submitter: Submitter, future: Future[Any], shown: Any) -> bool:
        """Take what came of a point; return whether to stop."""
        error = future.exception()
        document["refresh_time"] = coarse_utcnow()
        document["misc"]["jobs"] = submitter.job_ids()
        if error is None:
            document["state"], document["result"] = JOB_STATE_DONE, future.result()
            self._finished.append(document)
        else:
            document["state"] = JOB_STATE_ERROR
            document["misc"]["error"] = (str(type(error)), str(error))
            logger.error("trial %d: %s", document["tid"], error)
        self._trials.refresh()
        # As in Hyperopt: what ends a program is no failure of a point.
        if error is not None and not (self._catch and isinstance(error, Exception)):
            raise error
        whole = self._trials.whole(self._finished)
        best = best_loss(whole)
        if best is not None:
            shown.postfix = f"best loss: {best}"
        if error is None:
            shown.update(1)
        return self._stop.after(whole)

    def _cancelled(self, document: dict[str, Any], future: Future[Any] | None) -> None:
        """Take what came of a point that nobody waits for any more: it may have come to its end nevertheless."""
        if future is not None and future.exception() is None:
            document["state"], document["result"] = JOB_STATE_DONE, future.result()
        else:
            document["state"] = JOB_STATE_CANCEL
            why = STOPPED if future is not None else f"{STOPPED}, and its objective goes on outside eps.run"
            document["misc"]["error"] = ("cancelled", why)


def _cancel_all(submitters: Sequence[Submitter], why: str) -> None:
    """End what runs, as far as there is somebody who can be told; what made it necessary counts, not that nobody is."""
    for submitter in submitters:
        submitter.refuse(why)
    try:
        for submitter in submitters:
            submitter.cancel(why)
    except RpcError as error:
        # Of the others it would take as long to find out; whoever waits for their jobs does as well.
        logger.warning("jobs could not be ended: %s", error)


def submitter_of_this_thread() -> Submitter:
    """Return who submits the jobs of the trial that this thread evaluates."""
    found = submit_instead.get()
    assert isinstance(found, Submitter)
    return found


class Submitter:
    """Submits the jobs of one trial; what ``eps.run`` calls in its objective."""

    def __init__(self, where: Where, sweep: str, tid: int, retries: int) -> None:
        self._scheduler = where.scheduler
        self._container = where.cluster.container()
        self._sweep = sweep
        self._tid = tid
        self._retries = retries
        self._lock = threading.Lock()
        self._num_waiting = 0
        #: Why it takes no more jobs.
        self._refuses = ""
        self._num_runs = 0
        self._submissions: list[Submission] = []
        self._ends: list[Callable[[], None]] = []

    def __call__(self, request: RunRequest) -> dict[str, Any]:
        """Submit a job and wait for its report; one that failed is tried again.  Raises as ``eps.run``."""
        with self._lock:
            self._num_runs += 1
            run_id = f"{self._sweep}-{self._tid}" + (f"-{self._num_runs}" if self._num_runs > 1 else "")
        for attempt in range(1, self._retries + 2):
            submission = self._submit(request, attempt_id(run_id, attempt))
            self._wait(submission)
            if not worth_another(submission):
                break
        if submission.phase is Phase.FINISHED and submission.report is not None:
            if request.report or request.export:
                self._scheduler.deliver(submission, request)
            return submission.report
        why, job_id = submission.why or "no reason given", submission.job_id
        if submission.is_stopped and submission.feedback is not None:
            raise StoppedEarlyError(f"job {job_id} was ended early: {why}", submission.feedback)
        raise TrainingError(f"job {job_id} {submission.phase or 'was lost'}: {why}")

    def _submit(self, request: RunRequest, job_id: str) -> Submission:
        with self._lock:
            if self._refuses:
                raise TrainingError(self._refuses)
            asked = request_of(request.spec, job_id, self._sweep, self._container)
            submission = self._scheduler.submit(e.JobSubmitted(asked), request.spec)
            self._submissions.append(submission)
            return submission

    def _wait(self, submission: Submission) -> None:
        with self._lock:
            self._num_waiting += 1
        try:
            self._scheduler.wait(submission)
        finally:
            with self._lock:
                self._num_waiting -= 1

    @property
    def is_waiting(self) -> bool:
        """True while its objective waits for a job."""
        with self._lock:
            return self._num_waiting > 0

    def job_ids(self) -> list[str]:
        """Return the jobs that it has submitted, the first one first."""
        with self._lock:
            return [submission.job_id for submission in self._submissions]

    def why_ended_early(self) -> str | None:
        """Return why one of its jobs was ended for its early feedback; None where none was."""
        with self._lock:
            ended = [each for each in self._submissions if each.is_stopped and each.phase is Phase.KILLED]
        return ended[0].why if ended else None

    def cancel(self, why: str) -> None:
        """End the jobs of the trial and what else was to end with it, and refuse further ones."""
        self.refuse(why)
        with self._lock:
            submissions = list(self._submissions)
        for submission in submissions:
            if not submission.is_over:
                self._scheduler.cancel(submission.job_id, why)

    def refuse(self, why: str) -> None:
        """Take no more jobs, and end what else was to end with the trial."""
        with self._lock:
            self._refuses = self._refuses or why
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    def on_cancel(self, end: Callable[[], None]) -> None:
        """Have ``end`` called when the trial is cancelled, at once where it has been."""
        with self._lock:
            if not self._refuses:
                self._ends.append(end)
                return
        end()
