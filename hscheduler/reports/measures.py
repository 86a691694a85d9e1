"""Measures by which stopping rules and policies are compared: of trials, and of finished reports.

Pure functions; times are seconds since the sweep began.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from eps.errors import DIVERGED, ConfigError
from hscheduler.core.jobs import Direction, Phase
from hscheduler.core.timeline import TrialRecord

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A value of the sweep's metric that the user wants to find."""

    metric: str
    value: float

    @classmethod
    def of(cls, text: str) -> Target:
        """Return the target that a flag such as ``accuracy=0.97`` names.

        Raises
        ------
        ConfigError
            The text is not a name and a finite number.
        """
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name.strip() or not math.isfinite(value):
            raise ConfigError(f"target is {text!r}, but must be a metric and a number, as in accuracy=0.97")
        return cls(name.strip(), value)

    def check(self, metric: str) -> None:
        """Check that a sweep measures this metric.

        Raises
        ------
        ConfigError
            The sweep has another metric.
        """
        if self.metric != metric:
            raise ConfigError(
                f"target is {self.metric}={self.value:g}, but the sweep's metric is {metric}: "
                f"set metric in [sweep], or name a value of {metric}"
            )

    def is_reached(self, value: float, direction: str) -> bool:
        """Return whether a value is as good as the target, in the direction of the sweep."""
        return value >= self.value if direction == Direction.MAXIMIZE else value <= self.value


def anytime(
    trials: Iterable[TrialRecord], losses: Mapping[str, float], metric: str, direction: Direction | None
) -> list[tuple[float, float, str]]:
    """Return (time, value, trial) whenever a better value of the metric was known than ever before.

    Values are known of trials that train, stop or finish: as their curves, their early feedback and their ends show
    them.  Empty without a direction.
    """
    if direction is None:
        return []
    found: list[tuple[float, float, str]] = []
    for trial in trials:
        curve = trial.curve if metric == "loss" else trial.values
        found += [(at_s, value, trial.job_id) for at_s, _, value in curve.points()]
        found += [(at_s, value, trial.job_id) for at_s, _, value in trial.rungs]
        if trial.feedback_s is not None and trial.feedback is not None:
            found.append((trial.feedback_s, trial.feedback, trial.job_id))
        final = losses.get(trial.job_id)
        if final is not None and trial.finished_s is not None and trial.phase is Phase.FINISHED:
            found.append((trial.finished_s, final, trial.job_id))
    sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
    best, steps = math.inf, []
    for at_s, value, job_id in sorted(found, key=lambda each: (each[0], sign * each[1])):
        if math.isfinite(value) and sign * value < best:
            best = sign * value
            steps.append((at_s, value, job_id))
    return steps


def time_to_target_s(report: Report, target: Target) -> float | None:
    """Return when a report's sweep first knew a value as good as the target; None if it never did."""
    reached = (at_s for at_s, value, _ in report.get("anytime", ()) if target.is_reached(value, report["direction"]))
    return next(reached, None)


def with_target(report: Report, target: Target | None) -> dict[str, Any]:
    """Return a report with the time at which its sweep reached the target.  Raises as :meth:`Target.check`."""
    if target is None:
        return dict(report)
    target.check(report["metric"])
    told = {"metric": target.metric, "value": target.value}
    return {**report, "target": told, "time_to_target_s": time_to_target_s(report, target)}


def regret(found: float | None, least: float | None, direction: str) -> float | None:
    """Return by how much a sweep's best result is worse than the best of all points trained to their ends.

    Parameters
    ----------
    found, least : float, optional
        Both results; None gives None.
    direction : str
    """
    if found is None or least is None:
        return None
    return (least - found) if direction == Direction.MAXIMIZE else (found - least)


def with_regret(reports: Mapping[str, Report]) -> dict[str, dict[str, Any]]:
    """Return reports of the same points by policy, with the regret against one that trained every point to its end.

    Without such a report the regret stays None, as it does where the points may differ: where an algorithm learns from
    results.
    """
    full = next((each for each in reports.values() if is_full(each)), None)
    least = None if full is None else full["best"]["loss"]
    return {
        policy: {
            **each,
            "regret": regret(_best(each), least, each["direction"]) if each["regret"] is None else each["regret"],
        }
        for policy, each in reports.items()
    }


def is_full(report: Report) -> bool:
    """Return whether a report has every point of its file, all of them trained to their ends and not learnt.

    A diverged trial counts as trained to its end: its loss is infinite.  So does one that never started, because its
    settings cannot work.
    """
    if not _has_same_points(report) or len(report["trials"]) < report["spec"]["sweep"]["trials"]:
        return False
    is_over = (
        trial["phase"] == Phase.FINISHED
        or has_diverged(trial)
        or (trial["phase"] == Phase.FAILED and trial["started_s"] is None)
        for trial in report["trials"]
    )
    return report["best"] is not None and all(is_over)


def has_diverged(trial: Mapping[str, Any]) -> bool:
    """Return whether a trial of a report was ended because its training diverged."""
    return trial["phase"] == Phase.KILLED and DIVERGED in trial["why"]


def no_regret_text(reports: Mapping[str, Report]) -> str:
    """Return why the regret of reports by policy is unknown, and what to do; empty if it is known."""
    if any(each["regret"] is not None for each in reports.values()):
        return ""
    if not all(map(_has_same_points, reports.values())):
        return 'regret is unknown: the policies tried different points; set algorithm = "random"'
    return (
        "regret is unknown: under each policy some trials were stopped or failed; run the same points with --stop none "
        "and compare the best results"
    )


def _has_same_points(report: Report) -> bool:
    """Return whether every policy tries the points of this report."""
    spec = report["spec"]
    return spec is not None and (spec["sweep"]["algorithm"] == "random" or not spec["space"])


def _best(report: Report) -> float | None:
    return None if report["best"] is None else report["best"]["loss"]


def iterations_trained(jobs: Iterable[TrialRecord]) -> int:
    """Return the iterations that jobs completed, each counted once, also if a restart computed it again."""
    return sum(job.iteration for job in jobs)


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return median and largest; None without values."""
    return (median(values), max(values)) if values else (None, None)
