"""The job master's line to its resource manager: containers, beats of the owner thread, and the last word.

The owner thread requests containers and gives them back; another thread hears what becomes of them.  A third one beats
while the owner thread works or waits for the disk.  So a beat does not wait behind the orders of a large job, and a
disk that stalls costs time but not the master.  A process that is stopped, or whose owner thread hangs, does not beat:
the supervisor starts the next master.
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
from eps.core.types import Role
from eps.errors import EpsError
from eps.master.sessions import Sessions
from eps.spec.job_spec import JobSpec

#: The resource manager is waited for so long at a time, in seconds: that it is closed wakes nobody.
WAIT_S = 2.0

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
    adopted : iterable of str
        Containers that run already.
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
                sum(self._spec.containers.memory_of(role) for role in roles),
                sum(self._spec.containers.vcores_of(role) for role in roles),
                env={"EPS_MASTER_ADDRESS": self._address},
            )
        )

    def release(self, container_id: str) -> None:
        """Give a container back; its process ends by itself as well, where the resource manager cannot reach it."""
        self._sessions.dismiss(container_id, "the job does not count on this process any more")
        self._resources.release(container_id)

    def kill(self, container_id: str, why: str) -> None:
        """Kill a container, whose process is told why where it can be told."""
        self._sessions.dismiss(container_id, f"declared lost: {why}")
        self._resources.kill(container_id)

    def kill_silent(self, timeout_s: float) -> None:
        """Give up the members that hang, and kill them: what they still did could harm."""
        for container_id, reason in self._sessions.silent(timeout_s):
            if not self._ends:
                logger.warning("M %s %s: it is lost", container_id, reason)
                self._put(e.MemberLost(container_id, reason))
                self.kill(container_id, f"it {reason}")

    def look_for_room(self, state: Job) -> None:
        """Let a job that has made room for others grow back when no other application wants that room any more."""
        if state.looks_for_room:
            fits = {Role(role): number for role, number in self._resources.room().items() if number}
            if fits:
                self._put(e.RoomSeen(fits))

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


class Pulse:
    """Beats as long as the owner thread gets on.

    Parameters
    ----------
    beat : callable
        Tells the supervisor; called on a thread of its own.
    beat_s : float, seconds
        Between two looks at the owner thread.
    """

    def __init__(self, beat: Callable[[], None], beat_s: float) -> None:
        self._beat, self._beat_s = beat, beat_s
        self._acts, self._seen = 0, -1
        #: Until when the owner thread may do nothing; it waits for the disk meanwhile.
        self._patient_until_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Beat at once and from now on, until :meth:`stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; harmless before :meth:`start`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self) -> None:
        """Count one thing that the owner thread has done: an event, a command."""
        self._acts += 1

    @contextmanager
    def patience(self, most_s: float) -> Iterator[None]:
        """Beat while the owner thread waits, but for no longer than ``most_s``: what takes no end then is a hang."""
        self._patient_until_s = time.monotonic() + most_s
        try:
            yield
        finally:
            self._patient_until_s = 0.0
            self._acts += 1

    def look(self) -> None:
        """Beat where the owner thread has done something since the last look, or waits for the disk."""
        if self._acts != self._seen or time.monotonic() < self._patient_until_s:
            self._seen = self._acts
            self._beat()

    def _run(self) -> None:
        # At once: a master that is killed soon has told how far the job is, and does not count as one without progress.
        self.look()
        while not self._stop.wait(self._beat_s):
            self.look()
