"""``hscheduler compare``: results of an interrupted comparison, and messages on its points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hscheduler import cli
from hscheduler.cli.commands.sizes import beginnings
from hscheduler.live.sweep import Sweep
from hscheduler.runners import OnYarn, Outcome, Viewers
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

FILE = """
[sweep]
trials = 2
algorithm = "random"
[space]
learning_rate = { uniform = [0.1, 1] }
[job]
data = "sklearn:digits"
model = "softmax"
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("sklearn", reason="the data is scikit-learn's")
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    path = tmp_path / "sweep.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the policies that run, in virtual time; ``kill`` is interrupted."""
    ran: list[str] = []

    def run(sweep: Any) -> Any:
        ran.append(sweep._settings.policy)
        if ran[-1] == "kill":
            raise KeyboardInterrupt
        # As of real jobs: of those that are stopped the final loss is unknown.
        return {**simulate(sweep.spec, ran[-1]), "regret": None}

    monkeypatch.setattr(Sweep, "run", run)
    return ran


def test_results_of_an_interrupted_comparison_are_written(spec: Path, policies: list[str], tmp_path: Path) -> None:
    target, drawn = tmp_path / "report.json", tmp_path / "page.html"
    flags = ["--policies", "static,elastic,kill,priority", "--report", str(target), "--page", str(drawn), "--quiet"]
    assert cli.main(["compare", str(spec), *flags]) == 130
    assert policies == ["static", "elastic", "kill"]
    found = json.loads(target.read_text())
    assert set(found["policies"]) == {"static", "elastic"} and found["policies"]["static"]["completed"] == 2
    assert set(found["makespan_over"]) == {"of", "static", "elastic"} and found["makespan_over"]["static"] == 1.0
    assert "elastic" in drawn.read_text()


def test_a_policy_under_which_no_trial_finished_is_named_and_is_a_failure(
    spec: Path, policies: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Sweep.run

    def nothing(sweep: Any) -> Any:
        found = run(sweep)
        return {**found, "best": None} if found["policy"] == "elastic" else found

    monkeypatch.setattr(Sweep, "run", nothing)
    assert cli.main(["compare", str(spec), "--policies", "static,elastic", "--quiet"]) == 1
    assert capsys.readouterr().err == "no trial finished under elastic\n"


def test_an_unknown_regret_has_a_reason_below_the_table(
    spec: Path, policies: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(FILE.replace("trials = 2", "trials = 6\ngrace_iterations = 10"))
    flags = ["--policies", "static,elastic", "--quiet"]
    assert cli.main(["compare", str(spec), *flags, "--stop", "none"]) == 0
    assert "regret is unknown" not in capsys.readouterr().out
    assert cli.main(["compare", str(spec), *flags, "--stop", "sha"]) == 0
    assert capsys.readouterr().out.count("regret is unknown") == 1


def test_sizes_that_differ_at_the_begin_are_named(
    spec: Path, policies: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.json"
    spec.write_text(f"{FILE}workers = 2\nservers = 1\n")
    assert cli.main(["compare", str(spec), "--policies", "static,elastic", "--quiet"]) == 0
    assert "trials begin" not in capsys.readouterr().out
    flags = ["--policies", "static,elastic,gain", "--quiet", "--report", str(target)]
    assert cli.main(["compare", str(spec), *flags]) == 0
    told = "sizes: static and elastic with 2 workers and 1 server; gain with 1 container ("
    assert told in capsys.readouterr().out
    begins = json.loads(target.read_text())["begins_with"]
    assert begins == {"static": "2 workers and 1 server", "elastic": "2 workers and 1 server", "gain": "1 container"}


def test_static_begins_with_its_best_size() -> None:
    sweep = Spec.of({"job": {"workers": 2, "servers": 1}})
    assert beginnings(sweep, {"static": {"size": "5 containers"}, "gain": {}}) == {
        "static": "5 containers",
        "gain": "1 container",
    }
    searched = Spec.of({"space": {"workers": {"choice": [1, 2]}}})
    assert beginnings(searched, {"static": {}, "gain": {}}) == {}


def test_points_that_policies_do_not_share_are_reported(
    spec: Path, policies: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--policies", "static,elastic", "--quiet"]
    assert cli.main(["compare", str(spec), *flags]) == 0
    assert not capsys.readouterr().err
    pytest.importorskip("hyperopt", reason="tpe is Hyperopt's")
    spec.write_text(FILE.replace('"random"', '"tpe"'))
    assert cli.main(["compare", str(spec), *flags]) == 0
    told = "tpe learns from finished trials, so each policy tries different points"
    assert told in capsys.readouterr().err


def test_on_yarn_each_policy_is_an_application_of_its_own(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(runner: OnYarn, viewers: Viewers) -> Outcome:
        ran.append(runner._policy)
        viewers.where(f"application_{len(ran)} runs the sweep")
        found = simulate(runner._spec, runner._policy)
        return Outcome(found, problems=("its model is not here",) if ran[-1] == "elastic" else ())

    monkeypatch.setattr(OnYarn, "run", run)
    target = tmp_path / "report.json"
    words = ["compare", str(spec), "--on", "yarn", "--policies", "static,elastic", "--report", str(target)]
    assert cli.main(words) == 1
    told = capsys.readouterr()
    assert ran == ["static", "elastic"] and told.err == "hscheduler: its model is not here\n"
    assert "--- static\napplication_1 runs the sweep\n--- elastic\napplication_2 runs the sweep\n" in told.out
    found = json.loads(target.read_text())
    assert set(found["policies"]) == set(ran) and set(found["makespan_over"]) == {"of", *ran}
