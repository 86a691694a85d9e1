"""The job master and its resource manager: containers, and heartbeats of the owner thread.

The owner thread requests and releases containers; a second thread receives events about them.  A third sends heartbeats
while the owner thread works or waits for the disk.  So neither many orders nor a slow disk delay a heartbeat.  If the
process is stopped or its owner thread hangs, heartbeats stop and the supervisor starts the next master.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

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
from eps.core.job import Job
from eps.core.members import container_of
from eps.core.types import Role, Tier
from eps.errors import EpsError
from eps.master.sessions import Sessions
from eps.spec.job_spec import JobSpec

#: Longest wait for events of the resource manager, in seconds: closing it does not wake the thread.
WAIT_S = 2.0

logger = logging.getLogger(__name__)


class Containers:
    """The containers that a job has requested and that have not ended.

    Parameters
    ----------
    resources : ResourceManager
    spec : JobSpec
    address : str
        Address of the job's master.
    put : callable
        Takes events; never blocks.
    sessions : Sessions
    adopted : iterable of str
        Containers that already run.
    """

    def __init__(
        self,
        resources: ResourceManager,
        spec: JobSpec,
        address: str,
        put: Callable[..., None],
        sessions: Sessions,
        adopted: Iterable[str],
    ) -> None:
        self._resources, self._spec, self._address = resources, spec, address
        self._put, self._sessions = put, sessions
        self._there = set(adopted)
        #: The job has ended; once all containers have, too, the thread stops.
        self._ends = False

    def __bool__(self) -> bool:
        return bool(self._there)

    def request(self, container_id: str, roles: Collection[Role], tier: Tier | None) -> None:
        """Request a container for members of these roles."""
        self._there.add(container_id)
        containers, kinds = self._spec.containers, roles if tier is None else (tier,)
        self._resources.request(
            ContainerRequest(
                container_id,
                "+".join(sorted(roles)),
                sum(containers.memory_of(kind) for kind in kinds),
                sum(containers.vcores_of(kind) for kind in kinds),
                tier="" if tier is None else str(tier),
                env={"EPS_MASTER_ADDRESS": self._address},
            )
        )

    def release(self, container_id: str) -> None:
        """Release a container, and order its process to exit, since the resource manager may not reach it."""
        self._sessions.dismiss(container_id, "the job no longer uses this process")
        self._resources.release(container_id)

    def kill(self, container_id: str, why: str = "") -> None:
        """Kill a container; order its process to exit for the reason ``why``, if there is one."""
        if why:
            self._sessions.dismiss(container_id, f"declared lost: {why}")
        self._resources.kill(container_id)

    def kill_silent(self, timeout_s: float) -> None:
        """Count silent members as lost and kill them, so that they do no harm if they continue."""
        for seat, reason in self._sessions.silent(timeout_s):
            if not self._ends:
                logger.warning("M %s %s: it counts as lost", seat, reason)
                self._put(e.MemberLost(seat, reason))
                self.kill(container_of(seat), f"it {reason}")

    def look_for_room(self, state: Job) -> None:
        """Report free capacity to a job that has lent members to other applications, so that it reclaims them."""
        if state.looks_for_room:
            fits = {Role(role): number for role, number in self._resources.room().items() if number}
            if fits:
                self._put(e.RoomSeen(fits))

    def listen(self) -> None:
        """Start the thread that receives events about containers until :meth:`end`."""
        threading.Thread(target=self._listen, name="resources", daemon=True).start()

    def end(self) -> None:
        """Note the end of the job: receive events only until all containers have ended."""
        self._ends = True

    def _listen(self) -> None:
        try:
            while not self._ends or self._there:
                self._resources.wait(WAIT_S)
                self._take(self._resources.poll())
        except Exception as error:
            # At the end of the job it is closed.  Before that, the job can get no more containers.
            if self._ends:
                return
            reason = str(error)
            if not isinstance(error, EpsError):
                logger.exception("M the resource manager failed unexpectedly")
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
                    logger.warning("M container %s %s: %.1f s left", container_id, reason or TAKEN_AWAY, deadline_s)
                    warned.append(e.ContainerWarning(container_id, deadline_s, reason, for_others))
        if warned:
            self._put(e.ContainersWarned(tuple(warned)))


class Pulse:
    """Heartbeats to the supervisor while the owner thread makes progress.

    Parameters
    ----------
    beat : callable
        Sends a heartbeat; called on the thread of the pulse.
    beat_s : float, seconds
        Interval between checks of the owner thread.
    """

    def __init__(self, beat: Callable[[], None], beat_s: float) -> None:
        self._beat, self._beat_s = beat, beat_s
        self._acts, self._seen = 0, -1
        #: Until then the owner thread may wait for the disk.
        self._patient_until_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Send heartbeats from now on, until :meth:`stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more heartbeats; may be called before :meth:`start`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self) -> None:
        """Count one step of the owner thread: an event or a command."""
        self._acts += 1

    @contextmanager
    def patience(self, most_s: float) -> Iterator[None]:
        """Send heartbeats while the owner thread waits; after ``most_s`` seconds it counts as hung."""
        self._patient_until_s = time.monotonic() + most_s
        try:
            yield
        finally:
            self._patient_until_s = 0.0
            self._acts += 1

    def look(self) -> None:
        """Send a heartbeat if the owner thread has made progress since the last check, or waits for the disk."""
        if self._acts != self._seen or time.monotonic() < self._patient_until_s:
            self._seen = self._acts
            self._beat()

    def _run(self) -> None:
        # At once: a master that is killed soon afterwards has then reported the job's progress.
        self.look()
        while not self._stop.wait(self._beat_s):
            self.look()
