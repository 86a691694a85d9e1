"""Measure the speed of the simulator: the paper's cluster under every policy, and 10,000 nodes with 100,000 jobs.

    python benchmarks/simulator.py                        # some minutes: 10,000 nodes, elastic and static
    python benchmarks/simulator.py --output simulator.json
    python benchmarks/simulator.py --quick                # 500 nodes, 5,000 jobs: check that it works

The large cluster runs sweeps like the paper's (:mod:`hscheduler.simulator.paper`): 75 jobs each, with exponential gaps
of the same mean.  Sweeps begin at random times, at the highest rate with which the default parameter server keeps up.
Each run has its own process on one core.  ``seconds`` is the processor time of that process, from its first import of
the simulator to the report; ``wall_s`` is the elapsed time.  Memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bench_common import (
    Bar,
    conclude,
    new_file,
    positive,
    rounded,
    run_to_the_end,
    say,
)

MOST_S = 600.0
MOST_GIB = 4.0
LARGE_POLICIES = ("elastic", "static")
PAPER_POLICIES = ("elastic", "static", "static-stop", "kill", "priority")


def sweeps_of(nodes: int, jobs: int, seed: int) -> list[Any]:
    """Return the jobs of the large cluster, sorted by arrival."""
    from hscheduler.core.jobs import JobRequest
    from hscheduler.simulator import paper
    from hscheduler.simulator.workload import Arrival, SimulatedJob, qualities

    spec = paper.paper_spec("LR")
    job, container = spec.job_spec(), spec.cluster.container()
    speed = paper.MODEL.speed(job)
    fit = nodes * spec.cluster.vcores // (1 + job.workers + job.servers)
    gap_s = paper.TRIALS * speed.iteration_s(job.workers, job.servers) * job.iterations / fit
    draw, drawn = Random(f"sweeps:{seed}"), qualities(Random(f"qualities:{seed}"))
    found = []
    begins = Arrival(gap_s).times_s(draw)
    for sweep in range(-(-jobs // paper.TRIALS)):
        begin_s, times = next(begins), Arrival(paper.MEAN_GAP_S).times_s(draw)
        for number in range(paper.TRIALS):
            request = JobRequest(
                f"s{sweep}-{number}",
                f"s{sweep}",
                job.workers,
                job.servers,
                container,
                container,
                container,
                job.splits,
                job.partitions,
            )
            found.append(SimulatedJob(begin_s + next(times), request, job.iterations, speed, *next(drawn)))
    found.sort(key=lambda each: each.arrives_s)
    return found[:jobs]


def large(policy: str, nodes: int, jobs: int, seed: int) -> dict[str, Any]:
    """Simulate the large cluster in this process; return the cost and the result."""
    began_s, wall_s = time.process_time(), time.perf_counter()
    from hscheduler.core.jobs import Direction
    from hscheduler.policies import POLICIES
    from hscheduler.reports.report import report
    from hscheduler.simulator import paper
    from hscheduler.simulator.engine import Simulation
    from hscheduler.simulator.models import Costs
    from hscheduler.spec import ClusterSpec

    capacities = ClusterSpec(nodes=nodes).capacities()
    workload = sweeps_of(nodes, jobs, seed)
    simulation = Simulation(capacities, POLICIES[policy], workload, Costs(), threshold=paper.THRESHOLD)
    record = simulation.run()
    found = report(
        record,
        policy=policy,
        direction=Direction.MINIMIZE,
        losses=simulation.losses,
        points={},
        leaked=len(simulation.scheduler.ledger.all()),
    )
    took_s = time.process_time() - began_s
    return {
        "seconds": rounded(took_s),
        "wall_s": rounded(time.perf_counter() - wall_s),
        "peak_gib": rounded(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)),
        "events": simulation.num_events,
        "events_per_s": round(simulation.num_events / took_s),
        "decisions": len(record.decisions),
        "trials": len(found["trials"]),
        "leaked": found["resources"]["leaked"],
        "makespan_s": found["makespan_s"],
        "utilisation": found["utilisation"],
        "phases": {str(phase): number for phase, number in found["phases"].items()},
        "summary": found["summary"],
    }


def paper_sweeps(policy: str, seed: int) -> dict[str, Any]:
    """Simulate the paper's eight sweeps in this process."""
    began_s = time.process_time()
    from hscheduler.simulator.paper import MODEL, MODELS, paper_spec
    from hscheduler.simulator.run import simulate

    reports = [simulate(paper_spec(name, seed), policy, model=MODEL) for name in MODELS]
    return {
        "seconds": rounded(time.process_time() - began_s),
        "peak_gib": rounded(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)),
        "makespans_s": {name: report["makespan_s"] for name, report in zip(MODELS, reports, strict=True)},
    }


def _child(connection: Any, function: str, arguments: tuple[Any, ...]) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    connection.send(globals()[function](*arguments))
    connection.close()


def alone(function: str, *arguments: Any) -> dict[str, Any]:
    """Call a function of this file in a new process on one core; return its result."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(its, function, arguments))
    process.start()
    its.close()
    try:
        return dict(mine.recv())
    finally:
        process.join()


def bars(found: dict[str, dict[str, Any]], note: str) -> Iterator[Bar]:
    """Yield the bars for the large cluster."""
    for policy, result in found.items():
        yield Bar(f"{policy}, seconds", result["seconds"], MOST_S, at_least=False, note=note)
        yield Bar(f"{policy}, GiB", result["peak_gib"], MOST_GIB, at_least=False, note=note)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=positive, default=10_000)
    parser.add_argument("--jobs", type=positive, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", default=",".join(LARGE_POLICIES), help="policies for the large cluster")
    parser.add_argument("--quick", action="store_true", help="500 nodes, 5,000 jobs: check that it works")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    arguments = parser.parse_args(argv)
    nodes, jobs = (500, 5_000) if arguments.quick else (arguments.nodes, arguments.jobs)
    found = {}
    for policy in arguments.policies.split(","):
        found[policy] = alone("large", policy, nodes, jobs, arguments.seed)
        took_s, gib = found[policy]["seconds"], found[policy]["peak_gib"]
        say(f"{nodes} nodes, {jobs} jobs, {policy}: {took_s:.1f} s, {gib:.2f} GiB")
    small = {policy: alone("paper_sweeps", policy, arguments.seed) for policy in PAPER_POLICIES}
    judged = list(bars(found, f"{nodes} nodes, {jobs} jobs"))
    results = {"nodes": nodes, "jobs": jobs, "large": found, "paper": small}
    return conclude("simulator", results, judged, arguments.output, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
