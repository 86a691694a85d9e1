"""Many job masters asked at once, with one deadline for all of them.

A plan is about one moment: who answers later, or hangs, must not make it older for the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from hscheduler.yarn.snapshot import Application

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Masters that are asked at once.
AT_ONCE = 8
#: A round of questions takes no longer: the plugin takes no plan that is about a moment five seconds ago.
ROUND_S = 2.5


class AskedTogether(Generic[T]):
    """Asks for something of every application, round by round, on threads of its own.  For one caller at a time.

    Parameters
    ----------
    ask : callable
        None where nobody knows.  May take its time, but must end; it is never asked twice at once for one application.
    round_s : float, seconds
        Who has not been answered by then is left out of the round.
    """

    def __init__(self, ask: Callable[[Application], T | None], round_s: float = ROUND_S) -> None:
        self._ask = ask
        self._round_s = round_s
        self._pool = ThreadPoolExecutor(AT_ONCE, "ask masters")
        #: Application -> the question that was not answered in time, and still is not.
        self._hanging: dict[str, Future[T | None]] = {}
        #: Those of the last round that were late: they go last, so that they keep nobody from being asked.
        self._late: frozenset[str] = frozenset()

    def __call__(self, applications: Iterable[Application]) -> dict[str, T]:
        """Return application -> what is known of it, without those that have not answered in time."""
        self._hanging = {name: question for name, question in self._hanging.items() if not question.done()}
        asked = [a for a in applications if a.application_id not in self._hanging]
        asked.sort(key=lambda a: a.application_id in self._late)
        questions = {a.application_id: self._pool.submit(self._ask, a) for a in asked}
        answered, unanswered = wait(questions.values(), self._round_s)
        late = {name for name, question in questions.items() if question in unanswered}
        for name in late:
            logger.debug("%s has not answered within %g s", name, self._round_s)
            if not questions[name].cancel():
                self._hanging[name] = questions[name]
        self._late = frozenset({*late, *self._hanging})
        told = {name: question.result() for name, question in questions.items() if question in answered}
        return {name: found for name, found in told.items() if found is not None}

    def close(self) -> None:
        """Ask nobody any more; what is being asked ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
