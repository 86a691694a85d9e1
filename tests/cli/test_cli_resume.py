"""``eps resume``: what it looks for first, and what it does without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eps.cli import main
from eps.client import Job
from eps.config import JobSpec
from eps.exits import EXIT_BAD_INPUT, EXIT_OK, EXIT_REFUSED
from eps.jobspec_file import RunRequest
from eps.results import keep_places
from eps.storage.jobdir import create_job_dir
from tests.cli.conftest import FakeJob


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


def test_a_job_that_has_begun_goes_on_where_it_cannot_be_noted_where_its_results_go(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, lock = create_job_dir("a9a")
    lock.close()
    report = {"name": "a9a", "state": "finished", "clock": 5, "metrics": {"train_loss": 0.25}}

    def resume(name: str, **_: Any) -> Job:
        """Begin, with a disk that has become full, and end."""
        (directory.path / "results.json").mkdir()
        directory.report.write_text(json.dumps(report))
        directory.ended_json.write_text(json.dumps({"state": "finished", "reason": "", "exit_code": 0}))
        return Job(directory)

    monkeypatch.setattr(Job, "resume", resume)
    assert main(["resume", "a9a", "--quiet", "--report", str(tmp_path / "r.json")]) == EXIT_OK
    assert json.loads((tmp_path / "r.json").read_text()) == report
    told = capsys.readouterr().err
    assert told.startswith(f"eps: warning: {directory.path}/results.json: cannot be written: ")
    assert told.endswith("; another eps resume has to be told again where its results go\n")
