"""All pieces of ``eps.ml`` together: a BSP job in one loop, with other workers and other partitions at every run."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from eps.ml.batches import batch_share, draw
from eps.ml.grid import Grid
from eps.ml.models import load_model
from eps.ml.optim import OptimizerSettings, make_optimizer
from eps.ml.steps import catch_up, peek
from eps.ml.sums import ClockSum, SplitSum
from tests.fakes.lazy_step import step_lazily
from tests.ml.totals import clock_total

SPLITS, ROWS, BATCH, CLOCKS, SEED = 8, 240, 50, 12, 3


def train(
    name: str, optimizer_name: str, options: dict[str, Any], num_partitions: int, workers_seed: int, is_sparse: bool
) -> tuple[np.ndarray, float, float]:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(ROWS, 30)) * (rng.random((ROWS, 30)) < 0.1)).astype(np.float32)
    y = (X[:, 0] - X[:, 1] + 0.1 * rng.normal(size=ROWS) > 0).astype(np.int32)
    cls = load_model(name)
    model = cls(30, 1 if cls.task == "regression" else 2, **options)
    space = model.key_space()
    rate = 0.5 if optimizer_name == "sgd" else 0.05
    optimizer = make_optimizer(OptimizerSettings(optimizer_name, learning_rate=rate, l1=0.001, l2=0.01))
    grid = Grid(SPLITS, space.block_keys)
    rows_of = np.array_split(np.arange(ROWS), SPLITS)
    bounds = list(accumulate(map(len, rows_of), initial=0))
    features = [np.flatnonzero(X[rows].any(axis=0)) if is_sparse else np.arange(30) for rows in rows_of]
    keys_of = [space.touched_keys(each) for each in features]

    ranges = space.partition_ranges(num_partitions)
    w = [space.initial_values(a, b, SEED) for a, b in ranges]
    masks = [space.penalised_mask(a, b) for a, b in ranges]
    slots = [optimizer.initial_slots(part, mask) for part, mask in zip(w, masks, strict=True)]
    last = [np.zeros(b - a, dtype=np.int32) for a, b in ranges]
    exponents = [grid.initial_exponents(b - a) for a, b in ranges]
    workers = np.random.default_rng(workers_seed)

    for clock in range(-1, CLOCKS):
        flat = np.concatenate(
            [peek(optimizer, w[i], slots[i], last[i], None, max(clock, 0), masks[i]) for i in range(num_partitions)]
        )
        worker_of = workers.integers(0, int(workers.integers(1, 5)), size=SPLITS)
        gradients = []
        for split in range(SPLITS):
            share = batch_share(BATCH, bounds, split, clock + 1)
            rows = rows_of[split][draw(SEED, split, clock + 1, len(rows_of[split]), share)]
            part = X[rows][:, features[split]]
            params = space.unpack_local(flat[keys_of[split]], len(features[split]))
            _, gradient = model.loss_and_gradient(params, sparse.csr_matrix(part) if is_sparse else part, y[rows])
            gradients.append(space.pack_local(gradient, len(features[split])))
        for i, (start, stop) in enumerate(ranges):
            server = ClockSum(grid, exponents[i], start, stop - start)
            for worker in workers.permutation(worker_of.max() + 1):
                mine = [int(s) for s in workers.permutation(SPLITS) if worker_of[s] == worker]
                if not mine:
                    continue
                union = np.unique(np.concatenate([keys_of[s] for s in mine]))
                union = union[(union >= start) & (union < stop)]
                pushed = SplitSum(grid, exponents[i], start, stop - start, union)
                for split in mine:
                    inside = (keys_of[split] >= start) & (keys_of[split] < stop)
                    positions = np.searchsorted(union, keys_of[split][inside])
                    pushed.add(split, gradients[split][inside], positions)
                server.add(pushed.sum, pushed.maxima, pushed.raw, union)
            if clock >= 0:
                touched = np.unique(np.concatenate(keys_of))
                touched = touched[(touched >= start) & (touched < stop)]
                mean = (clock_total(server)[touched - start] / BATCH).astype(np.float32)
                step_lazily(optimizer, w[i], slots[i], last[i], touched - start, mean, clock, masks[i])
            exponents[i] = server.next_exponents(clock)
    for i in range(num_partitions):
        catch_up(optimizer, w[i], slots[i], last[i], None, CLOCKS, masks[i])
    flat = np.concatenate(w)
    start = space.initial_values(0, space.num_keys, SEED)
    return flat, model.loss(space.unpack(start), X, y), model.loss(space.unpack(flat), X, y)


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("name", "optimizer", "options"),
    [
        ("logistic", "adam", {}),
        ("svm", "ftrl", {}),
        ("softmax", "adagrad", {}),
        ("dnn", "momentum", {"hidden": (5,)}),
        ("logistic", "sgd", {"intercept": False}),
        ("mf", "sgd", {"rank": 3}),
    ],
)
def test_the_model_has_the_same_bits_whatever_the_workers_and_the_partitions(
    name: str, optimizer: str, options: dict[str, Any], is_sparse: bool
) -> None:
    runs = [
        train(name, optimizer, options, count, seed, is_sparse) for count, seed in [(1, 1), (1, 2), (7, 3), (30, 4)]
    ]
    assert len({flat.tobytes() for flat, _, _ in runs}) == 1
    assert runs[0][2] < 0.99 * runs[0][1]
