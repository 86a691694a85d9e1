"""``hscheduler sweep --on yarn`` over fakes: no application is lost track of, and no files are left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.yarn.application import ENDED_FILE, RESULTS, Application
from eps.cluster.yarn.types import ApplicationReport, Resource, Submission
from eps.errors import ConfigError, DeadlineError, JobNotFoundError, PeerUnavailableError, StorageError
from eps.hadoop.conf import HadoopConf
from eps.job.yarn.shared_application import JOBS
from eps.job.yarn.sweeps import SweepState, report_file, state_of_sweep
from eps.storage.jobdir import JobDir, JobLock, jobs_dir
from eps.storage.locations import RemotePath, open_storage
from hscheduler.application.monitor import Monitor, submitted_sweeps
from hscheduler.application.staged_files import SERVICE_FILE, SWEEP_TYPE
from hscheduler.cli import main
from hscheduler.live.sweep import SWEEP
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.webhdfs import FakeHdfs
from tests.fakes.yarn_client import ID, FakeYarnClient

pytest.importorskip("requests")
FILE = """
[cluster]
container_memory = "512MiB"
[sweep]
trials = 2
[space]
learning_rate = {{ choice = [0.1, 0.2] }}
[job]
data = "sklearn:digits"
model = "softmax"
workers = 1
servers = 1
on = "yarn"
staging = "{staging}"
"""
REPORT: dict[str, Any] = {
    "policy": "elastic", "metric": "loss", "makespan_s": 1.0, "completed": 2, "utilisation": 0.5,
    "phases": {"finished": 2, "killed": 0, "failed": 0},
    "summary": {"queueing_median_s": 0.0, "early_feedback_mean_s": None, "resizing_share": None},
    "best": {"job_id": "trial-2", "metric": "loss", "loss": 0.25, "point": {"learning_rate": 0.2}},
    "trials": [
        {"job_id": "trial-1", "name": "sweep-1", "phase": "finished", "attempts": []},
        {"job_id": "trial-2", "name": "sweep-2", "phase": "finished", "attempts": []},
    ],
}  # fmt: skip


class RunningSweep(FakeYarnClient):
    """A YARN whose application leaves a sweep's results and has ended; or which answers as the test says."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home
        self.said = ["FINISHED"]
        self.after_submission: Callable[[], None] = lambda: None

    def submit(self, application_id: str, submission: Submission) -> None:
        (found,) = (self._home / "sweeps").iterdir()
        self.directory = JobDir(found)
        super().submit(application_id, submission)
        assert submission.application_type == SWEEP_TYPE and self.noted is not None
        shared = open_storage(self.noted.shared)
        word = {"state": "finished", "exit_code": 0, "reason": "1 of 2 trials finished"}
        left = {report_file(SWEEP): json.dumps(REPORT), ENDED_FILE: json.dumps(word)}
        for name, content in {**left, f"{JOBS}/sweep-2/{RESULTS}/model.npz": "the model"}.items():
            with shared.write(name) as file:
                file.write(content.encode())
        self.after_submission()


@pytest.fixture
def yarn(hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningSweep:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    conf, found = HadoopConf({}, str(tmp_path), {}), RunningSweep(tmp_path / "home")
    monkeypatch.setattr("hscheduler.runners.environment_configuration", lambda: conf)
    monkeypatch.setattr("hscheduler.runners.YarnClient", lambda conf: found)
    monkeypatch.setattr("eps.job.yarn.sweeps.YarnClient", lambda conf: found)
    monkeypatch.setattr("hscheduler.live.placement.environment_configuration", lambda: conf)
    monkeypatch.setattr("hscheduler.live.placement.YarnClient", lambda conf: found)
    monkeypatch.setattr("hscheduler.runners.check_sweep", lambda spec: None)
    # The files that --resume reads.
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "sweep.toml").write_text(FILE.format(staging=f"webhdfs://{hdfs.authority}/eps"))
    return found


def sweep(folder: Path, more: str = "") -> int:
    flags = ["--report", str(folder / "report.json")]
    with (folder / "sweep.toml").open("a") as file:
        file.write(more)
    return main(["sweep", str(folder / "sweep.toml"), *flags])


