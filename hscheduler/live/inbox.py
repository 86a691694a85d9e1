"""The queue of a scheduler's thread: events to take and functions to call, from any thread.

Jobs report their progress several times a second, even while the scheduler cannot take events, for example because the
disk is full.  The queue stays bounded:

* Consecutive iterations of one job are merged: completed iterations, the last ten durations and at most fifty losses.
* Other events are kept.  They are few: jobs only answer orders, and no order is given meanwhile; new jobs are refused;
  people end a job or a sweep.

Source: style section 13 (one owner thread owns one state; others ask it, and wait with a deadline).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

from eps.errors import DeadlineError
from hscheduler.core import events as e
from hscheduler.core.jobs import WATCHED_ITERATIONS
from hscheduler.core.thinned import Thinned
from hscheduler.record.api import TIME_DIGITS

_T = TypeVar("_T")

#: Losses that are kept of a job's merged iterations.
MOST_LOSSES = 50
#: A state is busy for milliseconds, but it writes each event to a disk, which may be slow.
ANSWER_TIMEOUT_S = 30.0
#: Seconds between checks whether the owner thread still runs, while a caller waits for an answer.
_LOOK_S = 0.5


@dataclass
class HeldNews:
    """Merged iterations of one job: their number, the last ten durations, and some of the losses.

    Source: :data:`hscheduler.core.jobs.WATCHED_ITERATIONS` (no decision uses more of them).
    """

    job_id: str
    #: Time of the latest report.
    at_s: float = 0.0
    _iteration: int = 0
    _durations_s: tuple[float, ...] = ()
    #: (time, iterations complete, loss), some of them.
    _losses: Thinned[tuple[float, int, float]] = field(default_factory=lambda: Thinned(MOST_LOSSES))
    _values: Thinned[tuple[float, int, float]] = field(default_factory=lambda: Thinned(MOST_LOSSES))

    def add(self, at_s: float, news: e.Iterated) -> None:
        """Merge the job's next report."""
        self.at_s, self._iteration = at_s, news.iteration
        self._durations_s = (*self._durations_s, *news.durations_s)[-WATCHED_ITERATIONS:]
        for kept, new in ((self._losses, news.losses), (self._values, news.values)):
            for ago_s, iteration, value in new:
                kept.add((at_s - ago_s, iteration, value))

    def event(self, now_s: float) -> e.Iterated:
        """Return one event with all of it, reported at ``now_s``."""
        losses, values = (
            tuple((round(now_s - at_s, TIME_DIGITS), number, value) for at_s, number, value in kept.points())
            for kept in (self._losses, self._values)
        )
        return e.Iterated(self.job_id, self._iteration, self._durations_s, losses, values)


@dataclass(frozen=True)
class Question:
    """A function that the owner calls between two events.

    It changes nothing that a queued event depends on, so it may be called before events that wait.
    """

    find_out: Callable[[], None]

    def __call__(self) -> None:
        self.find_out()


#: An event, or a function to call between two events; None ends the loop.
Item = e.Event | Callable[[], None] | None


class Inbox:
    """A queue of events and of functions to call between two of them.

    Parameters
    ----------
    now_s : callable
        Returns the scheduler's time.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._items: deque[Item | HeldNews] = deque()
        #: Job -> its merged iterations, unless another event of the job is queued behind them.
        self._news: dict[str, HeldNews] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return the number of queued items."""
        return len(self._items)

    def put(self, item: Item) -> None:
        """Append an item."""
        with self._changed:
            if isinstance(item, e.Iterated):
                if item.job_id not in self._news:
                    self._news[item.job_id] = HeldNews(item.job_id)
                    self._items.append(self._news[item.job_id])
                self._news[item.job_id].add(self._now_s(), item)
            else:
                if isinstance(item, e.JobEvent):
                    self._news.pop(item.job_id, None)
                self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Item:
        """Wait for the first item, and remove and return it."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            item = self._items.popleft()
            if not isinstance(item, HeldNews):
                return item
            if self._news.get(item.job_id) is item:
                del self._news[item.job_id]
            return item.event(self._now_s())

    def answer(self, wait_s: float) -> None:
        """Answer questions for ``wait_s`` seconds while an event cannot be taken; other items wait."""
        until_s = time.monotonic() + wait_s
        while (question := self._question(until_s)) is not None:
            question()

    def _question(self, until_s: float) -> Question | None:
        """Remove and return the first question in the queue; None if none comes until then."""
        with self._changed:
            while True:
                for item in self._items:
                    if isinstance(item, Question):
                        self._items.remove(item)
                        return item
                if (left_s := until_s - time.monotonic()) <= 0.0:
                    return None
                self._changed.wait(left_s)


def ask_owner(
    owner: threading.Thread, put: Callable[[Question], None], question: Callable[[], _T], timeout_s: float
) -> _T:
    """Return the result of a question that the owner thread answers; raise what it raises.

    Parameters
    ----------
    owner : Thread
        Owns the state.  If it has ended, nothing changes any more, and the question is answered here.
    put : callable
        Queues a question for the owner.
    question : callable
        Must be short, because it blocks the owner.  Its result must not refer to anything that the owner changes later.
    timeout_s : float, seconds

    Raises
    ------
    DeadlineError
        The owner did not answer in time.
    """
    if owner is threading.current_thread() or not owner.is_alive():
        return question()
    answer: Future[_T] = Future()

    def find_out() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            # The error goes to the caller; the owner continues.
            answer.set_exception(error)

    put(Question(find_out))
    until_s = time.monotonic() + timeout_s
    while not wait((answer,), min(_LOOK_S, max(0.0, until_s - time.monotonic()))).done:
        if not owner.is_alive() and not answer.done():
            return question()
        if time.monotonic() > until_s:
            raise DeadlineError(f"{owner.name} has not answered within {timeout_s:g} s")
    return answer.result()
