"""Asking the thread that owns a state: what it answers is of one moment, as no other thread can see it by itself.

Source: style section 13 (one owner thread owns one state; others ask it, and wait with a deadline).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeVar

from eps.errors import DeadlineError

_T = TypeVar("_T")

#: A state is busy for milliseconds; but it writes each event to a disk, which may be slow.
ANSWER_TIMEOUT_S = 30.0
#: Who waits for an answer looks this often whether the owner is there still.
_LOOK_S = 0.5


@dataclass(frozen=True)
class Question:
    """What an owner is to call between two events; it changes nothing that an event waits for, so it may go before
    events that wait.
    """

    find_out: Callable[[], None]

    def __call__(self) -> None:
        self.find_out()


def asked(owner: threading.Thread, put: Callable[[Question], None], question: Callable[[], _T], timeout_s: float) -> _T:
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
