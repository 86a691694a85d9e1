"""Fit models of speed and cost to reports of real sweeps.

For each trial a report has the measured iterations and their seconds by size, the times of decisions, and the times at
which these took effect.  The fit uses means, because a makespan is a sum:

- Seconds of an iteration: ``stretch_s`` for each split of the worker with most (the job sleeps that long), plus the
  terms of :class:`~hscheduler.simulator.models.SpeedModel`, by non-negative least squares.  The smallest set of terms
  wins whose error is within a hundredth of an iteration of the best.  If the measured sizes cannot tell terms apart,
  the earlier term wins, ``fixed_s`` first.
- Costs of changes: from each decision to its effect.  Growth and shrink are medians, because decisions about one job
  can overlap and their effects cannot always be told apart.

Source: EPS §7.4 (the overhead of both approaches is measured).  Deviation: the paper simulates nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy.optimize import nnls

from eps.errors import ConfigError, DataError
from eps.spec.job_spec import JobSpec
from hscheduler.core.jobs import Size
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.spec import Spec

#: A term must reduce the error by more than this share of an iteration.
WORTH_A_TERM = 0.01
TERMS = ("fixed_s", "split_s", "exchange_s", "member_s")


@dataclass(frozen=True, slots=True)
class Measured:
    """Iterations of one size: their mean duration and their total duration."""

    splits: int
    workers: int
    servers: int
    iteration_s: float
    total_s: float
    #: Seconds that the job slept for each split.
    stretch_s: float = 0.0


@dataclass(frozen=True)
class Model:
    """Speeds and costs that were fitted to real runs.

    Attributes
    ----------
    speeds : mapping
        Model of ``eps run`` -> term -> seconds; a job's ``stretch_s`` is added to ``split_s``.
    costs : Costs
    found : mapping
        Number of trials and iterations that were used, and the relative error of each speed.
    """

    speeds: Mapping[str, Mapping[str, float]]
    costs: Costs
    found: Mapping[str, Any]

    def speed(self, job: JobSpec) -> SpeedModel:
        """Return the speed of a job.

        Raises
        ------
        ConfigError
            The reports have no run of the job's model.
        """
        if job.model not in self.speeds:
            raise ConfigError(f"model is {job.model!r}, but speeds were fitted for {', '.join(self.speeds)}")
        terms = self.speeds[job.model]
        return SpeedModel(
            job.splits, job.stretch_s + terms["split_s"], terms["fixed_s"], terms["exchange_s"], terms["member_s"]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the model as a dict for JSON."""
        return {
            "speeds": {name: dict(terms) for name, terms in self.speeds.items()},
            "costs": dataclasses.asdict(self.costs),
            "found": dict(self.found),
        }

    @classmethod
    def read(cls, path: Path) -> Model:
        """Read a JSON file of :meth:`as_dict`.

        Raises
        ------
        DataError
            The file cannot be read, or is not such a model.
        """
        values = read_json_file(path)
        try:
            speeds = {
                str(name): {term: float(terms[term]) for term in TERMS} for name, terms in values["speeds"].items()
            }
            costs = Costs(**{name: float(value) for name, value in values["costs"].items()})
            return cls(speeds, costs, dict(values.get("found", {})))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: not a model that hscheduler fit wrote ({error!r})") from None


