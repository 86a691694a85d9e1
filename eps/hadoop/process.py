"""Run Hadoop's own client in a child process, so that the caller needs no Java virtual machine.

A process with a Java virtual machine must not fork, and a user's process may.  Calls and answers are JSON objects, one
a line: ``{"method": ..., ...}``, and ``{"value": ...}`` or the class and text of an error.  The process starts with the
first call, and exits at the end of its input.
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

#: Timeout for the process to exit after its last call.
END_S = 10.0


class HadoopProcess:
    """The child process, as its caller uses it.  Thread-safe.

    Parameters
    ----------
    conf : HadoopConf
    module : str
        Module that the process runs; it must call :func:`serve`.
    """

    def __init__(self, conf: HadoopConf, module: str) -> None:
        self._conf, self._module = conf, module
        self._lock = RLock()
        self._process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start the process if it is not running; Java takes a second, in which the caller can do other things.

        Raises
        ------
        ResourceError
            The process cannot be started.
        """
        with self._lock:
            if self._process is None:
                self._process = self._started()

    def call(self, method: str, **values: Any) -> Any:
        """Call a method in the process and return its result.

        An interrupt kills the process, so that the call has no effect afterwards.

        Raises
        ------
        EpsError
            The error that the method raised.
        ResourceError
            The process cannot be started, or has exited.
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
                raise ResourceError(f"Hadoop's client exited with code {code} before it answered ({method})")
        found = json.loads(answer)
        if "error" in found:
            raise getattr(errors, found["error"], ResourceError)(found["text"])
        return found["value"]

    def _started(self) -> subprocess.Popen[str]:
        root, rest = str(Path(errors.__file__).absolute().parent.parent), os.environ.get("PYTHONPATH", "")
        # Also for a checkout that is not installed.
        path = os.pathsep.join([rest, root] if rest else [root])
        try:
            # In its own session: an interrupt from the terminal reaches this process only, which kills the other.
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
        """Stop the process.  Idempotent."""
        with self._lock:
            self._end(at_once=False)


def serve(answer: Callable[[Mapping[str, Any]], Any], begin: Callable[[], object] = lambda: None) -> int:
    """Answer the calls from standard input until its end; return an exit code.

    Parameters
    ----------
    answer : callable
        Takes a call and returns its result.
    begin : callable
        Called before the first call arrives, to save time.  Its errors are ignored: the first call meets them again.
    """
    # Output of Java itself goes to stderr.
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
