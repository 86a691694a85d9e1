"""Hyperopt's fmin: the best trial, when the search stops, and a scheduler that is lost during a search."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.errors import DIVERGED, ConfigError, PeerUnavailableError, StoppedEarlyError, TrainingError
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.core.rungs import Stopping
from hscheduler.live.scheduler import LiveSettings
from hscheduler.live.submission import Submission
from hscheduler.spec import MOST_TRIALS

TIMEOUT_S = 20.0
ROOT = Path(__file__).parents[2]


class LostService:
    """Accepts one job and never answers again."""

    def __init__(self) -> None:
        self.has_job = threading.Event()
        self.asked_to_cancel = threading.Event()

    def open_sweep(self, opened: e.SweepOpened) -> None:
        pass

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        return Submission(submitted.request.job_id, submitted.request.sweep, "name", spec)

    def wait(self, submission: Submission) -> None:
        self.has_job.set()
        self.asked_to_cancel.wait(TIMEOUT_S)
        raise PeerUnavailableError("H-scheduler does not answer")

    def cancel(self, job_id: str, why: str) -> None:
        self.asked_to_cancel.set()
        raise PeerUnavailableError("H-scheduler does not answer")

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        pass


def test_the_error_that_stopped_a_search_is_raised_even_if_its_jobs_cannot_be_ended() -> None:
    hyperopt = pytest.importorskip("hyperopt")
    import numpy as np
    from hyperopt.base import JOB_STATE_CANCEL

    from hscheduler.trials import HTrials

    service = LostService()

    def objective(number: int) -> float:
        if number == 0:
            eps.run(data="sklearn:digits", model="softmax")
        assert service.has_job.wait(TIMEOUT_S)
        raise ZeroDivisionError("of all things")

    trials = HTrials(service, parallelism=2, points_to_evaluate=[{"number": 0}, {"number": 1}])
    with pytest.raises(ZeroDivisionError):
        hyperopt.fmin(
            objective,
            hyperopt.hp.choice("number", [0, 1]),
            hyperopt.rand.suggest,
            0,
            trials=trials,
            rstate=np.random.default_rng(1),
            verbose=False,
        )
    states = [document["state"] for document in trials._dynamic_trials]
    assert states == [JOB_STATE_CANCEL, hyperopt.JOB_STATE_ERROR], "nothing is left that seems to run"
    trials.refresh()
    assert not len(trials) and not trials.losses(), "cancelled trials are not reported, like failed ones"


class StopsAll:
    """Stops every job because of its early feedback."""

    def open_sweep(self, opened: e.SweepOpened) -> None:
        pass

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        submission = Submission(submitted.request.job_id, submitted.request.sweep, "name", spec)
        submission.is_stopped, submission.feedback, submission.why = True, 0.9, "it is the worst"
        submission.end(Phase.KILLED)
        return submission

    def wait(self, submission: Submission) -> None:
        pass

    def cancel(self, job_id: str, why: str) -> None:
        pass

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        pass


def search(trials: Any, fn: Any, max_evals: int = 0, **options: Any) -> Any:
    hyperopt = pytest.importorskip("hyperopt")
    import numpy as np

    given = {"algo": hyperopt.rand.suggest, "rstate": np.random.default_rng(4), "verbose": False, **options}
    return hyperopt.fmin(fn, {"x": hyperopt.hp.uniform("x", -5, 5)}, max_evals=max_evals, trials=trials, **given)


def htrials(scheduler: Any = None, **options: Any) -> Any:
    pytest.importorskip("hyperopt")
    from hscheduler.trials import HTrials

    return HTrials(StopsAll() if scheduler is None else scheduler, **{"parallelism": 1, **options})


def test_points_to_evaluate_come_before_suggested_points() -> None:
    hyperopt = pytest.importorskip("hyperopt")
    points, runs = [{"x": 0.0}, {"x": 2.0}], []
    for trials, options in ((None, {"points_to_evaluate": points}), (htrials(points_to_evaluate=points), {})):
        tried: list[float] = []

        def objective(point: dict[str, float], tried: list[float] = tried) -> float:
            tried.append(point["x"])
            return (point["x"] - 1) ** 2

        best = search(trials, objective, 23, algo=hyperopt.tpe.suggest, **options)
        runs.append((best, tried))
    assert len(runs[1][1]) == 25 and runs[1][1][:2] == [0.0, 2.0]
    assert runs[0] == runs[1], "the same seed, the same points"


def test_a_trial_stopped_early_is_never_the_best() -> None:
    early_stop = pytest.importorskip("hyperopt.early_stop")

    def objective(point: dict[str, float]) -> float:
        if point["x"] < 0:
            raise StoppedEarlyError("it is the worst", 0.01)
        return point["x"]

    trials = htrials(points_to_evaluate=[{"x": x} for x in (3.0, -1.0, 2.0, -1.0, 1.0, -1.0, 4.0, 5.0, 0.5)])
    # The fifth loss was not improved by the three after it, of which one was stopped early.
    assert search(trials, objective, early_stop_fn=early_stop.no_progress_loss(3)) == {"x": 1.0}
    assert trials.losses() == [3.0, 0.01, 2.0, 0.01, 1.0, 0.01, 4.0, 5.0, None], "the last one is not tried"
    assert trials.best_trial["result"]["loss"] == trials.average_best_error() == 1.0


def test_an_objective_that_returns_a_loss_for_an_early_stop_is_not_the_best() -> None:
    def objective(point: dict[str, float]) -> float:
        if point["x"] > 0:
            return point["x"]
        try:
            eps.run(data="sklearn:digits", model="softmax")
        except TrainingError:
            return 0.0
        raise AssertionError("it was ended")

    trials = htrials(points_to_evaluate=[{"x": -1.0}, {"x": 0.5}])
    assert search(trials, objective) == {"x": 0.5}
    ended = trials.results[0]
    assert (ended["loss"], ended["killed"], ended["why"]) == (0.0, True, "it is the worst")
    assert "killed" not in trials.results[1]


class DivergesFirst(StopsAll):
    """The training of the first job diverges; the others finish."""

    def __init__(self) -> None:
        self.opened: list[e.SweepOpened] = []
        self.jobs = 0

    def open_sweep(self, opened: e.SweepOpened) -> None:
        self.opened.append(opened)

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        job_id, self.jobs = submitted.request.job_id, self.jobs + 1
        submission = Submission(job_id, submitted.request.sweep, "name", spec)
        if self.jobs == 1:
            submission.is_stopped, submission.why = True, f"{job_id} is killed: {DIVERGED}: its loss grew from 1 to 1e9"
        else:
            submission.report = {"metrics": {"train_loss": 0.25}}
        submission.end(Phase.KILLED if self.jobs == 1 else Phase.FINISHED)
        return submission


def train(point: dict[str, float]) -> float:
    return float(eps.run(data="sklearn:digits", model="softmax")["metrics"]["train_loss"]) + abs(point["x"])


def test_a_search_goes_on_after_a_job_that_diverged() -> None:
    early_stop = pytest.importorskip("hyperopt.early_stop")
    trials = htrials(DivergesFirst(), points_to_evaluate=[{"x": x} for x in (0.0, 2.0, 1.0)])
    assert search(trials, train, early_stop_fn=early_stop.no_progress_loss(9)) == {"x": 1.0}
    diverged, *others = trials.results
    assert (diverged["status"], diverged["killed"]) == ("fail", True)
    assert "training diverged: its loss grew from 1 to 1e9" in diverged["why"] and "loss" not in diverged
    assert [each["loss"] for each in others] == [2.25, 1.25]


def test_a_search_without_results_names_the_jobs_that_diverged() -> None:
    exceptions = pytest.importorskip("hyperopt.exceptions")
    with pytest.raises(exceptions.AllTrialsFailed, match=r"no trial has a result: diverged: .* grew from 1 to 1e9"):
        search(htrials(DivergesFirst()), train, 1)


def test_an_objective_that_trains_again_after_it_diverged_may_be_the_best() -> None:
    def objective(point: dict[str, float]) -> float:
        try:
            return train(point)
        except TrainingError:
            return train({"x": 0.0})

    trials = htrials(DivergesFirst(), points_to_evaluate=[{"x": -1.0}, {"x": 0.5}])
    assert search(trials, objective) == {"x": -1.0}
    assert trials.results[0] == {"status": "ok", "loss": 0.25}


def test_an_error_after_a_job_that_diverged_is_raised() -> None:
    def objective(point: dict[str, float]) -> float:
        try:
            return train(point)
        except TrainingError:
            raise ValueError("no smaller rate") from None

    with pytest.raises(ValueError, match="no smaller rate"):
        search(htrials(DivergesFirst()), objective, 1)


@pytest.mark.parametrize("stops", [True, False])
def test_jobs_that_diverge_may_go_on(stops: bool) -> None:
    scheduler = DivergesFirst()
    scheduler.jobs = 1
    search(htrials(scheduler, stop_diverged=stops), train, 1)
    assert [opened.stop_diverged for opened in scheduler.opened] == [stops]


def test_an_exit_of_the_program_is_no_failure_of_a_point() -> None:
    trials = htrials()
    with pytest.raises(SystemExit, match="no more"):
        search(trials, lambda point: sys.exit("no more"), 3, catch_eval_exceptions=True)
    assert len(trials._dynamic_trials) == 1


def test_a_space_of_hyperopt_may_be_conditional_and_nested() -> None:
    hyperopt = pytest.importorskip("hyperopt")
    import numpy as np

    hp, points = hyperopt.hp, list[Any]()
    inner = hp.choice("shape", [{"sides": 4}, {"sides": 3, "angle": hp.uniform("angle", 0, 1)}])
    space = hp.choice(
        "kind", [{"kind": "disc", "radius": hp.uniform("radius", 0, 1)}, {"kind": "polygon", "shape": inner}]
    )

    def objective(point: Any) -> float:
        points.append(point)
        return float(point.get("radius", 2.0))

    trials = htrials(parallelism=2)
    rstate = np.random.default_rng(1)
    best = hyperopt.fmin(
        objective, space, hyperopt.tpe.suggest, 40, trials=trials, rstate=rstate, show_progressbar=False
    )
    assert best["kind"] == 0 and best["radius"] < 0.1 and "angle" not in best
    kinds = {(point["kind"], point.get("shape", {}).get("sides")) for point in points}
    assert kinds == {("disc", None), ("polygon", 4), ("polygon", 3)}


def test_an_unknown_metric_needs_a_direction() -> None:
    settings = LiveSettings(metric="lift")
    with pytest.raises(ConfigError, match=r"'lift', .*direction"):
        htrials(settings=settings)
    assert htrials(settings=settings, direction=Direction.MAXIMIZE).direction is Direction.MAXIMIZE
    assert htrials(settings=LiveSettings(metric="test_loss")).direction is Direction.MINIMIZE


def test_jobs_of_an_objective_that_crashed_may_be_out_of_reach(caplog: pytest.LogCaptureFixture) -> None:
    """Its process exits while its job waits; the scheduler is unreachable.  An exception in a thread fails a test."""
    service = LostService()

    def objective(point: dict[str, float]) -> float:
        threading.Timer(0.2, os._exit, (3,)).start()
        eps.run(data="sklearn:digits", model="softmax")
        return 0.0

    with pytest.raises(TrainingError, match="exit code 3"):
        search(htrials(service, processes=True), objective, 1)
    assert service.asked_to_cancel.is_set()
    assert "jobs could not be ended: H-scheduler does not answer" in caplog.text


def test_an_objective_that_hangs_is_named_and_left_behind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exceptions = pytest.importorskip("hyperopt.exceptions")
    from hscheduler import trials as fmin

    monkeypatch.setattr(fmin, "GRACE_S", 0.2)
    let_go = threading.Event()

    def objective(point: dict[str, float]) -> float:
        let_go.wait(TIMEOUT_S)
        return 0.0

    trials = htrials(parallelism=2)
    try:
        with pytest.raises(exceptions.AllTrialsFailed) as raised:
            search(trials, objective, 3, timeout=0.2)
    finally:
        let_go.set()
    why = "cancelled: fmin stopped, but its objective still runs outside eps.run (2 of 2)"
    assert str(raised.value) == f"no trial has a result: {why}"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("the objective of trial 0, 1 still runs outside eps.run")
    assert "HTrials(processes=True)" in warning


class EndsSlowly(LostService):
    """A job that needs a moment to end."""

    def wait(self, submission: Submission) -> None:
        self.has_job.set()
        assert self.asked_to_cancel.wait(TIMEOUT_S)

    def cancel(self, job_id: str, why: str) -> None:
        threading.Timer(0.5, self.asked_to_cancel.set).start()


def test_an_objective_whose_job_ends_slowly_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exceptions = pytest.importorskip("hyperopt.exceptions")
    from hscheduler import trials as fmin

    monkeypatch.setattr(fmin, "GRACE_S", 0.2)
    service = EndsSlowly()
    with pytest.raises(exceptions.AllTrialsFailed, match=r"cancelled: .*1 of 1"):
        search(htrials(service), lambda point: eps.run(data="sklearn:digits", model="softmax"), 1, timeout=0.2)
    assert service.asked_to_cancel.is_set() and not caplog.text


def test_a_search_without_results_is_reported_with_the_ends_of_its_trials() -> None:
    exceptions = pytest.importorskip("hyperopt.exceptions")

    def objective(point: dict[str, float]) -> Any:
        if point["x"] < 0:
            raise StoppedEarlyError("it is the worst", 0.01)
        if point["x"] < 2:
            raise TrainingError("its data is empty")
        return {"status": "fail"}

    trials = htrials(points_to_evaluate=[{"x": x} for x in (1.0, -1.0, 1.5, 3.0)])
    with pytest.raises(exceptions.AllTrialsFailed) as raised:
        search(trials, objective, catch_eval_exceptions=True)
    reasons = (
        "failed: its data is empty (2 of 4); stopped early: it is the worst (1 of 4); status fail, loss None (1 of 4)"
    )
    assert str(raised.value) == f"no trial has a result: {reasons}"


SCRIPT = """
import os, threading
from tests.hscheduler.test_fmin import htrials, search

