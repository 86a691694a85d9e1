"""Retry of failed changes, and resending of orders without effect.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from eps.core import messages as m
from eps.core.messages import Orders
from eps.core.types import MemberId

#: The pause is doubled at most this often.
_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off: the pause doubles with each failure, up to a limit.  The only retry policy of a job.

    Every change returns a new value.
    """

    #: The pause after the first failure, and the longest pause, in seconds.
    first_s: float
    longest_s: float
    #: Failures since the last success.
    failures: int = 0
    #: The earliest time of the next try, in seconds on the master's clock.
    due_s: float = 0.0

    @property
    def pause_s(self) -> float:
        """The pause before the next try, counted from the last one."""
        return min(self.longest_s, self.first_s * 2.0 ** min(self.failures, _MOST_DOUBLINGS))

    def is_due(self, now_s: float) -> bool:
        """Return whether the next try may start."""
        return now_s >= self.due_s

    def tried(self, now_s: float) -> Backoff:
        """Return the policy after a try whose result is still unknown."""
        return replace(self, due_s=max(self.due_s, now_s + self.pause_s))

    def failed(self, now_s: float) -> Backoff:
        """Return the policy after a failure."""
        return replace(self.tried(now_s), failures=self.failures + 1)

    def succeeded(self) -> Backoff:
        """Return the policy after a success."""
        return replace(self, failures=0)


#: First and longest pause before an order is resent.
RESEND_S, LONGEST_RESEND_S = 1.0, 16.0


@dataclass(slots=True)
class _Said:
    order: m.Order
    at_s: float
    #: The pause before it is resent.
    pause_s: float


@dataclass
class Repeats:
    """Tracks when each order was last sent, to resend orders without effect: after 1 s at first, 16 s at most.

    Only the latest order of each kind counts for a member.  Streams are reliable, and the master resends at once to a
    member that reconnects, so a repeat seldom helps.  Without back-off, repeats would be most of the traffic of a large
    job.
    """

    _said: dict[tuple[MemberId, str], _Said] = field(default_factory=dict)

    def note(self, to: MemberId, order: m.Order, now_s: float) -> None:
        """Record that an order is sent; repeating the same order doubles its pause, another order resets it."""
        key = to, type(order).__name__
        last = self._said.get(key)
        if last is None or last.order != order:
            self._said[key] = _Said(order, now_s, RESEND_S)
        elif last.at_s < now_s:
            last.at_s, last.pause_s = now_s, min(2 * last.pause_s, LONGEST_RESEND_S)

    def due(self, missing: Orders, now_s: float) -> Orders:
        """Return the missing orders that are due, and forget all others than the missing ones."""
        before, self._said = self._said, {}
        found: Orders = []
        for to, order in missing:
            key = to, type(order).__name__
            said = before.get(key)
            if said is not None:
                self._said[key] = said
            if said is None or now_s >= said.at_s + said.pause_s:
                found.append((to, order))
        return found

    def due_s(self, missing: Orders) -> float:
        """Return when :meth:`due` will return any of these orders; infinity if there are none."""
        found = [self._said.get((to, type(order).__name__)) for to, order in missing]
        return min((-inf if said is None else said.at_s + said.pause_s for said in found), default=inf)

    def reset(self, name: MemberId | None = None) -> None:
        """Forget what was sent to a member that reconnected, or to all members after a restart of the master."""
        self._said = {key: said for key, said in self._said.items() if name is not None and key[0] != name}
