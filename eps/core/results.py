"""What workers measured at the latest clocks, as servers remember it.  L0, pure.

A worker reports to the job master, and sends the same along with its push.  Should it be lost before its report left,
the master asks the servers.

Source: design section 5 (what a lost worker did is identified by clock and split, and counts once).
"""

from __future__ import annotations

from eps.core import messages as m
from eps.core.types import MemberId

#: Clocks that are remembered: more than the master grants beyond what it has recorded.
MOST_CLOCKS = 512


class LatestResults:
    """Results of the latest clocks, by clock and split."""

    def __init__(self) -> None:
        self._found: dict[int, dict[int, m.SplitResult]] = {}

    def add(self, report: m.ClockReported) -> None:
        """Remember a report; what is known already stays."""
        known = self._found.setdefault(report.clock, {})
        for result in report.results:
            known.setdefault(result.split, result)
        while len(self._found) > MOST_CLOCKS:
            del self._found[min(self._found)]

    def reports(self, name: MemberId, incarnation: int) -> tuple[m.ClockReported, ...]:
        """Return everything as reports of ``name``, one for each clock, ascending."""
        return tuple(
            m.ClockReported(name, clock, tuple(results.values()), incarnation)
            for clock, results in sorted(self._found.items())
        )

    def clear(self) -> None:
        """Forget everything: the job goes back."""
        self._found.clear()
