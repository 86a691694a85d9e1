"""Ends a job, whoever started it, and waits until its processes are gone.  L3."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

from eps.errors import DeadlineError, EpsError
from eps.master_link import MasterLink, wait_for
from eps.pb import control_pb2 as pb
from eps.storage.jobdir import JobDir
from eps.supervisor.start import kill_supervisor


def end_job(job: JobDir, reason: str, timeout_s: float, tell: Callable[[str], None]) -> None:
    """End a job that runs; parameters and errors as of :meth:`eps.client.Job.kill`."""
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
    if not job.is_running():
        return
    if job.yarn_json.exists():
        from eps.yarn.ending import end_application

        end_application(job, reason, timeout_s, tell)
        return
    told = False

    def has_ended() -> bool:
        nonlocal told
        # Again until it is told: a supervisor that has just been started cannot be found yet.
        told = told or kill_supervisor(job)
        return not job.is_running()

    try:
        wait_for(has_ended, timeout_s, what)
    except DeadlineError:
        # It hangs, or was stopped.
        kill_supervisor(job, signal.SIGKILL)
    wait_for(lambda: not job.is_running(), timeout_s, what)
