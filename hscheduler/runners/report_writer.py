"""Write the report of a sweep to files while it runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from eps.errors import EpsError
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic

logger = logging.getLogger(__name__)

#: Least seconds between two reports.
LEAST_S = 2.0
#: A report that takes long to make is made less often: it takes at most one of so many seconds.
SHARE = 20


class ReportWriter:
    """Writes the report every few seconds, if anything has happened, on a thread of its own.

    A file that cannot be written is reported once, and tried again.  The writer starts and ends as a context manager.

    Parameters
    ----------
    report : callable
        Returns the report; None if there is none yet.
    paths : sequence of Path
        Files that are replaced atomically.
    """

    def __init__(self, report: Callable[[], Mapping[str, Any] | None], paths: Sequence[Path]) -> None:
        self._report, self._paths = report, paths
        self._changed, self._ended = threading.Event(), threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._serve, name="report", daemon=True)

    def note(self) -> None:
        """Note that something has happened."""
        self._changed.set()

    def __enter__(self) -> ReportWriter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._changed.set()
        self._thread.join()

    def _serve(self) -> None:
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            self._changed.wait()
            if self._ended.is_set():
                return
            self._changed.clear()
            began_s = time.monotonic()
            try:
                self._write()
                self._warned = False
            except (EpsError, RuntimeError) as error:
                self._changed.set()
                if not self._warned:
                    logger.warning("the report of the running sweep cannot be written, and is retried: %s", error)
                self._warned = True
            pause_s = max(LEAST_S, SHARE * (time.monotonic() - began_s))

    def _write(self) -> None:
        if (found := self._report()) is None:
            return
        for path in self._paths:
            write_json_atomic(path, found, mode=PUBLIC_MODE)
