"""Points of a study of Optuna's, through ask and tell; needs the extra ``eps[optuna]``.

A trial that was killed is told as pruned, with its early feedback as its intermediate value; one that failed as failed.
"""

from __future__ import annotations

import math
from typing import Any

from eps.errors import ConfigError
from hscheduler.points import Point
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
        Optuna is not installed or refuses the space, or the study has another direction than the sweep, or several.
    """

    def __init__(self, spec: Spec, study: Any = None) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                f"algorithm is 'optuna', which needs Optuna ({error}): install eps[optuna], or use tpe or random"
            ) from None
        self._states = optuna.trial.TrialState
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
            low, high, step = math.ceil(a[0] / a[2]) * a[2], math.floor(a[1] / a[2]) * a[2], a[2]
            if all(isinstance(each, int) for each in (low, high, step)):
                return distributions.IntDistribution(low, high, step=step)
            return distributions.FloatDistribution(low, high, step=step)
        case _:
            return distributions.IntDistribution(int(a[0]), int(a[1]) - 1)
