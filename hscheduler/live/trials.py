"""Hyperopt's own door: ``fmin(objective, space, algo=tpe.suggest, trials=HTrials(parallelism=4))``.

The objective calls ``eps.run(...)``.  Under :class:`HTrials` that submits a job to the scheduler and waits for its
report; under plain ``Trials`` it trains at once.  Objectives run on threads of this process, the jobs in processes of
their own; needs the extra ``eps[sweep]``.

Source: EPS §6 (Hyperopt generates the jobs); SparkTrials of Hyperopt for the interface.  Deviation: a point that the
stopping rule ended is a trial that is done, with its early feedback as loss, from which the algorithm learns; marked
``killed``, it is never the best.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from hyperopt import JOB_STATE_DONE, JOB_STATE_ERROR, JOB_STATE_NEW, JOB_STATE_RUNNING, STATUS_OK, Trials, base
from hyperopt.fmin import generate_trial, space_eval
from hyperopt.utils import coarse_utcnow

from eps.client import Job, deliver, submit_instead
from eps.errors import ConfigError, StoppedEarlyError, TrainingError
from eps.jobspec_file import RunRequest
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.live.scheduler import LiveScheduler, LiveSettings, Submission
from hscheduler.spec import ClusterSpec, request_of

logger = logging.getLogger(__name__)

#: How often stopping conditions are looked at while nothing ends.
POLL_S = 0.1


class HTrials(Trials):  # type: ignore[misc]
    """Trials whose objectives run at the same time, their jobs under H-scheduler.

    Parameters
    ----------
    scheduler : LiveScheduler, optional
        Where jobs are submitted; by default one of its own for the time of ``fmin``.
    parallelism : int
        Objectives that run at once.  1 evaluates serially, and finds what plain ``Trials`` find for the same seed.
    cluster : ClusterSpec, optional
        Of a scheduler of its own.
    settings : LiveSettings, optional
        Of a scheduler of its own: policy, metric, feedback iteration.
    threshold : int, optional
        Jobs in the training phase; by default as many as fit the cluster.
    direction : Direction
        Which early feedback is better.
    points_to_evaluate : sequence of mapping, optional
        Tried first; ``fmin`` does not hand its own argument of that name to trials.

    Raises
    ------
    ConfigError
        ``parallelism`` is below 1.
    """

    def __init__(
        self,
        scheduler: LiveScheduler | None = None,
        parallelism: int = 4,
        *,
        cluster: ClusterSpec | None = None,
        settings: LiveSettings | None = None,
        threshold: int | None = None,
        direction: Direction = Direction.MINIMIZE,
        points_to_evaluate: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        if parallelism < 1:
            raise ConfigError(f"parallelism is {parallelism}, but must be at least 1")
        super().__init__()
        self.parallelism = parallelism
        self._scheduler = scheduler
        self._cluster = cluster or ClusterSpec()
        self._settings = settings or LiveSettings()
        self._threshold = threshold
        self.direction = direction
        self._first = [generate_trial(number, dict(point)) for number, point in enumerate(points_to_evaluate)]

    @property
    def best_trial(self) -> dict[str, Any]:
        """The trial with the lowest loss of those that were not ended early.

        Raises
        ------
        hyperopt.exceptions.AllTrialsFailed
            There is none.
        """
        from hyperopt.exceptions import AllTrialsFailed

        candidates = [
            trial
            for trial in self.trials
            if trial["result"]["status"] == STATUS_OK
            and not trial["result"].get("killed")
            and not math.isnan(trial["result"]["loss"])
        ]
        if not candidates:
            raise AllTrialsFailed
        best: dict[str, Any] = min(candidates, key=lambda trial: float(trial["result"]["loss"]))
        return best

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
        early_stop_fn: Callable[..., tuple[bool, Sequence[Any]]] | None = None,
        trials_save_file: str = "",
        **ignored: Any,
    ) -> Any:
        """Minimise; called by ``hyperopt.fmin``, whose parameters these are.

        What still runs when it stops (``timeout``, ``loss_threshold``, ``early_stop_fn``, an exception, Ctrl-C) is
        cancelled: its jobs end before this returns.  ``max_queue_len`` and the progress bar are left alone: the
        number of points at once is :attr:`parallelism`.
        """
        if trials_save_file:
            raise ConfigError("trials_save_file is not possible with HTrials: they hold a scheduler")
        run = _Run(
            self,
            base.Domain(fn, space, pass_expr_memo_ctrl=pass_expr_memo_ctrl),
            algo or _tpe(),
            sys.maxsize if max_evals is None else max_evals,
            _Stop(timeout, loss_threshold, early_stop_fn),
            np.random.default_rng() if rstate is None else rstate,
            catch_eval_exceptions,
        )
        if self._first:
            self.insert_trial_docs(self._first)
            self._first = []
            self.refresh()
        if self._scheduler is not None:
            run.exhaust(self._scheduler, self._cluster, self._threshold)
        else:
            with LiveScheduler(self._cluster.capacities(), self._settings) as scheduler:
                run.exhaust(scheduler, self._cluster, self._threshold)
        if return_argmin:
            return self.argmin
        return space_eval(space, self.argmin) if len(self) else None


def _tpe() -> Callable[..., Any]:
    from hyperopt import tpe

    suggest: Callable[..., Any] = tpe.suggest
    return suggest


class _Stop:
    """When to stop before all points are tried."""

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
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s

    def after(self, trials: Trials) -> bool:
        """Look at what has been found, once for each trial that is done."""
        stop = False
        if self._early_stop_fn is not None:
            stop, self._early_stop_args = self._early_stop_fn(trials, *self._early_stop_args)
        losses = [loss for loss in trials.losses() if loss is not None and not math.isnan(loss)]
        reached = self._loss_threshold is not None and bool(losses) and min(losses) <= self._loss_threshold
        return bool(stop) or reached


class _Run:
    """One call of ``fmin``."""

    def __init__(
        self,
        trials: HTrials,
        domain: Any,
        algo: Callable[..., Any],
        max_evals: int,
        stop: _Stop,
        rstate: np.random.Generator,
        catch: bool,
    ) -> None:
        self._trials = trials
        self._domain = domain
        self._algo = algo
        self._max_evals = max_evals
        self._stop = stop
        self._rstate = rstate
        self._catch = catch
        self._exhausted = False
        #: Its jobs are ranked among each other only.
        self._sweep = f"fmin-{uuid.uuid4().hex[:4]}"

    def exhaust(self, scheduler: LiveScheduler, cluster: ClusterSpec, threshold: int | None) -> None:
        """Evaluate until there is no more to do, or a reason to stop."""
        scheduler.open_sweep(e.SweepOpened(self._sweep, self._trials.direction, threshold))
        trials, running = self._trials, dict[Future[Any], tuple[dict[str, Any], _Submitter]]()
        pool = ThreadPoolExecutor(trials.parallelism, thread_name_prefix="objective")
        try:
            while not self._stop.too_late():
                while len(running) < trials.parallelism:
                    document = self._next()
                    if document is None:
                        break
                    submitter = _Submitter(scheduler, cluster, self._sweep, int(document["tid"]))
                    document["state"] = JOB_STATE_RUNNING
                    document["book_time"] = document["refresh_time"] = coarse_utcnow()
                    running[pool.submit(self._evaluate, document, submitter)] = document, submitter
                if not running:
                    return
                done, _ = wait(running, POLL_S, FIRST_COMPLETED)
                stop = False
                for future in done:
                    document, _ = running.pop(future)
                    self._conclude(document, future)
                    stop = self._stop.after(trials) or stop
                if stop:
                    return
        finally:
            for _, submitter in running.values():
                submitter.cancel()
            pool.shutdown(wait=True)
            for future, (document, _) in running.items():
                self._cancelled(document, future)
            trials.refresh()

    def _next(self) -> dict[str, Any] | None:
        """Return the next point to try, as Hyperopt's document; None where there is none."""
        trials = self._trials
        waiting: list[dict[str, Any]] = [d for d in trials._dynamic_trials if d["state"] == JOB_STATE_NEW]
        if waiting:
            return waiting[0]
        if self._exhausted or len(trials._dynamic_trials) >= self._max_evals:
            return None
        ids = trials.new_trial_ids(1)
        trials.refresh()
        documents = self._algo(ids, self._domain, trials, self._rstate.integers(2**31 - 1))
        if not documents:
            self._exhausted = True
            return None
        trials.insert_trial_docs(documents)
        trials.refresh()
        return self._next()

    def _evaluate(self, document: dict[str, Any], submitter: _Submitter) -> Any:
        """Call the objective, on a thread of its own."""
        submit_instead.set(submitter)
        try:
            spec = base.spec_from_misc(document["misc"])
            return self._domain.evaluate(spec, base.Ctrl(self._trials, current_trial=document))
        except StoppedEarlyError as stopped:
            # A loss is minimised, whatever the feedback is.
            sign = 1.0 if self._trials.direction is Direction.MINIMIZE else -1.0
            return {"status": STATUS_OK, "loss": sign * stopped.feedback, "killed": True, "why": str(stopped)}
        finally:
            submit_instead.set(None)

    def _conclude(self, document: dict[str, Any], future: Future[Any]) -> None:
        error = future.exception()
        document["refresh_time"] = coarse_utcnow()
        if error is None:
            document["state"], document["result"] = JOB_STATE_DONE, future.result()
        else:
            document["state"] = JOB_STATE_ERROR
            document["misc"]["error"] = (str(type(error)), str(error))
        self._trials.refresh()
        if error is not None:
            logger.error("trial %d: %s", document["tid"], error)
            if not self._catch:
                raise error

    def _cancelled(self, document: dict[str, Any], future: Future[Any]) -> None:
        if future.exception() is None and not future.result().get("cancelled"):
            document["state"], document["result"] = JOB_STATE_DONE, future.result()
        else:
            document["state"] = JOB_STATE_ERROR
            document["misc"]["error"] = ("cancelled", "fmin stopped")


