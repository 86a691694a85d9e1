"""Time from free containers to a trial's first feedback on YARN.

    python benchmarks/yarn/feedback.py [--trials 12] [--output feedback.json] [--quick]

The benchmark starts a cluster of its own (``eps devcluster``: 12 cores) and runs the trials of ``sweep.toml`` as one
short sweep.  All trials arrive at the start.  The first ones start in an empty cluster, the later ones in capacity that
other trials release.  Early feedback follows the first iteration.

Times are those of the sweep's report.  A trial's containers are free at ``started_s``, when the last of them has been
released; ``early_feedback_s`` counts from the trial's arrival.  A first sweep, which does not count, uploads EPS and
the data to the cluster's file system.  JSON goes to standard output, a table to standard error."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))

from benchmarks.bench_common import (  # noqa: E402
    Bar,
    conclude,
    end_in_order,
    new_file,
    positive,
    run_to_the_end,
    say,
    spread,
)
from benchmarks.yarn.native import cluster_settings, hadoop  # noqa: E402
from eps.errors import EpsError  # noqa: E402
from eps.storage.jobdir import cache_dir  # noqa: E402
from hscheduler.runners import OnYarn, Outcome, Viewers  # noqa: E402
from hscheduler.spec import Spec  # noqa: E402

LIMIT_S = 3.0
#: Iterations of each trial, which then runs for some seconds after its feedback.
ITERATIONS = 60


def run(trials: int, iterations: int) -> dict[str, Any]:
    """Return the report of a sweep on YARN."""
    spec = Spec.read(Path(__file__).with_name("sweep.toml"))
    changes = {"trials": trials, "arrival": "burst", "feedback_iteration": 1, "threshold": trials}
    sweep = dataclasses.replace(spec.sweep, **changes)  # type: ignore[arg-type]
    spec = dataclasses.replace(spec, sweep=sweep, job={**spec.job, "iterations": iterations})
    outcome: Outcome = OnYarn(spec, "elastic").run(Viewers(say, lambda line: say(f"  {line}")))
    if outcome.report is None:
        raise outcome.error or EpsError("the sweep has no report")
    return outcome.report


def waits_of(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return when each trial's containers were free, and the seconds from then to its first iteration and feedback."""
    found = []
    for trial in report["trials"]:
        free_s, first_s = trial["started_s"], trial["first_iteration_s"]
        feedback_s = trial["early_feedback_s"]
        if free_s is None or first_s is None or feedback_s is None:
            continue
        found.append(
            {
                "job_id": trial["job_id"],
                "free_s": round(free_s, 3),
                "to_first_iteration_s": round(first_s - free_s, 3),
                "to_feedback_s": round(trial["arrived_s"] + feedback_s - free_s, 3),
            }
        )
    return sorted(found, key=lambda each: float(each["free_s"]))


def summary_of(waits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the measures of all trials, and of those that had to wait for containers."""
    later = [each for each in waits if each["free_s"] > waits[0]["free_s"] + LIMIT_S]
    return {
        name: {key: spread([float(each[key]) for each in of]) for key in ("to_first_iteration_s", "to_feedback_s")}
        for name, of in (("all", waits), ("later", later))
        if of
    }


def measure(trials: int, iterations: int, folder: Path) -> dict[str, Any]:
    """Return all measurements."""
    (folder / "home").mkdir()
    # Share Hadoop's jars and prepared data with the user's cache.
    (folder / "home" / "cache").symlink_to(cache_dir().resolve())
    os.environ["EPS_HOME"] = str(folder / "home")
    with hadoop(folder, cluster_settings(None, "", folder)):
        say("a first sweep, which uploads EPS and the data")
        run(1, 1)
        say("the sweep")
        load, report = os.getloadavg()[0], run(trials, iterations)
    waits = waits_of(report)
    return {
        "sweep": report["spec"],
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "finished": report["completed"],
        "trials": waits,
        **summary_of(waits),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, but 0 with ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=positive, default=12, help="default: 12")
    parser.add_argument("--quick", action="store_true", help="three short trials, to see whether it works")
    parser.add_argument("--output", type=new_file, help="write the JSON there as well")
    arguments = parser.parse_args(argv)
    trials, iterations = (3, 5) if arguments.quick else (arguments.trials, ITERATIONS)
    end_in_order()
    try:
        with tempfile.TemporaryDirectory(prefix="eps-feedback-") as folder:
            results = measure(trials, iterations, Path(folder))
    except EpsError as error:
        say(f"feedback: {error}")
        return 1
    bars = [
        Bar("trials that have not finished", trials - results["finished"], 0, at_least=False),
        Bar(
            "free to first feedback, median, seconds",
            results["all"]["to_feedback_s"]["median"],
            LIMIT_S,
            at_least=False,
        ),
        Bar("free to first feedback, worst, seconds", results["all"]["to_feedback_s"]["max"], LIMIT_S, at_least=False),
    ]
    return conclude("yarn feedback", results, bars, arguments.output, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
