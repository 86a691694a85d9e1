"""The export of a trained model: started, repeated when it fails, and what it found.  Pure.  L0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eps.core import events as e

#: An export that failed is repeated after this long, and there are so many in all.
EXPORT_AGAIN_S = 0.5
MOST_EXPORTS = 4


class Export:
    """The exports of a job, one at a time."""

    def __init__(self) -> None:
        #: What the export found that ended the job (:class:`eps.core.events.ExportDone`); empty before.
        self.found: Mapping[str, Any] = {}
        #: Number of the export that runs, or ran last.
        self._number = 0
        self._is_open = False
        #: When a failed one is repeated; None while none is to be.
        self._again_s: float | None = None

    def counts(self, number: int) -> bool:
        """Return whether the job waits for the export of that number; one from before a rollback does not count."""
        return self._is_open and number == self._number

    def start(self) -> list[e.Command]:
        """Start the next one."""
        self._number, self._is_open, self._again_s = self._number + 1, True, None
        return [e.StartExport(self._number)]

    def done(self, event: e.ExportDone) -> bool:
        """Take in that an export is complete; return whether that ends the job."""
        if not self.counts(event.number):
            return False
        self.found = event.found or {}
        return True

    def failed(self, event: e.ExportFailed, now_s: float) -> str:
        """Take in that an export failed; return why that ends the job, empty where it is repeated."""
        if not self.counts(event.number):
            return ""
        if self._number >= MOST_EXPORTS:
            return event.message
        # A server may have ended meanwhile; then another one has what it had.
        self._again_s = now_s + EXPORT_AGAIN_S
        return ""

    def due(self, now_s: float) -> list[e.Command]:
        """Repeat a failed one when it is time."""
        return self.start() if self._again_s is not None and now_s >= self._again_s else []

    def restarted(self) -> list[e.Command]:
        """Start the open one again: its process ended with the master before."""
        return [e.StartExport(self._number)] if self._is_open else []

    def close(self) -> None:
        """Let no export count: the job has ended, or trains again."""
        self._is_open, self._again_s = False, None

    def validate(self) -> None:
        """Assert that an export is open once one was started, and that only an open one is repeated."""
        assert self._number >= 1 or not self._is_open
        assert self._is_open or self._again_s is None
