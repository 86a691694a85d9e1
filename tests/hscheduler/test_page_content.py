"""What the page shows of a report, as values; and the simulated times of static sizes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from eps.system.web import as_json
from hscheduler.page.content import CURVE_POINTS, MOST_DECISIONS, content, settings
from hscheduler.reports.report import feedback_s, static_text
from hscheduler.simulator.run import simulate
from hscheduler.simulator.static_sizes import static_sizes, with_static
from hscheduler.spec import Spec

TABLES: dict[str, dict[str, Any]] = {
    "cluster": {"nodes": 2, "vcores": 4},
    "sweep": {"trials": 8, "seed": 2, "threshold": 2, "algorithm": "random"},
    "space": {"learning_rate": {"loguniform": [1e-3, 1]}},
    "job": {"stretch_s": 0.01, "workers": 2, "servers": 1, "data": "sklearn:digits"},
}


@pytest.fixture
def report() -> dict[str, Any]:
    return simulate(Spec.of(TABLES), "elastic")


def trials_at(**values: list[Any]) -> list[dict[str, Any]]:
    """Return trials at points given by the values of each setting; None: the trial does not have it."""
    number = max(map(len, values.values()))
    return [{"point": {name: each[k] for name, each in values.items() if each[k] is not None}} for k in range(number)]


@pytest.mark.parametrize(
    ("values", "space", "axis"),
    [
        ([0.1, 0.2, 0.3], {"uniform": [0, 1]}, {"kind": "linear"}),
        ([0.1, 0.2, 0.3], {"loguniform": [1e-3, 1]}, {"kind": "log"}),
        ([1e-4, 0, 1e-4], {"choice": [0, 1e-4]}, {"kind": "choice", "values": [0, 1e-4]}),
        (["sgd", "adam", "sgd"], {"choice": ["sgd", "adam"]}, {"kind": "choice", "values": ["adam", "sgd"]}),
        ([True, 1, "1"], None, {"kind": "choice", "values": [1, "1", True]}),
        # Without a declaration, values tell.
        ([1e-4, 0, 1e-4, 0], None, {"kind": "choice", "values": [0, 1e-4]}),
        ([1e-4, 1e-2, 1.0], None, {"kind": "log"}),
        ([-1.0, 0.0, 1.0], None, {"kind": "linear"}),
        # A setting of a conditional space, which some trials do not have.
        ([0.5, None, None], None, {"kind": "linear"}),
        ([0.5, None, 0.7], {"if": {"optimizer": "sgd"}, "uniform": [0, 1]}, {"kind": "linear"}),
    ],
)
def test_a_setting_has_the_axis_of_its_space(values: list[Any], space: Any, axis: dict[str, Any]) -> None:
    found = settings(trials_at(x=values), {} if space is None else {"x": space})
    assert found == [{"name": "x", **axis}]


def test_a_setting_in_a_branch_has_the_axis_of_its_option() -> None:
    options = [
        {"optimizer": "sgd", "momentum": {"uniform": [0, 1]}, "rate": {"loguniform": [1e-3, 1]}},
        {"optimizer": "adam", "rate": {"loguniform": [1e-4, 0.1]}, "decay": {"choice": [{"l2": {"uniform": [0, 9]}}]}},
        {"momentum": {"loguniform": [0.1, 1]}},
    ]
    trials = trials_at(rate=[0.1, 0.2, None], momentum=[0.1, 0.9, None], l2=[0.01, None, 1.0])
    kinds = {"rate": "log", "momentum": "linear", "l2": "linear"}
    assert {each["name"]: each["kind"] for each in settings(trials, {"optimizer": {"choice": options}})} == kinds


def test_settings_that_do_not_vary_have_no_axis() -> None:
    assert settings(trials_at(a=[1, 1, 1], b=[0, 1, 0]), {}) == [{"name": "b", "kind": "linear"}]


def test_its_values_are_numbers_that_json_has(report: dict[str, Any]) -> None:
    report["trials"][0] |= {"curve": [[0.0, 1, math.inf], [1.0, 2, math.nan]], "value": math.nan}
    report["trials"][1]["point"] = {"learning_rate": math.inf, "\ud800": "\ud800"}
    shown = json.loads(as_json(content(report)))
    assert shown["trials"][0]["curve"] == [[0.0, 1, None], [1.0, 2, None]]
    assert shown["trials"][0]["value"] is None


def test_it_says_how_many_containers_there_are_and_when_it_began(report: dict[str, Any]) -> None:
    shown = content({**report, "began_at": 1e9})
    assert shown["capacity"] == 8 and shown["data"] == "sklearn:digits" and shown["state"] == "ended"
    assert shown["began_at"] == "2001-09-09T01:46:40+00:00"
    assert content(report)["began_at"] == "", "simulated"
    on_yarn = {**report, "spec": {**report["spec"], "job": {"on": "yarn"}}}
    assert content(on_yarn)["capacity"] is None
    assert content({**report, "spec": None})["capacity"] is None
    large = Spec.of({**TABLES, "cluster": {"nodes": 2, "vcores": 4, "memory": "16GiB", "container_memory": "6GiB"}})
    assert content({**report, "spec": large.tables()})["capacity"] == 4, "two fit into the memory of a node"
    running = [{**report["trials"][0], "phase": "training"}, *report["trials"][1:4]]
    shown = content({**report, "trials": running}, live=True)
    assert shown["state"] == "running" and shown["planned"] == 8
    assert content({**report, "trials": running})["state"] == "interrupted"
    assert content({**report, "trials": running, "state": "running"})["state"] == "running", "as its record says"


def test_it_marks_where_no_scheduler_ran_on_an_axis_that_leaves_it_out(report: dict[str, Any]) -> None:
    shown = content({**report, "down": [[2.0, 9.0], [11.0, 12.0]]})
    assert (shown["interruptions"], shown["interrupted_s"]) == ([2.0, 4.0], 8.0)


@pytest.mark.parametrize("state", ["interrupted", None])
def test_a_trial_runs_only_while_its_sweep_does(report: dict[str, Any], state: str | None) -> None:
    first, second, *_ = report["trials"]
    first["phase"], second["phase"] = "training", "queued"
    again = {**first["attempts"][0], "job_id": "trial-1-again-1", "phase": "training"}
    first["attempts"] = [{**again, "phase": "failed"}, again]
    # A sweep that was not recorded has no state.
    report |= {} if state is None else {"state": state}
    shown = content(report)
    assert shown["state"] == "interrupted"
    assert [trial["state"] for trial in shown["trials"][:2]] == ["interrupted", "queued"]
    assert [each["phase"] for each in shown["trials"][0]["attempts"]] == ["failed", "interrupted"]
    assert first["phase"] == "training" == content(report, live=True)["trials"][0]["state"]


def test_decisions_name_trials_also_by_their_later_jobs(report: dict[str, Any]) -> None:
    report["trials"][2]["attempts"].append({**report["trials"][2]["attempts"][0], "job_id": "trial-3-attempt-2"})
    report["decisions"] = [
        {"at_s": 1.0, "sentence": "x", "jobs": ["trial-3-attempt-2", "trial-1", "gone"], "plan": []},
        *({"at_s": 2.0, "sentence": "y", "jobs": [], "plan": []} for _ in range(MOST_DECISIONS - 1)),
    ]
    shown = content(report)
    assert shown["decisions"][0] == [1.0, "x", [0, 2]] and shown["older_decisions"] == 0
    report["decisions"].append({"at_s": 3.0, "sentence": "z", "jobs": [], "plan": []})
    shown = content(report)
    assert len(shown["decisions"]) == MOST_DECISIONS and shown["older_decisions"] == 1


def test_long_curves_are_thinned_to_their_ends(report: dict[str, Any]) -> None:
    curve = [[float(k), k, 1.0 / (k + 1)] for k in range(10_000)]
    for trial in report["trials"]:
        trial["curve"] = curve
    shown = content(report)["trials"]
    assert sum(len(trial["curve"]) for trial in shown) <= CURVE_POINTS
    assert all(trial["curve"][0] == curve[0] and trial["curve"][-1] == curve[-1] for trial in shown)


def test_static_sizes_are_simulated_with_the_same_points_and_rule(report: dict[str, Any]) -> None:
    found = static_sizes(report)
    assert found["why"] == ""
    asked = [each for each in found["sizes"] if each["asked"]]
    assert [each["size"] for each in asked] == ["2 workers and 1 server"]
    assert [each["size"] for each in found["sizes"]][1:] == [
        "1 container",
        "2 containers",
        "4 containers",
        "8 containers",
    ]
    replayed = simulate(Spec.of({**TABLES, "sweep": {**TABLES["sweep"], "stop": report["stop"]}}), "static")
    assert asked[0]["makespan_s"] == pytest.approx(replayed["makespan_s"], rel=0.01)
    assert asked[0]["finished"] <= 8
    assert found == static_sizes(report), "the same each time"


def test_sizes_that_the_settings_of_the_job_exclude_are_left_out() -> None:
    found = static_sizes(simulate(Spec.of({**TABLES, "job": {**TABLES["job"], "max_containers": 6}}), "elastic"))
    sizes = [each["size"] for each in found["sizes"]]
    assert sizes == ["2 workers and 1 server", "1 container", "2 containers", "4 containers"]


@pytest.mark.parametrize(
    "sweep", [{"parallelism": 2}, {"parallelism": 2, "arrival": "burst"}, {"arrival": "poisson:4s"}]
)
def test_static_sizes_try_as_many_trials_at_once_as_the_sweep(sweep: dict[str, Any]) -> None:
    changed = {"cluster": {"nodes": 4}, "job": {**TABLES["job"], "iterations": 400}}
    tables = {**TABLES, **changed, "sweep": {**TABLES["sweep"], "stop": "none", **sweep}}
    static = simulate(Spec.of(tables), "static")
    (asked,) = (each for each in static_sizes(simulate(Spec.of(tables), "elastic"))["sizes"] if each["asked"])
    assert asked["makespan_s"] == pytest.approx(static["makespan_s"], rel=0.01)
    assert asked["early_feedback_mean_s"] == pytest.approx(feedback_s(static), rel=0.01)


@pytest.mark.parametrize(
    ("phase", "why"), [("failed", "it crashed"), ("killed", "by the user"), ("killed", "training diverged: NaN")]
)
def test_a_trial_that_failed_or_was_stopped_is_cut_short_at_a_static_size_too(phase: str, why: str) -> None:
    report = simulate(Spec.of({**TABLES, "sweep": {**TABLES["sweep"], "stop": "none"}}), "elastic")
    before = static_sizes(report)["sizes"][0]
    for trial in report["trials"][4:]:
        trial |= {"phase": phase, "why": why, "iterations": 10}
    found = static_sizes(report)["sizes"][0]
    assert found["makespan_s"] < 0.7 * before["makespan_s"]
    assert (before["finished"], found["finished"]) == (8, 4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda report: report | {"spec": None}, "no specification"),
        (lambda report: report["spec"]["job"].update({"on": "yarn"}), "YARN"),
        (lambda report: report["trials"][0].update({"phase": "training"}), "not ended"),
        (lambda report: report.update({"is_callable": True}), "calls of a Python function"),
        (lambda report: report.update({"trials": report["trials"] * 300}), "more than 2000 trials"),
        (lambda report: [each.update({"iterations": 0}) for each in report["trials"]], "no trial of the report"),
    ],
)
def test_a_comparison_that_cannot_be_made_says_why(report: dict[str, Any], change: Any, why: str) -> None:
    changed = change(report)
    found = static_sizes(changed if isinstance(changed, dict) else report)
    assert found["sizes"] == [] and why in found["why"]


def test_only_the_asked_size_of_a_large_sweep_is_simulated() -> None:
    spec = Spec.of({**TABLES, "sweep": {**TABLES["sweep"], "trials": 800}})
    found = static_sizes(simulate(spec, "elastic"))
    assert [each["asked"] for each in found["sizes"]] == [True]


def test_the_comparison_is_a_line_after_the_sweep(report: dict[str, Any]) -> None:
    report |= {"static": {"sizes": [], "why": "it cannot"}}
    assert static_text(report) == static_text({**report, "static": None}) == ""
    size = {"size": "2 workers", "makespan_s": 99.0, "early_feedback_mean_s": 7.0, "finished": 8, "asked": True}
    report |= {"makespan_s": 66.04, "completed": 8, "static": {"sizes": [{**size, "asked": False}, size], "why": ""}}
    report["trials"] = [{"arrived_s": 2.0, "early_feedback_s": 1.0}, {"arrived_s": 0.0, "early_feedback_s": None}]
    told = "elastic 66.0 s, static 99.0 s (simulated), early feedback 3.0 s against 7.0 s"
    assert static_text(report) == told
    report |= {"completed": 5}
    assert static_text(report) == told.replace("(simulated)", "(simulated; 8 trials finish there)")
    # Trials that arrive by themselves wait from then on.
    report["spec"] = {"sweep": {"arrival": "poisson:2s"}}
    report["summary"]["early_feedback_mean_s"] = 5.0
    assert "early feedback 5.0 s against 7.0 s" in static_text(report)


def test_a_static_sweep_is_compared_with_nothing(report: dict[str, Any]) -> None:
    assert with_static({**report, "policy": "static"})["static"] is None
    assert with_static(report)["static"]["sizes"]
