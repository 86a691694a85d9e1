"""Predictions of sweeps that the simulator was not fitted to."""

from __future__ import annotations

import pytest

from benchmarks import out_of_sample
from hscheduler.simulator.fit import Model
from hscheduler.simulator.models import Costs
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

SWEEP = {
    "sweep": {"trials": 9, "algorithm": "random", "feedback_iteration": 10, "threshold": 2},
    "space": {"learning_rate": {"uniform": [0.1, 1]}},
    "job": {"reliable": 2, "splits": 8, "iterations": 90, "stretch_s": 0.01, "model": "softmax"},
}
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
