"""Latent Dirichlet allocation: the topics of words in documents, by collapsed Gibbs sampling."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from eps.errors import ConfigError
from eps.ml import kernels
from eps.ml.arrays import Float32Array, Float64Array, Int64Array, Matrix, Targets
from eps.ml.layout import TensorSpec
from eps.ml.models.base import Model, Params


class Lda(Model):
    """Each token (one occurrence of a word in a document) has a topic, which a sweep draws again.

    The probability of topic k for a token of word w in document d is proportional to ``(n_dk + alpha) (n_wk + beta) /
    (n_k + V beta)``.  The counts are those of all other tokens: of topic k in document d, of word w with topic k, and
    of topic k in all.  V is the number of words.

    Parameters are ``word_topics`` (n_wk), ``topics`` (n_k) and ``assignments``, 1 + the topic of each token, or 0 if it
    has none yet.  Only the worker of a split reads and writes the assignments of its tokens.  All are whole numbers
    below 2^24, so they are exact in float32, and so is the sum of their changes.

    A clock draws the topics of one of ``parts`` parts of the documents of each split, so a sweep over all tokens takes
    that many clocks.  The first draw of a token has all topics equally likely.  A clock takes the counts of other
    splits as they were at its start.  So splits, not workers, define the result.

    With one part, two tokens of a word in different splits are always drawn at once, each given the other's old topic.
    They would be independent of each other in the limit, and rare words would be spread over too many topics.

    The loss of a token is ``-log p(w, z) / N``, for all words w, all topics z and N tokens, with the multinomials
    integrated out, as before the clock.  That of a token without a topic is ``log(V K)``, that of a uniform choice.

    Options: ``topics`` (K), ``alpha`` and ``beta`` (the Dirichlet priors of the topics of a document and of the words
    of a topic), ``parts``.

    Source
    ------
    Griffiths and Steyvers 2004, equations 2, 3 and 5.  Sweeps of parts that add their changes to common counts: Newman
    et al. 2009 (AD-LDA), algorithm 1.  Proteus §6.2: LDA with the counts in the parameter server.  Thesis §3.2,
    footnote 1: assignments are state of a worker; here they are parameters, so they move with their split.
    """

    task = "topics"
    adds = True
    slower_without_numba = 100
    options: ClassVar[dict[str, Any]] = {"topics": 20, "alpha": 0.1, "beta": 0.01, "parts": 1}

    def __init__(self, num_features: int, num_outputs: int, *, intercept: bool = True, **options: Any) -> None:
        super().__init__(num_features, num_outputs, intercept=intercept, **options)
        self.num_topics: int = self.chosen["topics"]
        self.alpha: float = self.chosen["alpha"]
        self.beta: float = self.chosen["beta"]
        self.parts = self.chosen["parts"]
        for name in ("topics", "parts"):
            if self.chosen[name] < 1:
                raise ConfigError(f"{name} is {self.chosen[name]}, but must be at least 1")
        for name in ("alpha", "beta"):
            if not 0 < self.chosen[name] < np.inf:
                raise ConfigError(f"{name} is {self.chosen[name]}, but must be finite and > 0")

    def tensors(self) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("word_topics", (self.num_features, self.num_topics), rows_are_features=True),
            TensorSpec("topics", (self.num_topics,)),
            TensorSpec("assignments", (self.num_outputs,), rows_are_samples=True),
        )

    def sweep(self, params: Params, X: Matrix, stream: np.random.Generator) -> tuple[float, dict[str, Float32Array]]:
        words, ends = _tokens(X)
        before = params["assignments"].astype(np.int64) - 1
        assigned = before.copy()
        counts = {name: params[name].astype(np.float64).reshape(-1) for name in ("word_topics", "topics")}
        draws, prior = stream.random(words.size), self.num_features * self.beta
        _compiled()(words, ends, assigned, counts["word_topics"], counts["topics"], draws, self.alpha, self.beta, prior)
        found = {name: (counts[name].reshape(params[name].shape) - params[name]).astype(np.float32) for name in counts}
        found["assignments"] = (assigned - before).astype(np.float32)
        return self._loss(params, X, words, ends, before), found

    def loss(self, params: Params, X: Matrix, y: Targets) -> float:
        words, ends = _tokens(X)
        return self._loss(params, X, words, ends, params["assignments"].astype(np.int64) - 1)

    def decision(self, params: Params, X: Matrix) -> Float32Array:
        raise ConfigError("lda does not predict topics of other documents: read word_topics of its exported model")

    def _loss(self, params: Params, X: Matrix, words: Int64Array, ends: Int64Array, assigned: Int64Array) -> float:
        """Return this split's part of the loss; the parts of words and topics are shared out by tokens."""
        by_word, by_topic = (params[name].astype(np.float64) for name in ("word_topics", "topics"))
        k, drawn = self.num_topics, assigned >= 0
        documents = np.repeat(np.arange(ends.size - 1), np.diff(ends))
        without = (words.size - np.count_nonzero(drawn)) * float(np.log(self.num_features * k))
        if not drawn.all():
            words, documents, assigned = words[drawn], documents[drawn], assigned[drawn]
        if not words.size:
            return without
        lengths = np.bincount(documents, minlength=ends.size - 1)
        by_document = np.bincount(documents * k + assigned, minlength=lengths.size * k)
        found = _rising(self.alpha, by_document).sum()
        found -= (gammaln(k * self.alpha + lengths) - gammaln(k * self.alpha)).sum()
        shares = np.bincount(words, minlength=len(by_word)) / np.maximum(by_word.sum(axis=1), 1.0)
        found += (_rising(self.beta, params["word_topics"].astype(np.int64)).sum(axis=1) * shares).sum()
        prior = self.num_features * self.beta
        found -= (gammaln(prior + by_topic) - gammaln(prior)).sum() * (words.size / by_topic.sum())
        return without - float(found)


