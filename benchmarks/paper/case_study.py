"""The case study of EPS §2.3 (Table 1, Figs 2 and 3): a job holds the whole cluster when a second one arrives.

    python -m benchmarks.paper.case_study --output case_study.json     # real jobs, some three minutes

Three nodes run a worker and a server each; a fourth node runs the masters.  The first job holds all three.  The second
requests one worker and one server.  Its user stops it at its early feedback, so it has 100 iterations.  Real jobs train
logistic regression on scikit-learn's breast_cancer, and sleep in each iteration.  They are about 50 times as fast as
the paper's, whose first job takes 1735 s.  ``kill-declared`` has the restart time that the paper's times imply, divided
by the same factor.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench_common import end_in_order, machine, new_file, say
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, JobRequest
from hscheduler.core.resources import Resources
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.policies import POLICIES
from hscheduler.reports.report import report
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import SpeedModel
from hscheduler.simulator.paper import FIXED_S, ITERATIONS, PAPERS
from hscheduler.simulator.workload import SimulatedJob

#: Name -> policy.
RUNS = {"static": "static", "kill": "kill", "kill-declared": "kill", "elastic": "elastic"}
MEMBER = Resources(1, 4096)
MASTER = Resources(0, 256)
#: A node for masters, too small for a worker; and three of a worker and a server.
NODES = {"master": Resources(0, 1024), **{f"node-{k}": Resources(2, 8192) for k in (1, 2, 3)}}
FEEDBACK_ITERATION = 100
OPENED = e.SweepOpened("sweep", Direction.MINIMIZE, 1)
#: First job and second: workers and servers, iterations, whether it is good.
JOBS = {"job-1": (3, ITERATIONS), "job-2": (1, FEEDBACK_ITERATION)}
ARRIVES_S = {"job-1": 0.0, "job-2": 600.0}

#: What three members share of an iteration in the paper, seconds (see hscheduler/simulator/paper.py).
SHARED_S = 1.845
SPLITS = 6
#: Speed of the real jobs over that of the paper's.
FASTER = 50.0
RESTART_S = 370.0 / FASTER


def request_of(name: str) -> JobRequest:
    """Return the request of a job; it may not grow beyond it."""
    members, _ = JOBS[name]
    return JobRequest(name, "sweep", members, members, MEMBER, MEMBER, MASTER, members, members)


def simulated() -> dict[str, dict[str, Any]]:
    """Return the reports of the three approaches, simulated with the times that the paper's text implies."""
    speed = SpeedModel(SPLITS, SHARED_S / SPLITS, FIXED_S)
    found = {}
    for name in ("static", "kill", "elastic"):
        jobs = [
            SimulatedJob(ARRIVES_S[job], request_of(job), iterations, speed, quality, quality)
            for (job, (_, iterations)), quality in zip(JOBS.items(), (0.2, 0.9), strict=True)
        ]
        simulation = Simulation(NODES, POLICIES[name], jobs, PAPERS, FEEDBACK_ITERATION, [OPENED])
        record = simulation.run()
        found[name] = report(
            record, policy=name, direction=Direction.MINIMIZE, losses=simulation.losses, points={}, leaked=0
        )
    return found


def run(name: str, home: str) -> dict[str, Any]:
    """Run the two jobs for real under an approach; return the report."""
    os.environ["EPS_HOME"] = home
    settings = LiveSettings(
        RUNS[name], feedback_iteration=FEEDBACK_ITERATION, restart_s=RESTART_S if name == "kill-declared" else 0.0
    )
    submissions = []
    with LiveScheduler(NODES, settings) as scheduler:
        scheduler.open_sweep(OPENED)
        for (job, (members, iterations)), rate in zip(JOBS.items(), (0.1, 1e-4), strict=True):
            spec = JobSpec(
                data="sklearn:breast_cancer",
                model="logistic",
                normalize="standard",
                learning_rate=rate,
                workers=members,
                servers=members,
                splits=SPLITS,
                partitions=SPLITS,
                iterations=iterations,
                stretch_s=(SHARED_S / SPLITS + FIXED_S / 2) / FASTER,
            )
            left_s = ARRIVES_S[job] / FASTER - scheduler.now_s()
            if submissions and left_s > 0:
                # The first is far from its end then.
                submissions[0].wait(left_s)
            submissions.append(scheduler.submit(e.JobSubmitted(request_of(job)), spec))
        for submission in submissions:
            scheduler.wait(submission, 300.0)
        record, leaked = scheduler.ask(lambda: (scheduler.registry.timeline.snapshot(), scheduler.leaked()))
        losses = {each.job_id: each.loss for each in submissions if each.loss is not None}
    return report(record, policy=name, direction=Direction.MINIMIZE, losses=losses, points={}, leaked=leaked)


def first_and_second(found: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the trials of a report."""
    by_name = {trial["job_id"]: trial for trial in found["trials"]}
    return by_name["job-1"], by_name["job-2"]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=new_file, metavar="FILE", help="write the reports here too, after each")
    args = parser.parse_args()
    end_in_order()
    found: dict[str, Any] = {"kind": "real", "machine": machine(), "faster": FASTER, "reports": {}}
    for name in RUNS:
        with tempfile.TemporaryDirectory(prefix="eps-paper-") as home:
            found["reports"][name] = run(name, home)
        first, second = first_and_second(found["reports"][name])
        for trial in (first, second):
            if trial["phase"] == "failed":
                say(f"{name}: {trial['job_id']} failed: {trial['why']}")
                return 1
        say(
            f"{name:14} job 1: feedback {first['early_feedback_s']:.1f} s, end {first['finished_s']:.1f} s; "
            f"job 2: waited {second['started_s'] - second['arrived_s']:.2f} s, "
            f"feedback after {second['early_feedback_s']:.2f} s"
        )
        if args.output:
            write_json_atomic(Path(args.output), found, mode=PUBLIC_MODE)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