def resume(folder: Path, name: str) -> int:
    return main(["sweep", "--resume", name, "--report", str(folder / "report.json")])


def staged(hdfs: FakeHdfs) -> list[str]:
    return [path for path in hdfs.nodes if path.startswith("/eps/sweeps/")]


def test_a_sweeps_files_on_the_cluster_are_removed_after_the_download(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running: list[bool] = []
    yarn.after_submission = lambda: running.append(yarn.directory.is_running())
    assert sweep(tmp_path) == 0, capsys.readouterr().err
    assert running == [True] and not yarn.directory.is_running(), "no other client may follow it or remove its files"
    assert (jobs_dir() / "sweep-2" / "model.npz").read_text() == "the model"
    assert yarn.noted is not None and yarn.noted.shared.startswith(f"webhdfs://{hdfs.authority}/eps/sweeps/")
    noted = Application.read(yarn.directory)
    assert noted is not None and (noted.application_id, noted.shared) == (ID, "")
    assert staged(hdfs) == [] and not yarn.killed
    assert state_of_sweep(yarn.directory) == SweepState("finished"), "its directory holds no results"


def test_the_directory_of_a_submitted_or_followed_sweep_is_locked(yarn: RunningSweep, tmp_path: Path) -> None:
    seen: list[bool] = []
    report = yarn.report

    def look(application_id: str) -> ApplicationReport:
        seen.append(yarn.directory.is_running())
        return report(application_id)

    yarn.after_submission = lambda: seen.append(yarn.directory.is_running())
    yarn.report = look  # type: ignore[method-assign]
    assert sweep(tmp_path) == 0
    assert len(seen) >= 2 and all(seen) and not yarn.directory.is_running()


@pytest.mark.parametrize(
    ("more", "code", "reason"),
    [
        ('queue = "nope"', 2, "no trial can work: queue is 'nope', but the cluster has no queue of that name"),
        ('label = "gpu"', 2, "no trial can work: label is 'gpu', but queue 'default' allows only: transient"),
        ('label = "transient"\nsplits = 99\npartitions = 99', 0, ""),
    ],
)
def test_what_yarn_would_refuse_is_refused_before_any_upload(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    more: str, code: int, reason: str,
) -> None:  # fmt: skip
    assert sweep(tmp_path, more) == code
    assert reason in capsys.readouterr().err
    assert (yarn.submission is None) == bool(code) and (tmp_path / "home" / "sweeps").exists() != bool(code)


def test_the_masters_container_is_at_most_the_largest_that_yarn_grants(yarn: RunningSweep, tmp_path: Path) -> None:
    yarn.tells(largest=Resource(700, 1))
    assert sweep(tmp_path) == 0
    assert yarn.submission is not None and yarn.submission.resource == Resource(700, 1)


def test_it_has_the_priority_lifetime_and_rights_of_its_jobs(yarn: RunningSweep, tmp_path: Path) -> None:
    assert sweep(tmp_path, 'priority = 4\nlifetime = 600\nacl = ["view=ann"]\n') == 0
    assert yarn.submission is not None and (yarn.submission.priority, yarn.submission.lifetime_s) == (4, 600.0)
    assert yarn.submission.launch.access == {"view": "ann"}


def test_its_master_has_as_many_attempts_as_that_of_a_job(yarn: RunningSweep, tmp_path: Path) -> None:
    assert sweep(tmp_path) == 0
    assert yarn.submission is not None and not yarn.submission.keep_containers
    assert (yarn.submission.max_attempts, yarn.submission.failures_valid_s) == (3, 60.0)


def test_results_that_cannot_be_fetched_stay_on_the_cluster(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "home").mkdir()
    jobs_dir().write_text("no folder")
    assert sweep(tmp_path) == 1, "its results are on the cluster only"
    noted = Application.read(yarn.directory)
    assert noted is not None and noted.shared and noted == yarn.noted
    assert yarn.directory.ended() is None, "eps prune must not take it for a fetched one"
    where, told = RemotePath.parse(noted.shared).path, capsys.readouterr().err
    assert f"{where}: they cannot be fetched: trial-2: " in told
    assert f"; hscheduler sweep --resume {yarn.directory.name} tries again" in told
    assert any(path.endswith("/model.npz") for path in staged(hdfs))
    assert resume(tmp_path, yarn.directory.name) == 1, "nor now"
    jobs_dir().unlink()
    assert resume(tmp_path, yarn.directory.name) == 0
    assert (jobs_dir() / "sweep-2" / "model.npz").read_text() == "the model" and staged(hdfs) == []


def test_a_failed_trial_is_reported_with_the_place_of_its_logs(
    yarn: RunningSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REPORT["trials"][0], "phase", "failed")
    monkeypatch.setitem(REPORT["trials"][0], "why", "it diverged")
    assert sweep(tmp_path) == 0
    assert f"logs of its containers: yarn logs -applicationId {ID}\n" in capsys.readouterr().err


def test_without_the_best_trials_model_nothing_is_removed_and_a_warning_follows(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose() -> None:
        for path in [path for path in hdfs.nodes if path.endswith("/model.npz")]:
            del hdfs.nodes[path]

    yarn.after_submission = lose
    assert sweep(tmp_path) == 1
    told = capsys.readouterr().err
    assert "they cannot be fetched: trial-2: the model is missing: " in told
    assert any(path.endswith(report_file(SWEEP)) for path in staged(hdfs))


def test_results_of_a_sweep_that_yarn_forgot_are_copied_and_kept(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def leave_no_word() -> None:
        for path in [path for path in hdfs.nodes if path.endswith(ENDED_FILE)]:
            del hdfs.nodes[path]

    monkeypatch.setattr("eps.job.yarn.remote.FORGOTTEN_S", 0.0)
    yarn.after_submission = leave_no_word
    yarn.said = [JobNotFoundError("no such application")]
    assert sweep(tmp_path) == 1
    told = capsys.readouterr().err
    name = yarn.directory.name
    assert f"{ID} failed: " in told and f"hscheduler sweep --resume {name} continues it, with every result" in told
    assert (jobs_dir() / "sweep-2" / "model.npz").read_text() == "the model"
    assert any(path.endswith("/model.npz") for path in staged(hdfs)) and not yarn.killed


class KilledError(BaseException):
    """Stands for kill -9 of this process."""


@pytest.fixture
def killed(yarn: RunningSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Kill a sweep's client; return the sweep's name."""
    yarn.said = ["ACCEPTED", KilledError(), "FINISHED"]
    with pytest.raises(KilledError):
        sweep(tmp_path)
    name = yarn.directory.name
    assert f"hscheduler sweep --resume {name} continues it, or follows it again if this" in capsys.readouterr().out
    assert not yarn.killed and not (tmp_path / "report.json").exists()
    return name


@pytest.mark.parametrize("by_application", [False, True])
def test_a_sweep_whose_client_was_killed_is_followed_again(
    killed: str, yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    by_application: bool,
) -> None:  # fmt: skip
    yarn.said = ["RUNNING", "RUNNING", "FINISHED"]
    assert main(["sweeps"]) == 0
    assert f"{killed}  {ID}  running  0%    to be fetched" in capsys.readouterr().out
    assert resume(tmp_path, ID if by_application else killed) == 0
    assert "best: trial-2 with loss 0.25" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text()) == REPORT
    assert (jobs_dir() / "sweep-2" / "model.npz").read_text() == "the model" and staged(hdfs) == []
    assert main(["sweeps"]) == 0
    told = capsys.readouterr().out
    over = f"{len(REPORT['trials'])}/{len(REPORT['trials'])}"
    assert f"{killed}  {ID}  finished  {over}   fetched  loss 0.25 (trial-2)" in told


def test_a_sweep_on_yarn_has_the_name_that_the_user_gives(
    yarn: RunningSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", str(tmp_path / "sweep.toml"), "--name", "mine"]
    assert main(command) == 0
    assert yarn.directory.path == tmp_path / "home" / "sweeps" / "mine"
    for more in ([], ["--on", "local"]):
        assert main([*command, *more]) == 2
        assert "name is 'mine', but must be an unused name: " in capsys.readouterr().err
    assert main(["sweeps"]) == 0
    assert f"mine   {ID}  finished" in capsys.readouterr().out
    assert resume(tmp_path, "mine") == 0
    assert json.loads((tmp_path / "report.json").read_text()) == REPORT
    assert main(["sweeps", "--remove", "mine"]) == 2
    assert "eps prune sweeps/mine removes it" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", '{"state": "finished"}'])
def test_a_sweep_that_is_damaged_does_not_hide_the_others(
    killed: str, yarn: RunningSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    yarn.said = ["RUNNING"]
    damaged = tmp_path / "home" / "sweeps" / "0123456789ab"
    shutil.copytree(tmp_path / "home" / "sweeps" / killed, damaged)
    (damaged / "job.json").write_text(content)
    for flags in ([], ["--all"]):
        assert main(["sweeps", *flags]) == 0
        told = capsys.readouterr()
        assert f"{killed}  {ID}" in told.out
        assert "0123456789ab  -" in told.out and "unreadable" in told.out
        assert f"{damaged}/job.json: " in told.err
        assert "eps prune sweeps/0123456789ab --state unreadable removes it" in told.err


def test_fetched_results_are_printed_again_without_the_cluster(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def end_here(job: JobDir) -> None:
        for path in staged(hdfs):
            del hdfs.nodes[path]
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr("hscheduler.application.monitor.remove_staged", end_here)
        sweep(tmp_path)
    assert not (tmp_path / "report.json").exists()
    yarn.said = [AssertionError("no request is expected")]
    for _ in range(2):
        capsys.readouterr()
        assert resume(tmp_path, yarn.directory.name) == 0
        assert "best: trial-2 with loss 0.25" in capsys.readouterr().out
        assert json.loads((tmp_path / "report.json").read_text()) == REPORT
        noted = Application.read(yarn.directory)
        assert noted is not None and noted.shared == ""


def test_results_of_an_interrupted_sweep_are_printed_again(killed: str, yarn: RunningSweep, tmp_path: Path) -> None:
    yarn.said = ["RUNNING", KeyboardInterrupt(), "KILLED"]
    assert resume(tmp_path, killed) == 130
    assert yarn.killed == [ID], "as with the command that submitted it"
    (tmp_path / "report.json").unlink()
    assert resume(tmp_path, killed) == 1
    assert json.loads((tmp_path / "report.json").read_text()) == REPORT


@pytest.mark.parametrize("forgotten", [False, True])
def test_another_application_continues_a_sweep_whose_application_ended_before_it(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str], forgotten: bool
) -> None:
    def leave_no_word() -> None:
        for path in [path for path in hdfs.nodes if path.endswith(ENDED_FILE)]:
            del hdfs.nodes[path]

    yarn.after_submission = leave_no_word
    yarn.said = ["ACCEPTED", KeyboardInterrupt(), "KILLED"]
    assert sweep(tmp_path) == 130
    first, name = yarn.noted, yarn.directory.name
    assert first is not None and yarn.killed == [ID]
    told = capsys.readouterr().err
    assert f"hscheduler sweep --resume {name} continues it, with every result; " in told
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == {**REPORT, "state": "interrupted"}
    assert (jobs_dir() / "sweep-2" / "model.npz").read_text() == "the model" and staged(hdfs)
    yarn.said = ["KILLED"]
    assert main(["sweeps"]) == 0
    assert f"{name}  {ID}  interrupted  2/2   fetched  loss 0.25 (trial-2)" in capsys.readouterr().out
    kept = state_of_sweep(yarn.directory)
    assert kept.state == "killed" and f"hscheduler sweep --resume {name} continues it" in kept.keep
    with open_storage(first.shared).write(SERVICE_FILE) as file:
        file.write(b"{}")

    def look_around() -> None:
        assert SERVICE_FILE not in open_storage(first.shared).names(""), "the address of the one before"

    yarn.after_submission = look_around
    yarn.said = [JobNotFoundError("no such application") if forgotten else "KILLED", "RUNNING", "FINISHED"]
    assert resume(tmp_path, name) == 0
    assert yarn.noted is not None and yarn.noted.shared == first.shared
    assert "continues the sweep" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text()) == REPORT and staged(hdfs) == []
    assert state_of_sweep(yarn.directory) == SweepState("finished")


def test_an_unreadable_outcome_of_a_sweep_is_reported_with_the_command_to_retry(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(following: Monitor) -> None:
        raise StorageError("report.json: no datanode answers")

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "stored_reports", fail)
        assert sweep(tmp_path) == 1
    again = f"hscheduler sweep --resume {yarn.directory.name} tries again"
    assert f"the results of {ID} cannot be read: report.json: no datanode answers; {again}" in capsys.readouterr().err
    assert resume(tmp_path, yarn.directory.name) == 0 and staged(hdfs) == []


def test_an_unknown_sweep_is_reported(yarn: RunningSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweeps"]) == 0
    assert capsys.readouterr().out == "no sweep was run here, or submitted to YARN from here\n"


def test_a_sweep_that_yarn_has_forgotten_is_listed_as_such(killed: str, yarn: RunningSweep, capsys: Any) -> None:
    yarn.said = [JobNotFoundError("no such application")]
    assert main(["sweeps"]) == 0
    assert f"{killed}  {ID}  unknown to YARN        to be fetched" in capsys.readouterr().out


def test_a_sweep_has_one_follower(killed: str, yarn: RunningSweep, tmp_path: Path, capsys: Any) -> None:
    with JobLock(yarn.directory.lock):
        yarn.said = [PeerUnavailableError("no ResourceManager can be reached")]
        assert main(["sweeps"]) == 0
        told = capsys.readouterr()
        assert "  YARN unreachable        followed" in told.out and "no ResourceManager can be reached" in told.err
        assert resume(tmp_path, killed) == 2
    assert f"resume is '{killed}', but another process on this machine follows that sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--resume", "nobody"], 4, "there is no sweep 'nobody' under "),
        (["--resume", ID, "sweep.toml"], 2, "SPEC.toml is only for new sweeps"),
        (["--resume", ID, "--web", "0"], 2, "web is not possible on YARN"),
        ([], 2, "SPEC.toml is missing: name the file of a sweep, or --resume SWEEP"),
    ],
)
def test_invalid_values_of_resume_are_refused(
    words: list[str], code: int, reason: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    assert main(["sweep", *words]) == code
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("away", [None, PeerUnavailableError("no ResourceManager can be reached")])
def test_an_interrupted_sweep_leaves_only_what_yarn_cannot_end(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, away: BaseException | None,
) -> None:  # fmt: skip
    for module in ("runners", "application.monitor"):
        monkeypatch.setattr(f"hscheduler.{module}.KILL_S", 0.0 if away else 20.0)
    yarn.killing = away
    yarn.said = ["ACCEPTED", KeyboardInterrupt(), *([away] if away else ["ACCEPTED", "KILLED"])]
    assert sweep(tmp_path) == 130
    assert yarn.killed == [ID]
    assert (staged(hdfs) == []) == (away is None)
    end = yarn.directory.record().end
    assert (None if end is None else end.state) == (None if away else "killed")
    told = capsys.readouterr().err
    assert "interrupted: 2 trials had finished, the others were ended; best so far: trial-2" in told
    assert json.loads((tmp_path / "report.json").read_text()) == REPORT, "its results, without its service"
    if away is None:
        assert (jobs_dir() / "sweep-2" / "model.npz").read_text() == "the model"
    else:
        assert f"{ID} did not end within 0 s" in told and "its results stay at webhdfs://" in told
    said = caplog.messages[0] if away else ""
    assert said.startswith(f"{ID} may still run: it could not be killed: " if away else "")
    assert away or not caplog.messages, "its end is reported once"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_of_a_client_acts_as_an_interrupt(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, number: signal.Signals
) -> None:
    told: list[int] = []
    before = signal.signal(number, lambda number, frame: told.append(number))
    try:
        # A shell repeats it.
        yarn.said = ["ACCEPTED", number, number, "KILLED"]
        assert sweep(tmp_path) == 130
        signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert yarn.killed == [ID] and staged(hdfs) == [] and told == [number], "unchanged afterwards"
    assert (jobs_dir() / "sweep-2" / "model.npz").read_text() == "the model"


def test_a_broken_pipe_of_a_client_acts_as_an_interrupt(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    yarn.said = ["KILLED"]
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert sweep(tmp_path) == 130
        print("no reader", flush=True)
    assert yarn.killed == [ID] and staged(hdfs) == []
    assert (jobs_dir() / "sweep-2" / "model.npz").read_text() == "the model"


def test_results_of_an_interrupted_sweep_that_cannot_be_read_are_kept(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(following: Monitor) -> None:
        raise StorageError("report.json: no datanode answers")

    monkeypatch.setattr(Monitor, "stored_reports", fail)
    yarn.said = ["ACCEPTED", KeyboardInterrupt(), "KILLED"]
    assert sweep(tmp_path) == 130
    assert yarn.killed == [ID] and any(path.endswith("/model.npz") for path in staged(hdfs))
    assert "report.json: no datanode answers" in capsys.readouterr().err


@pytest.mark.parametrize("lost", [DeadlineError("no answer"), KeyboardInterrupt()])
@pytest.mark.parametrize("away", [None, PeerUnavailableError("no ResourceManager can be reached")])
def test_a_sweep_whose_submission_was_not_answered_is_ended_and_its_id_is_printed(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    lost: BaseException, away: BaseException | None,
) -> None:  # fmt: skip
    yarn.submitting, yarn.killing = lost, away
    assert sweep(tmp_path) == (130 if isinstance(lost, KeyboardInterrupt) else 4)
    assert yarn.noted is not None and yarn.noted.application_id == ID, "before its submission to YARN"
    assert yarn.killed == [ID] and staged(hdfs) == []
    assert Application.read(yarn.directory) == yarn.noted
    (said,) = caplog.messages
    assert said.startswith(f"{ID} may run" if away else f"{ID} does not run: its submission was cut short")


@pytest.mark.parametrize("where", ["placed", "submit_sweep", "submit"])
def test_interrupting_a_submission_reports_the_state_of_the_sweep(
    yarn: RunningSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    if where == "submit":
        yarn.submitting = KeyboardInterrupt()
    else:
        monkeypatch.setattr(f"hscheduler.runners.{where}", interrupted)
    assert sweep(tmp_path) == 130
    told = "the sweep: interrupted; nothing was submitted"
    if where == "submit":
        name = yarn.directory.name
        told = f"{name}: interrupted while {ID} was submitted: if it runs, end it with yarn application -kill {ID}"
    assert capsys.readouterr().err == f"hscheduler: {told}\n"


def test_a_sweep_that_yarn_refused_leaves_nothing(
    yarn: RunningSweep, hdfs: FakeHdfs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yarn.refuses("no such queue")
    assert sweep(tmp_path) == 2
    assert "no such queue" in capsys.readouterr().err
    assert staged(hdfs) == [] and not list((tmp_path / "home" / "sweeps").iterdir())


def test_a_sweep_that_cannot_be_followed_is_ended(
    yarn: RunningSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(location: str, conf: HadoopConf) -> None:
        raise ConfigError("no extra for HDFS")

    monkeypatch.setattr("hscheduler.runners.open_storage", refuse)
    assert sweep(tmp_path) == 2
    assert yarn.killed == [ID]


def test_results_that_were_not_fetched_are_told_where_to_come_from(
    killed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["results", killed]) == 2
    told = f"the results of {killed} are not here yet: hscheduler sweep --resume {killed} fetches them"
    assert told in capsys.readouterr().err


def test_a_service_refuses_the_folder_of_a_sweep(
    yarn: RunningSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(tmp_path) == 0
    (known,) = submitted_sweeps()
    capsys.readouterr()
    assert main(["serve", "--on", "yarn", "--state", str(known.path)]) == 2
    assert f"hscheduler sweep --resume {known.sweep_id} follows it" in capsys.readouterr().err
    assert main(["jobs", "--state", str(known.path)]) == 4
    told = capsys.readouterr().err
    assert f"has ended: hscheduler sweep --resume {known.sweep_id} shows its results" in told
