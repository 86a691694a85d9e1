"""The containers of a job: requested from the resource manager, and what that says of them, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence

from eps.cluster.api import (
    Allocated,
    ContainerEvent,
    ContainerRequest,
    EvictionWarning,
    Exited,
    ResourceManager,
    Running,
)
from eps.core import events as e
from eps.core.evictions import TAKEN_AWAY
from eps.core.types import Role
from eps.errors import EpsError
from eps.master.sessions import Sessions
from eps.spec.job_spec import JobSpec

#: The resource manager is waited for so long at a time, in seconds.
WAIT_S = 0.25

logger = logging.getLogger(__name__)


class Containers:
    """What a job has requested and not seen the end of.

    Parameters
    ----------
    resources : ResourceManager
    spec : JobSpec
    address : str
        Where the job's master listens.
    put : callable
        Takes events; never blocks.
    sessions : Sessions
    """

    def __init__(
        self,
        resources: ResourceManager,
        spec: JobSpec,
        address: str,
        put: Callable[..., None],
        sessions: Sessions,
    ) -> None:
        self._resources, self._spec, self._address = resources, spec, address
        self._put, self._sessions = put, sessions
        self._there = set(resources.adopted)
        #: The job has ended: nothing is heard of any more once all containers have.
        self._ends = False

    def __bool__(self) -> bool:
        return bool(self._there)

    def request(self, container_id: str, roles: Collection[Role]) -> None:
        """Request a container for a member of these roles."""
        self._there.add(container_id)
        self._resources.request(
            ContainerRequest(
                container_id,
                "+".join(sorted(roles)),
                sum(self._spec.number_by_role("memory_mb", role) for role in roles),
                sum(self._spec.number_by_role("vcores", role) for role in roles),
                env={"EPS_MASTER_ADDRESS": self._address},
            )
        )

    def listen(self) -> None:
        """Hear of containers until :meth:`end`, on a thread."""
        threading.Thread(target=self._listen, name="resources", daemon=True).start()

    def end(self) -> None:
        """The job has ended: listen only until all containers have, too."""
        self._ends = True

    def _listen(self) -> None:
        try:
            while not self._ends or self._there:
                self._resources.wait(WAIT_S)
                self._take(self._resources.poll())
        except Exception as error:
            # Closed at the end of the job; before it no containers are given any more, as where the supervisor has
            # gone, which takes this process along.
            if self._ends:
                return
            reason = str(error)
            if not isinstance(error, EpsError):
                logger.exception("M the resource manager cannot be listened to")
                reason = f"the resource manager failed unexpectedly: {type(error).__name__}: {error}"
            self._put(e.ResourcesLost(reason))

    def _take(self, found: Sequence[ContainerEvent]) -> None:
        warned = []
        for event in found:
            match event:
                case Allocated(container_id):
                    self._put(e.ContainerGranted(container_id))
                case Running(container_id, pid):
                    self._put(e.ContainerLaunched(container_id, pid))
                case Exited(container_id):
                    self._there.discard(container_id)
                    self._sessions.forget(container_id)
                    self._put(e.ContainerExited(container_id, event.reason, event.taken))
                case EvictionWarning(container_id, deadline_s, reason, for_others):
                    logger.warning("M container %s %s: it has %.1f s", container_id, reason or TAKEN_AWAY, deadline_s)
                    warned.append(e.ContainerWarning(container_id, deadline_s, reason, for_others))
        if warned:
            self._put(e.ContainersWarned(tuple(warned)))
