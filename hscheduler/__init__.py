"""H-scheduler, the cluster-level scheduler that resizes jobs: its decisions, sweeps of real jobs, and a simulator.

``from hscheduler import HTrials`` is Hyperopt's door to it; see :mod:`hscheduler.live.trials`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hscheduler.live.trials import HTrials

__all__ = ["HTrials"]


def __getattr__(name: str) -> Any:
    # Hyperopt is an extra, and takes a second to import.
    if name == "HTrials":
        from hscheduler.live.trials import HTrials

        return HTrials
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
