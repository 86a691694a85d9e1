"""An application master's clients of YARN, with Hadoop's synchronous ``AMRMClient`` and ``NMClient``.

The asynchronous clients need handlers that extend abstract classes, which Python cannot do.  Facts about the
synchronous clients that their documentation lacks:

* ``AMRMClient`` keeps a request after its grant and sends it again with the next one, until the caller removes it;
* it sends the number of containers wanted, so YARN may grant too many before it hears of a smaller number; the
  application master releases these;
* ``NMClient`` stops all containers when it is stopped, unless it is configured not to;
* all clients of a process share one cache of node tokens, unless each pair gets its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from eps.cluster.yarn.hadoop.records import (
    completed_of,
    grant_of,
    java_ask,
    java_container_id,
    java_launch,
    java_node_id,
    java_set,
    node_update_of,
    preemption_of,
    record,
    resource_of,
)
from eps.cluster.yarn.types import AllocateResult, Ask, ContainerState, FinalStatus, Grant, Launch, Registration
from eps.errors import ResourceError, RpcError
from eps.hadoop.bridge import java, jbool, jfloat, jint
from eps.hadoop.errors import AskRefusedError
from eps.hadoop.session import HadoopSession

logger = logging.getLogger(__name__)

_API = "org.apache.hadoop.yarn.client.api."
#: In a node's answer about a container that it has not started, and about one that has ended.
_NOT_STARTED, _ENDED = "is not handled by this nodemanager", "recently stopped"


class _Containers:
    """Java's objects of the granted containers, by name; shared by both clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Any] = {}

    def add(self, container: Any) -> Grant:
        grant = grant_of(container)
        with self._lock:
            self._found[grant.container] = container
        return grant

    def drop(self, name: str) -> None:
        with self._lock:
            self._found.pop(name, None)

    def get(self, name: str) -> Any:
        """Return a container.

        Raises
        ------
        ResourceError
            It has ended.
        """
        with self._lock:
            found = self._found.get(name)
        if found is None:
            raise ResourceError(f"{name} is no longer a container of this application")
        return found


class HadoopAm:
    """:class:`~eps.cluster.yarn.facade.AmClient` over ``AMRMClient``; made by :func:`open_master`."""

    def __init__(self, session: HadoopSession, client: Any, containers: _Containers) -> None:
        self._session = session
        self._client = client
        self._containers = containers
        #: Number -> open requests; Hadoop's client tells YARN how many there are.
        self._asked: dict[int, list[Any]] = {}
        #: Asks of failed heartbeats; Hadoop's client sends them again with the next one.
        self._unheard: list[Ask] = []

    def register(self, host: str, port: int, tracking_url: str = "") -> Registration:
        """Register the application master and its address."""
        with self._session.errors("the application master cannot register"):
            found = self._client.registerApplicationMaster(host, jint(port), tracking_url)
            return Registration(
                resource_of(found.getMaximumResourceCapability()),
                tuple(self._containers.add(c) for c in found.getContainersFromPreviousAttempts() or ()),
                "CPU" in str(found.getSchedulerResourceTypes()),
            )

    def allocate(
        self,
        asks: Sequence[Ask] = (),
        withdrawn: Sequence[int] = (),
        releases: Sequence[str] = (),
        blacklist: Sequence[str] = (),
        unblacklist: Sequence[str] = (),
        progress: float = 0.0,
    ) -> AllocateResult:
        """Send a heartbeat; see :class:`~eps.cluster.yarn.facade.AmClient`.

        After a restart of the ResourceManager, Hadoop's client itself registers again and repeats open requests.
        """
        self._unheard += asks
        try:
            result = self._allocate(asks, withdrawn, releases, blacklist, unblacklist, progress)
        except AskRefusedError:
            self._take_back(self._unheard)
            self._unheard = []
            raise
        self._unheard = []
        return result

    def _allocate(
        self,
        asks: Sequence[Ask],
        withdrawn: Sequence[int],
        releases: Sequence[str],
        blacklist: Sequence[str],
        unblacklist: Sequence[str],
        progress: float,
    ) -> AllocateResult:
        # Unknown errors become an RpcError, after which the caller retries.
        with self._session.errors("the ResourceManager refuses a heartbeat", RpcError):
            for ask in asks:
                request = java_ask(ask)
                self._client.addContainerRequest(request)
                self._asked.setdefault(ask.number, []).append(request)
            for number in withdrawn:
                self._forget(number)
            for container in releases:
                self._client.releaseAssignedContainer(java_container_id(container))
            if blacklist or unblacklist:
                array_list = java("java.util.ArrayList")
                self._client.updateBlacklist(array_list(java_set(blacklist)), array_list(java_set(unblacklist)))
            return self._result(self._client.allocate(jfloat(progress)))

    def _take_back(self, asks: Sequence[Ask]) -> None:
        """Make Hadoop's client forget refused asks: it would send them with every heartbeat, and YARN would refuse it.

        After a removal the client still sends a count of zero for the refused kind, which YARN refuses as well.  So
        clear its private list of changes, for which it has no method.  If that drops a withdrawal, the surplus
        container is released once it is granted.
        """
        with self._session.errors("refused requests cannot be removed"):
            for ask in asks:
                self._forget(ask.number)
            changes = java(_API + "impl.AMRMClientImpl").class_.getDeclaredField("ask")
            changes.setAccessible(jbool(True))
            changes.get(self._client).clear()

    def _forget(self, number: int) -> None:
        """Remove one request of a number, if there is any."""
        if requests := self._asked.get(number):
            self._client.removeContainerRequest(requests.pop())

    def _result(self, found: Any) -> AllocateResult:
        granted = tuple(self._containers.add(c) for c in found.getAllocatedContainers())
        for grant in granted:
            self._forget(grant.number)
        completed = tuple(completed_of(status) for status in found.getCompletedContainersStatuses())
        for one in completed:
            self._containers.drop(one.container)
        headroom = found.getAvailableResources()
        return AllocateResult(
            granted,
            completed,
            tuple(node_update_of(report) for report in found.getUpdatedNodes()),
            preemption_of(found.getPreemptionMessage()),
            None if headroom is None else resource_of(headroom),
            int(found.getNumClusterNodes()),
            tuple(self._containers.add(c) for c in found.getContainersFromPreviousAttempts() or ()),
        )

    def unregister(self, status: FinalStatus, diagnostics: str = "") -> None:
        """Report the end of the application."""
        with self._session.errors("the application master cannot unregister"):
            final = getattr(record("FinalApplicationStatus"), status.name)
            self._client.unregisterApplicationMaster(final, diagnostics, "")

    def update_tracking_url(self, url: str) -> None:
        """Report the new URL of the application's page with the next heartbeat."""
        with self._session.errors("the page's address cannot be changed"):
            self._client.updateTrackingUrl(url)

    def close(self) -> None:
        """Close the connection to the ResourceManager.  Idempotent."""
        with self._session.errors("the ResourceManager's client cannot be stopped"):
            self._client.stop()


