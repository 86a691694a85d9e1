"""Destinations of a job's results: which another run keeps, and which files they would replace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eps.errors import ConfigError
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import keep_places, kept_places, replaced_by_results, with_kept_places
from eps.storage.jobdir import JobDir


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """A job that was asked, in another folder, for ``asked/r.json`` and ``asked/m.npz`` an hour ago."""
    directory = JobDir(tmp_path / "job")
    for folder in (directory.path, tmp_path / "asked", tmp_path / "elsewhere"):
        folder.mkdir()
    monkeypatch.chdir(tmp_path / "asked")
    keep_places(directory, RunRequest(JobSpec(), report="r.json", export="m.npz"))
    for path in directory.path.iterdir():
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return directory


def test_the_next_run_brings_results_where_the_first_was_to_or_where_it_is_told(job: JobDir, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    request = with_kept_places(job, RunRequest(JobSpec()))
    assert (request.report, request.export) == (f"{asked}/r.json", f"{asked}/m.npz")
    request = with_kept_places(job, RunRequest(JobSpec(), export="here.npz"))
    assert (request.report, request.export) == (f"{asked}/r.json", "here.npz")
    (asked / "m.npz").mkdir()
    with pytest.raises(ConfigError, match=r"m\.npz, .* be a file "):
        with_kept_places(job, RunRequest(JobSpec()))
    assert with_kept_places(job, request) == request


def test_a_job_that_was_asked_for_nothing_keeps_nothing(tmp_path: Path) -> None:
    keep_places(JobDir(tmp_path), RunRequest(JobSpec()))
    assert kept_places(JobDir(tmp_path)) == {} and not list(tmp_path.iterdir())
    assert with_kept_places(JobDir(tmp_path), RunRequest(JobSpec())) == RunRequest(JobSpec())


def test_only_a_newer_file_that_is_not_of_the_job_is_said_to_be_replaced(job: JobDir, tmp_path: Path) -> None:
    request = with_kept_places(job, RunRequest(JobSpec()))
    assert replaced_by_results(job, request) == []
    job.report.write_text("of the first run")
    (tmp_path / "asked/r.json").write_text("of the first run")
    (tmp_path / "asked/m.npz").write_text("older than the job")
    os.utime(tmp_path / "asked/m.npz", (0, 0))
    assert replaced_by_results(job, request) == []
    (tmp_path / "asked/r.json").write_text("of somebody else")
    (told,) = replaced_by_results(job, request)
    assert told == (
        f"{tmp_path}/asked/r.json is newer than job 'job', and is replaced when that ends: --report takes another place"
    )
