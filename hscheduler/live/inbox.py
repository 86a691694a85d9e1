"""What the thread that owns a scheduler's state is told, and asked; from any thread.

Jobs tell how far they are several times a second, also while the owner cannot take what it is told, as where the disk
is full.  What waits is bounded:

* News of iterations of one job are one, up to whatever else it says: how many are complete, the durations of the last
  ten, and at most fifty losses.
* To end a job or a sweep is wanted once, however often it is asked for: the first reason counts, as it does anyway.
* Everything else is kept.  It cannot become more and more: a job answers what it was ordered, and nothing is ordered
  meanwhile; who submits a job is refused, and a sweep has as many trials as its file says.

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

#: Losses that are kept of all that a job told meanwhile.
MOST_LOSSES = 50
#: A state is busy for milliseconds; but it writes each event to a disk, which may be slow.
ANSWER_TIMEOUT_S = 30.0
#: Who waits for an answer looks this often whether the owner is there still.
_LOOK_S = 0.5


@dataclass
class HeldNews:
    """News of one job that wait, as one: its iterations, the durations of the last ten, and some of the losses.

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


@dataclass(frozen=True)
class Question:
    """What an owner is to call between two events; it changes nothing that an event waits for, so it may go before
    events that wait.
    """

    find_out: Callable[[], None]

    def __call__(self) -> None:
        self.find_out()


#: An event, or what is to be called between two of them; None is the end.
Item = e.Event | Callable[[], None] | None


class Inbox:
    """A queue of events and of what is to be called between two of them.

    Parameters
    ----------
    now_s : callable
        Returns the scheduler's time.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._items: deque[Item | HeldNews] = deque()
        #: Job -> its news, where it has said nothing else since.
        self._news: dict[str, HeldNews] = {}
        #: Ends that are wanted.
        self._ends: set[tuple[type, str]] = set()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._items)

    def put(self, item: Item) -> None:
        """Have something wait behind all that does."""
        with self._changed:
            match item:
                case e.Iterated(job_id):
                    if job_id not in self._news:
                        self._news[job_id] = HeldNews(job_id)
                        self._items.append(self._news[job_id])
                    self._news[job_id].add(self._now_s(), item)
                case e.CancelAsked(name, _) | e.SweepClosed(name, _):
                    if (type(item), name) in self._ends:
                        return
                    self._ends.add((type(item), name))
                    self._append(item)
                case _:
                    self._append(item)
            self._changed.notify_all()

    def _append(self, item: Item) -> None:
        if isinstance(item, e.JobEvent):
            self._news.pop(item.job_id, None)
        self._items.append(item)

    def get(self) -> Item:
        """Wait for what has waited longest, and return it."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            item = self._items.popleft()
            match item:
                case HeldNews():
                    if self._news.get(item.job_id) is item:
                        del self._news[item.job_id]
                    return item.event(self._now_s())
                case e.CancelAsked(name, _) | e.SweepClosed(name, _):
                    self._ends.discard((type(item), name))
            return item

    def answer(self, wait_s: float) -> None:
        """Answer questions for so long, while an event cannot be taken: everything else waits behind that."""
        until_s = time.monotonic() + wait_s
        while (question := self._question(until_s)) is not None:
            question()

    def _question(self, until_s: float) -> Question | None:
        """Return the first question, whatever waits before it; None where there is none until then."""
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
    """Return what a question finds out on the thread that owns what it looks at; raises what it raises.

    Parameters
    ----------
    owner : Thread
        When it has ended nothing changes any more, and the question is asked here.
    put : callable
        Hands over what the owner is to call between two events.
    question : callable
        Short, for nothing else happens meanwhile; what it returns must not be of what the owner goes on changing.
    timeout_s : float, seconds

    Raises
    ------
    DeadlineError
        The owner has not answered so long.
    """
    if owner is threading.current_thread() or not owner.is_alive():
        return question()
    answer: Future[_T] = Future()

    def find_out() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            # It is the asker's: the owner goes on.
            answer.set_exception(error)

    put(Question(find_out))
    until_s = time.monotonic() + timeout_s
    while not wait((answer,), min(_LOOK_S, max(0.0, until_s - time.monotonic()))).done:
        if not owner.is_alive() and not answer.done():
            return question()
        if time.monotonic() > until_s:
            raise DeadlineError(f"{owner.name} has not answered within {timeout_s:g} s")
    return answer.result()
