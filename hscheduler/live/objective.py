"""Evaluate callables in processes, one for each point: Hyperopt's objectives, and the callables of sweeps.

So they do not block each other, and can be killed.  A callable is pickled with cloudpickle, as SparkTrials do.  Its
calls of ``eps.run`` come back over a pipe, and this process submits their jobs to the scheduler.  Its reports come over
the pipe, too.  The child leads a session, which is killed when the trial ends; the child is also killed when this
process dies.  Ctrl-C reaches the child only through this process.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import cloudpickle

from eps.cluster.supervisor.process import die_with_parent
from eps.errors import ConfigError, RpcError, TrainingError
from eps.job.client import submit_instead
from eps.spec.file import RunRequest

logger = logging.getLogger(__name__)

_CODE = "import sys; sys.path[:] = {path!r}; from hscheduler.live.objective import main; main({fd}, {parent})"
#: Keys of an entry of a history that are no metrics.
RESERVED = frozenset(("clock", "seconds"))
#: After a process has closed its end of the pipe, it has this long to exit.
_END_TIMEOUT_S = 2.0


class Submits(Protocol):
    """Submits the jobs of a trial."""

    def __call__(self, request: RunRequest) -> dict[str, Any]:
        """Submit a job and wait for its report; raises as ``eps.run``."""

    def cancel(self, why: str) -> None:
        """End the trial's jobs, and refuse further ones."""

    def on_cancel(self, end: Callable[[], None]) -> None:
        """Call ``end`` when the trial is cancelled, at once if it already was."""


class Objective:
    """An objective that is evaluated in a process for each point.

    Parameters
    ----------
    fn : callable
    submitter : callable
        Returns the object that submits the jobs of the current thread's trial.

    Raises
    ------
    ConfigError
        The objective cannot be pickled.
    """

    def __init__(self, fn: Callable[..., Any], submitter: Callable[[], Submits]) -> None:
        self._pickled = pickled_callable(fn)
        self._submitter = submitter

    def __call__(self, point: Any) -> Any:
        """Return what the objective returns at a point.

        Raises
        ------
        Exception
            What the objective raises; TrainingError if its process exits without an answer.
        """
        submitter = self._submitter()
        with ObjectiveProcess() as process:
            submitter.on_cancel(process.kill)
            # Once the process has exited, its jobs must not continue.
            watcher = threading.Thread(target=_cancel_after, args=(process, submitter), name="objective's process")
            watcher.start()
            try:
                kind, what = process.evaluate(self._pickled, point, submitter)
            except (EOFError, OSError):
                # The process is exiting; its exit status follows, unless it hangs.
                watcher.join(_END_TIMEOUT_S)
                process.kill()
                raise TrainingError(process.wait()) from None
            finally:
                process.kill()
                watcher.join()
        if kind == "raised":
            raise what
        return what


def pickled_callable(fn: Callable[..., Any]) -> bytes:
    """Return a callable for another process.  Raises ConfigError if it cannot be pickled."""
    try:
        pickled: bytes = cloudpickle.dumps(fn)
    except Exception as error:
        raise ConfigError(f"the objective cannot be pickled for a process of its own: {error}") from error
    return pickled


def _cancel_after(process: ObjectiveProcess, submitter: Submits) -> None:
    """End a trial's jobs when its process has exited."""
    how = process.wait()
    try:
        submitter.cancel(how)
    except RpcError as error:
        logger.warning("%s, and its jobs could not be ended: %s", how, error)


def ignore(iteration: int, values: Mapping[str, float]) -> None:
    """Ignore a report."""


