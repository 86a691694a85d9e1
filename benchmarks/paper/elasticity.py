"""An iteration of one job by the number of nodes that it has (EPS §7.5, Fig. 22), with real jobs.

    python -m benchmarks.paper.elasticity --output elasticity.json       # some two minutes

Jobs train a softmax regression on scikit-learn's digits, and sleep in each iteration.  A node has four processors, a
container one.  EPS is a single job, which gets node after node and then loses them again.  By the four calls it grows
and shrinks to the sizes of Algorithm 1, and iterates at each size.  Litz-PS has the same workers and servers on any
number of nodes.  If they outnumber the processors they share them, so that each sleeps longer in proportion.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.bench_common import rounded, say, spread
from benchmarks.paper import scaled
from benchmarks.paper.real import measured
from eps.core.reconfig import Operation
from eps.job.client import Job
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, JobRequest
from hscheduler.policies import POLICIES
from hscheduler.simulator import paper
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.workload import SimulatedJob

#: EPS §7.5: Litz-PS has twelve workers, on one node to 36; servers in the ratio of what a job asks for (§6).
LITZ = (12, 6)
NODES = tuple(range(1, 37))

#: The same, small enough for two cores.
REAL_LITZ = (4, 2)
REAL_NODES = (1, 2, 3, 4, 5, 6)
#: Enough splits that further workers reduce the splits of each.
SPLITS, PARTITIONS = 48, 16
#: Seconds of sleep for each split and iteration: far more than the processor time of the largest job.
STRETCH_S = 0.8 / SPLITS
#: Iterations measured at each size; those skipped before them may have started during the change.
ITERATIONS = 15
SKIPPED = 2

Size = tuple[int, int]


def elastic_size(number: int, splits: int, partitions: int) -> Size:
    """Return the workers and servers to which Algorithm 1 grows a job that is alone on ``number`` nodes."""
    container = scaled.CONTAINER
    request = JobRequest("job", "sweep", 2, 1, container, container, container, splits, partitions)
    job = SimulatedJob(0.0, request, paper.ITERATIONS, scaled.speed_of("logistic"), 0.5, 0.5)
    opened = e.SweepOpened("sweep", Direction.MINIMIZE, 1)
    simulation = Simulation(
        scaled.nodes(number), POLICIES["elastic"], [job], paper.OURS, paper.FEEDBACK_ITERATION, [opened]
    )
    record = simulation.run()
    return max(((workers, servers) for _, workers, servers in record.trials["job"].sizes), key=sum)


def contention(size: Size, number: int) -> float:
    """Return how much longer computing takes if all containers, with the master's, share ``number`` nodes."""
    return max(1.0, (sum(size) + 1) / (number * scaled.NODE.vcores))


def simulated() -> dict[str, Any]:
    """Return the times at the paper's size."""
    speed = scaled.speed_of("logistic")
    sizes = {number: elastic_size(number, paper.SPLITS, paper.PARTITIONS) for number in NODES}
    return {
        "kind": "simulated",
        "elastic": [_entry(number, size, speed.iteration_s(*size)) for number, size in sizes.items()],
        "litz": [_entry(n, LITZ, contention(LITZ, n) * speed.iteration_s(*LITZ)) for n in NODES],
    }


def _entry(number: int, size: Size, iteration_s: float) -> dict[str, Any]:
    return {"nodes": number, "workers": size[0], "servers": size[1], "iteration_s": round(iteration_s, 4)}


# ---- real jobs


@contextmanager
def running(name: str, size: Size, stretch_s: float) -> Iterator[Job]:
    """Run a job for the duration of the context."""
    workers, servers = size
    spec = JobSpec(
        data="sklearn:digits",
        model="softmax",
        workers=workers,
        servers=servers,
        splits=SPLITS,
        partitions=PARTITIONS,
        iterations=1_000_000,
        stretch_s=stretch_s,
    )
    job = Job.start(spec, name=name)
    try:
        job.wait_until_trains()
        yield job
        job.kill("measured")
    finally:
        job.close()


def durations_s(job: Job) -> list[float]:
    """Return the seconds of the next iterations."""
    ends: list[float] = []
    for progress in job.watch(int(job.status()["clock"]) + SKIPPED):
        ends += [float(entry["seconds"]) for entry in progress.history]
        if len(ends) > ITERATIONS:
            break
    return [later - earlier for earlier, later in pairwise(ends[: ITERATIONS + 1])]


def resize(job: Job, now: Size, wanted: Size) -> None:
    """Change a job to the wanted size by the four calls."""
    calls = ((Operation.ADD_WORKERS, Operation.REMOVE_WORKERS), (Operation.ADD_SERVERS, Operation.REMOVE_SERVERS))
    for had, has, (add, remove) in zip(now, wanted, calls, strict=True):
        if had != has:
            job.change(add if has > had else remove, abs(has - had))


def measure(repeats: int) -> dict[str, Any]:
    """Return the times of real jobs: medians of all iterations at a size."""
    sizes = {number: elastic_size(number, SPLITS, PARTITIONS) for number in REAL_NODES}
    ours: dict[int, list[float]] = {number: [] for number in REAL_NODES}
    theirs: dict[int, list[float]] = {number: [] for number in REAL_NODES}
    for repeat in range(repeats):
        now = sizes[REAL_NODES[0]]
        with running(f"elastic-{repeat}", now, STRETCH_S) as job:
            for number in (*REAL_NODES, *reversed(REAL_NODES)):
                resize(job, now, sizes[number])
                now = sizes[number]
                ours[number] += durations_s(job)
                say(f"EPS on {number} nodes, {now[0]} workers and {now[1]} servers: {median(ours[number]):.3f} s")
        for number in REAL_NODES:
            with running(f"litz-{repeat}-{number}", REAL_LITZ, STRETCH_S * contention(REAL_LITZ, number)) as job:
                theirs[number] += durations_s(job)
            say(f"Litz-PS on {number} nodes: {median(theirs[number]):.3f} s")
    return {
        "elastic": [
            {**_entry(n, sizes[n], median(found)), "spread_s": spread([rounded(each) for each in found])}
            for n, found in ours.items()
        ],
        "litz": [
            {**_entry(n, REAL_LITZ, median(found)), "spread_s": spread([rounded(each) for each in found])}
            for n, found in theirs.items()
        ],
    }


if __name__ == "__main__":
    sys.exit(measured(__doc__, measure, repeats=1))
