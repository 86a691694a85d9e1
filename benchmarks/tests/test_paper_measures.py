"""Measures that benchmarks/paper takes from reports: jobs that meet a full cluster, ratios, and series over time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.paper import declared, measures, predicted, timelines
from benchmarks.paper.compare import SPEC, Results, settings_of
from benchmarks.paper.sources import Real
from eps.errors import ConfigError
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec


def trial(job_id: str, arrived_s: float, started_s: float, **values: object) -> dict[str, object]:
    usual = {"first_iteration_s": started_s + 1, "early_feedback_s": 6.0, "restarts": 0, "containers": []}
    return {"job_id": job_id, "arrived_s": arrived_s, "started_s": started_s, **usual, **values}


def report(makespan_s: float = 10.0) -> dict[str, object]:
    return {
        "makespan_s": makespan_s,
        "best": {"loss": 0.5},
        "completed": 2,
        "phases": {"killed": 1, "failed": 0},
        "resources": {"leaked": 0},
        "utilisation": 0.9,
        "summary": {"resizing_share": 0.001, "changing_share": 0.05},
        "trials": [trial("a", 0.0, 0.0), trial("b", 2.0, 2.25), trial("c", 3.0, 9.0)],
        "decisions": [
            {"at_s": 0.0, "sentence": "a starts with 2 workers: they are free", "jobs": ["a"]},
            {"at_s": 2.0000004, "sentence": "b starts with 2 workers: a gives 1 worker", "jobs": ["a", "b"]},
            {"at_s": 9.0, "sentence": "c starts with 2 workers: they are free", "jobs": ["c"]},
        ],
    }


def test_who_came_to_a_full_cluster():
    found = measures.row(report())
    assert found["full_arrivals"] == 2, "b, which got the freed containers, and c, which was queued"
    assert found["room_was_made_for"] == 1
    assert found["first_iteration_median_s"] == 1.25
    assert found["queueing_mean_s"] == pytest.approx((0.25 + 6.0) / 2)


def test_bars_are_judged_at_the_median_of_the_ratios_of_each_repeat():
    repeats = [{"elastic": report(10.0), "static": report(other)} for other in (19.0, 21.0, 40.0)]
    bars = {bar.name: bar for bar in measures.bars(repeats)}
    assert bars["makespan: static / elastic"].measured == 2.1
    assert bars["makespan: static / elastic"].passed
    assert bars["best loss worse than static's by"].passed
    assert not bars["makespan: priority / elastic"].passed, "a bar without measurements does not pass"


def bar_of(repeats, name: str):
    return next(bar for bar in measures.bars(repeats) if bar.name == name)


def test_a_worse_model_in_one_repeat_is_worse():
    name = "best loss worse than static's by"
    repeats = [{"elastic": report(), "static": report()} for _ in range(3)]
    assert bar_of(repeats, name).passed
    repeats[1]["elastic"]["best"] = {"loss": 0.5 + 1e-7}
    assert not bar_of(repeats, name).passed
    assert bar_of(repeats, name).measured == pytest.approx(1e-7)
    repeats[1]["elastic"]["best"] = None
    assert not bar_of(repeats, name).passed, "a run without a best loss does not pass"


@pytest.mark.parametrize(("accuracy", "passed"), [(0.80, False), (0.99, True)])
def test_where_more_is_better_less_is_worse(accuracy, passed):
    ours = {**report(), "direction": "maximize", "best": {"loss": accuracy}}
    theirs = {**report(), "direction": "maximize", "best": {"loss": 0.95}}
    bar = bar_of([{"elastic": ours, "static": theirs}], "best loss worse than static's by")
    assert bar.passed is passed


def test_nothing_is_won_by_failing_or_leaking():
    name = "trials that failed and containers that leaked, of all runs"
    repeats = [{"elastic": report(), "static": report()} for _ in range(3)]
    assert bar_of(repeats, name).passed
    repeats[2]["elastic"]["phases"] = {"killed": 1, "failed": 2}
    repeats[2]["static"]["resources"] = {"leaked": 1}
    assert bar_of(repeats, name).measured == 3
    assert not bar_of(repeats, name).passed
    assert not bar_of([], name).passed


def test_both_kills_are_compared_with_by_name():
    def queued(seconds: float) -> dict[str, object]:
        waited = [trial("a", 0.0, 0.0), trial("b", 0.0, seconds, early_feedback_s=2 * seconds)]
        return {**report(), "trials": waited, "decisions": report()["decisions"][:1]}

    repeats = [{"elastic": queued(10.0), "kill": queued(20.0), "kill-declared": queued(40.0)}]
    assert bar_of(repeats, "queueing at a full cluster: kill with our restart / elastic").measured == 2.0
    assert bar_of(repeats, "queueing at a full cluster: kill with the declared delay / elastic").measured == 4.0
    assert bar_of(repeats, "early feedback at a full cluster: kill with our restart / elastic").passed
    assert bar_of(repeats, "early feedback at a full cluster: kill with the declared delay / elastic").measured == 4.0


def test_cores_that_jobs_keep_busy_over_time():
    one = trial("a", 0.0, 1.0, containers=[[2.0, 2, 1], [5.0, 4, 2]], finished_s=9.0)
    steps = timelines.computing({"trials": [one]}, lambda workers, servers: workers / servers + 0.5)
    assert steps == [(2.0, 2.5), (5.0, 2.5), (9.0, 0.0)]
    assert timelines.mean_of(steps, 1.0, 9.0) == pytest.approx(7 * 2.5 / 8)


def test_jobs_that_restart_do_not_run():
    one = trial("a", 0.0, 1.0, containers=[[2.0, 2, 1], [4.0, 0, 0], [6.0, 1, 1]], finished_s=9.0)
    other = trial("b", 0.0, 1.0, containers=[[3.0, 2, 1], [7.0, 0, 0]], finished_s=7.0, phase="killed")
    found = {"trials": [{**one, "early_feedback_s": 2.5, "phase": "finished"}, {**other, "early_feedback_s": None}]}
    assert timelines.training_jobs(found) == [(2.0, 1.0), (3.0, 2.0), (4.0, 1.0), (6.0, 2.0), (7.0, 1.0), (9.0, 0.0)]
    assert timelines.past_feedback(found) == [(2.5, 1.0), (9.0, 0.0)]
    assert timelines.first_finish_s(found) == 9.0 and timelines.first_finish_s({"trials": []}) is None
    assert timelines.when_at_least(timelines.training_jobs(found), 2) == 3.0
    assert timelines.when_at_least([], 2) is None


def test_the_declared_delay_is_the_shortest_that_costs_enough():
    spec = Spec.read(SPEC)
    seeds = (0,)
    delay_s = declared.declared_restart_s(spec, 0.1, seeds) - declared.MARGIN_S
    assert declared.lost_by_kill(spec, delay_s, seeds) >= 0.1
    assert declared.lost_by_kill(spec, delay_s - 0.5, seeds) < 0.1
    with pytest.raises(ConfigError, match="at no delay"):
        declared.declared_restart_s(spec, 0.99, (0,))


def test_a_comparison_goes_on_from_its_file(tmp_path):
    spec = Spec.read(SPEC)
    spec = dataclasses.replace(spec, sweep=dataclasses.replace(spec.sweep, trials=3))
    path = tmp_path / "compare.json"
    Results(path, settings_of(spec, 2.0)).add(0, "elastic", 1.0, simulate(spec, "elastic"))
    again = Results(path, settings_of(spec, 2.0))
    assert again.has(0, "elastic") and not again.has(0, "static") and not again.has(1, "elastic")
    Results(path, settings_of(spec, 2.0)).add(0, "kill-declared", 1.0, simulate(spec, "kill"))
    assert Results(path, settings_of(spec, 2.0)).has(0, "kill-declared")
    another_delay = Results(path, settings_of(spec, 3.0))
    assert another_delay.has(0, "elastic") and not another_delay.has(0, "kill-declared")
    with pytest.raises(ConfigError, match="other settings"):
        Results(path, settings_of(declared.with_seed(spec, 7), 2.0))
    path.write_text("no JSON")
    with pytest.raises(ConfigError, match="not a result of"):
        Results(path, settings_of(spec, 2.0))


def test_runs_belong_to_their_repeat_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    results = Results(path, settings_of(Spec.read(SPEC), 2.0))
    for repeat in (1, 0):
        results.add(repeat, "elastic", 1.0, report(makespan_s=10.0 + repeat))
    assert [each["makespan_s"] for each in Real(path).reports("softmax", "elastic")] == [10.0, 11.0]


def test_the_recorded_predictions_of_the_real_runs_are_current(tmp_path: Path) -> None:
    """If this fails, run the command again and update the text that quotes its results."""
    real = json.loads(predicted.REAL.read_text())
    stored = json.loads(predicted.REAL.with_name("predicted.json").read_text())
    found = predicted.predicted(real)
    assert found["runs"].keys() == stored["runs"].keys() == {run["name"] for run in real["runs"]}
    for name, runs in found["runs"].items():
        for run, before in zip(runs, stored["runs"][name], strict=True):
            # The last digits depend on the version of a library.
            assert run["predicted_over_real"] == pytest.approx(before["predicted_over_real"], abs=0.01)
            assert (run["real_makespan_s"], run["fitted"]) == (before["real_makespan_s"], before["fitted"])
            assert run["fitted"] == (run["repeat"] == 0 and name in predicted.FITTED)
    assert found["runs_outside"] == stored["runs_outside"]
    for fitted, repeat in ((["none"], 0), (["elastic"], 7)):
        with pytest.raises(ConfigError, match=f"fit is '{fitted[0]}'"):
            predicted.predicted(real, fitted, repeat)
    with pytest.raises(ConfigError, match="not a result of"):
        predicted.predicted({"rows": []})
