"""``eps resume``: the order of its checks, and the damaged files that it tolerates."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eps.cli import main
from eps.cli.exits import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_OK, EXIT_REFUSED
from eps.errors import StorageError
from eps.job.client import Job
from eps.job.launch import prepare_job
from eps.job.resume import prepare_resume
from eps.job.status import ended_status
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import keep_places
from eps.storage.jobdir import JobDir, KeepReason, create_job_dir, keep_reason
from tests.cli.conftest import FakeJob, change_of
from tests.fakes.records import note_end


@pytest.mark.parametrize(
    ("state", "told", "code"),
    [
        ("", "is running: only a job that has stopped can be resumed", EXIT_BAD_INPUT),
        ("finished", "has finished: there is nothing to resume", EXIT_REFUSED),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--report", "/nowhere/r.json", "--export", "/nowhere/m.npz"]])
def test_what_cannot_be_resumed_is_told_before_where_its_results_cannot_be_written(
    fake: FakeJob,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    state: str,
    told: str,
    code: int,
    flags: list[str],
) -> None:
    keep_places(fake.dir, RunRequest(JobSpec(), report=str(tmp_path / "gone/r.json")))
    if state:
        fake.end(state)
    assert main(["resume", "fake", *flags]) == code
    assert capsys.readouterr().err == f"eps: job 'fake' {told}\n"


def test_a_job_does_not_go_on_where_it_cannot_be_noted_where_its_results_go(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, lock = create_job_dir("a9a")
    lock.close()
    begun = []

    def full(job: JobDir, **_: Any) -> None:
        raise StorageError(f"{job.job_json}: cannot be written: No space left on device")

    def resume(name: str, on_begin: Callable[[str, Sequence[str]], None], **_: Any) -> Job:
        """Call ``on_begin`` on a full disk."""
        monkeypatch.setattr(JobDir, "note", full)
        on_begin("goes on", ())
        begun.append(name)
        return Job(directory)

    monkeypatch.setattr(Job, "resume", resume)
    assert main(["resume", "a9a", "--quiet", "--report", str(tmp_path / "r.json")]) == EXIT_FAILED
    assert f"{directory.job_json}: cannot be written: " in capsys.readouterr().err and not begun


@pytest.mark.parametrize("flags", [[], ["--detach"]])
def test_a_job_is_noted_to_bring_its_results_itself_where_the_run_that_goes_on_is_detached(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    directory, lock = create_job_dir("a9a")
    lock.close()
    place = str(tmp_path / "r.json")
    keep_places(directory, RunRequest(JobSpec(), report=place, detached=not flags))

    def resume(name: str, on_begin: Callable[[str, Sequence[str]], None], **_: Any) -> Job:
        on_begin("goes on", ())
        directory.report.write_text(json.dumps({"name": "a9a", "state": "finished", "clock": 5, "metrics": {}}))
        note_end(directory, "finished", "", exit_code=0)
        return Job(directory)

    monkeypatch.setattr(Job, "resume", resume)
    assert main(["resume", "a9a", "--quiet", *flags]) == EXIT_OK
    kept = {name: value for name, value in directory.record().results.items() if name != "since_s"}
    assert kept == {"report": place, **({"detached": True} if flags else {})}


@pytest.fixture
def stopped(home: Path) -> JobDir:
    """A job that was prepared and never ran."""
    prepared = prepare_job(RunRequest.from_values({"data": "sklearn:iris", "model": "softmax", "name": "a9a"}))
    prepared.lock.close()
    return prepared.directory


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 100, b"{"])
def test_what_was_not_on_disk_at_a_power_loss_and_can_be_made_again_does_not_stop_a_job(
    stopped: JobDir, content: bytes
) -> None:
    for path in (stopped.status_json, stopped.report):
        path.write_bytes(content)
    assert ended_status(stopped)["state"] == "killed" and Job.find("a9a").status()["clock"] == 0
    prepare_resume("a9a").prepared.lock.close()


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"{"])
@pytest.mark.parametrize("command", ["resume", "status", "kill", "add-workers"])
def test_a_record_without_its_settings_is_told_in_one_line_with_what_can_be_done(
    stopped: JobDir, command: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.job_json.write_bytes(content)
    assert main([command, "a9a"]) == EXIT_FAILED
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"eps: {stopped.job_json}: ") and "eps run --name a9a --anew replaces the job" in told


def test_settings_that_are_not_what_their_checksum_says_are_not_gone_on_with(
    stopped: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = stopped.job_json.read_text()
    assert '"batch_size": "full"' in whole
    stopped.job_json.write_text(whole.replace('"batch_size": "full"', '"batch_size": "8"'))
    assert main(["resume", "a9a"]) == EXIT_FAILED
    assert f"{stopped.job_json}: is damaged, or was changed by hand" in capsys.readouterr().err
    assert keep_reason(stopped) is KeepReason.UNREADABLE


def test_status_after_a_resume_has_the_changes_and_checkpoints_of_the_runs_before(
    stopped: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"complete": 3, "skipped": 0, "failed": 1, "latest_clock": 30, "size_bytes": 1000, "seconds": 0.5}
    for run in (1, 2):
        report = {"name": "a9a", "state": "killed", "clock": 35, "changes": [change_of(run)], "checkpoints": figures}
        note_end(stopped, "killed", "interrupted", report=report)
        prepare_resume("a9a").prepared.lock.close()
        # Its processes have begun.
        stopped.begin()
    note_end(stopped, "killed", "interrupted", report={"clock": 36, "changes": [change_of(1)]})
    found = Job.find("a9a").status()
    assert [change["plan_id"] for change in found["earlier"]["changes"]] == [1, 2] and len(found["changes"]) == 1
    assert (found["earlier"]["checkpoints"]["complete"], found["checkpoints"]) == (6, {}), "this run has taken none"
    assert main(["status", "a9a"]) == EXIT_OK
    told = capsys.readouterr().out
    assert "checkpoints: 6 complete, 0 skipped, 2 failed, latest of clock 30" in told
    assert told.index("changes before the job was resumed:") < told.index("  changes:")
