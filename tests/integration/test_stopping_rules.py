"""Real trials that a stopping rule pauses and promotes: they train the same model as trials that never stopped."""

from __future__ import annotations

import shutil
from typing import Any

import hyperopt
import pytest
from hyperopt.fmin import generate_trial

import eps
from eps.job.client import Job
from eps.storage.jobdir import jobs_dir
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
#: Of up to five trials, those at the last rung all pause until none trains; one then trains to its end.
ASHA = {"trials": 4, "stop": "asha", "eta": 3, "grace_iterations": 5, "max_iterations": 40, "threshold": 0}
#: Long enough that no trial finishes while it is to pause.
LONG = {"iterations": 90, "splits": 6, "stretch_s": 0.004}


def run(tables: Spec, policy: str = "elastic") -> tuple[dict[str, Any], list[e.Event], Sweep]:
    happened: list[e.Event] = []
    points = GivenPoints([{"learning_rate": rate} for rate in RATES])
    sweep = Sweep(tables, policy, lambda now_s, event, commands: happened.append(event), points)
    found = sweep.run()
    assert found["resources"] == {"leaked": 0}
    return found, happened, sweep


def straight(tables: Spec, rate: float = RATES[0]) -> str:
    """Return the checksum of a trial's model, by default that of the first one, when it trains without a scheduler."""
    settings = {**tables.job, "learning_rate": rate}
    return str(eps.run(**settings)["model_sha256"])


def model_of(trial: dict[str, Any]) -> str:
    """Return the checksum of a finished trial's model."""
    with Job.find(trial["name"]) as job:
        return str(job.report()["model_sha256"])


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
    assert model_of(trials["trial-1"]) == straight(tables)


def test_gain_pauses_and_promotes_trials_whose_points_optuna_draws() -> None:
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed: extra optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tables = spec(sweep={**ASHA, "algorithm": "optuna"}, job=LONG)
    found = Sweep(tables, "gain").run()
    assert found["resources"] == {"leaked": 0} and found["phases"] == {"finished": 1, "killed": 3, "failed": 0}
    (trial,) = (each for each in found["trials"] if each["phase"] == "finished")
    assert trial["pauses"] >= 1 and trial["containers"][0][1:] == [1, 0]
    assert model_of(trial) == straight(tables, trial["point"]["learning_rate"])


class Remover:
    """Removes a folder of the first trial once that is paused."""

    def __init__(self, folder: str) -> None:
        self._folder, self._is_done = folder, False

    def __call__(self, now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        if isinstance(event, e.JobEnded) and event.job_id == "trial-1" and not self._is_done:
            (job,) = jobs_dir().glob("*-trial-1")
            shutil.rmtree(job / self._folder)
            self._is_done = True


@pytest.mark.parametrize("folder", ["checkpoints", "."])
def test_files_of_a_trial_are_removed_while_it_is_paused(folder: str) -> None:
    """Without checkpoints it trains from its seed; without its record it fails and is tried again."""
    # One trial runs at a time: it is paused before another one can make it resume.
    tables = spec(cluster={"nodes": 1}, sweep={**ASHA, "trials": 3}, job=LONG)
    points = GivenPoints([{"learning_rate": rate} for rate in RATES])
    found = Sweep(tables, "static", Remover(folder), points).run()
    assert found["resources"] == {"leaked": 0} and found["completed"] == 1
    trial, *others = found["trials"]
    assert all(len(each["attempts"]) == 1 and each["phase"] != "failed" for each in others)
    first, *again = trial["attempts"]
    if folder == "checkpoints":
        assert first["phase"] == "finished" and not again
        assert model_of(trial) == straight(tables)
    else:
        assert first["phase"] == "failed" and first["why"].startswith("it could not be started: no job ")
        assert [each["job_id"] for each in again] == ["trial-1-again-1"]


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