class ObjectiveProcess:
    """One process, for one point."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Whether the process was reaped; another one may then have its pid.
        self._is_gone = False
        self._connection, theirs = Pipe()
        with theirs:
            code = _CODE.format(path=sys.path, fd=theirs.fileno(), parent=os.getpid())
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def evaluate(
        self,
        pickled: bytes,
        point: Any,
        submit: Callable[[RunRequest], Any],
        take: Callable[[int, Mapping[str, float]], None] = ignore,
    ) -> tuple[str, Any]:
        """Return ``returned`` or ``raised``, and the value.  Raises EOFError or OSError if the process exits before.

        Parameters
        ----------
        pickled : bytes
            The callable.
        point
            Its argument.
        submit : callable
            Answers its calls of ``eps.run``.
        take : callable
            Takes the iteration and the values of each of its reports.
        """
        self._connection.send_bytes(pickled)
        self._connection.send_bytes(cloudpickle.dumps(point))
        while True:
            kind, what = pickle.loads(self._connection.recv_bytes())
            if kind == "reported":
                take(*what)
                self._connection.send_bytes(b"taken")
                continue
            if kind != "run":
                return kind, what
            answer: tuple[str, Any]
            try:
                answer = "returned", submit(what)
            except Exception as error:
                answer = "raised", error
            self._connection.send_bytes(cloudpickle.dumps(answer))

    def wait(self) -> str:
        """Wait until the process exits; return a sentence on how.  Its pid stays reserved until :meth:`__exit__`."""
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if ended.si_code == os.CLD_EXITED:
            return f"the objective's process ended with exit code {ended.si_status}"
        return f"the objective's process was ended by {signal.Signals(ended.si_status).name}"

    def kill(self) -> None:
        """Kill the process and its children.  Idempotent."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, unless it has ended."""
        with self._lock, suppress(ProcessLookupError):
            if not self._is_gone:
                os.killpg(self._process.pid, number)

    def __enter__(self) -> ObjectiveProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        with self._lock:
            self._process.wait()
            self._is_gone = True
        self._connection.close()


def answer_of(connection: Connection, request: RunRequest) -> dict[str, Any]:
    """Submit a job through the parent process, from the objective's process; raises as ``eps.run``."""
    connection.send_bytes(cloudpickle.dumps(("run", request)))
    kind, what = pickle.loads(connection.recv_bytes())
    if kind == "raised":
        raise what
    report: dict[str, Any] = what
    return report


# ---- in the process

#: Sends the reports of the callable that this process evaluates.
_send_report: ContextVar[Callable[[int, dict[str, float]], None] | None] = ContextVar("send_report", default=None)
#: The iteration of its latest report.
_reported: ContextVar[int] = ContextVar("reported", default=0)


def report(*, iteration: int | None = None, **metrics: float) -> None:
    """Report metrics of a trial, from the callable that ``hscheduler.sweep(..., objective=...)`` runs.

    Parameters
    ----------
    iteration : int, optional
        Completed iterations, from 1; by default one more than in the last report.
    **metrics : float
        For example ``loss``.  The sweep ranks trials by the one that it names.

    Raises
    ------
    ConfigError
        This is not the callable of a sweep; there is no metric, one with a reserved name, or one that is not a number;
        or the iteration is not above that of the last report.
    """
    send, last = _send_report.get(), _reported.get()
    if send is None:
        raise ConfigError(
            "report is only for the callable of a sweep, on its first thread: hscheduler.sweep(objective=...)"
        )
    iteration = last + 1 if iteration is None else iteration
    if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration <= last:
        raise ConfigError(
            f"iteration is {iteration!r}, but must be a whole number above {last}, that of the last report"
        )
    if not metrics:
        raise ConfigError("report has no metric: name one, as in report(loss=0.5)")
    if reserved := RESERVED & metrics.keys():
        raise ConfigError(f"a metric of report is named {min(reserved)}, which is reserved: use another name")
    try:
        values = {name: float(value) for name, value in metrics.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a metric of report is not a number: {error}") from None
    _reported.set(iteration)
    send(iteration, values)


def main(fd: int, parent_pid: int) -> None:
    """Evaluate the objective that comes over a pipe, and send what it returns or raises."""
    die_with_parent(parent_pid)
    with Connection(fd) as connection:
        answer = _evaluated(connection)
        # The parent kills this process once it has the answer.
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send_bytes(answer)


def _evaluated(connection: Connection) -> bytes:
    try:
        objective, point = pickle.loads(connection.recv_bytes()), pickle.loads(connection.recv_bytes())
        submit_instead.set(partial(answer_of, connection))
        _send_report.set(partial(_send, connection))
        result = objective(point)
        try:
            return _dumped("returned", result)
        except Exception as error:
            raise TrainingError(f"what the objective returned cannot be pickled: {error}") from error
    except Exception as error:
        error.add_note("in the objective's process:\n" + "".join(traceback.format_exception(error)))
        try:
            answer = _dumped("raised", error)
            # Some exceptions can be pickled but not unpickled.
            pickle.loads(answer)
        except Exception:
            answer = _dumped("raised", TrainingError(f"the objective raised {type(error).__name__}: {error}"))
        return answer


def _send(connection: Connection, iteration: int, values: dict[str, float]) -> None:
    connection.send_bytes(pickle.dumps(("reported", (iteration, values))))
    # A rule that pauses or ends the trial does it here.
    connection.recv_bytes()


def _dumped(kind: str, what: Any) -> bytes:
    pickled: bytes = cloudpickle.dumps((kind, what))
    return pickled
