"""A client that watches a job: when the master sends it an update, and what that contains."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eps.core.events import JobState
from eps.core.progress import ClockHistory, ClockRecord
from eps.master import service
from eps.master.service import Requests
from eps.spec.job_spec import JobSpec
from eps.system.waits import wait_for

TIMEOUT_S = 20.0


class Watched:
    """A job without members, and a client that waits for its news."""

    def __init__(self) -> None:
        progress = SimpleNamespace(history=[])
        self.state = SimpleNamespace(state=JobState.RUNNING, progress=progress)
        self.job = SimpleNamespace(state=self.state, changed=threading.Condition(), num_news=7, num_waiting=0)
        self.requests = Requests(cast(Any, None), cast(Any, self.job), lambda *events: None)
        self.is_wanted = True
        self.thread = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        self.requests.wait_for_news(-1, 7, lambda: self.is_wanted)

    def begin(self) -> None:
        self.thread.start()
        wait_for(lambda: self.job.num_waiting == 1, TIMEOUT_S, "the client waits")

    def has_been_told(self) -> bool:
        self.thread.join(TIMEOUT_S)
        return not self.thread.is_alive() and self.job.num_waiting == 0


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(service, "WATCH_INTERVAL_S", 0.01)
    monkeypatch.setattr(service, "QUIET_INTERVAL_S", 2 * TIMEOUT_S)
    return Watched()


def test_news_are_told_as_soon_as_they_are_there(watched: Watched) -> None:
    watched.begin()
    with watched.job.changed:
        watched.job.changed.notify_all()
    assert watched.thread.is_alive(), "there are none"
    with watched.job.changed:
        watched.job.num_news += 1
        watched.job.changed.notify_all()
    assert watched.has_been_told()


def test_end_and_a_client_that_has_gone_end_the_wait(watched: Watched) -> None:
    watched.begin()
    watched.is_wanted = False
    watched.requests.wake()
    assert watched.has_been_told()
    other = Watched()
    other.state.state = JobState.FINISHED
    other.requests.wait_for_news(-1, 7, lambda: True)


def test_where_nothing_happens_something_is_said_now_and_then(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "QUIET_INTERVAL_S", 0.01)
    watched.thread.start()
    assert watched.has_been_told()


def test_a_thinned_history_has_the_clocks_that_were_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JobSpec(iterations=10_000)
    clocks = range(spec.iterations + 1)
    evaluated = {clock for clock in clocks if spec.evaluate_at(clock)}
    history = ClockHistory(ClockRecord(clock, 1, 1.0, (1.0,) if clock in evaluated else (), 0.0) for clock in clocks)
    state = SimpleNamespace(state=JobState.RUNNING, progress=SimpleNamespace(history=history))
    job = SimpleNamespace(state=state, changed=threading.Condition())
    monkeypatch.setattr(service.records, "history_entry", lambda runtime, record, started_s: record)
    requests = Requests(cast(Any, SimpleNamespace(spec=spec)), cast(Any, job), lambda *events: None)
    found = cast(list[ClockRecord], requests.history_at_most(2_000))
    assert len(found) <= 2_000
    assert {record.clock for record in found if record.evaluation} == evaluated
