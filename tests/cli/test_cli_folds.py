"""Cross-validation: which jobs run, and what is made of their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eps.errors import TrainingError
from eps.job.folds import combine_folds, fold_requests, run_folds
from eps.spec.file import RunRequest


def report_of(name: str, accuracy: float, **changes: Any) -> dict[str, Any]:
    ledger = {"expected": 8, "applied": 8, "duplicates_refused": 1, "lost": 0, "applied_twice": 0}
    metrics = {"train_loss": 1.0 - accuracy, "test": {"accuracy": accuracy}}
    return {"name": name, "state": "finished", "clock": 9, "metrics": metrics, "ledger": ledger, **changes}


def request_of(**values: Any) -> RunRequest:
    return RunRequest.from_values({"name": "cv", "data": "sklearn:iris", "model": "softmax", "folds": 3, **values})


def test_folds_differ_in_the_fold_alone() -> None:
    requests = fold_requests(request_of(seed=5))
    assert [r.name for r in requests] == ["cv-fold-0", "cv-fold-1", "cv-fold-2"]
    assert [r.spec.fold for r in requests] == [0, 1, 2]
    assert {r.spec.seed for r in requests} == {5}


def test_folds_begin_anew_where_that_is_asked_for() -> None:
    assert [r.anew for r in fold_requests(request_of())] == [False] * 3
    assert [r.anew for r in fold_requests(request_of(anew=True))] == [True] * 3


def test_folds_without_a_name_take_none_that_others_had(home: Path) -> None:
    (home / "jobs" / "softmax-1-fold-0").mkdir(parents=True)
    (home / "jobs" / "softmax-2").mkdir()
    assert [r.name for r in fold_requests(request_of(name=""))] == [f"softmax-3-fold-{i}" for i in range(3)]


def test_report_has_means_and_spread_over_the_folds() -> None:
    combined = combine_folds("", [report_of(f"cv-fold-{i}", a) for i, a in enumerate((0.8, 0.9, 1.0))])
    assert combined["name"] == "cv"
    assert combined["metrics"]["test"]["accuracy"] == pytest.approx(0.9)
    assert combined["metrics"]["test_std"]["accuracy"] == pytest.approx(0.1)
    assert combined["metrics"]["train_loss"] == pytest.approx(0.1)
    assert combined["ledger"] == {"expected": 24, "applied": 24, "duplicates_refused": 3, "lost": 0, "applied_twice": 0}
    assert [fold["name"] for fold in combined["folds"]] == ["cv-fold-0", "cv-fold-1", "cv-fold-2"]


def test_folds_run_one_after_the_other_and_the_report_is_written(tmp_path: Path) -> None:
    trained: list[str] = []

    def train(request: RunRequest) -> dict[str, Any]:
        trained.append(request.name)
        return report_of(request.name, 0.5)

    combined = run_folds(request_of(report=str(tmp_path / "r.json")), train)
    assert trained == ["cv-fold-0", "cv-fold-1", "cv-fold-2"]
    assert json.loads((tmp_path / "r.json").read_text()) == combined


def test_fold_that_fails_ends_the_rest() -> None:
    trained: list[str] = []

    def train(request: RunRequest) -> dict[str, Any]:
        trained.append(request.name)
        return report_of(request.name, 0.5, state="failed", reason="diverged")

    with pytest.raises(TrainingError, match=r"cv-fold-0 .*: diverged"):
        run_folds(request_of(), train)
    assert trained == ["cv-fold-0"]
