"""What a scheduler was told and cannot take yet, because its journal cannot be written, as where the disk is full.

Jobs go on meanwhile and tell how far they are, several times a second and for as long as it takes.  What is kept of
that is bounded:

* News of iterations give way first, and nothing else does.  Those of one job are one, up to whatever else it says: how
  many are complete, the durations of the last ten, and at most fifty losses.  So they are in the journal, too.
* To end a job or a sweep is wanted once, however often it is asked for: the first reason counts, as it does anyway.
* Everything else is kept, for a restart needs it, and cannot become more and more: a job answers what it was ordered,
  and nothing is ordered meanwhile; who submits a job is refused, and a sweep has as many trials as its file says.

It is logged when news begin to give way, and how many had to when nothing waits any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from hscheduler.core import events as e
from hscheduler.live.held import HeldNews

logger = logging.getLogger(__name__)

#: An event, or what is to be called between two of them; None is the end.
Item = e.Event | Callable[[], None] | None


class Backlog:
    """What waits, in its order; for one thread."""

    def __init__(self) -> None:
        self._items: deque[Item | HeldNews] = deque()
        #: Job -> its news, where it has said nothing else since.
        self._news: dict[str, HeldNews] = {}
        #: Ends that are wanted.
        self._ends: set[tuple[type, str]] = set()
        #: News that were added to others.
        self._merged = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._items)

    def put(self, item: Item, now_s: float) -> None:
        """Have something wait behind all that does."""
        match item:
            case e.Iterated(job_id):
                self._put_news(job_id, item, now_s)
                return
            case e.CancelAsked(name, _) | e.SweepClosed(name, _):
                if (type(item), name) in self._ends:
                    return
                self._ends.add((type(item), name))
        if isinstance(item, e.JobEvent):
            self._news.pop(item.job_id, None)
        self._items.append(item)

    def _put_news(self, job_id: str, news: e.Iterated, now_s: float) -> None:
        if job_id not in self._news:
            self._news[job_id] = HeldNews(job_id)
            self._items.append(self._news[job_id])
        else:
            if not self._merged:
                logger.warning("events wait: of how far each job is only the latest is kept, and some of its losses")
            self._merged += 1
        self._news[job_id].add(now_s, news)

    def get(self, now_s: float) -> Item:
        """Return what has waited longest.

        Raises
        ------
        IndexError
            Nothing waits.
        """
        item = self._items.popleft()
        if isinstance(item, HeldNews):
            if self._news.get(item.job_id) is item:
                del self._news[item.job_id]
            item = item.event(now_s)
        elif isinstance(item, e.CancelAsked):
            self._ends.discard((e.CancelAsked, item.job_id))
        elif isinstance(item, e.SweepClosed):
            self._ends.discard((e.SweepClosed, item.sweep))
        if not self._items and self._merged:
            logger.warning("nothing waits any more: %d news of iterations had been added to others", self._merged)
            self._merged = 0
        return item
