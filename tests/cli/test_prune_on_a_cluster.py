"""``eps prune``: what jobs and sweeps that have ended have on a cluster goes with them, and nothing else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.cli import main
from eps.cluster.yarn.application import ENDED_FILE, Application
from eps.errors import JobExistsError
from eps.job.yarn.sweeps import list_sweeps, report_file, sweeps_dir
from eps.storage.claims import Claim, owner_of
from eps.storage.jobdir import JobDir, JobLock, create_job_dir, list_jobs, remove_job
from tests.fakes.records import note_end, note_no_end, note_settings
from tests.fakes.resourcemanager import FakeResourceManager, resourcemanager
from tests.fakes.webhdfs import FakeHdfs

pytest.importorskip("hdfs")
pytest.importorskip("requests")


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHdfs]:
    # eps prune works without HADOOP_CONF_DIR.
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "20")
    with FakeHdfs() as found:
        yield found


@pytest.fixture
def rm(tmp_path: Path) -> Iterator[FakeResourceManager]:
    with resourcemanager() as found:
        address = found.conf.get("yarn.resourcemanager.webapp.address")
        (tmp_path / "yarn-site.xml").write_text(
            "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
            f"<value>{address}</value></property></configuration>"
        )
        yield found


def aged(job: JobDir) -> None:
    """Make a directory look unchanged for an hour."""
    at_s = time.time() - 3600.0
    os.utime(job.path, (at_s, at_s))


# ---- jobs


@pytest.fixture
def jobs(home: Path, hdfs: FakeHdfs, tmp_path: Path) -> list[str]:
    """Jobs with checkpoints on the cluster: one that could be resumed and three that have finished.

    Of these one has checkpoints in a folder that the user named, and the folder of another is another job's by now.
    """
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    for name, state in (("stopped", "killed"), ("done", "finished"), ("mine", "finished"), ("taken", "finished")):
        job, lock = create_job_dir(name)
        place = f"webhdfs://{hdfs.authority}/eps/checkpoints"
        note_settings(job, iterations=9, checkpoint_dir=place)
        Application("application_1_0001", "", str(tmp_path)).write(job)
        note_end(job, state, "")
        if name != "mine":
            Claim(f"{place}/{name}", owner_of(job), str(tmp_path)).write(job)
        owner = "another:/home/ada/.eps/jobs/taken" if name == "taken" else owner_of(job)
        hdfs.put(f"/eps/checkpoints/{name}/owner.txt", f"{owner}\n".encode())
        hdfs.put(f"/eps/checkpoints/{name}/0001-00000010/manifest.json", b"{}")
        lock.close()
        aged(job)
    return ["done", "mine", "stopped", "taken"]


def checkpoints(hdfs: FakeHdfs) -> list[str]:
    paths = [path.removeprefix("/eps/checkpoints/") for path in hdfs.nodes if path.startswith("/eps/checkpoints/")]
    return sorted({path.split("/")[0] for path in paths if path.endswith("/manifest.json")})


def test_checkpoints_go_with_jobs_that_nobody_is_to_go_on_with(
    jobs: list[str], hdfs: FakeHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", "--all", "--resumable", "--dry-run"]) == 0
    assert checkpoints(hdfs) == jobs and [job.name for job in list_jobs()] == jobs
    capsys.readouterr()
    assert main(["prune", "--all"]) == 0
    told = capsys.readouterr()
    assert told.err.count("stopped is kept: stopped before the end and can be resumed (to remove: --resumable)") == 1
    assert told.out.splitlines()[-1].startswith("3 jobs removed, ")
    assert checkpoints(hdfs) == ["mine", "stopped", "taken"] and [job.name for job in list_jobs()] == ["stopped"]
    assert main(["prune", "--all", "--resumable"]) == 0
    assert checkpoints(hdfs) == ["mine", "taken"] and list_jobs() == []


def test_a_job_whose_checkpoints_cannot_be_removed_is_kept_for_the_next_time(
    jobs: list[str], hdfs: FakeHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    hdfs.fault("DELETE", "error", name="AccessControlException", message="Permission denied: user=eva")
    assert main(["prune", "done"]) == 1
    assert "done is kept: " in (told := capsys.readouterr().err) and "Permission denied" in told
    assert checkpoints(hdfs) == jobs
    (job,) = (job for job in list_jobs() if job.name == "done")
    aged(job)
    assert main(["prune", "done"]) == 0 and "done" not in checkpoints(hdfs)


def test_a_cluster_that_cannot_be_reached_has_the_exit_code_that_it_has_of_every_command(
    jobs: list[str], hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eps.storage.claims.REMOVE_S", 0.0)
    away = {"name": "StandbyException", "message": "Operation category WRITE is not supported in state standby"}
    hdfs.fault("DELETE", "error", **away, left=-1)
    assert main(["prune", "--all", "--resumable"]) == 4
    assert capsys.readouterr().err.count("retried for 0 s") == 2
    hdfs.faults.clear()
    # If one fails for another reason, a retry would not help.
    hdfs.fault("DELETE", "error", name="AccessControlException", message="Permission denied: user=eva")
    hdfs.fault("DELETE", "error", **away, left=-1)
    for job in list_jobs():
        aged(job)
    assert main(["prune", "--all", "--resumable"]) == 1
    assert {"done", "stopped"} < set(checkpoints(hdfs))


def test_nobody_starts_a_job_again_whose_checkpoints_have_just_gone(
    jobs: list[str], hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def late(job: JobDir, lock: JobLock | None = None) -> None:
        assert "stopped" not in checkpoints(hdfs)
        with pytest.raises(JobExistsError, match="is running"):
            JobLock(job.lock)
        tried.append(job.name)
        remove_job(job, lock)

    monkeypatch.setattr("eps.cli.commands.prune.remove_job", late)
    assert main(["prune", "stopped", "--resumable"]) == 0
    assert tried == ["stopped"] and "stopped" not in [job.name for job in list_jobs()]


def test_a_job_that_yarn_had_forgotten_is_asked_for_again_before_it_is_removed(
    jobs: list[str], hdfs: FakeHdfs, rm: FakeResourceManager, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its application may run and would lose its checkpoints."""
    (job,) = (job for job in list_jobs() if job.name == "stopped")
    note_end(job, "failed", "forgotten", is_lost=True)
    aged(job)
    why = "stopped before the end and can be resumed"
    assert main(["prune", "stopped"]) == 0
    assert capsys.readouterr().err == f"stopped is kept: {why} (to remove: --resumable)\n" and not rm.asked
    away = {"RemoteException": {"message": "it is not well"}}
    for answer in ((500, away), (200, {"app": {"id": "application_1_0001", "state": "RUNNING"}})):
        rm.answers["GET apps/application_1_0001"] = answer
        assert main(["prune", "stopped", "--resumable"]) == (4 if answer[0] == 500 else 0)
        assert checkpoints(hdfs) == jobs
        told = "it is not well" if answer[0] == 500 else "stopped is kept: running\n"
        assert told in capsys.readouterr().err
    assert job.ended() is None, "the next command about it finds that it runs"
    note_end(job, "failed", "forgotten", is_lost=True)
    aged(job)
    del rm.answers["GET apps/application_1_0001"]
    assert main(["prune", "stopped", "--resumable"]) == 0
    assert "stopped" not in checkpoints(hdfs) and not job.path.exists()


