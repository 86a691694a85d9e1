"""Where a sweep's points come from: by lot, or from Hyperopt's tree of Parzen estimators.

Asked for when a trial arrives, told when it is over; a source may learn from what it was told by then.

Source: EPS §6 (Hyperopt generates the jobs).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Protocol

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

    def tell(self, job_id: str, loss: float | None) -> None:
        """Say what became of a trial: its loss, its early feedback where it was killed, None where it has neither."""


class GivenPoints:
    """Points from a list, or by lot: nothing is learnt."""

    def __init__(self, points: Iterable[Mapping[str, Any]]) -> None:
        self._points = iter(points)

    def ask(self, job_id: str) -> Point:
        """Return the next point."""
        return dict(next(self._points))

    def tell(self, job_id: str, loss: float | None) -> None:
        """Do nothing."""


class TpePoints:
    """Points of Hyperopt's ``tpe.suggest``; needs the extra ``eps[sweep]``.

    Parameters
    ----------
    space : sequence of Dimension
    seed : int
    direction : Direction
        Which loss is better.

    Raises
    ------
    ConfigError
        Hyperopt is not installed.
    """

    def __init__(self, space: tuple[Dimension, ...], seed: int, direction: Direction) -> None:
        try:
            import hyperopt
            from hyperopt.base import Domain
        except ImportError as error:
            raise ConfigError(
                f"algorithm is 'tpe', which needs Hyperopt ({error}): install eps[sweep], or use random"
            ) from None
        self._hyperopt = hyperopt
        self._dimensions = space
        self._space = {dimension.name: _expression(hyperopt.hp, dimension) for dimension in space}
        self._domain = Domain(lambda point: None, self._space, pass_expr_memo_ctrl=False)
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

    def tell(self, job_id: str, loss: float | None) -> None:
        """Tell Hyperopt a loss; one that is none is a failure, from which nothing is learnt."""
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
    """Return the source of points that a sweep asks for.  Raises as :class:`TpePoints`."""
    if spec.sweep.algorithm == "random" or not spec.space:
        return GivenPoints(spec.points())
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
