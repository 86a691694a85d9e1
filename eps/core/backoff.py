"""The one retry policy of a job: what failed is tried again after a pause that doubles each time, up to a limit.

Pure.  L0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: No pause is doubled more often than this.
_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """When something may be tried again; every change returns a new value."""

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
