"""Sweeps of a Python callable: each trial is a call in a process of its own that reports metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hscheduler
from eps.errors import ConfigError
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.service.recorded_sweep import RecordedSweep

pytestmark = pytest.mark.usefixtures("home", "no_leftovers")


def swept(objective: Callable[[dict[str, Any]], Any], **sweep: Any) -> hscheduler.SweepReport:
    return hscheduler.sweep(
        {
            "cluster": {"nodes": 1, "vcores": 2},
            "sweep": {"trials": 4, "algorithm": "random", "stop": "none", "retries": 0, **sweep},
            "space": {"width": {"uniform": [0, 1]}, "shape": {"choice": ["round", "square"]}},
            "job": {"iterations": 9},
        },
        policy="static",
        objective=objective,
    )


def good(point: dict[str, Any]) -> None:
    for iteration in range(1, 10):
        hscheduler.report(loss=point["width"] + 1 / iteration, accuracy=1 - point["width"], iteration=iteration)


def test_each_call_is_a_trial_with_its_metrics() -> None:
    found = swept(good, trials=5, feedback_iteration=3)
    assert found["completed"] == 5
    assert found["best"]["loss"] == min(trial["loss"] for trial in found["trials"])
    for trial in found["trials"]:
        assert trial["point"].keys() == {"width", "shape"}
        assert trial["loss"] == pytest.approx(trial["point"]["width"] + 1 / 9)
        assert trial["feedback"] == pytest.approx(trial["point"]["width"] + 1 / 3)
        assert trial["started_s"] - trial["arrived_s"] < 1
    assert found["resources"] == {"leaked": 0}


def test_any_reported_metric_ranks_trials_and_rules_pause_them() -> None:
    rule = {"stop": "sha", "eta": 2, "grace_iterations": 3}
    found = swept(good, metric="accuracy", feedback_iteration=3, **rule)
    # These calls take no time: they wait in their reports until the rule has judged them.
    assert sorted(trial["iterations"] for trial in found["trials"]) == [3, 3, 6, 9]
    assert sorted(trial["phase"] for trial in found["trials"]) == ["finished", "killed", "killed", "killed"]
    best = max(found["trials"], key=lambda trial: 1 - trial["point"]["width"])
    assert best["phase"] == "finished" and found["best"]["job_id"] == best["job_id"]


def test_a_retry_is_not_stopped_by_its_failed_attempt(tmp_path: Path) -> None:
    def crashes_once(point: dict[str, Any]) -> None:
        for iteration in range(1, 10):
            # Only the trial that passed the first rung gets here.
            if iteration == 5 and not (tmp_path / "crashed").exists():
                (tmp_path / "crashed").touch()
                os._exit(3)
            hscheduler.report(loss=point["width"], iteration=iteration)

    rule = {"stop": "sha", "eta": 3, "grace_iterations": 3}
    found = swept(crashes_once, trials=3, feedback_iteration=3, retries=1, **rule)
    assert sorted(trial["phase"] for trial in found["trials"]) == ["finished", "killed", "killed"]
    best = min(found["trials"], key=lambda trial: trial["point"]["width"])
    assert best["phase"] == "finished" and len(best["attempts"]) == 2


def test_a_callable_may_return_a_number_of_numpy() -> None:
    (trial,) = swept(lambda point: np.float32(0.5), trials=1)["trials"]
    assert (trial["phase"], trial["loss"]) == ("finished", 0.5)


@pytest.mark.parametrize("what", ["raises", "nothing", "other", "exits", "text", "reserved", "backwards"])
def test_a_callable_that_fails_says_why(what: str) -> None:
    def fails(point: dict[str, Any]) -> None:
        if what == "raises":
            raise ValueError("no such shape")
        if what == "exits":
            os._exit(3)
        if what == "other":
            hscheduler.report(accuracy=0.5)
        if what == "text":
            hscheduler.report(loss="low")  # type: ignore[arg-type]
        if what == "reserved":
            hscheduler.report(loss=0.5, seconds=3.0)
        if what == "backwards":
            hscheduler.report(loss=0.5, iteration=3)
            hscheduler.report(loss=0.5, iteration=3)

    (trial,) = swept(fails, trials=1)["trials"]
    assert trial["phase"] == "failed"
    told = {
        "raises": "the callable raised ValueError: no such shape",
        "nothing": "metric is 'loss', but the job reported nothing: call report(loss=..., iteration=...)",
        "other": "metric is 'loss', but the job reported accuracy: call report(loss=..., iteration=...)",
        "exits": "ended with exit code 3",
        "text": "the callable raised ConfigError: a metric of report is not a number",
        "reserved": "a metric of report is named seconds, which is reserved",
        "backwards": "iteration is 3, but must be a whole number above 3, that of the last report",
    }
    assert told[what] in trial["why"]


def test_a_callable_without_the_metric_is_not_called_again() -> None:
    (trial,) = swept(lambda point: hscheduler.report(accuracy=0.5), trials=1, retries=1)["trials"]
    assert trial["phase"] == "failed" and len(trial["attempts"]) == 1


def test_a_callable_that_hangs_is_ended_at_its_limit() -> None:
    def hangs(point: dict[str, Any]) -> None:
        while True:
            time.sleep(3600)

    (trial,) = swept(hangs, trials=1, trial_timeout_s=1)["trials"]
    assert (trial["phase"], trial["why"]) == ("killed", "it took longer than 1 s (trial_timeout_s)")


def test_a_callable_whose_loss_diverges_is_killed() -> None:
    def diverges(point: dict[str, Any]) -> None:
        for iteration in range(1, 200):
            hscheduler.report(loss=float("nan") if iteration == 5 else 1.0, iteration=iteration)
            time.sleep(0.1)

    (trial,) = swept(diverges, trials=1)["trials"]
    assert trial["phase"] == "killed" and "training diverged: its loss is nan at iteration 5" in trial["why"]


#: A sweep of a callable that notes its calls and waits for a file, in a module of its own.
MODULE = """
import sys, time
from pathlib import Path

