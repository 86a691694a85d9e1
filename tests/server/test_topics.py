"""LDA by workers and servers: as plain code in one process, on the documents of KOS, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eps.data.cut import prepare
from eps.data.dataset import open_dataset
from eps.data.formats import load
from eps.data.settings import DataSettings
from eps.data.splitfile import read_split
from eps.errors import ConfigError
from eps.job.launch import check_runtime
from eps.ml.arrays import Purpose, random_stream
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import Runtime, check_model
from tests.server.test_accuracy import trained
from tests.server.test_training_in_process import train

SEED, SPLITS, SWEEPS, TOPICS, ALPHA, BETA = 5, 4, 6, 5, 0.1, 0.01


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Return documents of two subjects, some of them empty."""
    rng = np.random.default_rng(1)
    rows = [rng.poisson(0.8, size=30) * (np.arange(30) // 15 == number % 2) for number in range(43)]
    rows[7] = rows[42] = np.zeros(30, int)
    lines = [f"{d + 1} {w + 1} {n}" for d, row in enumerate(rows) for w, n in enumerate(row.tolist()) if n]
    path = tmp_path / "docword.two.txt"
    path.write_text("\n".join(["43", "30", str(len(lines)), *lines]) + "\n")
    return path


def splits_of(runtime: Runtime) -> list[list[list[int]]]:
    """Return the words of the tokens of each document of each split."""
    dataset = open_dataset(runtime.dataset_dir)
    found = []
    for split in range(dataset.num_splits):
        data = read_split(dataset.split_path(split))
        rows = data.X.toarray().astype(int)
        found.append([[int(w) for w, n in zip(data.features, row, strict=True) for _ in range(n)] for row in rows])
    return found


def plain(
    splits: list[list[list[int]]], num_words: int, clocks: int, parts: int
) -> tuple[list[list[int]], list[int], list[int]]:
    """Return word-topic counts, topic counts and assignments, by the equations and in whole numbers."""
    by_word, by_topic = [[0] * TOPICS for _ in range(num_words)], [0] * TOPICS
    topics = [[[-1] * len(words) for words in split] for split in splits]
    for clock in range(clocks):
        after_word, after_topic = [row.copy() for row in by_word], by_topic.copy()
        for number, whole in enumerate(splits):
            due = slice(*(part * len(whole) // parts for part in (clock % parts, clock % parts + 1)))
            split, mine = whole[due], topics[number][due]
            draws = iter(random_stream(SEED, Purpose.SWEEPS, number, clock).random(sum(map(len, split))).tolist())
            mine_word, mine_topic = [row.copy() for row in by_word], by_topic.copy()
            for words, assigned in zip(split, mine, strict=True):
                in_document = [assigned.count(k) for k in range(TOPICS)]
                for i, word in enumerate(words):
                    draw = next(draws)
                    old = assigned[i]
                    if old < 0:
                        new = int(draw * TOPICS)
                    else:
                        for counts in (in_document, mine_word[word], mine_topic):
                            counts[old] -= 1
                        weights = [
                            (in_document[k] + ALPHA) * (mine_word[word][k] + BETA) / (mine_topic[k] + num_words * BETA)
                            for k in range(TOPICS)
                        ]
                        sums = np.cumsum(weights)
                        new = min(int(np.searchsorted(sums, draw * sums[-1], side="right")), TOPICS - 1)
                    for counts in (in_document, mine_word[word], mine_topic):
                        counts[new] += 1
                    assigned[i] = new
            for word in range(num_words):
                for k in range(TOPICS):
                    after_word[word][k] += mine_word[word][k] - by_word[word][k]
            for k in range(TOPICS):
                after_topic[k] += mine_topic[k] - by_topic[k]
        by_word, by_topic = after_word, after_topic
    return by_word, by_topic, [1 + k for split in topics for document in split for k in document]


@pytest.mark.parametrize(("push", "parts"), [("auto", 4), ("dense", 3), ("auto", 1), ("auto", 50)])
def test_members_have_the_bits_of_plain_code_in_one_process(
    tmp_path: Path, documents: Path, push: str, parts: int
) -> None:
    clocks = SWEEPS * min(parts, 4)
    asked: dict[str, Any] = {
        "model": "lda", "topics": TOPICS, "data": str(documents), "splits": SPLITS, "seed": SEED, "iterations": clocks,
        "partitions": 3, "push": push, "model_options": f'{{"parts": {parts}}}',
    }  # fmt: skip
    runtime, model = trained(tmp_path, **asked)
    assert runtime.sparse == (push == "auto")
    splits = splits_of(runtime)
    assert sum(map(len, splits)) == 41, "empty documents are left out"
    assert tuple(sum(map(len, split)) for split in splits) == runtime.shape.split_rows
    by_word, by_topic, assignments = plain(splits, 30, clocks, parts)
    found = runtime.key_space.unpack(model)
    assert found["word_topics"].tolist() == by_word and found["topics"].tolist() == by_topic
    assert found["assignments"].tolist() == assignments
    # The same by three workers.
    data = {split: read_split(open_dataset(runtime.dataset_dir).split_path(split)) for split in range(SPLITS)}
    again, losses = train(runtime, [[2], [0, 3], [1]], splits=data)
    assert again.tobytes() == model.tobytes() and (parts > 4 or losses[-1] < losses[parts])


@pytest.mark.tier("all")
@pytest.mark.parametrize(("parts", "least"), [(1, -8.15), (4, -8.12)])
def test_topics_of_kos_reach_the_likelihood_of_the_baseline(
    tmp_path: Path, shared_data: Path, parts: int, least: float
) -> None:
    # The baseline, -8.093, is one sampler over all documents after 200 sweeps; a split sees others' changes later.
    sweeps = 200
    runtime, model = trained(
        tmp_path, model="lda", topics=20, iterations=sweeps * parts, model_options=f'{{"parts": {parts}}}',
        data=str(shared_data / "lda" / "kos" / "docword.kos.txt.gz"),
    )  # fmt: skip
    params = runtime.key_space.unpack(model)
    dataset = open_dataset(runtime.dataset_dir)
    loss = 0.0
    for split in range(dataset.num_splits):
        data = read_split(dataset.split_path(split))
        local = {
            "word_topics": params["word_topics"][data.features],
            "assignments": params["assignments"][slice(*runtime.samples_of(split))],
        }
        loss += runtime.model.loss({**params, **local}, data.X, data.y)
    num_tokens = int(params["topics"].sum())
    assert num_tokens == 467_714 == sum(runtime.shape.split_rows)
    assert -loss / num_tokens >= least


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"consistency": "asp"}, "consistency is 'asp', but must be 'bsp' for model lda"),
        ({"reproducible": False}, "reproducible is False, but must be True for model lda"),
        ({"test": "0.2"}, "test is '0.2', but must be '' for model lda"),
        ({"folds": 3}, "folds is 3, but must be 0 for model lda"),
        ({"batch_size": "10"}, "batch_size is '10', but must be 'full' for model lda"),
        ({"normalize": "l2"}, "normalize is 'l2', but must be 'none' for model lda"),
        ({"l1": 0.1}, "l1 is 0.1, but must be 0.0 for model lda"),
    ],
)
def test_settings_that_a_sampler_cannot_have_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_model(JobSpec.from_dict({"model": "lda", "data": "x", **settings}))


def test_a_split_has_no_more_tokens_than_its_changes_can_be_added_exactly(tmp_path: Path, documents: Path) -> None:
    runtime, _ = trained(tmp_path, model="lda", data=str(documents), splits=SPLITS, iterations=1)
    check_runtime(runtime)
    object.__setattr__(runtime.shape, "split_rows", (1, 1, 1, 2**26 + 1))
    with pytest.raises(ConfigError, match="a split has 67108865 tokens, but 4 splits can add changes of 67108864"):
        check_runtime(runtime)


def test_documents_may_be_any_sparse_or_dense_counts(tmp_path: Path, documents: Path) -> None:
    base = prepare(DataSettings(str(documents), "topics", SPLITS), tmp_path / "a")
    X = load(documents, labels_optional=True).X
    np.savez(tmp_path / "dense.npz", X=X.toarray())
    other = prepare(DataSettings(str(tmp_path / "dense.npz"), "topics", SPLITS), tmp_path / "b")
    assert other.split_checksums == base.split_checksums and other.is_sparse
    assert (base.num_rows, sum(base.split_rows)) == (41, int(X.sum()))
