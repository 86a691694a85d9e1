"""Elastic parameter server: the public names.

They are imported when first used: every process of a job imports this package, and needs none of them.
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
    if name not in _HOMES:
        raise AttributeError(f"module 'eps' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
