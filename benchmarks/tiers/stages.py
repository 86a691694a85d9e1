"""The stages of jobs on reliable and transient hosts, on links that are the bottleneck: Proteus Figs 11 to 16.

    python -m benchmarks.tiers.stages --output stages.json --picture stages.svg      # as root; 12 minutes
    python -m benchmarks.tiers.stages --hosts 32 --output throttled.json             # Fig. 13; 6 minutes
    python -m benchmarks.tiers.stages --quick                                        # to see whether it works

Hosts are network namespaces with limited links (``hosts.py``).  They share two processors, so computing is waiting
(``timed_mf.py``), and rates are so low that links are busy longer than processors; ``cores`` in the results says how
busy those were.  "All-reliable" is a job of as many reliable hosts, each with a worker and a server: the paper's
traditional parameter server.  No job has followers.

Repeats run all cases in turn; a ratio is one of two cases of the same repeat.  Only the first repeat has the jobs whose
controller chooses: it tries stages for many iterations.  ``--only`` chooses parts:

ratios      Figs 11, 12, 14: every stage, and the controller's choice, at ratios of transient to reliable hosts
throttled   Fig. 13: the reliable host's link has half the rate, so that 31 transient hosts load it as 63 would, with
            32 hosts: of 16 hosts the one without a worker would be missed
scaling     Fig. 15: 4, 8 and 16 hosts, in the stages of the paper; they compute twice as long, as the paper's is LDA
elasticity  Fig. 16: 12 hosts join 4, and are evicted
kills       SIGKILL of all transient containers at once
backups     the job of stage 2 with cuts, and with only the first one
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import eps
from benchmarks.bench_common import (
    Bar,
    conclude,
    end_in_order,
    new_file,
    parse_with_results,
    positive,
    redrawn,
    rounded,
    run_to_the_end,
    say,
    spread,
)
from benchmarks.peers_watch import wait_until_quiet
from benchmarks.recovery import Watched
from benchmarks.tiers.drawing import draw
from benchmarks.tiers.hosts import Hosts
from benchmarks.tiers.jobs import JOB_TIMEOUT_S, RANK, Bench, Case, Network, Ran, wait_for_clocks

PARTS = ("ratios", "throttled", "scaling", "elasticity", "kills", "backups")
#: Transient hosts for each reliable one.
RATIOS = (1, 3, 7, 15, 31)
#: With twice the hosts and four times the messages, processors are as busy if computing and links are slower.
NETWORKS = {32: Network(32, mbit=30.0, rating_us=320.0, splits=992, partitions=96)}
#: The paper's highest ratio.
HIGHEST = 63
ALL = "all-reliable"
#: Share of the hosts that are reliable in jobs that grow, shrink and fail.
FIRST = 4
#: Clocks of the join and the eviction, and the end.
JOIN, EVICT, END = 5, 16, 22
#: Computing times of jobs that lose most hosts, and of those of Fig. 15: the paper measured it with LDA.
LESS, MORE = 0.25, 2.0


def ratio_cases(hosts: int, ratios: Sequence[int]) -> list[Case]:
    """Return the jobs on all hosts, at every ratio, in every stage."""
    found = [Case(ALL, hosts, 0)]
    for number in ratios:
        reliable = hosts // (number + 1)
        for rule in ("1", "2", "3", "auto"):
            found.append(Case(named(number, rule), reliable, hosts - reliable, rule))
    return found


def named(number: int, rule: str) -> str:
    """Return the name of a job on all hosts."""
    return f"{number}:1 {rule if rule == 'auto' else f'stage {rule}'}"


def cases_of(parts: Iterable[str], hosts: int, ratios: Sequence[int]) -> list[Case]:
    """Return the jobs that only train."""
    every = {case.name: case for case in ratio_cases(hosts, ratios)}
    found = {name: case for name, case in every.items() if "ratios" in parts}
    high = ratios[-1]
    if "throttled" in parts:
        found[ALL] = every[ALL]
        for rule in ("2", "3", "auto"):
            case = replace(every[named(high, rule)], throttle=(high + 1) / (HIGHEST + 1))
            found[named(HIGHEST, rule)] = replace(case, name=named(HIGHEST, rule))
    if "scaling" in parts:
        few, some = hosts // 4, hosts // 2
        for case in (Case("", few, 0), Case("", some // 2, some // 2, "1"), every[named(high, "3")]):
            name = f"{case.total} hosts"
            found[name] = replace(case, name=name, computing=MORE)
    if "backups" in parts:
        name = named(ratios[-2], "2")
        found[name] = every[name]
        found[f"{name}, no cuts"] = replace(every[name], name=f"{name}, no cuts", cuts=False)
    return list(found.values())


# ---- jobs that grow, shrink and fail


def elasticity(bench: Bench, hosts: int) -> dict[str, Any]:
    """Return the iterations of a job that hosts join, and that then loses them with a warning."""
    first = hosts // FIRST
    at = [f"{JOIN}:scale=transient+{hosts - first}", f"{EVICT}:evict=all"]
    case = Case("elasticity", first, 0, "ratio", more={"at": at, "iterations": END})
    bench.limit(case)
    with bench.start(case) as job:
        report = job.wait(JOB_TIMEOUT_S)
    durations = [b - a for a, b in pairwise([0.0, *(entry["seconds"] for entry in report["history"])])]
    stages = report["tiers"]["stages"]
    joined = next(entry["clock"] for entry in stages if entry["transient"])
    left = next(entry["clock"] for entry in stages if entry["clock"] > joined and not entry["transient"])
    # Their processes are there, and their data comes.  Before, they start: on this machine beside those that train.
    began_s, ended_s = report["history"][JOIN - 1]["seconds"], report["changes"][0]["seconds"]
    prepared = next(k for k in range(JOIN, joined + 1) if sum(durations[:k]) >= began_s + ended_s["prepared"])
    # The first one starts the job, the last one only evaluates.
    few = statistics.median([*durations[2:JOIN], *durations[left + 2 : -1]])
    return {
        "iteration_s": [rounded(value) for value in durations],
        "joined_clock": joined,
        "left_clock": left,
        "stages": stages,
        "usual_s": rounded(few),
        "usual_joined_s": rounded(statistics.median(durations[joined + 2 : EVICT])),
        "starting": rounded(max(durations[JOIN:prepared], default=few) / few),
        "joining": rounded(max(durations[prepared:joined], default=few) / few),
        "evicting": rounded(max(durations[EVICT : left + 2]) / few),
        "ledger": report["ledger"],
    }


def kills(bench: Bench, hosts: int, repeats: int) -> list[dict[str, Any]]:
    """Kill all transient containers of a job several times; return the pauses."""
    first = hosts // FIRST
    found = []
    case = Case("kills", first, hosts - first, "2", computing=LESS)
    bench.limit(case)
    with bench.start(case) as job:
        job.wait_until_trains()
        watched = Watched(job)
        for number in range(repeats):
            wait_for_clocks(job, 6, case.rule)
            found.append(_kill(job, watched))
            say(f"  kill {number + 1}: {json.dumps(found[-1])}")
            if number + 1 < repeats:
                job.scale(transient=hosts - first)
        job.kill_at_once()
    return found


def _kill(job: eps.Job, watched: Watched) -> dict[str, Any]:
    before = job.status()
    pids = {member["pid"] for member in before["members"] if member["tier"] == "transient"}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    watched.hurt(before)
    wait_for_clocks(job, 5)
    after = [at_s for at_s in watched.completed_s() if at_s > killed_s]
    usual_s = statistics.median([b - a for a, b in pairwise(after[1:])])
    return {
        "killed": len(pids),
        "pause_s": rounded(after[0] - killed_s - usual_s),
        "next_s": rounded(after[0] - killed_s),
        "usual_s": rounded(usual_s),
        "rolled_back": job.status()["tiers"]["rolled_back"] - before["tiers"]["rolled_back"],
    }


# ---- results


def ratios_to(runs: Sequence[Mapping[str, Ran]], name: str, base: str) -> list[float]:
    """Return the time of an iteration in a case over that in another, of each repeat that has both."""
    return [repeat[name].iteration_s / repeat[base].iteration_s for repeat in runs if {name, base} <= repeat.keys()]


def bar_of(name: str, values: Sequence[float], limit: float, note: str = "", *, at_least: bool = False) -> list[Bar]:
    """Return a bar of the median, whose noise is twice the interquartile range; none without values."""
    if not values:
        return []
    noise = 2 * (statistics.quantiles(values, n=4, method="inclusive")[2] - _lower(values)) if len(values) > 1 else 0.0
    return [Bar(name, rounded(statistics.median(values)), limit, at_least, note, rounded(noise))]


def _lower(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0]


def train_bars(runs: Sequence[Mapping[str, Ran]], hosts: int, ratios: Sequence[int]) -> list[Bar]:
    """Return the bars of jobs that only train."""
    low, high = ratios[0], ratios[-1]
    found: list[Bar] = []
    for a, b in pairwise(ratios):
        slower = ratios_to(runs, named(b, "1"), named(a, "1"))
        found += bar_of(f"Fig. 11: stage 1, {b}:1 / {a}:1", slower, 1.0, at_least=True)
    found += bar_of(
        f"Fig. 12: stage 2 at {high}:1 / {ALL}", ratios_to(runs, named(high, "2"), ALL), 1.18, "the paper: 1.18"
    )
    found += bar_of(
        f"Fig. 13: stage 3 at {HIGHEST}:1 / {ALL}",
        ratios_to(runs, named(HIGHEST, "3"), ALL),
        1.05,
        f"the paper: 1.0; {hosts} hosts with one worker less are {1 / (hosts - 1):.1%} slower, the paper's 64 1.6 %",
    )
    found += bar_of(
        "Fig. 14: stage 3 / stage 2 at 1:1",
        ratios_to(runs, named(low, "3"), named(low, "2")),
        1.0,
        "the paper: stage 2 is best",
        at_least=True,
    )
    for number in (*ratios, HIGHEST):
        rules = [named(number, rule) for rule in ("1", "2", "3")]
        best = [min(repeat[rule].iteration_s for rule in rules if rule in repeat) for repeat in _with(runs, number)]
        ours = [repeat[named(number, "auto")].iteration_s for repeat in _with(runs, number)]
        over = [a / b for a, b in zip(ours, best, strict=True)]
        found += bar_of(f"the controller's choice at {number}:1 / the best stage", over, 1.05)
    for number in (hosts // 2, hosts):
        times = ratios_to(runs, f"{hosts // 4} hosts", f"{number} hosts")
        speed = [value * (hosts // 4) / number for value in times]
        found += bar_of(f"Fig. 15: {number} hosts, of ideal", speed, 0.85, at_least=True)
    name = named(ratios[-2], "2")
    found += bar_of(f"{name}: with cuts / without", ratios_to(runs, name, f"{name}, no cuts"), 1.05)
    return found


def _with(runs: Sequence[Mapping[str, Ran]], number: int) -> list[Mapping[str, Ran]]:
    return [repeat for repeat in runs if named(number, "auto") in repeat]


def change_bars(elastic: Sequence[Mapping[str, Any]], killed: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Return the bars of jobs that grow, shrink and fail."""
    return [
        *bar_of(
            "Fig. 16: the longest iteration while hosts join / a usual one",
            [found["joining"] for found in elastic],
            1.10,
            "the paper: no disruption",
        ),
        *bar_of(
            "Fig. 16: the longest iteration of the eviction / a usual one of the hosts that are left",
            [found["evicting"] for found in elastic],
            1.13,
            "the paper: 1.13",
        ),
        *bar_of(
            "SIGKILL of all transient containers: seconds until training goes on",
            [found["pause_s"] for found in killed],
            1.0,
        ),
    ]


