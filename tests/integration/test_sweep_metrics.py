"""Sweeps by each metric that ``eps run`` prints."""

from __future__ import annotations

import pytest

from eps.job.client import Job
from hscheduler.live.points import GivenPoints
from hscheduler.live.sweep import Sweep
from hscheduler.spec import Spec
from tests.integration.test_sweep import TABLES

pytestmark = pytest.mark.usefixtures("home", "no_leftovers")


@pytest.mark.parametrize(
    ("metric", "job"),
    [
        ("auc", {"model": "logistic", "data": "sklearn:breast_cancer"}),
        ("r2", {"model": "linear", "data": "sklearn:diabetes"}),
    ],
)
def test_a_metric_that_is_exact_only_at_the_end_ranks_trials(metric: str, job: dict[str, object]) -> None:
    tables = {**TABLES["job"], **job, "normalize": "standard", "workers": 1, "servers": 1}
    del tables["stretch_s"]
    sweep = {"trials": 2, "algorithm": "random", "metric": metric, "feedback_iteration": 10, "stop": "none"}
    spec = Spec.of({"sweep": sweep, "space": {"learning_rate": {"uniform": [0, 1]}}, "job": tables})
    found = Sweep(spec, "static", points=GivenPoints([{"learning_rate": 0.1}, {"learning_rate": 1e-5}])).run()
    good, bad = found["trials"]
    assert good["phase"] == bad["phase"] == "finished", found["trials"]
    assert found["best"]["job_id"] == good["job_id"], "more is better"
    assert good["loss"] > bad["loss"] and good["loss"] > good["feedback"] - 0.05
    exact = Job.find(good["name"]).report()["metrics"]["test"][metric]
    assert good["loss"] == pytest.approx(exact, abs=1e-6)
