"""The benchmark of sweeps: its work, its runs, results of parts that are merged, and the bars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.sweeps import curves, drawing, real, speedup
from benchmarks.sweeps.between_rungs import between_rungs, plan_of
from benchmarks.sweeps.cases import PARTS, Case, cases_of, to_repeat
from benchmarks.sweeps.fluid import Curve, Sweep
from benchmarks.sweeps.results import Results, bars, fastest, table
from benchmarks.sweeps.running import Use, best_value, early_feedback_s, fitted, known_over_time, target_of, target_s
from benchmarks.sweeps.workload import CONTAINERS, MANY, PACES, Size, arrival_gap_s, points, sha_iterations, tables
from eps.errors import ConfigError
from hscheduler.policies import POLICIES
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

SLOW = PACES["0.5"]
#: Seconds of an iteration by size, with 0.02 s that do not divide.
SECONDS = {size: 0.5 / size + 0.02 for size in speedup.MEASURED_SIZES}


def test_the_rungs_and_the_iterations_of_successive_halving() -> None:
    assert SLOW.rungs == (20, 60, 180, 540)
    assert sha_iterations(27, SLOW) == 27 * 20 + 9 * 40 + 3 * 120 + 360
    assert arrival_gap_s(27, SLOW) == pytest.approx(sha_iterations(27, SLOW) / 27 * 0.5 / (0.8 * 16), abs=1e-3)


def test_a_curve_is_recorded_for_every_point_and_rung() -> None:
    recorded = curves.load()
    assert (
        recorded.shape == (MANY, max(pace.most for pace in PACES.values()) // curves.STRIDE)
        and np.isfinite(recorded).all()
    )
    for pace in PACES.values():
        assert not [rung for rung in pace.rungs if rung % curves.STRIDE]
    assert curves.reported(recorded, 3, 20) == recorded[3, 4]


def test_the_small_sweep_has_the_first_points_of_the_large_one() -> None:
    given = Spec.of(tables(27, SLOW, Size(workers=2, servers=1), {}, arrives=True))
    drawn = given.points()
    assert [next(drawn) for _ in range(27)] == points(MANY)[:27]
    assert given.job_spec().stretch_s * given.job_spec().splits == pytest.approx(SLOW.work_s)


def test_names_of_runs_are_unique_and_only_the_fastest_sizes_are_repeated() -> None:
    for part in PARTS:
        names = [case.name for case in cases_of(part)]
        assert len(names) == len(set(names))
    cases = cases_of("sha27")
    spans = {f"static-{size}": 100.0 + abs(size - 5) for size in (1, 2, 3, 4, 5, 8, 16)}
    kept = [case.name for case in to_repeat(cases, spans)]
    assert kept == ["static-4", "static-5", "asked", "rungs", "kill", "elastic", "gain"]
    assert [case.name for case in to_repeat(cases_of("asha27"), {"ray-4": 1.0, "ray-8": 2.0, "ray-16": 3.0})][:3] == [
        "ray-1",
        "ray-4",
        "ray-8",
    ]


def test_the_time_of_an_iteration_between_measured_sizes() -> None:
    assert speedup.at(SECONDS, 4, 0.5, 48) == pytest.approx(SECONDS[4])
    # With 48 splits, one of five workers has ten.
    assert speedup.at(SECONDS, 5, 0.5, 48) == pytest.approx(0.5 * 10 / 48 + 0.02)
    assert speedup.efficiency(SECONDS) == pytest.approx(SECONDS[1] / SECONDS[16] / 16)
    curve = fitted(SECONDS)
    for size in (1, 3, 16):
        assert curve.time(size) * SECONDS[1] == pytest.approx(0.5 / size + 0.02)


def test_a_plan_gives_the_last_trial_all_containers() -> None:
    plan = plan_of(Sweep(27, Curve(0.02), SLOW.rungs))
    assert plan[0] < plan[2] <= plan[-1] == CONTAINERS


def test_a_size_for_each_rung_trains_what_successive_halving_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, plan = PACES["quick"], [2, 3, 5, 16]
    monkeypatch.setitem(POLICIES, "rungs", between_rungs(plan))
    rule = {"stop": "sha", "grace_iterations": pace.grace, "max_iterations": pace.most}
    found = simulate(Spec.of(tables(27, pace, Size(hosts=1), rule)), "rungs")
    assert found["iterations_trained"] == sha_iterations(27, pace) and found["completed"] == 3
    sizes = {workers for trial in found["trials"] for _, workers, _ in trial["containers"]}
    assert sizes <= {0, *plan} and {2, 5} <= sizes


def test_what_is_compared_of_a_run() -> None:
    ray = {"reports": [[2.0, 0, 20, 0.5, 1], [4.0, 1, 20, 0.6, 1], [9.0, 0, 60, 0.4, 1], [20.0, 0, 540, 0.3, 1]]}
    assert early_feedback_s(ray, 20) == 3.0 and best_value(ray, 540) == 0.3
    ours = {"trials": [{"early_feedback_s": 5.0}, {"early_feedback_s": None}], "best": {"loss": 0.25}}
    assert target_s(ray, 0.41) == 9.0 and target_s(ray, 0.2) is None
    assert target_s({"anytime": [[1.0, 0.5, "trial-1"], [2.0, 0.3, "trial-2"]]}, 0.3) == 2.0
    assert curves.load()[:27, -1].min() < target_of(27, 540) < 0.1
    assert early_feedback_s(ours, 20) == 5.0 and best_value(ours, 540) == 0.25


def test_the_cores_of_a_run_are_those_between_its_begin_and_its_end() -> None:
    # Busy with two cores for ten seconds, then with half a core.
    samples = [(float(t), 2.0 * min(t, 10) + 0.5 * max(0, t - 10)) for t in range(41)]
    whole = Use(samples, 30.0).during(10.0, 40.0)
    assert whole["cores"] == pytest.approx(0.5) and whole["foreign_cores"] == pytest.approx(5 / 40)
    first = Use(samples, 30.0).during(0.0, 10.0)
    assert first["cores"] == pytest.approx(2.0) and first["busiest_cores"] == pytest.approx(2.0)


def ran(makespan_s: float, **changes: Any) -> dict[str, Any]:
    return {"makespan_s": makespan_s, "iterations_trained": 1620, "cores": 0.7, "void": False, **changes}


def with_runs(path: Path | None = None) -> Results:
    results = Results(path, SLOW)
    results.versions["ray"] = "2.60.0"
    for size, value in SECONDS.items():
        results.add("curve", f"hosts-{size}", 0, {"containers": size, "iteration_s": value, "cpu_s": 0.01 * size})
    for repeat, factor in enumerate((1.0, 1.1, 0.9)):
        for name, span in (("static-4", 80.0), ("static-5", 70.0), ("asked", 120.0), ("rungs", 66.0), ("kill", 75.0)):
            results.add("sha27", name, repeat, ran(span * factor))
        results.add("sha27", "gain", repeat, ran(60.0 * factor))
    results.add("sha27", "static-1", 0, ran(50.0))
    return results


def test_ratios_are_those_within_a_repeat_and_the_best_size_is_one_that_was_repeated() -> None:
    results = with_runs()
    # The single run of static-1 was faster, but says less.
    assert fastest(results, "sha27", "static-") == "static-5"
    found = {bar.name: bar for bar in bars(results)}
    assert found["sha27: the best fixed size / gain"].measured == pytest.approx(70 / 60, abs=1e-4)
    assert (
        not found["sha27: the best fixed size / gain"].passed and found["sha27: 2 workers and 1 server / gain"].passed
    )
    assert found["sha27: the limit (1620 iterations / 16) / gain"].measured == pytest.approx(
        1620 / 16 * SECONDS[1] / 60, abs=1e-4
    )
    assert "static-5" in table(results, "sha27")


def test_a_void_run_counts_for_nothing() -> None:
    results = with_runs()
    results.add("sha27", "gain", 3, ran(1.0, void=True))
    assert not results.has("sha27", "gain", 3) and len(results.of("sha27")["gain"]) == 3
    assert results.as_dict()["void"] == [["sha27", "gain", 3]]


def test_early_feedback_is_compared_where_trials_arrive() -> None:
    results = with_runs()
    results.add("poisson27", "static-4", 0, ran(70.0, early_feedback_s=9.0))
    results.add("poisson27", "gain", 0, ran(70.0, early_feedback_s=3.0))
    found = {bar.name: bar for bar in bars(results)}
    assert found["poisson27: early feedback, the best fixed size / gain"].measured == pytest.approx(3.0)
    assert found["poisson27: makespan, gain / the best fixed size"].passed


def test_parts_are_merged_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "real.json"
    with_runs(path)
    again = Results(path, SLOW)
    assert again.has("sha27", "gain", 2) and not again.has("sha27", "gain", 3) and again.seconds() == SECONDS
    again.add("poisson27", "gain", 0, ran(70.0, early_feedback_s=3.0))
    written = json.loads(path.read_text(encoding="utf-8"))
    assert set(written["cases"]) == {"sha27", "poisson27"} and "emulated" in written["title"]
    assert written["settings"]["versions"] == {"ray": "2.60.0"}
    assert written["curve"]["efficiency"]["16"] == pytest.approx(0.634, abs=1e-3)
    with pytest.raises(ConfigError, match="another pace"):
        Results(path, PACES["1"])
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a result"):
        Results(path, SLOW)


def test_the_other_parts_need_the_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert real.main(["--only", "sha27", "--output", str(tmp_path / "real.json")]) == 2
    assert "run --only curve" in capsys.readouterr().err


def test_cases_of_ray_have_no_policy() -> None:
    assert Case("ray-2", "asha27", 27, "asha", width=2).is_ray
    assert {case.policy for case in cases_of("asha27") if not case.is_ray} == {"elastic", "gain"}


def subplots(rows: int = 1, columns: int = 1, **_: Any) -> tuple[MagicMock, MagicMock]:
    axes = MagicMock()
    axes.flat, axes.step.return_value = [axes] * (rows * columns), (MagicMock(),)
    return MagicMock(), axes


def test_results_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = MagicMock()
    pyplot.subplots.side_effect = subplots
    monkeypatch.setattr(drawing, "plotting", lambda: pyplot)
    monkeypatch.setattr(drawing, "shrink", lambda path: None)
    results = with_runs()
    trial = {"containers": [[1.0, 4, 0], [30.0, 0, 0]], "container_s": 112.0}
    shares = {"useful_share": 0.175, "waiting_share": 0.025, "idle_share": 0.8}
    for case in ("static-5", "gain"):
        anytime = [[1.0, 0.5, "trial-1"], [20.0, 0.1, "trial-2"]]
        results.add("poisson27", case, 0, ran(40.0, trials=[trial], anytime=anytime, early_feedback_s=2.0, **shares))
    reports = [[2.0, 0, 20, 0.5, 1], [9.0, 1, 20, 0.6, 1], [12.0, 0, 60, 0.4, 1]]
    results.add("asha27", "ray-1", 0, ran(50.0, reports=reports))
    runs = drawing.runs_of(results.as_dict(), "sha27")
    assert runs["gain"]["makespan_s"] == 60.0
    for run in results.runs:
        if run["part"] == "sha27":
            run |= {"trials": [trial], "anytime": [], **shares}
    drawn = [path.name for path in drawing.draw(results.as_dict(), tmp_path)]
    assert {"makespans.png", "anytime-asha27.svg", "containers-poisson27.png"} <= set(drawn)
    assert "containers-asha27.png" not in drawn
    assert known_over_time(results.runs[-1]) == [(2.0, 0.5), (12.0, 0.4)]
    assert drawing.name_of("static-1") == "1 container each" and drawing.name_of("ray-8") == "Ray Tune, 8 slots"


def test_uses_over_time_are_the_measured_sums() -> None:
    # Held from 0 s, a member from 1 s; of 30 s in four containers 28 s computed.
    trial = {"containers": [[1.0, 4, 0], [30.0, 0, 0]], "container_s": 112.0}
    grown = {"containers": [[5.0, 1, 1], [20.0, 2, 2], [40.0, 0, 0]], "container_s": 106.0}
    sums = {"computing": 218.0, "waiting": 12.0, "idle": 410.0}
    run = ran(40.0, trials=[trial, grown, {"containers": [], "container_s": 0.0}], idle_share=410 / 640)
    times, uses = drawing.uses_over_time(run, 16)
    assert [drawing.container_s(times, use) for use in uses] == pytest.approx(list(sums.values()), abs=1e-3)
    assert all((sum(use[k] for use in uses) == 16) for k in range(len(times)))


def test_no_container_computes_longer_than_its_trial_has_it() -> None:
    trial = {"containers": [[1.0, 4, 0], [30.0, 0, 0]]}
    assert drawing.changes_of(trial, 50.0, 40.0) == [(30.0, 4), (30.0, -4)]
    assert drawing.changes_of(trial, -5.0, 40.0) == [(0.0, 4), (30.0, -4)]


def test_makespans_by_rule_are_drawn_if_all_rules_were_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyplot = MagicMock()
    pyplot.subplots.side_effect = subplots
    monkeypatch.setattr(drawing, "plotting", lambda: pyplot)
    monkeypatch.setattr(drawing, "shrink", lambda path: None)
    spans = {"static-1": 100.0, "static-4": 80.0, "asked": 120.0, "kill": 70.0, "elastic": 65.0, "gain": 60.0}
    policies = {case: {"makespan_s": span} for case, span in spans.items()}
    rows = {drawing.RULE_ROW.format(27, rule): {"policies": policies} for rule in drawing.RULES}
    assert [path.name for path in drawing.draw_rules({"rows": rows}, tmp_path)] == ["rules.png", "rules.svg"]
    assert drawing.rule_cases(policies)["static-"] == "static-4"
    rows.popitem()
    assert drawing.draw_rules({"rows": rows}, tmp_path) == []
