"""Containers that were killed for their silence: did they hang, or was their machine lost?  L2, pure.

The ResourceManager does not tell: it says of both at once that they were released, and misses a machine only after
minutes.  Their nodes tell: one that works answers when it is told to end a container, and one that is lost does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from eps.resources.api import Exited
from eps.yarn.exits import lost_with
from eps.yarn.types import Grant

KILLED = "was killed by the job master"


@dataclass(slots=True)
class _Killed:
    container_id: str
    grant: Grant
    #: Its node is lost, as far as is known.
    is_lost: bool | None
    #: YARN has released it; it counts as lost with its node if that has not answered until then.
    until_s: float | None = None


class KilledContainers:
    """What was killed, until YARN has released it and its node has spoken.

    Parameters
    ----------
    answer_s : float, seconds
        A node that has not answered so long after YARN has released what it was told to end counts as lost.
    """

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        #: By YARN's name.
        self._killed: dict[str, _Killed] = {}

    def add(self, container_id: str, grant: Grant, is_unusable: bool) -> None:
        """A container is killed: its node is told to end it, which YARN may have given up already."""
        self._killed[grant.container] = _Killed(container_id, grant, is_unusable or None)

    def drop(self, container: str) -> None:
        """How a container ended is known otherwise; harmless for one that is not here."""
        self._killed.pop(container, None)

    def on_node(self, node: str, *, is_lost: bool) -> None:
        """A node has answered, or is lost; one that YARN has given up may answer all the same."""
        for killed in self._killed.values():
            if killed.grant.node == node:
                killed.is_lost = is_lost or killed.is_lost is True

    def on_released(self, container: str, now_s: float) -> bool:
        """YARN says of a container no more than that it was released; return False where it was not killed."""
        killed = self._killed.get(container)
        if killed is not None:
            killed.until_s = now_s + self._answer_s
        return killed is not None

    def take_ended(self, now_s: float = -math.inf) -> list[Exited]:
        """Return how those ended that were released, and of whose nodes the rest is known, once."""
        events = []
        for container, killed in list(self._killed.items()):
            if killed.until_s is not None and (killed.is_lost is not None or now_s >= killed.until_s):
                del self._killed[container]
                lost = killed.is_lost is not False
                events.append(Exited(killed.container_id, None, lost_with(killed.grant.host) if lost else KILLED, lost))
        return events
