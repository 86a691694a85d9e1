"""The client at the edge of gRPC: retries, refusals, ends."""

from __future__ import annotations

import io
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cli.commands import run
from eps.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    JobFinishedError,
    JobNotFoundError,
    PeerUnavailableError,
    PlanError,
    StorageError,
    UnknownMemberError,
)
from eps.job import master_link
from eps.job.client import Job
from eps.job.display import status_text
from eps.job.master_link import MasterLink, OnThisMachine, WaitNews
from eps.job.status import UNREACHABLE
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import JobDir
from tests.cli.conftest import FakeJob, change_of, status_of
from tests.fakes.records import note_no_end, note_settings


def test_unknown_name_is_no_job(home: Path) -> None:
    with pytest.raises(JobNotFoundError, match="no job 'nobody'"):
        Job.find("nobody")


def test_status_of_a_running_job_comes_from_its_master(fake: FakeJob) -> None:
    with Job.find("fake") as job:
        assert job.status() == fake.master.status


def test_lost_answer_is_asked_again_with_the_same_request_id(fake: FakeJob) -> None:
    fake.master.drop, fake.master.plans = 2, [change_of()]
    with Job.find("fake") as job:
        assert job.add_workers(2)["plan_id"] == 1
    asked = [request for method, request in fake.master.asked if method == "AddWorkers"]
    assert [request.count for request in asked] == [2, 2, 2]
    assert len({request.request_id for request in asked}) == 1 and asked[0].request_id


def test_cancel_without_a_number_aborts_what_was_requested_not_a_plan_of_the_job_itself(fake: FakeJob) -> None:
    own = change_of(1, "prepared", operation="follow", asked_by="job")
    fake.master.status = status_of(plan=own)
    with Job.find("fake") as job:
        with pytest.raises(PlanError, match=r"no pending change to cancel; plan 1 is the job's own"):
            job.cancel()
        fake.master.status = status_of(plan=own, queued=[change_of(2, "queued")])
        assert job.cancel() == 2 and job.cancel(1) == 1
        assert repr(job) == f"<Job 'fake' in {fake.dir.path}>"


def test_an_interrupt_of_run_says_what_became_of_the_job_and_not_where_it_waited(
    fake: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(job: Job) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "start_request", classmethod(lambda cls, request: Job(fake.dir)))
    monkeypatch.setattr(Job, "wait", wait)
    with pytest.raises(KeyboardInterrupt) as raised:
        eps.run(data="sklearn:digits", model="softmax")
    assert raised.value.__notes__ == ["fake: interrupted, and ended; eps resume fake continues it"]
    assert [frame.name for frame in raised.traceback][1:] == ["run"]


def test_call_that_meets_a_dead_master_waits_for_the_next_one_and_says_so(
    fake: FakeJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master_link, "NOTICED_S", 0.0)
    told = threading.Event()
    caplog.handler.addFilter(lambda record: told.set() or True)
    fake.master.plans = [change_of(phase="queued")]
    restart = threading.Thread(target=lambda: told.wait(20.0) and fake.serve())
    with Job.find("fake") as job:
        assert job.status()["state"] == "running"
        fake.kill_master()
        restart.start()
        assert job.add_workers(2, wait=False, request_id="mine")["plan_id"] == 1
    restart.join()
    assert "waiting for the next master of job 'fake'" in caplog.text
    assert {request.request_id for method, request in fake.master.asked if method == "AddWorkers"} == {"mine"}


def test_watch_goes_on_at_the_next_master(fake: FakeJob) -> None:
    fake.master.news = [(status_of(clock=1), [{"clock": 1, "loss": 0.1}])]
    fake.master.drop = 1
    with Job.find("fake") as job:
        news = job.watch()
        assert next(news).status["clock"] == 1
        fake.kill_master()
        fake.master.news = [(status_of(clock=2), [{"clock": 2, "loss": 0.1}])]
        fake.serve()
        assert [progress.status["clock"] for progress in news] == [2]


