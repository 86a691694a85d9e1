"""Cross-validation: which jobs run, and what is made of their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cli import main
from eps.errors import JobExistsError, TrainingError
from eps.job.folds import combine_folds, fold_requests, run_folds
from eps.job.launch import prepare_job
from eps.spec.file import RunRequest
from eps.storage.jobdir import JobLock, find_job
from tests.fakes.records import note_end


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


def rows(path: Path, **settings: Any) -> dict[str, Any]:
    """Return the settings of a small cross-validation, whose data is at ``path``."""
    path.write_text("1 1:1 2:0.5\n-1 2:1\n" * 12)
    small = {"model": "logistic", "folds": 3, "splits": 2, "workers": 1, "servers": 1, "iterations": 5}
    return {"data": str(path), **small, **settings}


def test_folds_without_a_name_take_none_that_others_had(home: Path, tmp_path: Path) -> None:
    for name in ("logistic-1-fold-0", "logistic-2", "logistic-3-fold-2"):
        (home / "jobs" / name).mkdir(parents=True)
    trained: list[str] = []

    def train(fold: RunRequest) -> dict[str, Any]:
        prepared = prepare_job(fold)
        prepared.lock.close()
        trained.append(prepared.directory.name)
        return report_of(prepared.directory.name, 0.5)

    request = RunRequest.from_values(rows(tmp_path / "rows.svm"))
    assert run_folds(request, train)["name"] == "logistic-4"
    assert trained == [f"logistic-4-fold-{fold}" for fold in range(3)]
    assert run_folds(request, train, lambda name: report_of(name, 0.5))["name"] == "logistic-5"


def test_two_cross_validations_at_once_take_two_names(home: Path, tmp_path: Path) -> None:
    first, second = (fold_requests(RunRequest.from_values(rows(tmp_path / "rows.svm")))[0] for _ in range(2))
    others = []
    mine = prepare_job(first, before_data=lambda: others.append(prepare_job(second)))
    found = [each.directory.name for each in (mine, *others)]
    for each in (mine, *others):
        each.lock.close()
    assert found == ["logistic-2-fold-0", "logistic-1-fold-0"]


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


# ---- the same command again


@pytest.fixture
def interrupted(home: Path, tmp_path: Path) -> dict[str, Any]:
    """The settings of a cross-validation of which one fold has finished and one was interrupted."""
    settings = rows(tmp_path / "rows.svm", name="cv")
    folds = fold_requests(RunRequest.from_values(settings))
    for fold, state in zip(folds, ("finished", "killed"), strict=False):
        prepared = prepare_job(fold)
        note_end(prepared.directory, state)
        prepared.lock.close()
    return settings


class Trained:
    """Records what is trained, and how."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def again(self, **settings: Any) -> list[str]:
        self.found = []
        run_folds(RunRequest.from_values(settings), lambda fold: self.train(fold.name, "trained"), self.train)
        return self.found

    def train(self, name: str, how: str = "continued") -> dict[str, Any]:
        self.found.append(f"{name} {how}")
        return report_of(name, 0.5)


def test_the_same_folds_again_continue(interrupted: dict[str, Any]) -> None:
    trained = Trained()
    assert trained.again(**interrupted) == ["cv-fold-0 continued", "cv-fold-1 continued", "cv-fold-2 trained"]
    # Where they run does not matter.
    assert trained.again(**interrupted, van="tcp")[0] == "cv-fold-0 continued"
    assert trained.again(**interrupted, anew=True) == [f"cv-fold-{fold} trained" for fold in range(3)]


@pytest.mark.parametrize("what", ["settings", "data"])
def test_other_folds_of_the_same_name_are_refused_before_any_is_trained(
    interrupted: dict[str, Any], what: str, tmp_path: Path
) -> None:
    if what == "settings":
        interrupted["learning_rate"] = 0.5
    else:
        (tmp_path / "rows.svm").write_text("1 1:1 2:0.5\n-1 2:2\n" * 12)
    trained = Trained()
    told = r"'cv-fold-1' has other settings or data, and stopped before its end: .*eps resume cv-fold-1.*--anew"
    with pytest.raises(JobExistsError, match=told):
        trained.again(**interrupted)
    assert trained.found == []


def test_a_fold_that_has_finished_is_not_trained_again(
    interrupted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for name, value in interrupted.items() for word in (f"--{name}", str(value))]
    assert main(["run", *words, "--anew"]) == 0
    jobs = [find_job(f"cv-fold-{fold}") for fold in range(3)]
    models = [job.model.stat().st_ino for job in jobs]
    expected = eps.Job.find("cv-fold-1").report()["model_sha256"]
    with JobLock(jobs[1].lock):
        note_end(jobs[1], "killed", "interrupted")
    capsys.readouterr()
    assert main(["run", *words]) == 0
    told = capsys.readouterr().out
    assert "cv-fold-0: finished before" in told and "cv-fold-1: no checkpoint; restarts from its seed" in told
    assert [job.model.stat().st_ino == before for job, before in zip(jobs, models, strict=True)] == [True, False, True]
    assert eps.run(**interrupted)["folds"][1]["model_sha256"] == expected
