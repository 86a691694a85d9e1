"""Resend unacknowledged orders with exponential back-off, from 1 to 16 s.

A stream delivers what is sent on it, and the master resends at once to a member that reconnects, so a repeat seldom
helps; without back-off, repeats would be most of the traffic of a large job.  L0, pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eps.core import messages as m
from eps.core.plan_driver import Orders
from eps.core.types import MemberId

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
    """When each order was said last; of each kind, a member owes the effect of the latest alone."""

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

    def reset(self, name: MemberId | None = None) -> None:
        """Forget what was sent to a member that connects again; or to all, where another master sent it."""
        self._said = {key: said for key, said in self._said.items() if name is not None and key[0] != name}
