"""What a scheduler is told of a job's history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from eps.errors import TrainingError

#: In the reason of a failure that no other try can help: the job has no such metric.
NO_SUCH_METRIC = "but this job has only"
#: Losses that are told of at once: enough for a curve, also of a job that is over after a second.
_LOSSES_AT_ONCE = 20
#: What an entry of the history has besides metrics of the test data.
_ALWAYS = frozenset(("clock", "loss", "seconds"))


def feedback_of(entry: dict[str, Any], metric: str) -> float | None:
    """Return a metric of an entry; None where the test data was not evaluated for it.

    Raises
    ------
    TrainingError
        It was, and there is no such metric.
    """
    if metric in entry:
        return number(entry[metric])
    if set(entry) - _ALWAYS:
        known = ", ".join(sorted({"loss", *entry} - {"clock", "seconds"}))
        raise TrainingError(f"metric is {metric!r}, {NO_SUCH_METRIC} {known}")
    return None


def some_losses(history: Sequence[dict[str, Any]]) -> tuple[tuple[float, int, float], ...]:
    """Return seconds before the last entry, iterations complete and loss of some entries, the last among them."""
    every, end_s = -(-len(history) // _LOSSES_AT_ONCE), float(history[-1]["seconds"])
    return tuple(
        (end_s - float(entry["seconds"]), int(entry["clock"]) + 1, float(entry["loss"]))
        for entry in history[(len(history) - 1) % every :: every]
        if entry["loss"] is not None
    )


def number(value: object) -> float:
    """Return a number of the history, which has none for what is not finite."""
    return float(value) if isinstance(value, int | float) else math.nan
