"""An Optuna study as the source of points."""

from __future__ import annotations

import math
import sys

import pytest

from eps.errors import ConfigError
from hscheduler.live.points import OptunaPoints, points_of
from hscheduler.spec import Spec

TABLES = {
    "sweep": {"algorithm": "optuna", "seed": 4, "feedback_iteration": 30},
    "space": {
        "learning_rate": {"loguniform": [1e-4, 1]},
        "l2": {"choice": [0, 1e-4]},
        "momentum": {"uniform": [0.5, 0.99]},
        "batch_size": {"quniform": [15, 104, 10]},
        "huber_delta": {"quniform": [0.2, 1.1, 0.25]},
        "seed": {"randint": [3, 9]},
    },
}


@pytest.fixture
def optuna():
    found = pytest.importorskip("optuna", reason="Optuna is not installed: extra optuna")
    found.logging.set_verbosity(found.logging.ERROR)
    return found


def test_without_optuna_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"\[optuna\]"):
        points_of(Spec.of(TABLES))


def test_points_lie_in_the_space(optuna):
    points = points_of(Spec.of(TABLES))
    assert isinstance(points, OptunaPoints)
    for k in range(40):
        point = points.ask(f"t{k}")
        assert list(point) == list(TABLES["space"])
        assert 1e-4 <= point["learning_rate"] <= 1
        assert point["l2"] in (0, 1e-4)
        assert 0.5 <= point["momentum"] <= 0.99
        assert point["batch_size"] in range(20, 101, 10) and isinstance(point["batch_size"], int), "as Hyperopt's"
        assert any(math.isclose(point["huber_delta"], value) for value in (0.25, 0.5, 0.75, 1.0))
        assert 3 <= point["seed"] < 9 and isinstance(point["seed"], int)
        points.tell(f"t{k}", point["learning_rate"])


@pytest.mark.parametrize(
    ("bounds", "values"),
    [
        ([0.1, 0.3, 0.1], [0.1, 0.2, 0.3]),
        ([0.3, 0.7, 0.1], [0.3, 0.4, 0.5, 0.6, 0.7]),
        ([0, 0.6, 0.2], [0.0, 0.2, 0.4, 0.6]),
        ([0.25, 0.95, 0.3], [0.3, 0.6, 0.9]),
        ([1, 8, 3], [3, 6]),
    ],
)
def test_steps_reach_both_bounds(optuna, bounds, values):
    points = points_of(Spec.of({"sweep": {"algorithm": "optuna"}, "space": {"momentum": {"quniform": bounds}}}))
    points.study.sampler = optuna.samplers.RandomSampler(seed=1)
    found = {points.ask(f"t{k}")["momentum"] for k in range(80)}
    assert sorted(found) == pytest.approx(values)


def test_the_same_seed_finds_the_same_points(optuna):
    runs = []
    for _ in range(2):
        points, run = points_of(Spec.of(TABLES)), []
        for k in range(15):
            run.append(points.ask(f"t{k}"))
            points.tell(f"t{k}", run[-1]["momentum"])
        runs.append(run)
    assert runs[0] == runs[1]


def test_each_end_has_its_state_in_the_study(optuna):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    points = OptunaPoints(Spec.of(TABLES), study)
    for name in ("finished", "killed", "killed without", "failed", "diverged"):
        points.ask(name)
    points.tell("killed", 0.75, killed=True)
    points.tell("killed without", None, killed=True)
    points.tell("finished", 0.5)
    points.tell("failed", None)
    points.tell("diverged", math.nan)
    states = optuna.trial.TrialState
    found = {trial.user_attrs["job_id"]: trial for trial in study.trials}
    assert {name: trial.state for name, trial in found.items()} == {
        "finished": states.COMPLETE,
        "killed": states.PRUNED,
        "killed without": states.PRUNED,
        "failed": states.FAIL,
        "diverged": states.FAIL,
    }
    assert found["killed"].intermediate_values == {30: 0.75}, "at the feedback iteration"
    assert study.best_trial.user_attrs["job_id"] == "finished" and study.best_value == 0.5


def test_an_invalid_study_is_refused(optuna):
    spec = Spec.of(TABLES)
    with pytest.raises(ConfigError, match=r"is maximize, .* minimize"):
        OptunaPoints(spec, optuna.create_study(direction="maximize"))
    with pytest.raises(ConfigError, match="study is 'x'"):
        OptunaPoints(spec, "x")
    with pytest.raises(ConfigError, match="minimize and minimize"):
        OptunaPoints(spec, optuna.create_study(directions=["minimize", "minimize"]))


def test_values_at_rungs_are_intermediate_values(optuna):
    points = points_of(Spec.of(TABLES))
    for name in ("finished", "stopped"):
        points.ask(name)
    points.tell_rungs("finished", [(10, 0.5)])
    assert points.study.trials[0].intermediate_values == {10: 0.5}, "while it trains"
    points.tell("finished", 0.25, False, [(10, 0.5), (30, 0.375)])
    points.tell("stopped", 0.75, True, [(10, 0.75)])
    finished, stopped = points.study.trials
    assert (finished.state, finished.value) == (optuna.trial.TrialState.COMPLETE, 0.25)
    assert finished.intermediate_values == {10: 0.5, 30: 0.375}
    assert (stopped.state, stopped.value) == (optuna.trial.TrialState.PRUNED, 0.75)
    assert stopped.intermediate_values == {10: 0.75}


@pytest.mark.filterwarnings("ignore:BruteForceSampler is experimental")
@pytest.mark.parametrize("end", ["finished", "killed", "failed"])
@pytest.mark.parametrize("sampler", ["GridSampler", "BruteForceSampler"])
def test_there_are_no_more_points_once_a_sampler_has_tried_all(optuna, sampler, end):
    shapes = ["round", "square"]
    given = [{"shape": shapes}] if sampler == "GridSampler" else []
    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(*given))
    spec = Spec.of({"space": {"shape": {"choice": shapes}}, "job": {"iterations": 9}}, is_callable=True)
    points = OptunaPoints(spec, study)
    assert {points.ask(name)["shape"] for name in ("a", "b")} == set(shapes)
    for name in ("a", "b"):
        points.tell(name, None if end == "failed" else 0.5, killed=end == "killed")
    with pytest.raises(StopIteration, match=f"{sampler} has no more points"):
        points.ask("c")
    assert len(study.trials) == 2 and all(trial.state.is_finished() for trial in study.trials)
