"""What a sweep would have taken if its trials had kept their sizes: its own points, simulated by the same scheduler.

Source: EPS §7.2 (elastic jobs against jobs of static sizes).  Deviation: the paper runs both; here one is simulated,
with the speeds that the other one measured (:mod:`hscheduler.simulator.fit`), under the same stopping rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from eps.errors import EpsError
from eps.spec.job_spec import JobSpec
from hscheduler.core.jobs import Phase
from hscheduler.core.words import count_of, counted
from hscheduler.reports.report import feedback_s
from hscheduler.spec import SIZES, Spec

POLICY = "static"
#: Most sizes besides that of the file: clusters of up to 80 containers have no more.
MOST_SIZES = 16
#: Most trials of a sweep that is simulated, and of all its sizes together: about two seconds.
MOST_TRIALS, MOST_REPLAYED = 2_000, 3_000


def fixed_sizes(containers: int) -> list[int]:
    """Return the largest size with which 1, 2, 3, ... trials fit beside each other in so many containers, ascending.

    Any other size lets no more trials run than a larger one.
    """
    return sorted({containers // trials for trials in range(1, containers + 1)})


def sizes_of(spec: Spec) -> dict[str, Spec]:
    """Return the sweep at each size: as its file asks, and in containers that host a worker and a server each.

    Each size is a run of the whole sweep: of more than :data:`MOST_SIZES`, an even selection is tried.
    """
    asked = spec.job_spec()
    # A job's master may take a container, too.
    master = int(spec.cluster.master_container)
    fitting = (size - master for size in fixed_sizes(spec.cluster.num_containers()))
    numbers = set(_selected([size for size in fitting if 0 < size <= asked.splits]))
    alone = {name: value for name, value in spec.job.items() if name not in SIZES}
    found = {}
    if asked.tiers.reliable:
        numbers.add(asked.tiers.reliable)
    else:
        found[count_of(asked.workers, asked.servers)] = spec
    for number in sorted(numbers):
        found[counted(number, "container")] = dataclasses.replace(spec, job={**alone, "reliable": number})
    return found


def _selected(sizes: Sequence[int]) -> Sequence[int]:
    """Return at most :data:`MOST_SIZES` of the sizes, with the first and the last one."""
    if len(sizes) <= MOST_SIZES:
        return sizes
    return [sizes[k * (len(sizes) - 1) // (MOST_SIZES - 1)] for k in range(MOST_SIZES)]


def with_static(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report with ``static``: what :func:`static_sizes` found; None for a report of the static policy."""
    return {**report, "static": None if report["policy"] == POLICY else static_sizes(report)}


def static_sizes(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the makespans of a sweep's points with sizes that never change.

    Returns
    -------
    dict
        ``sizes``: of each size its name in words, ``makespan_s``, ``early_feedback_mean_s``, ``finished`` (number of
        trials, without those that were cut short in the sweep itself: :func:`hscheduler.simulator.run.cut_short`), and
        ``asked``, whether the sweep's file asks for it; of large sweeps only that one.  ``why``: why there is none;
        empty if there are some.
    """
    trials = len(report["trials"])
    if report["spec"] is None:
        return _none("the report has no specification of its sweep")
    if report["spec"].get("job", {}).get("on") == "yarn":
        return _none("the sweep's file does not have the size of the cluster on YARN")
    if report["is_callable"]:
        return _none("its trials are calls of a Python function, whose size is fixed")
    if trials > MOST_TRIALS:
        return _none(f"it takes too long for more than {MOST_TRIALS} trials")
    if not all(Phase(trial["phase"]).ended for trial in report["trials"]):
        return _none("the sweep has not ended")
    # SciPy takes longer to import than all of this.
    from hscheduler.simulator.fit import fit, is_simulated, spec_of
    from hscheduler.simulator.run import cut_short, simulate_like

    found, short = [], cut_short(report)
    try:
        model = None if is_simulated(report) else fit([report])
        spec = spec_of(report)
        spec = dataclasses.replace(spec, sweep=dataclasses.replace(spec.sweep, stop=report["stop"]))
        asked = spec.job_spec()
        replayed = _as_they_come(report, spec)
        sizes = sizes_of(spec)
    except EpsError as error:
        return _none(str(error))
    problem = ""
    for name, sized in sizes.items():
        try:
            is_asked = _size(sized.job_spec()) == _size(asked)
            if not is_asked and trials * len(sizes) > MOST_REPLAYED:
                continue
            simulated = simulate_like(sized, replayed, POLICY, model)
        except EpsError as error:
            # Such a job does not fit the cluster, or its other settings.
            problem = str(error)
            continue
        found.append(
            {
                "size": name,
                "makespan_s": simulated["makespan_s"],
                "early_feedback_mean_s": feedback_s({**simulated, "spec": report["spec"]}),
                "finished": sum(t["phase"] == Phase.FINISHED and t["job_id"] not in short for t in simulated["trials"]),
                "asked": is_asked,
            }
        )
    return {"sizes": found, "why": ""} if found else _none(problem)


def _size(job: JobSpec) -> tuple[int, int, int]:
    return job.workers, job.servers, job.tiers.reliable


def _none(why: str) -> dict[str, Any]:
    return {"sizes": [], "why": why}


def _as_they_come(report: Mapping[str, Any], spec: Spec) -> Mapping[str, Any]:
    """Return a report whose trials arrive when they would under any policy.

    The points of a burst are drawn when trials can start, which depends on the policy: all of them are ready at once.
    """
    if spec.sweep.mean_gap_s():
        return report
    return {**report, "trials": [{**trial, "arrived_s": 0.0} for trial in report["trials"]]}
