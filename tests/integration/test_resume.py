"""Checkpoints of real jobs, and jobs that resume after all processes were killed."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cli import main
from eps.cli.exits import EXIT_BAD_INPUT, EXIT_OK, EXIT_REFUSED
from eps.cluster.supervisor.process import MASTER
from eps.errors import ConfigError, DataError, JobExistsError, JobFinishedError, StorageError
from eps.job.client import Job
from eps.spec.file import RunRequest
from eps.spec.results import kept_places
from eps.storage.atomic import read_json
from eps.system.waits import wait_for
from tests.fakes.slow_model import SlowModel
from tests.fakes.webhdfs import FakeHdfs
from tests.integration.conftest import RunUndisturbed, processes_with
from tests.integration.test_exactness import a9a, run
from tests.integration.test_operations import TIMEOUT_S, wait_for_clock

DNN = {
    "data": "sklearn:digits", "test": "0.2", "model": "dnn", "hidden": "32", "iterations": 300, "learning_rate": 0.01,
}  # fmt: skip


@pytest.fixture
def undisturbed(run_undisturbed: RunUndisturbed) -> dict[str, Any]:
    """Return the report of an uninterrupted job of :data:`DNN`; its size changes nothing (test_exactness)."""
    return run_undisturbed(workers=1, servers=1, **DNN)


def kill_everything(job: eps.Job, home: Path) -> None:
    """Kill the supervisor, and with it all processes, as a power failure does."""
    job.kill_at_once()
    job.close()
    wait_for(lambda: not processes_with(str(home)), TIMEOUT_S, "every process to end with its supervisor")


def checkpoints(job: eps.Job) -> list[str]:
    return sorted(path.name for path in job.directory.checkpoints.glob("*"))


def wait_for_checkpoints(job: eps.Job, count: int) -> None:
    wait_for(lambda: job.status()["checkpoints"]["complete"] >= count, TIMEOUT_S, f"{count} checkpoints")


def resume(name: str, **size: int) -> dict[str, Any]:
    """Resume a job to its end and return its report, whose ledger must have no lost or repeated update."""
    with eps.Job.resume(name, **size) as job:
        report = job.wait(TIMEOUT_S)
    ledger = report["ledger"]
    assert report["state"] == "finished", report["reason"]
    assert (ledger["lost"], ledger["applied_twice"], ledger["applied"]) == (0, 0, ledger["expected"])
    return report


def test_a_job_killed_twice_has_the_bits_and_the_history_of_an_uninterrupted_one(
    home: Path, undisturbed: dict[str, Any]
) -> None:
    settings = {**DNN, "checkpoint_every": "20", "keep": 3}
    at = ["30:add-workers=1", "50:add-servers=1", "290:remove-workers=1"]
    job = eps.Job.start(name="killed", workers=2, servers=2, at=at, **settings)
    wait_for_clock(job, 60)
    wait_for_checkpoints(job, 2)
    grown = lambda status: (status["workers"], status["servers"]) == (3, 3)  # noqa: E731
    wait_for(lambda: grown(job.status()), TIMEOUT_S, "both changes")
    kill_everything(job, home)
    first = eps.Job.resume("killed")
    wait_for_checkpoints(first, 1)
    status = first.status()
    assert (status["workers"], status["servers"]) == (3, 3), "the requested size"
    kill_everything(first, home)
    report = resume("killed", workers=4, servers=1)
    assert report["model_sha256"] == undisturbed["model_sha256"]
    assert [h["loss"] for h in report["history"]] == [h["loss"] for h in undisturbed["history"]]
    assert [h["accuracy"] for h in report["history"] if "accuracy" in h] == [
        h["accuracy"] for h in undisturbed["history"] if "accuracy" in h
    ]
    times = [h["seconds"] for h in report["history"]]
    assert times == sorted(times)
    assert [(c["operation"], c["phase"]) for c in report["changes"]] == [("remove-workers", "released")]
    assert report["membership"][0]["from_clock"] > 20 and len(report["membership"][0]["workers"]) == 4
    assert len(checkpoints(first)) <= 3 and not [name for name in checkpoints(first) if "partial" in name]
    assert report["checkpoints"]["epoch"] == 3
    log = job.directory.log(MASTER).read_text()
    assert log.count(": M started ") == 3 and ": M checkpoint " in log
    logs = {path.name for path in job.directory.logs.glob("container-*.log")}
    assert len(logs) == 2 + 2 + 2 + 6 + 5, "each run has log files of its own"


@pytest.mark.parametrize("optimizer", ["momentum", "ftrl"])
def test_a_sparse_job_resumes_with_the_same_bits(home: Path, shared_data: Path, optimizer: str) -> None:
    settings = {**a9a(shared_data), "optimizer": optimizer, "l1": 0.0001, "iterations": 120, "batch_size": "1000"}
    undisturbed = run("undisturbed", workers=2, servers=1, **settings)
    job = eps.Job.start(name="killed", workers=3, servers=2, checkpoint_every="10", **settings)
    wait_for_checkpoints(job, 1)
    kill_everything(job, home)
    assert resume("killed", workers=1, servers=3)["model_sha256"] == undisturbed["model_sha256"]


@pytest.mark.parametrize("consistency", ["ssp:3", "asp"])
def test_a_stale_job_resumes_and_loses_and_repeats_no_update(home: Path, shared_data: Path, consistency: str) -> None:
    settings = {**a9a(shared_data), "consistency": consistency, "optimizer": "sgd", "learning_rate": 0.5}
    job = eps.Job.start(name="stale", workers=3, servers=2, checkpoint_every="10", **{**settings, "iterations": 300})
    wait_for_checkpoints(job, 2)
    kill_everything(job, home)
    report = resume("stale", workers=2, servers=3)
    assert [h["clock"] for h in report["history"]] == list(range(301))
    assert report["metrics"]["test"]["accuracy"] >= 0.83


def test_a_job_without_a_checkpoint_restarts_from_its_seed(home: Path) -> None:
    settings = {**DNN, "iterations": 60}
    undisturbed = run("undisturbed", workers=2, servers=2, **settings)
    job = eps.Job.start(name="killed", workers=2, servers=2, **settings)
    wait_for_clock(job, 1)
    job.kill()
    job.close()
    report = resume("killed")
    assert report["model_sha256"] == undisturbed["model_sha256"] and report["checkpoints"]["complete"] == 0


def test_a_job_killed_during_a_checkpoint_resumes_from_the_previous_one(
    home: Path, undisturbed: dict[str, Any]
) -> None:
    """Each attempt kills at another moment of the write."""
    job = eps.Job.start(name="killed", workers=2, servers=2, checkpoint_every="5", **DNN)
    wait_for_checkpoints(job, 1)
    partial = 0
    for _ in range(3):
        directory = job.directory
        wait_for(
            lambda d=directory: bool(list(d.checkpoints.glob("*.partial/*.part"))) or not d.is_running(),
            TIMEOUT_S,
            "a checkpoint that is being written",
        )
        kill_everything(job, home)
        partial += any("partial" in name for name in checkpoints(job))
        job = eps.Job.resume("killed")
        assert not any(name.startswith("0001") and "partial" in name for name in checkpoints(job))
    assert partial, "no kill happened during a checkpoint"
    report = job.wait(TIMEOUT_S)
    job.close()
    assert report["state"] == "finished" and report["model_sha256"] == undisturbed["model_sha256"]


def test_damaged_checkpoints_are_named_and_not_used(
    home: Path, capfd: pytest.CaptureFixture[str], undisturbed: dict[str, Any]
) -> None:
    job = eps.Job.start(name="killed", workers=2, servers=2, checkpoint_every="10", **DNN)
    wait_for_checkpoints(job, 3)
    kill_everything(job, home)
    newest = job.directory.checkpoints / [name for name in checkpoints(job) if "partial" not in name][-1]
    part = newest / "003.server-1.part"
    part = part if part.exists() else newest / "003.server-2.part"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 4
    part.write_bytes(content)
    assert main(["resume", "killed", "--quiet"]) == EXIT_OK
    error = capfd.readouterr().err
    assert part.name in error and "damaged" in error
    report = eps.Job.find("killed").report()
    assert report["model_sha256"] == undisturbed["model_sha256"]


@pytest.mark.parametrize("fault", ["full", "no folder"])
def test_a_job_trains_on_if_checkpoints_cannot_be_written_and_reports_it(home: Path, fault: str) -> None:
    settings = {**DNN, "iterations": 5000, "van": "unix", "checkpoint_every": "10"}
    with eps.Job.start(name="full", workers=2, servers=2, **settings) as job:
        wait_for_checkpoints(job, 1)
        if fault == "full":
            for member in job.status()["members"]:
                if member["role"] == "server":
                    limits = resource.prlimit(member["pid"], resource.RLIMIT_FSIZE)
                    resource.prlimit(member["pid"], resource.RLIMIT_FSIZE, (100, limits[1]))
        else:
            # Root may write into a read-only folder, but not into a file.
            job.directory.checkpoints.rename(job.directory.path / "before")
            job.directory.checkpoints.write_text("in the way")
        wait_for(lambda: bool(job.status()["checkpoints"]["error"]), TIMEOUT_S, "the failure to be told")
        error = job.status()["checkpoints"]["error"]
        assert ("File too large" if fault == "full" else "cannot be created") in error and "checkpoints" in error
        wait_for_clock(job, job.status()["clock"] + 20)
        failed = job.status()["checkpoints"]["failed"]
        assert failed >= 1
        if fault == "no folder":
            job.directory.checkpoints.unlink()
            wait_for(lambda: not job.status()["checkpoints"]["error"], TIMEOUT_S, "a checkpoint that succeeds again")
        job.kill()
        report = job.wait(TIMEOUT_S)
    assert report["checkpoints"]["failed"] >= failed
    assert any(o["state"] == "failed" and o["reason"] for o in report["checkpoints"]["outcomes"])


def test_only_a_stopped_job_is_resumed(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run("finished", workers=1, servers=1, **{**DNN, "iterations": 2})
    with pytest.raises(JobFinishedError, match="has finished"):
        eps.Job.resume("finished")
    assert main(["resume", "finished"]) == EXIT_REFUSED
    with eps.Job.start(name="runs", workers=1, servers=1, **{**DNN, "iterations": 100000}) as job:
        wait_for_clock(job, 1)
        with pytest.raises(JobExistsError, match="is running"):
            eps.Job.resume("runs")
        job.kill()
    for size in ({"workers": 13}, {"servers": 13}):
        with pytest.raises(ConfigError, match="13"):
            eps.Job.resume("runs", **size)
    assert main(["resume", "runs", "--workers", "0"]) == EXIT_BAD_INPUT
    assert "at least 1" in capfd.readouterr().err
    assert not job.running


def test_a_resumed_job_can_be_detached(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = {**DNN, "name": "left", "workers": 1, "servers": 1, "checkpoint_every": "10", "iterations": 100000}
    job = Job.start_request(RunRequest.from_values({**settings, "report": str(home / "left.json")}))
    wait_for_checkpoints(job, 1)
    kill_everything(job, home)
    assert main(["resume", "left", "--detach"]) == EXIT_OK
    text = capfd.readouterr().out
    assert "resumes at clock" in text and "eps status left" in text
    assert f"left: its report goes to {home}/left.json" in text
    found = eps.Job.find("left")
    wait_for_checkpoints(found, 1)
    assert main(["status", "left"]) == EXIT_OK
    assert "checkpoints: " in capfd.readouterr().out
    assert main(["kill", "left"]) == EXIT_OK
    found.close()
    brought = read_json(home / "left.json")
    assert brought is not None and brought["state"] == "killed" and brought == read_json(job.directory.report)


def test_empty_files_after_a_power_failure_do_not_stop_a_job(home: Path, undisturbed: dict[str, Any]) -> None:
    job = eps.Job.start(name="empty", workers=1, servers=1, **DNN)
    wait_for_clock(job, 1)
    kill_everything(job, home)
    for path in (job.directory.status_json, job.directory.report):
        path.write_bytes(b"")
    assert main(["status", "empty"]) == EXIT_OK
    assert main(["resume", "empty"]) == EXIT_OK
    assert job.report()["model_sha256"] == undisturbed["model_sha256"]


def ended_by_itself(name: str) -> Job:
    """Return a detached job once it has ended."""
    job = Job.find(name)
    job.wait(TIMEOUT_S)
    job.close()
    return job


def test_a_detached_job_writes_its_results_here_and_to_hdfs_at_its_end(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No client waits for it; paths in a file are relative to its folder."""
    pytest.importorskip("hdfs")
    (tmp_path / "job.toml").write_text(
        'name = "alone"\ndata = "sklearn:iris"\nmodel = "softmax"\niterations = 20\nreport = "r.json"\n'
    )
    with FakeHdfs() as hdfs:
        hdfs.make_folders("/models", "755")
        place = f"webhdfs://{hdfs.authority}/models/m.npz"
        assert main(["run", "--detach", "--export", place, str(tmp_path / "job.toml")]) == EXIT_OK
        job = ended_by_itself("alone")
        assert hdfs.find("/models/m.npz").content == job.directory.model.read_bytes()
    report = read_json(tmp_path / "r.json")
    assert report is not None and report == job.report() and report["state"] == "finished"
    assert job.status()["reason"] == ""


