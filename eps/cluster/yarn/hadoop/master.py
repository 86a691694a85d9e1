"""An application master's side of YARN, with Hadoop's synchronous ``AMRMClient`` and ``NMClient``.

The asynchronous clients cannot be used: their handlers are abstract classes, which Python cannot extend.  What the
synchronous one needs beyond its documentation:

* a request stays in its books after the grant, and the next one asks for it again, until it is removed;
* it says how many containers it wants of a number; what YARN grants before it has heard that these are fewer, it grants
  beyond them, and the application master gives that back;
* ``NMClient`` ends all containers when it is stopped, unless it is told not to;
* the tokens of nodes are kept for the whole process, unless each pair of clients is given a cache of its own.
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
#: What a node says of a container that it has not started.
_NOT_STARTED = "is not handled by this nodemanager"
#: What it says of one that has ended.
_ENDED = "recently stopped"


class _Containers:
    """Java's own view of the containers that were granted: name -> container; shared by both sides."""

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
            It is not there any more.
        """
        with self._lock:
            found = self._found.get(name)
        if found is None:
            raise ResourceError(f"{name} is not a container of this application any more")
        return found


class HadoopAm:
    """:class:`~eps.cluster.yarn.facade.AmClient` over ``AMRMClient``; made by :func:`open_master`."""

    def __init__(self, session: HadoopSession, client: Any, containers: _Containers) -> None:
        self._session = session
        self._client = client
        self._containers = containers
        #: Number -> what is asked for under it; Hadoop's client tells YARN how many that are.
        self._asked: dict[int, list[Any]] = {}
        #: Of turns that the ResourceManager may not have heard; Hadoop's client says them again with the next.
        self._unheard: list[Ask] = []

    def register(self, host: str, port: int, tracking_url: str = "") -> Registration:
        """Say that the application master is there, and where."""
        with self._session.errors("the application master cannot register"):
            found = self._client.registerApplicationMaster(host, jint(port), tracking_url)
            return Registration(
                resource_of(found.getMaximumResourceCapability()),
                str(found.getQueue() or ""),
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
        """Beat; see :class:`~eps.cluster.yarn.facade.AmClient`.

        A ResourceManager that was started again is registered with, and told what is outstanding, by Hadoop's client.
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
        # Whatever goes wrong is tried again, unless it is known to be for good.
        with self._session.errors("the ResourceManager does not take a heartbeat", RpcError):
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
        """Let Hadoop's client forget asks that were refused: it would say them again with every beat, and be refused.

        Removed, they are still said once, as nothing of a kind that is refused: there is no other way to what is said
        next.  A withdrawal that is lost on the way is made up for when its container comes.
        """
        with self._session.errors("refused requests cannot be taken back"):
            for ask in asks:
                self._forget(ask.number)
            said_next = java(_API + "impl.AMRMClientImpl").class_.getDeclaredField("ask")
            said_next.setAccessible(jbool(True))
            said_next.get(self._client).clear()

    def _forget(self, number: int) -> None:
        """Ask for one less of a number; harmless where none is asked for."""
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
        """Say that the application has ended."""
        with self._session.errors("the application master cannot unregister"):
            final = getattr(record("FinalApplicationStatus"), status.name)
            self._client.unregisterApplicationMaster(final, diagnostics, "")

    def update_tracking_url(self, url: str) -> None:
        """Let the next beat say where the application's page is now."""
        with self._session.errors("the page's address cannot be changed"):
            self._client.updateTrackingUrl(url)

    def close(self) -> None:
        """Let go of the ResourceManager; harmless when repeated."""
        with self._session.errors("the ResourceManager's client cannot be stopped"):
            self._client.stop()


class HadoopNm:
    """:class:`~eps.cluster.yarn.facade.NmClient` over ``NMClient``; made by :func:`open_master`."""

    def __init__(self, session: HadoopSession, client: Any, containers: _Containers) -> None:
        self._session = session
        self._client = client
        self._containers = containers

    def start(self, container: str, launch: Launch) -> None:
        """Have a container's node start it."""
        found = self._containers.get(container)
        with self._session.errors(f"{container} cannot be started by its node"):
            self._client.startContainer(found, java_launch(launch))

    def stop(self, container: str, node: str) -> None:
        """Have a container's node end it at once."""
        with self._session.errors(f"{container} cannot be stopped by its node"):
            self._client.stopContainer(java_container_id(container), java_node_id(node))

    def status(self, container: str) -> ContainerState:
        """Return what its node says of a container."""
        found = self._containers.get(container)
        try:
            with self._session.errors(f"the node of {container} cannot be asked"):
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
        """Let go of the NodeManagers; containers stay as they are."""
        with self._session.errors("the NodeManagers' client cannot be stopped"):
            self._client.stop()


def open_master(session: HadoopSession, node_tokens: Any = None) -> tuple[HadoopAm, HadoopNm]:
    """Return both sides of YARN for an application master that runs in a container of YARN's.

    Parameters
    ----------
    session : HadoopSession
    node_tokens : NMTokenCache, optional
        Default: an empty one.

    Raises
    ------
    EpsError
        As of Hadoop's clients.
    """
    with session.errors("the application master cannot begin"):
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