def test_next_master_is_waited_for_no_longer_than_the_deadline(fake: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_link, "NEXT_MASTER_S", 0.1)
    fake.kill_master()
    with Job.find("fake") as job, pytest.raises(PeerUnavailableError, match=r"for 0\.1 s"):
        job.status()


def test_two_changes_have_different_request_ids(fake: FakeJob) -> None:
    fake.master.plans = [change_of()]
    with Job.find("fake") as job:
        job.add_servers(1)
        job.remove_servers(["server-1"])
        job.remove_workers(1, request_id="mine")
    ids = [request.request_id for _, request in fake.master.asked]
    assert len(set(ids)) == 3 and ids[2] == "mine"
    assert list(fake.master.asked[1][1].names) == ["server-1"]


def test_change_is_waited_for_and_its_phases_are_told(fake: FakeJob) -> None:
    fake.master.plans = [change_of(phase=phase) for phase in ("queued", "prepared", "released")]
    told: list[str] = []
    with Job.find("fake") as job:
        record = job.change("add-workers", 2, on_news=lambda news: told.append(news["phase"]))
    assert (record["phase"], told) == ("released", ["queued", "prepared", "released"])


def test_change_can_be_left_on_its_way(fake: FakeJob) -> None:
    fake.master.plans = [change_of(phase="queued"), change_of()]
    with Job.find("fake") as job:
        assert job.add_workers(2, wait=False)["phase"] == "queued"


def test_aborted_change_is_an_error_with_its_reason(fake: FakeJob) -> None:
    fake.master.plans = [change_of(phase="aborted", reason="cancelled")]
    with Job.find("fake") as job, pytest.raises(PlanError, match=r"plan 1 .* aborted"):
        job.add_workers(2)


def test_refusal_arrives_as_the_master_raised_it(fake: FakeJob) -> None:
    fake.master.refusal = UnknownMemberError("worker-9 is not a worker of the job")
    with Job.find("fake") as job, pytest.raises(UnknownMemberError, match="worker-9 is not"):
        job.remove_workers(["worker-9"])


def test_dry_run_asks_for_words_only(fake: FakeJob) -> None:
    with Job.find("fake") as job:
        assert job.dry_run("remove-servers", 1) == "moves"
    assert fake.master.asked[0][1].dry_run


@pytest.mark.parametrize(
    ("operation", "what"), [("add-workers", 0), ("add-workers", ["worker-7"]), ("grow", 1), ("remove-workers", [])]
)
def test_senseless_change_is_refused_before_it_is_asked(fake: FakeJob, operation: str, what: Any) -> None:
    with Job.find("fake") as job, pytest.raises(ConfigError):
        job.change(operation, what)
    assert not fake.master.asked


def test_cancel_without_a_number_takes_the_change_on_its_way(fake: FakeJob) -> None:
    with Job.find("fake") as job:
        with pytest.raises(PlanError, match="no pending change"):
            job.cancel()
        fake.master.status = status_of(plan=change_of(3, "prepared"), queued=[change_of(4, "queued")])
        assert job.cancel() == 3
        assert job.cancel(4) == 4


def test_watch_goes_on_where_it_was_after_a_lost_connection(fake: FakeJob) -> None:
    fake.master.news = [(status_of(clock=c), [{"clock": c, "loss": 0.1}]) for c in (1, 2, 3)]
    fake.master.drop = 1
    with Job.find("fake") as job:
        seen = [(p.status["clock"], p.history[0]["clock"]) for p in job.watch()]
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert [request.after_clock for method, request in fake.master.asked if method == "Watch"] == [-1, 1]


def test_change_of_an_ended_job_is_refused(fake: FakeJob) -> None:
    fake.end()
    with Job.find("fake") as job, pytest.raises(JobFinishedError, match="has ended"):
        job.add_workers(1)


def test_master_that_never_answers_is_given_up(fake: FakeJob) -> None:
    fake.dir.master_json.unlink()
    with Job(fake.dir, patience_s=0.0) as job, pytest.raises(PeerUnavailableError, match="does not answer"):
        job.status()


