"""What a job has left stays until another run of it has begun, and is back where none does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import eps
from eps.cli import main
from eps.errors import ConfigError, ResourceError, StorageError
from eps.job.launch import prepare_job
from eps.job.resume import prepare_resume
from eps.spec.file import RunRequest
from eps.storage.before import ASIDE, Before, put_back_ended, put_back_unbegun
from eps.storage.jobdir import JobDir, create_job_dir


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobDir]:
    """A job that has ended; another run of it is being prepared."""
    found, lock = create_job_dir("a9a", tmp_path)
    found.report.write_text("{}")
    found.model.write_bytes(b"npz")
    found.ended_json.write_text('{"state": "failed"}')
    found.job_json.write_text('{"spec": {}}')
    yield found
    lock.close()


def files_of(job: JobDir) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in job.path.rglob("*") if path.is_file()}


def test_what_another_run_wrote_and_what_was_set_aside_is_put_back(job: JobDir) -> None:
    files, before = files_of(job), Before(job)
    job.job_json.write_text('{"spec": {"python": "another"}}')
    job.yarn_json.write_text("{}")
    assert job.model.exists() and job.ended() is not None, "until it begins"
    before.set_aside()
    assert not job.model.exists() and job.outcome() == {}
    before.put_back()
    assert files_of(job) == files and not (job.path / ASIDE).exists()
    before.put_back()
    assert files_of(job) == files


def test_of_what_was_set_aside_nothing_stays_when_another_run_has_begun(job: JobDir) -> None:
    before = Before(job)
    before.set_aside()
    before.forget()
    assert not (job.path / ASIDE).exists() and job.outcome() == {} and not job.model.exists()


def test_whoever_is_killed_on_the_way_leaves_no_end_beside_what_is_still_set_aside(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds an end of the job looks no further."""
    moved: list[tuple[str, str]] = []
    replace = os.replace

    def note(source: Path, target: Path) -> None:
        moved.append((Path(source).name, Path(target).parent.name))
        replace(source, target)

    files, before = files_of(job), Before(job)
    monkeypatch.setattr(os, "replace", note)
    before.set_aside()
    before.put_back()
    assert files_of(job) == files and len(moved) == 6
    assert moved[0] == ("ended.json", ASIDE) and moved[-1] == ("ended.json", job.name)


def test_how_a_job_had_ended_comes_back_with_what_is_noted_besides(job: JobDir) -> None:
    assert put_back_ended(job) is None and job.model.exists()
    Before(job).set_aside()
    # Whoever did so before was killed on the way.
    os.replace(job.path / ASIDE / "model.npz", job.model)
    assert put_back_ended(job, is_forgotten=True) == {"state": "failed"}
    assert job.ended() == {"state": "failed", "is_forgotten": True}
    assert job.model.exists() and job.report.exists() and not (job.path / ASIDE).exists()


@pytest.mark.parametrize("begins", [True, False])
def test_what_somebody_had_set_aside_who_was_killed_does_not_come_back(job: JobDir, begins: bool) -> None:
    """Whoever is interrupted while a job's files are brought to a cluster has set nothing aside."""
    Before(job).set_aside()
    job.ended_json.write_text('{"state": "killed"}')
    job.report.write_text('{"clock": 900}')
    before = Before(job)
    if begins:
        before.set_aside()
    before.put_back()
    assert job.outcome() == {"state": "killed"} and not job.model.exists() and not (job.path / ASIDE).exists()
    assert job.report.read_text() == '{"clock": 900}'


