"""What benchmarks/paper takes from reports: who came to a full cluster, ratios, and lines over time."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.paper import declared, measures, timelines
from benchmarks.paper.compare import SPEC, Results, settings_of
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
        "summary": {"resizing_share": 0.001},
        "trials": [trial("a", 0.0, 0.0), trial("b", 2.0, 2.25), trial("c", 3.0, 9.0)],
        "decisions": [
            {"at_s": 0.0, "sentence": "a starts with 2 workers: they are free", "jobs": ["a"]},
            {"at_s": 2.0000004, "sentence": "b starts with 2 workers: a gives 1 worker", "jobs": ["a", "b"]},
            {"at_s": 9.0, "sentence": "c starts with 2 workers: they are free", "jobs": ["c"]},
        ],
    }


def test_who_came_to_a_full_cluster():
    found = measures.row(report())
    assert found["full_arrivals"] == 2, "b, for whom room was made, and c, who waited"
    assert found["room_was_made_for"] == 1
    assert found["first_iteration_median_s"] == 1.25
    assert found["queueing_mean_s"] == pytest.approx((0.25 + 6.0) / 2)


def test_bars_are_judged_at_the_median_of_the_ratios_of_each_repeat():
    repeats = [{"elastic": report(10.0), "static": report(other)} for other in (19.0, 21.0, 40.0)]
    bars = {bar.name: bar for bar in measures.bars(repeats)}
    assert bars["makespan: static / elastic"].measured == 2.1
    assert bars["makespan: static / elastic"].passed
    assert bars["best loss above static's"].passed
    assert not bars["makespan: priority / elastic"].passed, "what was not measured keeps nothing"


def test_containers_over_time():
    one = trial("a", 0.0, 1.0, containers=[[2.0, 2, 1], [5.0, 4, 2]], finished_s=9.0)
    assert timelines.containers({"trials": [one]}) == [(1.0, 4.0), (2.0, 4.0), (5.0, 7.0), (9.0, 0.0)]
    assert timelines.mean_of(timelines.workers({"trials": [one]}), 1.0, 9.0) == pytest.approx((4 * 2 + 4 * 4) / 8)


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
    with pytest.raises(ConfigError, match="other settings"):
        Results(path, settings_of(spec, 3.0))
    path.write_text("no JSON")
    with pytest.raises(ConfigError, match="no result"):
        Results(path, settings_of(spec, 2.0))
