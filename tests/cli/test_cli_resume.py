"""``eps resume``: what it looks for first, and what it does without."""

from __future__ import annotations

from pathlib import Path

import pytest

from eps.cli import main
from eps.config import JobSpec
from eps.exits import EXIT_BAD_INPUT, EXIT_REFUSED
from eps.jobspec_file import RunRequest
from eps.results import keep_places
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