import hscheduler

HERE = Path(__file__).parent


def call(point):
    with open(HERE / "calls", "a") as calls:
        print(point["width"], file=calls)
    for iteration in range(1, 10):
        hscheduler.report(loss=point["width"] + 1 / iteration)
        while iteration == 5 and len((HERE / "calls").read_text().split()) > 2 and not (HERE / "go").exists():
            time.sleep(0.01)
"""
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import hscheduler, called
spec = {{
    "cluster": {{"nodes": 1, "vcores": 1}},
    "sweep": {{"trials": 4, "algorithm": "random", "stop": {stop!r}, "eta": 2, "grace_iterations": 3}},
    "space": {{"width": {{"uniform": [0, 1]}}}},
    "job": {{"iterations": 9}},
}}
hscheduler.sweep(spec, policy="static", objective=called.call, name="calls")
"""


@pytest.mark.parametrize("stop", ["none", "sha"])
def test_a_sweep_of_calls_that_was_killed_continues_with_every_result(tmp_path: Path, stop: str) -> None:
    (tmp_path / "called.py").write_text(MODULE)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT.format(folder=str(tmp_path), stop=stop)])
    calls = tmp_path / "calls"
    wait_for(lambda: calls.exists() and len(calls.read_text().split()) > 2, 60, "the third call")
    process.kill()
    process.wait(60)
    had_ended = RecordedSweep.named("calls").report()
    over = {trial["job_id"]: trial for trial in had_ended["trials"] if trial["phase"] in ("finished", "killed")}
    assert over or stop == "sha"
    (tmp_path / "go").touch()
    # In another process, which does not have the module's folder on its path.
    code = "import sys; from hscheduler.cli import main; sys.exit(main(['sweep', '--resume', 'calls', '--quiet']))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    found = RecordedSweep.named("calls").report()
    assert found["state"] == "ended" and len(found["trials"]) == 4 and found["resources"] == {"leaked": 0}
    widths = [trial["point"]["width"] for trial in found["trials"]]
    for trial in found["trials"]:
        if trial["phase"] == "finished":
            assert trial["loss"] == pytest.approx(trial["point"]["width"] + 1 / 9)
        if trial["job_id"] in over:
            # It was not called again.
            assert calls.read_text().split().count(str(trial["point"]["width"])) == 1
    finished = [trial["point"]["width"] for trial in found["trials"] if trial["phase"] == "finished"]
    assert finished == (widths if stop == "none" else [min(widths)])


def test_a_callable_that_is_gone_is_named_before_its_trials_fail(tmp_path: Path) -> None:
    (tmp_path / "called.py").write_text(MODULE)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT.format(folder=str(tmp_path), stop="none")])
    wait_for((tmp_path / "calls").exists, 60, "the first call")
    process.kill()
    process.wait(60)
    (tmp_path / "called.py").unlink()
    place = RecordedSweep.named("calls")
    with pytest.raises(ConfigError, match="callable of sweep 'calls' cannot be loaded: ModuleNotFoundError"):
        place.objective()
    place.remove()
    assert RecordedSweep.find("calls") is None


