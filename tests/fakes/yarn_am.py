"""The application master of a fake YARN with processes: the real one, with another cluster behind the facade."""

from __future__ import annotations

import json
import os
import signal
import threading
from functools import partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from eps.cluster.yarn.application import MasterOrders
from eps.cluster.yarn.attempt import Yarn
from eps.cluster.yarn.container import own_job_dir
from eps.core.events import JobState
from eps.core.job import Job
from eps.job.yarn.am import serve
from eps.system.logs import set_up_logging
from tests.fakes.storage import SharedFolder
from tools.chaos.trap import Traps, parse

#: Of the process: how it reaches the cluster, and what it is to do.
PLACE = "EPS_TEST_PLACE"


class Far:
    """An object of another process: calls go there and come back, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._connection.send((name, args, kwargs))
            well, found = self._connection.recv()
        if not well:
            raise found
        return found

    def close(self) -> None:
        """The other end closes what is its own when this connection ends."""
        self._connection.close()


def die_at_end(shared: Path, state: Job, said: bool) -> None:
    """Kill this process, if none was killed before, when it has noted that the job has finished and told everybody."""
    died = shared / "died-at-end"
    if said and state.state is JobState.FINISHED and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Run an attempt."""
    set_up_logging()
    place = json.loads(os.environ[PLACE])

    def far(side: str) -> Any:
        connection = Client(place["address"], "AF_UNIX")
        connection.send((side, place["attempt"]))
        return Far(connection)

    orders = MasterOrders(place["shared"], "python", {}, {})
    shared = Path(place["shared"])
    traps = Traps(parse(place["traps"]), shared)
    return serve(
        orders,
        own_job_dir(Path.cwd()),
        place["host"],
        Yarn(far("am"), far("nm"), submitted_s=place["submitted_s"]),
        SharedFolder(shared),
        watch=partial(die_at_end, shared) if place["dies_at_end"] else traps.look,
    )
