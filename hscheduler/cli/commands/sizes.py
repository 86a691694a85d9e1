"""``--size best``: the fixed sizes that ``static`` tries, so that other policies are compared with the best of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eps.errors import ConfigError
from hscheduler.core.words import counted
from hscheduler.live.checks import check_sizes
from hscheduler.spec import Spec

#: The policy that tries them, and the value of ``--size`` that asks for it.
POLICY = "static"
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


def sizes_of(spec: Spec) -> dict[str, Spec]:
    """Return the sweep at each size: as its file asks, and in 1, 2, 4, ... containers that host a worker and a server.

    Powers of two, and the whole cluster: each size is a run of the whole sweep.
    """
    most = spec.cluster.num_containers()
    numbers = sorted({most, *(1 << k for k in range(most.bit_length()))})
    asked = spec.job_spec()
    alone = {name: value for name, value in spec.job.items() if name not in ("workers", "servers", "reliable")}
    found = {}
    if not asked.tiers.reliable:
        found[f"{counted(asked.workers, 'worker')} and {counted(asked.servers, 'server')}"] = spec
    elif asked.tiers.reliable not in numbers:
        numbers = sorted([*numbers, asked.tiers.reliable])
    for number in numbers:
        if number <= asked.splits:
            found[counted(number, "container")] = dataclasses.replace(spec, job={**alone, "reliable": number})
    return found


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


def _row(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("makespan_s", "iterations_trained", "useful_share", "idle_share", "time_to_target_s")
    feedback_s = report["summary"]["early_feedback_median_s"]
    best = None if report["best"] is None else report["best"]["loss"]
    return {"size": name, **{key: report[key] for key in keys}, "early_feedback_median_s": feedback_s, "best": best}
