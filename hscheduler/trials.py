"""Use H-scheduler from Hyperopt: ``fmin(objective, space, algo=tpe.suggest, trials=HTrials(parallelism=4))``.

The objective calls ``eps.run(...)``.  Under :class:`HTrials` that submits a job to the scheduler and waits for its
report; under plain ``Trials`` it trains at once.  Objectives run on threads of this process, or each in its own
process.  Jobs run in other processes.  Needs the extra ``sweep``.

Source: EPS §6 (Hyperopt generates the jobs); SparkTrials of Hyperopt for the interface.  Deviation: a point that the
stopping rule killed counts as a completed trial, with its early feedback as loss.  The algorithm learns from it, but
its mark ``killed`` excludes it from the best.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from hyperopt import (
    JOB_STATE_DONE,
    JOB_STATE_ERROR,
    JOB_STATE_NEW,
    JOB_STATE_RUNNING,
    STATUS_FAIL,
    STATUS_OK,
    Trials,
    base,
    progress,
)
from hyperopt.base import JOB_STATE_CANCEL
from hyperopt.exceptions import AllTrialsFailed
from hyperopt.fmin import generate_trial, space_eval
from hyperopt.utils import coarse_utcnow

from eps.errors import ConfigError, RpcError, StoppedEarlyError, TrainingError
from eps.job.client import submit_instead
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.system.threads import ThreadPerCall
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.core.rungs import DEFAULT, Stopping
from hscheduler.live.job_results import own_report
from hscheduler.live.objective import Objective
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.live.submission import Submission, attempt_id, is_retryable
from hscheduler.spec import MOST_TRIALS, ClusterSpec, checked_stopping, direction_of, request_of
from hscheduler.stopping import RULES

logger = logging.getLogger(__name__)

#: Seconds between checks of the stopping conditions.
POLL_S = 0.1
#: Seconds that an objective may run after its jobs have ended.
GRACE_S = 3.0
#: Reason for cancelling running jobs.
STOPPED = "fmin stopped"


class JobScheduler(Protocol):
    """Submits jobs: a scheduler in this process, or the client of a service."""

    def open_sweep(self, opened: e.SweepOpened) -> None:
        """Open a sweep; the event says how its jobs are ranked."""

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        """Submit a job."""

    def wait(self, submission: Submission) -> None:
        """Wait until the job has ended."""

    def cancel(self, job_id: str, why: str) -> object:
        """Cancel a job."""

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        """Write the report and the model to the requested paths."""


@dataclass(frozen=True)
class Where:
    """The scheduler and the settings for the jobs of a search."""

    scheduler: JobScheduler
    cluster: ClusterSpec
    threshold: int | None
    #: None: the settings of the scheduler.
    settings: LiveSettings | None
    stopping: Stopping
    stop_diverged: bool
    #: Rules that the user was warned of.
    warned: set[str] = field(default_factory=set)

    def warn_if_not_judged(self, iterations: int) -> None:
        """Warn if the stopping rule judges trials at rungs, and a job ends before the first one."""
        rule, grace = self.stopping.rule, self.stopping.grace_iterations
        own = self.scheduler.settings if isinstance(self.scheduler, LiveScheduler) else None
        settings = self.settings or own
        first = grace or (0 if settings is None else settings.feedback_iteration)
        rungs = RULES[rule or "none"].rungs(replace(self.stopping, grace_iterations=first))
        if rungs.first >= max(1, iterations) and rule not in self.warned:
            self.warned.add(rule)
            told = f"grace_iterations is {first}" + ("" if grace else " (the feedback iteration)")
            logger.warning(
                "%s, but a job has %d iterations: stop=%r does not judge it; set grace_iterations lower, as in "
                "HTrials(stop=%r, grace_iterations=%d)",
                *(told, iterations, rule, rule, max(1, iterations // self.stopping.eta**2)),
            )

    def opened(self, sweep: str, direction: Direction, trials: int) -> e.SweepOpened:
        """Return the event that opens a sweep of so many trials for the search."""
        settings = self.settings
        metric, iteration = ("", 0) if settings is None else (settings.metric, settings.feedback_iteration)
        return e.SweepOpened(
            sweep,
            direction,
            self.threshold,
            metric,
            iteration,
            self.stopping,
            trials,
            stop_diverged=self.stop_diverged,
        )


class Stop:
    """Stopping conditions of a search.  The timeout starts at construction."""

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
        """Return whether the timeout has passed."""
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s

    def after(self, finished: Trials) -> bool:
        """Return whether to stop; call it once after each trial that ended."""
        stop = False
        if self._early_stop_fn is not None and len(finished):
            stop, self._early_stop_args = self._early_stop_fn(finished, *self._early_stop_args)
        best = best_loss(finished)
        # As in Hyperopt: strictly below.
        reached = self._loss_threshold is not None and best is not None and best < self._loss_threshold
        return bool(stop) or reached


def best_loss(trials: Trials) -> float | None:
    """Return the lowest loss of trials; None if there is none."""
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
        #: Points that may still be generated.
        self._left = max_evals - len(trials)
        self._max_evals = max_evals
        waiting = sum(document["state"] == JOB_STATE_NEW for document in trials._dynamic_trials)
        #: Trials whose objectives may submit jobs.
        self._expected: int = self._left + waiting + trials.num_first
        #: The number of trials with which the sweep is open.
        self._opened_with = 0
        self._stop = stop
        self._rstate = rstate
        self._catch = catch
        self._progress = progress
        #: Finished documents, in the order in which they finished.
        self._finished = [document for document in trials._dynamic_trials if document["state"] == JOB_STATE_DONE]
        #: A sweep of its own, so that its jobs are ranked only against each other.
        self._sweep = f"fmin-{uuid.uuid4().hex[:8]}"

    def exhaust(self, where: Where) -> None:
        """Evaluate points until none is left or a stopping condition holds."""
        trials, running = self._trials, dict[Future[Any], tuple[dict[str, Any], Submitter]]()
        self._open(where)
        # Neither this call nor interpreter exit may wait for an objective that hangs.
        threads = ThreadPerCall("objective")
        try:
            with self._progress(initial=len(self._finished), total=self._max_evals) as shown:
                while not self._stop.too_late():
                    while num_active(running) < trials.parallelism:
                        self._note_values(running)
                        if (document := self._next()) is None:
                            break
                        submitter = Submitter(where, self._sweep, int(document["tid"]), trials.retries)
                        document["state"] = JOB_STATE_RUNNING
                        document["book_time"] = document["refresh_time"] = coarse_utcnow()
                        running[threads.submit(self._evaluate, document, submitter)] = document, submitter
                    if self._num_trials() != self._opened_with:
                        self._open(where)
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

    def _open(self, where: Where) -> None:
        """Open the sweep, or correct its number of trials: its stopping rule may wait for all of them."""
        self._opened_with = self._num_trials()
        where.scheduler.open_sweep(where.opened(self._sweep, self._trials.direction, self._opened_with))

    def _num_trials(self) -> int:
        """Return how many trials to announce: as many as possible if only another condition ends the search."""
        return max(0, min(self._expected, MOST_TRIALS))

    def _end(self, running: Mapping[Future[Any], tuple[dict[str, Any], Submitter]]) -> None:
        """Cancel running trials.  An objective that keeps running is abandoned with a warning."""
        _cancel_all([submitter for _, submitter in running.values()], STOPPED)
        left = set(running)
        deadline_s = time.monotonic() + GRACE_S
        while left and time.monotonic() < deadline_s:
            _, left = wait(left, POLL_S)
            if any(running[future][1].is_waiting for future in left):
                # The objective returns when its job ends, and the job has its own deadlines.
                deadline_s = time.monotonic() + GRACE_S
        for future, (document, _) in running.items():
            self._cancelled(document, None if future in left else future)
        if left:
            numbers = ", ".join(str(tid) for tid in sorted(running[future][0]["tid"] for future in left))
            can = "" if self._trials.processes else "; use HTrials(processes=True), which can kill it"
            logger.warning("the objective of trial %s still runs outside eps.run and is abandoned%s", numbers, can)

    def _note_values(self, running: Mapping[Future[Any], tuple[dict[str, Any], Submitter]]) -> None:
        """Give trials at a rung its value as a loss: Hyperopt counts those without one, the best ones, as bad."""
        for document, submitter in running.values():
            value = submitter.rung_value()
            if value is not None and not math.isnan(value):
                document["result"] = {"status": STATUS_OK, "loss": self._trials.loss_of(value)}

    def _next(self) -> dict[str, Any] | None:
        """Return the next point as a Hyperopt document; None if there is none."""
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
            self._expected -= self._left
            self._left = 0
            return None
        self._left -= len(documents)
        trials.insert_trial_docs(documents)
        trials.refresh()
        return self._next()

    def _evaluate(self, document: dict[str, Any], submitter: Submitter) -> Any:
        """Call the objective, on its own thread."""
        submit_instead.set(submitter)
        try:
            spec = base.spec_from_misc(document["misc"])
            found = self._domain.evaluate(spec, base.Ctrl(self._trials, current_trial=document))
            # The objective may have caught StoppedEarlyError; the loss of a killed job must not become the best.
            why = submitter.why_ended_early()
            return found if why is None else {"why": why, **found, "killed": True}
        except StoppedEarlyError as stopped:
            loss = self._trials.loss_of(stopped.feedback)
            return {"status": STATUS_OK, "loss": loss, "killed": True, "why": str(stopped)}
        except TrainingError as error:
            why = submitter.why_diverged()
            if why is None or why not in str(error):
                raise
            return {"status": STATUS_FAIL, "killed": True, "why": why}
        finally:
            submit_instead.set(None)

    def _conclude(self, document: dict[str, Any], submitter: Submitter, future: Future[Any], shown: Any) -> bool:
        """Record the result of a point; return whether to stop."""
        error = future.exception()
        document["refresh_time"] = coarse_utcnow()
        document["misc"]["jobs"] = submitter.job_ids()
        if not document["misc"]["jobs"]:
            # An objective need not train.
            self._expected -= 1
        if error is None:
            document["state"], document["result"] = JOB_STATE_DONE, future.result()
            self._finished.append(document)
        else:
            document["state"] = JOB_STATE_ERROR
            document["misc"]["error"] = (str(type(error)), str(error))
            logger.error("trial %d: %s", document["tid"], error)
        self._trials.refresh()
        # As in Hyperopt: KeyboardInterrupt and SystemExit are not failures of a point.
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
        """Record the result of a cancelled point, which may have finished before the cancellation."""
        if future is not None and future.exception() is None:
            document["state"], document["result"] = JOB_STATE_DONE, future.result()
        else:
            document["state"] = JOB_STATE_CANCEL
            why = STOPPED if future is not None else f"{STOPPED}, but its objective still runs outside eps.run"
            document["misc"]["error"] = ("cancelled", why)


def num_active(running: Mapping[Future[Any], tuple[dict[str, Any], Submitter]]) -> int:
    """Return how many trials are not paused."""
    return sum(not submitter.is_paused for _, submitter in running.values())


def _cancel_all(submitters: Sequence[Submitter], why: str) -> None:
    """Cancel running jobs.  An unreachable scheduler is only logged, so that the original error is raised."""
    for submitter in submitters:
        submitter.refuse(why)
    try:
        for submitter in submitters:
            submitter.cancel(why)
    except RpcError as error:
        # Each further attempt would time out as well, and so do the waits for the other jobs.
        logger.warning("jobs could not be cancelled: %s", error)


def submitter_of_this_thread() -> Submitter:
    """Return the submitter of the trial that this thread evaluates."""
    found = submit_instead.get()
    assert isinstance(found, Submitter)
    return found


class Submitter:
    """Submits the jobs of one trial; ``eps.run`` calls it inside an objective."""

    def __init__(self, where: Where, sweep: str, tid: int, retries: int) -> None:
        self._where, self._scheduler = where, where.scheduler
        self._sweep = sweep
        self._tid = tid
        self._retries = retries
        self._lock = threading.Lock()
        self._num_waiting = 0
        #: Reason for rejecting further jobs; empty while jobs are accepted.
        self._refuses = ""
        self._num_runs = 0
        self._submissions: list[Submission] = []
        self._ends: list[Callable[[], None]] = []

    def __call__(self, request: RunRequest) -> dict[str, Any]:
        """Submit a job and wait for its report; retry if it failed.  Raises as ``eps.run``."""
        with self._lock:
            self._num_runs += 1
            run_id = f"{self._sweep}-{self._tid}" + (f"-{self._num_runs}" if self._num_runs > 1 else "")
        for attempt in range(1, self._retries + 2):
            submission = self._submit(request, attempt_id(run_id, attempt))
            self._wait(submission)
            if not is_retryable(submission):
                break
        if submission.phase is Phase.FINISHED and (report := own_report(submission)) is not None:
            if request.report or request.export:
                self._scheduler.deliver(submission, request)
            return report
        why, job_id = submission.why or "no reason given", submission.job_id
        if submission.is_stopped and submission.stopped_with is not None and not submission.has_diverged:
            raise StoppedEarlyError(f"job {job_id} was stopped early: {why}", submission.stopped_with)
        raise TrainingError(f"job {job_id} {submission.phase or 'was lost'}: {why}")

    def _submit(self, request: RunRequest, job_id: str) -> Submission:
        with self._lock:
            if self._refuses:
                raise TrainingError(self._refuses)
            self._where.warn_if_not_judged(request.spec.iterations)
            asked = request_of(request.spec, job_id, self._sweep, self._where.cluster)
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
        """True while the objective waits for a job."""
        with self._lock:
            return self._num_waiting > 0

    @property
    def is_paused(self) -> bool:
        """True while the stopping rule has paused the trial's job."""
        with self._lock:
            return bool(self._submissions) and self._submissions[-1].is_paused

    def rung_value(self) -> float | None:
        """Return the value of the trial's latest job at its last rung; None before it has reached one."""
        with self._lock:
            rungs = self._submissions[-1].rungs if self._submissions else []
        return rungs[-1][1] if rungs else None

    def job_ids(self) -> list[str]:
        """Return the submitted jobs, in order."""
        with self._lock:
            return [submission.job_id for submission in self._submissions]

    def why_ended_early(self) -> str | None:
        """Return the reason why one of the trial's jobs was killed for its early feedback; None if none was."""
        with self._lock:
            ended = [
                each
                for each in self._submissions
                if each.is_stopped and each.phase is Phase.KILLED and not each.has_diverged
            ]
        return ended[0].why if ended else None

    def why_diverged(self) -> str | None:
        """Return the reason why the trial's latest job was killed if its training diverged; None otherwise."""
        with self._lock:
            last = self._submissions[-1] if self._submissions else None
        return last.why if last is not None and last.has_diverged else None

    def cancel(self, why: str) -> None:
        """Reject further jobs, call the ``on_cancel`` callbacks, and cancel the running jobs."""
        self.refuse(why)
        with self._lock:
            submissions = list(self._submissions)
        for submission in submissions:
            if not submission.is_over:
                self._scheduler.cancel(submission.job_id, why)

    def refuse(self, why: str) -> None:
        """Reject further jobs, and call the ``on_cancel`` callbacks."""
        with self._lock:
            self._refuses = self._refuses or why
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    def on_cancel(self, end: Callable[[], None]) -> None:
        """Call ``end`` when the trial is cancelled; at once if it already was."""
        with self._lock:
            if not self._refuses:
                self._ends.append(end)
                return
        end()


