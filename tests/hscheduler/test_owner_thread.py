"""Questions to the thread that owns a state: answers are consistent, in time, and without side effects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from eps.errors import DeadlineError
from eps.spec.job_spec import JobSpec
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core.timeline import Timeline
from hscheduler.live.inbox import ask_owner
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.service.observer import NewsBoard
from hscheduler.service.server import SchedulerService
from hscheduler.service.sweeps import Sweeps
from hscheduler.spec import ClusterSpec
from tests.hscheduler.toy import nodes, request

TIMEOUT_S = 20.0


class Owner:
    """A thread that calls functions until it is stopped."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="owner", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while (task := self.tasks.get()) is not None:
            task()

    def ask(self, question: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
        return ask_owner(self.thread, self.tasks.put, question, timeout_s)

    def end(self) -> None:
        self.tasks.put(None)
        self.thread.join(TIMEOUT_S)


@pytest.fixture
def owner() -> Iterator[Owner]:
    found = Owner()
    yield found
    found.end()
    assert not found.thread.is_alive()


def test_a_question_is_answered_on_the_owners_thread(owner: Owner) -> None:
    assert owner.ask(threading.current_thread) is owner.thread
    # A question on the owner's thread must not wait for itself.
    assert owner.ask(lambda: owner.ask(threading.current_thread)) is owner.thread
    owner.end()
    assert owner.ask(threading.current_thread) is threading.current_thread(), "no further changes"


def test_an_exception_of_a_question_is_raised_in_the_calling_thread(owner: Owner) -> None:
    with pytest.raises(ZeroDivisionError):
        owner.ask(lambda: 1 // 0)
    assert owner.ask(lambda: "well") == "well"


def test_a_question_times_out_if_the_owner_hangs_and_returns_at_once_if_it_ends(owner: Owner) -> None:
    held, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        goes_on.wait(TIMEOUT_S)

    owner.tasks.put(hold)
    assert held.wait(TIMEOUT_S)
    with pytest.raises(DeadlineError, match=r"within 0\.1 s"):
        owner.ask(lambda: None, 0.1)
    owner.tasks.put(None)
    answers: list[threading.Thread] = []
    asker = threading.Thread(target=lambda: answers.append(owner.ask(threading.current_thread)))
    asker.start()
    # The question is queued behind the end of the owner.
    wait_for(lambda: owner.tasks.qsize() == 3, TIMEOUT_S, "the question")
    goes_on.set()
    asker.join(TIMEOUT_S)
    assert answers == [asker]


class Held:
    """A scheduler that is blocked in the middle of an event: its state has it, its record does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scheduler = LiveScheduler(nodes(1), LiveSettings())
        self.there, self.goes_on = threading.Event(), threading.Event()
        take = Timeline.take

        def slow(record: Timeline, now_s: float, event: e.Event, *more: Any) -> None:
            if isinstance(event, e.JobSubmitted):
                self.there.set()
                self.goes_on.wait(TIMEOUT_S)
            take(record, now_s, event, *more)

        monkeypatch.setattr(Timeline, "take", slow)
        # The job is larger than the cluster, so it ends at once.
        self.scheduler.submit(e.JobSubmitted(request("a", 16, sweep="s")), JobSpec())
        assert self.there.wait(TIMEOUT_S)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held(monkeypatch)
    yield found
    found.goes_on.set()
    found.scheduler.close()


def answers_of(held: Held) -> dict[str, Callable[[], Any]]:
    sweeps = Sweeps(held.scheduler, ClusterSpec())
    service = SchedulerService(held.scheduler, ClusterSpec(), NewsBoard(), sweeps)
    asked: Any = SimpleNamespace(sweep="", job_id="a", wait_s=0.0, going_on_only=False)
    context: Any = SimpleNamespace(is_active=lambda: True)
    return {
        "report": lambda: sweeps.report(""),
        "jobs": lambda: service.ListJobs(asked, context),
        "job": lambda: service.GetJob(asked, context),
    }


@pytest.mark.parametrize("kind", ("report", "jobs", "job"))
def test_no_answer_shows_an_event_that_is_processed_in_part(held: Held, kind: str) -> None:
    ask, answers = answers_of(held)[kind], list[Any]()
    asker = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    asker.start()
    # Its question is queued behind the event, or it does not use the scheduler's thread.
    wait_for(lambda: len(held.scheduler._events) > 0 or not asker.is_alive(), TIMEOUT_S, "the question")
    assert answers == []
    held.goes_on.set()
    asker.join(TIMEOUT_S)
    if kind == "report":
        assert [trial["phase"] for trial in answers[0]["trials"]] == ["failed"]
    else:
        found = answers[0].job_json
        assert '"phase": "failed"' in (found if kind == "job" else found[0])
