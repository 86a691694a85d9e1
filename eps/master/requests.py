"""Requests of clients, on threads of their own: answered by the owner thread, or read from the state under its lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from eps.core import events as e
from eps.core.events import ENDED_STATES
from eps.core.job import Job
from eps.errors import DeadlineError, PlanError
from eps.master import records
from eps.spec.runtime import Runtime

#: History entries of one message to a client that watches.
MOST_ENTRIES = 1000


class Requests:
    """What clients ask of a job.

    Parameters
    ----------
    runtime : Runtime
    state : Job
        Changed by the owner thread alone, under ``changed``.
    changed : Condition
        Notified when the job's state, or the phase of a plan, has changed.
    put : callable
        Takes events; never blocks.
    now : callable
        Seconds on the master's clock.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: Job,
        changed: threading.Condition,
        put: Callable[..., None],
        now: Callable[[], float],
    ) -> None:
        self._runtime, self._state, self._changed = runtime, state, changed
        self._put, self._now = put, now
        self._answers: dict[str, e.Answer] = {}
        #: Request id -> how many wait for its answer.
        self._asked: dict[str, int] = {}

    def ask(self, event: e.Event, request_id: str, timeout_s: float) -> e.Answer:
        """Queue a request and wait for its answer.

        Raises
        ------
        EpsError
            The refusal.
        DeadlineError
            No answer in time.
        """
        with self._changed:
            self._asked[request_id] = self._asked.get(request_id, 0) + 1
        self._put(event)
        with self._changed:
            self._changed.wait_for(lambda: request_id in self._answers, timeout_s)
            answer = self._answers.get(request_id)
            self._asked[request_id] -= 1
            if not self._asked[request_id]:
                del self._asked[request_id]
                self._answers.pop(request_id, None)
        if answer is None:
            raise DeadlineError(f"the job master did not decide on request {request_id} within {timeout_s:g} s")
        if answer.error is not None:
            raise answer.error
        return answer

    def answer(self, answer: e.Answer) -> None:
        """Give an answer to those that wait for it; on the owner thread."""
        with self._changed:
            if answer.request_id in self._asked:
                self._answers[answer.request_id] = answer
            self._changed.notify_all()

    def history_after(self, clock: int) -> tuple[list[dict[str, Any]], bool]:
        """Return (the next history entries after ``clock``, whether there will be no more)."""
        first = max(0, clock + 1)
        with self._changed:
            history = self._state.progress.history
            found = history[first : first + MOST_ENTRIES]
            ended = self._state.state in ENDED_STATES and len(history) <= first + MOST_ENTRIES
        # Outside the lock: the owner thread must not wait for texts.
        return [records.history_entry(self._runtime, record, 0.0) for record in found], ended

    def wait_for_change(self, clock: int, timeout_s: float) -> None:
        """Wait that long, or until the job has ended or has more history after ``clock`` than one message takes."""
        with self._changed:
            history = self._state.progress.history
            self._changed.wait_for(
                lambda: self._state.state in ENDED_STATES or len(history) > clock + 1 + MOST_ENTRIES, timeout_s
            )

    def wait_for_plan(
        self, plan_id: int, wait_s: float, still_wanted: Callable[[], bool]
    ) -> tuple[dict[str, Any], bool]:
        """Return (plan, whether it has ended), after waiting at most ``wait_s`` for its end.

        Raises
        ------
        PlanError
            There is no such plan.
        """
        deadline = self._now() + wait_s
        with self._changed:
            plan = self._state.plans.all.get(plan_id)
            if plan is None:
                raise PlanError(f"there is no plan {plan_id}; the job has {len(self._state.plans.all)}")
            while not plan.ended and self._now() < deadline and still_wanted():
                self._changed.wait(min(0.5, max(0.0, deadline - self._now())))
            return records.live_entry(self._state, plan, self._now()), plan.ended
