"""A network and a clock for tests: one thread, virtual time, every fault drawn from one seed.

Source: design section 4 ("every message is idempotent"); style section 14 (FakeNetwork).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
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
        self._count += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._count, action))

    def send(self, deliver: Callable[[], None]) -> None:
        """Run ``deliver`` later: once, twice or never."""
        faults, fate = self._faults, self._random.random()
        if fate < faults.drop:
            self.dropped += 1
            return
        self.after(self._delay_s(), deliver)
        if fate > 1.0 - faults.duplicate:
            self.duplicated += 1
            self.after(self._delay_s(), deliver)

    def _delay_s(self) -> float:
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
