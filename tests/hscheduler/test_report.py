"""The report of trials with several attempts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hscheduler.core.jobs import Direction, Phase, best
from hscheduler.core.timeline import Timeline, TrialRecord
from hscheduler.reports.report import report, shown_phase


def found(attempts: dict[str, list[str]]) -> dict[str, Any]:
    record = Timeline()
    record.trials = {
        "t1": TrialRecord(
            "t1", "s", 1.0, Phase.FAILED, 2.0, 3.0, finished_s=5.0, why="crashed", sizes=[(2.0, 1, 1)], restarts=1
        ),
        "t2": TrialRecord("t2", "s", 2.0, Phase.FINISHED, 2.5, 3.5, finished_s=9.0),
        "t1-again-1": TrialRecord(
            "t1-again-1", "s", 5.0, Phase.FINISHED, 6.0, 7.0, 7.5, 0.5, 8.0, sizes=[(6.0, 2, 1)], resize_pause_s=0.5
        ),
    }
    return report(
        record,
        policy="elastic",
        direction=Direction.MINIMIZE,
        losses={"t1": 0.25, "t2": 0.75},
        points={"t1": {"l2": 0.5}},
        leaked=0,
        names={"t1": "sweep-t1-again-1"},
        attempts=attempts,
    )


def test_a_trial_is_its_jobs_one_after_the_other() -> None:
    told = found({"t1": ["t1", "t1-again-1"], "t2": ["t2"]})
    first, second = told["trials"]
    assert (first["job_id"], first["phase"], first["loss"], first["why"]) == ("t1", "finished", 0.25, "")
    assert (first["arrived_s"], first["started_s"], first["first_iteration_s"], first["finished_s"]) == (1, 2, 3, 8)
    assert first["early_feedback_s"] == 6.5, "from the arrival of the trial"
    assert first["containers"] == [[2.0, 1, 1], [6.0, 2, 1]]
    assert (first["restarts"], first["resize_pause_s"], first["name"]) == (1, 0.5, "sweep-t1-again-1")
    assert [(each["job_id"], each["phase"], each["why"]) for each in first["attempts"]] == [
        ("t1", "failed", "crashed"),
        ("t1-again-1", "finished", ""),
    ]
    assert [each["job_id"] for each in second["attempts"]] == ["t2"]
    assert told["completed"] == 2 and told["phases"]["failed"] == 0
    assert told["best"] == {"job_id": "t1", "loss": 0.25, "metric": "loss", "point": {"l2": 0.5}}


def test_what_an_attempt_knew_before_it_failed_was_known() -> None:
    record = Timeline()
    record.end_s = 9.0
    record.trials = {
        "a": TrialRecord("a", "s", 0.0, Phase.FAILED, 1.0, feedback_s=2.0, feedback=0.5, finished_s=4.0),
        "a-again-1": TrialRecord(
            "a-again-1", "s", 4.0, Phase.FINISHED, 5.0, feedback_s=7.0, feedback=0.5, finished_s=8.0
        ),
    }
    told = report(
        record,
        policy="elastic",
        direction=Direction.MINIMIZE,
        losses={"a": 0.25},
        points={},
        leaked=0,
        attempts={"a": ["a", "a-again-1"]},
    )
    assert told["anytime"] == [[2.0, 0.5, "a"], [8.0, 0.25, "a"]]
    assert told["trials"][0]["early_feedback_s"] == 2.0


def test_the_time_for_which_the_rule_paused_a_trial_is_no_runtime() -> None:
    record = Timeline()
    record.end_s = 110.0
    record.trials = {
        "resumed": TrialRecord("resumed", "s", 10.0, Phase.FINISHED, 10.0, finished_s=60.0, pauses=1, rested_s=30.0),
        "killed": TrialRecord("killed", "s", 10.0, Phase.KILLED, 10.0, finished_s=90.0, pauses=1, rests_since_s=15.0),
        "paused": TrialRecord("paused", "s", 10.0, Phase.PAUSED, 10.0, pauses=2, rests_since_s=50.0, rested_s=5.0),
        "failed": TrialRecord("failed", "s", 10.0, Phase.FAILED, 10.0, finished_s=20.0, pauses=1, rested_s=2.0),
        "again": TrialRecord("again", "s", 20.0, Phase.FINISHED, 21.0, finished_s=40.0, pauses=1, rested_s=3.0),
    }
    for trial in record.trials.values():
        trial.resize_pause_s = 1.0
    told = report(
        record,
        policy="elastic",
        direction=Direction.MINIMIZE,
        losses={},
        points={},
        leaked=0,
        attempts={"failed": ["failed", "again"]},
        began_s=10.0,
    )
    assert [trial["rested_s"] for trial in told["trials"]] == [30.0, 75.0, 65.0, 5.0]
    assert told["summary"]["resizing_share"] == round(5 / (20 + 5 + 8 + 16), 6)


def test_jobs_without_attempts_are_a_trial_each() -> None:
    told = found({})
    assert [trial["job_id"] for trial in told["trials"]] == ["t1", "t2", "t1-again-1"]
    assert all(len(trial["attempts"]) == 1 for trial in told["trials"])


def test_a_report_may_be_made_while_jobs_change_their_sizes() -> None:
    speeds: dict[tuple[int, int], tuple[int, float]] = {}

    class Seconds(float):
        def __round__(self, digits: Any = None) -> Any:
            speeds[len(speeds), 9] = 1, 1.0
            return 0.5

    speeds[1, 1] = 3, Seconds(0.5)
    record = Timeline()
    record.trials = {"t": TrialRecord("t", "s", 1.0, speeds=speeds)}
    told = report(record, policy="elastic", direction=Direction.MINIMIZE, losses={}, points={}, leaked=0)
    assert told["trials"][0]["speeds"] == [[1, 1, 3, 0.5]]


@pytest.mark.parametrize("phase", list(Phase))
def test_an_interrupted_sweep_shows_no_trial_as_running(phase: Phase) -> None:
    stays = phase.ended or phase in (Phase.QUEUED, Phase.PAUSED)
    assert shown_phase(str(phase), "interrupted") == (str(phase) if stays else "interrupted")
    assert shown_phase(str(phase), "running") == shown_phase(str(phase), "") == str(phase)


@pytest.mark.parametrize(
    ("results", "direction", "first"),
    [
        ([0.5, 0.2, 0.2], Direction.MINIMIZE, 1),
        ([0.5, 0.9, 0.9], Direction.MAXIMIZE, 1),
        ([math.nan, None, math.inf, 3.0, -math.inf], Direction.MINIMIZE, 3),
        ([math.nan, None, math.inf], Direction.MAXIMIZE, None),
        ([], Direction.MINIMIZE, None),
    ],
)
def test_the_best_is_the_first_of_equals_and_a_number(results, direction, first) -> None:
    assert best(results, direction) == first
