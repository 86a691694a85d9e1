"""A live job that another process started, or that restarts, over a fake job that the test controls."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from eps.errors import PeerUnavailableError, TrainingError
from eps.job.client import Job
from eps.job.master_link import OnThisMachine, Progress
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.rungs import Rungs
from hscheduler.live import job as live
from hscheduler.live import job_state
from hscheduler.live.job_state import HistoryReader
from tests.cli import conftest as cli
from tests.hscheduler.live_job_world import MEMBERS, SEATS, TIMEOUT_S, FakeJob, Watched, containers, entries, told_of
from tests.hscheduler.live_job_world import watched as watched

START = e.StartJob("a", containers(("c1", "w"), ("c2", "w"), ("c3", "s")), False)


def test_an_order_has_the_same_request_id_in_every_process(watched: Watched) -> None:
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


def test_a_running_job_is_attached_at_its_progress(watched: Watched) -> None:
    watched.fake.tell("running", *entries(20, 2, 1.0))
    watched.job.restore(20, SEATS, has_feedback=True, has_started=True)
    watched.obey(e.ShrinkJob("a", ("c2",)), number=9)
    said = [watched.said.get(timeout=TIMEOUT_S) for _ in range(3)]
    assert {type(event) for event in said} == {e.JobStarted, e.Iterated, e.ContainersGone}
    assert watched.fake.watched_after == [19]
    assert watched.fake.started == [] and watched.fake.changes == [("remove-workers", ["worker-2"])]


def test_without_early_feedback_its_history_is_read_again(watched: Watched) -> None:
    watched.fake.tell("running", *entries(0, 12, 1.0))
    watched.job.restore(12, SEATS, has_feedback=False, has_started=True)
    watched.next(e.JobStarted)
    watched.next(e.Iterated)
    assert watched.next(e.FeedbackGiven).value == 1.0
    assert watched.fake.watched_after == [-1]


def test_a_start_that_was_carried_out_is_not_repeated(watched: Watched) -> None:
    watched.fake.tell("running")
    watched.job.restore(0, {}, has_feedback=False, has_started=False)
    watched.obey(START, number=1)
    watched.next(e.JobStarted)
    watched.obey(e.ShrinkJob("a", ("c2",)))
    watched.next(e.ContainersGone)
    assert watched.fake.started == [] and watched.members == MEMBERS


def test_a_start_that_was_not_carried_out_is_repeated(watched: Watched) -> None:
    watched.fake.is_missing = True
    watched.job.restore(0, {}, has_feedback=False, has_started=False)
    watched.obey(START, number=1)
    watched.next(e.JobStarted)
    (request,) = watched.fake.started
    assert request.anew, "an interrupted start may have left a directory"


def test_files_of_a_start_that_the_record_lost_do_not_block_a_start(watched: Watched) -> None:
    said: SimpleQueue[e.Event] = SimpleQueue()
    job = live.LiveJob("a", live.Launch("sweep-a", JobSpec(workers=2, servers=1), detached=True), "loss", 10, said.put)
    job.obey(1, START)
    assert isinstance(said.get(timeout=TIMEOUT_S), e.MembersFound)
    assert isinstance(said.get(timeout=TIMEOUT_S), e.JobStarted)
    (request,) = watched.fake.started
    assert request.anew, "the name belongs to this scheduler: checkpoints there are of a forgotten start"
    job.close()


def test_a_job_that_ended_meanwhile_reports_its_end(watched: Watched) -> None:
    watched.fake.running, watched.fake.outcome = False, {"state": "finished"}
    watched.fake.report["history"] = entries(0, 12, 1.0)
    watched.fake.finish()
    watched.job.restore(5, SEATS, has_feedback=True, has_started=True)
    assert watched.next(e.Iterated).iteration == 12
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FINISHED and ended.loss == 1.0
    assert watched.fake.resumed == []


def test_a_job_that_crashed_unnoticed_resumes_at_its_size(watched: Watched) -> None:
    watched.fake.running, watched.fake.outcome = False, {}
    watched.fake.names = ["worker-7", "worker-8", "server-3"]
    watched.job.restore(5, SEATS, has_feedback=True, has_started=True)
    watched.next(e.JobStarted)
    watched.obey(e.ShrinkJob("a", ("c2",)))
    watched.next(e.ContainersGone)
    assert watched.fake.resumed == [(2, 1)]
    assert watched.fake.changes == [("remove-workers", ["worker-8"])]


def test_a_job_that_is_left_keeps_running(watched: Watched) -> None:
    watched.start()
    watched.job.leave()
    assert not watched.fake.killed.is_set()
    watched.fake.finish()


# ---- restarts

AGAIN = e.StartJob("a", containers(("c8", "w"), ("c9", "s")), True)


def test_members_are_reported_before_a_restarted_job_reports_its_start(watched: Watched) -> None:
    watched.start()
    watched.obey(e.EndJob("a", True, "it restarts"))
    watched.next(e.JobEnded)
    watched.obey(AGAIN)
    said = [watched.said.get(timeout=TIMEOUT_S) for _ in range(2)]
    assert said == [e.MembersFound("a", (("c8", "worker-1"), ("c9", "server-1"))), e.JobStarted("a")]


@pytest.mark.parametrize("state", ("finished", "failed", "killed"))
def test_a_restart_that_was_carried_out_and_ended_is_not_repeated(watched: Watched, state: str) -> None:
    watched.fake.running, watched.fake.outcome = False, {"state": state}
    watched.fake.report["state"] = state
    if state != "killed":
        watched.fake.finish()
    watched.job.restore(5, {}, has_feedback=True, has_started=False)
    watched.obey(AGAIN, number=4)
    if state == "killed":
        # The order to end preceded the restart.
        watched.next(e.JobStarted)
        assert watched.fake.resumed == [(1, 1)]
    else:
        assert str(watched.next(e.JobEnded).phase) == state
        assert watched.fake.resumed == []


def test_an_unexpected_error_at_a_restart_is_reported(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def resume(*args: Any, **more: Any) -> FakeJob:
        raise ZeroDivisionError("of all things")

    watched.start()
    watched.obey(e.EndJob("a", True, "it restarts"))
    watched.next(e.JobEnded)
    monkeypatch.setattr(live.Job, "resume", resume)
    watched.obey(AGAIN)
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and ended.why == "StartJob failed: ZeroDivisionError: of all things"


def test_an_unexpected_error_at_an_attach_is_reported(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> FakeJob:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(live.Job, "find", find)
    watched.job.restore(5, SEATS, has_feedback=True, has_started=True)
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and ended.why == "it could not be resumed: ZeroDivisionError: of all things"


def test_an_attached_job_that_does_not_answer_is_ended_before_its_end_is_reported(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(after_clock: int) -> Any:
        raise PeerUnavailableError("no answer")

    watched.fake.running, watched.fake.outcome = False, {}
    monkeypatch.setattr(watched.fake, "watch", watch)
    watched.job.restore(5, SEATS, has_feedback=True, has_started=True)
    event = watched.next(e.JobEnded)
    assert event.phase is Phase.FAILED and event.why == "no answer"
    assert watched.fake.killed.is_set(), "its containers may be reassigned now"
    assert watched.silent()


def test_a_job_on_yarn_whose_master_does_not_answer_is_killed_and_frees_its_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other jobs may wait for the containers, and a master may never be reachable from here."""
    there = cli.FakeJob(tmp_path)
    monkeypatch.setattr(OnThisMachine, "application_id", "application_1_0001")

    class Impatient(Job):
        def kill(self, reason: str = "", *_: Any) -> None:
            there.end("killed", reason)

    monkeypatch.setattr(live, "Job", SimpleNamespace(find=lambda name: Impatient(there.dir, patience_s=0.0)))
    said: SimpleQueue[e.Event] = SimpleQueue()
    job = live.LiveJob("a", live.Launch("fake", JobSpec(workers=2, servers=1, on="yarn")), "loss", 10, said.put)
    there.kill_master()
    job.restore(0, SEATS, has_feedback=False, has_started=True)
    try:
        while not isinstance(event := said.get(timeout=TIMEOUT_S), e.JobEnded):
            pass
        assert event.phase is Phase.FAILED and "the master of job 'fake' does not answer for 0 s" in event.why
    finally:
        there.close()
        job.close()


