"""Where a sweep's points come from: by lot, from Hyperopt's tree of Parzen estimators, or from a study of Optuna's.

Asked for when a trial arrives, told when it is over; a source may learn from what it was told by then.

Source: EPS §6 (Hyperopt generates the jobs).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Protocol

import numpy as np

from eps.errors import ConfigError
from hscheduler.core.jobs import Direction
from hscheduler.spec import Dimension, Spec

Point = dict[str, Any]


class Points(Protocol):
    """A source of points.  Not thread-safe."""

    def ask(self, job_id: str) -> Point:
        """Return the point of a trial.

        Raises
        ------
        StopIteration
            There are no more.
        """

    def restore(self, job_id: str, point: Point) -> None:
        """Take a trial that was asked for before, of another source like this: it is told of as if asked for here."""

    def tell(self, job_id: str, loss: float | None, killed: bool = False) -> None:
        """Say what became of a trial, once.

        Parameters
        ----------
        job_id : str
        loss : float, optional
            What it ended with, or its early feedback where it was killed; None where it failed.
        killed : bool
            The policy ended it for its early feedback.
        """


class GivenPoints:
    """Points from a list, or by lot: nothing is learnt."""

    def __init__(self, points: Iterable[Mapping[str, Any]]) -> None:
        self._points = iter(points)

    def ask(self, job_id: str) -> Point:
        """Return the next point."""
        return dict(next(self._points))

    def restore(self, job_id: str, point: Point) -> None:
        """Pass over a point."""
        next(self._points)

    def tell(self, job_id: str, loss: float | None, killed: bool = False) -> None:
        """Do nothing."""


class TpePoints:
    """Points of Hyperopt's ``tpe.suggest``; needs the extra ``sweep``.

    Parameters
    ----------
    space : sequence of Dimension
    seed : int
    direction : Direction
        Which loss is better.

    Raises
    ------
    ConfigError
        Hyperopt is not installed, or refuses the space.
    """

    def __init__(self, space: tuple[Dimension, ...], seed: int, direction: Direction) -> None:
        try:
            import hyperopt
            from hyperopt.base import Domain
            from hyperopt.pyll import stochastic
        except ImportError as error:
            raise ConfigError(
                f"algorithm is 'tpe', which needs Hyperopt ({error}): pip install '.[sweep]' in EPS's folder, or use "
                "random"
            ) from None
        self._hyperopt = hyperopt
        self._dimensions = space
        try:
            self._space = {dimension.name: _expression(hyperopt.hp, dimension) for dimension in space}
            self._domain = Domain(lambda point: None, self._space, pass_expr_memo_ctrl=False)
            # Some of it is looked at by drawing only.
            stochastic.sample(self._space, np.random.default_rng(seed))
        except Exception as error:
            # It has no errors of its own for this.
            raise ConfigError(f"Hyperopt refuses the space: {type(error).__name__}: {error}") from error
        self._trials = hyperopt.Trials()
        self._draw = Random(f"points:{seed}")
        self._sign = 1.0 if direction is Direction.MINIMIZE else -1.0
        self._documents: dict[str, int] = {}

    def ask(self, job_id: str) -> Point:
        """Return what Hyperopt suggests, given what it was told so far."""
        ids = self._trials.new_trial_ids(1)
        (document,) = self._hyperopt.tpe.suggest(ids, self._domain, self._trials, seed=self._draw.randrange(2**31))
        self._trials.insert_trial_docs([document])
        self._trials.refresh()
        self._documents[job_id] = ids[0]
        values = {name: found[0] for name, found in document["misc"]["vals"].items() if found}
        point = self._hyperopt.space_eval(self._space, values)
        return {each.name: each.settled(_plain(point[each.name])) for each in self._dimensions}

    def restore(self, job_id: str, point: Point) -> None:
        """Take a point that was suggested before.

        What was known of others then is not known now: later suggestions may be others than they would have been.
        """
        from hyperopt.fmin import generate_trial

        self._draw.randrange(2**31)
        (tid,) = self._trials.new_trial_ids(1)
        values = {
            each.name: each.arguments.index(point[each.name]) if each.kind == "choice" else point[each.name]
            for each in self._dimensions
        }
        self._trials.insert_trial_docs([generate_trial(tid, values)])
        self._trials.refresh()
        self._documents[job_id] = tid

    def tell(self, job_id: str, loss: float | None, killed: bool = False) -> None:
        """Tell Hyperopt a loss, also of a trial that was killed; from a failure, which has none, nothing is learnt."""
        known = loss is not None and not math.isnan(loss)
        for document in self._trials._dynamic_trials:
            if document["tid"] == self._documents[job_id]:
                document["state"] = self._hyperopt.JOB_STATE_DONE
                document["result"] = (
                    {"status": self._hyperopt.STATUS_OK, "loss": self._sign * float(loss)}
                    if known and loss is not None
                    else {"status": self._hyperopt.STATUS_FAIL}
                )
        self._trials.refresh()


def points_of(spec: Spec) -> Points:
    """Return the source of points that a sweep asks for.  Raises as :class:`TpePoints` and ``OptunaPoints``."""
    if spec.sweep.algorithm == "random" or not spec.space:
        return GivenPoints(spec.points())
    if spec.sweep.algorithm == "optuna":
        from hscheduler.live.optuna_points import OptunaPoints

        return OptunaPoints(spec)
    return TpePoints(spec.space, spec.sweep.seed, Direction(spec.sweep.direction))


def _expression(hp: Any, dimension: Dimension) -> Any:
    """Return a dimension in Hyperopt's words; its loguniform takes logarithms of the bounds."""
    name, a = dimension.name, dimension.arguments
    match dimension.kind:
        case "choice":
            return hp.choice(name, list(a))
        case "loguniform":
            return hp.loguniform(name, math.log(a[0]), math.log(a[1]))
        case "uniform":
            return hp.uniform(name, a[0], a[1])
        case "quniform":
            return hp.quniform(name, a[0], a[1], a[2])
        case _:
            return hp.randint(name, int(a[0]), int(a[1]))


def _plain(value: Any) -> Any:
    """Return a value as Python's own type: Hyperopt gives NumPy's for some."""
    return value.item() if hasattr(value, "item") else value
