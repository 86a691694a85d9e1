"""Page and tables of an existing report, from any command; and refused reports."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from eps.storage.jobdir import job_dir
from hscheduler import cli
from hscheduler.cli.commands.results import ranked
from hscheduler.page import page
from hscheduler.simulator.run import simulate
from hscheduler.simulator.static_sizes import with_static
from hscheduler.spec import Spec
from tests.hscheduler.test_page import data_of

TABLES = {
    "cluster": {"master_container": True},
    "sweep": {"trials": 6, "seed": 2, "threshold": 1},
    "space": {"learning_rate": {"uniform": [0, 1]}},
    "job": {"splits": 12, "stretch_s": 0.01, "iterations": 300},
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return json.loads(json.dumps(simulate(Spec.of(TABLES), "elastic")))


def written(path: Path, value: object) -> str:
    path.write_text(json.dumps(value))
    return str(path)


def test_the_page_of_a_report_is_the_page_of_its_sweep(report: dict[str, Any], tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert cli.main(["page", written(tmp_path / "report.json", report), "--out", str(target)]) == 0
    assert data_of(target.read_text()) == data_of(page({"elastic": with_static(report)}))


@pytest.mark.parametrize("form", ["compare", "simulate"])
def test_reports_of_several_policies_are_opened_too(report: dict[str, Any], tmp_path: Path, form: str) -> None:
    reports = {"elastic": report, "static": {**report, "policy": "static"}}
    value = {"policies": reports, "makespan_over": {"of": "elastic"}} if form == "compare" else reports
    target = tmp_path / "page.html"
    assert cli.main(["page", written(tmp_path / "report.json", value), "--out", str(target)]) == 0
    assert data_of(target.read_text()) == data_of(page(reports))


@pytest.mark.parametrize("lacks", ["metric", "latest"])
def test_a_report_of_another_version_is_refused(
    lacks: str, report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [{name: value for name, value in trial.items() if name != lacks} for trial in report["trials"]]
    other = {name: value for name, value in report.items() if name != lacks} | {"trials": trials}
    assert cli.main(["page", written(tmp_path / "report.json", other), "--out", str(tmp_path / "page.html")]) == 2
    assert "is not a report of this version of hscheduler sweep" in capsys.readouterr().err


def test_the_table_has_the_best_first(
    report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["results", written(tmp_path / "report.json", report)]) == 0
    first, head, *rows = capsys.readouterr().out.splitlines()
    assert first == f"elastic: {report['completed']} of 6 finished"
    assert head.split() == ["TRIAL", "PHASE", "LOSS", "FEEDBACK", "POINT", "WHY"]
    assert rows[0].split()[0] == report["best"]["job_id"]
    phases = [row.split()[1] for row in rows]
    assert 2 <= report["completed"] < 6
    assert phases == ["finished"] * report["completed"] + ["killed"] * (6 - report["completed"])
    losses = [float(row.split()[2]) for row in rows[: report["completed"]]]
    assert losses == sorted(losses)


def test_the_table_has_the_first_metric_of_the_test_data_beside_the_loss(
    report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    trials = [{**trial, "name": f"sweep-0a1b2c-{trial['job_id']}"} for trial in report["trials"]]
    best = job_dir(f"sweep-0a1b2c-{report['best']['job_id']}")
    best.path.mkdir(parents=True)
    best.report.write_text(json.dumps({"metrics": {"test": {"loss": 0.5, "f1": 0.75, "accuracy": 0.875}}}))
    for metric, heads in (("loss", ["LOSS", "FEEDBACK", "TEST", "ACCURACY"]), ("accuracy", ["ACCURACY", "FEEDBACK"])):
        path = written(tmp_path / "report.json", {**report, "trials": trials, "metric": metric})
        assert cli.main(["results", path]) == 0
        _, head, first, second, *_ = capsys.readouterr().out.splitlines()
        assert head.split()[2 : 2 + len(heads)] == heads
        if metric == "loss":
            assert first.split()[4] == "0.8750" and second.split()[4] == "-"


def test_where_more_is_better_the_highest_is_first(report: dict[str, Any]) -> None:
    found = ranked({**report, "direction": "maximize"})
    losses = [trial["loss"] for trial in found if trial["phase"] == "finished"]
    assert len(losses) > 1 and losses == sorted(losses, reverse=True)


def test_the_csv_has_a_row_for_each_trial(
    report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["results", written(tmp_path / "report.json", report), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 6
    assert rows[0]["policy"] == "elastic" and rows[0]["job_id"] == report["best"]["job_id"]
    assert float(rows[0]["loss"]) == report["best"]["loss"]
    assert float(rows[0]["learning_rate"]) == report["best"]["point"]["learning_rate"]
    assert all(trial["value"] == trial["loss"] for trial in report["trials"])


def test_the_column_of_the_csv_is_named_after_the_metric(
    report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_accuracy = {**report, "metric": "accuracy"}
    assert cli.main(["results", written(tmp_path / "report.json", by_accuracy), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert "loss" not in rows[0] and float(rows[0]["accuracy"]) == report["best"]["loss"]


@pytest.mark.parametrize("value", [[], {}, {"state": "finished"}, {"elastic": {"policy": "elastic"}}, 7])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: object) -> None:
    assert cli.main(["results", written(tmp_path / "report.json", value)]) != 0
    assert "Traceback" not in (error := capsys.readouterr().err) and "report.json" in error


@pytest.mark.parametrize("command", [["results"], ["page", "--out", "page.html"]])
def test_text_that_is_not_json_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("[job]\n")
    assert cli.main([*command, str(path)]) == 2
    assert "sweep.toml is not a report of hscheduler: it is not JSON (" in capsys.readouterr().err


def test_a_simulated_sweep_has_no_model(
    report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "report.json", report)
    assert cli.main(["results", path, "--export-best", str(tmp_path / "model.npz")]) == 2
    assert "was simulated, so it has no model" in capsys.readouterr().err
    assert cli.main(["results", str(tmp_path / "none.json")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_name_that_is_no_file_is_a_sweep_of_the_default_service(
    report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["results", "mine"]) == 2
    told = "there is no sweep 'mine' (hscheduler sweeps lists them), and no service ever ran in " + str(tmp_path)
    assert told in capsys.readouterr().err
    kept = tmp_path / "home" / "hscheduler" / "reports"
    kept.mkdir(parents=True)
    written(kept / "mine.json", report)
    assert cli.main(["results", "mine"]) == 0
    assert report["best"]["job_id"] in capsys.readouterr().out
    assert cli.main(["results", "mine.json"]) == 2
    assert "mine.json: no such file" in capsys.readouterr().err
