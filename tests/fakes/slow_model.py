"""Models of users: one that takes its time, so that a test can act before its job ends, and one that always fails."""

from __future__ import annotations

from pathlib import Path

from eps.ml.models.base import Model
from eps.ml.models.softmax import Softmax

_TEXT = """
import os
import time

from {module} import {name}


class Slow({name}):
    def loss_and_gradient(self, params, X, y):
        if os.path.exists({path!r}):
            time.sleep({seconds!r})
        return super().loss_and_gradient(params, X, y)
"""


#: Why a broken model fails.
NO_GRADIENT = "this model has no gradient"
_BROKEN = f"""
from eps.ml.models.linear import Linear


class Broken(Linear):
    def loss_and_gradient(self, params, X, y):
        raise ValueError({NO_GRADIENT!r})
"""


def broken_model(folder: Path) -> str:
    """Return the setting ``model`` of one whose training always fails."""
    path = folder / "broken.py"
    path.write_text(_BROKEN)
    return f"{path}:Broken"


class SlowModel:
    """Trains what ``like`` does, to the same bits.

    Parameters
    ----------
    folder : Path
        Where its file is made.
    seconds : float
        What each call of a worker takes longer, until :meth:`hurry`: one for each of its splits in an iteration.
    like : type of Model

    Attributes
    ----------
    setting : str
        The job's setting ``model``.
    """

    def __init__(self, folder: Path, seconds: float = 0.02, like: type[Model] = Softmax) -> None:
        self._gate = folder / "slowly"
        self._gate.touch()
        path = folder / "slow.py"
        path.write_text(
            _TEXT.format(path=str(self._gate), seconds=seconds, module=like.__module__, name=like.__name__),
            encoding="utf-8",
        )
        self.setting = f"{path}:Slow"

    def hurry(self) -> None:
        """Let jobs go on as fast as they can."""
        self._gate.unlink(missing_ok=True)