def read_json_file(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises
    ------
    DataError
        The file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(f"{path}: not a report or model of hscheduler: it is not JSON ({error})") from None


def reports_in(path: Path) -> list[dict[str, Any]]:
    """Return the reports in a file of ``hscheduler sweep``, ``compare`` or ``simulate``.

    Raises
    ------
    DataError
        The file cannot be read, or has no report.
    """
    values = read_json_file(path)
    if isinstance(values, dict) and isinstance(values.get("policies"), dict):
        values = values["policies"]
    found = [values] if isinstance(values, dict) and "trials" in values else []
    if not found and isinstance(values, dict):
        found = [each for each in values.values() if isinstance(each, dict) and "trials" in each]
    if not found or not all({"policy", "makespan_s", "trials", "decisions", "spec"} <= set(each) for each in found):
        raise DataError(f"{path}: not a report of a sweep")
    return found


def is_simulated(report: Mapping[str, Any]) -> bool:
    """Return whether a report comes from a simulation."""
    return bool(report["trials"]) and not any(trial.get("name", "?") for trial in report["trials"])


def fit(reports: Sequence[Mapping[str, Any]]) -> Model:
    """Fit a model to reports of real sweeps.

    Raises
    ------
    DataError
        The reports have no measured iterations.
    """
    by_model: dict[str, list[Measured]] = {}
    for report in reports:
        for name, measured in _measured(report):
            by_model.setdefault(name, []).append(measured)
    if not by_model:
        raise DataError("no iterations were measured in these reports: there is nothing to fit")
    speeds, errors = {}, {}
    for name, sizes in sorted(by_model.items()):
        speeds[name], errors[name] = fit_speed(sizes)
    usual = Model(speeds, Costs(), {})
    found = {
        "trials": sum(len(report["trials"]) for report in reports),
        "iterations": sum(speed[2] for report in reports for trial in report["trials"] for speed in trial["speeds"]),
        "relative_error": errors,
    }
    return Model(speeds, _costs(reports, usual), found)


# ---- speed


def _measured(report: Mapping[str, Any]) -> Iterator[tuple[str, Measured]]:
    spec = spec_of(report)
    for trial in report["trials"]:
        if not trial["speeds"]:
            continue
        job = spec.job_spec(trial["point"])
        for workers, servers, number, seconds in trial["speeds"]:
            members = workers, servers or workers
            yield job.model, Measured(job.splits, *members, seconds / number, seconds, job.stretch_s)


def spec_of(report: Mapping[str, Any]) -> Spec:
    """Return the specification of a report's sweep.

    Raises
    ------
    DataError
        The report does not have it.
    """
    if report["spec"] is None:
        raise DataError("the report has no specification of its sweep")
    return Spec.of(report["spec"])


def fit_speed(measured: Sequence[Measured]) -> tuple[dict[str, float], float]:
    """Return the terms of an iteration's seconds, and the relative error (root mean square, weighted by duration)."""
    most = np.array([-(-m.splits // m.workers) for m in measured], dtype=float)
    columns = {
        "fixed_s": np.ones(len(measured)),
        "split_s": most,
        "exchange_s": np.array([1.0 / m.servers for m in measured]),
        "member_s": np.array([float(m.workers + m.servers) for m in measured]),
    }
    seconds = np.array([m.iteration_s for m in measured])
    slept = np.array([m.stretch_s for m in measured]) * most
    total_s = np.array([m.total_s for m in measured])
    weights = np.sqrt(total_s / total_s.sum()) / seconds
    tried = []
    for number in range(1, len(TERMS) + 1):
        for names in combinations(TERMS, number):
            matrix = np.stack([columns[name] * weights for name in names], axis=1)
            values, error = nnls(matrix, (seconds - slept) * weights)
            tried.append((len(names), float(error), dict(zip(names, map(float, values), strict=True))))
    least = min(error for _, error, _ in tried)
    fewest = min(number for number, error, _ in tried if error <= least + WORTH_A_TERM)
    _, error, values = min((t for t in tried if t[0] == fewest), key=lambda t: max(t[1], least + 1e-9))
    return {name: values.get(name, 0.0) for name in TERMS}, error


# ---- costs


def _costs(reports: Sequence[Mapping[str, Any]], model: Model) -> Costs:
    usual = Costs()
    end_s = _mean(_ends(reports), usual.end_s)
    start_s = _mean(_starts(reports, model), usual.start_s)
    return Costs(
        start_s,
        median([late for more, late in _changes(reports) if more] or [usual.add_s]),
        median([late for more, late in _changes(reports) if not more] or [usual.remove_s]),
        _pause_s(reports, usual.pause_s),
        end_s,
        _mean(_restarts(reports, model, start_s, end_s), usual.restart_s),
        _mean(_finishes(reports), usual.finish_s),
    )


def _mean(values: Iterable[float], otherwise: float) -> float:
    found = list(values)
    return max(0.0, fmean(found)) if found else otherwise


def _starts(reports: Sequence[Mapping[str, Any]], model: Model) -> Iterator[float]:
    for report in reports:
        spec = spec_of(report)
        for trial in report["trials"]:
            if trial["first_iteration_s"] is not None and trial["containers"]:
                first_s = model.speed(spec.job_spec(trial["point"])).iteration_s(*trial["containers"][0][1:])
                yield trial["first_iteration_s"] - trial["started_s"] - first_s


def _finishes(reports: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    for report in reports:
        for trial in report["trials"]:
            if trial["phase"] == "finished" and trial["last_iteration_s"] is not None:
                yield trial["finished_s"] - trial["last_iteration_s"]


def _ends(reports: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    for report in reports:
        told_s = {(decision["sentence"]): decision["at_s"] for decision in report["decisions"]}
        for trial in report["trials"]:
            # A killed trial's reason is the sentence of the decision.
            if trial["phase"] == "killed" and trial["why"] in told_s:
                yield trial["finished_s"] - told_s[trial["why"]]


def _pause_s(reports: Sequence[Mapping[str, Any]], otherwise: float) -> float:
    trials = [trial for report in reports for trial in report["trials"] if not trial["restarts"]]
    number = sum(trial["resizes"] for trial in trials)
    return sum(trial["resize_pause_s"] for trial in trials) / number if number else otherwise


def _sizes_changed(trial: Mapping[str, Any]) -> Iterator[tuple[float, Size, Size]]:
    """Yield (time, before, after) of each change of size between a trial's start and its end."""
    for (_, *before), (at_s, *after) in zip(trial["containers"], trial["containers"][1:], strict=False):
        if after[0] and before[0] and at_s != trial["finished_s"]:
            yield at_s, (before[0], before[1]), (after[0], after[1])


def _changes(reports: Sequence[Mapping[str, Any]]) -> Iterator[tuple[bool, float]]:
    """Yield (whether it was a growth, seconds from the decision) of each change of size."""
    for report in reports:
        decided: dict[str, list[float]] = {}
        for decision in report["decisions"]:
            if decision.get("plan") == []:
                # An event without a decision.
                continue
            for job_id in decision["jobs"]:
                decided.setdefault(job_id, []).append(decision["at_s"])
        for trial in report["trials"]:
            if trial["restarts"]:
                continue
            changed_s = 0.0
            for at_s, before, after in _sizes_changed(trial):
                # The first decision since the last change; a later one may belong to the next change.
                told = [told_s for told_s in decided.get(trial["job_id"], ()) if changed_s < told_s <= at_s]
                if told and changed_s:
                    yield sum(after) > sum(before), at_s - min(told)
                changed_s = at_s


def _restarts(reports: Sequence[Mapping[str, Any]], model: Model, start_s: float, end_s: float) -> Iterator[float]:
    """Yield the seconds of each restart without its end, a declared delay, its start and its first iteration."""
    for report in reports:
        spec = spec_of(report)
        ended_s = max(end_s, spec.sweep.kill_restart_s)
        for trial in report["trials"]:
            if trial["restarts"]:
                first_s = model.speed(spec.job_spec(trial["point"])).iteration_s(*trial["containers"][0][1:])
                each_s = trial["resize_pause_s"] / trial["restarts"] - ended_s - start_s - first_s
                yield from [each_s] * trial["restarts"]