@pytest.mark.filterwarnings("ignore:BruteForceSampler is experimental")
@pytest.mark.parametrize("rule", ["none", "sha"])
def test_a_sweep_ends_when_its_study_has_no_more_points(
    rule: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    shapes = ["round", "square", "flat"]
    of = optuna.samplers
    # With sha all three are drawn at once.  One fails, and then the others are paused for six that do not come.
    sampler, vcores = (of.GridSampler({"shape": shapes}), 1) if rule == "none" else (of.BruteForceSampler(), 3)

    def objective(point: dict[str, Any]) -> None:
        if rule == "sha" and point["shape"] == "square":
            raise ValueError("of all things")
        if rule == "sha":
            wait_for((tmp_path / "failed").exists, 20.0, "the failure of the other trial")
        good({"width": len(point["shape"])})

    tables = {
        "cluster": {"nodes": 1, "vcores": vcores},
        "sweep": {"trials": 9, "retries": 0, "stop": rule, "eta": 2, "grace_iterations": 3},
        "space": {"shape": {"choice": shapes}},
        "job": {"iterations": 9},
    }

    def note(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        if isinstance(event, e.JobEnded):
            (tmp_path / "failed").touch()

    study = optuna.create_study(sampler=sampler)
    found = hscheduler.sweep(tables, policy="static", study=study, objective=objective, on_event=note)
    assert sorted(trial["point"]["shape"] for trial in found["trials"]) == sorted(shapes)
    assert all(trial.state.is_finished() for trial in study.trials)
    assert found["best"]["point"] == {"shape": "flat"}
    name = type(sampler).__name__
    assert f"the sweep ends after 3 of 9 trials: the study's {name} has no more points" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_no_trial_of_a_study_runs_after_an_error(error: type[BaseException]) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))

    def suggest(trial: Any) -> dict[str, Any]:
        if trial.number == 3:
            raise error
        return {"hangs": trial.number > 0, "width": trial.suggest_float("width", 0, 1)}

    def objective(point: dict[str, Any]) -> None:
        if point["hangs"]:
            time.sleep(60)
        good(point)

    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else ConfigError):
        hscheduler.sweep(
            {"cluster": {"nodes": 1, "vcores": 3}, "sweep": {"trials": 9, "stop": "none"}, "job": {"iterations": 9}},
            policy="static",
            study=study,
            suggest=suggest,
            objective=objective,
        )
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "FAIL", "FAIL"]


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="report is only for the callable of a sweep"):
        hscheduler.report(loss=0.5)
    with pytest.raises(ConfigError, match=r"'data' is not a setting of \[job\] for a callable"):
        hscheduler.sweep({"job": {"data": "sklearn:digits"}}, objective=good)
    with pytest.raises(ConfigError, match="must be a mapping with an objective"):
        hscheduler.sweep(tmp_path / "sweep.toml", objective=good)
    with pytest.raises(ConfigError, match="grace_iterations"):
        hscheduler.sweep({"job": {"iterations": 100}}, objective=good, stop="asha")
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="cannot be pickled"):
        swept(lambda point: lock)


def test_a_study_suggests_settings_that_depend_on_each_other() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3))

    def suggest(trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("kind", ["line", "disc"])
        return {"kind": kind} | ({"radius": trial.suggest_float("radius", 0, 1)} if kind == "disc" else {})

    def area(point: dict[str, Any]) -> None:
        hscheduler.report(loss=point.get("radius", 0.5) ** 2, iteration=1)

    sweep = {"trials": 6, "stop": "none"}
    found = hscheduler.sweep({"sweep": sweep}, study=study, suggest=suggest, objective=area, policy="static")
    assert found["completed"] == 6 == len(study.trials)
    assert {tuple(sorted(trial["point"])) for trial in found["trials"]} == {("kind",), ("kind", "radius")}
    assert study.best_value == found["best"]["loss"]
    with pytest.raises(ConfigError, match="suggest raised KeyError: 'kind'"):
        hscheduler.sweep({"sweep": sweep}, study=study, suggest=lambda trial: {}["kind"], objective=area)
    with pytest.raises(ConfigError, match="suggest needs a study"):
        hscheduler.sweep({"sweep": sweep}, suggest=suggest, objective=area)