class HadoopNm:
    """:class:`~eps.cluster.yarn.facade.NmClient` over ``NMClient``; made by :func:`open_master`."""

    def __init__(self, session: HadoopSession, client: Any, containers: _Containers) -> None:
        self._session = session
        self._client = client
        self._containers = containers

    def start(self, container: str, launch: Launch) -> None:
        """Start a container on its node."""
        found = self._containers.get(container)
        with self._session.errors(f"the node of {container} cannot start it"):
            self._client.startContainer(found, java_launch(launch))

    def stop(self, container: str, node: str) -> None:
        """Stop a container on its node at once."""
        with self._session.errors(f"the node of {container} cannot stop it"):
            self._client.stopContainer(java_container_id(container), java_node_id(node))

    def status(self, container: str) -> ContainerState:
        """Return a container's state on its node."""
        found = self._containers.get(container)
        try:
            with self._session.errors(f"the node of {container} does not report its state"):
                status = self._client.getContainerStatus(found.getId(), found.getNodeId())
                ended = str(status.getState()) == "COMPLETE"
        except ResourceError as error:
            words = str(error).lower()
            if _NOT_STARTED in words:
                return ContainerState.UNKNOWN
            if _ENDED in words:
                return ContainerState.COMPLETE
            raise
        return ContainerState.COMPLETE if ended else ContainerState.RUNNING

    def close(self) -> None:
        """Close the connections to NodeManagers; containers keep running."""
        with self._session.errors("the NodeManagers' client cannot be stopped"):
            self._client.stop()


def open_master(session: HadoopSession, node_tokens: Any = None) -> tuple[HadoopAm, HadoopNm]:
    """Return the clients for an application master in a YARN container.

    Parameters
    ----------
    session : HadoopSession
    node_tokens : NMTokenCache, optional
        Default: an empty one.

    Raises
    ------
    EpsError
        Hadoop's clients cannot start.
    """
    with session.errors("the application master's clients cannot start"):
        tokens = java(_API + "NMTokenCache")() if node_tokens is None else node_tokens
        am = java(_API + "AMRMClient").createAMRMClient()
        am.setNMTokenCache(tokens)
        nm = java(_API + "NMClient").createNMClient()
        nm.setNMTokenCache(tokens)
        nm.cleanupRunningContainersOnStop(jbool(False))
        for client in (am, nm):
            client.init(session.java_conf)
            client.start()
    containers = _Containers()
    return HadoopAm(session, am, containers), HadoopNm(session, nm, containers)
