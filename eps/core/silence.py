"""Who has said nothing for too long: the job master's deadlines for its members.  Pure.  L0.

Source: design section 5 (a member is lost with its connection, or with its silence); the restart of all deadlines after
the observer's own pause follows Lifeguard (Dadgar et al., DSN 2018): a slow observer must not suspect others.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A stream that broke is opened again within this long, or its member is lost.
REATTACH_S = 1.0
#: Asked this much later than the time before, the observer itself was not running.
OWN_PAUSE_S = 1.0


@dataclass(slots=True)
class _Watched:
    heard_s: float
    #: When the stream broke; None while there is one.
    broke_s: float | None = None


class SilenceWatch:
    """When each container was last heard of.

    Times are seconds of one steady clock.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        #: When :meth:`silent` was called last; before that, since when a container is watched.
        self._asked_s: float | None = None

    def expect(self, container_id: str, now_s: float) -> None:
        """Wait for a container's stream from now on; one that has a stream is left as it is."""
        self._begin(now_s)
        self._watched.setdefault(container_id, _Watched(now_s))

    def attached(self, container_id: str, now_s: float) -> None:
        """A container opened a stream."""
        self._begin(now_s)
        self._watched[container_id] = _Watched(now_s)

    def _begin(self, now_s: float) -> None:
        """From the first container on questions are due: an observer that does not come to its first one is late."""
        if self._asked_s is None:
            self._asked_s = now_s

    def heard(self, container_id: str, now_s: float) -> None:
        """A container said something; of one that is not watched (any more) it means nothing."""
        watched = self._watched.get(container_id)
        if watched is not None:
            watched.heard_s = now_s

    def broke(self, container_id: str, now_s: float) -> None:
        """A container's stream broke."""
        watched = self._watched.get(container_id)
        if watched is not None:
            watched.broke_s = now_s

    def forget(self, container_id: str) -> None:
        """A container has ended, or is to end: its silence means nothing."""
        self._watched.pop(container_id, None)

    def silent(self, now_s: float, timeout_s: float) -> list[tuple[str, str]]:
        """Return (container, why) of those that count as lost, each once.

        Called much later than the time before, or for the first time much later than a container was watched, returns
        none and starts every deadline anew: the caller could not have heard anything meanwhile.
        """
        late = self._asked_s is not None and now_s - self._asked_s > OWN_PAUSE_S
        self._asked_s = now_s
        if late:
            for watched in self._watched.values():
                watched.heard_s = now_s
                if watched.broke_s is not None:
                    watched.broke_s = now_s
            return []
        lost: list[tuple[str, str]] = []
        for container_id, watched in self._watched.items():
            if now_s - watched.heard_s >= timeout_s:
                lost.append((container_id, f"said nothing for {timeout_s:g} s"))
            elif watched.broke_s is not None and now_s - watched.broke_s >= min(REATTACH_S, timeout_s):
                within_s = min(REATTACH_S, timeout_s)
                lost.append((container_id, f"lost its session and did not come back within {within_s:g} s"))
        for container_id, _ in lost:
            del self._watched[container_id]
        return lost
