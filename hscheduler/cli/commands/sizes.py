"""The sizes of a comparison: with which one trials begin under each policy, and those that ``--size best`` tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eps.errors import ConfigError
from hscheduler.core.words import count_of, listed
from hscheduler.live.checks import check_sizes
from hscheduler.simulator.static_sizes import POLICY, sizes_of
from hscheduler.spec import SIZES, Spec

#: The value of ``--size`` that asks for them.
BEST = "best"


def check_flag(size: str | None, policies: list[str], spec: Spec) -> None:
    """Check the flag before anything runs.

    Raises
    ------
    ConfigError
        It is no known value, there is no policy that it concerns, or the size of the cluster is unknown.
    """
    if size is None:
        return
    if size != BEST:
        raise ConfigError(f"size is {size!r}, but must be {BEST}")
    if POLICY not in policies:
        raise ConfigError(f"size {BEST} is for the policy {POLICY}, but policies are {', '.join(policies)}")
    if spec.job.get("on") == "yarn":
        raise ConfigError(f"size {BEST} is not possible on YARN, whose number of containers the file does not have")


def fitting(sizes: Mapping[str, Spec]) -> Iterator[tuple[str, Spec]]:
    """Yield the sizes with which a job fits the cluster."""
    for name, spec in sizes.items():
        try:
            check_sizes(spec)
        except ConfigError:
            continue
        yield name, spec


def best_of(spec: Spec, run: Callable[[str, Spec], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Run a sweep at each size; return the report of the shortest one in which a trial finished.

    Parameters
    ----------
    spec : Spec
    run : callable
        Takes the size in words and its sweep; returns the report, None if there is none.

    Returns
    -------
    dict
        The report, with ``size`` and ``sizes``: what was found at each size that fits.  None if a run has no report.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, sized in fitting(sizes_of(spec)):
        report = run(name, sized)
        if report is None:
            return None
        found[name] = report
    ended = {name: each for name, each in found.items() if each["best"] is not None} or found
    best = min(ended, key=lambda name: float(ended[name]["makespan_s"]))
    return {**found[best], "size": best, "sizes": [_row(name, report) for name, report in found.items()]}


def beginnings(spec: Spec, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return with which size trials begin, in words, by policy; empty if each point has a size of its own.

    Parameters
    ----------
    spec : Spec
        As its file asks.
    reports : mapping
        By policy.
    """
    if SIZES & spec.searched():
        return {}
    return {policy: each.get("size") or _size_text(spec.under(policy)) for policy, each in reports.items()}


def beginnings_text(sizes: Mapping[str, str]) -> str:
    """Return which policies begin with which size; empty if all begin with the same."""
    policies: dict[str, list[str]] = {}
    for policy, size in sizes.items():
        policies.setdefault(size, []).append(policy)
    if len(policies) < 2:
        return ""
    told = "; ".join(f"{listed(each)} with {size}" for size, each in policies.items())
    return f"trials begin with different sizes: {told} (a container hosts a worker and a server)"


def _size_text(spec: Spec) -> str:
    job = spec.job_spec()
    return count_of(job.tiers.reliable, 0) if job.tiers.reliable else count_of(job.workers, job.servers)


def _row(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("makespan_s", "iterations_trained", "useful_share", "idle_share", "time_to_target_s")
    feedback_s = report["summary"]["early_feedback_median_s"]
    best = None if report["best"] is None else report["best"]["loss"]
    return {"size": name, **{key: report[key] for key in keys}, "early_feedback_median_s": feedback_s, "best": best}