def test_a_detached_job_whose_results_cannot_be_delivered_has_finished_and_says_where_they_are(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    words = ["--name", "alone", "--data", "sklearn:iris", "--model", "softmax", "--iterations", "20", "--detach"]
    missing = ["--report", str(tmp_path / "none" / "r.json")]
    assert main(["run", *words, *missing]) == EXIT_BAD_INPUT
    assert f"its folder {tmp_path}/none must exist" in capfd.readouterr().err and not (home / "jobs").exists()
    slow = SlowModel(tmp_path)
    words[words.index("softmax")] = slow.setting
    assert main(["run", *words, "--report", str(folder / "r.json"), "--export", str(tmp_path / "m.npz")]) == EXIT_OK
    folder.rename(tmp_path / "moved")
    slow.hurry()
    status = ended_by_itself("alone").status()
    assert status["state"] == "finished"
    own = home / "jobs" / "alone"
    assert f"{folder}/r.json: cannot be written" in status["reason"] and str(own / "report.json") in status["reason"]
    assert (own / "report.json").exists() and (own / "model.npz").exists()


def test_a_resumed_job_delivers_its_results_and_names_what_that_replaces(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    undisturbed: dict[str, Any],
) -> None:
    """Relative paths are relative to the folder of the first run."""
    asked, elsewhere = tmp_path / "asked", tmp_path / "elsewhere"
    asked.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(asked)
    settings = {**DNN, "name": "rx", "workers": 1, "servers": 1, "report": "rx.json", "export": "rx.npz"}
    with Job.start_request(RunRequest.from_values(settings)) as job:
        job.kill_at_once()
    monkeypatch.chdir(elsewhere)
    shutil.rmtree(asked)
    assert main(["resume", "rx"]) == EXIT_BAD_INPUT
    told = capfd.readouterr().err
    assert f"its folder {asked} must exist; job 'rx' was started with it: --export takes another place" in told
    asked.mkdir()
    (asked / "rx.npz").write_text("of somebody else")
    assert main(["resume", "rx", "--report", "new.json"]) == EXIT_OK
    out, err = capfd.readouterr()
    assert f"rx: its report goes to new.json\nrx: its model goes to {asked}/rx.npz\n" in out
    assert err == (
        f"eps: warning: {asked}/rx.npz is newer than job 'rx', and is replaced when that ends: "
        "--export takes another place\n"
    )
    report = read_json(elsewhere / "new.json")
    assert report is not None and report["model_sha256"] == undisturbed["model_sha256"]
    assert (asked / "rx.npz").read_bytes() == job.directory.model.read_bytes()
    assert kept_places(job.directory) == {"report": f"{elsewhere}/new.json", "export": f"{asked}/rx.npz"}


def test_server_that_joins_a_resumed_job_needs_no_checkpoint(home: Path, undisturbed: dict[str, Any]) -> None:
    job = eps.Job.start(name="joined", workers=2, servers=2, checkpoint_every="10", **DNN)
    wait_for_checkpoints(job, 1)
    kill_everything(job, home)
    with eps.Job.resume("joined", servers=1) as resumed:
        wait_for_clock(resumed, resumed.status()["clock"] + 1)
        for path in resumed.directory.checkpoints.glob("0001-*"):
            path.rename(resumed.directory.path / path.name)
        assert resumed.add_servers(1)["phase"] == "released"
        assert resumed.wait(TIMEOUT_S)["model_sha256"] == undisturbed["model_sha256"]


def test_checkpoints_continue_after_the_master_was_killed_and_a_resume_needs_no_state_of_it(
    home: Path, undisturbed: dict[str, Any]
) -> None:
    job = eps.Job.start(name="killed", workers=2, servers=2, checkpoint_every="10", **DNN)
    wait_for_checkpoints(job, 1)
    for _ in range(3):
        before = job.status()["checkpoints"]["complete"]
        os.kill(dict(read_json(job.directory.master_json) or {})["pid"], signal.SIGKILL)
        wait_for_checkpoints(job, before + 1)
    kill_everything(job, home)
    assert resume("killed", workers=1, servers=1)["model_sha256"] == undisturbed["model_sha256"]


def no_room_for_the_master(job: eps.Job) -> None:
    """Limit the size of the job master's files to a line of text, like a full disk."""
    found = read_json(job.directory.master_json)
    assert found is not None
    limits = resource.prlimit(found["pid"], resource.RLIMIT_FSIZE)
    resource.prlimit(found["pid"], resource.RLIMIT_FSIZE, (100, limits[1]))


@pytest.mark.parametrize("every", ["20", ""], ids=["with checkpoints", "without"])
def test_a_full_disk_at_the_end_is_reported_and_the_model_can_be_written_again(
    home: Path, every: str, undisturbed: dict[str, Any]
) -> None:
    with eps.Job.start(name="full", workers=1, servers=1, checkpoint_every=every, **DNN) as job:
        if every:
            wait_for_checkpoints(job, 1)
        wait_for_clock(job, 30)
        no_room_for_the_master(job)
        report = job.wait(TIMEOUT_S)
    assert report["state"] == "failed"
    assert f"the trained model could not be written: {job.directory.model}: " in report["reason"]
    kept = r"eps resume trains again from the checkpoint of clock \d+" if every else "there is no checkpoint, so"
    assert re.search(kept, report["reason"])
    assert f"the report cannot be written: {job.directory.report}: " in report["reason"]
    assert not job.directory.model.exists() and bool(checkpoints(job)) is bool(every)
    assert resume("full")["model_sha256"] == undisturbed["model_sha256"]


def test_report_that_cannot_be_written_hides_no_model(home: Path, tmp_path: Path) -> None:
    with eps.Job.start(name="full", workers=1, servers=1, **DNN) as job:
        # A file cannot replace a folder.
        job.directory.report.mkdir()
        with pytest.raises(StorageError):
            job.wait(TIMEOUT_S)
    ended = job.directory.ended()
    assert ended is not None and ended.state == "failed"
    assert f"the report cannot be written: {job.directory.report}: " in ended.reason
    assert ended.reason.endswith(f"the job is trained, and its model is {job.directory.model}")
    job.export(tmp_path / "model.npz")
    assert (tmp_path / "model.npz").read_bytes() == job.directory.model.read_bytes()


def digits_in_a_file(path: Path) -> None:
    """Write two hundred rows, the label first."""
    path.write_text("".join(f"{i % 2},{i % 7},{i % 5},{(i * i) % 11}\n" for i in range(200)))


def test_a_job_resumes_after_the_cache_was_emptied_and_the_token_lost(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    digits_in_a_file(data)
    settings = {"data": str(data), "label_column": "first", "model": "logistic", "iterations": 300}
    undisturbed = run("undisturbed", workers=1, servers=1, **settings)
    job = eps.Job.start(name="killed", workers=2, servers=1, checkpoint_every="10", **settings)
    wait_for_checkpoints(job, 1)
    kill_everything(job, home)
    shutil.rmtree(home / "cache")
    job.directory.token.unlink()
    told: list[str] = []
    with eps.Job.resume("killed", on_begin=lambda text, warnings: told.extend(warnings)) as again:
        report = again.wait(TIMEOUT_S)
    assert report["model_sha256"] == undisturbed["model_sha256"], report["reason"]
    assert len(told) == 2
    assert told[0].endswith(f"it was prepared again from {data}")
    assert "token: cannot be read" in told[1] and told[1].endswith("the job was given another token")
    assert job.directory.token.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("fault", ["gone", "arrays", "other"])
def test_a_job_whose_data_cannot_be_prepared_again_names_what_is_missing(
    home: Path, tmp_path: Path, fault: str
) -> None:
    folder = tmp_path / (".tmp-arrays-a" if fault == "arrays" else "files")
    folder.mkdir()
    data = folder / "rows.csv"
    digits_in_a_file(data)
    settings = {"data": str(data), "label_column": "first", "model": "logistic", "iterations": 100_000}
    job = eps.Job.start(name="killed", workers=1, servers=1, checkpoint_every="10", **settings)
    wait_for_checkpoints(job, 1)
    job.kill()
    job.close()
    shutil.rmtree(home / "cache")
    if fault != "other":
        data.unlink()
    else:
        data.write_text(data.read_text().replace("6", "5"))
    expected = {
        "gone": "cannot be prepared again: .*rows.csv",
        "arrays": "made of arrays, which EPS does not keep: run the job again with these arrays$",
        "other": "rows.csv has changed since",
    }
    left = checkpoints(job)
    with pytest.raises(DataError, match=expected[fault]):
        eps.Job.resume("killed")
    assert checkpoints(job) == left and job.directory.token.exists(), "nothing was touched"