def table(runs: Sequence[Mapping[str, Ran]]) -> str:
    """Return the jobs that only train as a table."""
    lines = [f"{'':18s} {'iteration s':>11s} {'of ' + ALL:>15s} {'stage':>5s} {'cores':>5s}"]
    for name in dict.fromkeys(name for repeat in runs for name in repeat):
        found = [repeat[name] for repeat in runs if name in repeat]
        over = ratios_to(runs, name, ALL)
        lines.append(
            f"{name:18s} {statistics.median(ran.iteration_s for ran in found):11.3f} "
            f"{f'{statistics.median(over):.3f}' if over else '-':>15s} "
            f"{found[-1].tiers['stage']:>5d} {statistics.median(ran.cores for ran in found):5.2f}"
        )
    return "\n".join(lines)


def measure(args: argparse.Namespace, network: Network, folder: Path) -> tuple[dict[str, Any], list[Bar]]:
    """Run all jobs; return the results and the bars."""
    ratios = [number for number in RATIOS if number < network.hosts]
    runs: list[dict[str, Ran]] = []
    elastic: list[dict[str, Any]] = []
    killed: list[dict[str, Any]] = []
    patience_s = args.patience_s
    with Hosts(network.hosts) as hosts, hosts.jobs():
        bench = Bench(hosts, network, folder)
        for number in range(args.repeats):
            # A controller that chooses tries stages, which takes long: once.
            cases = [c for c in cases_of(args.only, network.hosts, ratios) if c.rule != "auto" or number == 0]
            runs.append({})
            # The other way round each time, so that a drift of the machine's speed does not favour a case.
            for case in cases if number % 2 else reversed(cases):
                began_s = time.monotonic()
                wait_until_quiet(patience_s)
                patience_s -= time.monotonic() - began_s
                ran = runs[-1][case.name] = bench.run(case)
                say(f"  {number + 1} {case.name:18s} {ran.iteration_s:.3f} s, {ran.foreign_cores:.2f} foreign cores")
            if "elasticity" in args.only:
                elastic.append(elasticity(bench, network.hosts))
                say(f"  {number + 1} elasticity {elastic[-1]['joining']:.3f} {elastic[-1]['evicting']:.3f}")
        if "kills" in args.only:
            killed = kills(bench, network.hosts, args.repeats)
    say(table(runs))
    names = dict.fromkeys(name for repeat in runs for name in repeat)
    found: dict[str, Any] = {
        "network": {**asdict(network), "rank": RANK},
        "cases": {
            name: {
                "iteration_s": spread([repeat[name].iteration_s for repeat in runs if name in repeat]),
                **({"over_all": spread(over)} if (over := ratios_to(runs, name, ALL)) else {}),
                "runs": [repeat[name].as_dict() for repeat in runs if name in repeat],
            }
            for name in names
        },
        "elasticity": elastic,
        "kills": killed,
    }
    return found, train_bars(runs, network.hosts, ratios) + change_bars(elastic, killed)


