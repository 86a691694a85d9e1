"""A job on YARN is not started again while its application runs."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eps.cli import main
from eps.cluster.supervisor.start import kill_supervisor
from eps.cluster.yarn.application import Application
from eps.errors import DeadlineError, JobExistsError, JobNotFoundError, PeerUnavailableError, StorageError
from eps.job.client import Job
from eps.job.launch import prepare_job
from eps.job.status import UNREACHABLE, ended_status
from eps.job.yarn import ending, former
from eps.job.yarn.former import check_has_ended, settle_former
from eps.job.yarn.submit import ATTENDANT, attend_again
from eps.spec.file import RunRequest
from eps.spec.results import deliver_results
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import JobDir, JobLock
from eps.system.waits import wait_for
from tests.cluster.test_yarn_attendant import FINISHED, ID, KILLED, PATIENCE_S, RUNNING, ScriptedClient
from tests.fakes.records import note_ended
from tests.fakes.resourcemanager import FakeResourceManager, resourcemanager

SETTINGS: dict[str, Any] = {"iterations": 3, "on": "yarn"}
FORGOTTEN = {"state": "failed", "exit_code": 1, "reason": "forgotten", "time_s": 1.0, "is_forgotten": True}
ROWS = "1 1:1 2:0.5\n-1 2:1\n" * 12


class Ended:
    """Stands in for the attendant that is started once more."""

    def __init__(self, job: JobDir) -> None:
        self.job = job
        self.waited_s = 0.0

    def wait(self, timeout_s: float) -> int:
        self.waited_s = timeout_s
        note_ended(self.job, {"state": "killed", "exit_code": 1, "reason": "enough", "time_s": 1.0})
        return 1

    def close(self) -> None:
        pass


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobDir]:
    """A job on YARN whose attendant is gone."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    data = tmp_path / "rows.libsvm"
    data.write_text(ROWS)
    prepared = prepare_job(RunRequest.from_values({"data": str(data), "iterations": 3, "on": "yarn", "name": "a9a"}))
    prepared.lock.close()
    Application(ID, "hdfs://nn/shared", str(tmp_path), "rest").write(prepared.directory)
    yield prepared.directory


def test_who_runs_is_refused_and_who_has_ended_or_is_forgotten_is_not() -> None:
    with pytest.raises(JobExistsError, match=rf"job 'a9a' is running \({ID}\): only one that has stopped"):
        check_has_ended(ScriptedClient(RUNNING), ID, "a9a")  # type: ignore[arg-type]
    for report in (KILLED, FINISHED, JobNotFoundError("no such application")):
        check_has_ended(ScriptedClient(report), ID, "a9a")  # type: ignore[arg-type]


def test_nobody_goes_on_with_a_job_whose_application_runs(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former, "read_configuration", lambda folder: folder)
    monkeypatch.setattr(former, "open_client", lambda conf, kind: _Closing(RUNNING))
    monkeypatch.setattr(former, "attend_again", lambda path: pytest.fail("nobody is to attend"))
    before = job.job_json.read_bytes()
    with pytest.raises(JobExistsError, match="is running"):
        Job.resume("a9a")
    assert job.job_json.read_bytes() == before and not job.is_running()


