"""Cross-validation: train K jobs one after the other, and combine their reports.

The same cross-validation again continues an interrupted one: folds that have finished are not trained again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eps.errors import ConfigError, JobExistsError, StorageError, TrainingError
from eps.job.launch import check_data, fold_name
from eps.spec.file import RunRequest
from eps.spec.runtime import Runtime, identity
from eps.storage.atomic import json_bytes
from eps.storage.jobdir import JobDir, job_dir, why_not_replaced
from eps.storage.locations import location, write_public

LEDGER_COUNTS = ("expected", "applied", "duplicates_refused", "lost", "applied_twice")


def check_folds(request: RunRequest) -> None:
    """Check that a cross-validation exports no model, of which it has several.

    Raises
    ------
    ConfigError
        ``export`` is set.
    """
    if request.export:
        raise ConfigError(
            f"export is {request.export!r}, but folds gives {request.spec.folds} models: train one with --fold"
        )


def fold_requests(request: RunRequest) -> list[RunRequest]:
    """Return the request of each fold: job ``NAME-fold-<i>``, with nothing else changed.

    Without a name EPS chooses one when the first fold starts; :func:`named_by` then gives it to the others.
    """
    return [
        RunRequest(
            spec=request.with_spec(fold=fold).spec,
            name=fold_name(request.name, fold) if request.name else "",
            anew=request.anew,
            given=request.given,
        )
        for fold in range(request.spec.folds)
    ]


def named_by(request: RunRequest, job: str) -> RunRequest:
    """Return the request of a cross-validation with its name, which is in that of each of its jobs."""
    return dataclasses.replace(request, name=request.name or name_of(job))


def name_of(job: str) -> str:
    """Return the name of the cross-validation of a job; empty if the job has no such name."""
    return job.rpartition("-fold-")[0]


def left_folds(folds: Sequence[RunRequest]) -> set[str]:
    """Return the names of the folds that an earlier run with the same settings and data has trained or begun.

    Raises
    ------
    JobExistsError
        A fold with others stopped before its end: it would be refused when the folds before it are trained.
    ConfigError, DataError, StorageError
        See :func:`eps.job.launch.check_data`.
    """
    left = set()
    for fold in folds:
        if not fold.name:
            continue
        job = job_dir(fold.name)
        if fold.anew or job.is_running():
            continue
        if _is_of(job, fold):
            left.add(fold.name)
        elif why := why_not_replaced(job):
            raise JobExistsError(
                f"job {fold.name!r} has other settings or data, and {why}, choose another name, or replace all folds "
                "(--anew)"
            )
    return left


def _is_of(job: JobDir, fold: RunRequest) -> bool:
    """Return whether a job trains what the request of a fold asks for."""
    try:
        runtime = Runtime.of_job(job)
    except StorageError:
        return False
    return identity(runtime) == identity(check_data(fold))


def run_folds(
    request: RunRequest,
    train: Callable[[RunRequest], dict[str, Any]],
    resume: Callable[[str], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Train all folds and return one report.

    Parameters
    ----------
    request : RunRequest
        With ``spec.folds`` set and ``spec.fold`` not.
    train : callable
        Trains one job to its end and returns its report.
    resume : callable, optional
        Returns the report of a fold of :func:`left_folds`, by the job's name, when it has finished.

    Raises
    ------
    TrainingError
        A fold failed; later folds are not trained.
    ConfigError, DataError
        See :meth:`eps.job.client.Job.start`.
    """
    check_folds(request)
    named, reports = request, list[dict[str, Any]]()
    left = left_folds(fold_requests(request)) if resume is not None else set()
    for number in range(request.spec.folds):
        fold = fold_requests(named)[number]
        report = resume(fold.name) if resume is not None and fold.name in left else train(fold)
        if report["state"] != "finished":
            raise TrainingError(f"{report['name']} {report['state']}: {report.get('reason') or 'no reason given'}")
        reports.append(report)
        named = named_by(named, report["name"])
    combined = combine_folds(request.name, reports)
    write_folds(request, combined)
    return combined


def write_folds(request: RunRequest, combined: Mapping[str, Any]) -> None:
    """Write the combined report to the request's ``report``, if it is set.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    if request.report:
        write_public(location(request.report), json_bytes(combined))


def combine_folds(name: str, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the report of a cross-validation: ``metrics.test`` has means over the folds, ``test_std`` the spread.

    The spread is the standard deviation of a sample (divided by K - 1).
    """
    tests = [report["metrics"].get("test", {}) for report in reports]
    name = name or name_of(str(reports[0]["name"]))
    shared = [metric for metric in tests[0] if all(metric in test for test in tests)]
    means = {metric: math.fsum(test[metric] for test in tests) / len(tests) for metric in shared}
    spread = {
        metric: math.sqrt(math.fsum((test[metric] - means[metric]) ** 2 for test in tests) / max(1, len(tests) - 1))
        for metric in shared
    }
    return {
        "name": name,
        "state": "finished",
        "reason": "",
        "clock": min(report["clock"] for report in reports),
        "metrics": {
            "train_loss": math.fsum(report["metrics"]["train_loss"] for report in reports) / len(reports),
            "test": means,
            "test_std": spread,
        },
        "ledger": {count: sum(report["ledger"][count] for report in reports) for count in LEDGER_COUNTS},
        "folds": [dict(report) for report in reports],
    }
