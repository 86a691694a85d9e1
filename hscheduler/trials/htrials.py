"""Hyperopt's own door: ``fmin(objective, space, algo=tpe.suggest, trials=HTrials(parallelism=4))``.

The objective calls ``eps.run(...)``.  Under :class:`HTrials` that submits a job to the scheduler and waits for its
report; under plain ``Trials`` it trains at once.  Objectives run on threads of this process, or each in a process of
its own, the jobs in others; needs the extra ``sweep``.

Source: EPS §6 (Hyperopt generates the jobs); SparkTrials of Hyperopt for the interface.  Deviation: a point that the
stopping rule ended is a trial that is done, with its early feedback as loss, from which the algorithm learns; marked
``killed``, it is never the best.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from hyperopt import JOB_STATE_DONE, Trials, base, progress
from hyperopt.exceptions import AllTrialsFailed
from hyperopt.fmin import generate_trial, space_eval

from eps.errors import ConfigError
from hscheduler.core.jobs import Direction
from hscheduler.live.objective import Objective
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.spec import ClusterSpec, direction_of
from hscheduler.trials.fmin import JobScheduler, Run, Stop, Where, submitter_of_this_thread

#: Reasons that are named where no trial has a result.
MOST_REASONS = 3


class HTrials(Trials):  # type: ignore[misc]
    """Trials whose objectives run at the same time, their jobs under H-scheduler.

    The loss of a trial that the stopping rule ended is its early feedback: the metric, negative where more is better.
    The algorithm compares it with what the objective returns, so that must be the same: by default
    ``report["metrics"]["train_loss"]``, with the metric ``accuracy`` the negative one, not ``1 - accuracy``.

    Parameters
    ----------
    scheduler : LiveScheduler, SchedulerClient or str, optional
        Where jobs are submitted: to one of this process, or to a service, by its client or its address (HOST:PORT; with
        the folder ``tls`` in ``state``); by default to one of its own for the time of ``fmin``.
    parallelism : int
        Objectives that run at once.  1 evaluates serially, and finds what plain ``Trials`` find for the same seed.
    cluster : ClusterSpec, optional
        Of a scheduler of its own.
    settings : LiveSettings, optional
        Metric and feedback iteration of its jobs, and the policy of a scheduler of its own; by default the scheduler's.
    threshold : int, optional
        Jobs in the training phase; by default as many as fit the cluster.
    direction : Direction, optional
        Which early feedback is better; by default the lower, where the metric is a loss.
    points_to_evaluate : sequence of mapping, optional
        Tried first; ``max_evals`` others come after them, as in Hyperopt.  ``fmin`` does not hand its own argument of
        that name to trials.
    retries : int
        How often a job that failed is tried again, as another job, before its ``eps.run`` raises; not one that
        diverged or cannot be started.  ``trial["misc"]["jobs"]`` names the jobs of a trial.
    processes : bool
        Each objective, pickled with cloudpickle, is evaluated in a process of its own.  On threads, objectives that
        compute in Python take turns, and one that hangs outside ``eps.run`` cannot be ended: ``fmin`` leaves it behind.
    state : path, optional
        The directory of a service (``hscheduler serve --state``), which also says where it listens; with an address by
        default ``EPS_HOME/hscheduler``.

    Raises
    ------
    ConfigError
        ``parallelism`` is below 1, or ``retries`` below 0; the metric is no loss, and there is no ``direction``.
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
    ) -> None:
        for name, value, least in (("parallelism", parallelism, 1), ("retries", retries, 0)):
            if value < least:
                raise ConfigError(f"{name} is {value}, but must be at least {least}")
        if state is not None and not isinstance(scheduler, str | None):
            raise ConfigError(f"state is {str(state)!r}, but must be left out with a scheduler that is there already")
        super().__init__()
        self.parallelism = parallelism
        self.retries = retries
        self.processes = processes
        self._scheduler = scheduler
        self._state = state
        self._cluster = cluster or ClusterSpec()
        self._settings = settings
        self._threshold = threshold
        own = scheduler.settings if isinstance(scheduler, LiveScheduler) else LiveSettings()
        self.direction = direction_of(direction or "", (settings or own).metric)
        self._first = [generate_trial(number, dict(point)) for number, point in enumerate(points_to_evaluate)]

    def whole(self, documents: Sequence[Mapping[str, Any]]) -> Trials:
        """Return trials that have only those of these documents that were not ended early: one of them is the best."""
        found = Trials()
        found._insert_trial_docs([document for document in documents if not document["result"].get("killed")])
        found.attachments = self.attachments
        found.refresh()
        return found

    @property
    def best_trial(self) -> dict[str, Any]:
        """The trial with the lowest loss of those that were not ended early; ``argmin`` is its point.

        Raises
        ------
        hyperopt.exceptions.AllTrialsFailed
            There is none; with what became of the trials.
        """
        try:
            best: dict[str, Any] = self.whole(self.trials).best_trial
        except AllTrialsFailed:
            raise AllTrialsFailed(why_none(self._dynamic_trials)) from None
        return best

    def average_best_error(self, bandit: Any = None) -> float:
        """Return what Hyperopt calls so, of the trials that were not ended early.  Raises ValueError where none is."""
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
        """Minimise; called by ``hyperopt.fmin``, whose parameters these are.

        What still runs when it stops (``timeout``, ``loss_threshold``, ``early_stop_fn``, an exception, Ctrl-C) is
        cancelled: its jobs end before this returns, and its processes.  An objective on a thread that goes on for
        three seconds outside ``eps.run`` is named in a warning and left behind, where it keeps nobody from ending.
        ``early_stop_fn`` is called when a trial has ended, with those that are done and were not ended early, the last
        one last.
        ``max_queue_len`` is left alone: the number of points at once is :attr:`parallelism`.

        Raises
        ------
        ConfigError
            An argument cannot work here.
        hyperopt.exceptions.AllTrialsFailed
            No trial has a result that was not ended early; with what became of them.
        Exception
            What an objective raises, unless ``catch_eval_exceptions``; what Hyperopt raises for a space it refuses.
        """
        if trials_save_file:
            raise ConfigError("trials_save_file is not possible with HTrials: they hold a scheduler")
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
        # Not before, for they do not count among the points that it may ask for.
        self.insert_trial_docs(self._first)
        self._first = []
        self.refresh()
        with ExitStack() as stack:
            scheduler = self._scheduler
            if scheduler is None and self._state is None:
                own = LiveScheduler(self._cluster.capacities(), self._settings or LiveSettings())
                scheduler = stack.enter_context(own)
            elif scheduler is None or isinstance(scheduler, str):
                # Which is made of what is below this; only who asks for it needs it.
                from hscheduler.service.client import SchedulerClient

                scheduler = stack.enter_context(SchedulerClient(self._state, scheduler or ""))
            run.exhaust(Where(scheduler, self._cluster, self._threshold, self._settings))
        if return_argmin:
            return self.argmin
        return space_eval(space, self.argmin) if len(self) else None

    def _domain(self, fn: Callable[..., Any], space: Any, pass_expr_memo_ctrl: bool | None) -> Any:
        if not self.processes:
            return base.Domain(fn, space, pass_expr_memo_ctrl=pass_expr_memo_ctrl)
        if pass_expr_memo_ctrl or getattr(fn, "fmin_pass_expr_memo_ctrl", False):
            raise ConfigError("pass_expr_memo_ctrl is not possible with processes: the trials are not in theirs")
        return base.Domain(Objective(fn, submitter_of_this_thread), space, pass_expr_memo_ctrl=False)


