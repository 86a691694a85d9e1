"""The model of a sweep's best trial, from the directory of its job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eps.client import Job
from eps.errors import ConfigError


def export_best(report: Mapping[str, Any], path: Path) -> str:
    """Copy the model of a report's best trial to ``path``; return the trial.

    Raises
    ------
    ConfigError
        No trial finished, or the sweep was simulated.
    JobNotFoundError
        Its job is not under ``EPS_HOME``.
    StorageError
        It has no model, or ``path`` cannot be written.
    """
    best = report["best"]
    if best is None:
        raise ConfigError("no trial finished: there is no best model")
    name = next(trial["name"] for trial in report["trials"] if trial["job_id"] == best["job_id"])
    if not name:
        raise ConfigError(f"{best['job_id']} is not a real job: there is no model of it")
    job = Job.find(name)
    try:
        job.export(path)
    finally:
        job.close()
    return str(best["job_id"])
