"""The folders of recorded sweeps: names, states, refusals, and commands that take a sweep's name."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eps._version import __version__
from eps.errors import ConfigError, StorageError
from eps.job.yarn.sweeps import list_sweeps
from eps.storage.jobdir import JobLock
from eps.system.waits import wait_for
from hscheduler import cli
from hscheduler.core.codec import FORMAT
from hscheduler.live.points import GivenPoints
from hscheduler.live.sweep import Sweep
from hscheduler.runners.report_writer import ReportWriter
from hscheduler.service.recorded_sweep import RecordedSweep, SweepState, recorded_sweeps
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

TIMEOUT_S = 10.0
TABLES: dict[str, Any] = {
    "sweep": {"trials": 4, "algorithm": "random"},
    "space": {"learning_rate": {"uniform": [0, 1]}},
    "job": {"data": "sklearn:digits", "model": "softmax", "iterations": 300},
}
FILE = """
[sweep]
trials = 4
algorithm = "random"
[space]
learning_rate = { uniform = [0, 1] }
[job]
data = "sklearn:digits"
model = "softmax"
iterations = 300
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "my sweep.toml"
    found.write_text(FILE)
    return found


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(simulate(Spec.of(TABLES), "elastic")))
    return found


def sweep_of(name: str, report: dict[str, Any] | None = None, state: str = "ended") -> RecordedSweep:
    """Return a sweep that was begun, with a record of a sweep without trials."""
    with RecordedSweep.create(name, "") as place:
        place.begin("elastic", Spec.of(TABLES))
        with pytest.raises(KeyboardInterrupt):
            Sweep(Spec.of(TABLES), "elastic", points=Interrupting()).run(place.open_record())
        if report is not None:
            place.report_path.write_text(json.dumps(place.titled(report, SweepState(state))))
    return place


class Interrupting(GivenPoints):
    """Points whose first one is never drawn: the user presses Ctrl-C."""

    def __init__(self) -> None:
        super().__init__(())

    def ask(self, job_id: str) -> dict[str, Any]:
        raise KeyboardInterrupt


def test_a_sweep_is_named_after_its_file_with_a_number_if_that_is_in_use(home: Path) -> None:
    names = []
    for _ in range(3):
        with RecordedSweep.create("", "my sweep") as place:
            place.begin("elastic", Spec.of(TABLES))
            names.append(place.name)
    assert names == ["my-sweep", "my-sweep-2", "my-sweep-3"]
    with RecordedSweep.create("", "...") as place:
        assert place.name == "sweep"
    assert not place.path.exists(), "it did not begin"
    for name in ("a/b", "..", ".hidden", "x" * 65, "ä"):
        with pytest.raises(ConfigError, match="must have 1 to 64 letters"), RecordedSweep.create(name, ""):
            pass


def test_the_folder_of_a_process_that_was_killed_before_it_began_is_used_again() -> None:
    place = RecordedSweep.named("mine")
    place.path.mkdir(parents=True)
    place.lock_path.touch()
    with RecordedSweep.create("mine", "") as found:
        found.begin("elastic", Spec.of(TABLES))
    assert found == place and place.state() is SweepState.INTERRUPTED