# ---- pauses

PAUSE = e.EndJob("a", True, "it pauses at its rung", 20)
RUNGS = Rungs(20, 2, 100)


def paused_job(watched: Watched) -> Watched:
    """Return a job that has reached its first rung, trains on and has been ordered to pause."""
    found = Watched(watched.fake)
    found.job._state.reading._rungs = RUNGS
    found.start()
    watched.fake.tell("running", *entries(0, 22, 1.0))
    found.next(e.Iterated)
    found.next(e.FeedbackGiven)
    assert found.next(e.RungReached) == e.RungReached("a", 20, 1.0)
    found.obey(PAUSE)
    return found


def with_checkpoint(fake: FakeJob, clock: int | None, *history: dict[str, Any]) -> None:
    status = {"state": "running", "members": told_of(fake.names), "checkpoints": {"latest_clock": clock}}
    fake.news.put(Progress(status, history))


def test_a_job_pauses_once_the_checkpoint_of_its_rung_is_complete(watched: Watched) -> None:
    found = paused_job(watched)
    for clock, first in ((None, 22), (10, 23)):
        with_checkpoint(watched.fake, clock, *entries(first, 1, 1.0, first))
        found.next(e.Iterated)
        assert not watched.fake.killed.is_set()
    with_checkpoint(watched.fake, 20)
    assert found.next(e.JobEnded).phase is Phase.KILLED
    assert watched.fake.killed_because == "it pauses at its rung"
    found.job.close()


