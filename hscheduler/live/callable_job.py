"""A trial that is a Python callable in a process of its own, instead of a job of EPS.

It has the interface of :class:`~hscheduler.live.job.LiveJob`, and one container, whose size never changes.  A report
returns once the stopping rule has judged it.  A rule that pauses trials suspends the process, which keeps its memory
and continues when the rule promotes it.  A callable has no checkpoint: after a crash of the scheduler it is called
again.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from eps.errors import DIVERGED, ConfigError
from eps.spec.file import RunRequest
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.rungs import Rungs
from hscheduler.live.job_state import HistoryReader
from hscheduler.live.objective import ObjectiveProcess
from hscheduler.reports.history import NO_SUCH_METRIC

#: A process that was killed has this long to end.
_END_TIMEOUT_S = 10.0


class CallableJob:
    """One call of a callable.  Any thread may call its methods; all but ``leave`` and ``close`` return at once.

    Parameters
    ----------
    job_id, name : str
        In the sweep, and of this scheduler.
    objective : bytes
        The pickled callable.
    point : mapping
        Its argument.
    metric : str
        As it reports it.
    feedback_iteration : int
    rungs : Rungs
        Iterations at which the stopping rule judges it.
    say : callable
        Takes events, from any thread.
    settle : callable
        Waits until the scheduler has taken all events so far, and its orders are here.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        objective: bytes,
        point: Mapping[str, Any],
        metric: str,
        feedback_iteration: int,
        rungs: Rungs,
        say: Callable[[e.Event], None],
        settle: Callable[[], None],
    ) -> None:
        self.name = name
        self._settle = settle
        self._job_id, self._objective, self._point, self._metric, self._say = job_id, objective, point, metric, say
        self._reading = HistoryReader(job_id, metric, feedback_iteration, rungs)
        #: Reports with the metric, and the names in all of them.
        self._history: list[dict[str, Any]] = []
        self._reported: set[str] = set()
        self._began_s = 0.0
        self._lock = threading.Lock()
        self._process: ObjectiveProcess | None = None
        self._thread: threading.Thread | None = None
        #: The iteration of the rung at which its process is suspended; 0 while it runs.
        self._paused_at = 0
        #: Why it was ordered to end.
        self._why = ""
        self._is_over = False

    # ---- orders

    def restore(
        self, iteration: int, seats: Mapping[str, Any], has_feedback: bool, has_started: bool, num_rungs: int = 0
    ) -> None:
        """Call the callable again if it ran under an earlier scheduler; see :meth:`LiveJob.restore`."""
        self._reading.restore(iteration, has_feedback, num_rungs)
        if has_started:
            self._start_or_continue()

    def obey(self, number: int, order: e.Order) -> None:
        """Carry out an order."""
        match order:
            case e.StartJob():
                self._start_or_continue()
            case e.EndJob(_, _, why, after) if after:
                self._pause(after)
            case e.EndJob(_, _, why):
                self._end(why)

    @property
    def is_alive(self) -> bool:
        """Whether its process may still run."""
        return self._thread is not None and self._thread.is_alive()

    def retire(self) -> None:
        """End the process, which may be suspended, of a trial that is over."""
        self._end("the trial is over")

    def leave(self) -> None:
        """As :meth:`close`: a callable does not outlive its sweep."""
        self.close()

    def interrupt(self) -> None:
        """As :meth:`close`."""
        self.close()

    def close(self) -> None:
        """End the process, and wait for its thread."""
        self._end("H-scheduler ends")
        if self._thread is not None:
            self._thread.join(_END_TIMEOUT_S)

    def _start_or_continue(self) -> None:
        with self._lock:
            if self._is_over:
                return
            if self._paused_at:
                self._reading.rewind(self._paused_at)
                self._paused_at = 0
                if self._process is not None:
                    self._process.signal(signal.SIGCONT)
                    self._say(e.JobStarted(self._job_id))
                return
            self._thread = threading.Thread(target=self._run, name=f"callable {self.name}", daemon=True)
            self._thread.start()

    def _pause(self, rung: int) -> None:
        with self._lock:
            if self._is_over:
                return
            self._paused_at = rung
            # Without a process yet, its thread suspends it at once.
            if self._process is not None:
                self._process.signal(signal.SIGSTOP)
            self._say(e.JobEnded(self._job_id, Phase.KILLED))

    def _end(self, why: str) -> None:
        with self._lock:
            self._why = self._why or why
            if self._process is not None:
                self._process.kill()

    # ---- its thread

    def _run(self) -> None:
        try:
            with ObjectiveProcess() as process:
                with self._lock:
                    self._process = process
                    self._began_s = time.monotonic()
                    if self._why:
                        process.kill()
                    if self._paused_at:
                        process.signal(signal.SIGSTOP)
                    else:
                        self._say(e.JobStarted(self._job_id))
                phase, why = self._outcome(process)
                with self._lock:
                    self._process, self._is_over = None, True
        except Exception as error:
            phase, why = Phase.FAILED, f"the callable could not be started: {type(error).__name__}: {error}"
            self._is_over = True
        feedback, value = self._reading.ends_with(self._history, {}) if phase is Phase.FINISHED else (None, None)
        self._say(e.JobEnded(self._job_id, phase, why, feedback, value))

    def _outcome(self, process: ObjectiveProcess) -> tuple[Phase, str]:
        """Return how the call ended, and why, unless it finished."""
        try:
            kind, what = process.evaluate(self._objective, dict(self._point), _refuse_jobs, self._take)
        except (EOFError, OSError):
            # Its process ends, or was ended.
            process.kill()
            return (Phase.KILLED, self._why) if self._why else (Phase.FAILED, process.wait())
        if self._why:
            return Phase.KILLED, self._why
        if kind == "raised":
            return Phase.FAILED, f"the callable raised {type(what).__name__}: {what}"
        if not self._history and isinstance(what, Real) and not isinstance(what, bool):
            # What it returns is its only report.
            self._take(1, {self._metric: float(what)})
        if not self._history:
            call = f"report({self._metric}=..., iteration=...)"
            reported = ", ".join(sorted(self._reported)) or "nothing"
            return Phase.FAILED, f"metric is {self._metric!r}, {NO_SUCH_METRIC} {reported}: call {call}"
        return Phase.FINISHED, ""

    def _take(self, iteration: int, values: Mapping[str, float]) -> None:
        """Take a report; return once the stopping rule has judged it."""
        entry = {"loss": None, **values, "clock": iteration - 1, "seconds": time.monotonic() - self._began_s}
        self._reported.update(values)
        with self._lock:
            said: list[e.Event] = [self._reading.iterated([entry], -1), *self._diverged(iteration, values, entry)]
            if self._metric in values:
                self._history.append(entry)
                said += self._reading.feedback([entry])
                said += self._reading.reached([entry])
        for event in said:
            self._say(event)
        if len(said) > 1:
            self._settle()

    def _diverged(self, iteration: int, values: Mapping[str, float], entry: dict[str, Any]) -> list[e.Event]:
        loss = values.get("loss", 0.0)
        if not math.isfinite(loss):
            return [e.LossDiverged(self._job_id, f"{DIVERGED}: its loss is {loss} at iteration {iteration}")]
        return self._reading.diverged([entry])


def _refuse_jobs(request: RunRequest) -> Any:
    raise ConfigError("eps.run is not possible in the callable of a sweep: make its settings the [job] of the sweep")
