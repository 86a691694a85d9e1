"""Room that nobody else seems to want, and room that is lacking, as far as an application master can tell.  Pure.

YARN tells an application of its headroom: what its user may still have of the queue's own share, and no more than is
free.  Who waits for that is not told; and whoever is granted its application master asks for the rest only when that
runs.  So what counts here is what has been free without a break for longer than that takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from eps.cluster.yarn.types import AllocateResult, Ask, Resource


@dataclass(frozen=True, slots=True)
class Home:
    """The container of the application master itself, which has to find room elsewhere where its node goes."""

    #: As YARN calls the node: ``host:port``.
    node: str
    size: Resource


#: Where YARN tells of no room, it has to have been quiet for so many times as long.
UNTOLD = 2


class Headroom:
    """What an application was told, over the last while.

    Parameters
    ----------
    quiet_s : float, seconds
        What has been free for so long, nobody waits for.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        #: This much of what is free must stay so.
        self.kept: Resource | None = None
        self._since_s: float | None = None
        #: (When, what), oldest first; each holds until the next.
        self._told: list[tuple[float, Resource | None]] = []

    def note(self, headroom: Resource | None, now_s: float) -> None:
        """Take in what a heartbeat says; None where it says nothing."""
        if self._since_s is None:
            self._since_s = now_s
        if not self._told or self._told[-1][1] != headroom:
            self._told.append((now_s, headroom))
        while len(self._told) > 1 and self._told[1][0] <= now_s - self._quiet_s:
            del self._told[0]

    def begin_again(self, now_s: float) -> None:
        """Forget what was told: somebody is being given room, or has it."""
        self._since_s, self._told = now_s, []

    def quiet_for(self, now_s: float) -> float:
        """Return for how long nobody was given room, in seconds."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def least(self, now_s: float) -> Resource | None:
        """Return what has been free all the time, on the whole, but for what is to be kept so; None where YARN has not
        told of all of it.
        """
        if self.quiet_for(now_s) < self._quiet_s or not self._told:
            return None
        told = [headroom for _, headroom in self._told]
        if any(headroom is None for headroom in told):
            return None
        kept = self.kept or Resource(0, 0)
        memory_mb, vcores = min(h.memory_mb for h in told if h), min(h.vcores for h in told if h)
        return Resource(max(0, memory_mb - kept.memory_mb), max(0, vcores - kept.vcores))

    def fits(self, size: Resource | None, counts_cores: bool, now_s: float) -> int:
        """Return how many containers of a size fit into room that nobody else seems to want.

        Of a size that is None, or where YARN has told of no room, one is tried after a longer while; not where room is
        to be kept free.
        """
        least = self.least(now_s)
        found = 0 if size is None or least is None else fitting(least, size, counts_cores)
        tried = self.kept is None and self.quiet_for(now_s) >= UNTOLD * self._quiet_s
        return found or int(tried)


def fitting(room: Resource, size: Resource, counts_cores: bool) -> int:
    """Return how many containers of a size fit into some room, wherever it is."""
    number = room.memory_mb // max(1, size.memory_mb)
    return max(0, min(number, room.vcores // max(1, size.vcores)) if counts_cores else number)


def why_not_granted(ask: Ask, last: AllocateResult, silent_s: float) -> str:
    """Return what is known of why an ask has not been granted, as a sentence.

    Parameters
    ----------
    ask : Ask
    last : AllocateResult
        The last answer of the ResourceManager.
    silent_s : float, seconds
        For how long it has not answered.
    """
    words = f"it asks for {ask.resource}"
    if ask.label:
        words += f" on nodes labelled {ask.label!r}"
    if silent_s:
        return f"{words}; the ResourceManager has not answered for {silent_s:.0f} s"
    if last.headroom is None:
        return words
    words += f"; YARN has {last.headroom} left for this job"
    if not ask.resource.fits_in(last.headroom):
        return f"{words} (its queue's share, its user's limit or what is free)"
    nodes = f"{last.num_nodes} node{'' if last.num_nodes == 1 else 's'}"
    return f"{words}, but has not found that much on one of its {nodes} yet"
