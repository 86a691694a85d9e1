"""The journal: what is read from it is what happened, and leads to where the scheduler was."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eps.errors import ConfigError, StorageError
from hscheduler.core import events as e
from hscheduler.core.codec import EVENTS, decode_event, encode_event
from hscheduler.core.jobs import Direction, JobRequest, Phase
from hscheduler.core.outstanding import Outstanding
from hscheduler.core.record import Record
from hscheduler.core.resources import Resources
from hscheduler.core.state import Scheduler
from hscheduler.live.journal import TIME_DIGITS, Entry, EventJournal, Header
from hscheduler.policies import POLICIES
from hscheduler.simulator import engine
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

UNIT = Resources(1, 1024)
REQUEST = JobRequest("a", "s", 2, 1, UNIT, UNIT, UNIT, 8, 8)
ONE_OF_EACH: tuple[e.Event, ...] = (
    e.SweepOpened("s", Direction.MAXIMIZE, None, "accuracy", 10),
    e.SweepOpened("s", threshold=4),
    e.SweepClosed("s", "on request"),
    e.JobSubmitted(REQUEST),
    e.JobRefused("a", "s", "why"),
    e.JobStarted("a"),
    e.Iterated("a", 3, (0.25, 0.5)),
    e.FeedbackGiven("a", math.inf),
    e.GrowthDone("a"),
    e.GrowthFailed("a", ("c1",), "why"),
    e.ContainersGone("a", ("c1", "c2"), "the queue takes them"),
    e.ShrinkFailed("a", ("c1",), "why"),
    e.MembersFound("a", (("c1", "worker-1"), ("c2", "server-1"))),
    e.JobEnded("a", Phase.FINISHED, "", 0.5, 0.25, 0.125),
    e.JobEnded("a", Phase.KILLED),
    e.CancelAsked("a", "why"),
    e.NodeCame("n", UNIT),
    e.NodeLost("n"),
    e.NodeLeft("n", "node h was decommissioned"),
)
SPEC: dict[str, Any] = {
    "sweep": {"trials": 14, "threshold": 3, "arrival": "poisson:2s", "seed": 3},
    "job": {"workers": 2, "servers": 1, "iterations": 400, "stretch_s": 0.004},
}
HEADER = Header("elastic", 3, {"n": [4, 16384]}, None, 0.0, 100, "loss", "abc123", "boot", 1e3)


def test_there_is_one_of_each_event() -> None:
    assert {type(event).__name__ for event in ONE_OF_EACH} == set(EVENTS)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_an_event_is_read_as_it_was_written(event: e.Event, tmp_path: Path) -> None:
    journal = EventJournal(tmp_path / "journal")
    journal.begin(HEADER)
    journal.append(Entry(1.5, event, {"spec": {"workers": 2}}, 7))
    journal.close()
    again = EventJournal(tmp_path / "journal")
    assert again.header == HEADER
    assert list(again.entries()) == [Entry(1.5, event, {"spec": {"workers": 2}}, 7)]


def test_nan_is_read_as_nan() -> None:
    found = decode_event(encode_event(e.FeedbackGiven("a", math.nan)))
    assert isinstance(found, e.FeedbackGiven) and math.isnan(found.value)


@pytest.mark.parametrize(
    ("values", "message"),
    (
        ({"event": "JobVanished"}, "'JobVanished' is no event"),
        ({"event": "JobStarted", "job_id": "a", "color": 1}, "JobStarted has no color"),
        ({"event": "JobStarted"}, "missing 1 required positional argument: 'job_id'"),
        ({"event": "JobStarted", "job_id": 7}, "7 is no str"),
        ({"event": "ContainersGone", "job_id": "a", "containers": "c1"}, "'c1' is no list"),
        ({"event": "NodeCame", "node": "n", "capacity": 4}, "4 is no object"),
        ({"event": "MembersFound", "job_id": "a", "members": [["c1"]]}, "has not 2 parts"),
    ),
)
def test_what_is_no_event_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_event(values)


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    journal = EventJournal(tmp_path / "journal")
    journal.begin(replace(HEADER, version=99))
    journal.close()
    with pytest.raises(StorageError, match="line 1 cannot be used: its version is 99, but must be 2"):
        EventJournal(tmp_path / "journal")


def test_a_journal_begins_once(tmp_path: Path) -> None:
    journal = EventJournal(tmp_path / "journal")
    journal.begin(HEADER)
    with pytest.raises(ConfigError, match="has begun already"):
        journal.begin(HEADER)


class Replica:
    """What a live scheduler keeps, without its jobs."""

    def __init__(self, policy: str) -> None:
        spec = Spec.of(SPEC)
        self.state = Scheduler(spec.cluster.capacities(), POLICIES[policy], spec.sweep.seed)
        self.record = Record()
        self.outstanding = Outstanding()
        self.orders: list[tuple[int, e.Order]] = []

    def take(self, at_s: float, event: e.Event) -> None:
        commands = self.state.step(event)
        self.record.take(at_s, event, commands, self.state)
        self.orders += self.outstanding.take(event, commands)

    def summary(self) -> Any:
        jobs = self.state.jobs.values()
        return (
            self.orders,
            [(job.job_id, job.phase, job.size, job.feedback, job.growing, job.why) for job in jobs],
            sorted(map(str, self.state.ledger.all())),
            [job.job_id for job in self.state.queue],
            self.record.decisions,
            self.record.trials,
            {job.job_id: self.outstanding.of(job.job_id) for job in jobs},
        )


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_journal_leads_to_where_the_scheduler_was(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[tuple[float, e.Event]] = []

    class Tap(Record):
        def take(self, now_s: float, event: e.Event, commands: Any, scheduler: Scheduler) -> None:
            happened.append((round(now_s, TIME_DIGITS), event))
            super().take(now_s, event, commands, scheduler)

    monkeypatch.setattr(engine, "Record", Tap)
    simulate(Spec.of(SPEC), policy)
    lot = Random(policy)
    # A live job says far more often how far it is.
    for at in sorted((lot.randrange(len(happened)) for _ in range(300)), reverse=True):
        at_s, event = happened[at]
        if isinstance(event, e.Iterated):
            happened.insert(at, (at_s, e.Iterated(event.job_id, event.iteration, (lot.random(),) * lot.randrange(12))))
    cuts = sorted(lot.sample(range(len(happened)), 12))
    original, held = Replica(policy), 0
    journal = EventJournal(tmp_path / "journal")
    journal.begin(HEADER)
    for number, (at_s, event) in enumerate(happened):
        if isinstance(event, e.Iterated) and original.state.is_idle_news(event):
            journal.hold(at_s, event)
            held += 1
        else:
            journal.append(Entry(at_s, event, given=original.outstanding.given))
        original.take(at_s, event)
        if number in cuts:
            again, opened = Replica(policy), EventJournal(tmp_path / "journal")
            for entry in opened.entries():
                assert entry.given == again.outstanding.given
                again.take(entry.at_s, entry.event)
            opened.close()
            assert again.summary() == original.summary()
    assert held > 50
    journal.close()


def test_orders_are_outstanding_until_they_are_answered() -> None:
    found = Outstanding()
    start, grow = e.StartJob("a", (), False), e.GrowJob("a", ())
    shrink, end = e.ShrinkJob("a", ("c1", "c2")), e.EndJob("a", False, "why")
    assert found.take(e.JobSubmitted(REQUEST), [start]) == [(1, start)]
    assert found.there() == ["a"] and not found.has_started("a")
    found.take(e.JobStarted("a"), [e.Explain(1, "why", ("a",)), grow])
    found.take(e.Iterated("a", 1), [shrink])
    assert found.of("a") == [(2, grow), (3, shrink)] and found.has_started("a")
    found.take(e.ContainersGone("a", ("c1",)), [])
    found.take(e.GrowthDone("a"), [end])
    assert found.of("a") == [(3, shrink), (4, end)]
    found.take(e.ShrinkFailed("a", ("c2",), "why"), [])
    assert found.of("a") == [(4, end)]
    found.take(e.JobEnded("a", Phase.KILLED), [])
    assert found.of("a") == [] and found.there() == [] and found.given == 4
