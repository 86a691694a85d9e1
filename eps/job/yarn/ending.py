"""A job on YARN that is to end: the wish is noted in its directory, and stays until the application has ended.

Whoever attends to the job (:mod:`eps.job.yarn.attendant`) tells YARN to end the application until it has.  A
ResourceManager that does not answer may be away for long: nobody has to wait for it, and an attendant that is ended
itself leaves the wish to the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from eps.cluster.yarn.application import Application
from eps.errors import DeadlineError, PeerUnavailableError
from eps.job.status import BEING_STARTED, fetched_of, silence_of
from eps.storage.atomic import read_json, write_json_atomic
from eps.storage.jobdir import JobDir

#: An application that YARN was told to end is waited for this long; less, where the ResourceManager does not answer.
ENDED_S, SILENT_S = 60.0, 15.0
#: What is waited for is told after this long, or at once where nobody answers.
NOTICED_S = 1.0
_LOOK_S = 0.05


def wish(job: JobDir, application_id: str, reason: str) -> None:
    """Note that an application is to end, and why; the first reason stays.

    Parameters
    ----------
    job : JobDir
    application_id : str
        Empty while the job is being submitted, or resumed: whichever it gets, or none.
    reason : str

    Raises
    ------
    StorageError
        It cannot be noted.
    """
    if not wished(job, application_id):
        found = {"application_id": application_id, "reason": reason, "time_s": round(time.time(), 3)}
        write_json_atomic(job.ending_json, found, sync=True)


def wished(job: JobDir, application_id: str = "") -> str:
    """Return why an application is to end; empty where nobody wants that, or it was wanted of another one.

    Parameters
    ----------
    job : JobDir
    application_id : str
        Empty while the job is being submitted: what was wished before that is gone (:mod:`eps.job.resume`).

    Raises
    ------
    StorageError
        The note cannot be read.
    """
    found = read_json(job.ending_json) or {}
    is_meant = not application_id or found.get("application_id") in ("", application_id)
    return str(found.get("reason", "")) if is_meant else ""


def end_application(job: JobDir, reason: str, timeout_s: float, tell: Callable[[str], None]) -> None:
    """Have a job's application ended by whoever attends to it, and wait for the end.

    Whoever submits or resumes it looks for the wish while its files are brought, and notes its application on the way,
    in the place of the one before: that is looked for again and again.

    Parameters
    ----------
    job : JobDir
        Somebody submits it, or attends to it.
    reason : str
    timeout_s : float
        At least :data:`ENDED_S` are waited.
    tell : callable
        Called with a sentence whenever what is waited for has changed.

    Raises
    ------
    DeadlineError
        It has not ended in time, or whoever attends to it was ended; the wish stays, if it has an application by now.
        Or it has, and what it has left is not here in time.
    PeerUnavailableError
        The ResourceManager does not answer; it is told when it does.
    StorageError
        Its directory cannot be used.
    """
    application_id, later, said, told = "", "", "", False
    began_s, timeout_s = time.monotonic(), max(timeout_s, ENDED_S)
    while True:
        # Looked at before its application is: of one that has ended nobody notes another.
        is_running = job.is_running()
        application = Application.read(job)
        if application is None or job.ended() is not None:
            # Somebody starts it, or starts it again; who has noted its end, and is about to leave, attends to it still.
            if is_running and not application_id and not told and not job.record().pid:
                told = True
                wish(job, "", reason)
        elif application.application_id != application_id:
            application_id = application.application_id
            wish(job, application_id, reason)
            later = f"it is remembered that {application_id} is to end, and YARN is told so when it answers"
        if not is_running:
            break
        waited_s = time.monotonic() - began_s
        why, fetched = silence_of(job), fetched_of(job)
        text = fetched or f"waits for the end of {application_id or job.name}" + (f": {why}" if why else "")
        if text != said and (why or waited_s > NOTICED_S):
            said = text
            tell(text)
        if why and waited_s > SILENT_S:
            raise PeerUnavailableError(f"job {job.name!r} has not ended: {why}; {later}")
        if waited_s > timeout_s and fetched:
            raise DeadlineError(
                f"{fetched}: not within {timeout_s:g} s; eps status {job.name} shows whether it is here"
            )
        if waited_s > timeout_s:
            # Whoever attends to it says who that is as soon as it can; who submits it does not.
            promise = later if job.record().pid else BEING_STARTED.format(name=job.name)
            if application_id and job.ended() is not None:
                promise = f"{application_id} has, and whoever attends to it is about to"
            raise DeadlineError(f"job {job.name!r} has not ended within {timeout_s:g} s; {promise}")
        time.sleep(_LOOK_S)
    if job.ended() is None and application is not None:
        raise DeadlineError(f"job {job.name!r}: whoever attended to it here was ended before its end; {later}")
