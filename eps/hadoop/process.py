"""Hadoop's own client in a process of its own: whoever has orders for it needs no Java virtual machine.

One must not live in a process that forks later, as a user's may.  Orders and answers are JSON objects, one a line:
``{"method": ..., ...}``, and ``{"value": ...}`` or the kind and the text of an error.  The process begins with the
first order, and ends with the end of its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

from eps import errors
from eps.errors import EpsError, ResourceError
from eps.hadoop.conf import HadoopConf

#: The process has so long to end after its last order.
END_S = 10.0


class HadoopProcess:
    """The process, from the side of whoever has orders for it; thread-safe.

    Parameters
    ----------
    conf : HadoopConf
    module : str
        Calls :func:`serve`.
    """

    def __init__(self, conf: HadoopConf, module: str) -> None:
        self._conf, self._module = conf, module
        self._lock = RLock()
        self._process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Begin the process now, where it has not: Java takes a second, in which other things can be done.

        Raises
        ------
        ResourceError
            It cannot be started.
        """
        with self._lock:
            if self._process is None:
                self._process = self._started()

    def call(self, method: str, **values: Any) -> Any:
        """Return what an order is answered with.

        Whoever is interrupted meanwhile has nothing done after that.

        Raises
        ------
        EpsError
            As the process has raised it.
        ResourceError
            It cannot be started, or has ended.
        """
        with self._lock:
            self.begin()
            process = self._process
            assert process is not None
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps({"method": method, **values}) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = ""
            except BaseException:
                self._end(at_once=True)
                raise
            if not answer:
                code = self._end(at_once=True)
                raise ResourceError(f"Hadoop's client ended with exit code {code} before it had answered ({method})")
        found = json.loads(answer)
        if "error" in found:
            raise getattr(errors, found["error"], ResourceError)(found["text"])
        return found["value"]

    def _started(self) -> subprocess.Popen[str]:
        root, rest = str(Path(errors.__file__).absolute().parent.parent), os.environ.get("PYTHONPATH", "")
        # A checkout that is not installed is found, too.
        path = os.pathsep.join([rest, root] if rest else [root])
        try:
            # In a session of its own: what a terminal interrupts is this process, which ends the other.
            return subprocess.Popen(
                [sys.executable, "-P", "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": path, "HADOOP_CONF_DIR": self._conf.source},
                start_new_session=True,
            )
        except OSError as error:
            raise ResourceError(f"Hadoop's client cannot be started: {error}") from error

    def _end(self, *, at_once: bool) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None and process.stdout is not None
        if at_once:
            process.kill()
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        return process.returncode

    def close(self) -> None:
        """End the process; harmless when repeated."""
        with self._lock:
            self._end(at_once=False)


def serve(answer: Callable[[Mapping[str, Any]], Any], begin: Callable[[], object] = lambda: None) -> int:
    """Answer the orders of standard input until there are no more; return an exit code.

    Parameters
    ----------
    answer : callable
        Takes an order, and returns what it is answered with.
    begin : callable
        Called before the first order is there; what is wrong then the first order is told.
    """
    # What Java prints is for people.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with suppress(EpsError):
        begin()
    for line in sys.stdin:
        try:
            found = {"value": answer(json.loads(line))}
        except EpsError as error:
            found = {"error": type(error).__name__, "text": str(error)}
        replies.write(json.dumps(found) + "\n")
        replies.flush()
    return 0
