"""Early feedback and losses from a job's history, for the scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from eps.errors import TrainingError

#: Part of the reason of a failure that a retry cannot fix: the job has no such metric.
NO_SUCH_METRIC = "but the job reported"
#: Most losses in one report: enough to draw the curve of a job that ends after a second.
_LOSSES_AT_ONCE = 20
#: Keys of a history entry that are not metrics of the test data.
_ALWAYS = frozenset(("clock", "loss", "seconds"))


def feedback_of(entry: dict[str, Any], metric: str) -> float | None:
    """Return a metric of an entry; None if the entry has no evaluation on test data.

    Raises
    ------
    TrainingError
        The test data was evaluated, and there is no such metric.
    """
    if metric in entry:
        return number(entry[metric])
    if set(entry) - _ALWAYS:
        known = ", ".join(sorted({"loss", *entry} - {"clock", "seconds"}))
        raise TrainingError(f"metric is {metric!r}, {NO_SUCH_METRIC} {known}")
    return None


def some_losses(history: Sequence[dict[str, Any]]) -> tuple[tuple[float, int, float], ...]:
    """Return (seconds before the last entry, completed iterations, loss) of some entries, including the last."""
    every, end_s = -(-len(history) // _LOSSES_AT_ONCE), float(history[-1]["seconds"])
    return tuple(
        (end_s - float(entry["seconds"]), int(entry["clock"]) + 1, float(entry["loss"]))
        for entry in history[(len(history) - 1) % every :: every]
        if math.isfinite(number(entry["loss"]))
    )


def some_values(history: Sequence[dict[str, Any]], metric: str) -> tuple[tuple[float, int, float], ...]:
    """Return the same of a metric of the test data, from the entries that have it; empty for the training loss."""
    if metric == "loss":
        return ()
    end_s = float(history[-1]["seconds"])
    measured = [entry for entry in history if metric in entry]
    every = -(-len(measured) // _LOSSES_AT_ONCE) or 1
    found = (
        (end_s - float(entry["seconds"]), int(entry["clock"]) + 1, number(entry[metric]))
        for entry in measured[(len(measured) - 1) % every :: every]
    )
    return tuple(each for each in found if math.isfinite(each[2]))


def number(value: object) -> float:
    """Return a number of the history; NaN for None, which stands for values that are not finite."""
    return float(value) if isinstance(value, int | float) else math.nan
