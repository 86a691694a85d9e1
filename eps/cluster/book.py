"""The containers of a job by phase, for a backend that grants them itself.  Pure; for one thread.  L2."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto

from eps.cluster.api import WITHDRAWN, Allocated, ContainerEvent, ContainerRequest, Exited, Running
from eps.errors import ConfigError, ResourceError


class Phase(Enum):
    """Where in its life a container is; see :mod:`eps.cluster.api`."""

    WAITING = auto()
    LAUNCHING = auto()
    RUNNING = auto()
    ENDED = auto()


class ContainerBook:
    """The containers of one job, for a backend that grants them itself, oldest request first.

    Parameters
    ----------
    max_containers : int
        Containers that may be there at once; a request beyond it waits for the end of another.  0 sets no limit.
    adopted : iterable of str, optional
        Containers that run already.

    Attributes
    ----------
    events : list of ContainerEvent
        What has happened and was not taken, in order.

    Raises
    ------
    ConfigError
        ``max_containers`` is negative.
    """

    def __init__(self, max_containers: int = 0, adopted: Iterable[str] = ()) -> None:
        if max_containers < 0:
            raise ConfigError(f"max_containers is {max_containers}, but must be at least 0")
        self.max_containers = max_containers
        self.events: list[ContainerEvent] = []
        self._phases = dict.fromkeys(adopted, Phase.RUNNING)
        self._waiting: deque[ContainerRequest] = deque()
        self._num_there = len(self._phases)

    def phase(self, container_id: str) -> Phase | None:
        """Return where a container is; None for one that was never requested."""
        return self._phases.get(container_id)

    def is_there(self, container_id: str) -> bool:
        """Return whether a container is granted and has not ended."""
        return self._phases.get(container_id) in (Phase.LAUNCHING, Phase.RUNNING)

    def there(self) -> list[str]:
        """Return the containers that are granted and have not ended, in the order of their requests."""
        return [container_id for container_id in self._phases if self.is_there(container_id)]

    def request(self, request: ContainerRequest) -> list[ContainerRequest]:
        """Take a request in; return what is granted now and must be launched.

        Raises
        ------
        ResourceError
            The container id has been used before.
        """
        if request.container_id in self._phases:
            raise ResourceError(f"{request.container_id} was requested before: a container id is used once")
        self._phases[request.container_id] = Phase.WAITING
        self._waiting.append(request)
        return self._grant()

    def withdraw(self, container_id: str) -> bool:
        """Take a request back that waits; return whether that was so."""
        if self._phases.get(container_id) is not Phase.WAITING:
            return False
        self._waiting = deque(request for request in self._waiting if request.container_id != container_id)
        self._phases[container_id] = Phase.ENDED
        self.events.append(Exited(container_id, None, WITHDRAWN))
        return True

    def on_running(self, container_id: str, pid: int, host: str) -> None:
        """Note that a container that was launched runs; nothing where it has ended meanwhile."""
        if self._phases.get(container_id) is Phase.LAUNCHING:
            self._phases[container_id] = Phase.RUNNING
            self.events.append(Running(container_id, pid, host))

    def on_end(self, container_id: str, code: int | None, reason: str, taken: bool = False) -> list[ContainerRequest]:
        """Note that a container is gone, once; return what is granted in its place and must be launched."""
        if not self.is_there(container_id):
            return []
        self._phases[container_id] = Phase.ENDED
        self._num_there -= 1
        self.events.append(Exited(container_id, code, reason, taken))
        return self._grant()

    def take_events(self) -> list[ContainerEvent]:
        """Return what has happened since the last call."""
        events, self.events = self.events, []
        return events

    def _grant(self) -> list[ContainerRequest]:
        granted = []
        while self._waiting and not (self.max_containers and self._num_there >= self.max_containers):
            request = self._waiting.popleft()
            self._num_there += 1
            self._phases[request.container_id] = Phase.LAUNCHING
            self.events.append(Allocated(request.container_id))
            granted.append(request)
        return granted
