"""Real data sets reach the level of the baselines (each command stands in README.md).

What workers and servers compute is computed here, in one process; that a job of processes has the same bits is what
``tests/integration/test_exactness.py`` shows.  Baselines: the data's own notes (scikit-learn on the same files).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.ratings import Law
from eps.data.cut import prepare
from eps.data.dataset import open_dataset
from eps.data.splitfile import read_split
from eps.job.launch import data_settings, shape_of
from eps.master.export import test_metrics as metrics_on_test_data
from eps.ml.batches import draw
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import Runtime, settled
from tests.server.test_training_in_process import train


def trained(folder: Path, **settings: Any) -> tuple[Runtime, np.ndarray]:
    """Return a job that is computed in this process, and its model."""
    asked = JobSpec.from_dict({"workers": 1, "servers": 1, **settings})
    dataset = prepare(data_settings(asked), folder / "cache")
    shape = shape_of(dataset)
    spec = settled(asked, shape.num_features, shape.num_outputs)
    runtime = Runtime("accuracy", spec, shape, dataset.directory, folder)
    splits = {split: read_split(dataset.split_path(split)) for split in range(dataset.num_splits)}
    return runtime, train(runtime, [list(splits)], splits=splits)[0]


def metrics_of(folder: Path, **settings: Any) -> dict[str, float]:
    """Return the metrics on the test data; where there are folds, their means."""
    found = []
    for fold in range(settings.get("folds", 0)) or (-1,):
        runtime, model = trained(folder, **settings, fold=fold)
        found.append(metrics_on_test_data(runtime, runtime.key_space.unpack(model)))
    return {name: float(np.mean([metrics[name] for metrics in found])) for name in found[0]}


@pytest.mark.parametrize(("model", "rate"), [("logistic", 0.1), ("svm", 0.05)])
def test_a9a_reaches_the_baseline(tmp_path: Path, shared_data: Path, model: str, rate: float) -> None:
    folder = shared_data / "sparse_binary" / "a9a"
    metrics = metrics_of(
        tmp_path, model=model, data=str(folder / "a9a.gz"), test=str(folder / "a9a.t.gz"), features=123,
        iterations=200, learning_rate=rate,
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
    tmp_path: Path, shared_data: Path, options: dict[str, Any], metric: str, baseline: float
) -> None:
    data = shared_data / "regression" / "abalone" / "abalone_8d_train.libsvm"
    metrics = metrics_of(
        tmp_path, data=str(data), normalize="standard", folds=5, iterations=300, learning_rate=0.3, **options
    )
    assert metrics[metric] <= baseline * 1.01


@pytest.mark.parametrize(("model", "rate", "least"), [("softmax", 0.1, 0.76), ("dnn", 0.02, 0.90)])
def test_letter_reaches_the_baseline(tmp_path: Path, shared_data: Path, model: str, rate: float, least: float) -> None:
    data = shared_data / "multiclass" / "letter" / "letter.scale.gz"
    metrics = metrics_of(tmp_path, data=str(data), test="last:5000", model=model, iterations=300, learning_rate=rate)
    assert metrics["accuracy"] >= least


def test_farm_ads_reaches_the_baseline(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "sparse_binary" / "farm_ads"
    metrics = metrics_of(
        tmp_path, data=str(folder / "X_raw.npz"), labels=str(folder / "y_raw.npy"), model="logistic",
        normalize="l2", folds=5, l2=0.0001, iterations=100,
    )  # fmt: skip
    assert metrics["accuracy"] >= 0.90


def test_matrix_factorization_has_the_error_of_plain_sgd(tmp_path: Path) -> None:
    law = Law(users=300, items=200, ratings=20_000, rank=4)
    law.write(tmp_path / "ratings.txt")
    rate, l2, iterations = 25.0, 3e-5, 400
    runtime, model = trained(
        tmp_path, model="mf", rank=4, data=str(tmp_path / "ratings.txt"), test="0.1", optimizer="sgd",
        learning_rate=rate, l2=l2, batch_size="4000", iterations=iterations,
    )  # fmt: skip
    found = metrics_on_test_data(runtime, runtime.key_space.unpack(model))["rmse"]

    # The oracle: the same batches from the same start, one rating after the other in float64.
    dataset = open_dataset(runtime.dataset_dir)
    splits = [read_split(dataset.split_path(split)) for split in range(dataset.num_splits)]
    pairs = [each.features[each.X.indices].reshape(-1, 2) for each in splits]
    start = runtime.key_space.unpack(runtime.key_space.initial_values(0, runtime.key_space.num_keys, 0))
    v, b = start["factors"].astype(np.float64), start["biases"].astype(np.float64)
    for clock in range(iterations):
        step_v, step_b = np.zeros_like(v), np.zeros_like(b)
        for split, data in enumerate(splits):
            rows = draw(0, split, clock, data.num_rows, runtime.share_of(split, clock))
            (user, item), rating = pairs[split][rows].T, data.y[rows]
            error = (b[user] + b[item] + (v[user] * v[item]).sum(axis=1) - rating)[:, np.newaxis]
            np.add.at(step_v, user, error * v[item])
            np.add.at(step_v, item, error * v[user])
            np.add.at(step_b, user, error[:, 0])
            np.add.at(step_b, item, error[:, 0])
        v -= rate * (step_v / 4000 + l2 * v)
        b -= rate * step_b / 4000
    test_X, test_y = dataset.load_test()
    user, item = test_X.indices.reshape(-1, 2).T
    expected = np.sqrt(np.mean((b[user] + b[item] + (v[user] * v[item]).sum(axis=1) - test_y) ** 2))
    assert abs(found - expected) < 1e-5
    # It has learned the factors: the noise remains, and what 60 ratings of a user leave unknown.
    assert found < 1.25 * law.noise < 0.8 * float(np.std(test_y))
