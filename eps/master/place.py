"""Where a job master listens, and who is told of it.  L3."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from eps.rpc.call import BoundServer
from eps.rpc.security import Security
from eps.storage.api import Storage
from eps.storage.atomic import read_json, write_json_atomic
from eps.storage.jobdir import MASTER_FILE, JobDir

Announce = Callable[[dict[str, Any]], None]


def announce_in(job: JobDir, shared: Storage) -> Announce:
    """Return what tells where the job's master listens: its directory, and the store that other hosts see."""

    def announce(place: dict[str, Any]) -> None:
        write_json_atomic(job.master_json, place, sync=False)
        with shared.write(MASTER_FILE) as file:
            file.write(json.dumps(place).encode("utf-8"))

    return announce


def open_place(job: JobDir, security: Security) -> tuple[BoundServer | None, Announce | None]:
    """Return where a job's master is to listen, and how it says so; None where it is as of a job of one host.

    Raises
    ------
    ConfigError
        The address cannot be listened on.
    StorageError
        The store that the job's processes share cannot be used.
    """
    note, shared = read_json(job.broker_json), read_json(job.shared_json)
    if note is None or shared is None:
        return None, None
    # Only who needs another store waits for the import.
    from eps.storage.locations import open_storage

    return BoundServer(str(note["host"]), security=security), announce_in(job, open_storage(str(shared["location"])))
