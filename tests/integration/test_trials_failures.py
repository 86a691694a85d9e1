"""Failures of fmin under H-scheduler: jobs and processes that crash, searches that are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hyperopt
import numpy as np
import pytest
from hyperopt import STATUS_FAIL, STATUS_OK, Trials, fmin, hp, tpe
from hyperopt.base import JOB_STATE_CANCEL
from hyperopt.early_stop import no_progress_loss
from hyperopt.exceptions import AllTrialsFailed, DuplicateLabel
from hyperopt.fmin import fmin_pass_expr_memo_ctrl, generate_trial

import eps
from eps.errors import ConfigError, TrainingError
from hscheduler import HTrials
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.trials import Stop
from tests.integration.test_sweep_failures import Killer
from tests.integration.test_trials import CLUSTER, JOB, ROOT, search, train

pytestmark = pytest.mark.usefixtures("home", "no_leftovers")


class KillsFirst(Killer):
    """Kills the first job."""

    def __call__(self, now_s: float, event: Any, commands: list[Any]) -> None:
        if self._left and hasattr(event, "job_id"):
            self._left = {event.job_id}
        super().__call__(now_s, event, commands)


def done(tid: int, **result: Any) -> dict[str, Any]:
    document = generate_trial(tid, {"learning_rate": 0.1 * tid})
    return {**document, "state": hyperopt.JOB_STATE_DONE, "result": {"status": STATUS_OK, **result}}


@pytest.mark.parametrize("processes", [False, True])
def test_a_search_goes_on_after_a_job_that_diverged(processes: bool) -> None:
    def objective(point: dict[str, float]) -> float:
        job = {"model": "linear", "data": "sklearn:diabetes", "optimizer": "sgd", "iterations": 100}
        return float(eps.run(**job, workers=1, servers=1, **point)["metrics"]["train_loss"])

    first = [{"learning_rate": rate} for rate in (8.0, 1e30, 0.01)]
    trials = HTrials(parallelism=1, cluster=CLUSTER, processes=processes, points_to_evaluate=first)
    assert search(trials, objective, max_evals=0) == first[-1]
    assert [result["status"] for result in trials.results] == [STATUS_FAIL, STATUS_FAIL, STATUS_OK]
    assert all("training diverged" in result["why"] for result in trials.results[:2])


@pytest.mark.parametrize(("retries", "jobs"), [(0, 1), (1, 2)])
def test_a_crashed_job_is_retried(home: Path, retries: int, jobs: int) -> None:
    with LiveScheduler(CLUSTER.capacities(), LiveSettings("static"), KillsFirst(home, "any")) as scheduler:
        trials = HTrials(scheduler, parallelism=1, retries=retries)
        # Long enough not to end before the kill.
        long = {**JOB, "iterations": 200, "stretch_s": 0.001}
        with nullcontext() if retries else pytest.raises(TrainingError, match="failed"):
            search(trials, lambda point: eps.run(**long, **point)["metrics"]["train_loss"], max_evals=1)
        names = trials._dynamic_trials[0]["misc"]["jobs"]
        assert len(names) == jobs and set(names) == set(scheduler.registry.timeline.trials)
        assert scheduler.leaked() == 0


def test_a_stopped_trial_is_never_the_best_and_stops_no_search() -> None:
    trials = HTrials()
    documents = [done(0, loss=0.1, killed=True), done(1, loss=0.5), done(2, loss=float("nan"))]
    trials._insert_trial_docs(documents)
    trials.refresh()
    assert trials.best_trial["tid"] == 1 and trials.argmin == {"learning_rate": 0.1}
    whole = trials.whole(documents)
    assert whole.argmin == {"learning_rate": 0.1}
    assert not Stop(None, 0.5, None).after(whole), "below the threshold, as with plain Trials"
    assert Stop(None, 0.6, None).after(whole)


def test_one_at_a_time_equals_plain_trials() -> None:
    """More than the 20 random points of TPE, with failures, and with Hyperopt's own stopping rule."""

    def objective(point: dict[str, Any]) -> dict[str, Any]:
        rate = point["learning_rate"]
        return {"status": STATUS_FAIL} if 0.2 < rate < 0.3 else {"status": STATUS_OK, "loss": abs(np.log(rate) + 3)}

    def no_failures(point: dict[str, Any]) -> float:
        # Hyperopt's stopping rule fails on trials without a loss.
        return float(abs(np.log(point["learning_rate"]) + 3))

    for fn, options in ((objective, {}), (no_failures, {"early_stop_fn": no_progress_loss(8)})):
        plain, ours = Trials(), HTrials(parallelism=1, cluster=CLUSTER)
        options = {"max_evals": 60, **options}
        assert search(plain, fn, **options) == search(ours, fn, **options)
        assert plain.losses() == ours.losses() and plain.statuses() == ours.statuses()
        assert plain.vals == ours.vals
        assert len(plain) < 60 if "early_stop_fn" in options else len(plain) == 60


def test_a_stopping_rule_sees_ended_trials_while_others_run() -> None:
    slow = threading.Event()

    def objective(point: dict[str, Any]) -> float:
        if point["learning_rate"] == 0.5:
            slow.wait(60)
        return 1.0

    def stop_fn(trials: Any, *args: Any) -> tuple[bool, list[Any]]:
        losses = [trial["result"]["loss"] for trial in trials.trials]
        if len(losses) == 2:
            slow.set()
        return len(losses) == 3, []

    points = [{"learning_rate": rate} for rate in (0.5, 0.1, 0.2)]
    trials = HTrials(parallelism=2, cluster=CLUSTER, points_to_evaluate=points)
    search(trials, objective, max_evals=0, early_stop_fn=stop_fn)
    assert len(trials.losses()) == 3


