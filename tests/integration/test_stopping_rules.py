"""Real trials that a stopping rule pauses and promotes: they train the same model as trials that never stopped."""

from __future__ import annotations

from typing import Any

import hyperopt
import pytest
from hyperopt.fmin import generate_trial

import eps
from eps.job.client import Job
from hscheduler.core import events as e
from hscheduler.live.points import GivenPoints
from hscheduler.live.sweep import Sweep
from hscheduler.spec import ClusterSpec, Spec
from hscheduler.trials import HTrials
from tests.integration.test_sweep import spec

pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

#: The first one is the best, and by far.
RATES = (0.01, 0.001, 0.0001, 0.00001)
SHA = {"trials": 4, "stop": "sha", "eta": 2, "grace_iterations": 20, "max_iterations": 80, "threshold": 0}


def run(tables: Spec, policy: str = "elastic") -> tuple[dict[str, Any], list[e.Event], Sweep]:
    happened: list[e.Event] = []
    points = GivenPoints([{"learning_rate": rate} for rate in RATES])
    sweep = Sweep(tables, policy, lambda now_s, event, commands: happened.append(event), points)
    found = sweep.run()
    assert found["resources"] == {"leaked": 0}
    return found, happened, sweep


def straight(tables: Spec) -> str:
    """Return the checksum of the first trial's model when it trains without a scheduler."""
    settings = {**tables.job, "learning_rate": RATES[0]}
    return str(eps.run(**settings)["model_sha256"])


@pytest.mark.parametrize("policy", ["static", "kill"])
def test_a_trial_that_was_paused_and_promoted_trains_the_same_model(policy: str) -> None:
    # Long enough that no trial finishes while it is to pause.
    tables = spec(sweep=SHA, job={"iterations": 240, "splits": 6, "stretch_s": 0.006})
    found, happened, sweep = run(tables, policy)
    trials = {trial["job_id"]: trial for trial in found["trials"]}
    assert [trial["phase"] for trial in trials.values()] == ["finished", "killed", "killed", "killed"]
    assert [trial["iterations"] for trial in trials.values()][1:] == [40, 20, 20]
    rungs = [(event.job_id, event.iteration) for event in happened if isinstance(event, e.RungReached)]
    assert set(rungs) >= {("trial-1", 20), ("trial-1", 40), ("trial-2", 20), ("trial-2", 40), ("trial-3", 20)}
    assert trials["trial-3"]["why"].startswith("trial-3 is killed: its ")
    assert sweep.scheduler is not None
    record = sweep.scheduler.registry.timeline.trials["trial-1"]
    assert record.pauses >= 1, "it waited for the others"
    with_job = Job.find(trials["trial-1"]["name"])
    assert with_job.report()["model_sha256"] == straight(tables)
    with_job.close()


def test_trials_of_hyperopt_are_paused_and_promoted() -> None:
    job = {"data": "sklearn:digits", "model": "softmax", "workers": 1, "servers": 1, "iterations": 120}
    rates = iter(RATES)

    def objective(point: dict[str, Any]) -> float:
        return float(eps.run(**job, **point, stretch_s=0.01)["metrics"]["train_loss"])

    trials = HTrials(
        parallelism=1, cluster=ClusterSpec(nodes=2), stop="sha", eta=2, grace_iterations=20, max_iterations=40
    )
    hyperopt.fmin(
        objective,
        {"learning_rate": hyperopt.hp.uniform("learning_rate", 0, 1)},
        lambda ids, *rest: [generate_trial(tid, {"learning_rate": next(rates)}) for tid in ids],
        3,
        trials=trials,
        show_progressbar=False,
    )
    assert [result.get("killed", False) for result in trials.results] == [False, True, True]
    assert trials.argmin == {"learning_rate": RATES[0]}
    assert "not among the best 1 of 3 at iteration 20" in trials.results[1]["why"]
