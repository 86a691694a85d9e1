"""Where a job master listens, and who is told of it.  L3."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eps.net.calls.call import BoundServer
from eps.net.security.credentials import Security
from eps.storage.api import Storage
from eps.storage.atomic import json_object, read_json, write_json_atomic
from eps.storage.jobdir import MASTER_FILE, JobDir


class Announcements:
    """What the masters of a job say of where they listen: a file of its directory, and of the store that hosts share.

    Parameters
    ----------
    job : JobDir
    shared : Storage, optional
        The store, where processes of the job run on several hosts.

    Raises
    ------
    StorageError
        What the last one said cannot be read.
    """

    def __init__(self, job: JobDir, shared: Storage | None = None) -> None:
        self._job = job
        self._shared = shared
        #: Generation of the last one that was announced, 0 before the first.
        self.generation = int(self._last().get("generation", 0))

    def _last(self) -> Mapping[str, Any]:
        if self._shared is None:
            return read_json(self._job.master_json) or {}
        if MASTER_FILE not in self._shared.names(""):
            return {}
        with self._shared.read(MASTER_FILE) as file:
            return json_object(file.read(), self._shared.describe(MASTER_FILE))

    def add(self, place: Mapping[str, Any]) -> None:
        """Say where the job's master listens.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        write_json_atomic(self._job.master_json, place, sync=False)
        if self._shared is not None:
            with self._shared.write(MASTER_FILE) as file:
                file.write(json.dumps(place).encode("utf-8"))


def open_place(job: JobDir, security: Security) -> tuple[BoundServer | None, Announcements]:
    """Return where a job's master is to listen, and where it says so; None where it is as of a job of one host.

    Raises
    ------
    ConfigError
        The address cannot be listened on.
    StorageError
        The store that the job's processes share cannot be used.
    """
    record = job.record()
    if record.broker is None or not record.shared:
        return None, Announcements(job)
    # Only who needs another store waits for the import.
    from eps.storage.locations import open_storage

    announcements = Announcements(job, open_storage(record.shared))
    return BoundServer(str(record.broker["host"]), security=security), announcements
