"""A live job's threads, against a job that does what a test wants: nothing hangs, nothing is left unsaid."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from eps.config import JobSpec
from eps.ended import NO_WORD
from eps.errors import JobFinishedError, JobNotFoundError, PeerUnavailableError, PlanError, UnknownMemberError
from eps.jobspec_file import RunRequest
from eps.master_link import Progress
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Container, Role
from hscheduler.live import job as live
from tests.hscheduler.toy import UNIT

TIMEOUT_S = 30.0


class FakeJob:
    """Stands in for ``eps.client.Job``: one job, whoever looks at it."""

    def __init__(self) -> None:
        self.news: SimpleQueue[Progress | None] = SimpleQueue()
        self.changes: list[tuple[str, Any]] = []
        self.refuse: dict[str, list[Exception]] = {}
        self.holds_up: threading.Event | None = None
        self.entered = threading.Event()
        self.killed = threading.Event()
        self.killed_because = ""
        self.report = {"state": "finished", "reason": "", "history": [], "changes": []}
        self.names = ["worker-1", "worker-2", "server-1"]
        self.committed_clock = 0
        self.started: list[RunRequest] = []
        self.resumed: list[tuple[int, int]] = []
        self.request_ids: list[str] = []
        self.watched_after: list[int] = []
        self.is_missing = False
        self.running = True
        self.directory = SimpleNamespace(
            outcome=lambda: {} if self.running else self.outcome, report=Path("/nonexistent/report.json")
        )
        self.outcome: dict[str, Any] = {}

    # What LiveJob calls on the class.
    def start_request(self, request: RunRequest, *, detach: bool, warm: None) -> FakeJob:
        self.started.append(request)
        self.is_missing = False
        self.tell("running")
        return self

    def resume(self, name: str, workers: int, servers: int, *, detach: bool, warm: None) -> FakeJob:
        self.resumed.append((workers, servers))
        self.killed.clear()
        self.news = SimpleQueue()
        self.tell("running")
        return self

    def find(self, name: str) -> FakeJob:
        if self.is_missing:
            raise JobNotFoundError(f"there is no job {name}")
        return self

    # What it calls on a job.
    def change(self, operation: str, what: Any, *, request_id: str, manager: str) -> dict[str, Any]:
        self.changes.append((str(operation), what))
        self.request_ids.append(request_id)
        self.entered.set()
        if self.holds_up is not None:
            self.holds_up.wait(TIMEOUT_S)
        if self.killed.is_set():
            raise JobFinishedError("it has ended")
        for error in self.refuse.get(str(operation), [])[:1]:
            self.refuse[str(operation)].pop(0)
            raise error
        kind = str(operation).split("-")[1].rstrip("s")
        added = [f"{kind}-{10 + k}" for k in range(what)] if isinstance(what, int) else []
        return {"added": added, "committed_clock": self.committed_clock, "phase": "released"}

    def status(self) -> dict[str, Any]:
        return {"members": [{"name": name} for name in self.names]}

    def wait_until_trains(self) -> None:
        pass

    def watch(self, after_clock: int) -> Iterator[Progress]:
        self.watched_after.append(after_clock)
        while (progress := self.news.get(timeout=TIMEOUT_S)) is not None:
            yield progress

    def wait(self, timeout_s: float) -> dict[str, Any]:
        return self.report

    def kill(self, why: str, timeout_s: float) -> None:
        if not self.killed.is_set():
            self.killed_because = why
            self.report = {**self.report, "state": "killed", "reason": why}
            self.killed.set()
            self.news.put(None)
            if self.holds_up is not None:
                self.holds_up.set()

    def kill_at_once(self) -> None:
        self.kill("at once", 0.0)

    def close(self) -> None:
        pass

    # What a test makes happen.
    def tell(self, state: str, *history: dict[str, Any]) -> None:
        self.news.put(Progress({"state": state}, history))

    def finish(self) -> None:
        self.killed.set()
        self.news.put(None)


class Watched:
    """A live job and what it says."""

    def __init__(self, fake: FakeJob, metric: str = "loss") -> None:
        self.fake = fake
        self.said: SimpleQueue[e.Event] = SimpleQueue()
        self.job = live.LiveJob("a", "sweep-a", JobSpec(workers=2, servers=1), metric, 10, self.said.put)
        self.given = 0
        self.members: dict[str, str] = {}

    def obey(self, order: e.Order, number: int = 0) -> None:
        """Give the job an order, with the next number or one that it had before."""
        self.given += 1
        self.job.obey(number or self.given, order)

    def next(self, kind: type) -> Any:
        """Return the next event but for which members there are, which must be of a kind."""
        while isinstance(event := self.said.get(timeout=TIMEOUT_S), e.MembersFound):
            self.members = dict(event.members)
        assert isinstance(event, kind), event
        return event

    def start(self) -> None:
        self.obey(e.StartJob("a", containers(("c1", "w"), ("c2", "w"), ("c3", "s")), False))
        self.next(e.JobStarted)

    def silent(self) -> bool:
        try:
            while isinstance(self.said.get_nowait(), e.MembersFound):
                pass
        except Empty:
            return True
        return False


def containers(*places: tuple[str, str]) -> tuple[Container, ...]:
    roles = {"w": Role.WORKER, "s": Role.SERVER}
    return tuple(Container(name, "a", roles[role], UNIT, "node") for name, role in places)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    fake = FakeJob()
    monkeypatch.setattr(
        live, "Job", SimpleNamespace(start_request=fake.start_request, resume=fake.resume, find=fake.find)
    )
    found = Watched(fake)
    yield found
    found.job.close()
    assert not found.job._thread.is_alive()
    assert found.job._watcher is None or not found.job._watcher.is_alive()


def entries(first: int, count: int, each_s: float, begin_s: float = 0.0) -> list[dict[str, Any]]:
    return [{"clock": first + k, "loss": 1.0, "seconds": begin_s + each_s * (k + 1)} for k in range(count)]


def test_sizes_change_by_the_members_in_the_containers(watched: Watched) -> None:
    watched.start()
    watched.obey(e.GrowJob("a", containers(("c4", "w"), ("c5", "s"))))
    watched.next(e.GrowthDone)
    watched.obey(e.ShrinkJob("a", ("c4", "c1", "c5")))
    assert watched.next(e.ContainersGone).containers == ("c4", "c1")
    assert watched.next(e.ContainersGone).containers == ("c5",)
    assert watched.fake.changes == [
        ("add-workers", 1),
        ("add-servers", 1),
        ("remove-workers", ["worker-10", "worker-1"]),
        ("remove-servers", ["server-10"]),
    ]


def test_what_never_came_is_not_removed_and_the_rest_is(watched: Watched) -> None:
    watched.start()
    watched.fake.refuse["add-workers"] = [PlanError("no container was had")]
    watched.obey(e.GrowJob("a", containers(("c4", "w"))))
    watched.obey(e.ShrinkJob("a", ("c4", "c2")))
    assert watched.next(e.GrowthFailed).containers == ("c4",)
    assert watched.next(e.ContainersGone).containers == ("c2",)
    assert watched.next(e.ContainersGone).containers == ("c4",), "an order is answered, whatever it asks for"


def test_the_replacement_of_a_lost_member_is_removed_in_its_place(watched: Watched) -> None:
    watched.start()
    watched.fake.names = ["worker-1", "worker-7", "server-1"]
    watched.fake.refuse["remove-workers"] = [UnknownMemberError("no worker-2")]
    watched.obey(e.ShrinkJob("a", ("c2",)))
    assert watched.next(e.ContainersGone).containers == ("c2",)
    assert watched.fake.changes[-1] == ("remove-workers", ["worker-7"])


def test_a_removal_that_is_refused_is_said(watched: Watched) -> None:
    watched.start()
    watched.fake.refuse["remove-workers"] = [PlanError("it would leave no worker")]
    watched.obey(e.ShrinkJob("a", ("c2",)))
    failed = watched.next(e.ShrinkFailed)
    assert failed.containers == ("c2",) and failed.why == "it would leave no worker"


def test_an_end_does_not_wait_for_a_change(watched: Watched) -> None:
    watched.start()
    watched.fake.holds_up = threading.Event()
    watched.obey(e.GrowJob("a", containers(("c4", "w"))))
    assert watched.fake.entered.wait(TIMEOUT_S)
    watched.obey(e.EndJob("a", False, "the worst"))
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.KILLED and ended.why == "the worst"


def test_something_unforeseen_ends_the_job_and_is_said(watched: Watched) -> None:
    watched.start()
    watched.fake.refuse["add-workers"] = [ZeroDivisionError("of all things")]
    watched.obey(e.GrowJob("a", containers(("c4", "w"))))
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED
    assert "GrowJob failed: ZeroDivisionError: of all things" in ended.why
    assert watched.fake.killed.is_set()


def test_a_watch_that_fails_kills_the_job_before_it_says_so(watched: Watched) -> None:
    watched.start()
    watched.fake.news.put("no progress")  # type: ignore[arg-type]
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and "AttributeError" in ended.why
    assert watched.fake.killed.is_set()


def test_iterations_during_a_change_are_left_out(watched: Watched) -> None:
    watched.start()
    watched.fake.tell("running", *entries(0, 3, 1.0))
    first = watched.next(e.Iterated)
    assert first.iteration == 3 and first.durations_s == (1.0, 1.0)
    watched.fake.committed_clock = 4
    watched.obey(e.GrowJob("a", containers(("c4", "w"))))
    watched.next(e.GrowthDone)
    watched.fake.tell("running", *entries(3, 2, 5.0, 3.0), *entries(5, 3, 0.5, 13.0))
    after = watched.next(e.Iterated)
    # Clock 4 is the last of the old size; the one after it began while the size changed.
    assert after.iteration == 8 and after.durations_s == (0.5, 0.5)


def test_feedback_is_of_the_iteration_that_was_asked_for(watched: Watched) -> None:
    watched.start()
    values = [{**entry, "loss": float(entry["clock"])} for entry in entries(0, 12, 1.0)]
    watched.fake.tell("running", *values[:9])
    watched.next(e.Iterated)
    assert watched.silent()
    watched.fake.tell("running", *values[9:])
    watched.next(e.Iterated)
    assert watched.next(e.FeedbackGiven).value == 9.0, "ten iterations are complete when clock 9 is"
    watched.fake.report["history"] = values
    watched.fake.finish()
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FINISHED and ended.feedback is None
    assert ended.loss == 11.0


def test_a_job_that_is_shorter_gives_its_feedback_as_it_ends(watched: Watched) -> None:
    watched.start()
    watched.fake.report["history"] = entries(0, 3, 1.0)
    watched.fake.finish()
    watched.next(e.Iterated)
    assert watched.next(e.JobEnded).feedback == 1.0


def test_a_job_that_is_over_before_anybody_looked_tells_all_of_it(watched: Watched) -> None:
    watched.start()
    values = [{**entry, "loss": 20.0 - entry["clock"]} for entry in entries(0, 15, 1.0)]
    watched.fake.report["history"] = values
    watched.fake.finish()
    news = watched.next(e.Iterated)
    assert news.iteration == 15 and news.losses[-1] == (0.0, 15, 6.0) and news.durations_s == ()
    ended = watched.next(e.JobEnded)
    assert ended.feedback == 11.0, "of the tenth iteration"
    assert ended.loss == 6.0


def test_a_metric_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, watched: Watched) -> None:
    other = Watched(watched.fake, metric="acuracy")
    other.start()
    other.fake.tell("running", *[{**entry, "accuracy": 0.5, "f1": 0.5} for entry in entries(0, 12, 1.0)])
    other.next(e.Iterated)
    ended = other.next(e.JobEnded)
    assert ended.phase is Phase.FAILED
    assert ended.why == "metric is 'acuracy', but this job has accuracy, f1, loss"
    other.job.close()


def test_late_news_of_what_ends_for_a_restart_does_not_end_its_pause(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.start()
    kill = watched.fake.kill

    def kill_after_news(why: str, timeout_s: float) -> None:
        watched.fake.tell("running", *entries(0, 3, 1.0))
        kill(why, timeout_s)

    monkeypatch.setattr(watched.fake, "kill", kill_after_news)
    watched.obey(e.EndJob("a", True, "it restarts"))
    assert watched.next(e.Iterated).iteration == 3
    assert watched.next(e.JobEnded).phase is Phase.KILLED
    assert watched.job.pause_s == 0.0
    watched.obey(e.StartJob("a", containers(("c8", "w"), ("c9", "s")), True))
    watched.next(e.JobStarted)
    watched.fake.tell("running", *entries(3, 1, 1.0))
    watched.next(e.Iterated)
    assert watched.job.pause_s > 0.0


def test_a_restart_counts_from_the_order_to_the_next_iteration(watched: Watched) -> None:
    watched.start()
    watched.obey(e.EndJob("a", True, "it restarts"))
    assert watched.next(e.JobEnded).phase is Phase.KILLED
    assert watched.job.pause_s == 0.0
    watched.fake.names = ["worker-5", "server-4"]
    watched.obey(e.StartJob("a", containers(("c8", "w"), ("c9", "s")), True))
    watched.next(e.JobStarted)
    watched.fake.tell("running", *entries(7, 1, 1.0))
    assert watched.next(e.Iterated).iteration == 8
    assert watched.job.pause_s > 0.0
    watched.fake.refuse.clear()
    watched.fake.changes.clear()
    watched.obey(e.ShrinkJob("a", ("c8",)))
    watched.next(e.ContainersGone)
    assert watched.fake.changes == [("remove-workers", ["worker-5"])]


def test_a_start_that_fails_is_said(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: RunRequest, *, detach: bool, warm: None) -> FakeJob:
        raise PlanError("no more processes")

    monkeypatch.setattr(live.Job, "start_request", refuse)
    watched.obey(e.StartJob("a", containers(("c1", "w"), ("c2", "s")), False))
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and ended.why == "it could not be started: no more processes"


def test_losses_are_told_with_when_they_were(watched: Watched) -> None:
    watched.start()
    lost = [{**entry, "loss": None} for entry in entries(0, 1, 1.0)]
    watched.fake.tell("running", *lost, *entries(1, 2, 1.0, 1.0))
    assert watched.next(e.Iterated).losses == ((1.0, 2, 1.0), (0.0, 3, 1.0)), "one that is none is left out"
    watched.fake.tell("running", *entries(3, 1000, 0.25, 3.0))
    losses = watched.next(e.Iterated).losses
    assert len(losses) == 20
    assert losses[-1] == (0.0, 1003, 1.0) and losses[0] == (19 * 50 * 0.25, 53, 1.0)


def test_a_job_whose_supervisor_crashed_has_failed(watched: Watched) -> None:
    watched.start()
    watched.fake.report = {**watched.fake.report, "state": "killed", "reason": NO_WORD}
    watched.fake.finish()
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and ended.why == NO_WORD


def test_a_job_that_was_told_to_end_was_killed_however_it_ended(watched: Watched) -> None:
    watched.start()
    watched.obey(e.EndJob("a", False, "the worst"))
    watched.fake.killed.wait(TIMEOUT_S)
    watched.fake.report = {**watched.fake.report, "reason": NO_WORD}
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.KILLED and ended.why == "the worst"


# ---- a job that another process started

MEMBERS = {"c1": "worker-1", "c2": "worker-2", "c3": "server-1"}
START = e.StartJob("a", containers(("c1", "w"), ("c2", "w"), ("c3", "s")), False)


def test_an_order_has_one_identity_whoever_carries_it_out(watched: Watched) -> None:
    watched.start()
    grow = e.GrowJob("a", containers(("c4", "w"), ("c5", "s")))
    watched.obey(grow, number=7)
    watched.next(e.GrowthDone)
    watched.obey(grow, number=7)
    watched.next(e.GrowthDone)
    watched.obey(grow, number=8)
    watched.next(e.GrowthDone)
    ids = watched.fake.request_ids
    assert ids[:2] == ids[2:4]
    assert len(set(ids)) == 4, "a worker's and a server's change of each of two orders"


def test_a_running_job_is_taken_up_where_it_is(watched: Watched) -> None:
    watched.fake.tell("running", *entries(20, 2, 1.0))
    watched.job.go_on(20, MEMBERS, has_feedback=True, has_started=True)
    watched.obey(e.ShrinkJob("a", ("c2",)), number=9)
    said = [watched.said.get(timeout=TIMEOUT_S) for _ in range(3)]
    assert {type(event) for event in said} == {e.JobStarted, e.Iterated, e.ContainersGone}
    assert watched.fake.watched_after == [19]
    assert watched.fake.started == [] and watched.fake.changes == [("remove-workers", ["worker-2"])]


def test_without_early_feedback_its_history_is_read_again(watched: Watched) -> None:
    watched.fake.tell("running", *entries(0, 12, 1.0))
    watched.job.go_on(12, MEMBERS, has_feedback=False, has_started=True)
    watched.next(e.JobStarted)
    watched.next(e.Iterated)
    assert watched.next(e.FeedbackGiven).value == 1.0
    assert watched.fake.watched_after == [-1]


def test_a_start_that_was_carried_out_is_not_repeated(watched: Watched) -> None:
    watched.fake.tell("running")
    watched.job.go_on(0, {}, has_feedback=False, has_started=False)
    watched.obey(START, number=1)
    watched.next(e.JobStarted)
    watched.obey(e.ShrinkJob("a", ("c2",)))
    watched.next(e.ContainersGone)
    assert watched.fake.started == [] and watched.members == MEMBERS


def test_a_start_that_was_not_is(watched: Watched) -> None:
    watched.fake.is_missing = True
    watched.job.go_on(0, {}, has_feedback=False, has_started=False)
    watched.obey(START, number=1)
    watched.next(e.JobStarted)
    (request,) = watched.fake.started
    assert request.anew, "of a start that was cut short there may be a directory"


def test_what_a_journal_has_forgotten_is_in_nobodys_way(watched: Watched) -> None:
    said: SimpleQueue[e.Event] = SimpleQueue()
    job = live.LiveJob("a", "sweep-a", JobSpec(workers=2, servers=1), "loss", 10, said.put, detached=True)
    job.obey(1, START)
    assert isinstance(said.get(timeout=TIMEOUT_S), e.MembersFound)
    assert isinstance(said.get(timeout=TIMEOUT_S), e.JobStarted)
    (request,) = watched.fake.started
    assert request.anew, "its name is this scheduler's alone: there may be checkpoints, but of nothing that is known"
    job.close()


def test_a_job_that_ended_meanwhile_says_how(watched: Watched) -> None:
    watched.fake.running, watched.fake.outcome = False, {"state": "finished"}
    watched.fake.report["history"] = entries(0, 12, 1.0)
    watched.fake.finish()
    watched.job.go_on(5, MEMBERS, has_feedback=True, has_started=True)
    assert watched.next(e.Iterated).iteration == 12
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FINISHED and ended.loss == 1.0
    assert watched.fake.resumed == []


def test_a_job_that_was_lost_without_a_word_goes_on_at_its_size(watched: Watched) -> None:
    watched.fake.running, watched.fake.outcome = False, {}
    watched.fake.names = ["worker-7", "worker-8", "server-3"]
    watched.job.go_on(5, MEMBERS, has_feedback=True, has_started=True)
    watched.next(e.JobStarted)
    watched.obey(e.ShrinkJob("a", ("c2",)))
    watched.next(e.ContainersGone)
    assert watched.fake.resumed == [(2, 1)]
    assert watched.fake.changes == [("remove-workers", ["worker-8"])]


def test_a_job_that_is_left_goes_on(watched: Watched) -> None:
    watched.start()
    watched.job.leave()
    assert not watched.fake.killed.is_set()
    watched.fake.finish()


# ---- a job that is started again

AGAIN = e.StartJob("a", containers(("c8", "w"), ("c9", "s")), True)


def test_nothing_is_started_again_before_the_end_was_seen_by_who_brought_it_about(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, resumed, too_early = watched.fake.kill, threading.Event(), []

    def slow(why: str, timeout_s: float) -> None:
        kill(why, timeout_s)
        # It looks a little later whether the job has ended.
        too_early.append(resumed.wait(0.3))

    def resume(*args: Any, **more: Any) -> FakeJob:
        resumed.set()
        return watched.fake.resume(*args, **more)

    watched.start()
    monkeypatch.setattr(watched.fake, "kill", slow)
    monkeypatch.setattr(live.Job, "resume", resume)
    watched.obey(e.EndJob("a", True, "it restarts"))
    assert watched.next(e.JobEnded).phase is Phase.KILLED
    watched.obey(AGAIN)
    watched.next(e.JobStarted)
    assert too_early == [False], "what is there then would be taken for what is to end"


def test_who_is_where_is_said_before_a_job_has_started_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.start()
    watched.obey(e.EndJob("a", True, "it restarts"))
    watched.next(e.JobEnded)
    monkeypatch.setattr(watched.fake, "wait_until_trains", lambda: threading.Event().wait(0.3))
    watched.obey(AGAIN)
    said = [watched.said.get(timeout=TIMEOUT_S) for _ in range(2)]
    assert said == [e.MembersFound("a", (("c8", "worker-1"), ("c9", "server-1"))), e.JobStarted("a")]


@pytest.mark.parametrize("state", ("finished", "failed", "killed"))
def test_what_was_started_again_and_has_ended_since_is_not_started_once_more(watched: Watched, state: str) -> None:
    watched.fake.running, watched.fake.outcome = False, {"state": state}
    watched.fake.report["state"] = state
    if state != "killed":
        watched.fake.finish()
    watched.job.go_on(5, {}, has_feedback=True, has_started=False)
    watched.obey(AGAIN, number=4)
    if state == "killed":
        # As it was told to before it was to be started again.
        watched.next(e.JobStarted)
        assert watched.fake.resumed == [(1, 1)]
    else:
        assert str(watched.next(e.JobEnded).phase) == state
        assert watched.fake.resumed == []


def test_something_unforeseen_as_a_job_is_started_again_is_said(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resume(*args: Any, **more: Any) -> FakeJob:
        raise ZeroDivisionError("of all things")

    watched.start()
    watched.obey(e.EndJob("a", True, "it restarts"))
    watched.next(e.JobEnded)
    monkeypatch.setattr(live.Job, "resume", resume)
    watched.obey(AGAIN)
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and ended.why == "StartJob failed: ZeroDivisionError: of all things"


def test_something_unforeseen_when_a_job_is_taken_up_is_said(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> FakeJob:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(live.Job, "find", find)
    watched.job.go_on(5, MEMBERS, has_feedback=True, has_started=True)
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and ended.why == "it cannot go on: ZeroDivisionError: of all things"


def test_a_job_that_was_started_again_and_does_not_answer_is_ended_before_its_end_is_said(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status() -> Any:
        raise PeerUnavailableError("no answer")

    watched.fake.running, watched.fake.outcome = False, {}
    monkeypatch.setattr(watched.fake, "status", status)
    watched.job.go_on(5, MEMBERS, has_feedback=True, has_started=True)
    while not isinstance(event := watched.said.get(timeout=TIMEOUT_S), e.JobEnded):
        pass
    assert event.phase is Phase.FAILED and "it cannot go on: no answer" in event.why
    assert watched.fake.killed.is_set(), "its containers may be given away now"
    assert watched.silent()
