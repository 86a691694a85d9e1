"""Logs of a job's processes: one line for each state change, on standard error.

The supervisor redirects standard error of each process to its own file; ``eps logs`` shows these files.
"""

from __future__ import annotations

import logging
import os
import threading
import time

#: Minimum time between two lines that a peer can provoke.
LOG_EVERY_S = 10.0


def set_up_logging() -> None:
    """Write log lines to standard error; ``EPS_LOG`` sets the level (default info)."""
    level = os.environ.get("EPS_LOG", "info").upper()
    logging.basicConfig(
        level=getattr(logging, level, logging.INFO),
        format="%(asctime)s.%(msecs)03d %(levelname).1s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    # It logs every client that is created.
    logging.getLogger("hdfs.client").setLevel(logging.WARNING)


class LimitedLog:
    """Warnings that strangers can cause: at most one in a while, so that they cannot fill the disk.  Thread-safe.

    Parameters
    ----------
    logger : Logger
    every_s : float, seconds
        Further warnings in this time are only counted; the next line says how many there were.
    """

    def __init__(self, logger: logging.Logger, every_s: float = LOG_EVERY_S) -> None:
        self._logger = logger
        self._every_s = every_s
        self._lock = threading.Lock()
        self._due_s = 0.0
        self._num_unlogged = 0

    def warning(self, message: str, *values: object) -> None:
        """Write a warning, or count it; parameters are those of :meth:`logging.Logger.warning`."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._due_s:
                self._num_unlogged += 1
                return
            self._due_s = now_s + self._every_s
            num_unlogged, self._num_unlogged = self._num_unlogged, 0
        self._logger.warning(f"{message} (%s more since the last such line)", *values, num_unlogged)
