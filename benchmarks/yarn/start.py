"""Time to start a job on YARN and to add a worker, and the memory of its application master.

    eval "$(eps devcluster start)"
    python benchmarks/yarn/start.py [--repeats 5] [--output out.json] [--quick]

The cluster of HADOOP_CONF_DIR must run its containers on this machine, since the master's memory is read from /proc.  A
first job, which does not count, uploads EPS and the data to the cluster's file system.

``submit_s`` runs from the call that starts a job until its first iteration is complete.  ``worker_s`` runs from the
order for a worker until it has registered (the plan's phase "prepared"); one job repeats this.  ``master_mb`` is the
peak memory of the application master's process.  JSON goes to standard output, a table to standard error."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
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
from eps.cluster.devcluster.lifecycle import processes_with  # noqa: E402
from eps.cluster.yarn.application import Application  # noqa: E402
from eps.errors import ConfigError  # noqa: E402
from eps.job.client import Job  # noqa: E402

JOB: dict[str, Any] = {
    "on": "yarn", "data": "sklearn:digits", "model": "softmax", "workers": 1, "servers": 1, "iterations": 1_000_000,
    "memory_mb": "512",
}  # fmt: skip
#: YARN's own share of a start varies by a heartbeat, so shorter intervals gain nothing.
LOOK_S = 0.02


def first_iteration_s(name: str) -> float:
    """Return the seconds from the call that starts a job to its first complete iteration."""
    began_s = time.monotonic()
    with Job.start(**JOB, name=name) as job:
        wait_for_clock(job, 1)
        taken_s = time.monotonic() - began_s
        job.kill("measured")
    return taken_s


def wait_for_clock(job: Job, clock: int) -> None:
    """Wait until a job has completed ``clock`` iterations."""
    while job.status()["clock"] < clock:
        time.sleep(LOOK_S)


def master_mb(job: Job) -> float:
    """Return the peak memory of a job's application master."""
    application = Application.read(job.directory)
    assert application is not None
    number = application.application_id.removeprefix("application_")
    for pid in processes_with("environ", "CONTAINER_ID=container_"):
        folder = Path("/proc", str(pid))
        if b"eps.job.yarn.am" in folder.joinpath("cmdline").read_bytes() and number in folder.joinpath(
            "environ"
        ).read_text(errors="replace"):
            status = folder.joinpath("status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    raise ConfigError("the application master is not on this machine")


def measure(repeats: int) -> dict[str, Any]:
    """Return all measurements."""
    say("the first job, which uploads EPS and the data")
    first_s = first_iteration_s("bench-first")
    submits, workers = [], []
    for number in range(repeats):
        submits.append(first_iteration_s(f"bench-{number}"))
        say(f"submit to first iteration: {submits[-1]:.2f} s")
    with Job.start(**JOB, name="bench-grows") as job:
        wait_for_clock(job, 10)
        for _ in range(repeats):
            workers.append(job.add_workers(1)["seconds"]["prepared"])
            say(f"order for a worker to its registration: {workers[-1]:.2f} s")
            job.remove_workers(1)
        memory = master_mb(job)
        job.kill("measured")
    return {
        "first_submit_s": round(first_s, 3),
        "submit_s": spread(submits),
        "worker_s": spread(workers),
        "master_mb": round(memory, 1),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, but 0 with ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=5, help="measurements of each case")
    parser.add_argument("--quick", action="store_true", help="one measurement, to see whether it works")
    parser.add_argument("--output", type=new_file, help="write the JSON there as well")
    arguments = parser.parse_args(argv)
    end_in_order()
    results = measure(1 if arguments.quick else arguments.repeats)
    bars = [
        Bar("submit to first iteration, seconds", results["submit_s"]["median"], 8.0, at_least=False),
        Bar("worker asked for to registered, seconds", results["worker_s"]["median"], 3.0, at_least=False),
        Bar("application master, MB", results["master_mb"], 250.0, at_least=False),
    ]
    return conclude("yarn start", results, bars, arguments.output, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
