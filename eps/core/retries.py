"""What is tried again, and when: changes that failed, and orders that have had no effect.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from eps.core import messages as m
from eps.core.messages import Orders
from eps.core.types import MemberId

#: No pause is doubled more often than this.
_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """The one retry policy of a job: what failed is tried again after a pause that doubles each time, up to a limit.

    Every change returns a new value.
    """

    #: The pause after the first failure, and the longest pause, in seconds.
    first_s: float
    longest_s: float
    #: Failures since the last success.
    failures: int = 0
    #: The earliest time of the next try, seconds on the master's clock.
    due_s: float = 0.0

    @property
    def pause_s(self) -> float:
        """The pause before the next try, counted from the last one."""
        return min(self.longest_s, self.first_s * 2.0 ** min(self.failures, _MOST_DOUBLINGS))

    def is_due(self, now_s: float) -> bool:
        """Return whether it may be tried."""
        return now_s >= self.due_s

    def tried(self, now_s: float) -> Backoff:
        """Return the policy after a try whose result is not known yet."""
        return replace(self, due_s=max(self.due_s, now_s + self.pause_s))

    def failed(self, now_s: float) -> Backoff:
        """Return the policy after a failure."""
        return replace(self.tried(now_s), failures=self.failures + 1)

    def succeeded(self) -> Backoff:
        """Return the policy after a success."""
        return replace(self, failures=0)


#: An order is said again after this long at first, and after this long at most.
RESEND_S, LONGEST_RESEND_S = 1.0, 16.0


@dataclass(slots=True)
class _Said:
    order: m.Order
    at_s: float
    #: Until it is said again.
    pause_s: float


@dataclass
class Repeats:
    """When each order was said last, so that one without effect is said again, after 1 s at first and 16 s at most.

    Of each kind, a member owes the effect of the latest alone.  A stream delivers what is sent on it, and the master
    resends at once to a member that reconnects, so a repeat seldom helps; without back-off, repeats would be most of
    the traffic of a large job.
    """

    _said: dict[tuple[MemberId, str], _Said] = field(default_factory=dict)

    def note(self, to: MemberId, order: m.Order, now_s: float) -> None:
        """Take in that an order is said: another one than before is said again soon, the same one later each time."""
        key = to, type(order).__name__
        last = self._said.get(key)
        if last is None or last.order != order:
            self._said[key] = _Said(order, now_s, RESEND_S)
        elif last.at_s < now_s:
            last.at_s, last.pause_s = now_s, min(2 * last.pause_s, LONGEST_RESEND_S)

    def due(self, missing: Orders, now_s: float) -> Orders:
        """Return which of the orders whose effect is missing are due; all that are not among them are forgotten."""
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
        """Return when :meth:`due` will return any of these orders; infinity where there are none."""
        found = [self._said.get((to, type(order).__name__)) for to, order in missing]
        return min((-inf if said is None else said.at_s + said.pause_s for said in found), default=inf)

    def reset(self, name: MemberId | None = None) -> None:
        """Forget what was sent to a member that connects again; or to all, where another master sent it."""
        self._said = {key: said for key, said in self._said.items() if name is not None and key[0] != name}