def why_none(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return why none of Hyperopt's documents is a best one: what became of them, the most frequent first."""
    if not documents:
        return "no trial was begun"
    found = Counter(_what_became_of(document) for document in documents).most_common()
    shown = [f"{what} ({number} of {len(documents)})" for what, number in found[:MOST_REASONS]]
    if len(found) > MOST_REASONS:
        shown.append(f"{len(found) - MOST_REASONS} other reasons")
    return f"no trial has a result: {'; '.join(shown)}"


def _what_became_of(document: Mapping[str, Any]) -> str:
    if "error" in document["misc"]:
        kind, why = document["misc"]["error"]
        return f"cancelled: {why}" if kind == "cancelled" else f"failed: {why or kind}"
    result = document["result"]
    if result.get("killed"):
        return f"ended early: {result.get('why', '')}"
    if document["state"] != JOB_STATE_DONE:
        return "not tried"
    return f"status {result['status']}, loss {result.get('loss')}"


def _tpe() -> Callable[..., Any]:
    from hyperopt import tpe

    suggest: Callable[..., Any] = tpe.suggest
    return suggest


def _progress(verbose: bool, show_progressbar: Any) -> Any:
    """Return what shows Hyperopt's progress; a user's own is one that is no truth value."""
    if not verbose or not show_progressbar:
        return progress.no_progress_callback
    return progress.default_callback if show_progressbar is True else show_progressbar
