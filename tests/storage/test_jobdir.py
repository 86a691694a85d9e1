"""Job directories: names, permissions, who runs, and what is replaced."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, JobExistsError, JobNotFoundError, StorageError
from eps.storage.jobdir import (
    JobDir,
    JobLock,
    KeepReason,
    cache_dir,
    check_job_name,
    create_job_dir,
    find_job,
    keep_reason,
    list_jobs,
)
from tests.fakes.records import note_end, note_settings
from tests.threads import at_once


@pytest.mark.parametrize("name", ["a", "svm-1", "A.b_c-9", "-", "x" * 64])
def test_names_that_may_be_used(name: str) -> None:
    assert check_job_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "a b", "ä", "x" * 65, "a\n", "a\0"])
def test_names_that_may_not_be_used(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="job name"):
        create_job_dir(name, tmp_path)
    with pytest.raises(ConfigError, match="job name"):
        find_job(name, tmp_path)


def test_a_new_job_is_private_has_a_token_and_counts_as_running(tmp_path: Path) -> None:
    job, lock = create_job_dir("svm", tmp_path / "home")
    with lock:
        assert job.name == "svm" and job.path == tmp_path / "home" / "jobs" / "svm"
        for directory in (job.path, job.logs, job.containers, job.path.parent):
            assert directory.stat().st_mode & 0o777 == 0o700
        assert job.token.stat().st_mode & 0o777 == 0o600
        assert len(job.read_token()) == 32
        assert job.is_running()
    assert not job.is_running()


def test_a_running_job_is_not_replaced(tmp_path: Path) -> None:
    job, lock = create_job_dir("svm", tmp_path)
    token = job.read_token()
    with lock, pytest.raises(JobExistsError, match="'svm' is running"):
        create_job_dir("svm", tmp_path)
    assert job.read_token() == token


def test_a_finished_job_is_replaced_with_all_that_it_left(tmp_path: Path) -> None:
    job, lock = create_job_dir("svm", tmp_path)
    lock.close()
    token = job.read_token()
    job.model.write_bytes(b"old")
    again, lock = create_job_dir("svm", tmp_path)
    with lock:
        assert again == job
        assert not job.model.exists() and job.read_token() != token


def test_the_lock_lives_as_long_as_its_last_holder(tmp_path: Path) -> None:
    job, lock = create_job_dir("svm", tmp_path)
    handed = JobLock(job.lock, os.dup(lock.fileno()))
    lock.close()
    lock.close()
    assert job.is_running()
    handed.close()
    assert not job.is_running()


def test_a_handed_descriptor_must_be_the_lock(tmp_path: Path) -> None:
    job, lock = create_job_dir("svm", tmp_path)
    fd = os.open(job.token, os.O_RDONLY)
    with lock, pytest.raises(ConfigError, match="is not"):
        JobLock(job.lock, fd)
    os.close(fd)


def test_asking_whether_a_job_runs_does_not_make_it_run(tmp_path: Path) -> None:
    job, lock = create_job_dir("svm", tmp_path)
    lock.close()
    seen: list[bool] = []
    askers = [threading.Thread(target=lambda: seen.extend(job.is_running() for _ in range(200))) for _ in range(4)]
    for asker in askers:
        asker.start()
    for _ in range(20):
        JobLock(job.lock).close()
    for asker in askers:
        asker.join()
    assert len(seen) == 800


def test_two_that_create_the_same_job_at_once_do_not_both_get_it(tmp_path: Path) -> None:
    outcomes = at_once(8, lambda _: create_job_dir("svm", tmp_path)[1])
    (got,) = (outcome for outcome in outcomes if isinstance(outcome, JobLock))
    assert sum(isinstance(outcome, JobExistsError) for outcome in outcomes) == 7
    got.close()


def test_a_job_that_is_being_replaced_counts_as_running_all_the_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lock = create_job_dir("svm", tmp_path)
    lock.close()
    job.checkpoints.mkdir()
    removed: list[Path] = []
    rmtree = shutil.rmtree

    def refuse_others(path: Path, *details: Any) -> None:
        # Deleting the checkpoints of a large job takes time; another client resumes it meanwhile.
        with pytest.raises(JobExistsError, match="'svm' is running"):
            JobLock(job.lock)
        removed.append(path)
        rmtree(path, *details)

    monkeypatch.setattr(shutil, "rmtree", refuse_others)
    again, lock = create_job_dir("svm", tmp_path)
    with lock:
        assert removed and not again.checkpoints.exists() and again.is_running()
        assert os.path.samestat(os.fstat(lock.fileno()), again.lock.stat())


def before_the_next_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen between the opening of the next lock file and its locking."""
    flock = fcntl.flock

    def act_and_lock(fd: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        act()
        flock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", act_and_lock)


def test_a_lock_file_that_has_gone_is_nobodys_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, lock = create_job_dir("svm", tmp_path)
    lock.close()
    others: list[JobLock] = []

    def replace() -> None:
        shutil.rmtree(job.path)
        others.append(create_job_dir("svm", tmp_path)[1])

    before_the_next_lock(monkeypatch, replace)
    with pytest.raises(JobExistsError, match="'svm' is running"):
        JobLock(job.lock)
    others[0].close()
    # A lock that no process holds is replaced.
    before_the_next_lock(monkeypatch, lambda: (replace(), others[1].close()))
    with JobLock(job.lock) as mine:
        assert os.path.samestat(os.fstat(mine.fileno()), job.lock.stat()) and job.is_running()
    before_the_next_lock(monkeypatch, lambda: shutil.rmtree(job.path))
    with pytest.raises(StorageError, match="svm/lock: "):
        JobLock(job.lock)


def test_what_says_that_there_is_a_job_is_removed_before_what_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was half removed is not resumed with half of its checkpoints."""
    job, lock = create_job_dir("svm", tmp_path)
    lock.close()
    job.checkpoints.mkdir()
    note_settings(job)
    note_end(job, "finished")

    def end_here(path: Path, *_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "rmtree", end_here)
    with pytest.raises(StorageError, match="cannot be removed"):
        create_job_dir("svm", tmp_path)
    assert job.checkpoints.is_dir() and not job.job_json.exists() and not job.is_running()


def test_a_file_in_the_place_of_a_job_is_replaced(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "file").touch()
    job, lock = create_job_dir("file", tmp_path)
    with lock:
        assert job.path.is_dir() and job.is_running()


def test_a_link_in_the_place_of_a_job_is_refused_and_what_it_points_to_is_not_touched(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "job.json").write_text("{}")
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "linked").symlink_to(elsewhere)
    (jobs / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("linked", "dangling"):
        for refuse in (create_job_dir, find_job, partial(create_job_dir, anew=True)):
            with pytest.raises(ConfigError, match=f"a symbolic link, .*: rm {jobs}/{name}"):
                refuse(name, tmp_path)
    assert list_jobs(tmp_path) == []
    assert [path.name for path in elsewhere.iterdir()] == ["job.json"] and not (tmp_path / "nowhere").exists()


def test_jobs_are_listed_by_name(tmp_path: Path) -> None:
    assert list_jobs(tmp_path) == []
    for name in ("b", "a", "c"):
        create_job_dir(name, tmp_path)[1].close()
    (tmp_path / "jobs" / "stray file").touch()
    assert [job.name for job in list_jobs(tmp_path)] == ["a", "b", "c"]


def test_a_job_is_found_by_name_or_missed_by_name(tmp_path: Path) -> None:
    create_job_dir("svm", tmp_path)[1].close()
    assert find_job("svm", tmp_path) == JobDir(tmp_path / "jobs" / "svm")
    with pytest.raises(JobNotFoundError, match="'svn'"):
        find_job("svn", tmp_path)


def test_the_cache_is_made_in_eps_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "cache"
    assert (tmp_path / "cache").is_dir()


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_job_that_stopped_before_its_end_gives_way_only_to_one_that_begins_anew(
    tmp_path: Path, checkpoints: int
) -> None:
    """Without a checkpoint ``eps resume`` starts it from its seed, so its settings must not be lost either."""
    job, lock = create_job_dir("crashed", tmp_path)
    note_settings(job)
    for number in range(checkpoints):
        (job.checkpoints / f"0001-0000001{number}").mkdir(parents=True)
    lock.close()
    for outcome in (None, "killed", "failed"):
        if outcome is not None:
            note_end(job, outcome)
        with pytest.raises(JobExistsError, match=r"resume crashed.*--anew"):
            create_job_dir("crashed", tmp_path)
    assert job.job_json.exists() and job.checkpoints.exists() == bool(checkpoints)
    job, lock = create_job_dir("crashed", tmp_path, anew=True)
    assert not job.checkpoints.exists() and not job.job_json.exists()
    lock.close()


def test_a_job_with_a_record_that_cannot_be_read_does_not_give_way_by_itself(tmp_path: Path) -> None:
    job, lock = create_job_dir("hurt", tmp_path)
    lock.close()
    job.job_json.write_text("{")
    with pytest.raises(JobExistsError, match=r"'hurt' .*damaged: .*anew"):
        create_job_dir("hurt", tmp_path)
    assert job.job_json.exists() and keep_reason(job) is KeepReason.UNREADABLE
    create_job_dir("hurt", tmp_path, anew=True)[1].close()
    assert not job.job_json.exists()


@pytest.mark.parametrize("left", ["no settings", "its end"])
def test_a_job_that_cannot_be_resumed_gives_way(tmp_path: Path, left: str) -> None:
    job, lock = create_job_dir("over", tmp_path)
    (job.checkpoints / "0001-00000010").mkdir(parents=True)
    if left != "no settings":
        note_settings(job)
        note_end(job, "finished")
    lock.close()
    create_job_dir("over", tmp_path)[1].close()
    assert not job.checkpoints.exists()
