"""A network and a clock for tests: one thread, virtual time, every fault drawn from one seed.

Two ways to send: :meth:`FakeNetwork.send` loses, repeats and reorders; a :class:`Line` is what a transport gives, in
order and complete until it is cut.

Source: design section 4 ("every message is idempotent"); style section 14 (FakeNetwork).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random


@dataclass(frozen=True, slots=True)
class Faults:
    """How badly messages are treated; all messages are delayed by a random time, so that they overtake each other."""

    drop: float = 0.04
    duplicate: float = 0.04
    #: Share of messages that take ten times as long.
    late: float = 0.04
    shortest_s: float = 0.001
    longest_s: float = 0.02


#: Delays and reordering only.
RELIABLE = Faults(drop=0.0, duplicate=0.0, late=0.0)


class FakeNetwork:
    """Delivers messages and timers in the order of virtual time.

    Parameters
    ----------
    seed : int
        Everything random is drawn from it.
    faults : Faults
    """

    def __init__(self, seed: int, faults: Faults = Faults()) -> None:
        self.now_s = 0.0
        self.dropped = 0
        self.duplicated = 0
        self._faults = faults
        self._random = Random(seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` once, ``delay_s`` from now; nothing disturbs it."""
        self.at(self.now_s + delay_s, action)

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` once at ``time_s``; what is due at the same time runs in the order of the calls."""
        self._count += 1
        heapq.heappush(self._queue, (time_s, self._count, action))

    def send(self, deliver: Callable[[], None]) -> None:
        """Run ``deliver`` later: once, twice or never."""
        faults, fate = self._faults, self._random.random()
        if fate < faults.drop:
            self.dropped += 1
            return
        self.after(self.delay_s(), deliver)
        if fate > 1.0 - faults.duplicate:
            self.duplicated += 1
            self.after(self.delay_s(), deliver)

    def delay_s(self) -> float:
        """Return how long one message takes."""
        faults = self._faults
        delay_s = self._random.uniform(faults.shortest_s, faults.longest_s)
        return 10.0 * delay_s if self._random.random() < faults.late else delay_s

    def run(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Deliver until ``done``; return False where the virtual time ``limit_s`` or the last message came first."""
        while not done():
            if not self._queue or self._queue[0][0] > limit_s:
                return False
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
        return True


class Line:
    """One direction of a connection: everything arrives, in order, each message after a delay of its own.

    Messages of different lines overtake each other.

    Parameters
    ----------
    net : FakeNetwork
    slowness : float
        Delays are this many times those of the network.
    """

    def __init__(self, net: FakeNetwork, slowness: float = 1.0) -> None:
        self._net = net
        self._slowness = slowness
        self._last_s = 0.0
        self._cut_s = inf

    def send(self, deliver: Callable[[], None]) -> None:
        """Run ``deliver`` once everything that was sent before has arrived; never, where the line is cut before."""
        arrives_s = self._last_s = max(self._last_s, self._net.now_s + self._slowness * self._net.delay_s())

        def arrive() -> None:
            if arrives_s <= self._cut_s:
                deliver()

        self._net.at(arrives_s, arrive)

    def cut(self, share: float = 0.0) -> None:
        """Lose what is on its way, but for about ``share`` of it: a receiver works off what it has already got."""
        left_s = max(0.0, self._last_s - self._net.now_s)
        self._cut_s = min(self._cut_s, self._net.now_s + share * left_s)
