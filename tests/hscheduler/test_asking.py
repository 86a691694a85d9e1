"""Who asks the thread that owns a state: the answer is of one moment, comes in time, and harms nobody else."""

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
from hscheduler.live.inbox import asked
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.service.observer import NewsBoard
from hscheduler.service.server import SchedulerService
from hscheduler.service.sweeps import Sweeps
from hscheduler.spec import ClusterSpec
from tests.hscheduler.toy import nodes, request

TIMEOUT_S = 20.0


class Owner:
    """A thread that does what it is given until it is told to end."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="owner", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while (task := self.tasks.get()) is not None:
            task()

    def ask(self, question: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
        return asked(self.thread, self.tasks.put, question, timeout_s)

    def end(self) -> None:
        self.tasks.put(None)
        self.thread.join(TIMEOUT_S)


@pytest.fixture
def owner() -> Iterator[Owner]:
    found = Owner()
    yield found
    found.end()
    assert not found.thread.is_alive()


def test_a_question_is_asked_on_the_thread_that_owns_what_it_looks_at(owner: Owner) -> None:
    assert owner.ask(threading.current_thread) is owner.thread
    # Also where somebody there asks: it would wait for itself.
    assert owner.ask(lambda: owner.ask(threading.current_thread)) is owner.thread
    owner.end()
    assert owner.ask(threading.current_thread) is threading.current_thread(), "nothing changes there any more"


def test_what_a_question_raises_is_its_askers(owner: Owner) -> None:
    with pytest.raises(ZeroDivisionError):
        owner.ask(lambda: 1 // 0)
    assert owner.ask(lambda: "well") == "well"


def test_an_owner_that_is_held_up_is_waited_for_so_long_and_one_that_ends_not_at_all(owner: Owner) -> None:
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
    # It asks behind what ends the owner.
    wait_for(lambda: owner.tasks.qsize() == 3, TIMEOUT_S, "the question")
    goes_on.set()
    asker.join(TIMEOUT_S)
    assert answers == [asker]


class Held:
    """A scheduler that is held up in the middle of an event: its state has taken it, its record has not."""

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
        # More than the cluster holds: it is over at once.
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
def test_nobody_sees_an_event_that_is_taken_by_half(held: Held, kind: str) -> None:
    ask, answers = answers_of(held)[kind], list[Any]()
    asker = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    asker.start()
    # Its question stands behind the event, or it does not ask the scheduler's thread at all.
    wait_for(lambda: len(held.scheduler._events) > 0 or not asker.is_alive(), TIMEOUT_S, "the question")
    assert answers == []
    held.goes_on.set()
    asker.join(TIMEOUT_S)
    if kind == "report":
        assert [trial["phase"] for trial in answers[0]["trials"]] == ["failed"]
    else:
        found = answers[0].job_json
        assert '"phase": "failed"' in (found if kind == "job" else found[0])
