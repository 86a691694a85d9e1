"""Tell whether a container that was killed for its silence hung, or was lost with its node.  Pure.

The ResourceManager cannot tell: it reports both as released, and notices a lost node only after minutes.  The node
can: a working one answers an order to stop the container, a lost one does not.
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
    #: Whether its node is lost; None while unknown.
    is_lost: bool | None
    #: When YARN reported its release, and when the stop order went to its node.
    released_s: float = math.inf
    stop_sent_s: float = math.inf


class KilledContainers:
    """Killed containers, until YARN has released them and their nodes have answered.

    Parameters
    ----------
    answer_s : float, seconds
        A node counts as lost if it has not answered a stop order for this long after YARN released the container.
    """

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        #: By YARN's name.
        self._killed: dict[str, _Killed] = {}
        #: Container -> node of stop orders that were not sent yet: the threads that send them may be busy.
        self._unsent: dict[str, str] = {}

    def add(self, container_id: str, grant: Grant, is_unusable: bool) -> None:
        """Note that a container is killed; ``is_unusable``: YARN cannot use its node.  :meth:`order` must follow."""
        self._killed[grant.container] = _Killed(container_id, grant, is_unusable or None)

    def order(self, grant: Grant) -> None:
        """Queue a stop order to the node of a container."""
        self._unsent[grant.container] = grant.node

    def on_stopping(self, container: str, now_s: float) -> bool:
        """Note that a stop order is about to be sent; return False if it is pointless, or was sent before."""
        if self._unsent.pop(container, None) is None:
            return False
        if (killed := self._killed.get(container)) is not None:
            killed.stop_sent_s = min(killed.stop_sent_s, now_s)
        return True

    def drop(self, container: str) -> None:
        """Forget a container whose end is known otherwise; does nothing for an unknown one."""
        self._killed.pop(container, None)

    def on_node(self, node: str, *, is_lost: bool) -> None:
        """Note that a node has answered, or is lost; a node that YARN cannot use may still answer."""
        for killed in self._killed.values():
            if killed.grant.node == node:
                killed.is_lost = is_lost or killed.is_lost is True

    def on_stopped(self, node: str, *, reached: bool) -> None:
        """Note whether a node answered a stop order; if not, drop its other orders."""
        self.on_node(node, is_lost=not reached)
        if not reached:
            self._unsent = {container: there for container, there in self._unsent.items() if there != node}

    def on_released(self, container: str, now_s: float) -> bool:
        """Note that YARN reported a container as released; return False if it was not killed."""
        killed = self._killed.get(container)
        if killed is not None:
            killed.released_s = now_s
        return killed is not None

    def take_ended(self, now_s: float = -math.inf) -> list[Exited]:
        """Return, once, the ends of the released containers whose nodes have answered or are lost."""
        for killed in self._killed.values():
            if killed.is_lost is None and now_s >= max(killed.released_s, killed.stop_sent_s) + self._answer_s:
                self.on_stopped(killed.grant.node, reached=False)
        events = []
        for container, killed in list(self._killed.items()):
            if killed.released_s < math.inf and killed.is_lost is not None:
                del self._killed[container]
                lost = killed.is_lost
                events.append(Exited(killed.container_id, None, lost_with(killed.grant.host) if lost else KILLED, lost))
        return events
