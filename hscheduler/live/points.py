"""Sources of a sweep's points: random points, Hyperopt's tree of Parzen estimators, or an Optuna study.

A sweep asks for a point when a trial arrives.  It tells the values of a trial at rungs, also while that trial trains or
is paused, and its result when it is over.  A source may learn from what it was told so far.

Source: EPS §6 (Hyperopt generates the jobs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Protocol

import numpy as np

from eps.errors import ConfigError
from hscheduler.core.jobs import Direction
from hscheduler.spec import Spec
from hscheduler.spec.space import Branch, Dimension, Space, multiples

Point = dict[str, Any]
#: (iteration, value) at rungs.
Rungs = Sequence[tuple[int, float]]


class Points(Protocol):
    """A source of points.  Not thread-safe."""

    def ask(self, job_id: str) -> Point:
        """Return the point of a trial.

        Raises
        ------
        StopIteration
            There are no more points.
        """

    def restore(self, job_id: str, point: Point) -> None:
        """Register a trial that an earlier source of the same kind suggested."""

    def tell_rungs(self, job_id: str, rungs: Rungs) -> None:
        """Tell the (iteration, value) at each rung that a trial has reached; it is not over."""

    def tell(self, job_id: str, loss: float | None, killed: bool = False, rungs: Rungs = ()) -> None:
        """Tell the result of a trial, once.

        Parameters
        ----------
        job_id : str
        loss : float, optional
            Its final loss; if it was killed, its value at its last rung, or its early feedback; None if it failed or
            diverged.
        killed : bool
            The stopping rule ended it, or it diverged.
        rungs : sequence
            (iteration, value) at each rung that it reached.
        """


class GivenPoints:
    """Points from a list, or random ones; results are ignored."""

    def __init__(self, points: Iterable[Mapping[str, Any]]) -> None:
        self._points = iter(points)

    def ask(self, job_id: str) -> Point:
        """Return the next point."""
        return dict(next(self._points))

    def restore(self, job_id: str, point: Point) -> None:
        """Skip a point."""
        next(self._points)

    def tell_rungs(self, job_id: str, rungs: Rungs) -> None:
        """Ignore the values."""

    def tell(self, job_id: str, loss: float | None, killed: bool = False, rungs: Rungs = ()) -> None:
        """Ignore the result."""


#: Random points before Hyperopt's model begins: this share of the trials, between the two numbers; the latter is
#: Hyperopt's own number.  With Hyperopt's own, half of 40 trials would be random.
RANDOM_SHARE, LEAST_RANDOM, MOST_RANDOM = 0.25, 5, 20


class TpePoints:
    """Points of Hyperopt's ``tpe.suggest``; needs the extra ``sweep``.

    Points without a value yet count as bad, as in Hyperopt: so parallel trials do not try nearly the same point.

    Parameters
    ----------
    space : Space
    seed : int
    direction : Direction
        Which loss is better.
    trials : int, optional
        How many points will be asked for, as far as is known.

    Raises
    ------
    ConfigError
        Hyperopt is not installed, or refuses the space.
    """

    def __init__(self, space: Space, seed: int, direction: Direction, trials: int = 0) -> None:
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
            self._space = hyperopt_space(space)
            self._domain = Domain(lambda point: None, self._space, pass_expr_memo_ctrl=False)
            # Drawing a sample finds faults that building the space does not.
            stochastic.sample(self._space, np.random.default_rng(seed))
        except Exception as error:
            # Hyperopt raises arbitrary exceptions for a bad space.
            raise ConfigError(f"Hyperopt refuses the space: {type(error).__name__}: {error}") from error
        self._trials = hyperopt.Trials()
        self._draw = Random(f"points:{seed}")
        self._sign = 1.0 if direction is Direction.MINIMIZE else -1.0
        self._documents: dict[str, int] = {}
        self._num_random = MOST_RANDOM
        if trials:
            self._num_random = min(MOST_RANDOM, max(LEAST_RANDOM, math.ceil(RANDOM_SHARE * trials)))

    def ask(self, job_id: str) -> Point:
        """Return Hyperopt's suggestion, given the results so far."""
        ids, seed = self._trials.new_trial_ids(1), self._draw.randrange(2**31)
        (document,) = self._hyperopt.tpe.suggest(
            ids, self._domain, self._trials, seed=seed, n_startup_jobs=self._num_random
        )
        self._trials.insert_trial_docs([document])
        self._trials.refresh()
        self._documents[job_id] = ids[0]
        values = {name: found[0] for name, found in document["misc"]["vals"].items() if found}
        point = self._hyperopt.space_eval(self._space, values)
        return _settings_of(self._dimensions, point)

    def restore(self, job_id: str, point: Point) -> None:
        """Register a point that was suggested before.

        The results that were known then are not restored, so later suggestions may differ from those without a restart.
        """
        from hyperopt.fmin import generate_trial

        self._draw.randrange(2**31)
        (tid,) = self._trials.new_trial_ids(1)
        document = generate_trial(tid, dict(_indices_of(self._dimensions, point)))
        for known in ("idxs", "vals"):
            # Settings of the other options.
            document["misc"][known] = {**{name: [] for name in self._domain.params}, **document["misc"][known]}
        self._trials.insert_trial_docs([document])
        self._trials.refresh()
        self._documents[job_id] = tid

    def tell_rungs(self, job_id: str, rungs: Rungs) -> None:
        """Tell Hyperopt the latest value as a loss: a paused trial, the best of its rung, would count as bad."""
        self._document(job_id)["result"] = self._result(rungs[-1][1])

    def tell(self, job_id: str, loss: float | None, killed: bool = False, rungs: Rungs = ()) -> None:
        """Tell Hyperopt a loss, also that of a killed trial; a failed trial has none, and Hyperopt ignores it.

        Hyperopt has no state for a trial that was stopped.  ``STATUS_FAIL`` would hide from it that the point is bad,
        so such a trial is complete, with the last value known; Ray Tune does the same.
        """
        document = self._document(job_id)
        document["state"], document["result"] = self._hyperopt.JOB_STATE_DONE, self._result(loss)
        self._trials.refresh()

    def _document(self, job_id: str) -> dict[str, Any]:
        tid = self._documents[job_id]
        found: dict[str, Any] = next(each for each in self._trials._dynamic_trials if each["tid"] == tid)
        return found

    def _result(self, loss: float | None) -> dict[str, Any]:
        if loss is None or math.isnan(loss):
            return {"status": self._hyperopt.STATUS_FAIL}
        return {"status": self._hyperopt.STATUS_OK, "loss": self._sign * float(loss)}


