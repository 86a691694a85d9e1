"""The model of a sweep's best trial, from the directory of its job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, JobNotFoundError
from eps.job.client import Job
from eps.system.home import eps_home


def export_best(report: Mapping[str, Any], path: str | Path) -> str:
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
    try:
        job = Job.find(name)
    except JobNotFoundError as error:
        told = f"the best model is that of {best['job_id']}, job {name!r}, which is not under EPS_HOME ({eps_home()})"
        raise JobNotFoundError(f"{told}: models are kept with their jobs; that was another home, or is gone") from error
    try:
        job.export(path)
    finally:
        job.close()
    return str(best["job_id"])
