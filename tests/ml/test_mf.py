"""Matrix factorization: scores by definition, and rows that are no pairs of user and item."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from eps.errors import ConfigError
from eps.ml.models import load_model
from eps.ml.models import mf as module

USERS, ITEMS, ROWS = 20, 30, 200


def example(rank: int, intercept: bool = True) -> tuple[Any, dict[str, np.ndarray], sparse.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(rank)
    model = load_model("mf")(USERS + ITEMS, 1, intercept=intercept, rank=rank)
    space = model.key_space()
    params = space.unpack(rng.normal(size=space.num_keys).astype(np.float32))
    pairs = np.stack([rng.integers(USERS, size=ROWS), USERS + rng.integers(ITEMS, size=ROWS)], axis=1)
    ones, ends = np.ones(2 * ROWS, np.float32), np.arange(0, 2 * ROWS + 1, 2)
    X = sparse.csr_matrix((ones, pairs.reshape(-1), ends), shape=(ROWS, USERS + ITEMS))
    return model, params, X, rng.normal(size=ROWS).astype(np.float32)


@pytest.mark.parametrize("intercept", [True, False])
def test_a_score_is_the_biases_and_the_product_of_the_factors(intercept: bool) -> None:
    model, params, X, _ = example(5, intercept)
    user, item = X.indices.reshape(-1, 2).T
    factors = params["factors"].astype(np.float64)
    expected = np.einsum("nk,nk->n", factors[user], factors[item])
    if intercept:
        expected += params["biases"][user] + params["biases"][item]
    np.testing.assert_allclose(model.decision(params, X), expected, rtol=0, atol=1e-5)


def test_an_unknown_user_or_item_leaves_the_bias_of_the_other() -> None:
    model, params, _, _ = example(3)
    X = sparse.csr_matrix(np.eye(2, USERS + ITEMS, dtype=np.float32) * [[1], [0]])
    assert model.decision(params, X).tolist() == [pytest.approx(params["biases"][0], abs=1e-6), 0.0]


def test_rows_in_parts_have_the_loss_and_the_gradient_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model, params, X, y = example(4)
    loss, gradient = model.loss_and_gradient(params, X, y)
    scores = model.decision(params, X)
    monkeypatch.setattr(module, "_VALUES", 4 * 70)
    assert model.decision(params, X).tobytes() == scores.tobytes()
    in_parts = model.loss_and_gradient(params, X, y)
    assert in_parts[0] == pytest.approx(loss, rel=1e-12)
    for name, values in gradient.items():
        np.testing.assert_allclose(in_parts[1][name], values, rtol=0, atol=1e-4)
    assert model.loss_and_gradient(params, X[:0], y[:0])[0] == 0.0 and len(model.decision(params, X[:0])) == 0


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank is 0, but must be at least 1"):
        load_model("mf")(10, 1, rank=0)