class OptunaPoints:
    """Points of an Optuna study.

    Parameters
    ----------
    spec : Spec
    study : optuna.Study, optional
        With the sampler that its owner chose; by default a study in memory, with Optuna's TPE and the sweep's seed.
    suggest : callable, optional
        Returns the settings of a trial of Optuna's, which it gets, instead of the space: its suggestions may depend on
        earlier ones ("define by run").

    Raises
    ------
    ConfigError
        Optuna is not installed or refuses the space; ``study`` is not a study; or its direction is not the sweep's.
    """

    def __init__(
        self, spec: Spec, study: Any = None, suggest: Callable[[Any], Mapping[str, Any]] | None = None
    ) -> None:
        self._suggest = suggest
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
        #: Seed and sampler of a study of the sweep's own.
        self._seed, self._sampler = None if study is not None else spec.sweep.seed, optuna.samplers.TPESampler
        if study is None:
            study = optuna.create_study(direction=direction, sampler=self._sampler(seed=spec.sweep.seed % 2**32))
        found = [each.name.lower() for each in study.directions]
        if found != [direction]:
            raise ConfigError(f"the study's direction is {' and '.join(found)}, but the sweep's is {direction}")
        self.study = study
        self._feedback_iteration = spec.sweep.feedback_iteration
        self._dimensions, self._distributions = spec.space, optuna.distributions
        try:
            for leaf in spec.leaves():
                _distribution(optuna.distributions, leaf)
        except ValueError as error:
            raise ConfigError(f"Optuna refuses the space: {error}") from error
        self._trials: dict[str, Any] = {}
        #: Whether the sampler, as of a grid, has tried all of its points.
        self._is_exhausted = False
        #: Iterations of the values that each trial has reported: a study takes each once.
        self._reported: dict[str, set[int]] = {}

    def ask(self, job_id: str) -> Point:
        """Return the suggestion of the study's sampler, given the results so far.  Raises as :class:`Points`."""
        if self._is_exhausted:
            raise StopIteration(f"the study's {type(self.study.sampler).__name__} has no more points")
        trial = self._trials[job_id] = self.study.ask()
        trial.set_user_attr("job_id", job_id)
        try:
            return self._point(trial)
        except BaseException:
            self.tell(job_id, None)
            raise

    def _point(self, trial: Any) -> Point:
        if self._suggest is None:
            return self._suggested(trial, self._dimensions)
        try:
            return dict(self._suggest(trial))
        except Exception as error:
            raise ConfigError(f"suggest raised {type(error).__name__}: {error}") from error

    def restore(self, job_id: str, point: Point) -> None:
        """Register a point that was drawn from the space before."""
        self.study.enqueue_trial(dict(_choices_of(self._dimensions, point)))
        self.ask(job_id)
        if self._seed is not None:
            # The sampler did not draw this point: with the same seed it would draw the first points again.
            self.study.sampler = self._sampler(seed=(self._seed + self._trials[job_id].number + 1) % 2**32)

    def tell_rungs(self, job_id: str, rungs: Rungs) -> None:
        """Report intermediate values.  Optuna's own TPE learns only from trials that are over."""
        reported = self._reported.setdefault(job_id, set())
        for iteration, value in rungs:
            if iteration not in reported:
                self._trials[job_id].report(value, step=iteration)
                reported.add(iteration)

    def tell(self, job_id: str, loss: float | None, killed: bool = False, rungs: Rungs = ()) -> None:
        """Tell the study the result of a trial; a missing or NaN loss is a failure.

        Values at rungs are intermediate values.  A trial that the stopping rule ended is pruned.
        """
        self.tell_rungs(job_id, rungs)
        trial = self._trials.pop(job_id)
        del self._reported[job_id]
        if killed:
            if loss is not None and not rungs:
                trial.report(loss, step=self._feedback_iteration)
            self._tell(trial, state=self._states.PRUNED)
        elif loss is None or math.isnan(loss):
            self._tell(trial, state=self._states.FAIL)
        else:
            self._tell(trial, values=loss)

    def _tell(self, trial: Any, **result: Any) -> None:
        """Tell the study a result, and note whether its sampler has points left."""
        try:
            self.study.tell(trial, **result)
        except RuntimeError:
            # A sampler without points stops Optuna's loop, and this is none.  The study has the result nevertheless.
            if not self.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                raise
            self._is_exhausted = True

    def _suggested(self, trial: Any, space: Space, label: str = "") -> Point:
        """Return the settings that a trial suggests, one after the other, as Optuna's objectives do."""
        found: Point = {}
        for each in space:
            name = f"{label}{each.name}"
            if isinstance(each, Branch):
                number = trial.suggest_categorical(name, list(range(len(each.options))))
                option = each.options[number]
                found |= {**dict(option.constants), **self._suggested(trial, option.space, f"{name}/{number}/")}
            else:
                found[each.name] = _suggest(trial, name, _distribution(self._distributions, each))
        return found


