"""A worker's arithmetic and a server's arrays in one loop: with and without reproducible sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from scipy import sparse

from eps.data.splitfile import SplitData
from eps.errors import ConfigError, TrainingError
from eps.ml import kernels
from eps.ml.models.linear import Logistic
from eps.net.messages.exchange import PullPart
from eps.server.checks import check_parts, check_pushes
from eps.server.partition_store import PartitionStore
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime
from eps.worker import compute as compute_module
from eps.worker.compute import ActiveSet, Computation, FirstGradients, Parameters

SPLITS, ROWS, FEATURES = 4, 30, 400


def make_runtime(is_sparse: bool, **settings: object) -> Runtime:
    spec = JobSpec.from_dict({"splits": SPLITS, "partitions": 3, "iterations": 15, "learning_rate": 0.05} | settings)
    shape = DataShape(FEATURES, 2, (ROWS,) * SPLITS, sparse=is_sparse, test_rows=0, split_checksums=("",) * SPLITS)
    return Runtime("job", spec, shape, Path("unused"), Path("unused"))


def make_splits(is_sparse: bool) -> dict[int, SplitData]:
    rng = np.random.default_rng(0)
    found = {}
    for split in range(SPLITS):
        X = (rng.normal(size=(ROWS, FEATURES)) * (rng.random((ROWS, FEATURES)) < 0.05)).astype(np.float32)
        y = (X[:, :200].sum(axis=1) > 0).astype(np.int32)
        features = np.flatnonzero(X.any(axis=0)).astype(np.int64) if is_sparse else None
        data = sparse.csr_matrix(X[:, features]) if is_sparse else X
        found[split] = SplitData(data, y, FEATURES, features, data[:0], y[:0])
    return found


def train(
    runtime: Runtime,
    groups: list[list[int]],
    localised: bool | None = None,
    splits: dict[int, SplitData] | None = None,
) -> tuple[np.ndarray, list[float]]:
    """Return the model and the loss of every clock; each group of splits is a worker."""
    splits, settings = splits or make_splits(runtime.sparse if localised is None else localised), runtime.settings
    workers = [ActiveSet(runtime, {split: splits[split] for split in group}) for group in groups]
    stores = [
        PartitionStore(runtime, p, runtime.key_space.initial_values(a, b, 0)) for p, (a, b) in enumerate(runtime.ranges)
    ]
    losses = []
    for clock in range(settings.first_clock, settings.iterations):
        done = []
        for active in [worker.at(clock) for worker in workers]:
            blocks = runtime.key_space.num_blocks if settings.reproducible else 0
            parameters = Parameters(np.empty(active.size, np.float32), np.empty(blocks, np.int16))
            for p, store in enumerate(stores):
                keys = None if active.keys is None else active.keys_of(p)
                values, exponents = store.pull(clock, PullPart(p, clock, active.keysets[p], keys))
                parameters.values[active.bounds[p] : active.bounds[p + 1]] = values
                if blocks:
                    parameters.exponents[active.block_bounds[p] : active.block_bounds[p + 1]] = exponents
            done.append((active, Computation(runtime, active, parameters, clock).finish()))
        for p, store in enumerate(stores):
            for i, (active, work) in enumerate(done):
                push = work.push(p)
                keys = None if active.keys is None else active.keys_of(p)
                push = type(push)(
                    p, clock, push.splits, push.samples, push.total, push.maxima, push.keyset, keys, push.raw
                )
                check_parts(runtime, [push])
                check_pushes(runtime, [push])
                store.accumulate(push, i == 0)
            store.step(clock, False)
        losses.append(sum(result.loss_sum for _, work in done for result in work.results))
    return np.concatenate([store.export() for store in stores]), losses


@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_without_reproducible_sums_reaches_the_same_model_nearly(is_sparse: bool, optimizer: str) -> None:
    groups = [[0, 1], [2, 3]]
    exact, _ = train(make_runtime(is_sparse, optimizer=optimizer), groups)
    plain_runtime = make_runtime(is_sparse, optimizer=optimizer, reproducible=False)
    assert plain_runtime.settings.bsp and plain_runtime.settings.first_clock == 0
    plain, losses = train(plain_runtime, groups)
    assert losses[-1] < 0.96 * losses[0] and len(losses) == 15
    assert np.allclose(exact, plain, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "ftrl"])
@pytest.mark.parametrize("batch_size", ["4", "2"])
def test_only_the_keys_of_small_batches_are_exchanged_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, batch_size: str
) -> None:
    runtime = make_runtime(True, optimizer=optimizer, batch_size=batch_size)
    splits, groups = make_splits(True), [[0, 2], [1, 3]]
    whole, losses = train(runtime, groups, splits=splits)
    monkeypatch.setattr(compute_module, "MANY_KEYS", 0)
    found = train(runtime, groups, splits=splits)
    assert found[0].tobytes() == whole.tobytes() and found[1] == losses
    active = ActiveSet(runtime, {0: splits[0]})
    sizes = [active.at(clock).size for clock in range(15)]
    assert 0 < max(sizes) < active.size / 4 and active.at(15) is active.at(99) is active
    assert active.at(14) is active.at(14) is not active.at(13), "a clock has one set"
    assert active.at(-1).keys is not None and active.at(-1).keysets == active.at(0).keysets


@pytest.mark.parametrize(
    ("settings", "test_rows"),
    [({"l2": 0.1}, 0), ({"optimizer": "adam"}, 0), ({"batch_size": "full"}, 0), ({"push": "dense"}, 0), ({}, 4)],
    ids=["penalty", "adam", "full", "dense", "evaluations"],
)
def test_other_jobs_exchange_the_keys_of_their_splits(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], test_rows: int
) -> None:
    monkeypatch.setattr(compute_module, "MANY_KEYS", 0)
    runtime = make_runtime(True, **({"optimizer": "sgd", "batch_size": "4"} | settings))
    object.__setattr__(runtime.shape, "test_rows", test_rows)
    active = ActiveSet(runtime, {0: make_splits(True)[0]})
    assert active.at(3) is active


#: Penalties of what is held against scikit-learn, whose own are over all rows or their inverse.
L1, L2 = 0.1, 0.05
#: A few roundings of float32 of parameters of about 1.
ORACLE_TOLERANCE = 2e-6


def oracle_data() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return rows of six features, and their labels by task."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(SPLITS * ROWS, 6)).astype(np.float32)
    scores = X @ np.array([1.5, -2.0, 0.5, 0.0, 0.0, 1.0]) + 0.7
    return X, {
        "regression": (scores + 0.3 * rng.normal(size=len(X))).astype(np.float32),
        "binary": (scores + rng.logistic(size=len(X)) > 0).astype(np.int32),
        "multiclass": np.argmax(X @ rng.normal(size=(6, 3)) + rng.gumbel(size=(len(X), 3)), axis=1).astype(np.int32),
    }


@pytest.mark.parametrize("model", ["linear", "ridge", "lasso", "logistic", "softmax"])
def test_trained_to_the_end_a_model_is_the_one_that_scikit_learn_finds(model: str) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    X, labels = oracle_data()
    rows = len(X)
    task, outputs, rate, penalties, oracle = {
        "linear": ("regression", 1, 0.3, {}, lambda: linear.LinearRegression()),
        "ridge": ("regression", 1, 0.3, {"l2": L2}, lambda: linear.Ridge(alpha=rows * L2, solver="cholesky")),
        "lasso": ("regression", 1, 0.3, {"l1": L1}, lambda: linear.Lasso(alpha=L1, tol=1e-12, max_iter=100_000)),
        "logistic": ("binary", 2, 1.0, {"l2": L2}, lambda: linear.LogisticRegression(C=1 / (rows * L2), tol=1e-10)),
        "softmax": ("multiclass", 3, 1.0, {"l2": L2}, lambda: linear.LogisticRegression(C=1 / (rows * L2), tol=1e-10)),
    }[model]
    y = labels[task]
    settings = {"splits": SPLITS, "partitions": 2, "workers": 2, "servers": 1, "iterations": 1500, "optimizer": "sgd"}
    spec = JobSpec.from_dict({**settings, "model": model, "learning_rate": rate, **penalties})
    shape = DataShape(X.shape[1], outputs, (ROWS,) * SPLITS, sparse=False, test_rows=0, split_checksums=("",) * SPLITS)
    runtime = Runtime("job", spec, shape, Path("unused"), Path("unused"))
    parts = [slice(split * ROWS, (split + 1) * ROWS) for split in range(SPLITS)]
    splits = {n: SplitData(X[part], y[part], X.shape[1], None, X[:0], y[:0]) for n, part in enumerate(parts)}

    found = runtime.key_space.unpack(train(runtime, [[0, 1], [2, 3]], splits=splits)[0])

    expected = oracle().fit(X.astype(np.float64), y)
    weights, intercept = expected.coef_.T.reshape(found["weights"].shape), np.atleast_1d(expected.intercept_)
    np.testing.assert_allclose(found["weights"], weights, rtol=0, atol=ORACLE_TOLERANCE)
    assert np.array_equal(found["weights"] == 0, weights == 0), "what a penalty makes zero is exactly zero"
    # The same number added to all of them changes no probability.
    free = model == "softmax"
    np.testing.assert_allclose(
        found["intercept"] - free * found["intercept"].mean(),
        intercept - free * intercept.mean(),
        rtol=0,
        atol=ORACLE_TOLERANCE,
    )


@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
def test_model_has_the_same_bits_whatever_the_workers_and_the_kernels(
    is_sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    found = set()
    for choice in ("numpy", "numba"):
        monkeypatch.setenv(kernels.VARIABLE, choice)
        for groups in ([[0, 1, 2, 3]], [[3], [0, 2], [1]]):
            found.add(train(make_runtime(is_sparse), groups)[0].tobytes())
    assert len(found) == 1


def test_sparse_data_gives_the_same_bits_where_every_key_is_pushed() -> None:
    groups = [[0, 1], [2, 3]]
    touched_only, _ = train(make_runtime(True), groups)
    every_key, _ = train(make_runtime(False), groups, localised=True)
    assert touched_only.tobytes() == every_key.tobytes()


def test_sum_is_made_in_the_memory_that_was_given() -> None:
    runtime = make_runtime(False)
    active = ActiveSet(runtime, make_splits(False))
    blocks = np.full(runtime.key_space.num_blocks, 20, np.int16)
    made: list[np.ndarray] = []

    def empty(length: int, dtype: np.dtype) -> np.ndarray:
        made.append(np.full(length, 99, dtype))
        return made[-1]

    parameters = Parameters(np.zeros(active.size, np.float32), blocks)
    given = Computation(runtime, active, parameters, 0, empty=empty).finish()
    usual = Computation(runtime, active, parameters, 0).finish()
    assert len(made) == 1 and made[0].size == active.size
    for p in range(3):
        assert np.shares_memory(given.push(p).total, made[0])
        assert given.push(p).total.tobytes() == usual.push(p).total.tobytes()


@pytest.mark.parametrize("sparse", [True, False])
def test_gradients_of_the_first_clock_are_those_that_measured_its_grid(
    sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(sparse)
    active = ActiveSet(runtime, make_splits(sparse))
    exponents = np.full(runtime.key_space.num_blocks, 20, np.int16)
    parameters = Parameters(np.linspace(-1, 1, active.size, dtype=np.float32), exponents)
    usual = Computation(runtime, active, parameters, 0).finish()
    first = FirstGradients()
    # A worker measures two of its four splits; the others come from one that left.
    measured = Computation(runtime, active, parameters, -1, only=(1, 2), first=first).finish()
    given = Computation(runtime, active, parameters, 0, first=first).finish()
    assert (measured.num_computed, given.num_computed, usual.num_computed) == (2, 2, 4)
    assert given.results == usual.results
    for p in range(3):
        assert given.push(p).total.tobytes() == usual.push(p).total.tobytes()
        assert given.push(p).maxima.tobytes() == usual.push(p).maxima.tobytes()
    # Later clocks have other parameters.
    assert Computation(runtime, active, parameters, 1, first=first).finish().num_computed == 4
    monkeypatch.setattr(compute_module, "MOST_KEPT_BYTES", 0)
    Computation(runtime, active, parameters, -1, first=first).finish()
    assert Computation(runtime, active, parameters, 0, first=first).finish().num_computed == 4


@pytest.mark.parametrize("clock", [-1, 0])
@pytest.mark.parametrize("reproducible", [True, False])
def test_gradient_that_is_not_finite_stops_training(clock: int, reproducible: bool) -> None:
    runtime = make_runtime(False, reproducible=reproducible)
    active = ActiveSet(runtime, make_splits(False))
    blocks = np.full(runtime.key_space.num_blocks, 20, np.int16)
    with pytest.raises(TrainingError, match="split 0 is"):
        Computation(runtime, active, Parameters(np.full(active.size, np.nan, np.float32), blocks), clock).finish()


def test_choice_of_kernels_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "fast")
    with pytest.raises(ConfigError, match="auto, numpy or numba"):
        kernels.compiled()
    with pytest.raises(ConfigError, match="auto, numpy or numba"):
        kernels.use_for(1)


def test_small_models_need_no_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "auto")
    assert kernels.use_for(kernels.MANY_KEYS) is None
    monkeypatch.setenv(kernels.VARIABLE, "numpy")
    assert kernels.use_for(10**9) is None and kernels.compiled() is None


def test_model_may_return_its_gradients_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[0, 1], [2, 3]]
    expected, _ = train(make_runtime(False, intercept=False), groups)
    memory = np.empty(FEATURES, np.float32)
    original = Logistic.loss_and_gradient

    def reusing(self: Logistic, *args: Any) -> tuple[float, dict[str, np.ndarray]]:
        loss, gradient = original(self, *args)
        memory[:] = gradient["weights"]
        return loss, {"weights": memory}

    monkeypatch.setattr(Logistic, "loss_and_gradient", reusing)
    assert train(make_runtime(False, intercept=False), groups)[0].tobytes() == expected.tobytes()


def test_some_of_the_splits_may_be_named_by_anything_that_yields_them() -> None:
    active = ActiveSet(make_runtime(False), make_splits(False))
    for only, expected in (([], [0, 1, 2, 3]), (iter([2, 0]), [0, 2]), (iter(()), [0, 1, 2, 3])):
        begun = Computation(make_runtime(False), active, cast(Parameters, None), 0, only)
        assert begun.ready({0, 1, 2}) == expected
