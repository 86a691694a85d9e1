"""Replay a trace of preemptions against a real job: hosts come, are evicted with a warning, or fail without one.

    python -m benchmarks.tiers.replay TRACE.csv --output replay.json --picture replay.svg      # as root
    python -m benchmarks.tiers.replay TRACE.csv --quick                                        # to see whether it works

A line of the trace is ``MILLISECONDS,add|remove,NODE``, as in the traces of Bamboo (NSDI 2023).  Time is compressed,
and the number of transient hosts is scaled to those of this benchmark.  When the trace has fewer nodes, as many hosts
are evicted: they get a warning, and SIGKILL when it ends.  A share of them fails without a warning.  Hosts and model
are those of ``stages.py``.  The job chooses its stages.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import tempfile
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import eps
from benchmarks.bench_common import (
    conclude,
    end_in_order,
    new_file,
    parse_with_results,
    redrawn,
    rounded,
    run_to_the_end,
    say,
)
from benchmarks.recovery import Watched
from benchmarks.tiers.drawing import draw_replay
from benchmarks.tiers.hosts import Hosts
from benchmarks.tiers.jobs import Bench, Case, Network
from eps.errors import EpsError
from tools.chaos.evictor import announce

RELIABLE = 2
#: Interval of samples of the job's state, and the window of its throughput.
SAMPLE_S, WINDOW_S = 0.25, 2.0
#: Time from the warning until the host is lost.
WARNING_S = 2.0
#: Share of the evictions without a warning.
WITHOUT_WARNING = 0.15


@dataclass(frozen=True)
class Step:
    """A time at which the trace has another number of nodes."""

    at_s: float
    #: Transient hosts from then on.
    hosts: int


def steps_of(path: Path, most: int, speed: float, duration_s: float) -> list[Step]:
    """Return the numbers of hosts over time, of the first ``duration_s`` seconds.

    Raises
    ------
    ValueError
        A line is not as the module says.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(int(row[0]), row[1], row[2]) for row in csv.reader(file) if row]
    present: set[str] = set()
    counts: dict[float, int] = {}
    for at_ms, action, node in rows:
        if action not in ("add", "remove"):
            raise ValueError(f"{path}: action is {action!r}, but must be add or remove")
        (present.add if action == "add" else present.discard)(node)
        counts[(at_ms - rows[0][0]) / 1000 / speed] = len(present)
    largest = max(counts.values())
    found: list[Step] = []
    for at_s, number in sorted(counts.items()):
        hosts = round(number * most / largest)
        if at_s <= duration_s and (not found or found[-1].hosts != hosts):
            found.append(Step(at_s, hosts))
    return found


class Replay:
    """Applies a trace to a job.

    Parameters
    ----------
    job : Job
    steps : sequence of Step
    rng : Random
        Draws victims, and which of them get no warning.
    """

    def __init__(self, job: eps.Job, steps: Sequence[Step], rng: random.Random) -> None:
        self._job, self._steps, self._rng = job, steps, rng
        self.samples: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        #: Containers that were warned or killed.
        self._leaving: set[str] = set()

    def run(self, duration_s: float) -> None:
        """Apply all steps, and sample the job's state meanwhile."""
        began_s = time.monotonic()
        while (now_s := time.monotonic() - began_s) < duration_s:
            wanted = self._steps[bisect_right(self._steps, now_s, key=lambda step: step.at_s) - 1].hosts
            status = self._job.status()
            self._follow(status, wanted, now_s)
            self._sample(status, wanted, now_s)
            time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - began_s - now_s)))

    def _follow(self, status: dict[str, Any], wanted: int, now_s: float) -> None:
        """Evict or request hosts, so that the job gets as many as the trace has."""
        members = [m for m in status["members"] if m["tier"] == "transient" and m["container"] not in self._leaving]
        containers = sorted({m["container"] for m in members})
        pids = {m["container"]: m["pid"] for m in members if m["pid"]}
        less = len(containers) - wanted
        if less > 0:
            victims = self._rng.sample(containers, less)
            fails = self._rng.random() < WITHOUT_WARNING
            self._leaving.update(victims)
            self.events.append({"s": rounded(now_s), "kind": "fail" if fails else "evict", "hosts": less})
            if not fails:
                announce(self._job.directory.path, victims, WARNING_S)
            for container in victims if fails else ():
                if container in pids:
                    os.kill(pids[container], signal.SIGKILL)
        elif less < 0 and not status["plan"] and not status["queued"]:
            # A spot market grants new machines at any time; a job takes them up when it has no change in flight.
            try:
                self._job.scale(transient=-less, wait=False)
                self.events.append({"s": rounded(now_s), "kind": "join", "hosts": -less})
            except EpsError as error:
                say(f"  {now_s:.1f} s: transient=+{-less}: {error}")

    def _sample(self, status: dict[str, Any], wanted: int, now_s: float) -> None:
        stages, tiers = status["tiers"]["stages"], status["tiers"]
        last = stages[-1] if stages else {"reliable": 0, "transient": 0}
        self.samples.append(
            {
                "s": round(now_s, 2),
                "wanted": wanted + RELIABLE,
                "reliable": last["reliable"],
                "transient": last["transient"],
                "stage": tiers["stage"] or 0,
                "lag": tiers["lag"],
                "clock": status["clock"],
            }
        )