def test_a_job_whose_rung_has_its_checkpoint_already_pauses_at_once(watched: Watched) -> None:
    found = Watched(watched.fake)
    found.job._state.reading._rungs = RUNGS
    found.start()
    with_checkpoint(watched.fake, 20, *entries(0, 22, 1.0))
    found.next(e.Iterated)
    found.next(e.FeedbackGiven)
    found.next(e.RungReached)
    found.obey(PAUSE)
    assert found.next(e.JobEnded).phase is Phase.KILLED
    found.job.close()


def test_a_job_pauses_without_its_checkpoint_after_a_while(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_state, "PAUSE_LIMIT_S", 0.05)
    found = paused_job(watched)
    assert found.next(e.JobEnded).phase is Phase.KILLED
    found.job.close()


def test_a_resumed_job_reports_again_what_followed_its_rung(watched: Watched) -> None:
    found = paused_job(watched)
    # It reaches the next rung before it has stopped.
    with_checkpoint(watched.fake, 20, *({**entry, "loss": 0.5} for entry in entries(22, 20, 1.0, 22.0)))
    found.next(e.Iterated)
    assert found.next(e.RungReached).iteration == 40
    found.next(e.JobEnded)
    found.obey(e.StartJob("a", containers(("c8", "w"), ("c9", "s")), True))
    found.next(e.JobStarted)
    assert watched.fake.watched_after == [-1, 19]
    # It resumed from a later checkpoint: the value is that of the rung.
    watched.fake.tell("running", {"clock": 41, "loss": 0.4, "seconds": 1.0})
    assert found.next(e.Iterated).iteration == 42
    assert found.next(e.RungReached) == e.RungReached("a", 40, 0.5)
    found.job.close()


def test_rungs_that_a_resumed_job_passed_before_its_pause_are_told_once_it_trains(watched: Watched) -> None:
    found = paused_job(watched)
    with_checkpoint(watched.fake, 60, *entries(22, 40, 0.5, 22.0))
    found.next(e.Iterated)
    assert [found.next(e.RungReached).iteration, found.next(e.JobEnded).phase] == [40, Phase.KILLED]
    found.job.close()
    state = found.job._state
    state.started(job_state.Start({}, True, False), is_resumed=True)
    # Its checkpoint is that of iteration 60, and so is its history.
    assert state.progressed({"state": "starting"}, entries(20, 40, 0.5)) == []
    said = state.progressed({"state": "running", "members": []}, entries(60, 1, 0.5))
    assert [type(each) for each in said] == [e.JobStarted, e.Iterated, e.RungReached]
    assert said[-1] == e.RungReached("a", 40, 1.0)


def test_the_time_in_a_pause_is_no_time_of_a_resize(watched: Watched) -> None:
    found = paused_job(watched)
    with_checkpoint(watched.fake, 20)
    assert found.next(e.JobEnded).pause_s == 0.0
    found.job.close()


def test_a_user_ends_a_job_that_waits_for_its_checkpoint(watched: Watched) -> None:
    found = paused_job(watched)
    found.obey(e.EndJob("a", False, "the user wants it"))
    assert found.next(e.JobEnded).why == "the user wants it"
    found.job.close()


def test_a_restored_job_reads_again_what_followed_its_last_known_rung() -> None:
    reading = HistoryReader("a", "loss", 10, RUNGS)
    reading.restore(45, has_feedback=True, num_rungs=1)
    assert reading.seen_clock == 38
    (reached,) = reading.reached(entries(39, 6, 1.0))
    assert reached == e.RungReached("a", 40, 1.0)
    reading.restore(45, has_feedback=True, num_rungs=2)
    assert reading.seen_clock == 44 and not reading.reached(entries(44, 3, 1.0))


def test_a_rung_needs_the_metric_of_its_sweep() -> None:
    reading = HistoryReader("a", "accuracy", 10, RUNGS)
    assert reading.reached(entries(19, 3, 1.0)) == [], "not evaluated yet"
    late = [{**entry, "accuracy": 0.5} for entry in entries(24, 1, 1.0)]
    assert reading.reached(late) == [e.RungReached("a", 20, 0.5)]
    with pytest.raises(TrainingError, match="metric is 'accuracy', but the job reported f1, loss"):
        reading.reached([{**entry, "f1": 0.5} for entry in entries(44, 1, 1.0)])