def _suggest(trial: Any, name: str, distribution: Any) -> Any:
    """Return a trial's suggestion for a distribution."""
    if hasattr(distribution, "choices"):
        return trial.suggest_categorical(name, distribution.choices)
    suggest = trial.suggest_int if isinstance(distribution.low, int) else trial.suggest_float
    return suggest(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def _choices_of(space: Space, point: Mapping[str, Any], label: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a point by label, and the number of the option of each branch."""
    for each in space:
        name = f"{label}{each.name}"
        if isinstance(each, Branch):
            number = each.option_of(point)
            yield name, number
            yield from _choices_of(each.options[number].space, point, f"{name}/{number}/")
        else:
            yield name, point[each.name]


def _indices_of(space: Space, point: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the same as Hyperopt has it: a choice is the number of its value."""
    leaves = dict(_labelled(space))
    for name, value in _choices_of(space, point):
        leaf = leaves.get(name)
        yield name, leaf.arguments.index(value) if leaf is not None and leaf.kind == "choice" else value


def _labelled(space: Space, label: str = "") -> Iterator[tuple[str, Dimension]]:
    """Yield the searched settings by label."""
    for each in space:
        name = f"{label}{each.name}"
        if isinstance(each, Branch):
            for number, option in enumerate(each.options):
                yield from _labelled(option.space, f"{name}/{number}/")
        else:
            yield name, each


def _distribution(distributions: Any, dimension: Dimension) -> Any:
    """Return a dimension as Optuna's distribution; its steps begin at the lower bound, Hyperopt's at 0."""
    a = dimension.arguments
    match dimension.kind:
        case "choice":
            return distributions.CategoricalDistribution(list(a))
        case "uniform":
            return distributions.FloatDistribution(a[0], a[1])
        case "loguniform":
            return distributions.FloatDistribution(a[0], a[1], log=True)
        case "quniform":
            of = distributions.IntDistribution if isinstance(a[2], int) else distributions.FloatDistribution
            return of(*dimension.corners(), step=a[2])
        case _:
            return distributions.IntDistribution(int(a[0]), int(a[1]) - 1)


def points_of(spec: Spec) -> Points:
    """Return the source of points for a sweep's algorithm.  Raises as :class:`TpePoints` and ``OptunaPoints``."""
    if spec.sweep.algorithm == "random" or not spec.space:
        return GivenPoints(spec.points())
    if spec.sweep.algorithm == "optuna":
        return OptunaPoints(spec)
    return TpePoints(spec.space, spec.sweep.seed, Direction(spec.sweep.direction), spec.sweep.trials)


#: In Hyperopt's space, the number of the option of a branch.
_NUMBER = ""


def hyperopt_space(space: Space, label: str = "") -> dict[str, Any]:
    """Return a space as Hyperopt's, by the name of each setting and branch; needs Hyperopt."""
    from hyperopt import hp

    return {each.name: _expression(hp, each, f"{label}{each.name}") for each in space}


def _settings_of(space: Space, found: Mapping[str, Any]) -> Point:
    """Return the settings of a point of Hyperopt's space."""
    point: Point = {}
    for each in space:
        value = found[each.name]
        if isinstance(each, Branch):
            option = each.options[value[_NUMBER]]
            point |= {**dict(option.constants), **_settings_of(option.space, value)}
        else:
            point[each.name] = each.nearest(_plain(value))
    return point


def _expression(hp: Any, dimension: Dimension | Branch, name: str) -> Any:
    """Return an entry of a space as Hyperopt's expression; its loguniform takes logarithms of the bounds."""
    if isinstance(dimension, Branch):
        options = enumerate(dimension.options)
        return hp.choice(name, [{_NUMBER: k, **hyperopt_space(option.space, f"{name}/{k}/")} for k, option in options])
    a = dimension.arguments
    match dimension.kind:
        case "choice":
            return hp.choice(name, list(a))
        case "loguniform":
            return hp.loguniform(name, math.log(a[0]), math.log(a[1]))
        case "uniform":
            return hp.uniform(name, a[0], a[1])
        case "quniform":
            # Half a step more on both sides: else the first and the last multiple are half as likely as the others.
            least, most = multiples(a)
            return hp.quniform(name, (least - 0.5) * a[2], (most + 0.5) * a[2], a[2])
        case _:
            return hp.randint(name, int(a[0]), int(a[1]))


def _plain(value: Any) -> Any:
    """Return a value as Python's own type: Hyperopt returns NumPy's for some."""
    return value.item() if hasattr(value, "item") else value
