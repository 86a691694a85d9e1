"""What a job that is over has left: its report and its model."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, BinaryIO

from eps.errors import EpsError, StorageError
from eps.job.client import Job
from eps.spec import results
from eps.spec.file import RunRequest
from hscheduler.core.jobs import Phase
from hscheduler.live.submission import Submission


def deliver_results(submission: Submission, request: RunRequest) -> None:
    """Copy report and model of a job that is over to where its user wants them.

    Raises
    ------
    StorageError
        They cannot be written.
    """
    results.deliver_results(Job.find(submission.name).directory, request)


def own_report(submission: Submission) -> dict[str, Any] | None:
    """Return the own report of a job that is over; None where it never ran, or nothing is there any more."""
    has_run = submission.has_started or submission.phase is Phase.FINISHED
    if submission.report is None and has_run:
        with suppress(EpsError):
            return Job.find(submission.name).report()
    return submission.report


def open_model(submission: Submission) -> BinaryIO:
    """Return the trained model of a job that finished, open for reading.

    Raises
    ------
    JobNotFoundError
        Nothing of it is there.
    StorageError
        It has no model.
    """
    try:
        return Job.find(submission.name).directory.model.open("rb")
    except OSError as error:
        told = error.strerror or error
        raise StorageError(f"job {submission.job_id!r} has no trained model: {told}") from error
