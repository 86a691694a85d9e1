"""Real data sets reach the level of the baselines (each command stands in README.md).

Baselines: the data's own notes (scikit-learn on the same files).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eps


def test_metrics(settings: dict[str, Any]) -> dict[str, float]:
    # One of each is the fastest here, and the size of the job changes nothing (test_exactness).
    return eps.run(name="accuracy", workers=1, servers=1, **settings)["metrics"]["test"]


test_metrics.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(("model", "rate"), [("logistic", 0.1), ("svm", 0.05)])
def test_a9a_reaches_the_baseline(home: Path, shared_data: Path, model: str, rate: float) -> None:
    folder = shared_data / "sparse_binary" / "a9a"
    metrics = test_metrics(
        {
            "model": model, "data": str(folder / "a9a.gz"), "test": str(folder / "a9a.t.gz"), "features": 123,
            "iterations": 200, "learning_rate": rate,
        }
    )  # fmt: skip
    assert metrics["accuracy"] >= 0.847


@pytest.mark.parametrize(
    ("options", "metric", "baseline"),
    [
        ({"model": "linear"}, "rmse", 2.232),
        ({"model": "ridge", "l2": 0.0002}, "rmse", 2.232),
        ({"model": "lasso", "l1": 0.01}, "rmse", 2.237),
        ({"model": "robust"}, "mae", 1.555),
    ],
    ids=["linear", "ridge", "lasso", "robust"],
)
def test_abalone_is_within_one_percent_of_the_baseline(
    home: Path, shared_data: Path, options: dict[str, Any], metric: str, baseline: float
) -> None:
    data = shared_data / "regression" / "abalone" / "abalone_8d_train.libsvm"
    metrics = test_metrics(
        {"data": str(data), "normalize": "standard", "folds": 5, "iterations": 300, "learning_rate": 0.3, **options}
    )
    assert metrics[metric] <= baseline * 1.01


@pytest.mark.parametrize(("model", "rate", "least"), [("softmax", 0.1, 0.76), ("dnn", 0.02, 0.90)])
def test_letter_reaches_the_baseline(home: Path, shared_data: Path, model: str, rate: float, least: float) -> None:
    data = shared_data / "multiclass" / "letter" / "letter.scale.gz"
    metrics = test_metrics(
        {"data": str(data), "test": "last:5000", "model": model, "iterations": 300, "learning_rate": rate}
    )
    assert metrics["accuracy"] >= least


def test_farm_ads_reaches_the_baseline(home: Path, shared_data: Path) -> None:
    folder = shared_data / "sparse_binary" / "farm_ads"
    metrics = test_metrics(
        {
            "data": str(folder / "X_raw.npz"), "labels": str(folder / "y_raw.npy"), "model": "logistic",
            "normalize": "l2", "folds": 5, "l2": 0.0001, "iterations": 100,
        }
    )  # fmt: skip
    assert metrics["accuracy"] >= 0.90
