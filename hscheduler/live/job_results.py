"""Results of ended jobs: report and model; and the model of a sweep's best trial."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from eps.errors import ConfigError, DataError, EpsError, JobNotFoundError, StorageError
from eps.job.client import Job
from eps.job.predict import load, predict_file
from eps.job.yarn import shared_application
from eps.system.home import eps_home
from hscheduler.core.jobs import Phase
from hscheduler.live.submission import Submission


def own_report(submission: Submission) -> dict[str, Any] | None:
    """Return the job's own report; None if the job never ran, or its directory is gone."""
    has_run = submission.has_started or submission.phase is Phase.FINISHED
    if submission.report is None and has_run:
        with suppress(EpsError):
            return Job.find(submission.name).report()
    return submission.report


def open_model(submission: Submission) -> AbstractContextManager[BinaryIO]:
    """Return the trained model of a job that finished, open for reading.

    Raises
    ------
    JobNotFoundError
        The job's directory is gone.
    StorageError
        The job has no model.
    """
    model = Job.find(submission.name).directory.model
    place = shared_application.current()
    if place is not None and not model.exists():
        # The job ended during an earlier attempt of the application.
        return place.open_model(submission.name)
    try:
        return model.open("rb")
    except OSError as error:
        told = error.strerror or error
        raise StorageError(f"job {submission.job_id!r} has no trained model: {told}") from error


def final_metrics(report: Mapping[str, Any], data: str) -> dict[str, float]:
    """Return the metrics of the model of a report's best trial on data that no trial has seen.

    Raises
    ------
    ConfigError, DataError
        The data cannot be used, or has no labels.
    JobNotFoundError, StorageError
        There is no such model any more.
    """
    name = next(trial["name"] for trial in report["trials"] if trial["job_id"] == report["best"]["job_id"])
    job = Job.find(name).directory
    # The model's code as the trial had it, whatever the user has changed since.
    found = predict_file(load(job.model, code=job.record().spec["model"]), data).metrics
    if not found:
        raise DataError(f"final_test is {data!r}, which has no labels")
    return dict(found)


def export_best(report: Mapping[str, Any], path: str | Path) -> str:
    """Copy the model of a report's best trial to ``path``; return the trial's id.

    Raises
    ------
    ConfigError
        No trial finished, or the sweep was simulated.
    JobNotFoundError
        The trial's job is not under ``EPS_HOME``.
    StorageError
        The job has no model, or ``path`` cannot be written.
    """
    best = report["best"]
    if best is None:
        raise ConfigError("no trial finished: there is no best model")
    name = next(trial["name"] for trial in report["trials"] if trial["job_id"] == best["job_id"])
    if not name:
        raise ConfigError(f"{best['job_id']} was simulated, so it has no model")
    try:
        job = Job.find(name)
    except JobNotFoundError as error:
        told = f"the best model is that of {best['job_id']}, but its job {name!r} is not under EPS_HOME ({eps_home()})"
        raise JobNotFoundError(f"{told}: set EPS_HOME to the home of the sweep, unless the job was deleted") from error
    try:
        job.export(path)
    finally:
        job.close()
    return str(best["job_id"])
