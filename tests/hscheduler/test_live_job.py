"""A live job's threads, over a fake job that the test controls: no hang, and no event is missing."""

from __future__ import annotations

import threading

import pytest

from eps.errors import PlanError, StorageError, UnknownMemberError
from eps.job.master_link import Progress
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.record import SUPERVISOR_KILLED
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live import job as live
from tests.hscheduler.live_job_world import MEMBERS, TIMEOUT_S, FakeJob, Watched, containers, entries
from tests.hscheduler.live_job_world import watched as watched


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


@pytest.mark.parametrize("refused", (False, True))
def test_new_members_are_reported_with_the_end_of_the_growth(watched: Watched, refused: bool) -> None:
    watched.start()
    if refused:
        watched.fake.refuse["add-servers"] = [PlanError("no container was had")]
    watched.obey(e.GrowJob("a", containers(("c4", "w"), ("c5", "s"))))
    # Otherwise a scheduler that crashes between the two would order both again.
    event = watched.said.get(timeout=TIMEOUT_S)
    assert isinstance(event, e.GrowthFailed if refused else e.GrowthDone), event
    came = {"c4": "worker-10"} if refused else {"c4": "worker-10", "c5": "server-10"}
    assert dict(event.members) == {**MEMBERS, **came}


def test_a_shrink_removes_only_members_that_joined(watched: Watched) -> None:
    watched.start()
    watched.fake.refuse["add-workers"] = [PlanError("no container was had")]
    watched.obey(e.GrowJob("a", containers(("c4", "w"))))
    watched.obey(e.ShrinkJob("a", ("c4", "c2")))
    assert watched.next(e.GrowthFailed).containers == ("c4",)
    assert watched.next(e.ContainersGone).containers == ("c2",)
    assert watched.next(e.ContainersGone).containers == ("c4",), "every order is answered"


def test_a_shrink_aborts_the_growth_before_it(watched: Watched) -> None:
    watched.start()
    watched.fake.holds_up = threading.Event()
    watched.obey(e.GrowJob("a", containers(("c4", "w"), ("c5", "s"))))
    assert watched.fake.entered.wait(TIMEOUT_S)
    # The growth is blocked until it is cancelled.
    watched.obey(e.ShrinkJob("a", ("c4", "c5", "c2")))
    failed = watched.next(e.GrowthFailed)
    assert failed.containers == ("c4", "c5") and dict(failed.members) == MEMBERS
    assert watched.next(e.ContainersGone).containers == ("c2",)
    assert watched.next(e.ContainersGone).containers == ("c4", "c5")
    assert watched.fake.cancelled == {1, 2}, "the growth's other role, too"


def test_a_growth_aborted_before_it_started_is_still_requested(watched: Watched) -> None:
    watched.start()
    watched.fake.holds_up = threading.Event()
    watched.obey(e.ShrinkJob("a", ("c2",)))
    # Both orders come before the growth starts: an earlier process may have carried it out.
    watched.obey(e.GrowJob("a", containers(("c4", "w"))))
    watched.obey(e.ShrinkJob("a", ("c4",)))
    watched.fake.holds_up.set()
    assert watched.next(e.ContainersGone).containers == ("c2",)
    assert watched.next(e.GrowthFailed).containers == ("c4",)
    assert watched.next(e.ContainersGone).containers == ("c4",)
    assert watched.fake.changes[1:] == [("add-workers", 1)]


def test_a_growth_that_is_committed_is_shrunk_after_it(watched: Watched) -> None:
    watched.start()
    watched.fake.is_committed, watched.fake.holds_up = True, threading.Event()
    watched.obey(e.GrowJob("a", containers(("c4", "w"))))
    assert watched.fake.entered.wait(TIMEOUT_S)
    watched.obey(e.ShrinkJob("a", ("c4",)))
    watched.fake.holds_up.set()
    assert dict(watched.next(e.GrowthDone).members)["c4"] == "worker-10"
    assert watched.next(e.ContainersGone).containers == ("c4",)
    assert watched.fake.changes[-1] == ("remove-workers", ["worker-10"])


