"""Containers that were killed for their silence: did they hang, or was their machine lost?  Pure.

The ResourceManager does not tell: it says of both at once that they were released, and misses a machine only after
minutes.  Their nodes tell: one that works answers when it is told to end a container, and one that is lost does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from eps.cluster.api import Exited
from eps.cluster.yarn.exit_status import lost_with
from eps.cluster.yarn.types import Grant

KILLED = "was killed by the job master"


@dataclass(slots=True)
class _Killed:
    container_id: str
    grant: Grant
    #: Its node is lost, as far as is known.
    is_lost: bool | None
    #: When YARN said that it has released it, and when its node was told to end it.
    released_s: float = math.inf
    told_s: float = math.inf


class KilledContainers:
    """What was killed, until YARN has released it and its node has spoken.

    Parameters
    ----------
    answer_s : float, seconds
        A node that has not answered so long after it was told to end what YARN has released counts as lost.
    """

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        #: By YARN's name.
        self._killed: dict[str, _Killed] = {}
        #: What nodes are still to be told to end -> its node: who tells them may be held up by others.
        self._untold: dict[str, str] = {}

    def add(self, container_id: str, grant: Grant, is_unusable: bool) -> None:
        """A container is killed whose node YARN may have given up already; :meth:`order` follows."""
        self._killed[grant.container] = _Killed(container_id, grant, is_unusable or None)

    def order(self, grant: Grant) -> None:
        """The node of a container is to be told to end it."""
        self._untold[grant.container] = grant.node

    def on_telling(self, container: str, now_s: float) -> bool:
        """A node is about to be told to end a container; return False where that is vain, or was done meanwhile."""
        if self._untold.pop(container, None) is None:
            return False
        if (killed := self._killed.get(container)) is not None:
            killed.told_s = min(killed.told_s, now_s)
        return True

    def drop(self, container: str) -> None:
        """How a container ended is known otherwise; harmless for one that is not here."""
        self._killed.pop(container, None)

    def on_node(self, node: str, *, is_lost: bool) -> None:
        """A node has answered, or is lost; one that YARN has given up may answer all the same."""
        for killed in self._killed.values():
            if killed.grant.node == node:
                killed.is_lost = is_lost or killed.is_lost is True

    def on_told(self, node: str, *, reached: bool) -> None:
        """A node that was told to end a container has answered, or not: then it is told nothing of what waits."""
        self.on_node(node, is_lost=not reached)
        if not reached:
            self._untold = {container: there for container, there in self._untold.items() if there != node}

    def on_released(self, container: str, now_s: float) -> bool:
        """YARN says of a container no more than that it was released; return False where it was not killed."""
        killed = self._killed.get(container)
        if killed is not None:
            killed.released_s = now_s
        return killed is not None

    def take_ended(self, now_s: float = -math.inf) -> list[Exited]:
        """Return how those ended that were released, and of whose nodes the rest is known, once."""
        for killed in self._killed.values():
            if killed.is_lost is None and now_s >= max(killed.released_s, killed.told_s) + self._answer_s:
                self.on_told(killed.grant.node, reached=False)
        events = []
        for container, killed in list(self._killed.items()):
            if killed.released_s < math.inf and killed.is_lost is not None:
                del self._killed[container]
                lost = killed.is_lost
                events.append(Exited(killed.container_id, None, lost_with(killed.grant.host) if lost else KILLED, lost))
        return events
