"""What would be lost with a job that has ended, were it removed or another one to take its place.  L2."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import TYPE_CHECKING

from eps.errors import StorageError
from eps.storage.atomic import read_json

if TYPE_CHECKING:
    from eps.storage.jobdir import JobDir


class Worth(StrEnum):
    """What a job that does not run is worth keeping for."""

    #: Its results are on its cluster only; see :meth:`eps.storage.jobdir.JobDir.unfetched`.
    UNFETCHED = auto()
    RESUMABLE = auto()
    #: Nobody can tell: a file that says so is damaged, or the disk is.
    UNREADABLE = auto()


def worth_of(job: JobDir) -> Worth | None:
    """Return what a job that does not run is worth keeping for; None where nothing is lost with it but its results."""
    try:
        if job.unfetched() is not None:
            return Worth.UNFETCHED
        if job.outcome().get("state") == "finished":
            return None
        return None if read_json(job.job_json) is None else Worth.RESUMABLE
    except StorageError:
        return Worth.UNREADABLE


def can_be_resumed(job: JobDir) -> bool:
    """Return whether ``eps resume`` starts a job again that does not run: from a checkpoint, or from its seed."""
    return worth_of(job) is Worth.RESUMABLE


def why_not_replaced(job: JobDir) -> str:
    """Return why no other job takes the place of one that does not run, and what to do; empty where one may."""
    match worth_of(job):
        case Worth.UNFETCHED:
            return f"left results on its cluster: fetch them (eps status {job.name})"
        case Worth.RESUMABLE:
            return f"stopped before its end: go on with it (eps resume {job.name})"
        case Worth.UNREADABLE:
            return f"may have stopped before its end, but its files are damaged: see {job.path}"
        case None:
            return ""
