"""Sweeps of real jobs: every trial ends, every process exits, and no container is leaked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eps.storage.jobdir import find_job
from hscheduler import cli
from hscheduler.core import events as e
from hscheduler.live.points import GivenPoints, Rungs
from hscheduler.live.sweep import Sweep
from hscheduler.spec import Spec

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

TABLES = {
    "cluster": {"nodes": 2, "vcores": 4, "memory": "16GiB"},
    "sweep": {"trials": 4, "algorithm": "random", "threshold": 1, "feedback_iteration": 10, "seed": 3},
    "space": {"learning_rate": {"loguniform": [1e-3, 1]}},
    "job": {
        "data": "sklearn:digits", "model": "softmax", "test": "0.2", "workers": 2, "servers": 1, "iterations": 60,
        "stretch_s": 0.002,
    },
}  # fmt: skip
FILE = """
[cluster]
nodes = 2
vcores = 4
memory = "16GiB"
[sweep]
trials = 3
feedback_iteration = 5
[space]
learning_rate = { loguniform = [1e-3, 1] }
[job]
data = "sklearn:digits"
model = "softmax"
workers = 2
servers = 1
iterations = ITERATIONS
"""


def spec(**sections: dict[str, object]) -> Spec:
    return Spec.of({name: {**table, **sections.get(name, {})} for name, table in TABLES.items()})


@pytest.mark.parametrize("policy", ["elastic", "kill"])
def test_a_sweep_ends_with_its_best_point_and_leaks_nothing(policy: str) -> None:
    happened: list[e.Event] = []
    sweep = Sweep(spec(), policy, lambda now_s, event, commands: happened.append(event))
    found = sweep.run()
    assert sweep.scheduler is not None
    sweep.scheduler.state.ledger.check()
    assert found["resources"] == {"leaked": 0}
    assert len(found["trials"]) == 4
    assert {trial["phase"] for trial in found["trials"]} <= {"finished", "killed"}, found["trials"]
    finished = [trial for trial in found["trials"] if trial["phase"] == "finished"]
    assert found["completed"] == len(finished) >= 1
    assert found["best"]["loss"] == min(trial["loss"] for trial in finished)
    assert found["best"]["point"] in [trial["point"] for trial in finished]
    for trial in found["trials"]:
        assert trial["arrived_s"] <= trial["started_s"] <= trial["first_iteration_s"] <= trial["finished_s"]
        assert trial["feedback"] is not None
    if policy == "elastic":
        assert any(isinstance(event, e.GrowthDone) for event in happened), "eight containers, four for each job"
        assert sum(trial["restarts"] for trial in found["trials"]) == 0
    json.dumps(found, allow_nan=False)


class Noted(GivenPoints):
    """Points that note how many results they know whenever they are asked for one."""

    def __init__(self, number: int) -> None:
        super().__init__([{"learning_rate": 0.1 / (k + 1)} for k in range(number)])
        self.known = 0
        self.asked: list[int] = []

    def ask(self, job_id: str) -> dict[str, Any]:
        self.asked.append(self.known)
        return super().ask(job_id)

    def tell(self, job_id: str, loss: float | None, killed: bool = False, rungs: Rungs = ()) -> None:
        self.known += 1


def test_a_point_is_drawn_when_its_trial_can_start() -> None:
    points = Noted(4)
    found = Sweep(spec(job={"iterations": 30}), "static", points=points).run()
    assert found["completed"] == 4
    assert points.asked[:2] == [0, 0], "two fit at once"
    assert points.asked[2] >= 1 and points.asked[3] >= 2, "the results that made room are known"
    assert all(trial["started_s"] - trial["arrived_s"] < 1 for trial in found["trials"])


def test_diverged_trials_are_killed_with_the_reason_and_the_others_continue() -> None:
    linear = {"model": "linear", "data": "sklearn:diabetes", "optimizer": "sgd"}
    sweep = Sweep(
        spec(sweep={"trials": 3, "threshold": 0}, job=linear),
        "elastic",
        # The gradient of the second is soon infinite; the loss of the third only grows and grows.
        points=GivenPoints([{"learning_rate": 1e-2}, {"learning_rate": 1e30}, {"learning_rate": 8.0}]),
    )
    found = sweep.run()
    by_rate = {trial["point"]["learning_rate"]: trial for trial in found["trials"]}
    assert by_rate[1e-2]["phase"] == "finished"
    for rate, why in ((1e30, "between keys 0 and 1: training diverged"), (8.0, "diverged: its loss grew from")):
        assert by_rate[rate]["phase"] == "killed"
        assert why in by_rate[rate]["why"]
        assert len(by_rate[rate]["attempts"]) == 1
        assert by_rate[rate]["loss"] is None
    assert found["resources"] == {"leaked": 0}


def test_the_command_prints_the_reasons_and_the_best_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = tmp_path / "sweep.toml", tmp_path / "report.json"
    path.write_text(FILE.replace("ITERATIONS", "20"))
    assert cli.main(["sweep", str(path), "--report", str(target)]) == 0
    out = capsys.readouterr().out
    assert "trial-1 starts with 2 workers and 1 server: they are free" in out
    assert "best: sweep-trial-" in out.splitlines()[-1]
    found = json.loads(target.read_text())
    assert found["completed"] == 3
    assert all(trial["curve"][-1][1] == 21 for trial in found["trials"]), (
        "of 20 iterations, and of the events that followed"
    )
    model = tmp_path / "model.npz"
    assert cli.main(["results", str(target), "--export-best", str(model)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[2].split()[0] == found["best"]["job_id"] in captured.err
    (name,) = (trial["name"] for trial in found["trials"] if trial["job_id"] == found["best"]["job_id"])
    assert model.read_bytes() == find_job(name).model.read_bytes()


def test_interrupting_a_sweep_ends_its_jobs(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(FILE.replace("ITERATIONS", "1000000"))
    code = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sweep", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "gives early feedback" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    # The fixtures check that its jobs leave no process.
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_invalid_sweeps_are_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(FILE.replace("ITERATIONS", "20"))
    assert cli.main(["sweep", str(path), "--policy", "elastic,static"]) == 2
    assert "compare takes several" in capsys.readouterr().err
