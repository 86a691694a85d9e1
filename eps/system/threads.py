"""Threads that do not delay the interpreter's exit: for gRPC servers, and for calls that may hang."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Any

logger = logging.getLogger(__name__)

#: A thread that waits for the interpreter wakes this often, in seconds.  With Python's 0.005, a thousand that wait at
#: once keep two cores busy with nothing else.
MANY_THREADS_S = 0.1


def expect_many_threads() -> None:
    """Prepare this process for thousands of threads, of which each does little."""
    sys.setswitchinterval(MANY_THREADS_S)


class ThreadPerCall(futures.Executor):
    """An executor that runs every call on its own daemon thread.

    Most calls are streams that last as long as a member.  In a pool, the n-th stream would silently block all later
    calls, and the interpreter would wait for the pool's threads at exit, even after a crash.

    Parameters
    ----------
    name : str
        Name of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` at once; if the system has no more threads, the future holds that error."""
        future: Future[Any] = Future()
        thread = threading.Thread(target=self._run, args=(future, fn, args, kwargs), name=self._name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            # An exception would end the one thread that accepts all calls.
            logger.error("%s: no thread for another call, %d are running: %s", self._name, len(self._threads), error)
            with self._lock:
                self._threads.discard(thread)
            future.set_exception(error)
        return future

    def _run(self, future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def join(self, timeout_s: float) -> bool:
        """Wait for the running calls; return False, with a log line, if some did not finish in time."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        num_running = sum(thread.is_alive() for thread in threads)
        if num_running:
            logger.warning("%s: %s calls are still running after %s s", self._name, num_running, timeout_s)
        return num_running == 0
