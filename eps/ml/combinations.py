"""Checks of models and update rules that can be combined."""

from __future__ import annotations

from collections.abc import Collection

from eps.errors import ConfigError
from eps.ml.models.base import Model, PenaltyRule
from eps.ml.optim import OptimizerSettings

#: Options of single models -> the library's model with that option.
_MODEL_OPTIONS = {"hidden": "dnn", "huber_delta": "robust", "rank": "mf", "topics": "lda"}
#: Constants of single optimizers.
_CONSTANTS = {"momentum": "momentum", "beta1": "adam", "beta2": "adam"}
_INSTEAD = {"l1": "use linear, or lasso with --l1", "l2": "use linear, or ridge with --l2"}


def check_combination(model: type[Model] | Model, optimizer: OptimizerSettings) -> None:
    """Refuse a model and optimizer settings that are valid separately but not together.

    :class:`~eps.ml.optim.OptimizerSettings` checks each constant by itself.

    Raises
    ------
    ConfigError
        A penalty that the model needs is missing, or one that it excludes is given.
    """
    cls = model if isinstance(model, type) else type(model)
    penalties = (("l1", cls.l1_penalty, optimizer.l1), ("l2", cls.l2_penalty, optimizer.l2))
    # Excluded penalties are reported before missing ones: `lasso --l2 0.1` probably meant another model.
    for penalty, rule, value in sorted(penalties, key=lambda item: item[1] != "refused"):
        _check_penalty(cls, penalty, rule, value)


def check_given(model: type[Model], optimizer: str, given: Collection[str]) -> None:
    """Refuse settings that were given but would have no effect.

    Parameters
    ----------
    model : type of Model
    optimizer : str
    given : collection of str
        Names of the settings that are not defaults.

    Raises
    ------
    ConfigError
        An option of another model, or a constant of another optimizer.
    """
    for name, needed in _MODEL_OPTIONS.items():
        if name in given and name not in model.options:
            raise ConfigError(f"{name} is given, but {model.__name__.lower()} has no such option: it is for {needed}")
    for name in ("optimizer", "learning_rate"):
        if name in given and model.adds:
            raise ConfigError(
                f"{name} is given, but {model.__name__.lower()} has no gradient to step along: leave it out"
            )
    for name, needed in _CONSTANTS.items():
        if name in given and optimizer != needed:
            raise ConfigError(f"{name} is given, but optimizer is {optimizer!r}: it is for {needed}")


def _check_penalty(cls: type[Model], penalty: str, rule: PenaltyRule, value: float) -> None:
    name = cls.__name__.lower()
    if rule == "required" and value == 0:
        raise ConfigError(f"{name} needs {penalty} > 0 (it is 0); use linear for least squares without penalties")
    if rule == "refused" and value != 0:
        raise ConfigError(f"{name} takes no {penalty} (it is {value}); {_INSTEAD[penalty]}")
