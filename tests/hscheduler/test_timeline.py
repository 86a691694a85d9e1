"""The history that a record keeps for figures: loss curves, and the cluster by node; always bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.core.rungs import Stopping
from hscheduler.core.thinned import Thinned
from hscheduler.core.timeline import CLUSTER_POINTS, CURVE_POINTS, DecisionRecord, Timeline, TrialRecord
from hscheduler.policies.elastic import elastic
from hscheduler.policies.static import static
from hscheduler.reports.report import report
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from tests.hscheduler.toy import Toy, request


@pytest.mark.parametrize("number", [0, 1, 2, 9, 10, 11, 12, 19, 20, 21, 1000])
def test_a_thinned_series_keeps_its_ends_and_even_gaps(number: int) -> None:
    series: Thinned[int] = Thinned(10)
    for value in range(number):
        series.add(value)
    points = series.points()
    assert len(points) <= 10
    assert points[:1] == [0][:number] and points[-1:] == [number - 1][:number]
    assert len({b - a for a, b in pairwise(points[:-1])}) <= 1
    assert series.last == (number - 1 if number else None)
    if number <= 9:
        assert points == list(range(number))


def record_of(*events: tuple[float, e.Event]) -> Timeline:
    toy, record = Toy.of(2, elastic), Timeline()
    for at_s, event in events:
        commands = toy.scheduler.step(event)
        record.take(at_s, event, commands, toy.scheduler)
    return record


def test_a_curve_has_the_time_of_each_loss_and_is_bounded() -> None:
    news = [
        (1.0 + k, e.Iterated("a", 10 * k + 10, (), ((0.5, 10 * k + 5, 2.0), (0.0, 10 * k + 10, 1.0))))
        for k in range(500)
    ]
    record = record_of((0.0, e.JobSubmitted(request("a"))), (0.5, e.JobStarted("a")), *news)
    curve = record.trials["a"].curve.points()
    assert CURVE_POINTS / 3 < len(curve) <= CURVE_POINTS
    assert curve[0] == (0.5, 5, 2.0) and curve[-1] == (500.0, 5000, 1.0)
    assert curve == sorted(curve)
    found = report(record, policy="elastic", direction=Direction.MINIMIZE, losses={}, points={}, leaked=0)
    assert found["trials"][0]["curve"][-1] == [500.0, 5000, 1.0]


def test_the_use_of_the_cluster_is_kept() -> None:
    record = record_of(
        (0.0, e.JobSubmitted(request("a", 2, 1))),
        (1.0, e.JobStarted("a")),
        (2.0, e.JobSubmitted(request("b", 2, 1))),
        (3.0, e.CancelAsked("a", "enough")),
        (4.0, e.JobEnded("a", Phase.KILLED)),
    )
    # A master, two workers and a server each, on two nodes of four.
    assert record.cluster.points() == [(0.0, 0.5), (2.0, 1.0), (4.0, 0.5)]


def test_the_time_in_which_no_scheduler_ran_is_not_in_the_makespan() -> None:
    record = record_of((0.0, e.JobSubmitted(request("a"))), (1.0, e.JobStarted("a")))
    record.resume(9.0)
    record.resume(9.0)
    found = report(record, policy="elastic", direction=Direction.MINIMIZE, losses={}, points={}, leaked=0)
    assert (found["makespan_s"], found["end_s"]) == (1.0, 1.0)
    assert found["utilisation"] == report_until(1.0)["utilisation"]


def resumed_after(down_s: float) -> Timeline:
    """Return the history of two trials, of which one is paused, in a scheduler that did not run for some time."""
    toy, record = Toy.of(2, static), Timeline()

    def happen(at_s: float, event: e.Event) -> None:
        record.take(at_s, event, toy.scheduler.step(event), toy.scheduler)

    happen(1.0, e.SweepOpened("sweep", stopping=Stopping("sha", 2, 5), trials=2))
    for name in "ab":
        happen(1.0, e.JobSubmitted(request(name, 1, 1)))
        happen(2.0, e.JobStarted(name))
    happen(3.0, e.Iterated("a", 5, (), ((0.0, 5, 0.5),)))
    happen(5.0, e.RungReached("a", 5, 0.5))
    happen(6.0, e.JobEnded("a", Phase.KILLED))
    if down_s:
        record.resume(6.0 + down_s)
    happen(7.0 + down_s, e.Iterated("b", 5, (), ((0.0, 5, 0.75),)))
    happen(8.0 + down_s, e.RungReached("b", 5, 0.75))
    happen(9.0 + down_s, e.JobEnded("b", Phase.KILLED))
    happen(10.0 + down_s, e.JobStarted("a"))
    happen(11.0 + down_s, e.FeedbackGiven("a", 0.25))
    happen(12.0 + down_s, e.JobEnded("a", Phase.FINISHED, loss=0.25))
    return record


@pytest.mark.parametrize("sweep", ["", "sweep"])
def test_no_figure_counts_the_time_in_which_no_scheduler_ran(sweep: str) -> None:
    def told(down_s: float) -> dict[str, Any]:
        given: dict[str, Any] = {"direction": Direction.MINIMIZE, "losses": {"a": 0.25}, "points": {}, "leaked": 0}
        return report(resumed_after(down_s), policy="static", sweep=sweep, began_s=1.0, **given)

    found = told(50_000.0)
    assert found.pop("down") == [[5.0, 50_005.0]], "by a clock that leaves out nothing"
    assert found == {name: value for name, value in told(0.0).items() if name != "down"}
    assert found["makespan_s"] == 11.0 and found["trials"][0]["rested_s"] == 3.0
    assert resumed_after(50_000.0).latency_sum_s == 10.0


def test_the_time_in_which_no_scheduler_ran_is_no_use_of_containers() -> None:
    toy, record = Toy.of(2, elastic), Timeline()

    def happen(at_s: float, event: e.Event) -> None:
        record.take(at_s, event, toy.scheduler.step(event), toy.scheduler)

    happen(0.0, e.JobSubmitted(request("a", 1, 1)))
    happen(1.0, e.JobStarted("a"))
    happen(2.0, e.Iterated("a", 1))
    happen(4.0, e.Iterated("a", 3))
    record.resume(1000.0)
    happen(1001.0, e.Iterated("a", 4))
    use = record.trials["a"].use
    assert use.ran_s == 3.0 and use.computed_s == 3.0 * 3


def test_the_time_of_a_pause_at_a_rung_is_known() -> None:
    toy, record = Toy.of(2, static), Timeline()

    def happen(at_s: float, event: e.Event) -> None:
        record.take(at_s, event, toy.scheduler.step(event), toy.scheduler)

    happen(0.0, e.SweepOpened("sweep", stopping=Stopping("sha", 2, 5), trials=2))
    for name in "ab":
        happen(0.0, e.JobSubmitted(request(name, 1, 1)))
        happen(1.0, e.JobStarted(name))
    happen(5.0, e.RungReached("a", 5, 0.5))
    assert (record.trials["a"].rests_since_s, record.trials["a"].pauses) == (5.0, 1)
    happen(6.0, e.JobEnded("a", Phase.KILLED))
    assert record.numbers[-1][1:] == (1, 0), "a paused job does not run"
    happen(25.0, e.RungReached("b", 5, 0.75))
    assert (record.trials["a"].rests_since_s, record.trials["a"].rested_s) == (None, 20.0)
    assert record.trials["a"].restarts == 0


def test_a_promoted_trial_that_waits_for_containers_is_queued() -> None:
    toy, record = Toy.of(1, static), Timeline()

    def happen(event: e.Event) -> None:
        record.take(0.0, event, toy.scheduler.step(event), toy.scheduler)

    happen(e.SweepOpened("sweep", stopping=Stopping("sha", 2, 5), trials=4))
    for name in "abcd":
        happen(e.JobSubmitted(request(name, 2, 1)))
    for name in "abcd":
        happen(e.JobStarted(name))
        happen(e.RungReached(name, 5, 0.5))
        happen(e.JobEnded(name, Phase.KILLED))
    assert [job.job_id for job in toy.scheduler.queue] == ["b"], "the cluster has room for one of the two best"
    assert [record.trials[name].phase for name in "ab"] == [Phase.STARTING, Phase.QUEUED]


def test_the_value_of_a_stopped_trial_is_that_at_its_rung() -> None:
    trial = TrialRecord("a", "s", 0.0, Phase.KILLED, rungs=[(5.0, 10, 0.5)], iteration=10)
    for iteration, value in ((10, 0.5), (13, 0.75)):
        trial.values.add((5.0, iteration, value))
    assert trial.latest("accuracy", None) == 0.5 and trial.latest("accuracy", 0.25) == 0.25
    trial.iteration = 13
    assert trial.latest("accuracy", None) == 0.75, "it went on"


def report_until(end_s: float) -> dict[str, Any]:
    record = record_of((0.0, e.JobSubmitted(request("a"))), (end_s, e.JobStarted("a")))
    return report(record, policy="elastic", direction=Direction.MINIMIZE, losses={}, points={}, leaked=0)


def test_the_history_of_a_long_sweep_is_thinned() -> None:
    spec = Spec.of({"cluster": {"nodes": 65}, "sweep": {"trials": 300}, "job": {"stretch_s": 0.01}})
    found = simulate(spec, "static")["cluster"]["history"]
    assert 2 < len(found) <= CLUSTER_POINTS
    assert all(len(point) == 2 and 0.0 <= point[1] <= 1.0 for point in found)


def test_nan_values_are_omitted_from_the_report() -> None:
    nan = float("nan")
    record = record_of((0.0, e.JobSubmitted(request("a"))), (1.0, e.JobStarted("a")), (2.0, e.FeedbackGiven("a", nan)))
    found = report(record, policy="elastic", direction=Direction.MINIMIZE, losses={"a": nan}, points={}, leaked=0)
    (trial,) = found["trials"]
    assert trial["feedback"] is None and trial["loss"] is None
    assert trial["early_feedback_s"] == 2.0


def test_a_refused_job_does_not_count_as_running() -> None:
    record = record_of(
        (1.0, e.JobRefused("a", "s", "why not")), (2.0, e.JobSubmitted(request("b"))), (3.0, e.JobStarted("b"))
    )
    assert record.numbers == [(1.0, 0, 0), (2.0, 1, 0)]


def test_iterations_of_a_job_that_ends_before_its_start_is_reported_are_measured() -> None:
    over = e.JobEnded("a", Phase.FINISHED, "", 0.5, 0.5)
    record = record_of((0.0, e.JobSubmitted(request("a"))), (1.0, e.Iterated("a", 3, (0.5, 0.25))), (1.0, over))
    trial = record.trials["a"]
    assert trial.speeds == {(2, 1): (2, 0.75)} and trial.sizes[0] == (1.0, 2, 1) and trial.sizes[-1] == (1.0, 0, 0)


def test_a_snapshot_does_not_change_with_the_record() -> None:
    record = Timeline()
    for job_id, sweep in (("a", "s"), ("b", "other")):
        record.trials[job_id] = TrialRecord(job_id, sweep, 1.0, sizes=[(1.0, 2, 1)], speeds={(2, 1): (3, 0.5)})
        record.trials[job_id].curve.add((2.0, 1, 0.5))
    record.numbers.append((1.0, 2, 0))
    record.cluster.add((1.0, 0.5))
    taken, of_one = record.snapshot(), record.snapshot("s")
    assert taken.trials == record.trials and list(of_one.trials) == ["a"]
    told = [(repr(found.trials), found.numbers[:], repr(found.cluster)) for found in (taken, of_one)]
    trial = record.trials["a"]
    trial.phase, trial.iteration = Phase.FINISHED, 9
    trial.sizes.append((2.0, 4, 1))
    trial.speeds[4, 1] = 1, 0.25
    for k in range(500):
        trial.curve.add((3.0 + k, 2 + k, 0.25))
        record.cluster.add((3.0 + k, 1.0))
    record.trials["c"] = TrialRecord("c", "s", 2.0)
    record.numbers.append((2.0, 3, 0))
    record.decisions.append(DecisionRecord(2.0, "why", ("a",)))
    assert told == [(repr(f.trials), f.numbers, repr(f.cluster)) for f in (taken, of_one)]
    assert taken.decisions == []
