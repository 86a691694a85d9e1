"""Keep a scheduler's nodes equal to those of a YARN cluster.

A thread reads the nodes every two seconds, and a job that lost containers triggers another read.  So the scheduler
knows that a node is lost before it counts the node's containers as free.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from eps.cluster.yarn.facade import NodesClient
from eps.cluster.yarn.types import ALL_STATES
from eps.errors import EpsError
from hscheduler.core.resources import Resources
from hscheduler.live.scheduler import LiveScheduler
from hscheduler.spec import ClusterSpec
from hscheduler.yarn.nodes import Machine, Nodes

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


class YarnNodes:
    """Watches a cluster's nodes for a scheduler, until it is closed.

    Parameters
    ----------
    scheduler : LiveScheduler
    cluster : ClusterSpec
        The scheduler's cluster; its size is that of a node.
    machines : callable
        Returns the machines in all states; raises an EpsError if the cluster does not answer.
    every_s : float, seconds
    """

    def __init__(
        self,
        scheduler: LiveScheduler,
        cluster: ClusterSpec,
        machines: Callable[[], Sequence[Machine]],
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._scheduler = scheduler
        self._machines = machines
        self._every_s = every_s
        (size,) = set(cluster.capacities().values())
        self._nodes = Nodes(size, scheduler.ask(scheduler.state.ledger.in_use))
        #: One read at a time, so that changes are reported in their order.
        self._lock = threading.Lock()
        self._is_silent = False
        self._closing = threading.Event()
        scheduler.look_at_cluster = self.look
        self._thread = threading.Thread(target=self._keep_looking, name="nodes of yarn", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Read the nodes now; changes are queued for the scheduler when this returns."""
        with self._lock:
            try:
                found = self._machines()
            except EpsError as error:
                # A ResourceManager that does not answer, for example because it restarts, has lost no nodes.
                if not self._is_silent:
                    logger.warning("the cluster's nodes cannot be read, retrying: %s", error)
                self._is_silent = True
                return
            self._is_silent = False
            for event in self._nodes.look(found, time.monotonic()):
                self._scheduler.tell(event)

    def _keep_looking(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(self._every_s)

    def close(self) -> None:
        """Stop watching.  Idempotent."""
        self._scheduler.look_at_cluster = None
        self._closing.set()
        self._thread.join()

    def __enter__(self) -> YarnNodes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def machines_of(client: NodesClient) -> list[Machine]:
    """Return the machines that a ResourceManager lists, including those that have left the cluster."""
    return [
        Machine(each.node, each.state, Resources(each.capacity.vcores, each.capacity.memory_mb))
        for each in client.nodes(ALL_STATES)
    ]
