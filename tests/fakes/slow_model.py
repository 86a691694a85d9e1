"""A model that takes its time until a test has done what it wanted to: what is done to a job comes before its end."""

from __future__ import annotations

from pathlib import Path

_TEXT = """
import os
import time

from eps.ml.models.softmax import Softmax


class Slow(Softmax):
    def loss_and_gradient(self, params, X, y):
        if os.path.exists({path!r}):
            time.sleep({seconds!r})
        return super().loss_and_gradient(params, X, y)
"""


class SlowModel:
    """Trains what ``softmax`` does, to the same bits.

    Parameters
    ----------
    folder : Path
        Where its file is made.
    seconds : float
        What each call of a worker takes longer, until :meth:`hurry`.

    Attributes
    ----------
    setting : str
        The job's setting ``model``.
    """

    def __init__(self, folder: Path, seconds: float = 0.02) -> None:
        self._gate = folder / "slowly"
        self._gate.touch()
        path = folder / "slow.py"
        path.write_text(_TEXT.format(path=str(self._gate), seconds=seconds), encoding="utf-8")
        self.setting = f"{path}:Slow"

    def hurry(self) -> None:
        """Let jobs go on as fast as they can."""
        self._gate.unlink(missing_ok=True)
