"""Points of a study of Optuna's, through ask and tell; needs the extra ``optuna``.

A trial that was killed is told as pruned, with its early feedback as its intermediate value; one that failed as failed.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from eps.errors import ConfigError
from hscheduler.live.points import Point
from hscheduler.spec import Dimension, Spec


class OptunaPoints:
    """Points of a study.

    Parameters
    ----------
    spec : Spec
    study : optuna.Study, optional
        With the sampler that its owner chose; by default one in memory, with Optuna's TPE and the sweep's seed.

    Raises
    ------
    ConfigError
        Optuna is not installed or refuses the space, or the study is none, or has another direction than the sweep, or
        several.
    """

    def __init__(self, spec: Spec, study: Any = None) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                f"algorithm is 'optuna', which needs Optuna ({error}): pip install '.[optuna]' in EPS's folder, or use "
                "tpe or random"
            ) from None
        self._states = optuna.trial.TrialState
        if study is not None and not isinstance(study, optuna.study.Study):
            raise ConfigError(f"study is {study!r}, but must be a study of Optuna's, as optuna.create_study() returns")
        direction: Any = spec.sweep.direction
        if study is None:
            study = optuna.create_study(
                direction=direction, sampler=optuna.samplers.TPESampler(seed=spec.sweep.seed % 2**32)
            )
        found = [each.name.lower() for each in study.directions]
        if found != [direction]:
            raise ConfigError(f"the study's direction is {' and '.join(found)}, but the sweep's is {direction}")
        self.study = study
        self._feedback_iteration = spec.sweep.feedback_iteration
        self._dimensions = spec.space
        try:
            self._space = {each.name: _distribution(optuna.distributions, each) for each in spec.space}
        except ValueError as error:
            raise ConfigError(f"Optuna refuses the space: {error}") from error
        self._trials: dict[str, Any] = {}

    def ask(self, job_id: str) -> Point:
        """Return what the study's sampler suggests, given what the study was told so far."""
        trial = self._trials[job_id] = self.study.ask(self._space)
        trial.set_user_attr("job_id", job_id)
        return {each.name: trial.params[each.name] for each in self._dimensions}

    def restore(self, job_id: str, point: Point) -> None:
        """Take a point that was suggested before."""
        self.study.enqueue_trial(dict(point))
        self.ask(job_id)

    def tell(self, job_id: str, loss: float | None, killed: bool = False) -> None:
        """Tell the study what became of a trial; a loss that is none, or no number, is a failure."""
        trial = self._trials.pop(job_id)
        if killed:
            if loss is not None:
                trial.report(loss, step=self._feedback_iteration)
            self.study.tell(trial, state=self._states.PRUNED)
        elif loss is None or math.isnan(loss):
            self.study.tell(trial, state=self._states.FAIL)
        else:
            self.study.tell(trial, loss)


def _distribution(distributions: Any, dimension: Dimension) -> Any:
    """Return a dimension in Optuna's words; its steps begin at the lower bound, Hyperopt's at 0."""
    a = dimension.arguments
    match dimension.kind:
        case "choice":
            return distributions.CategoricalDistribution(list(a))
        case "uniform":
            return distributions.FloatDistribution(a[0], a[1])
        case "loguniform":
            return distributions.FloatDistribution(a[0], a[1], log=True)
        case "quniform":
            # 0.3 / 0.1 is a little below 3, and 3 * 0.1 a little above 0.3.
            low, high = math.ceil(round(a[0] / a[2], 9)), math.floor(round(a[1] / a[2], 9))
            if isinstance(a[2], int):
                return distributions.IntDistribution(low * a[2], high * a[2], step=a[2])
            step = Decimal(str(a[2]))
            return distributions.FloatDistribution(float(low * step), float(high * step), step=a[2])
        case _:
            return distributions.IntDistribution(int(a[0]), int(a[1]) - 1)
