"""The end of each trial is reported with its reason: as a line, and in the report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eps.spec.job_spec import JobSpec
from hscheduler.cli.commands import sweep as sweep_command
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.core.timeline import Timeline, TrialRecord
from hscheduler.live.submission import Submission
from hscheduler.live.sweep import Sweep, _Trial
from hscheduler.policies.elastic import elastic
from hscheduler.reports.news import ends, failures, sentences
from hscheduler.reports.report import report
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from tests.hscheduler.toy import Toy, request

TOO_LONG = "it took longer than 15 s (trial_timeout_s)"


@pytest.fixture
def ended() -> tuple[list[list[str]], Timeline]:
    """Return the lines on jobs that finished, took too long and failed, event by event; and their record."""
    toy, record, said = Toy.of(8, elastic), Timeline(), []

    def happen(now_s: float, event: e.Event) -> None:
        commands = toy.scheduler.step(event)
        record.take(now_s, event, commands, toy.scheduler)
        said.append(failures(commands, lambda job_id: "") + sentences(event, commands))

    for job_id in ("a", "b", "c"):
        happen(0.0, e.JobSubmitted(request(job_id)))
        happen(1.0, e.JobStarted(job_id))
    happen(2.0, e.JobEnded("a", Phase.FINISHED, loss=0.5))
    happen(16.0, e.CancelAsked("b", TOO_LONG))
    happen(17.0, e.JobEnded("b", Phase.KILLED, TOO_LONG))
    happen(18.0, e.JobEnded("c", Phase.FAILED, "worker-1: training diverged"))
    return said, record


def test_every_end_has_a_line_with_its_reason(ended: tuple[list[list[str]], Timeline]) -> None:
    said = [line for lines in ended[0] for line in lines]
    told = [line for line in said if line.split()[1] in ("finished", "was", "failed:")]
    assert told == ["a finished", f"b was killed: {TOO_LONG}", "c failed: worker-1: training diverged"]


def test_ends_that_were_not_decided_are_in_the_report(ended: tuple[list[list[str]], Timeline]) -> None:
    found = report(ended[1], policy="elastic", direction=Direction.MINIMIZE, losses={}, points={}, leaked=0)
    events = [(each["at_s"], each["sentence"], each["jobs"]) for each in found["decisions"] if not each["plan"]]
    assert events == [
        (17.0, f"b was killed: {TOO_LONG}", ["b"]),
        (18.0, "c failed: worker-1: training diverged", ["c"]),
    ]
    assert [each["at_s"] for each in found["decisions"]] == sorted(each["at_s"] for each in found["decisions"])


def test_an_end_that_was_decided_is_in_the_report_once() -> None:
    spec = {"sweep": {"trials": 6, "seed": 2, "threshold": 1}, "job": {"stretch_s": 0.01, "iterations": 300}}
    found = simulate(Spec.of(spec), "elastic")
    assert found["phases"]["killed"] > 0 and all(each["plan"] for each in found["decisions"])


def test_the_line_of_a_decided_end_does_not_repeat_the_decision() -> None:
    assert ends([e.JobOver("t", Phase.KILLED, "t is killed: the worst of 5")]) == ["t was killed: the worst of 5"]
    assert ends([e.JobOver("t", Phase.KILLED, "")]) == ["t was killed"]


@pytest.mark.parametrize("sweep_ends", [False, True])
def test_a_terminal_keeps_a_line_of_each_end_above_the_table(monkeypatch: pytest.MonkeyPatch, sweep_ends: bool) -> None:
    told: list[str] = []
    screen = SimpleNamespace(tell=told.extend, close=lambda: None)
    monkeypatch.setattr(sweep_command, "Screen", lambda stream, drawn: screen)
    monkeypatch.setattr(sweep_command, "is_live", lambda stream: True)
    running = SimpleNamespace(scheduler=SimpleNamespace(has_ended=sweep_ends), name_of=lambda job_id: "")
    here: Any = SimpleNamespace(sweep=running, viewers=[])
    stack: Any = SimpleNamespace(callback=lambda function: None)
    flags: Any = SimpleNamespace(quiet=False, plain=False)
    sweep_command._viewers(stack, here, flags)
    (show,) = here.viewers
    show(1.0, e.CancelAsked("t", TOO_LONG), [e.JobOver("t", Phase.KILLED, TOO_LONG)])
    assert told == ([] if sweep_ends else [f"t was killed: {TOO_LONG}"])


def test_a_trial_is_ended_for_the_time_in_which_it_ran_not_for_its_pauses() -> None:
    spec = Spec.of({"sweep": {"trials": 1, "trial_timeout_s": 15.0}, "job": {"data": "sklearn:iris"}})
    sweep, ended, now_s = Sweep(spec, "static"), [], [0.0]
    submission = Submission("t", "sweep", "t", JobSpec())
    record = TrialRecord("t", "sweep", 0.0, started_s=1.0)
    timeline = Timeline()
    timeline.trials["t"] = record
    scheduler: Any = SimpleNamespace(
        registry=SimpleNamespace(timeline=timeline),
        now_s=lambda: now_s[0],
        cancel=lambda job_id, why: ended.append((now_s[0], why)),
    )
    trial = _Trial("t", JobSpec(), [submission])

    def look(at_s: float) -> None:
        now_s[0] = at_s
        sweep._look_at(trial, scheduler)

    # YARN looks for containers.
    look(50.0)
    record.sizes.append((51.0, 1, 0))
    look(60.0)
    submission.is_paused = True
    look(150.0)
    submission.is_paused, record.rested_s = False, 90.0
    look(155.0)
    assert ended == []
    # No scheduler ran from 155.5 to 255.5.
    timeline.end_s = 155.5
    timeline.resume(255.5)
    look(256.0)
    assert ended == []
    look(257.0)
    look(258.0)
    assert ended == [(257.0, TOO_LONG)]