#: Most reasons listed if no trial has a result.
MOST_REASONS = 3


class HTrials(Trials):  # type: ignore[misc]
    """Hyperopt trials that evaluate objectives concurrently and run their jobs under H-scheduler.

    The loss of a trial that the stopping rule killed is the last value that the rule saw, at the trial's last rung or
    as its early feedback: the metric, negated if higher is better.  A paused trial waits in its ``eps.run`` and does
    not count towards ``parallelism``.

    The algorithm compares that loss with the losses that the objective returns.  The objective must therefore return
    the same quantity: ``report["metrics"]["train_loss"]`` by default; for ``accuracy`` its negative, not
    ``1 - accuracy``.

    Parameters
    ----------
    scheduler : LiveScheduler, SchedulerClient or str, optional
        A scheduler in this process, the client of a service, or the address of a service (HOST:PORT, with the folder
        ``tls`` in ``state``).  By default ``fmin`` starts its own scheduler and stops it at the end.
    parallelism : int
        Objectives that run concurrently.  1 evaluates serially, with the same points as plain ``Trials`` for a seed.
    cluster : ClusterSpec, optional
        Cluster of the scheduler that ``fmin`` starts.
    settings : LiveSettings, optional
        Metric and feedback iteration of the jobs, and the policy if ``fmin`` starts the scheduler.  By default those of
        the scheduler.
    threshold : int, optional
        Most jobs in the training phase; by default as many as fit the cluster.
    direction : Direction, optional
        Whether lower or higher early feedback is better; by default that of the metric, if EPS knows it.
    points_to_evaluate : sequence of mapping, optional
        Points tried first, in addition to ``max_evals``, as in Hyperopt.  Pass them here: ``fmin`` does not pass its
        own argument of that name to trials.
    retries : int
        How often a failed job is retried, as a new job, before its ``eps.run`` raises.  A job that diverged or cannot
        start is not retried.  ``trial["misc"]["jobs"]`` lists the jobs of a trial.
    processes : bool
        Evaluate each objective in a separate process; it is pickled with cloudpickle.  Threads share one interpreter,
        and ``fmin`` cannot kill a thread that hangs outside ``eps.run``: it abandons it.
    stop, eta, grace_iterations, max_iterations
        The stopping rule and its parameters, as in ``[sweep]`` of a sweep's file.  ``sha`` needs ``max_evals``, and one
        job for each trial.
    stop_diverged : bool
        Kill a job whose training loss grows exponentially and is orders of magnitude above its first value.  A job
        whose loss is not finite ends in any case.  The ``eps.run`` of a job that diverged raises TrainingError.  If the
        objective does not catch it, the result of its point is ``{"status": "fail", "killed": True, "why": ...}``, and
        the search goes on.
    state : path, optional
        The directory of a service (``hscheduler serve --state``), which has its address; together with an address the
        default is ``EPS_HOME/hscheduler``.  With the directory of ``hscheduler serve --on yarn`` the jobs run on YARN.

    Raises
    ------
    ConfigError
        ``parallelism`` is below 1; ``retries`` is below 0; ``state`` is given with a scheduler or a client; or
        ``direction`` is missing and the metric is unknown.
    """

    def __init__(
        self,
        scheduler: JobScheduler | str | None = None,
        parallelism: int = 4,
        *,
        cluster: ClusterSpec | None = None,
        settings: LiveSettings | None = None,
        threshold: int | None = None,
        direction: Direction | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] = (),
        retries: int = 1,
        processes: bool = False,
        state: str | Path | None = None,
        stop: str = "",
        eta: int = DEFAULT.eta,
        grace_iterations: int = 0,
        max_iterations: int = 0,
        stop_diverged: bool = True,
    ) -> None:
        for name, value, least in (("parallelism", parallelism, 1), ("retries", retries, 0)):
            if value < least:
                raise ConfigError(f"{name} is {value}, but must be at least {least}")
        if state is not None and not isinstance(scheduler, str | None):
            raise ConfigError(f"state is {str(state)!r}, but must be omitted with a scheduler or a client")
        super().__init__()
        self.parallelism = parallelism
        self.retries = retries
        self.processes = processes
        self._scheduler = scheduler
        self._state = state
        self._cluster = cluster or ClusterSpec()
        self._settings = settings
        self._threshold = threshold
        self._stopping = checked_stopping(stop, eta, grace_iterations, max_iterations)
        self._stop_diverged = stop_diverged
        own = scheduler.settings if isinstance(scheduler, LiveScheduler) else LiveSettings()
        self.direction = direction_of(direction or "", (settings or own).metric)
        self._first = [generate_trial(number, dict(point)) for number, point in enumerate(points_to_evaluate)]

    @property
    def num_first(self) -> int:
        """Number of points to evaluate that have not been inserted yet."""
        return len(self._first)

    def loss_of(self, value: float) -> float:
        """Return a value of the metric as a loss: Hyperopt minimises, so one to maximise is negated."""
        return value if self.direction is Direction.MINIMIZE else -value

    def whole(self, documents: Sequence[Mapping[str, Any]]) -> Trials:
        """Return the completed documents that were not stopped early, as trials; the best trial is one of them."""
        found = Trials()
        completed = (document for document in documents if document["state"] == JOB_STATE_DONE)
        found._insert_trial_docs([document for document in completed if not document["result"].get("killed")])
        found.attachments = self.attachments
        found.refresh()
        return found

    @property
    def best_trial(self) -> dict[str, Any]:
        """The trial with the lowest loss among those that were not stopped early; ``argmin`` is its point.

        Raises
        ------
        hyperopt.exceptions.AllTrialsFailed
            No trial has such a result.  The message has the reasons.
        """
        try:
            best: dict[str, Any] = self.whole(self.trials).best_trial
        except AllTrialsFailed:
            raise AllTrialsFailed(why_none(self._dynamic_trials)) from None
        return best

    def average_best_error(self, bandit: Any = None) -> float:
        """Return ``average_best_error`` of the trials not stopped early.  Raises ValueError if there is none."""
        return float(self.whole(self.trials).average_best_error(bandit))

    def fmin(
        self,
        fn: Callable[..., Any],
        space: Any,
        algo: Callable[..., Any] | None = None,
        max_evals: int | None = None,
        timeout: float | None = None,
        loss_threshold: float | None = None,
        rstate: np.random.Generator | None = None,
        pass_expr_memo_ctrl: bool | None = None,
        verbose: bool = True,
        catch_eval_exceptions: bool = False,
        return_argmin: bool = True,
        show_progressbar: Any = True,
        early_stop_fn: Callable[..., tuple[bool, Sequence[Any]]] | None = None,
        trials_save_file: str = "",
        **ignored: Any,
    ) -> Any:
        """Minimise; called by ``hyperopt.fmin`` with its own arguments.

        When a stopping condition holds (``timeout``, ``loss_threshold``, ``early_stop_fn``), or on an exception or
        Ctrl-C, running trials are cancelled: their jobs and processes end before this returns.  An objective on a
        thread that runs on outside ``eps.run`` for three seconds is abandoned with a warning.  It does not delay the
        exit of the program.

        ``early_stop_fn`` is called after each trial, with the completed trials that were not stopped early, in the
        order of their ends.  ``max_queue_len`` is ignored: :attr:`parallelism` limits the concurrent points.

        Raises
        ------
        ConfigError
            An argument is not supported here.
        hyperopt.exceptions.AllTrialsFailed
            Every trial failed or was stopped early.  The message has the reasons.
        Exception
            An objective raised it, and ``catch_eval_exceptions`` is not set; or Hyperopt rejects the space.
        """
        if self._stopping.rule == "sha" and max_evals in (None, sys.maxsize):
            raise ConfigError("stop is 'sha', which needs the number of trials: set max_evals, or use asha")
        if trials_save_file:
            raise ConfigError("trials_save_file is not possible with HTrials, which hold a scheduler")
        domain = self._domain(fn, space, pass_expr_memo_ctrl)
        run = Run(
            self,
            domain,
            algo or _tpe(),
            sys.maxsize if max_evals is None else max_evals,
            Stop(timeout, loss_threshold, early_stop_fn),
            np.random.default_rng() if rstate is None else rstate,
            catch_eval_exceptions,
            _progress(verbose, show_progressbar),
        )
        # After Run has counted the trials: these points do not count towards max_evals.
        self.insert_trial_docs(self._first)
        self._first = []
        self.refresh()
        with ExitStack() as stack:
            scheduler = self._scheduler
            if scheduler is None and self._state is None:
                own = LiveScheduler(self._cluster.capacities(), self._settings or LiveSettings())
                scheduler = stack.enter_context(own)
            elif scheduler is None or isinstance(scheduler, str):
                # Imported late: a search with its own scheduler does not need gRPC.
                from hscheduler.service.client import SchedulerClient

                scheduler = stack.enter_context(SchedulerClient(self._state, scheduler or ""))
            where = Where(
                scheduler, self._cluster, self._threshold, self._settings, self._stopping, self._stop_diverged
            )
            run.exhaust(where)
        if return_argmin:
            return self.argmin
        return space_eval(space, self.argmin) if len(self) else None

    def _domain(self, fn: Callable[..., Any], space: Any, pass_expr_memo_ctrl: bool | None) -> Any:
        if not self.processes:
            return base.Domain(fn, space, pass_expr_memo_ctrl=pass_expr_memo_ctrl)
        if pass_expr_memo_ctrl or getattr(fn, "fmin_pass_expr_memo_ctrl", False):
            raise ConfigError("pass_expr_memo_ctrl is not possible with processes: the trials are in another process")
        return base.Domain(Objective(fn, submitter_of_this_thread), space, pass_expr_memo_ctrl=False)


