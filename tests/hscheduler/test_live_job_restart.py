"""A live job that another process started, or that restarts, over a fake job that the test controls."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from eps.errors import PeerUnavailableError
from eps.job.client import Job
from eps.job.master_link import OnThisMachine
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live import job as live
from tests.cli import conftest as cli
from tests.hscheduler.live_job_world import MEMBERS, SEATS, TIMEOUT_S, FakeJob, Watched, containers, entries
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
