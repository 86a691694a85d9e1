"""What the page of a sweep shows, as values for its script: pure, from a report.

Times are seconds since the sweep began; trials are named by their index in ``trials``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hscheduler.core.jobs import Phase, reason_of
from hscheduler.reports.report import INTERRUPTED, shown_phase
from hscheduler.spec import ClusterSpec

Report = Mapping[str, Any]

#: Most points of all curves of a page together, and the fewest of one curve.
CURVE_POINTS, FEWEST = 24_000, 10
#: Most decisions of a page; the oldest are left out.
MOST_DECISIONS = 5_000
#: A setting with at most so many values is a choice if the sweep's file does not say what it is.
MOST_CHOICES = 6
#: Ratio of the largest to the smallest value from which on an axis is logarithmic.
WIDE = 50.0
_TIMES = ("arrived_s", "started_s", "first_iteration_s", "finished_s")
#: Figures of the whole sweep, with their names in a report and in its summary.
_FIGURES = ("utilisation", "useful_share", "waiting_share", "idle_share", "iterations_trained")
_SUMMARY = ("queueing_median_s", "early_feedback_mean_s", "first_iteration_median_s", "resizing_share")


def content(report: Report, *, live: bool = False, logs: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return what the page shows of a report.

    Parameters
    ----------
    report : mapping
        Of :mod:`hscheduler.reports.report`.
    live : bool
        Whether the sweep still runs.
    logs : mapping, optional
        Trial -> the last lines of its log.
    """
    trials: Sequence[Report] = report["trials"]
    index = {str(trial["job_id"]): k for k, trial in enumerate(trials)}
    # The jobs of a trial's later attempts are the trial's.
    index |= {str(job["job_id"]): k for k, trial in enumerate(trials) for job in trial["attempts"]}
    tables = report["spec"] or {}
    job, sweep = tables.get("job", {}), tables.get("sweep", {})
    decisions = report["decisions"]
    state = "running" if live else str(report.get("state") or _state(report))
    return {
        "name": str(report.get("name") or ""),
        "policy": report["policy"],
        "stop": report["stop"],
        "data": _text(job.get("data", "")),
        "model": _text(job.get("model", "")),
        "began_at": _began_at(report),
        "state": state,
        "metric": report["metric"],
        "direction": report["direction"] or "minimize",
        "makespan_s": report["makespan_s"],
        "end_s": report["end_s"],
        **_interruptions(report),
        "planned": max(len(trials), int(sweep.get("trials") or 0)) if live else len(trials),
        "capacity": capacity(tables),
        "best": _best(report, index),
        "static": report.get("static"),
        "target": report["target"],
        "figures": {name: report[name] for name in _FIGURES}
        | {name: report["summary"][name] for name in _SUMMARY if report["summary"][name] is not None},
        "settings": settings(trials, tables.get("space", {})),
        "anytime": [[at_s, value, index[job_id]] for at_s, value, job_id in report["anytime"] if job_id in index],
        "trials": [_trial(trial, state, len(trials), logs or {}) for trial in trials],
        "decisions": [
            [
                decision["at_s"],
                decision["sentence"],
                sorted({index[each] for each in decision["jobs"] if each in index}),
            ]
            for decision in decisions[-MOST_DECISIONS:]
        ],
        "older_decisions": max(0, len(decisions) - MOST_DECISIONS),
    }


def capacity(tables: Report) -> int | None:
    """Return the number of containers of a sweep's cluster; None where its file does not have it.

    A job's master may take a container as well.
    """
    cluster = tables.get("cluster") or {}
    if tables.get("job", {}).get("on") == "yarn" or not {"nodes", "vcores"} <= set(cluster):
        return None
    return ClusterSpec(**cluster).num_containers()