@pytest.mark.parametrize("option", [["--state", "unreadable"], ["--resumable"]])
def test_a_job_that_does_not_tell_what_it_has_on_the_cluster_is_removed_where_such_ones_are_meant(
    jobs: list[str], hdfs: FakeHdfs, option: list[str],
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (job,) = (job for job in list_jobs() if job.name == "done")
    job.job_json.write_text("{")
    aged(job)
    assert main(["prune", "done"]) == 0
    told = capsys.readouterr().err
    what = f"a damaged record does not say whether it runs or has files on a cluster: {job.job_json}: is not JSON"
    assert told.startswith(f"done is kept: {what}")
    assert told.endswith("(to remove: --state unreadable)\n") and checkpoints(hdfs) == jobs
    assert main(["prune", "done", *option]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].split()[:2] == ["done", "unreadable"] and rows[-1].startswith("1 job removed, ")
    assert f"{job.job_json}: is not JSON" in caplog.text and "stay there" in caplog.text
    assert checkpoints(hdfs) == jobs
    assert [each.name for each in list_jobs()] == ["mine", "stopped", "taken"]


def test_a_job_that_may_run_on_the_cluster_is_kept(
    jobs: list[str], hdfs: FakeHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = (job for job in list_jobs() if job.name == "done")
    note_no_end(job)
    aged(job)
    assert main(["prune", "done", "--resumable"]) == 0 and checkpoints(hdfs) == jobs
    assert capsys.readouterr().err.startswith("done is kept: running")


# ---- sweeps on YARN

#: Files of a sweep on the cluster.
REPORT_FILE = report_file("sweep")


class Sweeps:
    """Makes what ``hscheduler sweep --on yarn`` leaves on this machine and on the cluster."""

    def __init__(self, hdfs: FakeHdfs, rm: FakeResourceManager, conf_dir: Path) -> None:
        self._hdfs, self._rm, self._conf_dir = hdfs, rm, conf_dir

    def make(self, name: str, *left: str, said: str = "", shared: bool = True, submitted: bool = True) -> JobDir:
        """Make a sweep; ``said`` is YARN's word on its application, and ``left`` what is in its shared folder."""
        sweep = JobDir(sweeps_dir() / name)
        sweep.path.mkdir(parents=True)
        sweep.make_token()
        place = f"webhdfs://{self._hdfs.authority}/eps/sweeps/{name}" if shared else ""
        if submitted:
            Application(f"application_1_{name}", place, str(self._conf_dir)).write(sweep)
        for file in left:
            word = {"state": "finished", "exit_code": 0, "reason": ""}
            content = json.dumps(word if file == ENDED_FILE else {}).encode()
            self._hdfs.put(f"/eps/sweeps/{name}/{file}", content)
        if said:
            final = {"FINISHED": "SUCCEEDED", "KILLED": "KILLED"}.get(said, "UNDEFINED")
            app = {"id": f"application_1_{name}", "state": said, "finalStatus": final}
            self._rm.answers[f"GET apps/application_1_{name}"] = (200, {"app": app})
        aged(sweep)
        return sweep

    def on_cluster(self) -> list[str]:
        """Return the sweeps that have files on the cluster."""
        return sorted({path.split("/")[3] for path in self._hdfs.nodes if path.startswith("/eps/sweeps/")})


@pytest.fixture
def sweeps(home: Path, hdfs: FakeHdfs, rm: FakeResourceManager, tmp_path: Path) -> Sweeps:
    return Sweeps(hdfs, rm, tmp_path)


def there() -> list[str]:
    return [sweep.name for sweep in list_sweeps()]


def pruned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[list[str]], str, str]:
    """Prune; return rows of name and state, the last line, and what was written to standard error."""
    assert main(["prune", *words]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    return [line.split()[:2] for line in lines[1:-1]], lines[-1], told.err


def test_sweeps_that_have_ended_and_were_fetched_or_have_left_nothing_are_removed(
    sweeps: Sweeps, capsys: pytest.CaptureFixture[str]
) -> None:
    # Its client has seen its end, and what it had on the cluster is gone, or could not be removed then.
    for name, shared in (("a1", False), ("a2", True)):
        fetched = sweeps.make(name, REPORT_FILE, shared=shared)
        note_end(fetched, "finished", "all")
        aged(fetched)
    # Of a client that was killed: before YARN had it, and while it ran, no trial having ended.
    sweeps.make("a3", submitted=False)
    sweeps.make("a4", "eps-sweep.zip", said="KILLED")
    # YARN has forgotten it: by its own word it is over, or nothing is left on the cluster.
    sweeps.make("a5", "eps-sweep.zip", ENDED_FILE)
    sweeps.make("a6")
    expected = [["sweeps/a1", "finished"], ["sweeps/a2", "finished"], ["sweeps/a3", "killed"], ["sweeps/a4", "killed"]]
    expected += [["sweeps/a5", "finished"], ["sweeps/a6", "failed"]]
    before = sweeps.on_cluster()
    rows, last, _ = pruned(capsys, "--all", "--dry-run")
    assert rows == expected and last.startswith("0 jobs and 6 sweeps would be removed, ") and last.endswith("; 0 kept")
    assert there() == ["a1", "a2", "a3", "a4", "a5", "a6"] and sweeps.on_cluster() == before
    rows, last, _ = pruned(capsys, "sweeps/a1")
    assert rows == expected[:1] and last.startswith("0 jobs and 1 sweep removed, ")
    rows, _, _ = pruned(capsys, "--all", "--state", "killed")
    assert rows == expected[2:4]
    rows, _, _ = pruned(capsys, "--all")
    assert rows == [expected[1], *expected[4:]]
    assert there() == [] and [name for name in sweeps.on_cluster() if name != "a1"] == []


def test_a_prefix_means_sweeps_only_where_no_job_can_be_meant(
    sweeps: Sweeps, capsys: pytest.CaptureFixture[str]
) -> None:
    sweeps.make("d1", submitted=False)
    for prefix in ("s", "sweep", "sweeps"):
        assert pruned(capsys, prefix)[1] == f"no job's name begins with {prefix!r}" and there() == ["d1"]
    assert pruned(capsys, "sweeps/")[0] == [["sweeps/d1", "killed"]] and there() == []


def test_what_runs_or_may_run_or_was_not_fetched_stays(
    sweeps: Sweeps, rm: FakeResourceManager, capsys: pytest.CaptureFixture[str]
) -> None:
    followed = sweeps.make("b1", "eps-sweep.zip", said="RUNNING")
    sweeps.make("b2", "eps-sweep.zip", REPORT_FILE, said="RUNNING")
    sweeps.make("b3", REPORT_FILE, ENDED_FILE, said="FINISHED")
    sweeps.make("b4", REPORT_FILE)
    fresh = sweeps.make("b5", submitted=False)
    os.utime(fresh.path)
    with JobLock(followed.lock):
        aged(followed)
        rows, last, told = pruned(capsys, "sweeps/")
        asked = [path for _, path, _, _ in rm.asked]
        assert rows == [] and last.endswith("; 5 kept") and "apps/application_1_b1" not in asked
        assert "sweeps/b1 and 1 other are kept: running\n" in told
        assert "sweeps/b5 is kept: ended less than 1m ago" in told
        where = "sweeps/b3 is kept: its results in webhdfs://"
        assert where in told and "/eps/sweeps/b3 were not downloaded: hscheduler sweep --resume b3 downloads" in told
        forgotten = "sweeps/b4 is kept: YARN no longer knows its application: hscheduler sweep --resume b4 continues it"
        assert f"{forgotten} (to remove: " in told
        assert told.count("(to remove: --resumable)") == 2
        everybody = ["b1", "b2", "b3", "b4", "b5"]
        assert there() == everybody and sweeps.on_cluster() == everybody[:-1]
        _, _, told = pruned(capsys, "--all", "--state", "running", "--resumable")
        assert told == "sweeps/b1 and 1 other are kept: running\n"
        rows, _, _ = pruned(capsys, "--all", "--resumable")
    assert rows == [["sweeps/b3", "finished"], ["sweeps/b4", "failed"]]
    assert there() == ["b1", "b2", "b5"] and sweeps.on_cluster() == ["b1", "b2"]


@pytest.mark.parametrize("away", ["yarn", "hdfs", "configuration"])
def test_a_sweep_of_which_nobody_knows_how_it_is_stays_and_is_an_error(
    sweeps: Sweeps, hdfs: FakeHdfs, rm: FakeResourceManager, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    away: str,
) -> None:  # fmt: skip
    sweeps.make("c1", REPORT_FILE, said="FINISHED")
    words: dict[str, Any] = {"name": "AccessControlException", "message": "Permission denied: user=eva"}
    if away == "yarn":
        rm.answers["GET apps/application_1_c1"] = (500, {"RemoteException": {"message": "it is not well"}})
    elif away == "hdfs":
        hdfs.fault("LISTSTATUS", "error", **words)
    else:
        (tmp_path / "yarn-site.xml").unlink()
    assert main(["prune", "--all", "--resumable"]) == (4 if away == "yarn" else 1)
    why = {"yarn": "it is not well", "hdfs": "Permission denied", "configuration": "has no Hadoop configuration"}
    assert "sweeps/c1 is kept: " in (told := capsys.readouterr().err) and why[away] in told
    assert there() == ["c1"] and sweeps.on_cluster() == ["c1"]


@pytest.mark.parametrize("option", [["--state", "unreadable"], ["--resumable"]])
def test_a_sweep_that_does_not_tell_what_it_has_on_the_cluster_is_removed_where_such_ones_are_meant(
    sweeps: Sweeps, option: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    sweep = sweeps.make("e1", REPORT_FILE)
    sweep.job_json.write_text("{")
    aged(sweep)
    rows, _, told = pruned(capsys, "--all")
    what = f"a damaged record does not say whether it runs or has files on a cluster: {sweep.job_json}: is not JSON"
    assert rows == [] and told.startswith(f"sweeps/e1 is kept: {what}") and there() == ["e1"]
    rows, _, _ = pruned(capsys, "--all", *option)
    assert rows == [["sweeps/e1", "unreadable"]] and there() == [] and sweeps.on_cluster() == ["e1"]
    assert f"{sweep.job_json}: is not JSON" in caplog.text


@pytest.mark.parametrize("command", [["resume"], ["logs"]])
def test_a_job_that_does_not_tell_what_it_has_on_the_cluster_is_told_of_with_what_can_be_done(
    jobs: list[str], capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (job,) = (job for job in list_jobs() if job.name == "stopped")
    note_settings(job, iterations=9, on="yarn")
    job.job_json.write_text("{")
    assert main([*command, "stopped"]) == 1
    told = capsys.readouterr().err
    assert f"{job.job_json}: is not JSON" in told and "eps prune stopped --state unreadable" in told
    assert main(["list", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {name: each["state"] for name, each in found.items()} == {
        "done": "finished", "mine": "finished", "stopped": "unreadable", "taken": "finished",
    }  # fmt: skip
    assert "job.json: is not JSON" in found["stopped"]["reason"]
    assert main(["list", "--state", "unreadable", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["stopped"]