def _tokens(X: Matrix) -> tuple[Int64Array, Int64Array]:
    """Return the word of each token, and [ends[d], ends[d + 1]) of the tokens of document d."""
    repeats = X.data.astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(repeats)])[X.indptr]
    return np.repeat(X.indices.astype(np.int64), repeats), ends.astype(np.int64)


def _rising(prior: float, counts: NDArray[Any]) -> Float64Array:
    """Return ``log gamma(prior + n) - log gamma(prior)`` of whole numbers, from a table."""
    table = gammaln(prior + np.arange(int(counts.max(initial=0)) + 1)) - gammaln(prior)
    found: Float64Array = table[counts]
    return found


@cache
def _compiled() -> Any:
    """Return :func:`_sweep`, compiled if Numba is installed; the bits are the same."""
    if not kernels.are_possible():
        return _sweep
    types = kernels.numba().types
    places, taken = kernels.given(types.int64), kernels.taken
    accepted = types.void(
        places,
        places,
        taken(types.int64),
        taken(types.float64),
        taken(types.float64),
        kernels.given(types.float64),
        types.float64,
        types.float64,
        types.float64,
    )
    return kernels.build(_sweep, [accepted], error_model="numpy")


def _sweep(
    words: Any,
    ends: Any,
    assigned: Any,
    by_word: Any,
    by_topic: Any,
    draws: Any,
    alpha: float,
    beta: float,
    prior: float,
) -> None:
    """Draw the topic of each token; changes ``assigned``, ``by_word`` (row-major) and ``by_topic`` in place."""
    num_topics = by_topic.size
    by_document, bounds = np.zeros(num_topics), np.zeros(num_topics)
    for document in range(ends.size - 1):
        for k in range(num_topics):
            by_document[k] = 0.0
        for token in range(ends[document], ends[document + 1]):
            if assigned[token] >= 0:
                by_document[assigned[token]] += 1.0
        for token in range(ends[document], ends[document + 1]):
            row, topic = words[token] * num_topics, assigned[token]
            if topic < 0:
                topic = min(int(draws[token] * num_topics), num_topics - 1)
            else:
                by_document[topic] -= 1.0
                by_word[row + topic] -= 1.0
                by_topic[topic] -= 1.0
                total = 0.0
                for k in range(num_topics):
                    total += (by_document[k] + alpha) * (by_word[row + k] + beta) / (by_topic[k] + prior)
                    bounds[k] = total
                limit = draws[token] * total
                topic = 0
                while topic < num_topics - 1 and bounds[topic] <= limit:
                    topic += 1
            by_document[topic] += 1.0
            by_word[row + topic] += 1.0
            by_topic[topic] += 1.0
            assigned[token] = topic