def settings(trials: Sequence[Report], space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the axis of each setting that varies: its name, its kind, and the values of a choice.

    The kind is ``log``, ``linear`` or ``choice``: what the space says, else what the values look like.  Trials need not
    have every setting.
    """
    found, kinds = [], _kinds(space)
    for name in dict.fromkeys(name for trial in trials for name in trial["point"]):
        values = [trial["point"][name] for trial in trials if name in trial["point"]]
        distinct = _distinct(values)
        if len(distinct) < 2 and len(values) == len(trials):
            continue
        kind = kinds.get(name, "")
        numbers = [value for value in values if _is_number(value)]
        if len(numbers) < len(values) or kind == "choice":
            found.append({"name": name, "kind": "choice", "values": _in_order(distinct)})
        elif kind == "loguniform":
            found.append({"name": name, "kind": "log"})
        elif kind:
            found.append({"name": name, "kind": "linear"})
        elif len(distinct) <= MOST_CHOICES and 2 * len(distinct) <= len(values):
            found.append({"name": name, "kind": "choice", "values": _in_order(distinct)})
        else:
            wide = min(numbers) > 0 and max(numbers) / min(numbers) > WIDE
            found.append({"name": name, "kind": "log" if wide else "linear"})
    return found


def _kinds(space: Mapping[str, Any]) -> dict[str, str]:
    """Return the kind of each setting that a space declares, also in the options of branches.

    It is empty for a setting that two options declare differently.
    """
    found: dict[str, str] = {}
    for name, declared in space.items():
        if not isinstance(declared, Mapping) or len(declared) != 1:
            continue
        ((kind, arguments),) = declared.items()
        options = [each for each in arguments if isinstance(each, Mapping)] if kind == "choice" else []
        for inner, of_inner in [item for option in options for item in _kinds(option).items()]:
            found[inner] = of_inner if found.get(inner, of_inner) == of_inner else ""
        if not options:
            found[name] = kind
    return found


def _distinct(values: Sequence[Any]) -> list[Any]:
    # By type as well: True equals 1.
    return list({(type(value).__name__, str(value)): value for value in values}.values())


def _in_order(values: Sequence[Any]) -> list[Any]:
    return sorted(values) if all(_is_number(value) for value in values) else sorted(values, key=str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _trial(trial: Report, state: str, number: int, logs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    most = max(FEWEST, CURVE_POINTS // number)
    found = {
        "id": str(trial["job_id"]),
        "job": trial["name"],
        "state": shown_phase(trial["phase"], state),
        "why": reason_of(str(trial["job_id"]), trial["why"]),
        "point": trial["point"],
        "at": [trial[name] for name in _TIMES],
        "feedback": trial["feedback"],
        "value": trial["value"],
        "latest": trial["latest"],
        "held": trial["containers"],
        "curve": _thinned(trial["curve"], most),
        "iterations": trial["iterations"],
        "attempts": _attempts(trial["attempts"], state),
    }
    # What few trials have is left out of the others, of which there may be thousands.
    optional = {
        "values": _thinned(trial["values"], most),
        "pause_s": trial["resize_pause_s"],
        "rested_s": trial.get("rested_s"),
        "restarts": trial["restarts"],
        "log": list(logs.get(str(trial["job_id"]), ())),
    }
    return found | {name: value for name, value in optional.items() if value}


def _attempts(attempts: Sequence[Report], state: str) -> list[dict[str, Any]]:
    """Return the attempts of a trial that was tried again; empty for one that was not."""
    if len(attempts) < 2:
        return []
    return [{**attempt, "phase": shown_phase(attempt["phase"], state)} for attempt in attempts]


def _thinned(curve: Sequence[Any], most: int) -> Sequence[Any]:
    if len(curve) <= most:
        return curve
    return [curve[k * (len(curve) - 1) // (most - 1)] for k in range(most)]


def _best(report: Report, index: Mapping[str, int]) -> dict[str, Any] | None:
    if (best := report["best"]) is None:
        return None
    return {
        "trial": index.get(str(best["job_id"])),
        "value": best["loss"],
        "point": best["point"],
        "test": best.get("test", {}),
    }


def _state(report: Report) -> str:
    return "ended" if all(Phase(trial["phase"]).ended for trial in report["trials"]) else INTERRUPTED


def _interruptions(report: Report) -> dict[str, Any]:
    """Return how long no scheduler ran, and when in the report's times, which leave this out."""
    at_s, all_s = [], 0.0
    for from_s, until_s in report["down"]:
        at_s.append(from_s - all_s)
        all_s += until_s - from_s
    return {"interrupted_s": all_s, "interruptions": at_s}


def _began_at(report: Report) -> str:
    """Return when a sweep began, as ISO 8601 in UTC; empty if it was simulated."""
    known = report.get("began_at")
    return "" if known is None else datetime.fromtimestamp(known, UTC).isoformat(timespec="seconds")


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