def test_a_resumed_sweep_draws_the_same_points() -> None:
    branch = {"choice": [{"optimizer": "momentum", "momentum": {"uniform": [0, 1]}, "l2": {"uniform": [0, 1]}}, {}]}
    spec = Spec.of({**TABLES, "space": {"rule": branch, "learning_rate": {"uniform": [0, 1]}}})
    with RecordedSweep.create("mine", "") as place:
        place.begin("elastic", spec)
    drawn, again = spec.points(), place.settings()[1].points()
    assert [next(again) for _ in range(9)] == [next(drawn) for _ in range(9)]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("running", "sweep 'mine' is running"),
        (
            "interrupted",
            "was interrupted: hscheduler sweep --resume mine continues it, hscheduler sweeps --remove mine",
        ),
        ("ended", "sweep 'mine' has ended: hscheduler sweeps --remove mine removes it"),
    ],
)
def test_a_name_in_use_is_refused_with_what_to_do(
    state: str, told: str, report: dict[str, Any], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = sweep_of("mine", report, state)
    with JobLock(place.lock_path) if state == "running" else closing(path.open()):
        assert place.state() == state
        assert cli.main(["sweep", str(path), "--name", "mine"]) == 2
    assert told in capsys.readouterr().err


def test_a_target_of_another_metric_and_a_page_of_what_has_ended_are_refused_before_anything_runs(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_of("mine")
    assert cli.main(["sweep", "--resume", "mine", "--target", "auc=0.9"]) == 2
    assert "target is auc=0.9, but the sweep's metric is loss" in capsys.readouterr().err
    assert RecordedSweep.named("mine").state() is SweepState.INTERRUPTED
    sweep_of("over", report)
    assert cli.main(["sweep", "--resume", "over", "--web", "0"]) == 2
    assert "web is for sweeps that run, but over has ended" in capsys.readouterr().err


def test_why_tells_what_was_decided_about_a_trial(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    named = json.loads(json.dumps(report).replace('"trial-', '"mine-trial-').replace(" trial-", " mine-trial-"))
    sweep_of("mine", named)
    trial = named["best"]["job_id"]
    assert cli.main(["why", trial]) == 0
    first, *decisions = capsys.readouterr().out.splitlines()
    assert first == f"{trial} has ended (finished, loss {named['best']['loss']:.6g})"
    assert len(decisions) == sum(trial in each["jobs"] for each in named["decisions"]) > 0
    assert cli.main(["why", "mine-trial-99"]) == 4
    assert "there is no trial 'mine-trial-99' in sweep mine" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mine-trial-2", "mine-trial-2-again-1"])
def test_why_tells_about_all_attempts_of_a_trial(
    name: str, report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    first = {
        "job_id": "mine-trial-2",
        "phase": "failed",
        "why": "a worker crashed",
        "started_s": 1.0,
        "finished_s": 2.0,
    }
    again = {**first, "job_id": "mine-trial-2-again-1", "phase": "finished", "why": "", "finished_s": 9.0}
    trial = {**report["trials"][1], "job_id": "mine-trial-2", "attempts": [first, again]}
    trial |= {"phase": "finished", "why": "", "latest": 0.25}
    others = [{**each, "job_id": f"mine-{each['job_id']}", "attempts": []} for each in report["trials"][2:]]
    decisions = [
        {"at_s": 2.0, "sentence": "mine-trial-2 failed: a worker crashed", "jobs": ["mine-trial-2"], "plan": []},
        {"at_s": 3.0, "sentence": "mine-trial-2-again-1 starts", "jobs": ["mine-trial-2-again-1"], "plan": []},
        {"at_s": 4.0, "sentence": "mine-trial-3 starts", "jobs": ["mine-trial-3"], "plan": []},
    ]
    sweep_of("mine", {**report, "trials": [*others, trial], "decisions": decisions})
    assert cli.main(["why", name]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine-trial-2 has ended (finished, loss 0.25)",
        "    2.00 s  mine-trial-2 failed: a worker crashed",
        "    3.00 s  mine-trial-2-again-1 starts",
    ]


def test_trials_of_an_interrupted_sweep_do_not_run(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = ["training", "ending", "queued", "finished"]
    trials = [
        {**trial, "phase": phase, "job_id": f"mine-{trial['job_id']}", "why": "", "iterations": 7, "latest": 0.5}
        for trial, phase in zip(report["trials"], phases, strict=True)
    ]
    found = {**report, "trials": trials, "name": "mine", "state": "interrupted"}
    sweep_of("mine")
    monkeypatch.setattr(RecordedSweep, "report", lambda self: found)
    assert cli.main(["results", "mine"]) == 0
    shown = {row.split()[0]: row.split()[1] for row in capsys.readouterr().out.splitlines()[2:]}
    assert list(map(shown.get, (trial["job_id"] for trial in trials))) == ["interrupted", "interrupted", *phases[2:]]
    assert cli.main(["results", "mine", "--csv"]) == 0
    assert capsys.readouterr().out.count(",interrupted,") == 2
    assert cli.main(["why", "mine-trial-1"]) == 0
    assert capsys.readouterr().out.startswith("mine-trial-1 was interrupted at iteration 7 of 300, loss 0.5\n")


def test_a_sweep_that_runs_is_neither_resumed_nor_removed(capsys: pytest.CaptureFixture[str]) -> None:
    place = sweep_of("mine")
    with place.lock():
        for words in (["sweep", "--resume", "mine"], ["sweeps", "--remove", "mine"]):
            assert cli.main(words) == 2
            assert "sweep 'mine' runs in another process" in capsys.readouterr().err
    assert place.state() is SweepState.INTERRUPTED


def test_a_service_refuses_the_folder_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    place = sweep_of("mine")
    assert cli.main(["serve", "--state", str(place.path)]) == 2
    told = f"{place.path} belongs to a sweep: hscheduler sweep --resume mine continues it; or use another --state"
    assert told in capsys.readouterr().err


def test_a_record_of_another_version_is_refused_with_both_versions(capsys: pytest.CaptureFixture[str]) -> None:
    place = sweep_of("mine")
    with closing(sqlite3.connect(place.path / "record.sqlite")) as database, database:
        database.execute("UPDATE about SET format = 'older', written_by = '0.1'")
    for words in (["sweep", "--resume", "mine"], ["results", "mine"]):
        assert cli.main(words) == 1
        told = capsys.readouterr().err
        assert f"is in format older, which eps 0.1 wrote; this is eps {__version__}, which reads {FORMAT}" in told
    assert place.state() is SweepState.INTERRUPTED, "nothing was changed"


def test_a_report_of_another_version_is_refused_and_hides_no_other_sweep(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [{name: value for name, value in trial.items() if name != "latest"} for trial in report["trials"]]
    place = sweep_of("old", {**report, "trials": trials})
    for words in (["results", "old"], ["why", "old-trial-1"], ["page", "old"]):
        assert cli.main(words) == 2
        assert f"{place.report_path} is a report of another version of hscheduler" in capsys.readouterr().err
    assert cli.main(["sweeps"]) == 0 and "old    here   ended" in capsys.readouterr().out


def test_a_sweep_that_has_ended_writes_its_report_again(
    report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, target, page = sweep_of("mine", report), tmp_path / "report.json", tmp_path / "page.html"
    # Neither the record nor the data is read.
    (place.path / "record.sqlite").unlink()
    assert cli.main(["sweep", "--resume", "mine", "--report", str(target), "--page", str(page)]) == 0
    assert "best: trial-" in capsys.readouterr().out
    written = json.loads(target.read_text())
    assert (written["name"], written["state"]) == ("mine", "ended") and written["trials"] == report["trials"]
    assert page.exists()
    for flags in (["--trials", "3"], ["--name", "other"]):
        assert cli.main(["sweep", "--resume", "mine", *flags]) == 2
        assert "is only for new sweeps" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_at_the_end_is_in_the_folder(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    place, full = sweep_of("mine", report), Path("/dev/full")
    assert cli.main(["sweep", "--resume", "mine", "--report", str(full)]) == 1
    told = capsys.readouterr()
    assert "best: trial-" in told.out, "the results are shown"
    assert f"{full}: cannot be written: No space left on device; every result is in {place.path}: " in told.err
    assert "hscheduler sweep --resume mine --report PATH writes the report" in told.err


def test_results_and_page_take_the_name_of_a_sweep(
    report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_of("mine", report)
    assert cli.main(["results", "mine"]) == 0
    assert "elastic: " in capsys.readouterr().out
    assert cli.main(["page", "mine", "--out", str(tmp_path / "page.html")]) == 0
    assert "trial-4" in (tmp_path / "page.html").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr0.1").mkdir()
    sweep_of("lr0.1", report)
    assert cli.main(["page", "lr0.1"]) == 0 and (tmp_path / "lr0.1.html").exists()
    sweep_of("interrupted")
    capsys.readouterr()
    assert cli.main(["results", "interrupted"]) == 0
    assert capsys.readouterr().out.startswith("elastic: 0 of 0 finished")


def test_sweeps_are_listed_and_removed(report: dict[str, Any], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweeps"]) == 0
    assert capsys.readouterr().out == "no sweep was run here, or submitted to YARN from here\n"
    sweep_of("abc", report)
    sweep_of("stopped", report, "running")
    sweep_of("damaged").report_path.write_text("{")
    assert {each.name for each in recorded_sweeps()} == {"abc", "stopped", "damaged"}
    assert list_sweeps() == [], "eps prune leaves them alone"
    assert cli.main(["sweeps"]) == 0
    told = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in told.out.splitlines()}
    assert rows["abc"][1:5] == ["here", "ended", f"{sum(report['phases'].values())}/4", "here"]
    assert report["best"]["job_id"] in rows["abc"][7] and rows["abc"][-1] == str(home / "sweeps" / "abc")
    assert rows["stopped"][2] == "interrupted" and rows["damaged"][2] == "unreadable"
    assert f"{home}/sweeps/damaged/report.json" in told.err
    for name in ("abc", "stopped", "damaged"):
        assert cli.main(["sweeps", "--remove", name]) == 0
    assert not list((home / "sweeps").iterdir())
    assert cli.main(["sweeps", "--remove", "abc"]) == 4


def test_only_the_latest_sweeps_are_listed_without_all(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    place = sweep_of("mine", report)
    for number in range(24):
        shutil.copytree(place.path, place.path.with_name(f"copy-{number}"))
    for flags, number, told in (([], 20, "5 earlier ones are not shown (--all)"), (["--all"], 25, "")):
        assert cli.main(["sweeps", *flags]) == 0
        *rows, last = capsys.readouterr().out.splitlines()[1:]
        assert len(rows) == number and told in last and bool(told) == ("--all" in last)


class Reports:
    """Counts the reports that are made."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> dict[str, Any]:
        self.number += 1
        return {"number": self.number}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hscheduler.runners.report_writer.LEAST_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_a_report_is_written_while_something_happens(tmp_path: Path) -> None:
    make, path = Reports(), tmp_path / "report.json"
    number: Callable[[], int] = lambda: json.loads(path.read_text())["number"] if path.exists() else 0  # noqa: E731
    with ReportWriter(make, [path]) as writer:
        for expected in (1, 2):
            writer.note()
            wait_for(lambda expected=expected: number() == expected, TIMEOUT_S, "the report")  # type: ignore[misc]
    assert make.number == 2, "nothing happened since"
    assert [each.name for each in tmp_path.glob("*.json")] == ["report.json"]


@pytest.mark.usefixtures("quick")
def test_a_report_that_cannot_be_written_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "gone"
    make, path = Reports(), folder / "report.json"
    with ReportWriter(make, [path]) as writer:
        writer.note()
        wait_for(lambda: make.number > 2, TIMEOUT_S, "the next tries")
        folder.mkdir()
        wait_for(path.exists, TIMEOUT_S, "the report")
    (told,) = caplog.records
    assert "the report of the running sweep cannot be written, and is retried" in told.getMessage()
    assert isinstance(told.args[0], StorageError)  # type: ignore[index]


def test_the_report_has_the_size_that_the_file_asks_for() -> None:
    spec = Spec.of(TABLES)
    asked = spec.job_spec().workers, spec.job_spec().servers
    with RecordedSweep.create("sized", "") as place:
        place.begin("gain", spec)
        sweep = Sweep(spec, "gain", points=Interrupting())
        with pytest.raises(KeyboardInterrupt):
            sweep.run(place.open_record())
    assert sweep.spec.job_spec().tiers.reliable == 1
    for found in (sweep.report(), place.report()):
        job = Spec.of(found["spec"]).job_spec()
        assert (job.workers, job.servers, job.tiers.reliable) == (*asked, 0)