def parts_of(text: str) -> list[str]:
    """Return the parts to run; an argument type for :mod:`argparse`."""
    found = text.split(",")
    if unknown := sorted(set(found) - set(PARTS)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} must be one of {', '.join(PARTS)}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, with ``--quick`` 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=parts_of, metavar="PART,...", help="parts to run")
    parser.add_argument("--repeats", type=positive, default=2, metavar="N", help="repeats of each job (default 2)")
    parser.add_argument("--patience-s", type=float, default=30.0, help="all waits for a quiet machine together")
    parser.add_argument("--hosts", type=int, choices=(4, 8, 16, 32), default=Network.hosts, help="number of hosts")
    args = parse_with_results(parser, argv, "four hosts, once: check that it works", new_file)
    if redrawn(args, draw):
        return 0
    end_in_order()
    args.only = args.only or [part for part in PARTS if (part == "throttled") == (args.hosts in NETWORKS)]
    network = NETWORKS.get(args.hosts, Network(hosts=args.hosts))
    if args.quick:
        args.repeats, args.patience_s, network = 1, 0.0, Network(hosts=4, mbit=300.0, rating_us=4.0)
    with tempfile.TemporaryDirectory(prefix="eps-tiers-", ignore_cleanup_errors=True) as folder:
        os.environ["EPS_HOME"] = f"{folder}/home"
        found, bars = measure(args, network, Path(folder))
    code = conclude("tiers/stages", found, bars, args.output, args.quick)
    if args.picture:
        draw(found, args.picture)
    return code


if __name__ == "__main__":
    run_to_the_end(main)
