"""A job on YARN from outside: how it is, how it ended, what it has left, and what is found of it by its name."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.cli import main
from eps.cluster.yarn.application import JOB_ARCHIVE, Application
from eps.cluster.yarn.shipping import pack_job
from eps.errors import (
    ConfigError,
    DeadlineError,
    JobExistsError,
    PlanError,
)
from eps.job.client import Job
from eps.job.launch import prepare_job
from eps.job.status import UNREACHABLE
from eps.job.yarn import remote
from eps.job.yarn.remote import YarnJob, settle
from eps.spec.file import RunRequest
from eps.storage.claims import Claim, owner_of
from eps.storage.jobdir import JobDir, JobLock
from eps.storage.record import Phase
from eps.system.waits import wait_for
from tests.cli.conftest import change_of, status_of
from tests.cluster.submission_world import ROWS
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.resourcemanager import FakeResourceManager, resourcemanager
from tests.fakes.webhdfs import FakeHdfs

pytest.importorskip("hdfs")
pytest.importorskip("requests")

ID = "application_1700000000000_0007"
FOLDER = f"/user/ada/.eps/jobs/a9a-{ID}"
REPORT = {"state": "finished", "reason": "", "clock": 3, "metrics": {"train_loss": 0.25}, "history": [], "changes": []}


class World:
    """A ResourceManager, an HDFS, and a job that was submitted there."""

    def __init__(self, rm: FakeResourceManager, hdfs: FakeHdfs, job: JobDir) -> None:
        self.rm, self.hdfs, self.job = rm, hdfs, job
        self.says("ACCEPTED")

    def says(self, state: str, final: str = "UNDEFINED", **more: Any) -> None:
        """Have YARN say so of the application; an empty state: it does not know it."""
        app = {"id": ID, "name": "a9a", "user": "ada", "state": state, "finalStatus": final, **more}
        self.rm.answers[f"GET apps/{ID}"] = (200, {"app": app}) if state else (404, {})
        self.rm.answers["GET apps"] = (200, {"apps": {"app": [app]} if state else None})

    def left(self, state: str = "finished", *, model: bytes | None = b"npz", word: bool = True) -> None:
        """Have the job's master leave its results, as when it ends; without its word it has been cut short."""
        self.hdfs.put(f"{FOLDER}/results/report.json", json.dumps({**REPORT, "state": state}).encode())
        self.hdfs.put(f"{FOLDER}/results/master.log", b"M begins\nM ends\n")
        if model is not None:
            self.hdfs.put(f"{FOLDER}/results/model.npz", model)
        if word:
            ended = {"state": state, "reason": "", "exit_code": int(state != "finished")}
            self.hdfs.put(f"{FOLDER}/results/ended.json", json.dumps(ended).encode())

    def kills(self) -> list[Any]:
        return [body for method, path, _, body in self.rm.asked if (method, path) == ("PUT", f"apps/{ID}/state")]


