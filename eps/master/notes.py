"""What a job master writes for people while its job runs: the journal, and the status of now and then."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from eps.errors import StorageError
from eps.storage.atomic import write_bytes_atomic
from eps.storage.jobdir import JobDir
from eps.storage.journal import Journal

#: The status is left on disk this often, or after so many times as long as that took: it grows with the job.
NOTE_S, NOTE_TIMES = 1.0, 20

logger = logging.getLogger(__name__)


class Notes:
    """Files of a job's directory; what cannot be written does not stop the job, and is shown.

    Parameters
    ----------
    job_dir : JobDir
    """

    def __init__(self, job_dir: JobDir) -> None:
        self._job_dir = job_dir
        self._journal: Journal | None = None
        #: What cannot be written -> why.
        self.errors: dict[str, str] = {}
        self._status_due_s = 0.0

    @property
    def status_is_due(self) -> bool:
        """True when the status is to be left on disk again."""
        return time.monotonic() >= self._status_due_s

    def status(self, status: Mapping[str, Any]) -> None:
        """Leave the status on disk, for clients that ask after a job whose processes were killed."""
        began_s = time.monotonic()
        noted = json.dumps({**status, "as_of_s": round(time.time(), 3)}).encode("ascii")
        try:
            write_bytes_atomic(self._job_dir.status_json, noted, sync=False)
            self._note("status")
        except StorageError as error:
            self._note("status", error)
        ended_s = time.monotonic()
        self._status_due_s = ended_s + max(NOTE_S, NOTE_TIMES * (ended_s - began_s))

    def journal(self, record: Mapping[str, Any], *, sync: bool) -> None:
        """Append a record to the journal."""
        try:
            if self._journal is None:
                self._journal = Journal(self._job_dir.journal)
            self._journal.append(record, sync)
            self._note("journal")
        except StorageError as error:
            self._note("journal", error)
            # Opened again, it knows what is on disk.
            self.close()

    def close(self) -> None:
        """Close the journal; the next record opens it again."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _note(self, what: str, error: StorageError | None = None) -> None:
        if error is None:
            self.errors.pop(what, None)
        elif what not in self.errors:
            logger.error("M goes on without the %s: %s", what, error)
            self.errors[what] = str(error)
