"""Ends a job, whoever started it, and waits until its processes are gone."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

from eps.cluster.supervisor.start import kill_supervisor
from eps.errors import DeadlineError, EpsError, StorageError
from eps.job.master_link import MasterLink
from eps.job.status import BEING_STARTED, application_id_of, is_on_yarn
from eps.pb import control_pb2 as pb
from eps.storage.jobdir import JobDir
from eps.system.waits import wait_for


def end_job(job: JobDir, reason: str, timeout_s: float, tell: Callable[[str], None]) -> None:
    """End a job that runs; parameters and errors as of :meth:`eps.job.client.Job.kill`."""
    what = f"the end of job {job.name!r}"
    with suppress(EpsError):
        # A master that is up ends the job in order, with a report; one that is not is ended by who stands for the job.
        link = MasterLink(job, give_up_s=0.0)
        try:
            request = pb.KillRequest(reason=reason)
            if link.call("Kill", request, f"kill job {job.name!r}", timeout_s=2.0, waits=False) is not None:
                wait_for(lambda: not job.is_running(), timeout_s, what)
        finally:
            link.close()
    told = is_wished = False

    def has_ended_or_is_on_yarn() -> bool:
        nonlocal told, is_wished
        # Who submits a job to YARN notes its application at any moment; who attends to it then is not to be ended.
        if application_id_of(job) or not job.is_running():
            return True
        # Again until it is told: a supervisor that has just been started cannot be found yet.
        told = told or kill_supervisor(job)
        if not told and not is_wished:
            is_wished = _wish_no_submission(job, reason)
        return not job.is_running()

    try:
        wait_for(has_ended_or_is_on_yarn, timeout_s, what)
    except DeadlineError as error:
        if not told:
            raise DeadlineError(f"{error}; {BEING_STARTED.format(name=job.name)}") from None
        if not application_id_of(job):
            # It hangs, or was stopped.
            kill_supervisor(job, signal.SIGKILL)
        wait_for(has_ended_or_is_on_yarn, timeout_s, what)
    if job.is_running():
        from eps.job.yarn.ending import end_application

        end_application(job, reason, timeout_s, tell)


def _wish_no_submission(job: JobDir, reason: str) -> bool:
    """Have a job end that is being submitted to YARN, by whoever does that; return whether it is one."""
    with suppress(StorageError):
        if is_on_yarn(job):
            from eps.job.yarn.ending import wish

            wish(job, "", reason)
            return True
    return False
