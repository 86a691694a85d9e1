"""Which models and update rules make sense together."""

from __future__ import annotations

from eps.errors import ConfigError
from eps.ml.models.base import Model, PenaltyRule
from eps.ml.optim import OptimizerSettings

_INSTEAD = {"l1": "use linear, or lasso with --l1", "l2": "use linear, or ridge with --l2"}


def check_combination(model: type[Model] | Model, optimizer: OptimizerSettings) -> None:
    """Refuse settings that are each fine but senseless together.

    Constants that are wrong by themselves are refused by :class:`~eps.ml.optim.OptimizerSettings`.

    Raises
    ------
    ConfigError
        A penalty that the model needs is missing, or one that it excludes is given.
    """
    cls = model if isinstance(model, type) else type(model)
    _check_penalty(cls, "l1", cls.l1_penalty, optimizer.l1)
    _check_penalty(cls, "l2", cls.l2_penalty, optimizer.l2)


def _check_penalty(cls: type[Model], penalty: str, rule: PenaltyRule, value: float) -> None:
    name = cls.__name__.lower()
    if rule == "required" and value == 0:
        raise ConfigError(f"{name} needs {penalty} > 0 (it is 0); use linear for least squares without penalties")
    if rule == "refused" and value != 0:
        raise ConfigError(f"{name} takes no {penalty} (it is {value}); {_INSTEAD[penalty]}")
