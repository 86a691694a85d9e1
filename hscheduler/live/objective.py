"""An objective of Hyperopt's in a process of its own for each point, so that what it computes holds up no other one.

What it needs is pickled with cloudpickle, as SparkTrials do.  Its ``eps.run`` comes back over a pipe and goes to the
scheduler from here.  The process leads a session: it, and whatever it has started, ends with its trial, and with
whoever waits for it; Ctrl-C reaches it through them only.
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
#: Of prctl: the signal at the death of a parent.
_PR_SET_PDEATHSIG = 1
#: A process that has closed its end of the pipe has this long to end by itself.
_END_TIMEOUT_S = 2.0


class Submits(Protocol):
    """Submits the jobs of a trial."""

    def __call__(self, request: RunRequest) -> dict[str, Any]:
        """Submit a job and wait for its report; raises as ``eps.run``."""

    def cancel(self, why: str) -> None:
        """End its jobs, and refuse further ones."""

    def on_cancel(self, end: Callable[[], None]) -> None:
        """Have ``end`` called when it is cancelled, at once where it has been."""


class Objective:
    """An objective that is evaluated in processes of their own.

    Parameters
    ----------
    fn : callable
    submitter : callable
        Returns who submits the jobs of the trial that is evaluated by this thread.

    Raises
    ------
    ConfigError
        It cannot be pickled.
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
            What the objective raises; TrainingError where its process ends without an answer.
        """
        submitter = self._submitter()
        with _Process() as process:
            submitter.on_cancel(process.kill)
            # Jobs that nobody waits for any more must not go on.
            watcher = threading.Thread(target=_cancel_after, args=(process, submitter), name="objective's process")
            watcher.start()
            try:
                kind, what = process.evaluate(self._pickled, point, submitter)
            except (EOFError, OSError):
                # It is about to end, and says how, unless something in it hangs.
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
    """End a trial's jobs when its process has ended, as far as there is somebody who can be told."""
    how = process.wait()
    try:
        submitter.cancel(how)
    except RpcError as error:
        logger.warning("%s, and its jobs could not be ended: %s", how, error)


class _Process:
    """One process, for one point."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Once it is waited for, its number may be another one's.
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
        """Return ``returned`` or ``raised``, and what.  Raises EOFError or OSError where it ends before it answers."""
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
        """Wait until it has ended; return how, in words.  It can be told apart from others until :meth:`__exit__`."""
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if ended.si_code == os.CLD_EXITED:
            return f"the objective's process ended with exit code {ended.si_status}"
        return f"the objective's process was ended by {signal.Signals(ended.si_status).name}"

    def kill(self) -> None:
        """End it and whatever it has started; harmless when repeated."""
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
    """Have a job run by the parent, in the objective's process; raises as ``eps.run``."""
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
    # The parent may have died before the call, and then no signal will come.
    if os.getppid() != parent_pid:
        os._exit(1)
    with Connection(fd) as connection:
        answer = _evaluated(connection)
        # Who gets the answer ends this process.
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
            # Some can be pickled, and not be made again from that.
            pickle.loads(answer)
        except Exception:
            answer = _dumped("raised", TrainingError(f"the objective raised {type(error).__name__}: {error}"))
        return answer


def _dumped(kind: str, what: Any) -> bytes:
    pickled: bytes = cloudpickle.dumps((kind, what))
    return pickled
