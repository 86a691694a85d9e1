"""Pictures of comparisons, and predictions of sweeps that the simulator was not fitted to."""

from __future__ import annotations

import json
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks import out_of_sample, sweep_pictures
from benchmarks.paper import drawing
from eps.errors import ConfigError
from hscheduler.reports.measures import Target, with_target
from hscheduler.simulator.fit import Model
from hscheduler.simulator.models import Costs
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

SWEEP = {
    "sweep": {"trials": 9, "algorithm": "random", "feedback_iteration": 10, "threshold": 2},
    "space": {"learning_rate": {"uniform": [0.1, 1]}},
    "job": {"reliable": 2, "splits": 8, "iterations": 90, "stretch_s": 0.01, "model": "softmax"},
}


@pytest.fixture
def drawn(monkeypatch):
    """Give the numbers of the pictures that are drawn, by name; matplotlib need not be there."""

    def start(columns=1, rows=1, **options):
        axes = np.empty((rows, columns), dtype=object)
        for place in np.ndindex(axes.shape):
            axes[place] = MagicMock()
            axes[place].get_legend_handles_labels.return_value = ([], [])
        return MagicMock(), axes

    found = {}
    monkeypatch.setattr(drawing, "start", start)
    save = lambda figure, out, name, title, foot, numbers: found.update({name: {**numbers, "foot": foot}})  # noqa: E731
    monkeypatch.setattr(drawing, "save", save)
    return found


@pytest.fixture
def compared(tmp_path):
    """Write what compare writes, of two rules."""
    paths = []
    for rule in ("none", "sha"):
        spec = Spec.of({**SWEEP, "sweep": {**SWEEP["sweep"], "stop": rule, "grace_iterations": 10, "eta": 3}})
        reports = {
            policy: with_target(simulate(spec, policy), Target("loss", 0.5)) for policy in ("static", "elastic", "kill")
        }
        paths.append(tmp_path / f"{rule}.json")
        paths[-1].write_text(json.dumps({"policies": reports, "makespan_over": {}}))
    return paths


def test_all_pictures_are_drawn_by_rule_and_policy(compared, drawn, tmp_path):
    sweep_pictures.draw(compared, tmp_path, "rules")
    reports = json.loads(compared[1].read_text())["policies"]
    spans = drawn["rules_makespans"]
    assert set(spans["makespan_s"]) == {"none", "sha"}
    assert spans["makespan_s"]["sha"]["kill"]["median"] == reports["kill"]["makespan_s"]
    ratio = reports["static"]["makespan_s"] / reports["elastic"]["makespan_s"]
    assert spans["elasticity"]["sha"]["elastic"] == pytest.approx(ratio, abs=1e-3)
    assert drawn["rules_anytime"]["best"]["sha"]["kill"] == [reports["kill"]["anytime"]]
    assert drawn["rules_uses"]["shares"]["sha static"]["computing"] == reports["static"]["useful_share"]
    for numbers in drawn.values():
        assert numbers["foot"].startswith("SIMULATED: 9 trials of softmax on 16 containers")
        assert "computing is EMULATED: a worker sleeps 0.01 s" in numbers["foot"]


def test_what_containers_did_over_time_adds_up():
    # Long iterations: a report does not say when a container began to wait for its release.
    spec = Spec.of({**SWEEP, "job": {**SWEEP["job"], "stretch_s": 0.2}})
    for policy in ("static", "elastic", "kill"):
        report = simulate(spec, policy)
        over_time = sweep_pictures.uses_over_time(report)
        width = report["makespan_s"] / sweep_pictures.WINDOWS
        for what, share in (("computing", "useful_share"), ("waiting", "waiting_share"), ("idle", "idle_share")):
            mean = sum(value for _, value in over_time[what]) * width / report["makespan_s"]
            assert mean == pytest.approx(16 * report[share], abs=0.3), (report["policy"], what)
        for values in zip(*over_time.values(), strict=True):
            assert sum(value for _, value in values) == pytest.approx(16, abs=1e-6)


def test_reports_of_earlier_versions_cannot_be_drawn(compared, tmp_path):
    found = json.loads(compared[0].read_text())
    for report in found["policies"].values():
        del report["container_s"]
    compared[0].write_text(json.dumps(found))
    with pytest.raises(ConfigError, match="was written by an earlier version"):
        sweep_pictures.draw(compared, tmp_path, "rules")


# ---- predictions

TERMS = {"fixed_s": 0.002, "split_s": 0.0, "exchange_s": 0.001, "member_s": 0.001}
MODEL = Model({"softmax": TERMS}, Costs(), {})


def test_a_probe_says_how_long_a_job_computes():
    other = Spec.of({**SWEEP, "job": {**SWEEP["job"], "model": "dnn"}}).job_spec()
    # Beyond the 5 and 6 ms of the fitted job: 80 ms in 8 splits, and 3 ms that workers do not share.
    found = out_of_sample.transferred(MODEL, "softmax", other, {(1, 1): 0.088, (2, 1): 0.049})
    assert found.speeds["softmax"] == TERMS
    assert found.speeds["dnn"] == pytest.approx({**TERMS, "split_s": 0.01, "fixed_s": 0.005})
    faster = out_of_sample.transferred(MODEL, "softmax", other, {(1, 1): 0.001, (2, 1): 0.001})
    assert faster.speeds["dnn"] == TERMS


def test_jobs_that_compute_more_than_the_cores_can_are_stretched():
    spec = Spec.of({**SWEEP, "job": {**SWEEP["job"], "stretch_s": 0.0}})
    model = Model({"softmax": {**TERMS, "split_s": 0.02}}, Costs(), {})
    real = {**simulate(spec, "static", model=model), "policy": "static"}
    enough, alone = out_of_sample.contended(spec, real, model, 1000)
    assert alone == 1.0 and enough["makespan_s"] == pytest.approx(real["makespan_s"], rel=0.05)
    found, stretched = out_of_sample.contended(spec, real, model, 2)
    assert stretched > 1.5
    computed_s = out_of_sample.computed_s(found, model, spec.job_spec())
    # Two cores cannot compute it faster.
    assert computed_s / 2 <= found["makespan_s"] * 1.02 and found["makespan_s"] < 1.5 * computed_s / 2 + 20


def test_a_prediction_of_a_run_with_its_own_model_is_that_run():
    spec = out_of_sample.base(quick=True)
    model = Model({"softmax": TERMS}, Costs(), {})
    real = simulate(spec, "elastic", model=model)
    found = out_of_sample.predicted("seed", spec, real, model, "softmax", None)
    assert found["predicted_over_real"] == pytest.approx(1.0, abs=1e-3) and found["within"]
    assert out_of_sample.off(found) < 1e-3 and found["speeds"]["real"] == found["speeds"]["predicted"]


def test_sweeps_to_predict_differ_from_the_fitted_one(tmp_path):
    found = out_of_sample.sweeps(True, out_of_sample.data_file(tmp_path, True))
    jobs = {name: spec.job_spec() for name, spec in found.items()}
    assert jobs["size"].workers == 4 and jobs["model"].model == "dnn" and jobs["compute"].stretch_s == 0.0
    assert found["seed"].sweep.seed != out_of_sample.base(True).sweep.seed
