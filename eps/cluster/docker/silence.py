"""How long a job does without an engine that gives it containers.  Pure.  L2."""

from __future__ import annotations


class EngineSilence:
    """Since when an engine has not answered, and whether its job has waited for it long enough.

    A job that trains all the same, for its containers outlive the engine, is not ended for that.

    Parameters
    ----------
    most_s : float, seconds
        What a job waits that stands still.
    """

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self._since_s: float | None = None
        self._heard_s = float("-inf")
        self._progress: int | None = None
        self._further_s = 0.0

    def on_answer(self, now_s: float) -> None:
        """Note that the engine answers."""
        self._since_s, self._heard_s = None, now_s

    def on_silence(self, asked_s: float) -> None:
        """Note that it did not answer what it was asked at ``asked_s``, which may be long ago."""
        if self._since_s is None:
            self._since_s = max(asked_s, self._heard_s)

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


class LaunchPatience:
    """How long one launch is tried again that is not answered, by an engine that answers other calls.

    One that is away does nothing at all: whether it would do this is not known before it is back.

    Parameters
    ----------
    most_s : float, seconds
        What a launch is waited for.
    """

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self._since_s: float | None = None

    def on_failure(self, asked_s: float, *, others_answered: bool) -> None:
        """Note that the engine did not answer what it was asked at ``asked_s``, and whether it answers others since."""
        if not others_answered:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = asked_s

    def tried_s(self, now_s: float) -> float:
        """Return for how long it has answered others only, in seconds."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def is_over(self, now_s: float) -> bool:
        """Return whether the launch is to be given up."""
        return self._since_s is not None and self.tried_s(now_s) >= self.most_s
