"""The data plane affects only speed: jobs over every transport and with every option, while they resize."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from tests.integration.test_exactness import run
from tests.tiers import of_tier, sample

#: Partitions and splits move in both directions, some of them at the same clock.
CHANGES = (
    "6:add-servers=1",
    "12:add-workers=1",
    "18:remove-servers=server-1",
    "18:remove-workers=worker-1",
    "26:add-servers=1",
)


@pytest.fixture(scope="module")
def sparse_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Write rows whose features lie in one of four key ranges, so that some splits do not touch some partitions."""
    folder = tmp_path_factory.mktemp("sparse")
    rng = np.random.default_rng(5)
    rows, features, nonzeros = 1200, 60_000, 8
    start = np.repeat(np.arange(4) * (features // 4), rows // 4)
    columns = start[:, np.newaxis] + rng.integers(0, features // 4, size=(rows, nonzeros))
    X = scipy.sparse.csr_matrix(
        (np.ones(rows * nonzeros, np.float32), columns.ravel(), np.arange(0, rows * nonzeros + 1, nonzeros)),
        shape=(rows, features),
    )
    X.sum_duplicates()
    scipy.sparse.save_npz(folder / "X.npz", X, compressed=False)
    np.save(folder / "y.npy", rng.integers(0, 2, rows))
    return {
        "data": str(folder / "X.npz"), "labels": str(folder / "y.npy"), "features": features, "model": "logistic",
        "optimizer": "sgd", "learning_rate": 2.0, "batch_size": "200", "iterations": 36, "splits": 6, "partitions": 8,
    }  # fmt: skip


def elastic(name: str, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return run(name, workers=2, servers=2, at=list(CHANGES), **settings, **more)


def test_every_transport_and_option_gives_the_same_bits_while_the_job_resizes(
    home: Path, sparse_data: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    plain = run("plain", workers=1, servers=1, **sparse_data)
    variants: dict[str, dict[str, Any]] = {
        "shm": {"van": "shm"},
        "unix": {"van": "unix"},
        "tcp": {"van": "tcp"},
        "dense": {"push": "dense"},
        "changes": {"push": "changes", "van": "tcp"},
    }
    for name in of_tier(pytestconfig, sample([*variants], 4), [*variants]):
        assert elastic(name, sparse_data, **variants[name])["model_sha256"] == plain["model_sha256"], name


@pytest.mark.parametrize("optimizer", ["adam", "ftrl"])
def test_changes_alone_are_exact_with_rules_that_change_untouched_keys(
    home: Path, sparse_data: dict[str, Any], optimizer: str
) -> None:
    settings = {**sparse_data, "optimizer": optimizer, "learning_rate": 0.05, "l2": 0.001}
    plain = run("plain", workers=1, servers=1, **settings)
    lean = elastic("lean", settings, push="changes")
    assert lean["model_sha256"] == plain["model_sha256"]


@pytest.mark.parametrize(
    "more",
    [
        {"reproducible": False},
        {"reproducible": False, "wire": "float16", "van": "tcp"},
        {"consistency": "ssp:2", "wire": "float16", "push": "changes"},
        {"consistency": "asp", "wire": "float16", "van": "unix"},
    ],
    ids=["plain sums", "float16", "ssp", "asp"],
)
def test_without_exact_bits_nothing_is_lost_and_the_loss_is_near(
    home: Path, sparse_data: dict[str, Any], more: dict[str, Any]
) -> None:
    settings = {**sparse_data, "learning_rate": 0.5}
    exact = run("exact", workers=1, servers=1, **settings)
    found = elastic("found", settings, **more)
    assert abs(found["metrics"]["train_loss"] - exact["metrics"]["train_loss"]) < 0.02
