"""A supervisor that has done its imports already, for a process that starts one job after the other."""

from __future__ import annotations

import threading

from eps.cluster.supervisor.start import WarmSupervisor
from eps.errors import ResourceError
from eps.job.entry_points import ENTRY_POINTS

__all__ = ["SpareSupervisor", "WarmSupervisor"]


class SpareSupervisor:
    """One supervisor that waits for a job; thread-safe.  It ends with this process, however that ends.

    The imports of a job's processes take longer than the rest of its start; a spare supervisor has done them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: WarmSupervisor | None = None
        self._closed = False

    def take(self) -> WarmSupervisor:
        """Return the spare one, or one that only begins.

        Raises
        ------
        ResourceError
            The process cannot be started.
        """
        with self._lock:
            spare, self._spare = self._spare, None
        return WarmSupervisor(ENTRY_POINTS) if spare is None else spare

    def refill(self) -> None:
        """Have a spare one again: best when no job is being started, as its imports take a core for half a second."""
        with self._lock:
            if self._spare is None and not self._closed:
                try:
                    self._spare = WarmSupervisor(ENTRY_POINTS)
                except ResourceError:
                    # The next take says why.
                    self._spare = None

    def close(self) -> None:
        """End the spare one; harmless when repeated."""
        with self._lock:
            spare, self._spare, self._closed = self._spare, None, True
        if spare is not None:
            spare.cancel()
