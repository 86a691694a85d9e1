from __future__ import annotations

import pytest

from eps.errors import ConfigError
from eps.ml.combinations import check_combination, check_given
from eps.ml.models import MODELS, load_model
from eps.ml.optim import OPTIMIZERS, OptimizerSettings


@pytest.mark.parametrize(
    ("model", "l1", "l2", "message"),
    [
        ("lasso", 0.0, 0.0, "lasso needs l1 > 0"),
        ("lasso", 0.1, 0.1, "lasso takes no l2"),
        ("lasso", 0.0, 0.1, "lasso takes no l2"),
        ("ridge", 0.0, 0.0, "ridge needs l2 > 0"),
        ("ridge", 0.1, 0.1, "ridge takes no l1"),
    ],
)
def test_lasso_and_ridge_need_their_own_penalty_and_only_that(model: str, l1: float, l2: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_combination(load_model(model), OptimizerSettings(l1=l1, l2=l2))


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_works_with_every_rule_and_its_penalties(model: str, optimizer: str) -> None:
    l1, l2 = {"lasso": (0.1, 0.0), "ridge": (0.0, 0.1)}.get(model, (0.1, 0.1))
    check_combination(load_model(model), OptimizerSettings(optimizer, l1=l1, l2=l2))
    cls = load_model(model)
    check_combination(cls(3, 1 if cls.task == "regression" else 2), OptimizerSettings(optimizer, l1=l1, l2=l2))


@pytest.mark.parametrize(
    ("model", "optimizer", "given", "message"),
    [
        ("softmax", "adam", "hidden", "hidden is given, but softmax has no such option: it is for dnn"),
        ("linear", "adam", "huber_delta", "huber_delta is given, but linear has no such option: it is for robust"),
        ("softmax", "adam", "rank", "rank is given, but softmax has no such option: it is for mf"),
        ("mf", "adam", "topics", "topics is given, but mf has no such option: it is for lda"),
        ("lda", "sgd", "optimizer", "optimizer is given, but lda has no gradient to step along: leave it out"),
        ("lda", "adam", "learning_rate", "learning_rate is given, but lda has no gradient to step along"),
        ("linear", "adam", "momentum", "momentum is given, but optimizer is 'adam': it is for momentum"),
        ("linear", "sgd", "beta1", "beta1 is given, but optimizer is 'sgd': it is for adam"),
        ("linear", "ftrl", "beta2", "beta2 is given, but optimizer is 'ftrl': it is for adam"),
    ],
)
def test_a_setting_that_somebody_gave_and_that_has_no_effect_is_refused(
    model: str, optimizer: str, given: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_given(load_model(model), optimizer, {given})
    check_given(load_model(model), optimizer, ())


def test_settings_of_the_chosen_model_and_optimizer_may_be_given() -> None:
    check_given(load_model("dnn"), "adam", {"hidden", "beta1", "beta2"})
    check_given(load_model("robust"), "momentum", {"huber_delta", "momentum"})
