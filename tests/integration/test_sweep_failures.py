"""Trials that crash, diverge, hang, give no feedback or are invalid: the sweep ends and reports what happened."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.supervisor.start import kill_supervisor
from eps.storage.jobdir import find_job
from hscheduler.core import events as e
from hscheduler.live.points import GivenPoints
from hscheduler.live.sweep import Sweep
from hscheduler.spec import Spec
from tests.integration.test_sweep import spec

pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

#: Long enough not to end before the kill.
LONG = {"iterations": 200}


class Told(GivenPoints):
    """Points that remember the reported results."""

    def __init__(self, points: list[dict[str, Any]]) -> None:
        super().__init__(points)
        self.told: list[tuple[str, float | None, bool]] = []

    def tell(self, job_id: str, loss: float | None, killed: bool = False, rungs: Sequence[Any] = ()) -> None:
        self.told.append((job_id, loss, killed))


class Killer:
    """Kills the supervisors of some jobs, and with them all of their processes, once they are up."""

    def __init__(self, home: Path, *job_ids: str) -> None:
        self._home = home
        self._left = set(job_ids)

    def __call__(self, now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        if isinstance(event, e.JobStarted) and event.job_id in self._left:
            self._left.remove(event.job_id)
            names = (path.name for path in (self._home / "jobs").iterdir())
            # Jobs of sweeps without a name have names with a prefix.
            (name,) = (name for name in names if f"-{name}".endswith(f"-{event.job_id}"))
            assert kill_supervisor(find_job(name), signal.SIGKILL)


def run(tables: Spec, points: GivenPoints, *killed: str, home: Path) -> dict[str, Any]:
    found = Sweep(tables, "elastic", Killer(home, *killed), points).run()
    assert found["resources"] == {"leaked": 0}
    json.dumps(found, allow_nan=False)
    return found


def test_a_crashed_trial_is_retried_and_reported_once(home: Path) -> None:
    points = Told([{"learning_rate": 0.1}, {"learning_rate": 0.2}])
    found = run(spec(sweep={"trials": 2, "threshold": 2, "retries": 1}, job=LONG), points, "trial-1", home=home)
    crashed, other = found["trials"]
    assert [(each["job_id"], each["phase"]) for each in crashed["attempts"]] == [
        ("trial-1", "failed"),
        ("trial-1-again-1", "finished"),
    ]
    assert crashed["attempts"][0]["why"] and crashed["phase"] == "finished" and crashed["loss"] is not None
    assert crashed["arrived_s"] <= crashed["attempts"][0]["started_s"] <= crashed["attempts"][1]["started_s"]
    assert [each["job_id"] for each in other["attempts"]] == ["trial-2"]
    assert found["completed"] == 2 and found["phases"]["failed"] == 0
    assert sorted(points.told) == [("trial-1", crashed["loss"], False), ("trial-2", other["loss"], False)]


def test_a_trial_that_keeps_crashing_has_failed(home: Path) -> None:
    points = Told([{"learning_rate": 0.1}])
    found = run(spec(sweep={"trials": 1, "retries": 1}, job=LONG), points, "trial-1", "trial-1-again-1", home=home)
    (trial,) = found["trials"]
    assert [each["phase"] for each in trial["attempts"]] == ["failed", "failed"]
    assert trial["phase"] == "failed" and found["best"] is None
    assert points.told == [("trial-1", None, False)]


def test_permanent_failures_are_not_retried(home: Path) -> None:
    """It diverged, its settings cannot work, or its data does not exist."""
    points = Told([{"learning_rate": 1e30}, {"workers": 50}, {"data": "no/such/file.libsvm"}])
    shared = {"model": "linear", "data": "sklearn:diabetes", "optimizer": "sgd"}
    found = run(spec(sweep={"trials": 3, "threshold": 3, "retries": 3}, space={}, job=shared), points, home=home)
    whys = [(trial["phase"], len(trial["attempts"]), trial["why"]) for trial in found["trials"]]
    assert [(phase, attempts) for phase, attempts, _ in whys] == [("killed", 1), ("failed", 1), ("failed", 1)]
    for (_, _, why), said in zip(
        whys, ("training diverged", "its settings cannot work", "it could not be started"), strict=True
    ):
        assert said in why
    assert sorted((job_id, loss, killed) for job_id, loss, killed in points.told) == [
        ("trial-1", None, True),
        ("trial-2", None, False),
        ("trial-3", None, False),
    ]


def test_a_stopped_trial_is_reported_with_its_feedback_and_not_retried(home: Path) -> None:
    points = Told([{"learning_rate": rate} for rate in (0.1, 0.2, 1e-6)])
    tables = spec(sweep={"trials": 3, "threshold": 1, "retries": 3}, job=LONG)
    found = run(tables, points, home=home)
    by_phase: dict[str, list[dict[str, Any]]] = {}
    for trial in found["trials"]:
        assert len(trial["attempts"]) == 1
        by_phase.setdefault(trial["phase"], []).append(trial)
    assert by_phase.keys() == {"finished", "killed"}
    told = {job_id: (value, killed) for job_id, value, killed in points.told}
    assert len(points.told) == 3
    assert {t["job_id"]: told[t["job_id"]] for t in by_phase["killed"]} == {
        t["job_id"]: (t["feedback"], True) for t in by_phase["killed"]
    }


def test_a_trial_that_hangs_is_ended_at_its_limit(home: Path) -> None:
    """Each of its iterations takes hours."""
    points = Told([{"stretch_s": 3600.0}])
    found = run(
        spec(sweep={"trials": 1, "trial_timeout_s": 3, "retries": 2}, job={"stretch_s": 1.0}), points, home=home
    )
    (hung,) = found["trials"]
    assert hung["phase"] == "killed" and hung["why"] == "it took longer than 3 s (trial_timeout_s)"
    assert len(hung["attempts"]) == 1 and hung["loss"] is None and found["best"] is None
    assert points.told == [("trial-1", None, False)]


def test_a_metric_evaluated_too_rarely_is_early_feedback_once_it_is_evaluated(home: Path) -> None:
    """Until then the trial keeps its containers; it is never ended because of it."""
    tables = spec(
        sweep={"trials": 2, "metric": "accuracy", "direction": "maximize", "feedback_iteration": 10, "threshold": 2},
        job={"eval_every": 1000},
    )
    found = run(tables, Told([{"learning_rate": 0.1}, {"learning_rate": 0.2}]), home=home)
    for trial in found["trials"]:
        assert trial["phase"] == "finished"
        assert trial["feedback"] == trial["loss"] > 0.5, "the accuracy at the end"


def test_a_job_larger_than_the_cluster_fails_at_once(home: Path) -> None:
    points = Told([{"workers": 12}])
    found = run(spec(sweep={"trials": 1}), points, home=home)
    (trial,) = found["trials"]
    assert trial["phase"] == "failed" and len(trial["attempts"]) == 1
    assert "more than the whole cluster holds" in trial["why"]
    assert points.told == [("trial-1", None, False)]


def test_a_sweep_ends_when_its_points_are_exhausted(home: Path) -> None:
    found = run(spec(sweep={"trials": 9}), Told([{"learning_rate": 0.1}]), home=home)
    assert [trial["phase"] for trial in found["trials"]] == ["finished"]
