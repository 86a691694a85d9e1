"""Estimate idle capacity of the queue that no other application waits for, and explain missing capacity.  Pure.

YARN reports an application's headroom: what its user may still have of the queue's own share, at most what is free.  It
does not report who else waits, and a new application requests its containers only once its master runs.  So capacity
counts as idle when it has been free without a break for longer than that takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from eps.cluster.yarn.types import AllocateResult, Ask, Resource


@dataclass(frozen=True, slots=True)
class Home:
    """The application master's own container, which needs room elsewhere when its node is decommissioned."""

    #: YARN's name of the node: ``host:port``.
    node: str
    size: Resource


#: If YARN reports no headroom, the queue must have been quiet for this many times ``quiet_s``.
UNTOLD = 2


class Headroom:
    """The headroom that YARN reported over the last ``quiet_s`` seconds.

    Parameters
    ----------
    quiet_s : float, seconds
        Capacity that has been free for this long counts as idle.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        #: Capacity that must stay free.
        self.kept: Resource | None = None
        self._since_s: float | None = None
        #: (When, what), oldest first; each holds until the next.
        self._told: list[tuple[float, Resource | None]] = []

    def note(self, headroom: Resource | None, now_s: float) -> None:
        """Note the headroom of a heartbeat; None if it has none."""
        if self._since_s is None:
            self._since_s = now_s
        if not self._told or self._told[-1][1] != headroom:
            self._told.append((now_s, headroom))
        while len(self._told) > 1 and self._told[1][0] <= now_s - self._quiet_s:
            del self._told[0]

    def begin_again(self, now_s: float) -> None:
        """Restart the quiet period: another application is getting capacity."""
        self._since_s, self._told = now_s, []

    def quiet_for(self, now_s: float) -> float:
        """Return the length of the quiet period so far, in seconds."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def least(self, now_s: float) -> Resource | None:
        """Return the smallest headroom of the quiet period, less what must stay free.

        None if the period is too short, or if YARN did not report headroom throughout.
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
        """Return how many containers of a size fit into idle capacity.

        If ``size`` is None or nothing fits, return 1 after a longer quiet period, unless capacity must stay free.
        """
        least = self.least(now_s)
        found = 0 if size is None or least is None else fitting(least, size, counts_cores)
        tried = self.kept is None and self.quiet_for(now_s) >= UNTOLD * self._quiet_s
        return found or int(tried)


def fitting(room: Resource, size: Resource, counts_cores: bool) -> int:
    """Return how many containers of a size fit into ``room`` in total, regardless of nodes."""
    number = room.memory_mb // max(1, size.memory_mb)
    return max(0, min(number, room.vcores // max(1, size.vcores)) if counts_cores else number)


def why_not_granted(ask: Ask, last: AllocateResult, silent_s: float) -> str:
    """Return a sentence about why an ask has not been granted.

    Parameters
    ----------
    ask : Ask
    last : AllocateResult
        The last answer of the ResourceManager.
    silent_s : float, seconds
        How long the ResourceManager has not answered; 0.0 if it does.
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
