"""EPS, an elastic parameter server: train models on workers and servers whose number changes while training runs.

- :func:`eps.run` trains a model and returns its report.
- :class:`eps.Job` starts, finds, watches and resizes a job.
- :class:`eps.JobSpec` holds the settings of a job.
- :func:`eps.load` reads a trained model, which predicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eps._version import __version__

if TYPE_CHECKING:
    from eps.job.client import Job, run
    from eps.job.predict import load
    from eps.spec.job_spec import JobSpec

__all__ = ["Job", "JobSpec", "__version__", "load", "run"]

_HOMES = {
    "Job": "eps.job.client",
    "JobSpec": "eps.spec.job_spec",
    "load": "eps.job.predict",
    "run": "eps.job.client",
}


def __getattr__(name: str) -> Any:
    # Imported at first use: every process of a job imports this package and needs none of these names.
    if name not in _HOMES:
        raise AttributeError(f"module 'eps' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