def objective(point):
    # As one write: there are two of them.
    os.write(1, b"hangs\\n")
    threading.Event().wait()

search(htrials(parallelism=2), objective, 2)
"""


class Pauses:
    """Pauses every job until all have been submitted; then the last one finishes and the others are stopped."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.opened: list[e.SweepOpened] = []
        self.submitted: list[Submission] = []

    def open_sweep(self, opened: e.SweepOpened) -> None:
        self.opened.append(opened)

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        found = Submission(submitted.request.job_id, submitted.request.sweep, "name", spec)
        self.submitted.append(found)
        if len(self.submitted) == self.jobs:
            for number, each in enumerate(self.submitted):
                each.rungs, each.feedback = [(10, 0.5), (30, 0.1 * number)], 0.7
                each.is_stopped = each is not found
                each.report = {"metrics": {"train_loss": 0.25}}
                each.end(Phase.KILLED if each.is_stopped else Phase.FINISHED)
        found.is_paused = not found.is_over
        return found

    def wait(self, submission: Submission) -> None:
        assert submission.wait(TIMEOUT_S), "it stays paused"

    def cancel(self, job_id: str, why: str) -> None:
        pass

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        pass


def test_paused_trials_make_way_for_others_and_count_with_their_last_value() -> None:
    hyperopt = pytest.importorskip("hyperopt")
    from hscheduler.trials import HTrials

    scheduler = Pauses(3)
    trials = HTrials(scheduler, parallelism=1, stop="sha", eta=2, grace_iterations=10, max_iterations=90)

    def objective(rate: float) -> float:
        return float(eps.run(data="sklearn:digits", model="softmax", learning_rate=rate)["metrics"]["train_loss"])

    hyperopt.fmin(
        objective, hyperopt.hp.uniform("rate", 0.1, 1), hyperopt.rand.suggest, 3, trials=trials, show_progressbar=False
    )
    (opened,) = scheduler.opened
    assert (opened.stopping, opened.trials) == (Stopping("sha", 2, 10, 90), 3)
    assert trials.losses() == [0.0, 0.1, 0.25], "of those that were stopped: at their last rung"
    assert trials.best_trial["tid"] == 2


