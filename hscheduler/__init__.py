"""H-scheduler, the cluster-level scheduler that resizes jobs: its decisions, sweeps of real jobs, and a simulator.

``hscheduler.sweep(...)`` runs a sweep (:mod:`hscheduler.api`).  Pass ``HTrials()`` to Hyperopt's ``fmin`` to run its
jobs under the scheduler (:mod:`hscheduler.trials`).  Both are imported at first use: Hyperopt is an extra, and its
import takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hscheduler.api import SweepReport, sweep
    from hscheduler.live.objective import report
    from hscheduler.trials import HTrials

__all__ = ["HTrials", "SweepReport", "report", "sweep"]

_HOMES = {
    "HTrials": "hscheduler.trials",
    "SweepReport": "hscheduler.api",
    "report": "hscheduler.live.objective",
    "sweep": "hscheduler.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
