"""One job's share of the containers of an application.  Pure; for one thread.

Input: wishes of the job's master and events about containers.  Output: events for the master, and orders for the
resource manager.  The resource manager knows each container by a name that is unique in the application.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eps.cluster.api import WITHDRAWN, ContainerEvent, ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.supervisor.process import CONTAINER_ID, ROLE
from eps.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WantContainer:
    """Request a container; an order has its name in the application."""

    request: ContainerRequest


@dataclass(frozen=True, slots=True)
class ReleaseContainer:
    """Release a container, or withdraw its request."""

    container_id: str


@dataclass(frozen=True, slots=True)
class KillContainer:
    """Kill a container at once."""

    container_id: str


@dataclass(frozen=True, slots=True)
class EndContainers:
    """Release all of the job's containers: the job has ended."""


Order = WantContainer | ReleaseContainer | KillContainer
Wish = Order | EndContainers


class Share:
    """The containers of one job.

    Two limits apply: the scheduler's lease, which grows and shrinks with the job, and the job's ``max_containers``.
    Requests beyond them wait here.

    Parameters
    ----------
    job : str
    name : callable
        Returns a new container name, unique in the application.
    role_of : callable
        Role or tier of the job's request -> role of the request in the application.
    max_containers : int
        0 sets no limit.
    lease : int, optional
        Containers that the scheduler grants the job; None sets no limit.

    Attributes
    ----------
    events : list of ContainerEvent
        Events that the job's master has not received, in order.

    Raises
    ------
    ConfigError
        ``max_containers`` is negative.

    Source
    ------
    EPS §5.1 (the scheduler decides how many containers a job has).  Deviation: jobs of one application share it.
    """

    def __init__(
        self,
        job: str,
        name: Callable[[], str],
        role_of: Callable[[str], str],
        max_containers: int = 0,
        lease: int | None = None,
    ) -> None:
        if max_containers < 0:
            raise ConfigError(f"max_containers is {max_containers}, but must be at least 0")
        self.job = job
        self.events: list[ContainerEvent] = []
        self._name, self._role_of = name, role_of
        self._max_containers, self._lease = max_containers, lease
        self._used: set[str] = set()
        self._waiting: dict[str, ContainerRequest] = {}
        #: Name in the application -> the job's id, for containers that were requested and have not ended.  The id is
        #: empty if the job's current master does not know the container.
        self._ids: dict[str, str] = {}
        #: The job's id -> name in the application.
        self._names: dict[str, str] = {}
        self._pids: dict[str, int] = {}
        #: The latest warning of each container, with the time of its deadline.
        self._warnings: dict[str, tuple[EvictionWarning, float]] = {}
        self._has_ended = False

    def begin(self, now_s: float) -> tuple[dict[str, int], list[Order]]:
        """Begin with a new master; return the running containers -> pid, and orders.

        Ungranted requests of the previous master are withdrawn: the new one repeats them.  Its warnings are repeated,
        with the time that is left.
        """
        self._waiting.clear()
        # The new master reuses the ids of its ungranted requests.
        self._used = set(self._pids)
        lost = [container_id for container_id in self._names if container_id not in self._pids]
        orders: list[Order] = [ReleaseContainer(self._forget(container_id)) for container_id in lost]
        self.events = [
            dataclasses.replace(warning, deadline_s=max(0.0, until_s - now_s))
            for warning, until_s in self._warnings.values()
        ]
        return dict(self._pids), orders

    def take(self, wish: Wish) -> list[Order]:
        """Apply a wish of the job's master; return the orders."""
        match wish:
            case WantContainer(request):
                return self._want(request)
            case ReleaseContainer(container_id):
                if self._withdraw(container_id) or container_id not in self._names:
                    return []
                return [ReleaseContainer(self._names[container_id])]
            case KillContainer(container_id):
                return [KillContainer(self._names[container_id])] if container_id in self._names else []
            case EndContainers():
                return self.end()

    def end(self) -> list[Order]:
        """Release all containers and refuse further requests; return the orders."""
        self._has_ended = True
        for container_id in list(self._waiting):
            self._withdraw(container_id)
        return [ReleaseContainer(name) for name in self._ids]

    def set_lease(self, lease: int | None) -> list[Order]:
        """Set how many containers the scheduler grants; excess ones keep running until the job releases them."""
        self._lease = lease
        return self._ask_what_fits()

    def on_event(self, event: ContainerEvent, now_s: float) -> list[Order]:
        """Apply an event about a container, by its name in the application; return the orders that follow."""
        name = event.container_id
        container_id = self._ids.get(name)
        if container_id is None:
            return []
        if container_id:
            event = dataclasses.replace(event, container_id=container_id)
            self.events.append(event)
            self._note(event, now_s)
        if isinstance(event, Exited):
            del self._ids[name]
            return self._ask_what_fits()
        return []

    def _note(self, event: ContainerEvent, now_s: float) -> None:
        """Record what a later master has to know."""
        container_id = event.container_id
        match event:
            case Running(pid=pid):
                self._pids[container_id] = pid
            case EvictionWarning(deadline_s=deadline_s):
                self._warnings[container_id] = event, now_s + deadline_s
            case Exited():
                for known in (self._names, self._pids, self._warnings):
                    known.pop(container_id, None)

    def _want(self, request: ContainerRequest) -> list[Order]:
        container_id = request.container_id
        if container_id in self._used or self._has_ended:
            why = "the job is ending" if self._has_ended else "its id was used before"
            self.events.append(Exited(container_id, None, f"was refused: {why}"))
            return []
        self._used.add(container_id)
        self._waiting[container_id] = request
        return self._ask_what_fits()

    def _withdraw(self, container_id: str) -> bool:
        withdrawn = self._waiting.pop(container_id, None) is not None
        if withdrawn:
            self.events.append(Exited(container_id, None, WITHDRAWN))
        return withdrawn

    def _ask_what_fits(self) -> list[Order]:
        limits = [limit for limit in (self._max_containers or None, self._lease) if limit is not None]
        orders: list[Order] = []
        while self._waiting and all(len(self._ids) < limit for limit in limits):
            container_id = next(iter(self._waiting))
            request = self._waiting.pop(container_id)
            name = self._name()
            self._ids[name], self._names[container_id] = container_id, name
            env: Mapping[str, str] = {**request.env, ROLE: request.role, CONTAINER_ID: container_id}
            role = self._role_of(request.kind)
            asked = dataclasses.replace(request, container_id=name, role=role, tier="", env=env)
            orders.append(WantContainer(asked))
        return orders

    def _forget(self, container_id: str) -> str:
        name = self._names.pop(container_id)
        self._warnings.pop(container_id, None)
        self._ids[name] = ""
        return name
