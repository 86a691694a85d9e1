"""Time to remove a worker and a server of real jobs, step by step, against a restart (EPS §7.4, Figs 20 and 21).

    python -m benchmarks.paper.overhead --output overhead.json         # some three minutes

Jobs train a softmax regression on scikit-learn's digits.  EPS removes the worker and the server by two of the four
calls, one after the other.  The kill-based approach stops the job, which writes its checkpoint, and restarts it from
that with one worker and one server less.  The last step of both ends when a later iteration is complete or the
containers are free, whichever is later.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.bench_common import rounded, say, spread
from benchmarks.paper.real import measured
from eps.core.reconfig import Operation
from eps.job.client import Job
from eps.spec.job_spec import JobSpec

#: Workers and servers, each, of the jobs of Fig. 20, and of Fig. 21 (a) and (b): small, as all run on two cores.
FIG20 = 3
FIG21A = (2, 4, 6, 8)
FIG21B = (2, 3, 4)
FIG21B_SIZE = 6
SPLITS = 16
STEPS = {
    # Lists are updated before the copies are complete (phase lists-updated), so they are part of the first step.
    "elastic": ("update lists, send splits and partitions", "release containers"),
    "kill": ("checkpoint and end", "start processes", "first iteration"),
}


def spec_of(members: int) -> JobSpec:
    """Return a job with more iterations than the measurement needs."""
    return JobSpec(
        data="sklearn:digits",
        model="softmax",
        workers=members,
        servers=members,
        splits=SPLITS,
        partitions=SPLITS,
        iterations=1_000_000,
        stretch_s=0.002,
        checkpoint_every="1s",
    )


def wait_for_clock(job: Job, more: int) -> None:
    """Wait until ``more`` further iterations are complete."""
    last = None
    for progress in job.watch():
        if progress.history:
            clock = int(progress.history[-1]["clock"])
            last = clock if last is None else last
            if clock >= last + more:
                return


def by_elastic(job: Job, count: int) -> dict[str, float]:
    """Remove workers and servers; return the seconds of each step, both calls together."""
    found = dict.fromkeys(STEPS["elastic"], 0.0)
    pause_s = 0.0
    for operation in (Operation.REMOVE_WORKERS, Operation.REMOVE_SERVERS):
        record = job.change(operation, count)
        at = record["seconds"]
        for step, (begin, end) in zip(
            STEPS["elastic"], (("proposed", "committed"), ("committed", "released")), strict=True
        ):
            found[step] += at[end] - at[begin]
        pause_s += record.get("pause_s") or 0.0
    return {**found, "paused": pause_s}


def by_kill(job: Job, name: str, members: int) -> tuple[Job, dict[str, float]]:
    """Restart a job smaller; return it and the seconds of each step."""
    began_s = time.monotonic()
    job.kill("it starts again smaller")
    job.close()
    ended_s = time.monotonic()
    smaller = Job.resume(name, workers=members, servers=members)
    smaller.wait_until_trains()
    started_s = time.monotonic()
    wait_for_clock(smaller, 1)
    first_s = time.monotonic()
    seconds = (ended_s - began_s, started_s - ended_s, first_s - started_s)
    return smaller, {**dict(zip(STEPS["kill"], seconds, strict=True)), "paused": first_s - began_s}


def measure(members: int, count: int, repeats: int) -> dict[str, Any]:
    """Return the steps of both approaches for jobs of ``members`` workers and servers that lose ``count`` of each."""
    taken: dict[str, list[dict[str, float]]] = {"elastic": [], "kill": []}
    for repeat in range(repeats):
        for approach, entries in taken.items():
            name = f"{approach}-{members}-{count}-{repeat}"
            job = Job.start(spec_of(members), name=name)
            try:
                job.wait_until_trains()
                wait_for_clock(job, 20)
                if approach == "elastic":
                    entries.append(by_elastic(job, count))
                else:
                    job, steps = by_kill(job, name, members - count)
                    entries.append(steps)
                job.kill("measured")
            finally:
                job.close()
    steps = {
        approach: {step: spread([entry[step] for entry in entries]) for step in entries[0]}
        for approach, entries in taken.items()
    }
    totals = {
        approach: spread([sum(entry[step] for step in STEPS[approach]) for entry in entries])
        for approach, entries in taken.items()
    }
    say(
        f"{members} workers and servers, {count} of each removed: "
        + ", ".join(f"{approach} {rounded(total['median'])} s" for approach, total in totals.items())
    )
    return {"members": members, "removed": count, "steps": steps, "total_s": totals}


def measure_all(repeats: int) -> dict[str, Any]:
    """Return the results for both figures."""
    fig20 = measure(FIG20, 1, repeats)
    fig21a = [measure(members, 1, repeats) for members in FIG21A]
    # (a) has the removal of one of each already.
    alone = [entry for entry in fig21a if entry["members"] == FIG21B_SIZE]
    fig21b = alone + [measure(FIG21B_SIZE, count, repeats) for count in FIG21B]
    return {"fig20": fig20, "fig21a": fig21a, "fig21b": fig21b}


if __name__ == "__main__":
    sys.exit(measured(__doc__, measure_all, repeats=3))
