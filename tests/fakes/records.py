"""Records of jobs as their writers leave them, for tests of who reads them."""

from __future__ import annotations

from typing import Any

from eps.storage.jobdir import JobDir
from eps.storage.record import End, Phase


def note_end(job: JobDir, state: str, reason: str = "", **more: Any) -> None:
    """Have a job have ended so."""
    job.note(phase=Phase.ENDED, pid=0, end=End(state, reason, **more))


def note_settings(job: JobDir, **spec: Any) -> None:
    """Have a job have these settings, and no others."""
    job.note(runtime={"spec": spec})


def note_application(job: JobDir, application_id: str = "application_1_0001", **more: Any) -> None:
    """Have YARN have an application of a job."""
    found = {"application_id": application_id, "shared": "", "conf_dir": "", **more}
    job.note(phase=Phase.SUBMITTED, yarn={"application": found})


def note_no_end(job: JobDir) -> None:
    """Have a job have no end, as one that runs, or whose supervisor was killed."""
    job.note(phase=Phase.RUNNING, end=None)


def note_ended(job: JobDir, values: dict[str, Any]) -> None:
    """Have a job have ended as values say, an :class:`End`."""
    job.note(phase=Phase.ENDED, end=End(**values))
