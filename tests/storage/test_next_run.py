"""The files of a job stay until its next run has started, and are complete if it never starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import eps
from eps.cli import main
from eps.errors import ConfigError, ResourceError
from eps.job.launch import prepare_job
from eps.job.resume import prepare_resume
from eps.spec.file import RunRequest
from eps.storage.jobdir import JobDir
from eps.storage.record import Phase
from tests.fakes.records import note_end, note_no_end


def files_of(job: JobDir) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in job.path.rglob("*") if path.is_file() and path != job.history}


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """A job of this machine that had failed."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    (tmp_path / "rows.libsvm").write_text("1 1:1 2:0.5\n-1 2:1\n" * 12)
    prepared = prepare_job(RunRequest.from_values({"data": str(tmp_path / "rows.libsvm"), "name": "a9a"}))
    prepared.lock.close()
    job = prepared.directory
    job.report.write_text('{"state": "failed", "clock": 40}')
    job.model.write_bytes(b"npz")
    note_end(job, "failed", "training diverged")
    return job


def test_a_job_whose_resumption_is_killed_before_it_begins_is_as_it_was(stopped: JobDir) -> None:
    files = files_of(stopped)
    killed = prepare_resume("a9a").prepared
    assert stopped.ended() is None
    eps.Job.find("a9a").close()
    assert stopped.ended() is None, "it may still begin"
    killed.lock.close()
    # The next client that asks for it.
    with eps.Job.find("a9a") as found:
        status = found.status()
    assert (status["state"], status["reason"], status["clock"]) == ("failed", "training diverged", 40)
    assert files_of(stopped) == files


def test_whoever_lists_jobs_or_chooses_some_finds_one_whose_resumption_never_began_as_it_was(
    stopped: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*words: str) -> list[tuple[str, str, int]]:
        assert main(["list", *words, "--json"]) == 0
        return [(each["state"], each["reason"], each["clock"]) for each in json.loads(capsys.readouterr().out)]

    for words in ([], ["--state", "failed"]):
        killed = prepare_resume("a9a").prepared
        assert listed("--state", "failed") == [] and stopped.record().end is None, "it may still begin"
        killed.lock.close()
        assert listed(*words) == [("failed", "training diverged", 40)]
    prepare_resume("a9a").prepared.lock.close()
    assert main(["prune", "a9a", "--state", "failed", "--resumable"]) == 0
    assert capsys.readouterr().err == "a9a is kept: ended less than 1m ago (--older-than)\n", "it was found"


@pytest.mark.parametrize("had_word", [True, False], ids=["ended", "without a word"])
def test_the_next_try_of_a_resumption_that_was_killed_before_it_began_loses_nothing(
    stopped: JobDir, had_word: bool
) -> None:
    """The same if the supervisor of the run before was killed, too: only its progress is known."""
    if not had_word:
        note_no_end(stopped)
        stopped.report.unlink()
        stopped.status_json.write_text('{"clock": 39, "plan": null, "changes": [], "queued": []}')
    with eps.Job(stopped) as job:
        status = job.status()
    for _ in range(2):
        prepare_resume("a9a").prepared.lock.close()
    with eps.Job.find("a9a") as job:
        assert job.status() == status and status["clock"] == (40 if had_word else 39)
    assert stopped.model.exists() and stopped.record().former is None


def test_a_job_whose_supervisor_ends_before_it_begins_is_as_it_was(stopped: JobDir) -> None:
    warm: Any = SimpleNamespace(give=lambda *_: None)
    prepare_resume("a9a").prepared.start(tied=False, warm=warm)
    with eps.Job.find("a9a") as found:
        assert found.status()["reason"] == "training diverged"


def test_of_a_run_before_nothing_is_left_when_the_next_one_has_begun(stopped: JobDir) -> None:
    prepared = prepare_resume("a9a").prepared
    assert stopped.report.exists() and stopped.model.exists()
    stopped.begin(phase=Phase.RUNNING, pid=1)
    assert not stopped.report.exists() and not stopped.model.exists() and stopped.give_back() is None
    prepared.lock.close()
    assert (stopped.settle().end or object()) == stopped.record().end and stopped.ended().is_lost


@pytest.mark.parametrize("why", [ResourceError("no processes left"), KeyboardInterrupt()])
def test_a_job_whose_supervisor_cannot_be_started_again_is_as_it_was(stopped: JobDir, why: BaseException) -> None:
    job, files = stopped, files_of(stopped)
    seen: list[object] = []

    def refuse(*_: object) -> None:
        seen.append(job.ended())
        raise why

    warm: Any = SimpleNamespace(give=refuse)
    with pytest.raises(type(why)):
        prepare_resume("a9a").prepared.start(tied=False, warm=warm)
    assert seen == [None] and files_of(job) == files and not job.is_running()


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

    with pytest.raises(ConfigError, match=r"mine\.py .* put back"):
        prepare_resume("a9a")
    assert files_of(job) == files and not job.is_running()
