"""Sweeps whose trials begin in one container each, which hosts a worker and a server: real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eps
from eps.job.client import Job
from hscheduler.live.points import GivenPoints
from hscheduler.live.sweep import Sweep
from hscheduler.spec import Spec

pytestmark = pytest.mark.usefixtures("no_leftovers")

JOB: dict[str, Any] = {
    "data": "sklearn:digits",
    "model": "softmax",
    "splits": 12,
    "iterations": 60,
    "stretch_s": 0.002,
}
RATES = (0.1, 0.03, 0.01)


def train(policy: str, rates: tuple[float, ...], arrival: str = "burst", **job: Any) -> dict[str, Any]:
    """Run a sweep on four containers; check that nothing is left, and that the models are those of ``eps run``."""
    tables = {
        "cluster": {"nodes": 1},
        "sweep": {"trials": 3, "algorithm": "random", "threshold": 3, "feedback_iteration": 10, "arrival": arrival},
        "space": {"learning_rate": {"loguniform": [1e-3, 1]}},
        "job": {**JOB, **job, "reliable": 1},
    }
    ran = Sweep(Spec.of(tables), policy, points=GivenPoints([{"learning_rate": rate} for rate in rates]))
    found = ran.run()
    assert ran.scheduler is not None
    ran.scheduler.state.ledger.check()
    assert found["resources"] == {"leaked": 0} and found["completed"] == len(rates), found["trials"]
    assert all(servers == 0 for trial in found["trials"] for _, _, servers in trial["containers"])
    for trial in found["trials"]:
        rate = trial["point"]["learning_rate"]
        alone = eps.run(**{**JOB, **job, "stretch_s": 0.0}, learning_rate=rate, workers=1, servers=1)
        assert Job.find(trial["name"]).report()["model_sha256"] == alone["model_sha256"]
    return found


def sizes(found: dict[str, Any]) -> set[int]:
    return {workers for trial in found["trials"] for _, workers, _ in trial["containers"]}


@pytest.mark.parametrize(
    ("policy", "arrival"), [("static", "burst"), ("elastic", "poisson:1s"), ("gain", "poisson:1s")]
)
def test_trials_of_one_container_train_the_models_of_eps_run(home: Path, policy: str, arrival: str) -> None:
    found = train(policy, (0.1, 0.03, 0.01), arrival)
    assert sizes(found) == {0, 1} if policy == "static" else max(sizes(found)) > 1


def test_a_trial_of_one_container_restarts_with_more(home: Path) -> None:
    found = train("kill", (0.1,), iterations=80, stretch_s=0.01)
    assert max(sizes(found)) > 1 and found["trials"][0]["restarts"] > 0