def with_throughput(samples: list[dict[str, Any]], completed_s: Sequence[float]) -> None:
    """Add the iterations per second around each sample, from the times at which clocks were completed."""
    for sample in samples:
        begin, end = (bisect_right(completed_s, sample["s"] + sign * WINDOW_S / 2) for sign in (-1, 1))
        sample["per_s"] = round((end - begin) / WINDOW_S, 2)


def measure(args: argparse.Namespace, network: Network, folder: Path) -> dict[str, Any]:
    """Replay the trace; return the results."""
    steps = steps_of(args.trace, network.hosts - RELIABLE, args.speed, args.seconds)
    with Hosts(network.hosts) as hosts, hosts.jobs():
        bench = Bench(hosts, network, folder)
        case = Case("replay", RELIABLE, steps[0].hosts, "auto", computing=0.25)
        bench.limit(case)
        with bench.start(case) as job:
            job.wait_until_trains()
            replay = Replay(job, steps, random.Random(args.seed))
            began_s = time.monotonic()
            replay.run(args.seconds)
            with_throughput(replay.samples, [at_s - began_s for at_s in Watched(job).completed_s()])
            status = job.status()
            job.kill_at_once()
    counts = {kind: sum(e["hosts"] for e in replay.events if e["kind"] == kind) for kind in ("join", "evict", "fail")}
    tiers = status["tiers"]
    return {
        "network": asdict(network),
        "trace": args.trace.name,
        "speed": args.speed,
        "summary": {
            "seconds": args.seconds,
            "clocks": status["clock"],
            "joined": counts["join"],
            "evicted": counts["evict"],
            "failed": counts["fail"],
            "rolled_back": tiers["rolled_back"],
            "largest_lag": tiers["largest_lag"],
            "stages": sorted({sample["stage"] for sample in replay.samples}),
            "evictions": status["evictions"],
        },
        "events": replay.events,
        "samples": replay.samples,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", help="the trace, as CSV")
    parser.add_argument("--speed", type=float, default=120.0, help="seconds of the trace in a second (default 120)")
    parser.add_argument("--seconds", type=float, default=150.0, help="duration of the replay")
    parser.add_argument("--seed", type=int, default=0, help="seed of the victims")
    args = parse_with_results(parser, argv, "six hosts, 20 seconds: check that it works", new_file)
    if redrawn(args, draw_replay):
        return 0
    if args.trace is None:
        parser.error("give the trace to replay")
    end_in_order()
    network = Network(mbit=150.0)
    if args.quick:
        args.seconds, args.speed, network = 20.0, 600.0, Network(hosts=6, mbit=300.0, rating_us=16.0)
    with tempfile.TemporaryDirectory(prefix="eps-replay-", ignore_cleanup_errors=True) as folder:
        os.environ["EPS_HOME"] = f"{folder}/home"
        found = measure(args, network, Path(folder))
    if args.picture:
        draw_replay(found, args.picture)
    return conclude("tiers/replay", found, [], args.output, args.quick)


if __name__ == "__main__":
    run_to_the_end(main)