def test_a_directory_that_cannot_be_written_says_so(job: JobDir) -> None:
    before = Before(job)
    (job.path / ASIDE).write_text("no folder")
    with pytest.raises(StorageError, match=r"cannot be made ready: File exists"):
        before.set_aside()
    with pytest.raises(StorageError, match=r"cannot be made ready: Not a directory"):
        Before(job)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """A job of this machine that had failed."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    (tmp_path / "rows.libsvm").write_text("1 1:1 2:0.5\n-1 2:1\n" * 12)
    prepared = prepare_job(RunRequest.from_values({"data": str(tmp_path / "rows.libsvm"), "name": "a9a"}))
    prepared.lock.close()
    job = prepared.directory
    job.ended_json.write_text('{"state": "failed", "reason": "training diverged"}')
    job.report.write_text('{"state": "failed", "clock": 40}')
    job.model.write_bytes(b"npz")
    job.status_json.write_text('{"clock": 39}')
    return job


def test_a_job_whose_resumption_is_killed_before_it_begins_is_as_it_was(stopped: JobDir) -> None:
    files = files_of(stopped)
    killed = prepare_resume("a9a").prepared
    killed.before.set_aside()
    assert stopped.outcome() == {}
    eps.Job.find("a9a").close()
    assert stopped.outcome() == {}, "it may still begin"
    killed.lock.close()
    # Whoever asks after it next.
    with eps.Job.find("a9a") as found:
        status = found.status()
    assert (status["state"], status["reason"], status["clock"]) == ("failed", "training diverged", 40)
    assert files_of(stopped).items() >= {**files, stopped.job_json: stopped.job_json.read_bytes()}.items()
    assert not (stopped.path / ASIDE).exists()


def test_whoever_lists_jobs_or_chooses_some_finds_one_whose_resumption_never_began_as_it_was(
    stopped: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*words: str) -> list[tuple[str, str, int]]:
        assert main(["list", *words, "--json"]) == 0
        return [(each["state"], each["reason"], each["clock"]) for each in json.loads(capsys.readouterr().out)]

    for words in ([], ["--state", "failed"]):
        killed = prepare_resume("a9a").prepared
        killed.before.set_aside()
        assert listed("--state", "failed") == [] and not stopped.ended_json.exists(), "it may still begin"
        killed.lock.close()
        assert listed(*words) == [("failed", "training diverged", 40)]
    killed = prepare_resume("a9a").prepared
    killed.before.set_aside()
    killed.lock.close()
    assert main(["prune", "a9a", "--state", "failed", "--resumable"]) == 0
    assert capsys.readouterr().err == "a9a is kept: ended less than 1m ago (--older-than)\n", "it was found"


@pytest.mark.parametrize("had_word", [True, False], ids=["ended", "without a word"])
@pytest.mark.parametrize("moved", [1, 2, 9], ids=["first file", "two files", "all"])
def test_the_next_try_of_a_resumption_that_was_killed_before_it_began_loses_nothing(
    stopped: JobDir, monkeypatch: pytest.MonkeyPatch, had_word: bool, moved: int
) -> None:
    """As little where the former run's supervisor was killed, too: how far it was is all that is known of it."""
    if not had_word:
        stopped.ended_json.unlink()
    kept = (stopped.ended_json, stopped.report, stopped.model, stopped.status_json)
    files = {path: path.read_bytes() for path in kept if path.exists()}
    killed, left = prepare_resume("a9a").prepared, iter(range(moved))
    replace = os.replace

    def die(source: Path, target: Path) -> None:
        replace(source, target)
        if next(left, moved) == moved - 1:
            raise SystemExit("killed")

    with monkeypatch.context() as patch, suppress(SystemExit):
        patch.setattr(os, "replace", die)
        killed.before.set_aside()
    killed.lock.close()
    again = prepare_resume("a9a").prepared
    assert {path: path.read_bytes() for path in kept if path.exists()} == files
    again.before.set_aside()
    again.before.put_back()
    again.lock.close()
    assert {path: path.read_bytes() for path in kept if path.exists()} == files
    assert not (stopped.path / ASIDE).exists()


def test_a_job_whose_supervisor_ends_before_it_begins_is_as_it_was(
    stopped: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eps.job.launch.start_supervisor", lambda *_, **__: None)
    prepare_resume("a9a").prepared.start(tied=False)
    assert stopped.outcome() == {}
    with eps.Job.find("a9a") as found:
        assert found.status()["reason"] == "training diverged"


def test_what_a_run_that_has_ended_since_has_left_is_not_written_over(stopped: JobDir) -> None:
    killed = prepare_resume("a9a").prepared
    killed.before.set_aside()
    stopped.ended_json.write_text('{"state": "killed"}')
    put_back_unbegun(stopped)
    assert stopped.outcome() == {"state": "killed"} and not stopped.report.exists()
    killed.lock.close()


@pytest.mark.parametrize("why", [ResourceError("no processes left"), KeyboardInterrupt()])
def test_a_job_whose_supervisor_cannot_be_started_again_is_as_it_was(
    stopped: JobDir, monkeypatch: pytest.MonkeyPatch, why: BaseException
) -> None:
    job, files = stopped, files_of(stopped)
    seen: list[object] = []

    def refuse(*_: object, **__: object) -> None:
        seen.append(job.outcome())
        raise why

    monkeypatch.setattr("eps.job.launch.start_supervisor", refuse)
    with pytest.raises(type(why)):
        prepare_resume("a9a").prepared.start(tied=False)
    assert seen == [{}] and files_of(job) == files and not job.is_running()


def test_a_job_whose_model_file_has_gone_is_not_resumed_and_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    (tmp_path / "rows.libsvm").write_text("1 1:1 2:0.5\n-1 2:1\n" * 12)
    (tmp_path / "mine.py").write_text("from eps.ml.models import MODELS\n\nclass Mine(MODELS['softmax']):\n    pass\n")
    settings = {"data": str(tmp_path / "rows.libsvm"), "model": f"{tmp_path}/mine.py:Mine", "name": "a9a"}
    prepared = prepare_job(RunRequest.from_values(settings))
    prepared.lock.close()
    job = prepared.directory
    (job.model_code / "mine.py").unlink()
    files = files_of(job)

    with pytest.raises(ConfigError, match=r"mine\.py cannot be read: No such file or directory; put back the file"):
        prepare_resume("a9a")
    assert files_of(job) == files and not job.is_running()