def test_a_trial_that_trains_nothing_is_not_waited_for() -> None:
    hyperopt = pytest.importorskip("hyperopt")
    from hscheduler.trials import HTrials

    scheduler = Pauses(2)
    trials = HTrials(scheduler, parallelism=1, stop="asha", points_to_evaluate=[{"number": 0}])

    def objective(number: int) -> float:
        return float(eps.run(data="sklearn:digits", model="softmax")["metrics"]["train_loss"]) if number else 0.5

    hyperopt.fmin(
        objective,
        hyperopt.hp.choice("number", [0, 1, 1, 1, 1]),
        lambda ids, *rest: generate(ids, 1),
        2,
        trials=trials,
        show_progressbar=False,
    )
    assert [opened.trials for opened in scheduler.opened] == [3, 2]


def generate(ids: list[int], number: int) -> list[Any]:
    from hyperopt.fmin import generate_trial

    return [generate_trial(tid, {"number": number}) for tid in ids]


@pytest.mark.parametrize(("stops", "opened_with"), [(True, [MOST_TRIALS]), (False, [MOST_TRIALS, 2])])
def test_a_search_without_a_number_of_trials_announces_as_many_as_possible(stops: bool, opened_with: list[int]) -> None:
    hyperopt = pytest.importorskip("hyperopt")
    scheduler = Pauses(2)

    def objective(number: int) -> float:
        return float(eps.run(data="sklearn:digits", model="softmax")["metrics"]["train_loss"])

    hyperopt.fmin(
        objective,
        hyperopt.hp.choice("number", [0, 1, 2]),
        lambda ids, *rest: [] if not stops and len(scheduler.submitted) == 2 else generate(ids, 0),
        trials=htrials(scheduler, stop="asha"),
        early_stop_fn=lambda found, *args: (stops, []),
        show_progressbar=False,
    )
    assert [opened.trials for opened in scheduler.opened] == opened_with


