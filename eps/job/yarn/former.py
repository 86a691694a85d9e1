"""The application that a job was before it is started again: two masters must never write the same checkpoints."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from eps.cluster.supervisor.start import SupervisorHandle
from eps.cluster.yarn.application import Application
from eps.cluster.yarn.clients import open_client
from eps.cluster.yarn.facade import Client
from eps.errors import DeadlineError, JobExistsError, JobNotFoundError, StorageError
from eps.hadoop.conf import read_configuration
from eps.job.master_link import NOTICED_S
from eps.job.status import silence_of
from eps.job.yarn.fetching import remove_ended
from eps.job.yarn.submit import attend_again
from eps.storage.jobdir import JobDir, JobLock
from eps.storage.record import Phase

logger = logging.getLogger(__name__)

#: Whoever attends to an application that has ended fetches what it left, and ends.
FETCH_S = 120.0


def look_after(job: JobDir) -> SupervisorHandle | None:
    """Have somebody attend to a job that may run; one that has ended is waited for until its results are here.

    Of one whose results are here, what could not be removed from its cluster is, as far as that is possible now.

    Returns
    -------
    SupervisorHandle or None
        As of :func:`eps.job.yarn.submit.attend_again`, which says what is raised; None also where one does already.
    """
    if job.is_settled():
        _remove_what_is_left(job)
        return None
    try:
        handle = attend_again(job.path)
    except JobExistsError:
        return None
    if handle is None or job.ended() is None:
        return handle
    with suppress(DeadlineError):
        _wait_until_fetched(job, handle)
    return None


def _remove_what_is_left(job: JobDir) -> None:
    """Remove what a job that has ended still has on its cluster, as whoever attended to it would have."""
    # Where somebody has started it again by now, or its note is damaged, it is not to be removed here.
    with suppress(JobExistsError, StorageError):
        application = Application.read(job)
        if application is None or not application.shared or job.is_forgotten():
            return
        with JobLock(job.lock):
            if job.is_settled() and not job.is_forgotten():
                remove_ended(job)


def settle_former(job: JobDir) -> None:
    """Find out how a job's application ended, where nobody on this machine attended to it any more.

    One that YARN had forgotten is asked for again: a ResourceManager that finds its state knows it, and it runs.
    What could not be fetched when it ended is fetched, as far as that is possible now.

    Raises
    ------
    DeadlineError
        What it left could not be fetched in time.
    JobExistsError
        It runs.
    RpcError
        The ResourceManager cannot be reached.
    AuthenticationError
        It wants Kerberos, and nobody has logged in.
    """
    application = Application.read(job)
    if application is None or job.is_running() or (job.is_settled() and not job.is_forgotten()):
        return
    if job.ended() is None or job.is_forgotten():
        client = open_client(read_configuration(Path(application.conf_dir)), application.client)
        try:
            if job.is_forgotten():
                with suppress(JobNotFoundError):
                    client.report(application.application_id)
                    _take_end_back(job)
            if job.ended() is None:
                check_has_ended(client, application.application_id, job.name)
        finally:
            client.close()
    handle = None if job.is_settled() else attend_again(job.path)
    if handle is not None:
        _wait_until_fetched(job, handle)


def _wait_until_fetched(job: JobDir, handle: SupervisorHandle) -> None:
    """Wait for whoever attends to a job that has ended, and say so where that takes long; let go of the handle.

    Raises
    ------
    DeadlineError
        What the job left is not here in time; it goes on being fetched.
    """
    try:
        try:
            handle.wait(NOTICED_S)
        except DeadlineError:
            logger.warning("waits until what job %r has left on its cluster is here", job.name)
            handle.wait(FETCH_S - NOTICED_S)
    except DeadlineError:
        raise DeadlineError(
            f"what job {job.name!r} has left on its cluster is not here within {FETCH_S:g} s"
            f" ({silence_of(job) or 'it is still fetched'}); eps status {job.name} shows whether it is"
        ) from None
    finally:
        handle.close()


def _take_end_back(job: JobDir) -> None:
    """Have the next command about a job attend to it: its application is known again."""
    with JobLock(job.lock):
        # Somebody else may have found out by now how it did end.
        record = job.record()
        if record.end is not None and record.end.yarn.is_forgotten:
            job.note(phase=Phase.SUBMITTED, end=None, former=record)


def check_has_ended(client: Client, application_id: str, name: str) -> None:
    """Refuse to go on with a job whose application runs; one that YARN has forgotten does not.  Raises as above."""
    try:
        ended = client.report(application_id).ended
    except JobNotFoundError:
        ended = True
    if not ended:
        raise JobExistsError(
            f"job {name!r} is running ({application_id}): only one that has stopped can be started again"
        )
