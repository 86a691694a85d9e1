"""``eps list`` and ``eps prune`` with many jobs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from eps.cli import main
from eps.cli.commands.prune import Keep, Wanted, kept_for
from eps.job.display import ago_text
from eps.storage.jobdir import JobDir, JobLock, create_job_dir, find_job, list_jobs
from eps.storage.record import Phase
from tests.cli.conftest import FakeJob
from tests.fakes.records import note_end, note_settings
from tests.fakes.webhdfs import FakeHdfs

HOUR_S = 3600.0


def made(name: str, state: str, hours_ago: float, application: dict[str, str] | None = None) -> JobDir:
    """Make the directory of a job that was started, and has ended, so long ago; without a state, one that was lost."""
    job, lock = create_job_dir(name)
    at_s = time.time() - hours_ago * HOUR_S
    note_settings(job, iterations=9)
    job.note(started_s=at_s, phase=Phase.RUNNING, yarn={"application": application})
    if state:
        note_end(job, state)
    lock.close()
    job.settle()
    os.utime(job.path, (at_s, at_s))
    return job


@pytest.fixture
def jobs(home: Path) -> list[str]:
    """Jobs of two sweeps and one other job, the newest first."""
    for name, state, hours_ago in (
        ("mine", "finished", 1.0),
        ("sweep-b-trial-2", "failed", 2.0),
        ("sweep-b-trial-10", "finished", 3.0),
        ("sweep-b-trial-1", "", 4.0),
        ("sweep-a-trial-1", "killed", 50.0),
    ):
        made(name, state, hours_ago)
    return ["mine", "sweep-b-trial-2", "sweep-b-trial-10", "sweep-b-trial-1", "sweep-a-trial-1"]


def listed(*words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["list", *words, "--json"]) == 0
    return [job["name"] for job in json.loads(capsys.readouterr().out)]


def there() -> set[str]:
    return {job.name for job in list_jobs()}


def test_jobs_are_listed_newest_first_and_can_be_chosen(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys=capsys) == jobs
    assert listed("sweep-b-", capsys=capsys) == jobs[1:4]
    assert listed("sweep-", "--state", "failed,finished", capsys=capsys) == jobs[1:3]
    assert listed("--state", "killed", capsys=capsys) == jobs[3:], "one whose supervisor left no word was killed, too"
    assert listed("--last", "2", "--state", "ended", capsys=capsys) == jobs[:2]
    with JobLock(find_job("sweep-a-trial-1").lock):
        assert listed("--state", "running", capsys=capsys) == ["sweep-a-trial-1"]
        assert listed("--state", "ended", capsys=capsys) == jobs[:4]
    assert main(["list", "sweep-b-", "--last", "1"]) == 0
    heading, row, more = capsys.readouterr().out.splitlines()
    assert "STARTED" in heading and row.split()[:5] == ["sweep-b-trial-2", "failed", "2", "h", "ago"]
    assert more == "and 2 older ones"
    assert main(["list", "--state", "gone"]) == 2
    assert "state is 'gone', but must be one of running, ended," in capsys.readouterr().err


def test_only_the_jobs_that_are_shown_are_looked_into(
    jobs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked: list[str] = []

    def ended_status(job: JobDir) -> dict[str, Any]:
        looked.append(job.name)
        return {"name": job.name, "state": "finished"}

    monkeypatch.setattr("eps.cli.commands.jobs.ended_status", ended_status)
    listed("--last", "1", "sweep-", capsys=capsys)
    assert looked == ["sweep-b-trial-2"], "the reports of hundreds take long to read"


def test_ended_jobs_are_removed_after_a_look(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (find_job("sweep-b-trial-2").logs / "master.log").write_text("x" * 5000)
    assert main(["prune", "sweep-b-", "--resumable", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == jobs[1:4]
    assert lines[1].split()[1] == "failed" and "kB" in lines[1]
    assert lines[-1].startswith("3 jobs would be removed, ") and lines[-1].endswith(" kB; 0 kept")
    assert there() == set(jobs)
    assert main(["prune", "sweep-b-", "--state", "finished"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 job removed")
    assert there() == set(jobs) - {"sweep-b-trial-10"}
    assert main(["prune", "--all", "--older-than", "2d", "--resumable"]) == 0
    assert there() == {"mine", "sweep-b-trial-2", "sweep-b-trial-1"}
    assert main(["prune", "nobody"]) == 0
    assert capsys.readouterr().out.endswith("no job's name begins with 'nobody'\n")


def test_what_is_needed_still_is_kept_and_told(
    jobs: list[str], fake: FakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    made("new", "finished", 0.0)
    assert main(["prune", "--all"]) == 0
    told = capsys.readouterr()
    assert "new is kept: ended less than 1m ago (--older-than)" in told.err
    assert (
        "sweep-b-trial-2 and 2 others are kept: stopped before the end and can be resumed (to remove: --resumable"
        in told.err
    )
    assert told.out.splitlines()[-1].endswith("; 4 kept")
    assert there() == {"fake", "new", "sweep-a-trial-1", "sweep-b-trial-1", "sweep-b-trial-2"}
    assert main(["prune", "--all", "--older-than", "0s", "--resumable", "--state", "ended,running"]) == 0
    assert capsys.readouterr().err == "fake is kept: running\n"
    assert there() == {"fake"}
    assert main(["prune", "fake"]) == 0
    assert capsys.readouterr() == ("0 jobs removed, 0 B; 1 kept\n", "fake is kept: running\n")
    assert fake.dir.path.exists()


def test_prepared_data_goes_with_the_last_job_that_uses_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = home / "cache"
    for name, hours_ago in (("a" * 64, 2.0), ("b" * 64, 2.0), ("c" * 64, 0.5), ("hadoop", 2.0)):
        (cache / name).mkdir(parents=True)
        (cache / name / "file").write_bytes(b"x" * 4000)
        at_s = time.time() - hours_ago * HOUR_S
        os.utime(cache / name, (at_s, at_s))
    left = lambda: [path.name[0] for path in sorted(cache.iterdir())]  # noqa: E731
    for name, state, used in (("stopped", "killed", "a"), ("one", "finished", "b"), ("two", "finished", "b")):
        made(name, state, 1.0).note(runtime={"spec": {}, "dataset_dir": str(cache / (used * 64))})
    assert main(["prune", "one", "--older-than", "0s"]) == 0
    assert left() == ["a", "b", "c", "h"], "two uses it"
    assert main(["prune", "--all", "--older-than", "0s", "--dry-run"]) == 0
    assert "1 job and 1 data set would be removed, " in capsys.readouterr().out
    assert left() == ["a", "b", "c", "h"]
    assert main(["prune", "--all", "--older-than", "0s"]) == 0
    assert "1 job and 1 data set removed, " in capsys.readouterr().out
    assert left() == ["a", "c", "h"]
    damaged = made("damaged", "finished", 1.0)
    damaged.job_json.write_text("{")
    assert main(["prune", "stopped", "--older-than", "0s", "--resumable"]) == 0
    assert left() == ["a", "c", "h"], "the damaged job may use it"
    assert main(["prune", "--all", "--older-than", "0s", "--resumable"]) == 0
    assert left() == ["c", "h"]


def test_names_and_all_are_not_for_the_same_command(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "sweep-b-", "--all", "--older-than", "0s"]) == 2
    told = "eps: --all and the prefix 'sweep-b-' exclude each other: give one of them\n"
    assert capsys.readouterr().err == told and there() == set(jobs)


def test_a_reason_is_told_once_and_a_directory_that_cannot_be_removed_is_a_failure(
    jobs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", "--all", "--older-than", "9d"]) == 0
    assert capsys.readouterr().err == "mine and 4 others are kept: ended less than 9d ago (--older-than)\n"

    def busy(path: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(shutil, "rmtree", busy)
    assert main(["prune", "mine"]) == 1
    told = capsys.readouterr()
    assert "mine is kept: " in told.err and "busy" in told.err and told.out == "0 jobs removed, 0 B; 1 kept\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "prune needs a prefix of the jobs' names, or --all"),
        (["a", "--older-than", "soon"], "older-than is 'soon', but must be a whole number and s, m, h or d"),
        (["a", "--state", "old"], "state is 'old', but must be one of running, ended"),
    ],
)
def test_what_is_no_choice_is_refused(
    jobs: list[str], words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", *words]) == 2
    assert why in capsys.readouterr().err and there() == set(jobs)


def test_one_that_was_started_meanwhile_is_kept(
    jobs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locks = []

    def started(*_: object) -> str:
        locks.append(JobLock(find_job("mine").lock))
        return ""

    monkeypatch.setattr("eps.cli.commands.prune.kept_for", started)
    assert main(["prune", "mine"]) == 0
    told = capsys.readouterr()
    assert told.err == "mine is kept: running\n" and told.out.endswith("0 jobs removed, 0 B; 1 kept\n")
    locks[0].close()
    assert find_job("mine").record().end is not None


def test_a_link_to_a_job_is_no_job_and_neither_it_nor_what_it_leads_to_is_removed(
    jobs: list[str], tmp_path: Path
) -> None:
    job = find_job("mine")
    elsewhere = tmp_path / "elsewhere"
    job.path.rename(elsewhere)
    job.path.symlink_to(elsewhere)
    assert main(["prune", "mine"]) == 0
    assert job.path.is_symlink() and (elsewhere / "job.json").exists()


def test_with_a_job_on_yarn_goes_what_it_has_on_the_cluster(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hdfs")
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    with FakeHdfs() as hdfs:
        hdfs.put("/eps/jobs/a9a-1/job.zip", b"secrets")
        hdfs.put("/eps/jobs/other-1/job.zip", b"secrets")
        for name, state in (("a9a", "failed"), ("lost", "failed"), ("may-run", ""), ("gone", "finished")):
            place = "" if name == "gone" else f"webhdfs://{hdfs.authority}/eps/jobs/{name}-1"
            conf = tmp_path / "no-conf" if name == "lost" else tmp_path
            application = {"application_id": "a_1", "shared": place, "conf_dir": str(conf)}
            made(name, state, 1.0, application)
        assert main(["prune", "--all", "--resumable"]) == 1
        assert not [path for path in hdfs.nodes if "a9a" in path] and "/eps/jobs/other-1/job.zip" in hdfs.nodes
    told = capsys.readouterr().err
    assert "may-run" in there(), "its cluster does not say that it has ended"
    assert f"lost is kept: {tmp_path}/no-conf" in told
    assert there() == {"lost", "may-run"}


def test_a_job_whose_files_are_damaged_is_kept_unless_such_ones_are_meant(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        job = made(name, "killed", 1.0)
        job.job_json.write_text("{")
        os.utime(job.path, (0.0, 0.0))
    made("over", "finished", 1.0)
    assert main(["prune", "--all"]) == 0
    told = capsys.readouterr().err
    assert "one is kept: a damaged record does not say whether it runs or has files on a cluster: " in told
    assert "(to remove: --state unreadable)" in told and there() == {"one", "two"}
    assert main(["prune", "one", "--state", "unreadable"]) == 0
    assert there() == {"two"}
    assert main(["prune", "--all", "--resumable"]) == 0
    assert there() == set()


ALL = Wanted("1m", 60.0, resumable=True, unreadable=True)


@pytest.mark.parametrize(
    ("state", "age_s", "keep", "wanted", "why"),
    [
        ("running", 999.0, Keep(), ALL, "running"),
        ("finished", 59.0, Keep(), ALL, "ended less than 1m ago (--older-than)"),
        ("finished", 60.0, Keep(), Wanted("1m", 60.0), ""),
        ("killed", 60.0, Keep(always="may run"), ALL, "may run"),
        (
            "killed",
            60.0,
            Keep(mostly="worth it"),
            Wanted("1m", 60.0, unreadable=True),
            "worth it (to remove: --resumable",
        ),
        ("killed", 60.0, Keep(mostly="worth it"), Wanted("1m", 60.0, resumable=True), ""),
        ("unreadable", 60.0, Keep(mostly="damaged"), Wanted("1m", 60.0), "damaged (to remove: --state unreadable"),
        ("unreadable", 60.0, Keep(mostly="damaged"), Wanted("1m", 60.0, unreadable=True), ""),
        ("unreadable", 60.0, Keep(mostly="damaged"), Wanted("1m", 60.0, resumable=True), ""),
    ],
)
def test_what_is_kept_follows_from_state_age_and_what_is_wanted(
    state: str, age_s: float, keep: Keep, wanted: Wanted, why: str
) -> None:
    found = kept_for(state, age_s, keep, wanted)
    assert found.startswith(why) and bool(found) == bool(why)


def test_how_long_ago_is_told_as_people_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eps.job.display.time.time", lambda: 1e6)
    told = [ago_text(1e6 - passed_s) for passed_s in (0, 59, 60, 3599, 3600, 100_000, 172_800, -5)]
    assert told == ["0 s ago", "59 s ago", "1 min ago", "59 min ago", "1 h ago", "27 h ago", "2 days ago", "0 s ago"]
