"""Evaluate Hyperopt objectives in processes, one for each point, so that objectives do not block each other.

The objective is pickled with cloudpickle, as SparkTrials do.  Its calls of ``eps.run`` come back over a pipe, and this
process submits their jobs to the scheduler.  The child leads a session, which is killed when the trial ends; the child
is also killed when this process dies.  Ctrl-C reaches the child only through this process.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import cloudpickle

from eps.errors import ConfigError, RpcError, TrainingError
from eps.job.client import submit_instead
from eps.spec.file import RunRequest

logger = logging.getLogger(__name__)

_CODE = "import sys; sys.path[:] = {path!r}; from hscheduler.live.objective import main; main({fd}, {parent})"
#: Option of prctl(2): the signal that the process gets when its parent dies.
_PR_SET_PDEATHSIG = 1
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
        try:
            self._pickled: bytes = cloudpickle.dumps(fn)
        except Exception as error:
            raise ConfigError(f"the objective cannot be pickled for a process of its own: {error}") from error
        self._submitter = submitter

    def __call__(self, point: Any) -> Any:
        """Return what the objective returns at a point.

        Raises
        ------
        Exception
            What the objective raises; TrainingError if its process exits without an answer.
        """
        submitter = self._submitter()
        with _Process() as process:
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


def _cancel_after(process: _Process, submitter: Submits) -> None:
    """End a trial's jobs when its process has exited."""
    how = process.wait()
    try:
        submitter.cancel(how)
    except RpcError as error:
        logger.warning("%s, and its jobs could not be ended: %s", how, error)


class _Process:
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

    def evaluate(self, pickled: bytes, point: Any, submit: Callable[[RunRequest], Any]) -> tuple[str, Any]:
        """Return ``returned`` or ``raised``, and the value.  Raises EOFError or OSError if the process exits before."""
        self._connection.send_bytes(pickled)
        self._connection.send_bytes(cloudpickle.dumps(point))
        while True:
            kind, what = pickle.loads(self._connection.recv_bytes())
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
        with self._lock, suppress(ProcessLookupError):
            if not self._is_gone:
                os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> _Process:
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


def main(fd: int, parent_pid: int) -> None:
    """Evaluate the objective that comes over a pipe, and send what it returns or raises."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # If the parent died before the call, no signal will come.
    if os.getppid() != parent_pid:
        os._exit(1)
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


def _dumped(kind: str, what: Any) -> bytes:
    pickled: bytes = cloudpickle.dumps((kind, what))
    return pickled
