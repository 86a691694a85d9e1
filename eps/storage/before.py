"""How a job was before it is started again: put back where no other run of it begins.  L2."""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from typing import Any

from eps.errors import JobExistsError, StorageError
from eps.storage.atomic import read_json, write_bytes_atomic, write_json_atomic
from eps.storage.jobdir import JobDir, JobLock
from eps.system.home import DIRECTORY_MODE

logger = logging.getLogger(__name__)

#: Folder of a job's directory, there only while another run of it begins.
ASIDE = "before"


class Before:
    """What another run of a job takes the place of: how it ended and what it brought, and what is written over.

    All that somebody would miss stays where it is until that run begins, so whoever is killed while its files are
    brought to a cluster has lost nothing.  Where somebody is killed just then, whoever finds out that the run has not
    begun puts back what was set aside (:func:`put_back_unbegun`, on YARN :func:`put_back_ended`), or else
    :func:`forget` does away with it.

    Parameters
    ----------
    job : JobDir
        Its lock is held, until one of the methods has returned that end this.

    Raises
    ------
    StorageError
        A file cannot be read, or what was set aside for an earlier run cannot be removed.
    """

    def __init__(self, job: JobDir) -> None:
        self._job = job
        self._aside = job.path / ASIDE
        try:
            if self._aside.exists():
                # Of somebody who was killed just then.  Another run has begun since, or nobody could tell: what is
                # there is older than what that one has left.
                shutil.rmtree(self._aside)
            #: What a start writes, the note of an application above all: its content by now, None where there is none.
            self._written = {
                path: path.read_bytes() if path.exists() else None
                for path in (job.yarn_json, job.shared_json, job.job_json, job.results_json, job.history)
            }
        except OSError as error:
            raise StorageError(f"{job.path}: cannot be made ready: {error.strerror or error}") from error

    def set_aside(self) -> None:
        """Have nothing tell of the run before: another one begins.

        Raises
        ------
        StorageError
            It cannot be moved.
        """
        job = self._job
        # How it ended goes first: while that is there, nobody looks whether the rest is to come back.
        found = [path for path in (job.ended_json, job.report, job.model, job.status_json) if path.exists()]
        try:
            if found:
                self._aside.mkdir(mode=DIRECTORY_MODE)
            for path in found:
                os.replace(path, self._aside / path.name)
        except OSError as error:
            raise StorageError(f"{job.path}: cannot be made ready: {error.strerror or error}") from error

    def put_back(self) -> None:
        """Have all be as it was, as far as that is possible: nothing has begun.  Harmless when repeated."""
        try:
            _move_back(self._job)
            # What somebody wished of the run that does not begin.
            self._job.ending_json.unlink(missing_ok=True)
            for path, content in self._written.items():
                if content is None:
                    path.unlink(missing_ok=True)
                elif not path.exists() or path.read_bytes() != content:
                    write_bytes_atomic(path, content, sync=False)
        except OSError as error:
            logger.warning("%s: not all of it is as it was: %s", self._job.path, error)

    def forget(self) -> None:
        """Remove what was set aside: another run has begun, or may have."""
        forget(self._job)


def put_back_unbegun(job: JobDir) -> None:
    """Have a job of this machine be as it had ended, where who started it again was killed before that run began.

    The supervisor of a run that begins does away with what was set aside, and nobody else does: what is still there
    when nobody runs the job is of a run that never began.  Harmless where nothing is.

    Parameters
    ----------
    job : JobDir
        Its lock is held.

    Raises
    ------
    StorageError
        It cannot be moved.
    """
    # What runs on a cluster may have begun unseen from here; one that has an end has it all, or another run has ended.
    if job.yarn_json.exists() or job.ended_json.exists():
        return
    try:
        _move_back(job)
    except OSError as error:
        raise _not_put_back(job, error) from error


def settle_unbegun(job: JobDir) -> None:
    """Put back what :func:`put_back_unbegun` does, for whoever only asks after a job: as far as that can be now."""
    with suppress(JobExistsError, OSError):
        # Most have nothing there, and their directories need not be writable for a look.
        if (job.path / ASIDE).exists():
            with JobLock(job.lock):
                put_back_unbegun(job)


def put_back_ended(job: JobDir, **more: Any) -> dict[str, Any] | None:
    """Have a job that somebody started again be as it had ended: its run never began, and who started it was killed.

    What that start has written stays: whoever asks after the job finds the run that it was to be.  It can be repeated
    where it was cut short.

    Parameters
    ----------
    job : JobDir
        Its lock is held.
    **more
        What is noted of that end besides.

    Returns
    -------
    dict or None
        How it had ended; None where nothing was set aside.

    Raises
    ------
    StorageError
        It cannot be read or moved.
    """
    aside = job.path / ASIDE / job.ended_json.name
    ended = read_json(aside)
    if ended is None:
        return None
    try:
        write_json_atomic(aside, {**ended, **more})
        _move_back(job)
    except OSError as error:
        raise _not_put_back(job, error) from error
    return dict(ended)


def _not_put_back(job: JobDir, error: OSError) -> StorageError:
    return StorageError(f"{job.path}: not all of it is as it was: {error.strerror or error}")


def forget(job: JobDir) -> None:
    """Remove what was set aside: another run of a job has begun, or may have."""
    shutil.rmtree(job.path / ASIDE, ignore_errors=True)


def _move_back(job: JobDir) -> None:
    """Move all that was set aside to where it was; how the job ended last: then nobody looks for the rest."""
    aside = job.path / ASIDE
    for path in sorted(aside.iterdir() if aside.exists() else (), key=lambda path: path.name == job.ended_json.name):
        os.replace(path, job.path / path.name)
    forget(job)