def test_the_replacement_of_a_lost_member_is_removed_in_its_place(watched: Watched) -> None:
    watched.start()
    watched.fake.names = ["worker-1", "worker-7", "server-1"]
    watched.fake.refuse["remove-workers"] = [UnknownMemberError("no worker-2")]
    watched.obey(e.ShrinkJob("a", ("c2",)))
    assert watched.next(e.ContainersGone).containers == ("c2",)
    assert watched.fake.changes[-1] == ("remove-workers", ["worker-7"])


def test_a_refused_removal_is_reported(watched: Watched) -> None:
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


def test_an_unexpected_error_ends_the_job_and_is_reported(watched: Watched) -> None:
    watched.start()
    watched.fake.refuse["add-workers"] = [ZeroDivisionError("of all things")]
    watched.obey(e.GrowJob("a", containers(("c4", "w"))))
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED
    assert "GrowJob failed: ZeroDivisionError: of all things" in ended.why
    assert watched.fake.killed.is_set()


def test_a_failed_watch_kills_the_job_before_it_reports(watched: Watched) -> None:
    watched.start()
    watched.fake.news.put(Progress(None, ()))  # type: ignore[arg-type]
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
    # Clock 4 is the last of the old size; clock 5 began while the size changed.
    assert after.iteration == 8 and after.durations_s == (0.5, 0.5)


def test_feedback_is_of_the_requested_iteration(watched: Watched) -> None:
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


def test_a_job_that_ends_before_the_first_poll_reports_its_history(watched: Watched) -> None:
    watched.start()
    values = [{**entry, "loss": 20.0 - entry["clock"]} for entry in entries(0, 15, 1.0)]
    watched.fake.report["history"] = values
    watched.fake.finish()
    news = watched.next(e.Iterated)
    assert news.iteration == 15 and news.losses[-1] == (0.0, 15, 6.0)
    assert news.durations_s == (1.0,) * 14, "the first one began before the job trained"
    ended = watched.next(e.JobEnded)
    assert ended.feedback == 11.0, "the loss of the tenth iteration"
    assert ended.loss == 6.0


def test_a_job_that_ends_before_the_next_poll_reports_the_remaining_durations(watched: Watched) -> None:
    watched.start()
    watched.fake.tell("running", *entries(0, 3, 1.0))
    assert watched.next(e.Iterated).durations_s == (1.0, 1.0)
    watched.fake.report["history"] = entries(0, 6, 1.0)
    watched.fake.finish()
    assert watched.next(e.Iterated).durations_s == (1.0, 1.0, 1.0)
    watched.next(e.JobEnded)


