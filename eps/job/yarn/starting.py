"""Where a job on YARN is started: by an application of its own, or within the one that this process is the master of.

Imports what it needs where it needs it: who starts a job of this machine asks only whether one of its name was on YARN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from eps.storage.jobdir import JobDir, job_dir

if TYPE_CHECKING:
    from eps.cluster.supervisor.start import JobHandle
    from eps.job.launch import PreparedJob
    from eps.spec.file import RunRequest
    from eps.spec.job_spec import JobSpec


def start(
    request: RunRequest, *, tied: bool, before_data: Callable[[], None] | None = None
) -> tuple[JobDir, JobHandle]:
    """Start a job on YARN; parameters and errors as of :func:`eps.job.yarn.submit.start_on_yarn`."""
    from eps.job.yarn import within
    from eps.job.yarn.submit import start_on_yarn

    if (place := within.here()) is not None:
        return place.start(request, before_data)
    settle_former_of(request.name)
    prepared, handle = start_on_yarn(request, tied=tied, before_data=before_data)
    return prepared.directory, handle


def check_prepared(spec: JobSpec) -> None:
    """Refuse a job that :func:`start_prepared` would, while nothing of it is cleared; raises as :func:`start`."""
    from eps.job.yarn import within
    from eps.job.yarn.submit import check_submission

    if within.here() is None:
        check_submission(spec)


def start_prepared(prepared: PreparedJob, *, tied: bool) -> JobHandle:
    """Start a job that is prepared and checked already, as one that is resumed; raises as :func:`start`."""
    from eps.job.yarn import within
    from eps.job.yarn.submit import submit_prepared

    place = within.here()
    return submit_prepared(prepared, tied=tied) if place is None else place.start_prepared(prepared)


def settle_former_of(name: str) -> None:
    """Find out how a job on YARN ended that had a new job's name; its files may not go while its application runs.

    Where its record is damaged nobody can: another job takes its place where that is asked for.
    """
    if name and (former := job_dir(name)).is_on_yarn():
        from eps.job.yarn.former import settle_former

        settle_former(former)
