"""LDA: counts that agree with the assignments, the loss by its definition, and the bits of both ways to compute."""

from __future__ import annotations

from math import lgamma
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from eps.errors import ConfigError
from eps.ml import kernels
from eps.ml.arrays import Purpose, random_stream
from eps.ml.layout import KeySpace, TensorSpec
from eps.ml.models import lda as module
from eps.ml.models import load_model
from eps.ml.models.lda import Lda
from eps.ml.optim import Add, OptimizerSettings

WORDS, TOPICS, ALPHA, BETA = 9, 4, 0.3, 0.05


def documents(num: int = 12, seed: int = 0) -> sparse.csr_matrix:
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.7, size=(num, WORDS))
    counts[:, 0] += 1
    return sparse.csr_matrix(counts.astype(np.float32))


def model_for(X: sparse.csr_matrix) -> Lda:
    model = load_model("lda")(WORDS, int(X.sum()), topics=TOPICS, alpha=ALPHA, beta=BETA)
    assert isinstance(model, Lda)
    return model


def swept(model: Lda, X: sparse.csr_matrix, sweeps: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """Return the parameters after some sweeps from the start, and the loss before each."""
    space = model.key_space()
    params, losses = space.unpack(np.zeros(space.num_keys, np.float32)), []
    for clock in range(sweeps):
        loss, changes = model.sweep(params, X, random_stream(0, Purpose.SWEEPS, 0, clock))
        assert all(array.dtype == np.float32 for array in changes.values())
        params = space.unpack(space.pack(params) + space.pack(changes))
        losses.append(loss)
    return params, losses


def tokens_of(X: sparse.csr_matrix) -> list[tuple[int, int]]:
    """Return document and word of each token."""
    return [
        (document, word)
        for document, row in enumerate(X.toarray().astype(int).tolist())
        for word, count in enumerate(row)
        for _ in range(count)
    ]


def test_counts_are_those_of_the_assignments_after_every_sweep() -> None:
    X = documents()
    model, tokens = model_for(X), tokens_of(X)
    for sweeps in range(1, 5):
        params, _ = swept(model, X, sweeps)
        by_word = np.zeros((WORDS, TOPICS))
        for (_, word), topic in zip(tokens, params["assignments"].astype(int) - 1, strict=True):
            by_word[word, topic] += 1
        assert by_word.tolist() == params["word_topics"].tolist()
        assert by_word.sum(axis=0).tolist() == params["topics"].tolist()


def test_the_loss_is_the_joint_probability_of_words_and_topics() -> None:
    X = documents()
    model, tokens = model_for(X), tokens_of(X)
    params, losses = swept(model, X, 40)
    assert losses[0] == pytest.approx(len(tokens) * np.log(WORDS * TOPICS))
    by_document = np.zeros((X.shape[0], TOPICS))
    for (document, _), topic in zip(tokens, params["assignments"].astype(int) - 1, strict=True):
        by_document[document, topic] += 1

    def dirichlet(prior: float, counts: np.ndarray) -> float:
        """Return the logarithm of the probability of draws with these counts, the multinomial integrated out."""
        found = lgamma(prior * len(counts)) - lgamma(prior * len(counts) + counts.sum())
        return found + sum(lgamma(prior + count) - lgamma(prior) for count in counts.tolist())

    expected = sum(dirichlet(BETA, column) for column in params["word_topics"].astype(np.float64).T)
    expected += sum(dirichlet(ALPHA, row) for row in by_document)
    assert model.loss(params, X, np.zeros(X.shape[0])) == pytest.approx(-expected, rel=1e-12)
    assert np.mean(losses[20:]) < np.mean(losses[1:4]), "it learns"


def test_a_token_without_a_topic_has_the_loss_of_a_uniform_choice() -> None:
    X, y = documents(), np.zeros(12)
    params, _ = swept(model_for(X[:5]), X[:5], 3)
    expected = model_for(X[:5]).loss(params, X[:5], y[:5]) + int(X[5:].sum()) * np.log(WORDS * TOPICS)
    params["assignments"] = np.concatenate([params["assignments"], np.zeros(int(X[5:].sum()), np.float32)])
    assert model_for(X).loss(params, X, y) == pytest.approx(expected, rel=1e-12)


def test_the_losses_of_splits_add_up() -> None:
    X = documents()
    model, y = model_for(X), np.zeros(X.shape[0])
    params, _ = swept(model, X, 5)
    ends = np.cumsum([0, *X.toarray().sum(axis=1).astype(int).tolist()])
    parts = [slice(0, 3), slice(3, 12)]
    losses = []
    for part in parts:
        features = np.flatnonzero(X[part].toarray().any(axis=0))
        tokens = slice(int(ends[part.start]), int(ends[part.stop]))
        local = {"assignments": params["assignments"][tokens], "word_topics": params["word_topics"][features]}
        losses.append(model.loss({**params, **local}, X[part][:, features], y[part]))
    assert sum(losses) == pytest.approx(model.loss(params, X, y), rel=1e-12)


def test_compiled_sweeps_have_the_bits_of_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    X = documents(40)
    model, found = model_for(X), []
    for choice in ("auto", "numpy"):
        monkeypatch.setenv(kernels.VARIABLE, choice)
        module._compiled.cache_clear()
        assert (module._compiled() is module._sweep) == (choice == "numpy")
        params, losses = swept(model, X, 6)
        found.append((losses, *[array.tobytes() for array in params.values()]))
    module._compiled.cache_clear()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": 0}, "topics is 0, but must be at least 1"),
        ({"parts": 0}, "parts is 0, but must be at least 1"),
        ({"alpha": 0.0}, "alpha is 0.0, but must be finite and > 0"),
        ({"beta": float("nan")}, "beta is nan, but must be finite and > 0"),
    ],
)
def test_options_outside_their_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model("lda")(WORDS, 5, **options)


def test_topics_of_other_documents_are_not_predicted() -> None:
    X = documents()
    with pytest.raises(ConfigError, match="lda does not predict topics of other documents"):
        model_for(X).predict(swept(model_for(X), X, 1)[0], X)


def test_adding_is_exact_for_whole_numbers() -> None:
    w = np.array([0, 1, 2**24 - 2, 5], np.float32)
    optimizer = Add(OptimizerSettings(learning_rate=0.3))
    optimizer.step(w, [], np.array([0, -1, 1, 2**20], np.float32), 3, None)
    assert w.tobytes() == np.array([0, 0, 2**24 - 1, 5 + 2**20], np.float32).tobytes()
    assert optimizer.idle_step_changes_nothing() and optimizer.takes_sum


def test_rows_of_samples_are_touched_by_their_split_alone() -> None:
    space = KeySpace(
        (
            TensorSpec("words", (3, 2), rows_are_features=True),
            TensorSpec("all", (2,)),
            TensorSpec("samples", (4, 2), rows_are_samples=True),
        )
    )
    keys = space.touched_keys(np.array([1]), (1, 3))
    assert keys.tolist() == [2, 3, 6, 7, 10, 11, 12, 13]
    params = space.unpack_local(keys.astype(np.float32), 1, 2)
    assert params["samples"].tolist() == [[10, 11], [12, 13]] and params["words"].shape == (1, 2)
    assert space.pack_local(params, 1, 2).tolist() == keys.tolist()
    with pytest.raises(ConfigError, match="has no rows for features or samples"):
        TensorSpec("one", (), rows_are_samples=True)