@pytest.fixture
def world(hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(remote, "ASK_S", 0.01)
    monkeypatch.setattr(remote, "ASK_SELDOM_S", 0.02)
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    (tmp_path / "rows.libsvm").write_text(ROWS)
    with resourcemanager() as rm:
        conf = tmp_path / "conf"
        conf.mkdir()
        monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
        values = {
            "yarn-site.xml": {"yarn.resourcemanager.webapp.address": rm.url.removeprefix("http://")},
            "core-site.xml": {"fs.defaultFS": "hdfs://lake"},
            "hdfs-site.xml": {"dfs.namenode.http-address": hdfs.authority},
        }
        for name, settings in values.items():
            inner = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
            (conf / name).write_text(f"<configuration>{inner}</configuration>")
        places = {"staging": "hdfs:///user/ada/.eps", "checkpoint_dir": "hdfs:///user/ada/.eps/checkpoints"}
        settings = {"data": str(tmp_path / "rows.libsvm"), "iterations": 8, "on": "yarn", "name": "a9a", **places}
        prepared = prepare_job(RunRequest.from_values(settings))
        job = prepared.directory
        hdfs.put(f"{FOLDER}/{JOB_ARCHIVE}", pack_job(job).content)
        Claim("hdfs://lake/user/ada/.eps/checkpoints/a9a", owner_of(job), str(conf)).write(job)
        Application(ID, f"hdfs://lake{FOLDER}", str(conf)).write(job)
        prepared.lock.close()
        yield World(rm, hdfs, job)


def test_a_job_that_waits_for_its_queue_says_so(world: World) -> None:
    world.says("ACCEPTED", diagnostics="[Thu Nov 26 10:00:00 +0000 2026] Queue's AM resource limit exceeded. Details :")
    with Job.find("a9a") as job:
        status = job.status()
        assert job.running and (status["state"], status["application_id"]) == ("starting", ID)
        assert status["reason"] == f"application {ID} is ACCEPTED: Queue's AM resource limit exceeded"


def test_a_job_master_that_is_started_again_is_waited_for_with_how_far_the_job_was(world: World) -> None:
    there = YarnJob(world.job)
    world.says("RUNNING", amRPCAddress="127.0.0.1:1", progress=50.0)
    address = there.address()
    assert address is not None and (address.host, address.port) == ("127.0.0.1", 1) and there.waiting() is None
    world.says("ACCEPTED")
    while (status := there.waiting()) is None:
        time.sleep(0.01)
    assert status["reason"].startswith("it was at clock 4; its job master is being restarted") and status["clock"] == 4


def test_a_resourcemanager_that_is_away_is_told_and_a_master_that_listens_needs_none(world: World) -> None:
    there = YarnJob(world.job)
    with socket.create_server(("127.0.0.1", 0)) as master:
        world.says("RUNNING", amRPCAddress=f"127.0.0.1:{master.getsockname()[1]}")
        assert there.waiting() is None
        world.rm.standby = True
        time.sleep(0.05)
        assert there.waiting() is None and there.address() is not None and there.is_running()
    status = there.waiting()
    assert status is not None and status["state"] == UNREACHABLE and status["as_of_s"] > 0
    assert "has not answered since" in status["reason"] and f"application {ID} was RUNNING" in status["reason"]


def test_of_a_job_whose_cluster_is_away_it_is_told_who_was_asked_and_nothing_as_if_it_were_of_now(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.rm.standby = True
    assert main(["status", "a9a"]) == 4
    told = capsys.readouterr().out
    assert f"a9a: unreachable (the ResourceManager at {world.rm.url} has not answered (" in told
    assert "is a standby" in told and "clock" not in told and ID in told
    assert main(["list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].split()[0:2] == ["a9a", "unreachable"] and rows[1].split()[-5:] == ["-"] * 5
    assert rows[2].startswith("a9a: the ResourceManager at") and len(rows) == 3


def test_a_list_asks_a_cluster_once_for_all_its_jobs(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.says("ACCEPTED", diagnostics="waits for room")
    for name in ("a9a-2", "a9a-3"):
        shutil.copytree(world.job.path, world.job.path.with_name(name))
    assert main(["list"]) == 0
    assert capsys.readouterr().out.count("starting") == 3
    assert [(method, path) for method, path, _, _ in world.rm.asked] == [("GET", "apps")]


def test_the_end_is_noted_by_its_masters_word_when_it_is_first_seen(world: World) -> None:
    world.says("FINISHED", "SUCCEEDED")
    world.left()
    with Job.find("a9a") as job:
        assert not job.running and job.status()["state"] == "finished" and job.report()["clock"] == 3
        record = world.job.record()
        assert record.phase is Phase.ENDED and not record.yarn.is_fetched and not world.job.model.exists()
        asked = len(world.rm.asked)
        assert Job.find("a9a").status()["loss"] == 0.25 and len(world.rm.asked) == asked, "YARN is not asked again"
        assert world.job.log("master").read_text() == "M begins\nM ends\n"


def test_what_it_has_left_is_fetched_and_checkpoints_that_nobody_needs_go(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "a9a"]) == 3
    assert "job 'a9a' is still running: fetch its results when it has ended" in capsys.readouterr().err
    world.job.note(results={"report": str(tmp_path / "r.json"), "detached": True})
    world.says("FINISHED", "SUCCEEDED")
    world.left()
    with pytest.raises(JobExistsError, match="eps fetch a9a"):
        Job.start(data=str(tmp_path / "rows.libsvm"), name="a9a")
    for _ in range(2):
        assert main(["fetch", "a9a"]) == 0
        told = capsys.readouterr().out
        assert f"model: {world.job.model}" in told and f"report: {tmp_path / 'r.json'}" in told
        assert "checkpoints" not in told, "a finished job keeps none there"
    assert world.job.model.read_bytes() == b"npz" and (tmp_path / "r.json").exists()
    assert world.job.record().yarn.is_fetched and "/user/ada/.eps/checkpoints/a9a" not in world.hdfs.nodes
    assert f"{FOLDER}/results/ended.json" in world.hdfs.nodes, "for who looks for it from elsewhere"


def test_fetch_of_a_killed_job_names_only_what_there_is(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.job.note(results={"export": "/nowhere/m.npz", "detached": True})
    world.says("FINISHED", "KILLED")
    world.left("killed", model=None)
    assert main(["fetch", "a9a"]) == 0
    told = capsys.readouterr().out
    assert f"report: {world.job.report}" in told and "model: none" in told
    assert "/nowhere" not in told and "checkpoints" not in told


def test_a_job_that_is_waited_for_brings_its_results(world: World) -> None:
    with Job.find("a9a") as job:
        with pytest.raises(DeadlineError):
            job.wait(0.05)
        world.says("FINISHED", "SUCCEEDED")
        world.left()
        assert job.wait(20.0)["state"] == "finished" and world.job.model.exists()


def test_a_running_job_is_not_fetched(world: World) -> None:
    with Job.find("a9a") as job, pytest.raises(PlanError, match="'a9a' is still"):
        job.fetch()


@pytest.mark.parametrize(
    ("state", "final", "expected"),
    [("KILLED", "KILLED", "killed"), ("FAILED", "FAILED", "failed"), ("FINISHED", "SUCCEEDED", "failed")],
)
def test_where_its_master_left_no_word_yarns_counts(world: World, state: str, final: str, expected: str) -> None:
    world.says(state, final, diagnostics="eps: it ran out of luck")
    world.left(model=None, word=False)
    status = Job.find("a9a").status()
    assert status["state"] == expected
    if state == "FINISHED":
        assert "its model was not uploaded: recover it with eps resume a9a" in status["reason"]
    report = json.loads(world.job.report.read_text())
    assert (report["state"], report["reason"]) == (expected, status["reason"])


def test_of_a_job_whose_master_left_nothing_it_is_told_how_far_it_was_when_it_was_seen_last(world: World) -> None:
    world.says("RUNNING", amRPCAddress="127.0.0.1:1", progress=50.0)
    with Job.find("a9a") as job:
        assert job.running
        world.says("KILLED", "KILLED", diagnostics="killed by user ada")
        wait_for(lambda: not job.running, 20.0, "its end")
        status = job.status()
    assert (status["state"], status["clock"], status["workers"]) == ("killed", 4, 3) and status["as_of_s"] > 0


def test_of_a_job_that_yarn_ended_from_outside_it_is_known_what_its_master_left_while_it_ran(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    history, changes = [{"clock": 4, "loss": 0.5}], [change_of(1, "released")]
    status = {**status_of(clock=5, changes=changes), "name": "a9a", "as_of_s": 1_800_000_000.0, "history": history}
    world.hdfs.put(f"{FOLDER}/results/status.json", json.dumps(status).encode())
    world.says("KILLED", "KILLED", diagnostics="Application killed by user ada")
    assert main(["status", "a9a"]) == 0
    told = capsys.readouterr().out
    assert (
        "a9a: killed (Application killed by user ada)" in told and "clock 5 of 200" in told and "last known, at" in told
    )
    assert "add-workers" in told, "its changes"
    with Job.find("a9a") as job:
        assert job.history() == history and job.report()["history"] == history and job.report()["changes"] == changes
        job.fetch()
    page = world.hdfs.find(f"{FOLDER}/results/page.html").content
    assert page is not None and b'"name":"a9a","state":"killed"' in page and b"clock 5 of 200" in page


def test_while_its_folder_cannot_be_read_its_end_is_not_noted(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", 0.0)
    world.says("FINISHED", "SUCCEEDED")
    world.left()
    fault = {"name": "SafeModeException", "message": "Name node is in safe mode"}
    world.hdfs.fault("LISTSTATUS", "error", **fault, left=-1)
    assert main(["status", "a9a"]) == 4
    told = capsys.readouterr().err
    assert f"{ID} has ended (finished)" in told and "try again with eps fetch a9a" in told
    assert main(["list"]) == 0 and "unreachable" in capsys.readouterr().out
    assert world.job.record().phase is Phase.SUBMITTED
    world.hdfs.faults.clear()
    assert main(["status", "a9a"]) == 0


def test_a_finished_job_that_yarn_has_forgotten_is_known_by_its_folder(world: World) -> None:
    world.says("")
    world.left()
    assert Job.find("a9a").status()["state"] == "finished" and not world.job.record().end.is_lost  # type: ignore[union-attr]


def test_a_job_that_yarn_does_not_know_may_run_until_another_is_to_take_its_place(world: World) -> None:
    world.says("")
    status = Job.find("a9a").status()
    assert status["state"] == UNREACHABLE and world.job.record().phase is Phase.SUBMITTED
    settle(world.job)
    end = world.job.record().end
    assert end is not None and end.state == "failed" and end.is_lost
    # The ResourceManager has found its state again.
    world.says("RUNNING")
    with pytest.raises(JobExistsError, match=f"is running \\({ID}\\)"):
        settle(world.job)
    assert world.job.record().end is None


def test_a_job_that_runs_is_neither_resumed_nor_replaced_nor_pruned(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", "a9a"]) == 2
    assert "job 'a9a' is running" in capsys.readouterr().err
    with pytest.raises(JobExistsError, match="is running"):
        Job.start(data=str(tmp_path / "rows.libsvm"), name="a9a")
    at_s = time.time() - 3600.0
    os.utime(world.job.path, (at_s, at_s))
    assert main(["prune", "a9a", "--resumable"]) == 0
    assert "a9a is kept: running" in capsys.readouterr().err and world.job.path.exists()


def test_a_job_is_ended_by_yarn_and_its_reason_is_kept(world: World) -> None:
    world.rm.answers[f"PUT apps/{ID}/state"] = (202, {"state": "KILLED"})
    world.rm.told[f"PUT apps/{ID}/state"] = lambda: world.says("KILLED", "KILLED", diagnostics="killed by user ada")
    with Job.find("a9a") as job:
        job.kill("enough")
    assert world.kills() == [{"state": "KILLED", "diagnostics": "enough"}]
    end = world.job.record().end
    assert end is not None and (end.state, end.reason) == ("killed", "enough")
    assert main(["kill", "a9a"]) == 0 and len(world.kills()) == 1


def test_a_resourcemanager_that_is_away_cannot_be_told_to_end_it(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "SILENT_S", 0.05)
    world.rm.standby = True
    assert main(["kill", "a9a"]) == 4
    told = capsys.readouterr()
    assert "job 'a9a' has not ended" in told.err and "try again with eps kill a9a" in told.err
    assert f"waiting for the end of {ID}" in told.out


def test_an_application_that_does_not_end_is_told_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ENDED_S", 0.2)
    monkeypatch.setattr(remote, "KILL_AGAIN_S", 0.05)
    world.rm.answers[f"PUT apps/{ID}/state"] = (202, {"state": "KILLED"})
    with pytest.raises(DeadlineError, match="has not ended within"):
        YarnJob(world.job).kill("enough", 0.1)
    assert len(world.kills()) > 1


def test_a_job_that_its_client_has_started_ends_when_that_closes_it(world: World) -> None:
    world.rm.answers[f"PUT apps/{ID}/state"] = (202, {"state": "KILLED"})
    world.rm.told[f"PUT apps/{ID}/state"] = lambda: world.says("KILLED", "KILLED")
    Job(world.job).close()
    assert not world.kills(), "any other job goes on"
    with Job(world.job, is_tied=True):
        pass
    assert len(world.kills()) == 1 and world.job.record().end.reason == "its client has exited"  # type: ignore[union-attr]


def test_a_job_whose_directory_was_lost_is_found_on_the_cluster(world: World) -> None:
    token, before = world.job.read_token(), Application.read(world.job)
    shutil.rmtree(world.job.path)
    with Job.find("a9a") as job:
        assert job.status()["state"] == "starting"
    assert world.job.read_token() == token and world.job.token.stat().st_mode & 0o077 == 0
    found = Application.read(world.job)
    assert found is not None and before is not None
    assert (found.application_id, found.shared) == (before.application_id, before.shared)
    claim = Claim.read(world.job)
    assert claim is not None and claim.owner == owner_of(world.job)
    world.says("FINISHED", "SUCCEEDED")
    world.left()
    shutil.rmtree(world.job.path)
    assert main(["fetch", "a9a"]) == 0 and world.job.model.exists()


def test_of_several_runs_of_a_lost_job_the_latest_is_found(world: World) -> None:
    content = world.hdfs.find(f"{FOLDER}/{JOB_ARCHIVE}").content
    assert content is not None
    for name in ("a9a-application_1700000000000_0012", "a9a-application_1699999999999_0099", "a9a-b-application_9_9"):
        world.hdfs.put(f"/user/ada/.eps/jobs/{name}/{JOB_ARCHIVE}", content)
    shutil.rmtree(world.job.path)
    found = Application.read(Job.find("a9a").directory)
    assert found is not None and found.application_id == "application_1700000000000_0012"


def test_a_job_that_somebody_starts_at_this_moment_is_left_alone(world: World) -> None:
    world.says("FINISHED", "SUCCEEDED")
    world.left()
    with JobLock(world.job.lock):
        there = YarnJob(world.job)
        assert there.end() is None
        settle(world.job)
        assert world.job.record().end is None


def test_a_job_whose_cluster_is_not_named_any_more_is_told_so(world: World, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "conf")
    with pytest.raises(ConfigError, match="conf"):
        Job.find("a9a")
    assert main(["list"]) == 0