def test_successive_halving_needs_the_number_of_trials() -> None:
    hyperopt = pytest.importorskip("hyperopt")
    from hscheduler.trials import HTrials

    with pytest.raises(ConfigError, match="set max_evals, or use asha"):
        hyperopt.fmin(len, hyperopt.hp.uniform("rate", 0, 1), hyperopt.rand.suggest, trials=HTrials(stop="sha"))
    with pytest.raises(ConfigError, match="eta is 1"):
        HTrials(stop="sha", eta=1)


def test_ctrl_c_ends_a_program_whose_objectives_hang() -> None:
    pytest.importorskip("hyperopt")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in range(2)] == ["hangs\n"] * 2
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    # The second one may have just started.
    assert "the objective of trial 0" in errors and "KeyboardInterrupt" in errors


class Rungs(Pauses):
    """As :class:`Pauses`, and each job is at its first rung."""

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        found = super().submit(submitted, spec)
        if not found.is_over:
            found.rungs = [(10, float(len(self.submitted)))]
        return found


@pytest.mark.parametrize(("direction", "sign"), [(Direction.MINIMIZE, 1), (Direction.MAXIMIZE, -1)])
def test_the_algorithm_knows_the_values_of_paused_trials(direction: Direction, sign: int) -> None:
    hyperopt = pytest.importorskip("hyperopt")
    from hscheduler.trials import HTrials

    known: list[list[Any]] = []
    trials = HTrials(Rungs(3), parallelism=1, stop="sha", grace_iterations=10, direction=direction)

    def algorithm(ids: list[int], domain: Any, given: Any, seed: int) -> Any:
        known.append(given.losses())
        return hyperopt.rand.suggest(ids, domain, given, seed)

    def objective(rate: float) -> float:
        return float(eps.run(data="sklearn:digits", model="softmax", learning_rate=rate)["metrics"]["train_loss"])

    hyperopt.fmin(objective, hyperopt.hp.uniform("rate", 0.1, 1), algorithm, 3, trials=trials, show_progressbar=False)
    assert known[2] == [sign * 1.0, sign * 2.0]
    assert trials.best_trial["tid"] == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stop": "asha", "settings": LiveSettings()}, "grace_iterations is 100 (the feedback iteration), but a job"),
        ({"stop": "sha", "grace_iterations": 30}, "grace_iterations is 30, but a job has 30 iterations: stop='sha'"),
        ({"stop": "asha", "grace_iterations": 29}, ""),
        ({"stop": "asha"}, ""),
        ({"stop": "threshold", "settings": LiveSettings()}, ""),
        ({"settings": LiveSettings()}, ""),
    ],
)
def test_a_rule_that_judges_no_trial_is_named_once(
    options: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    def objective(point: dict[str, float]) -> float:
        return float(eps.run(data="sklearn:digits", model="softmax", iterations=30)["metrics"]["train_loss"])

    search(htrials(Pauses(2), **options), objective, 2)
    found = [record.getMessage() for record in caplog.records if "does not judge" in record.getMessage()]
    assert len(found) == bool(told)
    if told:
        assert told in found[0] and "grace_iterations=3)" in found[0]
