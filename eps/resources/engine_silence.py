"""How long a job does without an engine that gives it containers.  Pure.  L2."""

from __future__ import annotations


class EngineSilence:
    """Since when an engine has not answered, and whether its job has waited for it long enough.

    A job that trains all the same, for its containers outlive the engine, is not ended for that.

    Parameters
    ----------
    most_s : float, seconds
        What a job waits that stands still, and a launch that alone is not answered.
    """

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self._since_s: float | None = None
        self._answered_s = float("-inf")
        self._progress: int | None = None
        self._further_s = 0.0

    def on_answer(self, asked_s: float) -> None:
        """Note that the engine answers what it was asked at ``asked_s``."""
        self._since_s = None
        self._answered_s = max(self._answered_s, asked_s)

    def on_silence(self, now_s: float) -> None:
        """Note that it did not answer."""
        if self._since_s is None:
            self._since_s = now_s

    def on_progress(self, progress: int, now_s: float) -> None:
        """Note how far the job is, by a number that changes as it gets further."""
        if progress != self._progress:
            self._progress, self._further_s = progress, now_s

    def silent_s(self, now_s: float) -> float:
        """Return for how long it has not answered, in seconds; 0.0 where it does."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def is_too_long(self, now_s: float, *, waits: bool) -> bool:
        """Return whether a job that ``waits`` for a container has got no further for too long."""
        return waits and self._since_s is not None and now_s - max(self._since_s, self._further_s) >= self.most_s

    def is_refused(self, failed_s: float, now_s: float) -> bool:
        """Return whether what the engine has not answered since ``failed_s`` is to be given up.

        It is where the engine answers what it was asked later: else it is away, and may do this too when it is back.
        """
        return self._answered_s > failed_s and now_s - failed_s >= self.most_s