def test_a_missing_metric_is_reported(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    other = Watched(watched.fake, metric="acuracy")
    other.start()
    other.fake.tell("running", *[{**entry, "accuracy": 0.5, "f1": 0.5} for entry in entries(0, 12, 1.0)])
    other.next(e.Iterated)
    ended = other.next(e.JobEnded)
    assert ended.phase is Phase.FAILED
    assert ended.why == "metric is 'acuracy', but the job reported accuracy, f1, loss"
    assert not [record for record in caplog.records if record.exc_info], "the code is not at fault"
    other.job.close()


def test_a_restarted_job_has_members_with_new_numbers(watched: Watched) -> None:
    watched.start()
    watched.obey(e.EndJob("a", True, "it restarts"))
    assert watched.next(e.JobEnded).phase is Phase.KILLED
    watched.fake.names = ["worker-5", "server-4"]
    watched.obey(e.StartJob("a", containers(("c8", "w"), ("c9", "s")), True))
    watched.next(e.JobStarted)
    watched.fake.tell("running", *entries(7, 1, 1.0))
    assert watched.next(e.Iterated).iteration == 8
    watched.fake.refuse.clear()
    watched.fake.changes.clear()
    watched.obey(e.ShrinkJob("a", ("c8",)))
    watched.next(e.ContainersGone)
    assert watched.fake.changes == [("remove-workers", ["worker-5"])]


def test_a_failed_start_is_reported(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: RunRequest, *, detach: bool, warm: None) -> FakeJob:
        raise PlanError("no more processes")

    monkeypatch.setattr(live.Job, "start_request", refuse)
    watched.obey(e.StartJob("a", containers(("c1", "w"), ("c2", "s")), False))
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and ended.why == "it could not be started: no more processes"


def test_losses_are_reported_with_their_times(watched: Watched) -> None:
    watched.start()
    lost = [{**entry, "loss": None} for entry in entries(0, 1, 1.0)]
    watched.fake.tell("running", *lost, *entries(1, 2, 1.0, 1.0))
    assert watched.next(e.Iterated).losses == ((1.0, 2, 1.0), (0.0, 3, 1.0)), "invalid ones are omitted"
    watched.fake.tell("running", *entries(3, 1000, 0.25, 3.0))
    losses = watched.next(e.Iterated).losses
    assert len(losses) == 20
    assert losses[-1] == (0.0, 1003, 1.0) and losses[0] == (19 * 50 * 0.25, 53, 1.0)


def test_a_recorded_job_that_is_lost_with_its_scheduler_has_not_failed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LOST_GRACE_S", TIMEOUT_S)
    recorded = live.LiveJob("a", live.Launch("sweep-a", JobSpec(), detached=True), "loss", 10, watched.said.put)
    recorded.obey(1, e.StartJob("a", containers(("c1", "w"), ("c2", "w"), ("c3", "s")), False))
    watched.next(e.JobStarted)
    # All processes are killed, the jobs first.
    watched.fake.report = {**watched.fake.report, "state": "killed", "reason": SUPERVISOR_KILLED}
    watched.fake.finish()
    assert watched.fake.waited.wait(TIMEOUT_S), "the job has ended"
    recorded.leave()
    assert watched.silent() and not recorded.is_alive


def test_a_job_whose_supervisor_crashed_has_failed(watched: Watched) -> None:
    watched.start()
    watched.fake.report = {**watched.fake.report, "state": "killed", "reason": SUPERVISOR_KILLED}
    watched.fake.finish()
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.FAILED and ended.why == SUPERVISOR_KILLED
    assert watched.job.is_alive
    watched.job.retire()
    wait_for(lambda: not watched.job.is_alive, TIMEOUT_S, "the end of its threads")


def test_a_job_ordered_to_end_counts_as_killed(watched: Watched) -> None:
    watched.start()
    watched.obey(e.EndJob("a", False, "the worst"))
    watched.fake.killed.wait(TIMEOUT_S)
    watched.fake.report = {**watched.fake.report, "reason": SUPERVISOR_KILLED}
    ended = watched.next(e.JobEnded)
    assert ended.phase is Phase.KILLED and ended.why == "the worst"


@pytest.mark.parametrize(
    ("outcome", "is_left", "phase"),
    [
        ("finished", True, Phase.FINISHED),
        ("finished", False, Phase.FAILED),
        ("failed", False, Phase.FAILED),
        ("killed", False, Phase.KILLED),
    ],
)
def test_results_are_saved_before_the_end_is_reported(
    watched: Watched, outcome: str, is_left: bool, phase: Phase
) -> None:
    told: list[tuple[str, Phase, bool]] = []

    def before_end(name: str, phase: Phase) -> None:
        told.append((name, phase, watched.silent()))
        if not is_left:
            raise StorageError("no room")

    launch = live.Launch("sweep-a", JobSpec(workers=2, servers=1), before_end=before_end)
    job, watched.job = watched.job, live.LiveJob("a", launch, "loss", 10, watched.said.put)
    job.close()
    watched.start()
    watched.fake.report = {**watched.fake.report, "state": outcome, "reason": "its own"}
    watched.fake.finish()
    ended = watched.next(e.JobEnded)
    assert told == [("sweep-a", Phase(outcome), True)]
    assert ended.phase is phase
    is_lost = outcome == "finished" and not is_left
    assert ended.why == ("its results could not be saved: no room" if is_lost else "its own")
