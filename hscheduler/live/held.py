"""News of how far a job is that wait, as one: only the latest matter while nothing is decided by them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hscheduler.core import events as e
from hscheduler.core.jobs import WATCHED_ITERATIONS
from hscheduler.core.thinned import Thinned

#: Of seconds: microseconds, as the scheduler itself counts them where it has a journal.
TIME_DIGITS = 6
#: Losses that are kept of all that a job told meanwhile.
MOST_LOSSES = 50


@dataclass
class HeldNews:
    """News of one job: its iterations, the durations of the last ten, and some of the losses.

    Source: :data:`hscheduler.core.jobs.WATCHED_ITERATIONS` (more of them no decision looks at).
    """

    job_id: str
    #: When the latest came.
    at_s: float = 0.0
    _iteration: int = 0
    _durations_s: tuple[float, ...] = ()
    #: (time, iterations complete, loss), some of them.
    _losses: Thinned[tuple[float, int, float]] = field(default_factory=lambda: Thinned(MOST_LOSSES))

    def add(self, at_s: float, news: e.Iterated) -> None:
        """Take what the job says next."""
        self.at_s, self._iteration = at_s, news.iteration
        self._durations_s = (*self._durations_s, *news.durations_s)[-WATCHED_ITERATIONS:]
        for ago_s, iteration, loss in news.losses:
            self._losses.add((at_s - ago_s, iteration, loss))

    def event(self, now_s: float) -> e.Iterated:
        """Return all of it as said at ``now_s``."""
        losses = tuple((round(now_s - at_s, TIME_DIGITS), number, loss) for at_s, number, loss in self._losses.points())
        return e.Iterated(self.job_id, self._iteration, self._durations_s, losses)
