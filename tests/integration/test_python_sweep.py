"""The Python call of a sweep, an Optuna study as its source, and the example with Hyperopt's fmin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hscheduler
from eps.errors import ConfigError
from hscheduler.core import events as e
from hscheduler.service.recorded_sweep import RecordedSweep
from hscheduler.spec import Spec
from tests.integration.test_sweep import FILE, ROOT, TABLES

pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

SMALL = {**TABLES, "sweep": {**TABLES["sweep"], "trials": 2}, "job": {**TABLES["job"], "iterations": 20}}


def test_the_call_does_what_the_command_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    happened: list[e.Event] = []
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    found = hscheduler.sweep(
        SMALL, policy="static", on_event=lambda _, event, __: happened.append(event), report=report, page=page
    )
    assert found["policy"] == "static" and len(found["trials"]) == 2 and found["resources"] == {"leaked": 0}
    assert found.best_point == found["best"]["point"]
    assert any(isinstance(event, e.JobEnded) for event in happened)
    assert json.loads(report.read_text()) == json.loads(json.dumps(found))
    assert "trial-2" in page.read_text()
    assert "static" in str(found).splitlines()[1]
    assert capsys.readouterr().out == "", "it is quiet"
    found.write_page(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page.read_text()


def test_the_call_takes_a_path_or_a_spec_and_reports_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(FILE.replace("ITERATIONS", "10"))
    points = [
        hscheduler.sweep(given, trials=1, seed=5, quiet=quiet)["trials"][0]["point"]
        for given, quiet in ((str(path), False), (path, True), (Spec.read(path), True))
    ]
    assert points[0] == points[1] == points[2]
    assert capsys.readouterr().out.count("trial-1 finished") == 1


def test_a_named_sweep_is_recorded(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    found = hscheduler.sweep(SMALL, name="mine", report=report)
    assert (found["name"], found["state"]) == ("mine", "ended") and found["completed"]
    assert json.loads(report.read_text()) == RecordedSweep.named("mine").report() == json.loads(json.dumps(found))
    with pytest.raises(ConfigError, match="sweep 'mine' has ended"):
        hscheduler.sweep(SMALL, name="mine")


def test_the_call_refuses_invalid_sweeps(tmp_path: Path) -> None:
    for arguments, message in (
        ({"name": "a/b"}, "name is 'a/b', but must have 1 to 64 letters"),
        ({"policy": "elastc"}, "policy is 'elastc', but must be one of"),
        ({"policy": "elastic,static"}, "but must be a single policy"),
        ({"trials": 0}, "trials is 0, but must be at least 1"),
        ({"report": tmp_path / "no" / "report.json"}, "must be a file in a writable directory"),
    ):
        with pytest.raises(ConfigError, match=message):
            hscheduler.sweep(SMALL, **arguments)
    with pytest.raises(ConfigError, match="No such file"):
        hscheduler.sweep(tmp_path / "no.toml")


def test_importing_the_package_imports_next_to_nothing() -> None:
    code = "import hscheduler, sys; hscheduler.sweep if len(sys.argv) > 1 else 0; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not {"numpy", "hyperopt", "grpc", "hscheduler.spec"} & set(loaded.split())
    loaded = subprocess.run([sys.executable, "-c", code, "sweep"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "hscheduler.live.sweep" in loaded.stdout.split() and "hyperopt" not in loaded.stdout.split()


def test_a_study_gives_the_points_and_gets_the_results() -> None:
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed: extra optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=2))
    tables = {**TABLES, "job": {**TABLES["job"], "iterations": 150}}
    found = hscheduler.sweep(tables, study=study)
    told = {trial.user_attrs["job_id"]: trial for trial in study.trials}
    assert [trial["point"] for trial in found["trials"]] == [told[t["job_id"]].params for t in found["trials"]]
    for trial in found["trials"]:
        its = told[trial["job_id"]]
        if trial["phase"] == "finished":
            assert its.state.name == "COMPLETE" and its.value == trial["loss"]
        else:
            assert its.state.name == "PRUNED" and its.intermediate_values == {10: trial["feedback"]}
    assert {trial["phase"] for trial in found["trials"]} == {"finished", "killed"}
    assert study.best_params == found.best_point

    again = {**TABLES, "sweep": {"algorithm": "optuna", "trials": 2, "seed": 3}, "job": SMALL["job"]}
    assert hscheduler.sweep(again)["completed"] == 2


def test_the_example_finds_the_same_with_both_trials() -> None:
    command = [sys.executable, str(ROOT / "examples" / "hyperopt_trials.py"), "--points", "3", "--iterations", "20"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, env=_with_root())
    assert ran.returncode == 0, ran.stderr
    plain, ours, several, last = ran.stdout.splitlines()
    assert last == "the same best loss"
    assert plain.split(" s  ")[1] == ours.split(" s  ")[1], "the same model at the same point"
    assert "HTrials(parallelism=4)" in several


def test_the_sweep_of_the_demo_can_be_read() -> None:
    spec = Spec.read(ROOT / "examples" / "digits.toml")
    assert spec.request("a", "s", next(spec.points())).workers == spec.job["workers"]


def _with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
