"""The process of an objective: evaluates one point, and has its jobs run by its parent."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from eps.errors import TrainingError
from eps.job.client import submit_instead
from hscheduler.live.objective import answer_of

_PR_SET_PDEATHSIG = 1


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