def test_a_space_that_hyperopt_refuses_starts_nothing() -> None:
    trials = HTrials(cluster=CLUSTER)
    space = {"a": hp.uniform("learning_rate", 0, 1), "b": hp.uniform("learning_rate", 0, 1)}
    with pytest.raises(DuplicateLabel):
        fmin(train, space, algo=tpe.suggest, max_evals=1, trials=trials, show_progressbar=False)
    assert not len(trials) and not [thread.name for thread in threading.enumerate() if thread.name == "h-scheduler"]


# ---- objectives in processes


def test_objectives_in_processes_find_what_threads_find() -> None:
    def objective(point: dict[str, Any]) -> dict[str, Any]:
        return {**train(point), "pid": os.getpid()}

    threads, processes = (
        HTrials(parallelism=1, cluster=CLUSTER),
        HTrials(parallelism=1, cluster=CLUSTER, processes=True),
    )
    assert search(threads, objective, max_evals=2) == search(processes, objective, max_evals=2)
    assert threads.losses() == processes.losses()
    assert [each["model"] for each in threads.results] == [each["model"] for each in processes.results]
    pids = {each["pid"] for each in processes.results}
    assert len(pids) == 2 and os.getpid() not in pids


def test_an_exception_in_an_objectives_process_is_raised_here() -> None:
    class Odd(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(first + second)

    def raises(error: Callable[[], BaseException]) -> Callable[[Any], float]:
        def objective(point: dict[str, Any]) -> float:
            raise error()

        return objective

    def fails(objective: Callable[[Any], Any]) -> None:
        search(HTrials(parallelism=2, cluster=CLUSTER, processes=True), objective)

    with pytest.raises(ZeroDivisionError, match="of all things") as raised:
        fails(raises(lambda: ZeroDivisionError("of all things")))
    assert "in objective" in "".join(raised.value.__notes__), "the place of the raise"
    with pytest.raises(TrainingError, match="raised Odd: so it"):
        fails(raises(lambda: Odd("so it cannot", " be made again")))
    with pytest.raises(TrainingError, match="exit code 3"):
        fails(raises(lambda: SystemExit(3)))
    with pytest.raises(TrainingError, match=r"returned .* pickled"):
        fails(lambda point: threading.Lock())
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"objective .* pickled"):
        fails(lambda point: float(lock.locked()))
    with pytest.raises(ConfigError, match="pass_expr_memo_ctrl"):
        search(HTrials(processes=True), fmin_pass_expr_memo_ctrl(lambda expr, memo, ctrl: 0.0))


def test_a_crashed_process_is_a_failed_trial_and_its_job_ends(home: Path, tmp_path: Path) -> None:
    """It is killed while its job trains, which would run for hours."""
    told = tmp_path / "pid"

    def objective(point: dict[str, Any]) -> float:
        if point["learning_rate"] == 0.5:
            told.write_text(str(os.getpid()))
            eps.run(**{**JOB, "iterations": 10_000_000})
        # Its children are killed with it.
        subprocess.Popen(["sleep", "3600"])
        return 1.0

    def kill(now_s: float, event: Any, commands: list[Any]) -> None:
        if type(event).__name__ == "Iterated" and told.exists():
            os.kill(int(told.read_text()), signal.SIGKILL)
            told.unlink()

    points = [{"learning_rate": 0.5}, {"learning_rate": 0.1}]
    with LiveScheduler(CLUSTER.capacities(), LiveSettings("static"), kill) as scheduler:
        trials = HTrials(scheduler, parallelism=2, points_to_evaluate=points, processes=True)
        assert search(trials, objective, max_evals=0, catch_eval_exceptions=True) == {"learning_rate": 0.1}
        assert scheduler.leaked() == 0
        (job,) = scheduler.registry.timeline.trials.values()
    crashed, other = trials._dynamic_trials
    assert (crashed["state"], other["state"]) == (hyperopt.JOB_STATE_ERROR, hyperopt.JOB_STATE_DONE)
    assert "was ended by SIGKILL" in crashed["misc"]["error"][1]
    assert job.phase == "killed" and "the objective's process was ended by SIGKILL" in job.why


def test_a_timeout_ends_an_objective_that_hangs() -> None:
    def objective(point: dict[str, Any]) -> float:
        while True:
            pass

    trials = HTrials(parallelism=2, cluster=CLUSTER, processes=True)
    with pytest.raises(AllTrialsFailed):
        search(trials, objective, max_evals=2, timeout=2)
    assert [trial["state"] for trial in trials._dynamic_trials] == [JOB_STATE_CANCEL] * 2


SCRIPT = """
import eps, os, sys
from hscheduler import HTrials
from hscheduler.spec import ClusterSpec
from hyperopt import fmin, hp, tpe

def objective(point):
    os.write(1, b"trains\\n")  # in one piece: another objective says it at the same time
    return eps.run(data="sklearn:digits", model="softmax", workers=1, servers=1, iterations=10_000_000, **point)["x"]

space = {"learning_rate": hp.uniform("learning_rate", 0.1, 0.2)}
trials = HTrials(parallelism=2, cluster=ClusterSpec(nodes=2), processes=sys.argv[1] == "processes")
fmin(objective, space, algo=tpe.suggest, max_evals=4, trials=trials, show_progressbar=False)
"""


@pytest.mark.parametrize("where", ["threads", "processes"])
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_interrupting_a_search_ends_all_of_it(home: Path, where: str, by: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        for _ in range(2):
            assert process.stdout.readline() == "trains\n"
        process.send_signal(by)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    # The fixtures check that its jobs and objectives leave no process.
    assert process.returncode == -by
    assert ("KeyboardInterrupt" in errors) == (by is signal.SIGINT)