def test_how_the_former_ended_is_found_out_first(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    attendant = Ended(job)
    monkeypatch.setattr(former, "read_configuration", lambda folder: folder)
    monkeypatch.setattr(former, "open_client", lambda conf, kind: _Closing(KILLED))
    monkeypatch.setattr(former, "attend_again", lambda path: attendant)
    settle_former(job)
    assert attendant.waited_s > 0 and job.ended().state == "killed"
    attendant.waited_s = 0.0
    settle_former(job)
    assert attendant.waited_s == 0.0, "that is known by now"


@pytest.fixture
def forgotten(job: JobDir) -> JobDir:
    """It ended by the word of a ResourceManager that had lost its state."""
    note_ended(job, FORGOTTEN)
    return job


def test_one_that_yarn_had_forgotten_is_asked_for_again(
    forgotten: JobDir, job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    attendant, said = Ended(job), [JobNotFoundError("no such application"), RUNNING, KILLED]
    monkeypatch.setattr(former, "read_configuration", lambda folder: folder)
    monkeypatch.setattr(former, "open_client", lambda conf, kind: _Closing(said[0]))
    monkeypatch.setattr(former, "attend_again", lambda path: attendant)
    settle_former(job)
    assert job.ended().reason == "forgotten" and attendant.waited_s == 0.0, "it still is"
    said.pop(0)
    with pytest.raises(JobExistsError, match=rf"job 'a9a' is running \({ID}\)"):
        settle_former(job)
    # It runs, and so it is attended to, shown and ended again.
    assert job.ended() is None and job.job_json.exists()
    note_ended(job, {"state": "failed", "is_forgotten": True})
    said.pop(0)
    settle_former(job)
    assert attendant.waited_s > 0 and job.ended().reason == "enough"


def test_a_resumption_that_yarn_knows_again_has_not_what_the_run_before_has_brought(
    forgotten: JobDir, job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That was put back when YARN did not know the resumption."""
    job.report.write_text('{"state": "failed", "clock": 40}')
    job.model.write_bytes(b"npz")
    monkeypatch.setattr(former, "read_configuration", lambda folder: folder)
    monkeypatch.setattr(former, "open_client", lambda conf, kind: _Closing(RUNNING))
    with pytest.raises(JobExistsError, match=rf"job 'a9a' is running \({ID}\)"):
        settle_former(job)
    assert job.ended() is None and job.record().former is not None, "what that has brought goes when it is seen to run"


def test_what_one_that_yarn_has_forgotten_has_left_is_fetched_before_it_is_started_again(
    forgotten: JobDir, job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_ended(job, {"state": "failed", "reason": "forgotten", "is_forgotten": True, "unfetched": "forgotten"})
    attendant = Ended(job)
    monkeypatch.setattr(former, "read_configuration", lambda folder: folder)
    monkeypatch.setattr(former, "open_client", lambda conf, kind: _Closing(JobNotFoundError("no such application")))
    monkeypatch.setattr(former, "attend_again", lambda path: attendant)
    settle_former(job)
    assert attendant.waited_s > 0 and job.is_settled()


def test_no_second_master_is_started_beside_one_that_yarn_had_forgotten(
    job: JobDir, unattended: FakeResourceManager
) -> None:
    note_ended(job, FORGOTTEN)
    with pytest.raises(JobExistsError, match=rf"job 'a9a' is running \({ID}\)"):
        Job.resume("a9a")
    with closing(Job.find("a9a")) as found:
        assert found.running
        found.kill("enough")
        assert found.status()["reason"] == "enough"


def test_a_job_that_nobody_attended_to_runs_as_soon_as_it_is_found(unattended: FakeResourceManager) -> None:
    """A whole attendant, with a ResourceManager that ends an application when it is told to."""
    found = Job.find("a9a")
    assert found.running, "whoever asks next must not take it for one that has ended"
    again = Job.find("a9a")
    assert again.running
    again.close()
    found.kill("enough")
    assert not found.running and found.status()["state"] == "killed"
    found.close()
    ended = [body for method, _, _, body in unattended.asked if method == "PUT"]
    assert ended == [{"state": "KILLED", "diagnostics": "enough"}]


def test_a_kill_that_nobody_answers_is_told_and_remembered(
    unattended: FakeResourceManager, job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole attendant again, which outlives whoever asked for the end, and is ended itself on the way."""
    monkeypatch.setattr(ending, "SILENT_S", 0.0)
    unattended.standby = True
    with closing(Job.find("a9a")) as found:
        wait_for(lambda: found.status()["state"] == UNREACHABLE, PATIENCE_S, "the silence to be noticed")
        told: list[str] = []
        with pytest.raises(PeerUnavailableError, match=rf"it is remembered that {ID} is to end") as error:
            found.kill("enough", tell=told.append)
        silent = f"the ResourceManager at {unattended.url} has not answered since"
        assert silent in str(error.value) and found.running
        assert [text.partition(": ")[0] for text in told] == [f"waits for the end of {ID}"] and silent in told[0]
        assert kill_supervisor(job, signal.SIGKILL)
        wait_for(lambda: not found.running, PATIENCE_S, "its end")
    # What is known of it is not that it has ended.
    assert job.ended() is None and ended_status(job)["state"] == UNREACHABLE
    unattended.standby = False
    with closing(Job.find("a9a")) as found:
        found.wait(PATIENCE_S)
        assert (found.status()["state"], found.status()["reason"]) == ("killed", "enough")
    assert [body["diagnostics"] for method, _, _, body in unattended.asked if method == "PUT"] == ["enough"]


def test_the_files_of_a_job_do_not_go_while_its_application_runs(unattended: FakeResourceManager, job: JobDir) -> None:
    for on in ("yarn", "local"):
        with pytest.raises(JobExistsError, match=rf"job 'a9a' is running \({ID}\)"):
            Job.start(**{**SETTINGS, "on": on}, name="a9a", data="sklearn:digits")
    assert job.is_on_yarn() and not job.is_running()


def test_of_two_who_would_attend_one_does(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    job.note(pid=os.getpid())
    others: list[str] = []

    def start(directory: Path, tied: bool, *, lock: JobLock, module: str) -> str:
        assert job.is_running() and lock.path == job.lock and not tied
        assert not kill_supervisor(job), "the number is of the former one, and may be anybody's by now"
        with pytest.raises(JobExistsError):
            attend_again(directory)
        others.append(module)
        return "handle"

    monkeypatch.setattr("eps.job.yarn.submit.start_supervisor", start)
    assert attend_again(job.path) == "handle"  # type: ignore[comparison-overlap]
    note_ended(job, {"state": "killed", "exit_code": 1, "reason": "", "time_s": 1.0})
    assert attend_again(job.path) is None and others == [ATTENDANT], "its end is known, and what it left is fetched"


@pytest.fixture
def unfetched(job: JobDir, tmp_path: Path) -> Path:
    """Where a job that has finished has its model, which could not be fetched."""
    results = tmp_path / "shared" / "results"
    results.mkdir(parents=True)
    (results / "model.npz").write_bytes(b"the only copy")
    write_json_atomic(results / "ended.json", {"state": "finished", "exit_code": 0, "reason": "done"})
    # All that its attendant needs of a cluster is where it would be.
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
        "<value>127.0.0.1:9</value></property></configuration>"
    )
    Application(ID, str(tmp_path / "shared"), str(tmp_path), "rest").write(job)
    ended = {"state": "finished", "exit_code": 0, "reason": "safe mode", "time_s": 1.0, "unfetched": ""}
    note_ended(job, ended)
    return results


def test_what_could_not_be_fetched_comes_with_the_next_command(
    job: JobDir, unfetched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole attendant again, which asks no cluster."""
    assert main(["status", "a9a"]) == 0
    assert capsys.readouterr().out.startswith("a9a: finished (done)")
    assert job.model.read_bytes() == b"the only copy" and job.is_settled() and not job.is_running()
    assert not unfetched.exists()


def test_what_could_not_be_removed_when_a_job_ended_goes_with_the_next_command(
    job: JobDir, unfetched: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS was in safe mode just then, say; its results are here."""
    ended = {"state": "killed", "exit_code": 1, "reason": "enough", "time_s": 1.0}
    note_ended(job, {**ended, "is_forgotten": True})
    assert main(["status", "a9a"]) == 0
    assert unfetched.exists(), "it may run, and need that"
    note_ended(job, ended)
    with JobLock(job.lock):
        assert former.look_after(job) is None and unfetched.exists(), "somebody begins it again"
    with monkeypatch.context() as patch:

        def refuse(application: Application) -> None:
            raise StorageError("the NameNode is in safe mode")

        patch.setattr(Application, "remove", refuse)
        assert main(["status", "a9a"]) == 0
    assert unfetched.exists()
    assert main(["status", "a9a"]) == 0
    assert not unfetched.exists() and not (Application.read(job) or pytest.fail("it is known")).shared


def test_a_job_whose_results_were_not_fetched_has_not_brought_what_was_wanted(job: JobDir, unfetched: Path) -> None:
    """Nobody is told that all is well, whether its model was to be exported or not."""
    with pytest.raises(StorageError, match="job 'a9a': safe mode"):
        deliver_results(job, RunRequest.from_values({**SETTINGS, "name": "a9a", "data": "sklearn:digits"}))


class Slow(Ended):
    """One that is not done in time."""

    def wait(self, timeout_s: float) -> int:
        self.waited_s += timeout_s
        raise DeadlineError(f"supervisor 4711: its job has not ended within {timeout_s} s")


def test_who_waits_long_for_what_a_job_has_left_says_so(
    job: JobDir, unfetched: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attendants: list[Slow] = []

    def attend_again(path: Path) -> Slow:
        attendants.append(Slow(job))
        return attendants[-1]

    monkeypatch.setattr(former, "attend_again", attend_again)
    told = "waits until what job 'a9a' has left on its cluster is here"
    with closing(Job.find("a9a")):
        assert caplog.messages == [told]
    late = r"what job 'a9a' has left on its cluster is not here within 120 s \(it is still fetched\); eps status a9a"
    with pytest.raises(DeadlineError, match=late):
        Job.resume("a9a")
    assert caplog.messages == [told, told] and [each.waited_s for each in attendants] == [120.0, 120.0]


def test_a_job_whose_results_were_not_fetched_is_kept(
    job: JobDir, unfetched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(former, "attend_again", lambda path: None)
    os.utime(job.path, (1.0, 1.0))
    before = job.job_json.read_bytes()
    assert main(["prune", "a9a"]) == 0
    told = capsys.readouterr().err
    assert "a9a is kept: what it has left on its cluster was not fetched: `eps status a9a` does (--resumable" in told
    settings: dict[str, Any] = {"name": "a9a", "data": str(tmp_path / "rows.libsvm"), "iterations": 3}
    with pytest.raises(JobExistsError, match=r"left results on its cluster: fetch them .eps status a9a.*--anew"):
        prepare_job(RunRequest.from_values(settings))
    with pytest.raises(StorageError, match=r"can be resumed when what it has left .* was fetched.*safe mode"):
        Job.resume("a9a")
    assert job.job_json.read_bytes() == before and (unfetched / "model.npz").exists() and not job.is_settled()
    prepare_job(dataclasses.replace(RunRequest.from_values(settings), anew=True)).lock.close()
    assert job.record().end is None


@pytest.fixture
def unattended(job: JobDir, tmp_path: Path) -> Iterator[FakeResourceManager]:
    """A cluster on which the job's application runs."""
    app = {"id": ID, "state": "RUNNING", "amRPCAddress": "127.0.0.1:9"}
    with resourcemanager() as rm:
        rm.answers[f"GET apps/{ID}"] = (200, {"app": app})
        rm.answers[f"PUT apps/{ID}/state"] = (202, {"state": "KILLED"})
        rm.told[f"PUT apps/{ID}/state"] = lambda: app.update(state="KILLED")
        address = rm.url.removeprefix("http://")
        (tmp_path / "yarn-site.xml").write_text(
            "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
            f"<value>{address}</value></property></configuration>"
        )
        (tmp_path / "shared").mkdir()
        Application(ID, str(tmp_path / "shared"), str(tmp_path), "rest").write(job)
        yield rm
        kill_supervisor(job, signal.SIGKILL)


class _Closing(ScriptedClient):
    def close(self) -> None:
        pass
