"""The application master of a fake YARN with processes: the real one, with another cluster behind the facade."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from eps.chaos.trap import Traps, parse
from eps.logs import set_up_logging
from eps.yarn.am import serve
from eps.yarn.application import MasterOrders
from eps.yarn.attempt import Yarn
from eps.yarn.container import own_job_dir
from tests.fakes.storage import SharedFolder

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


def main() -> int:
    """Run an attempt."""
    set_up_logging()
    place = json.loads(os.environ[PLACE])

    def far(side: str) -> Any:
        connection = Client(place["address"], "AF_UNIX")
        connection.send((side, place["attempt"]))
        return Far(connection)

    orders = MasterOrders(place["shared"], "python", {}, {})
    traps = Traps(parse(place["traps"]), Path(place["shared"]))
    return serve(
        orders,
        own_job_dir(Path.cwd()),
        place["host"],
        Yarn(far("am"), far("nm")),
        SharedFolder(Path(place["shared"])),
        watch=traps.look,
    )
