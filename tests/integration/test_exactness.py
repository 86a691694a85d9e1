"""Under BSP the model depends only on data, settings and seed: whole jobs, real processes.

Source: EPS §3 (elasticity does not change what is trained); design section 5; reproducible.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eps
from benchmarks.ratings import Law
from eps.master.export import test_metrics as metrics_on_test_data
from eps.spec.model_file import read_model
from tests.integration.conftest import asked_phases
from tests.server.test_accuracy import trained

#: Ten changes: add and remove, workers and servers, several at once, by count and by name.
TEN_CHANGES = (
    "8:add-workers=2",
    "14:add-servers=2",
    "22:remove-workers=worker-1",
    "30:remove-servers=server-1,server-2",
    "38:add-servers=3",
    "46:remove-workers=2",
    "54:add-workers=3",
    "62:remove-servers=1",
    "70:add-workers=1",
    "78:remove-workers=worker-2,worker-7",
)


def run(name: str, **settings: Any) -> dict[str, Any]:
    """Train a job and return its report, whose ledger must have no lost or repeated update."""
    report = eps.run(name=name, **settings)
    ledger = report["ledger"]
    assert report["state"] == "finished", report["reason"]
    assert ledger["lost"] == 0 and ledger["applied_twice"] == 0
    assert ledger["applied"] == ledger["expected"] > 0
    return report


def check_elastic(settings: dict[str, Any], at: tuple[str, ...] = TEN_CHANGES) -> None:
    """Assert that ten changes, three and three members, and one and one give the same bits and the same losses."""
    one = run("one", workers=1, servers=1, **settings)
    elastic = run("elastic", workers=3, servers=3, at=list(at), **settings)
    assert elastic["model_sha256"] == one["model_sha256"]
    assert [h["loss"] for h in elastic["history"]] == [h["loss"] for h in one["history"]]
    changes = elastic["changes"]
    assert [(change["phase"], change["reason"]) for change in changes] == [("released", "")] * len(changes)
    assert len(asked_phases(elastic)) == len(at)
    clocks = [membership["from_clock"] for membership in elastic["membership"]]
    assert clocks == sorted(clocks) and len(clocks) == len(changes) + 1


def a9a(shared_data: Path) -> dict[str, Any]:
    folder = shared_data / "sparse_binary" / "a9a"
    return {
        "data": str(folder / "a9a.gz"), "test": str(folder / "a9a.t.gz"), "features": 123, "model": "logistic",
        "iterations": 90,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "batch_size"),
    # Sizes concern workers, rules concern servers: it is enough to combine each of both with one of the other.
    [
        ({"optimizer": "sgd", "learning_rate": 0.5, "l2": 0.001}, "full"),
        ({"optimizer": "momentum", "learning_rate": 0.1, "l1": 0.0001}, "1000"),
        ({"optimizer": "adagrad", "learning_rate": 0.1, "l1": 0.0001}, "full"),
        ({"optimizer": "adam", "learning_rate": 0.1, "l2": 0.0001}, "full"),
        ({"optimizer": "adam", "learning_rate": 0.1, "l2": 0.0001}, "1000"),
        ({"optimizer": "ftrl", "learning_rate": 0.1, "l1": 0.0001}, "1000"),
    ],
    ids=lambda value: value["optimizer"] if isinstance(value, dict) else value,
)
def test_a9a_with_ten_changes_has_the_bits_of_one_worker_and_one_server(
    home: Path, shared_data: Path, rule: dict[str, Any], batch_size: str
) -> None:
    check_elastic({**a9a(shared_data), **rule, "batch_size": batch_size})


@pytest.mark.parametrize("batch_size", ["full", "300"])
def test_dnn_with_ten_changes_has_the_bits_of_one_worker_and_one_server(home: Path, batch_size: str) -> None:
    check_elastic(
        {
            "data": "sklearn:digits", "test": "0.2", "model": "dnn", "hidden": "32", "iterations": 90,
            "learning_rate": 0.01, "batch_size": batch_size,
        }
    )  # fmt: skip


def test_sparse_text_with_ten_changes_has_the_bits_of_one_worker_and_one_server(home: Path, shared_data: Path) -> None:
    folder = shared_data / "sparse_binary" / "farm_ads"
    check_elastic(
        {
            "data": str(folder / "X_raw.npz"), "labels": str(folder / "y_raw.npy"), "test": "0.2", "model": "logistic",
            "normalize": "l2", "l2": 0.0001, "iterations": 90,
        }
    )  # fmt: skip


def test_ratings_with_ten_changes_have_the_bits_of_one_worker_and_one_server(home: Path, tmp_path: Path) -> None:
    pairs, ratings = Law(ratings=20_000).draw()
    exported = str(tmp_path / "model.npz")
    check_elastic(
        {
            "data": pairs, "labels": ratings, "test": 0.1, "model": "mf", "rank": 8, "iterations": 90, "l2": 1e-5,
            "optimizer": "sgd", "learning_rate": 30.0, "batch_size": 4000, "export": exported,
        }
    )  # fmt: skip
    model = eps.load(exported)
    found = model.predict(pairs)
    assert float(np.sqrt(np.mean((found - ratings) ** 2))) < 0.9 * float(np.std(ratings))
    assert model.predict([(int(pairs[0, 0]), int(pairs[0, 1]))]).tolist() == found[:1].tolist()


def test_small_batches_with_ten_changes_have_the_bits_of_one_worker_and_one_server(home: Path) -> None:
    # Members exchange only the keys of the batch: other ones at every clock.
    pairs, ratings = Law(users=8000, items=3000, ratings=40_000).draw()
    check_elastic(
        {
            "data": pairs, "labels": ratings, "model": "mf", "rank": 32, "iterations": 90, "optimizer": "adagrad",
            "learning_rate": 0.1, "batch_size": 200,
        }
    )  # fmt: skip


def test_topics_with_ten_changes_have_the_bits_of_one_worker_and_one_server(
    home: Path, shared_data: Path, tmp_path: Path
) -> None:
    data, exported = shared_data / "lda" / "kos" / "docword.kos.txt.gz", tmp_path / "model.npz"
    check_elastic({"data": str(data), "model": "lda", "topics": 10, "iterations": 90, "export": str(exported)})
    model = read_model(exported)
    assert model.feature_names[0] == "aarp" and model.tensors["word_topics"].shape == (6906, 10)
    assert model.tensors["word_topics"].sum() == model.tensors["topics"].sum() == 467_714


def test_partitions_do_not_change_the_bits(home: Path) -> None:
    settings = {"data": "sklearn:digits", "model": "softmax", "iterations": 20}
    few = run("few", partitions=3, **settings)
    many = run("many", partitions=20, **settings)
    assert few["model_sha256"] == many["model_sha256"]


def test_model_sha256_is_that_of_the_exported_tensors(home: Path, tmp_path: Path) -> None:
    import hashlib

    import numpy as np

    exported = tmp_path / "model.npz"
    report = run(
        "exported", data="sklearn:iris", model="softmax", iterations=5, workers=2, servers=2, export=str(exported)
    )
    model = read_model(exported)
    digest = hashlib.sha256()
    with np.load(exported) as archive:
        for name in model.tensors:
            digest.update(np.ascontiguousarray(archive[name], dtype="<f4").tobytes())
    assert digest.hexdigest() == report["model_sha256"]


def test_training_continues_from_an_exported_model(home: Path, tmp_path: Path) -> None:
    exported = tmp_path / "half.npz"
    settings = {"data": "sklearn:digits", "model": "softmax", "optimizer": "sgd", "learning_rate": 0.01}
    half = run("half", iterations=10, export=str(exported), **settings)
    rest = run("rest", iterations=10, init=str(exported), **settings)
    whole = run("whole", iterations=20, **settings)
    assert rest["history"][0]["loss"] == half["history"][-1]["loss"]
    assert rest["history"][-1]["loss"] == pytest.approx(whole["history"][-1]["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("consistency", "optimizer"), [("ssp:1", "sgd"), ("ssp:4", "adam"), ("asp", "sgd"), ("asp", "adam")]
)
def test_stale_jobs_lose_and_repeat_no_update_under_ten_changes(
    home: Path, shared_data: Path, consistency: str, optimizer: str
) -> None:
    rate = {"sgd": 0.5, "adam": 0.02}[optimizer]
    settings = {**a9a(shared_data), "consistency": consistency, "optimizer": optimizer, "learning_rate": rate}
    report = run("stale", workers=3, servers=3, at=list(TEN_CHANGES), **settings)
    assert asked_phases(report) == ["released"] * 10
    assert report["metrics"]["test"]["accuracy"] >= 0.83


def test_the_history_of_training_does_not_depend_on_evaluations(home: Path) -> None:
    settings = {
        "data": "sklearn:digits",
        "model": "softmax",
        "test": "0.2",
        "iterations": 12,
        "workers": 1,
        "servers": 1,
    }
    often, seldom = (
        run(name, eval_every=every, **settings)["history"] for name, every in (("often", 1), ("seldom", 12))
    )
    assert [entry["loss"] for entry in often] == [entry["loss"] for entry in seldom]
    assert [entry["clock"] for entry in seldom if "test_loss" in entry] == [0, 11, 12]
    # Before the first step all classes are equally likely.
    assert all(entry["test_loss"] != entry["loss"] for entry in often[1:])


def test_a_job_computes_what_one_process_does_and_has_its_metrics(home: Path, tmp_path: Path) -> None:
    """``tests/server/test_accuracy.py`` trains in one process."""
    settings: dict[str, Any] = {"data": "sklearn:breast_cancer", "model": "logistic", "test": "0.2", "iterations": 20}
    report = run("job", workers=2, servers=2, export=str(tmp_path / "model.npz"), **settings)
    runtime, model = trained(tmp_path, **settings)
    found, tensors = read_model(tmp_path / "model.npz").tensors, runtime.key_space.unpack(model)
    assert {name: values.tobytes() for name, values in found.items()} == {n: v.tobytes() for n, v in tensors.items()}
    assert report["metrics"]["test"] == metrics_on_test_data(runtime, tensors)
