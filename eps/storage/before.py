"""How a job was before it is started again: put back where no other run of it begins.  L2."""

from __future__ import annotations

import logging
import os
import shutil

from eps.errors import StorageError
from eps.storage.atomic import write_bytes_atomic
from eps.storage.jobdir import DIRECTORY_MODE, JobDir

logger = logging.getLogger(__name__)

#: Folder of a job's directory, there only while another run of it begins.
ASIDE = "before"


class Before:
    """What another run of a job takes the place of: how it ended and what it brought, and what is written over.

    All that somebody would miss stays where it is until that run begins, so whoever is killed while its files are
    brought to a cluster has lost nothing.

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
                # Of somebody who was killed just then.  Another run has begun since, or may have: what is there is
                # older than what that one has left.
                shutil.rmtree(self._aside)
            #: What a start writes, the note of an application above all: its content by now, None where there is none.
            self._written = {
                path: path.read_bytes() if path.exists() else None
                for path in (job.yarn_json, job.shared_json, job.job_json, job.history)
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
        found = [path for path in (job.report, job.model, job.status_json, job.ended_json) if path.exists()]
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
            for path in self._aside.iterdir() if self._aside.exists() else ():
                os.replace(path, self._job.path / path.name)
            self.forget()
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
        shutil.rmtree(self._aside, ignore_errors=True)