class _Submitter:
    """Submits the jobs of one trial; what ``eps.run`` calls in its objective."""

    def __init__(self, scheduler: LiveScheduler, cluster: ClusterSpec, sweep: str, tid: int) -> None:
        self._scheduler = scheduler
        self._sweep = sweep
        self._container = cluster.container()
        self._tid = tid
        self._lock = threading.Lock()
        self._cancelled = False
        self._submissions: list[Submission] = []

    def __call__(self, request: RunRequest) -> dict[str, Any]:
        """Submit a job and wait for its report.  Raises as ``eps.run``."""
        with self._lock:
            if self._cancelled:
                raise TrainingError("fmin stopped")
            number = len(self._submissions)
            job_id = f"{self._sweep}-{self._tid}" + (f"-{number + 1}" if number else "")
            asked = request_of(request.spec, job_id, self._sweep, self._container)
            submission = self._scheduler.submit(e.JobSubmitted(asked), request.spec)
            self._submissions.append(submission)
        self._scheduler.wait(submission)
        if submission.phase is Phase.FINISHED and submission.report is not None:
            if request.report or request.export:
                deliver(Job.find(submission.name), request)
            return submission.report
        if submission.is_stopped and submission.feedback is not None:
            raise StoppedEarlyError(f"job {job_id} was ended early: {submission.why}", submission.feedback)
        raise TrainingError(f"job {job_id} {submission.phase or 'was lost'}: {submission.why or 'no reason given'}")

    def cancel(self) -> None:
        """End the jobs of the trial, and refuse further ones."""
        with self._lock:
            self._cancelled = True
            for submission in self._submissions:
                if not submission.is_over:
                    self._scheduler.cancel(submission.job_id, "fmin stopped")