def why_none(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return why no trial has a result: the reasons of Hyperopt's documents, the most frequent first."""
    if not documents:
        return "no trial has started"
    found = Counter(_outcome(document) for document in documents).most_common()
    shown = [f"{what} ({number} of {len(documents)})" for what, number in found[:MOST_REASONS]]
    if len(found) > MOST_REASONS:
        shown.append(f"{len(found) - MOST_REASONS} other reasons")
    return f"no trial has a result: {'; '.join(shown)}"


def _outcome(document: Mapping[str, Any]) -> str:
    if "error" in document["misc"]:
        kind, why = document["misc"]["error"]
        return f"cancelled: {why}" if kind == "cancelled" else f"failed: {why or kind}"
    result = document["result"]
    if result.get("killed"):
        how = "diverged" if result["status"] == STATUS_FAIL else "stopped early"
        return f"{how}: {result.get('why', '')}"
    if document["state"] != JOB_STATE_DONE:
        return "not tried"
    return f"status {result['status']}, loss {result.get('loss')}"


def _tpe() -> Callable[..., Any]:
    from hyperopt import tpe

    suggest: Callable[..., Any] = tpe.suggest
    return suggest


def _progress(verbose: bool, show_progressbar: Any) -> Any:
    """Return the callback that shows Hyperopt's progress; ``show_progressbar`` is a bool or a user's own callback."""
    if not verbose or not show_progressbar:
        return progress.no_progress_callback
    return progress.default_callback if show_progressbar is True else show_progressbar
