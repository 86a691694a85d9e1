"""Numbers of jobs, containers and workers over time, from reports: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

#: (time in seconds, value from then on).
Steps = list[tuple[float, float]]


def running_jobs(report: Mapping[str, Any]) -> Steps:
    """Return how many jobs run, over time."""
    return [(at, running) for at, running, _ in report["numbers"]]


def training_jobs(report: Mapping[str, Any]) -> Steps:
    """Return how many jobs have members that train, over time: those that start or restart have none."""
    changes = []
    for trial in report["trials"]:
        before = 0
        for at, workers, _ in trial["containers"]:
            now = int(workers > 0)
            changes.append((at, float(now - before)))
            before = now
        if before and trial["finished_s"] is not None:
            changes.append((trial["finished_s"], -1.0))
    return summed(changes)


def past_feedback(report: Mapping[str, Any]) -> Steps:
    """Return how many jobs are in the training phase: past their early feedback, and not over."""
    changes = []
    for trial in report["trials"]:
        if trial["early_feedback_s"] is not None:
            changes.append((trial["arrived_s"] + trial["early_feedback_s"], 1.0))
            if trial["finished_s"] is not None:
                changes.append((trial["finished_s"], -1.0))
    return summed(changes)


def first_finish_s(report: Mapping[str, Any]) -> float | None:
    """Return when the first trial finished."""
    return min((trial["finished_s"] for trial in report["trials"] if trial["phase"] == "finished"), default=None)


def when_at_least(steps: Steps, number: float) -> float | None:
    """Return when a value first reached a number."""
    return next((at for at, value in steps if value >= number), None)


def queued_jobs(report: Mapping[str, Any]) -> Steps:
    """Return how many jobs wait, over time."""
    return [(at, queued) for at, _, queued in report["numbers"]]


def sizes(trial: Mapping[str, Any]) -> list[tuple[float, int, int]]:
    """Return (time, workers, servers) of a trial; its first size counts from its start."""
    changes = [(at, workers, servers) for at, workers, servers in trial["containers"]]
    if trial["started_s"] is None or not changes:
        return changes
    return [(trial["started_s"], *changes[0][1:]), *changes]


def summed(changes: Iterable[tuple[float, float]]) -> Steps:
    """Return a value over time from its changes: pairs of time and difference, in any order."""
    total, found = 0.0, []
    for at, more in sorted(changes):
        total += more
        if found and found[-1][0] == at:
            found[-1] = (at, total)
        else:
            found.append((at, total))
    return found


def held(report: Mapping[str, Any]) -> Steps:
    """Return the share of the cluster in containers that jobs hold, from their grant to their release, over time."""
    return [(at, share) for at, share, *_ in report["cluster"]["history"]]


def computing(report: Mapping[str, Any], busy: Callable[[int, int], float]) -> Steps:
    """Return how many cores jobs keep busy, over time.

    Parameters
    ----------
    report : mapping
    busy : callable
        Workers and servers of a job -> the cores that it keeps busy, on average over an iteration.
    """
    changes = []
    for trial in report["trials"]:
        before = 0.0
        for at, workers, servers in trial["containers"]:
            now = busy(workers, servers) if workers else 0.0
            changes.append((at, now - before))
            before = now
        if before and trial["finished_s"] is not None:
            changes.append((trial["finished_s"], -before))
    return summed(changes)


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
