"""Hyperopt's fmin with jobs under H-scheduler, and without."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import hyperopt
import numpy as np
import pytest
from hyperopt import STATUS_OK, Trials, fmin, hp, tpe
from hyperopt.base import JOB_STATE_CANCEL
from hyperopt.exceptions import AllTrialsFailed

import eps
from eps.errors import ConfigError, StoppedEarlyError, TrainingError
from hscheduler import HTrials
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.spec import ClusterSpec

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

SPACE = {"learning_rate": hp.loguniform("learning_rate", np.log(1e-3), 0.0)}
JOB = {"data": "sklearn:digits", "model": "softmax", "workers": 1, "servers": 1, "iterations": 15}
CLUSTER = ClusterSpec(nodes=2)


def train(point: dict[str, Any]) -> dict[str, Any]:
    report = eps.run(**JOB, **point)
    return {"status": STATUS_OK, "loss": report["metrics"]["train_loss"], "model": report["model_sha256"]}


def search(trials: Any, fn: Any = train, **options: Any) -> Any:
    given = {
        "algo": tpe.suggest,
        "max_evals": 3,
        "rstate": np.random.default_rng(5),
        "show_progressbar": False,
        **options,
    }
    return fmin(fn, SPACE, trials=trials, **given)


def test_one_at_a_time_finds_what_plain_trials_find() -> None:
    plain, ours = Trials(), HTrials(parallelism=1, cluster=CLUSTER)
    assert search(plain) == search(ours)
    assert plain.losses() == ours.losses()
    assert [result["model"] for result in plain.results] == [result["model"] for result in ours.results], (
        "sizes changed under the scheduler, and not one bit with them"
    )


def test_several_at_once_end_with_the_best() -> None:
    trials = HTrials(parallelism=3, cluster=CLUSTER)
    best = search(trials, max_evals=5)
    assert len(trials) == 5
    assert best == trials.argmin
    assert min(trials.losses()) == trials.best_trial["result"]["loss"]


def test_a_trial_stopped_early_is_done_and_never_the_best() -> None:
    settings = LiveSettings(feedback_iteration=5)
    trials = HTrials(parallelism=3, cluster=CLUSTER, settings=settings, threshold=1)
    seen: list[float] = []

    def objective(point: dict[str, Any]) -> float:
        # The stopping rule needs two concurrent trials, so these run until one is stopped.
        try:
            report = eps.run(**{**JOB, "iterations": 400, "stretch_s": 0.002}, **point)
        except StoppedEarlyError as stopped:
            seen.append(stopped.feedback)
            raise
        return float(report["metrics"]["train_loss"])

    search(trials, objective)
    killed = [trial["result"] for trial in trials.trials if trial["result"].get("killed")]
    assert len(trials) == 3
    assert len(killed) == len(seen) >= 1
    assert sorted(result["loss"] for result in killed) == sorted(seen)
    assert "killed" not in trials.best_trial["result"]


def test_stopping_cancels_running_jobs() -> None:
    """The jobs would run for hours; the fixtures check that no process is left."""
    began = threading.Semaphore(0)

    def objective(point: dict[str, Any]) -> float:
        if point["learning_rate"] < 0.01:
            # Ends once another one runs.
            began.acquire(timeout=60)
            return 0.0
        began.release()
        return float(eps.run(**{**JOB, "iterations": 10_000_000}, **point)["metrics"]["train_loss"])

    points = [{"learning_rate": 0.5}, {"learning_rate": 0.001}]
    trials = HTrials(parallelism=2, cluster=CLUSTER, points_to_evaluate=points)
    assert search(trials, objective, max_evals=0, loss_threshold=0.1) == {"learning_rate": 0.001}
    states = [trial["state"] for trial in trials._dynamic_trials]
    assert states == [JOB_STATE_CANCEL, hyperopt.JOB_STATE_DONE]


def test_a_timeout_and_an_early_stop() -> None:
    trials = HTrials(parallelism=1, cluster=CLUSTER)
    with pytest.raises(AllTrialsFailed):
        search(trials, lambda point: eps.run(**{**JOB, "iterations": 10_000_000}, **point), max_evals=1, timeout=2)
    calls: list[int] = []

    def enough(so_far: Any, *args: Any) -> tuple[bool, list[Any]]:
        calls.append(len(so_far))
        return len(so_far) >= 2, []

    trials = HTrials(parallelism=1, cluster=CLUSTER)
    search(trials, lambda point: point["learning_rate"], max_evals=100, early_stop_fn=enough)
    assert calls == [1, 2]


def test_exceptions_end_the_search_or_are_caught() -> None:
    def objective(point: dict[str, Any]) -> float:
        raise TrainingError("this one cannot be trained")

    with pytest.raises(TrainingError, match="cannot be trained"):
        search(HTrials(parallelism=2, cluster=CLUSTER), objective)
    trials = HTrials(parallelism=2, cluster=CLUSTER)
    with pytest.raises(AllTrialsFailed):
        search(trials, objective, catch_eval_exceptions=True)
    assert len(trials._dynamic_trials) == 3


def test_a_scheduler_of_the_user_stays_open() -> None:
    with LiveScheduler(CLUSTER.capacities(), LiveSettings("static")) as scheduler:
        for _ in range(2):
            trials = HTrials(scheduler, parallelism=2)
            search(trials, max_evals=1)
        assert scheduler.leaked() == 0
        assert len(scheduler.registry.timeline.trials) == 2


def test_invalid_arguments_of_fmin_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallelism is 0, .* 1"):
        HTrials(parallelism=0)
    with pytest.raises(ConfigError, match="trials_save_file"):
        search(HTrials(), trials_save_file="trials.pkl")
