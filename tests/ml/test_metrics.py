from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from eps.errors import ProtocolError
from eps.ml.metrics import APPROXIMATE, EvalSums, area_under_curve, exact_metrics
from eps.ml.models import load_model


def test_binary_metrics_have_their_textbook_values() -> None:
    scores = np.array([1, 2, -1, 3, -2, -3], dtype=np.float32)
    y = np.array([1, 0, 1, 1, 0, 0], dtype=np.int32)
    found = exact_metrics("binary", scores, y)
    assert found["accuracy"] == 4 / 6 and found["precision"] == found["recall"] == found["f1"] == 2 / 3
    assert found["auc"] == pytest.approx(7 / 9)


def test_multiclass_f1_is_the_mean_over_the_classes_that_occur() -> None:
    scores = np.eye(4, dtype=np.float32)[[0, 1, 1, 2]]
    found = exact_metrics("multiclass", scores, np.array([0, 1, 2, 2], dtype=np.int32))
    assert found == {"accuracy": 0.75, "f1": pytest.approx((1 + 2 / 3 + 2 / 3) / 3)}


def test_regression_metrics_have_their_textbook_values() -> None:
    found = exact_metrics("regression", np.array([1, 2, 5], dtype=np.float32), np.array([1, 3, 3], dtype=np.float32))
    assert found["rmse"] == pytest.approx(math.sqrt(5 / 3)) and found["mae"] == 1.0
    assert found["r2"] == pytest.approx(1 - 5 / (8 / 3))
    assert "r2" not in exact_metrics("regression", np.ones(2, dtype=np.float32), np.ones(2, dtype=np.float32))


def test_area_under_the_curve_is_the_share_of_ordered_pairs_with_ties_counted_half() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        scores = rng.integers(-3, 4, size=25).astype(np.float32)
        positive = rng.random(25) < 0.4
        pairs = list(product(scores[positive], scores[~positive]))
        expected = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs) if pairs else None
        assert area_under_curve(scores, positive) == pytest.approx(expected), f"seed {seed}"
    assert area_under_curve(np.ones(3), np.ones(3, dtype=bool)) is None


@pytest.mark.parametrize(("name", "outputs"), [("logistic", 2), ("softmax", 4), ("linear", 1)])
def test_sums_of_shards_give_the_metrics_of_the_whole(name: str, outputs: int) -> None:
    rng = np.random.default_rng(4)
    model = load_model(name)(5, outputs)
    space = model.key_space()
    params = space.unpack(rng.normal(size=space.num_keys).astype(np.float32))
    X = rng.normal(size=(90, 5)).astype(np.float32)
    y = rng.integers(0, outputs, size=90).astype(np.float32 if outputs == 1 else np.int32)
    shards = [EvalSums.of(model, params, X[a:b], y[a:b]).to_vector() for a, b in [(0, 40), (40, 40), (40, 90)]]
    summary = EvalSums.from_vector(model, np.sum(shards, axis=0).tolist()).summary()
    exact = exact_metrics(model.task, model.decision(params, X), y)
    assert summary.pop("loss") == pytest.approx(model.loss(params, X, y) / 90)
    for metric, value in summary.items():
        assert value == pytest.approx(exact[metric], abs=0.01 if metric in APPROXIMATE else 1e-9, rel=1e-5), metric


def test_sums_survive_the_trip_as_plain_numbers() -> None:
    model, regression = load_model("softmax")(2, 3), load_model("linear")(2, 1)
    sums = EvalSums("multiclass", 7, 1.25, 4, 0.0, 0.0, (1, 2, 3), (4, 5, 6), (7, 8, 9))
    assert EvalSums.from_vector(model, sums.to_vector()) == sums
    none = EvalSums.zero("regression", 1)
    assert EvalSums.from_vector(regression, none.to_vector()) == none
    with pytest.raises(ProtocolError, match=r"6 .* 14 were expected"):
        EvalSums.from_vector(model, (0.0,) * 6)


@pytest.mark.parametrize(
    ("scale", "separation"), [(0.01, 1.0), (0.1, 1.0), (1.0, 0.5), (4.0, 2.0), (30.0, 1.0), (300.0, 1.0)]
)
def test_the_area_of_binned_scores_is_close_to_the_exact_one(scale: float, separation: float) -> None:
    rng = np.random.default_rng(2)
    y = (rng.random(4000) < 0.3).astype(np.int64)
    scores = (scale * (rng.normal(size=4000) + separation * (2 * y - 1))).astype(np.float32)
    sums = EvalSums.from_scores("binary", scores, y, num_outputs=2)
    assert sums.summary()["auc"] == pytest.approx(area_under_curve(scores, y == 1), abs=3e-3)
    model = load_model("logistic")(2, 2)
    assert EvalSums.from_vector(model, sums.to_vector()) == sums


def test_scores_that_are_not_finite_are_binned_too() -> None:
    scores = np.array([-np.inf, np.nan, np.inf, 1e38], np.float32)
    sums = EvalSums.from_scores("binary", scores, np.array([0, 1, 1, 0]), num_outputs=2)
    assert sum(sums.positive) == sum(sums.negative) == 2
    assert sums.summary()["auc"] == 0.625, "two of four pairs are in order, one is a tie, -inf comes first"


def test_equal_labels_have_no_r2_and_one_class_no_area() -> None:
    ones = np.ones(5, np.float32)
    assert "r2" not in EvalSums.from_scores("regression", ones, 3.7 * ones, num_outputs=1).summary()
    assert "auc" not in EvalSums.from_scores("binary", ones, np.ones(5, np.int64), num_outputs=2).summary()


def test_no_rows_have_no_metrics() -> None:
    assert EvalSums.zero("binary", 2).summary() == {}
