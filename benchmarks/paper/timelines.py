"""Numbers of jobs, containers and workers over time, from reports: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: (time in seconds, value from then on).
Steps = list[tuple[float, float]]


def running_jobs(report: Mapping[str, Any]) -> Steps:
    """Return how many jobs run, over time."""
    return [(at, running) for at, running, _ in report["numbers"]]


def queued_jobs(report: Mapping[str, Any]) -> Steps:
    """Return how many jobs wait, over time."""
    return [(at, queued) for at, _, queued in report["numbers"]]


def sizes(trial: Mapping[str, Any]) -> list[tuple[float, int, int]]:
    """Return (time, workers, servers) of a trial; its first size counts from its start."""
    changes = [(at, workers, servers) for at, workers, servers in trial["containers"]]
    if trial["started_s"] is None or not changes:
        return changes
    return [(trial["started_s"], *changes[0][1:]), *changes]


def _summed(changes: list[tuple[float, float]]) -> Steps:
    total, found = 0.0, []
    for at, more in sorted(changes):
        total += more
        if found and found[-1][0] == at:
            found[-1] = (at, total)
        else:
            found.append((at, total))
    return found


def containers(report: Mapping[str, Any]) -> Steps:
    """Return how many containers jobs have, masters included, over time."""
    changes = []
    for trial in report["trials"]:
        before = 0
        for at, workers, servers in sizes(trial):
            now = workers + servers + 1 if workers + servers else 0
            changes.append((at, float(now - before)))
            before = now
        if before and trial["finished_s"] is not None:
            changes.append((trial["finished_s"], -float(before)))
    return _summed(changes)


def workers(report: Mapping[str, Any]) -> Steps:
    """Return how many workers jobs have, over time."""
    changes = []
    for trial in report["trials"]:
        before = 0
        for at, now, _ in sizes(trial):
            changes.append((at, float(now - before)))
            before = now
        if before and trial["finished_s"] is not None:
            changes.append((trial["finished_s"], -float(before)))
    return _summed(changes)


def mean_of(steps: Steps, begin_s: float, end_s: float) -> float:
    """Return the mean of a value over a time."""
    if end_s <= begin_s:
        return 0.0
    total = 0.0
    for (at, value), (until, _) in zip(steps, [*steps[1:], (end_s, 0.0)], strict=True):
        total += value * max(0.0, min(until, end_s) - max(at, begin_s))
    return total / (end_s - begin_s)


def in_windows(steps: Steps, end_s: float, number: int) -> Steps:
    """Return the means of a value in ``number`` equal windows from 0 to ``end_s``, each at the start of its window."""
    width = end_s / number
    return [(k * width, mean_of(steps, k * width, (k + 1) * width)) for k in range(number)]


def thinned(steps: Steps, digits: int = 3) -> list[list[float]]:
    """Return steps for JSON, without repeated values."""
    found: list[list[float]] = []
    for at, value in steps:
        if not found or found[-1][1] != value:
            found.append([round(at, digits), round(value, 4)])
    return found
