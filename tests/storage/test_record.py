"""The record of a job: written whole, read whole or refused, and settled where its writer was killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eps.errors import StorageError
from eps.job.status import ended_status
from eps.storage.jobdir import RESERVE_BYTES, JobDir, JobLock, create_job_dir
from eps.storage.record import SUPERVISOR_KILLED, End, Phase, Record, YarnPart, read_record, write_record

RUNTIME = {"spec": {"on": "local", "iterations": 9}}
STATUS = {"clock": 4, "state": "running", "plan": None, "changes": [], "queued": [], "as_of_s": 12.5, "loss": 0.5}
ENDED = Record(Phase.ENDED, 7.5, RUNTIME, {"report": "/r"}, end=End("failed", "it diverged", 1, 9.0))
WHOLE = Record(
    started_s=8.0,
    runtime=RUNTIME,
    yarn=YarnPart(
        application={"application_id": "application_1_0001"},
        claim={"folder": "hdfs://nn/x"},
        shared="hdfs://nn/y",
        broker={"host": "here"},
        is_fetched=True,
    ),
    former=ENDED,
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobDir]:
    """A job that runs."""
    found, lock = create_job_dir("a9a", tmp_path)
    found.note(runtime=RUNTIME, started_s=7.5)
    with lock:
        yield found


@pytest.mark.parametrize("record", [Record(), ENDED, WHOLE, Record(Phase.RUNNING, pid=9)])
def test_a_record_is_read_as_it_was_written(tmp_path: Path, record: Record) -> None:
    path = tmp_path / "job.json"
    write_record(path, record)
    assert read_record(path) == record and path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["job.json"]


def test_a_job_without_a_record_is_one_of_which_nothing_is_known(tmp_path: Path) -> None:
    assert read_record(tmp_path / "job.json") == Record()


def test_a_record_has_an_end_where_it_says_so_and_nowhere_else() -> None:
    for phase, end in ((Phase.ENDED, None), (Phase.RUNNING, End("killed"))):
        with pytest.raises(ValueError, match="phase"):
            Record(phase, end=end)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not JSON"),
        (b'{"phase": "ended"', "is not JSON"),
        (b"[]", "holds a list"),
        (b'{"phase": "ended", "version": 1, "checksum": "0123456789abcdef"}', "does not match its checksum"),
        (b'{"spec": {}}', "written by another version of EPS"),
        (b'{"version": 1, "phase": "ended"}', "written by another version of EPS"),
        (b'{"version": 4, "phase": "asleep"}', "'asleep' is not a valid Phase"),
        (b'{"version": 4, "phase": "ended"}', "with end None"),
        (b'{"version": 4, "phase": "running", "more": 1}', "more"),
    ],
)
def test_a_damaged_record_says_which_file_it_is_and_what_to_do(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "a9a" / "job.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StorageError) as caught:
        read_record(path)
    told = str(caught.value)
    assert told.startswith(f"{path}: ") and what in told and "\n" not in told
    assert "eps run --name a9a --anew replaces the job, eps prune a9a --state unreadable removes it" in told


def test_a_job_that_runs_is_not_settled(job: JobDir) -> None:
    job.note(phase=Phase.RUNNING, pid=1)
    assert job.settle().phase is Phase.RUNNING and job.ended() is None, "its lock is held"


def test_the_end_of_a_job_that_no_process_has_seen_is_noted_by_the_next_look(tmp_path: Path) -> None:
    job, lock = create_job_dir("a9a", tmp_path)
    job.note(phase=Phase.RUNNING, runtime=RUNTIME, pid=1)
    job.status_json.write_text(json.dumps(STATUS))
    job.master_json.write_text("{}")
    lock.close()
    end = job.settle().end
    assert end is not None and (end.state, end.reason, end.is_lost) == ("killed", SUPERVISOR_KILLED, True)
    assert end.last == STATUS and not end.report
    status = ended_status(job)
    assert (status["clock"], status["as_of_s"], status["state"]) == (4, 12.5, "killed")
    assert job.record().end == end and job.record().pid == 0
    assert not job.status_json.exists() and not job.master_json.exists() and not job.containers.exists()


def test_a_job_that_was_settled_does_not_seem_to_run_for_a_process_that_was_forked_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lock = create_job_dir("a9a", tmp_path)
    job.note(phase=Phase.RUNNING, runtime=RUNTIME, pid=1)
    lock.close()
    forked: list[int] = []

    class Forked(JobLock):
        """Its open file is another process's, too, which another thread has forked and which runs no program yet."""

        def __init__(self, path: Path) -> None:
            super().__init__(path)
            forked.append(os.dup(self.fileno()))

    monkeypatch.setattr("eps.storage.jobdir.JobLock", Forked)
    try:
        assert job.settle().end is not None and not job.is_running()
    finally:
        os.close(*forked)


def test_the_report_of_a_job_master_says_how_a_job_ended_whose_supervisor_was_killed_after_it(tmp_path: Path) -> None:
    job, lock = create_job_dir("a9a", tmp_path)
    job.note(phase=Phase.RUNNING, runtime=RUNTIME, pid=1)
    job.report.write_text('{"state": "finished", "reason": "", "clock": 9}')
    lock.close()
    end = job.settle().end
    assert end is not None and (end.state, end.exit_code, end.is_lost, end.report["clock"]) == ("finished", 0, False, 9)
    assert ended_status(job)["clock"] == 9


def test_a_job_in_a_directory_that_cannot_be_written_is_seen_as_one_that_was_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lock = create_job_dir("a9a", tmp_path)
    job.note(phase=Phase.RUNNING, runtime=RUNTIME)
    lock.close()

    def refuse(*_: object) -> None:
        raise StorageError("read-only file system")

    monkeypatch.setattr("eps.storage.jobdir.write_record", refuse)
    assert (job.settle().end or End("")).state == "killed" and job.record().phase is Phase.RUNNING


def test_a_job_that_may_run_on_its_cluster_is_not_settled_here(tmp_path: Path) -> None:
    job, lock = create_job_dir("a9a", tmp_path)
    for phase in (Phase.SUBMITTED, Phase.RUNNING):
        job.note(phase=phase, runtime=RUNTIME, yarn={"application": {"application_id": "application_1_0001"}})
        lock.close()
        assert job.settle().end is None and job.ended() is None
    job.note(phase=Phase.PREPARED)
    assert (job.settle().end or End("")).is_lost, "YARN has nothing of it"


def test_a_full_disk_leaves_the_record_of_before(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    before = job.job_json.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        job.note(phase=Phase.RUNNING)
    assert job.job_json.read_bytes() == before


def test_the_end_is_noted_on_a_disk_that_is_full(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs keeps some room for that."""
    job.begin(phase=Phase.RUNNING)
    assert job.reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    fsync = os.fsync

    def full(fd: int) -> None:
        if job.reserve.exists():
            raise OSError(28, "No space left on device")
        fsync(fd)

    monkeypatch.setattr("os.fsync", full)
    job.close(End("failed", "no room"))
    assert (job.record().end or End("")).reason == "no room" and not job.reserve.exists()


def test_a_record_is_durable_before_it_takes_the_place_of_the_one_before(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss of power the file is the old record or the new one, never an empty file."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("sync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), replace(a, b)))
    job.note(phase=Phase.RUNNING)
    assert done == ["sync", "rename", "sync"]


def test_no_secret_is_in_a_record(job: JobDir) -> None:
    assert job.read_token() not in job.job_json.read_text()
