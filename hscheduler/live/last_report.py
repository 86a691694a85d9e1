"""The report of a job that ends: of one on YARN, whose cluster may not give it at once, it is asked for again.

Without its report nobody knows what a trial ended with: it neither counts as finished, nor has it failed at once.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from eps.errors import DeadlineError, StorageError
from eps.job.client import Job

logger = logging.getLogger(__name__)

#: On YARN: what a job has left has so long to come since there was news of it, and is looked for so often.  A file
#: system that restarts, or is in safe mode, is back within minutes.
COMES_WITHIN_S, PAUSE_S = 300.0, 20.0


class LastReport:
    """Waits for the end of one job, and for its report.

    Parameters
    ----------
    name : str
        Of the job under ``EPS_HOME``.
    timeout_s : float, seconds
        It has so long to end; on YARN it is said then that it is waited for.
    closing : Event
        Set when nobody wants to know any more.
    """

    def __init__(self, name: str, timeout_s: float, closing: threading.Event) -> None:
        self._name, self._timeout_s, self._closing = name, timeout_s, closing
        self._clock: int | None = None
        self._until_s = 0.0
        self._said = ""

    def of(self, job: Job, clock: int, *, is_wanted: bool) -> dict[str, Any] | None:
        """Return the report of a job that ends; None where it has to be found again, which has the report fetched.

        Parameters
        ----------
        job : Job
        clock : int
            The last one of which there was news.
        is_wanted : bool
            False of a job that was ended for good: what it has left is not waited for.

        Raises
        ------
        DeadlineError
            It has not ended in time.
        StorageError
            It has finished, and its report has not come in time.
        """
        directory = job.directory
        if not directory.is_on_yarn():
            return job.wait(self._timeout_s)
        if clock != self._clock:
            self._clock, self._until_s = clock, time.monotonic() + COMES_WITHIN_S
        self._wait_for_end(job)
        is_here = directory.ended() is not None or directory.report.exists()
        # Of one that was killed there is no result.
        end = directory.ended()
        if is_here or not is_wanted or (end is not None and end.state == "killed") or self._left_s() <= 0:
            return job.report()
        # One without a state has lost who attended to it here, and may go on.
        why = "has nobody here who attends to it" if end is None else "has ended, and its report is not here"
        self._say(f"job {self._name!r} {why}: it is looked for again for {COMES_WITHIN_S:g} s")
        return job.report() if self._closing.wait(min(PAUSE_S, self._left_s())) else None

    def _wait_for_end(self, job: Job) -> None:
        """Wait until a job on YARN has ended, and whoever attends to it here has brought what there is of it."""
        # Whether there is a report is asked afterwards.
        with suppress(StorageError):
            try:
                job.wait(self._timeout_s)
            except DeadlineError as error:
                left_s = self._left_s()
                self._say(f"{error}; it is waited for {left_s:.0f} s more")
                job.wait(left_s)

    def _left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            logger.warning("%s", text)