def test_eps_run_waits_for_a_master_on_yarn_for_as_long_as_its_application_runs_and_nobody_else_does(
    fake: FakeJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A restarted master may wait long for HDFS; a client that gives up may end the job."""
    monkeypatch.setattr(OnThisMachine, "application_id", "application_1_0001")
    monkeypatch.setattr(master_link, "NEXT_MASTER_S", 0.0)
    likely = "YARN reports application application_1_0001 as running: a restarted master answers when"
    silent = threading.Event()
    caplog.handler.addFilter(lambda record: silent.set() or True)
    restart = threading.Thread(target=lambda: silent.wait(20.0) and fake.serve())
    fake.kill_master()
    with Job(fake.dir, patience_s=0.0) as job:
        with pytest.raises(PeerUnavailableError, match=f"for 0 s; {likely}"):
            job.status()
        for impatient in (job.history, lambda: next(job.watch())):
            with pytest.raises(PeerUnavailableError):
                impatient()
        caplog.clear()
        silent.clear()
        restart.start()
        fake.master.news = [(status_of(clock=7), [])]
        news = job.watch(is_patient=True)
        assert next(news).status["clock"] == 7
        news.close()
        restart.join()
        assert "has not answered since" in caplog.text and likely in caplog.text
        # The job has ended without a report of its master, which is no error of the watching client.
        fake.kill_master()
        silent.clear()
        end = threading.Thread(target=lambda: silent.wait(20.0) and fake.end("failed", "HDFS was away"))
        end.start()
        shown = io.StringIO()
        run._show(job, shown, run.Detail.PROGRESS)
        assert shown.getvalue() == ""
        end.join()


def test_client_does_not_believe_a_master_that_listens_on_a_port_of_this_host(fake: FakeJob) -> None:
    """Any user's process may listen on a port; the job's own masters listen in its folder."""
    with socket.create_server(("127.0.0.1", 0)) as rogue:
        place = {"host": "127.0.0.1", "port": rogue.getsockname()[1], "pid": 1, "generation": 99}
        write_json_atomic(fake.dir.master_json, place)
        with Job.find("fake") as job, pytest.raises(AuthenticationError, match="cannot prove"):
            job.cancel()
    assert fake.master.asked == []


def test_client_that_may_not_read_the_token_says_so(fake: FakeJob) -> None:
    fake.dir.token.unlink()
    with Job.find("fake") as job, pytest.raises(StorageError, match="token: cannot be read"):
        job.add_workers(1)


def test_wait_ends_at_its_deadline(fake: FakeJob) -> None:
    with Job.find("fake") as job, pytest.raises(DeadlineError, match="the end of job 'fake'"):
        job.wait(0.0)


def test_wait_returns_the_report_when_the_last_process_is_gone(fake: FakeJob) -> None:
    report = {"name": "fake", "state": "finished", "clock": 200}
    ending = threading.Thread(target=fake.end, args=("finished", "", report))
    with Job.find("fake") as job:
        ending.start()
        assert job.wait(20.0) == report
    ending.join()


def test_job_that_left_no_report_still_says_how_it_ended(fake: FakeJob) -> None:
    fake.end("failed", "the job master was ended by SIGKILL")
    with Job.find("fake") as job:
        report = job.wait()
        assert (report["state"], report["reason"]) == ("failed", "the job master was ended by SIGKILL")
        assert job.status()["state"] == "failed"


def test_job_whose_supervisor_was_killed_outright_counts_as_killed(fake: FakeJob) -> None:
    fake.end()
    note_no_end(fake.dir)
    with Job.find("fake") as job:
        assert job.status()["state"] == "killed"


def test_status_of_a_job_without_a_report_says_as_of_when_it_is(fake: FakeJob) -> None:
    plan, queued = change_of(1, "copied"), change_of(2, "queued")
    left = {**status_of(clock=40, plan=plan, queued=[queued]), "as_of_s": 1_800_000_000.5}
    write_json_atomic(fake.dir.status_json, left)
    fake.end("failed", "the disk is full")
    with Job.find("fake") as job:
        found = job.status()
    assert found.keys() == status_of().keys()
    assert (found["state"], found["clock"], found["as_of_s"]) == ("failed", 40, 1_800_000_000.5)
    # No change is in flight any more; the last known phase is shown.
    assert (found["plan"], found["queued"], found["changes"]) == (None, [], [plan, queued])
    told = status_text(found).splitlines()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_800_000_000.5))
    assert told[:3] == [
        "fake: failed (the disk is full)",
        f"  last known, at {when}:",
        "  clock 40 of 200, membership version 1",
    ]


def test_status_of_a_job_whose_master_is_gone_leaves_out_what_is_not_known(fake: FakeJob) -> None:
    told = status_text({**status_of(clock=40, loss=None, metrics={}), "membership_version": 0}).splitlines()
    assert told[1] == "  clock 40 of 200"
    assert not any("train loss" in line for line in told)


def test_status_of_a_job_with_a_report_is_not_old(fake: FakeJob) -> None:
    write_json_atomic(fake.dir.status_json, {**status_of(clock=40), "as_of_s": 1_800_000_000.5})
    fake.end(report={"name": "fake", "state": "finished", "reason": "", "clock": 200})
    with Job.find("fake") as job:
        found = job.status()
    assert (found["clock"], found["as_of_s"]) == (200, None)
    assert "last known" not in status_text(found)


def test_status_of_an_ended_job_has_the_form_of_a_running_one(fake: FakeJob) -> None:
    note_settings(fake.dir, iterations=200)
    memberships = [{"workers": {"worker-1": [0, 1]}, "servers": {"server-1": [0]}}]
    memberships.append({"workers": {"worker-1": [0], "worker-2": [1]}, "servers": {"server-1": [0]}})
    report = {"clock": 200, "metrics": {"train_loss": 0.1, "test": {"rmse": 2.0}}, "membership": memberships}
    report["sizes"] = [[0, 1, 1], [60, 2, 1]]
    fake.end("finished", "", report)
    with Job.find("fake") as job:
        found = job.status()
    assert set(found) == set(status_of())
    assert (found["clock"], found["iterations"], found["loss"], found["metrics"]) == (200, 200, 0.1, {"rmse": 2.0})
    assert (found["workers"], found["servers"]) == (2, 1)
    assert found["sizes"] == report["sizes"]


def test_kill_asks_the_master_and_waits_for_the_end(fake: FakeJob) -> None:
    with Job.find("fake") as job:
        job.kill("enough")
        assert not job.running
        job.kill()
    assert [(method, request.reason) for method, request in fake.master.asked] == [("Kill", "enough")]


def waits(monkeypatch: pytest.MonkeyPatch, status: dict[str, Any] | None) -> None:
    """Have a job's cluster let it wait with that status; None: it does not any more."""
    monkeypatch.setattr(OnThisMachine, "waiting", lambda where: status)


def test_a_job_whose_cluster_begins_to_let_it_wait_says_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query just before that must not wait for containers."""
    directory = JobDir(tmp_path / "waits")
    directory.path.mkdir()
    looked: list[int] = []

    def stub(link: MasterLink) -> None:
        looked.append(1)
        assert len(looked) < 3, "it goes on looking for a master"
        waits(monkeypatch, {**status_of(), "state": "starting", "reason": "the queue is full"})

    monkeypatch.setattr(JobDir, "is_running", lambda self: True)
    monkeypatch.setattr(MasterLink, "_stub", stub)
    with Job(directory) as job:
        status = job.status()
        monkeypatch.setattr(JobDir, "is_running", lambda self: False)
    assert (status["state"], status["reason"]) == ("starting", "the queue is full")


def test_who_watches_a_job_whose_master_is_lost_is_told_what_is_waited_for(
    fake: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is known only some time after the connection to the master broke."""
    monkeypatch.setattr(master_link, "WAITING_POLL_S", 0.001)
    fake.master.news, fake.master.drop = [(status_of(clock=40), [])] * 2, 1
    note_settings(fake.dir, iterations=200, workers=3, servers=1)
    away = {**status_of(clock=40), "state": UNREACHABLE, "reason": "the ResourceManager is away"}
    stub, looked = MasterLink._stub, 0

    def lose(link: MasterLink) -> Any:
        nonlocal looked
        looked += 1
        if looked == 2:
            # At the second failure the reason is known.
            waits(monkeypatch, away)
        assert looked < 4, "it goes on looking, and says nothing"
        return stub(link) if looked == 1 else None

    monkeypatch.setattr(MasterLink, "_stub", lose)
    with Job.find("fake") as job:
        news = job.watch()
        assert next(news).status["clock"] == 40
        status = next(news).status
        assert (status["state"], status["reason"], status["clock"]) == (UNREACHABLE, away["reason"], 40)
        monkeypatch.setattr(MasterLink, "_stub", stub)
        waits(monkeypatch, None)
        assert next(news).status["state"] == "running", "it is back"


def test_a_time_that_is_over_is_told_though_the_master_does_not_answer(
    fake: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(job: Job, timeout_s: float = 60.0) -> dict[str, Any]:
        raise PeerUnavailableError("the master does not answer")

    monkeypatch.setattr(Job, "status", away)
    monkeypatch.setattr(MasterLink, "answers", lambda link: False)
    with Job.find("fake") as job, pytest.raises(DeadlineError, match=r"within 0 s; .*starting"):
        job.wait_until_trains(0.0)


def test_a_damaged_record_does_not_hold_up_who_asks_a_job_that_runs_for_its_status(
    fake: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.dir.job_json.write_bytes(b"")
    with Job.find("fake") as job:
        assert job.status()["clock"] == 50
        monkeypatch.setattr(MasterLink, "_stub", lambda link: None)
        monkeypatch.setattr(master_link, "NEXT_MASTER_S", 0.2)
        with pytest.raises(PeerUnavailableError, match="does not answer"):
            Job(fake.dir, patience_s=0.2).status()


def test_a_change_says_once_that_the_cluster_does_not_answer_and_waits(
    fake: FakeJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if that happens after the job was known to train."""
    away = {**status_of(), "state": UNREACHABLE, "reason": "the ResourceManager is away"}
    looked, stub = 0, MasterLink._stub
    monkeypatch.setattr(master_link, "RETRY_S", 0.001)

    def look(link: MasterLink) -> Any:
        nonlocal looked
        looked += 1
        if looked == 2:
            waits(monkeypatch, away)
        if looked == 5:
            waits(monkeypatch, None)
        return None if 2 <= looked < 5 else stub(link)

    monkeypatch.setattr(MasterLink, "_stub", look)
    fake.master.plans = [change_of()]
    with Job.find("fake") as job:
        assert job.add_workers(1, wait=False)["plan_id"] == 1
        assert caplog.messages == ["job 'fake': the ResourceManager is away"]
        waits(monkeypatch, {**away, "reason": "it is away again"})
        with pytest.raises(DeadlineError, match=r"within 0 s; .*away"):
            job.wait_until_trains(0.0)
        assert caplog.messages[1:] == ["job 'fake': it is away again"]


def test_what_a_job_waits_for_is_told_once_until_it_is_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_link, "NOTICED_S", 0.0)
    told: list[str] = []
    news = WaitNews(told.append)
    looked = [
        news.is_waiting(status_of(state="starting", reason=reason))
        for reason in ("", "waits for 2 containers for 3 s", "waits for 2 containers for 4 s", "waits for room")
    ]
    assert looked == [True] * 4 and not news.is_waiting(status_of())
    assert [text.removeprefix("waiting for job 'fake': it is ") for text in told] == [
        "starting",
        "starting: waits for 2 containers for 3 s",
        "starting: waits for room",
    ]


def test_who_asks_a_job_that_ends_at_that_moment_is_told_how_it_ended(fake: FakeJob) -> None:
    """Its sockets are closed before its end is recorded."""
    shutil.rmtree(fake.dir.sockets)
    ending = threading.Timer(0.1, fake.end)
    ending.start()
    with Job(fake.dir) as job:
        assert job.status()["state"] == "finished"
    ending.join()
