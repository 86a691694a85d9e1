"""Measure the cost of larger jobs: messages, bytes and processor time of members, memory of servers, time to start.

    python benchmarks/scale.py [--only traffic,cpu,memory,reproducible,start] [--a9a DIR] [--output out.json]
        [--quick] [--largest]

``traffic`` and ``cpu`` compare a run with a longer one of the same job, so that start and end cancel out.  A formula
(``scale_predict.py``) predicts messages and bytes; the members count them.  All parts take four minutes on two quiet
cores.  ``--largest`` also trains 400 million parameters, in 12 GB; on a busy machine only its memory is meaningful.
JSON goes to standard output, a table to standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# For the processes of the jobs, which import from this folder.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks import scale_start  # noqa: E402
from benchmarks.bench_common import (  # noqa: E402
    Bar,
    end_in_order,
    exit_code,
    machine,
    new_file,
    picture_file,
    plotting,
    ratio,
    rounded,
    run_to_the_end,
    say,
    spread,
    write_json,
)
from benchmarks.peers_watch import adopt_orphans, end_descendants  # noqa: E402
from benchmarks.scale_jobs import Member, Ran, quiet_job, run_job  # noqa: E402
from benchmarks.scale_predict import Shape, Traffic, must_hold_bytes, predicted  # noqa: E402

PARTS = ("traffic", "cpu", "memory", "reproducible", "start")
SIZES = ((2, 1), (4, 2), (8, 4), (16, 8), (32, 16))
NUM_FEATURES, NUM_ROWS = 64, 256
#: For 32 workers and 16 servers.
SPLITS, PARTITIONS = 64, 32
CPU_PARTITIONS = 12
SMALL, MIDDLE, LARGE, LARGEST = 102_400, 10_240_000, 100_000_000, 400_000_000
ITERATIONS = (6, 18)
COUNTS = ("messages_out", "bytes_out", "messages_in", "bytes_in")
#: Tolerance of a prediction of bytes, which ignores the length of numbers in headers.
BYTES_TOLERANCE = 0.01
#: Tolerance of messages: a worker that pushes before it may start the next clock pulls in a separate message.
MESSAGES_TOLERANCE = 0.05
MEMORY_BAR, REPRODUCIBLE_BAR, START_BAR_S, LARGEST_BAR_GB = 1.2, 0.05, 1.5, 12.0


@dataclass(frozen=True)
class Bench:
    """The folder of the jobs, and how long to wait for a quiet machine."""

    home: Path
    data: Path
    patience_s: float
    quick: bool
    #: Folder of a9a.gz and a9a.t.gz, if given.
    a9a: Path | None

    def dense(self, parameters: int, **more: object) -> dict[str, object]:
        """Return the settings of a dense job."""
        return {
            "model": f"{ROOT / 'benchmarks' / 'big_model.py'}:TiledLinear",
            "model_options": json.dumps({"num_parameters": parameters}),
            "intercept": False,
            "data": self.data,
            "format": "csv",
            "label_column": "last",
            "optimizer": "sgd",
            # protection.py measures the cost of followers.
            "followers": 0,
            **more,
        }


def a9a_settings(folder: Path) -> dict[str, object]:
    """Return the settings of the README's job on a9a."""
    return {"data": folder / "a9a.gz", "test": folder / "a9a.t.gz", "features": 123, "model": "logistic"}


def write_data(path: Path) -> None:
    """Write a small regression data set: the size of the model does not depend on it."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((NUM_ROWS, NUM_FEATURES))
    target = features @ rng.standard_normal(NUM_FEATURES) / math.sqrt(NUM_FEATURES)
    np.savetxt(path, np.column_stack([features, target]), fmt="%.6f", delimiter=",")


def per_iteration(short: Ran, long: Ran, kind: str) -> dict[str, float]:
    """Return the average counts of a member of ``kind`` in an iteration."""
    iterations = long.report["clock"] - short.report["clock"]

    def total(ran: Ran, what: str) -> float:
        members: list[Member] = ran.of_kind(kind)
        return sum(getattr(member, what) for member in members) / len(members)

    return {what: rounded((total(long, what) - total(short, what)) / iterations) for what in (*COUNTS, "cpu_s")}


def pair_of_runs(bench: Bench, name: str, settings: dict[str, object]) -> tuple[Ran, Ran]:
    """Return a run of a job and a longer one."""
    short, long = (
        quiet_job(
            lambda count=count: run_job(bench.home, f"{name}-{count}", {**settings, "iterations": count}),
            0.0,
        )
        for count in ITERATIONS
    )
    return short, long


def traffic(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """Compare predicted messages and bytes with counted ones."""
    rows, bars = [], []
    for workers, servers in SIZES[:2] if bench.quick else SIZES:
        say(f"{workers} workers, {servers} servers")
        settings = bench.dense(SMALL, splits=SPLITS, partitions=PARTITIONS, workers=workers, servers=servers)
        short, long = pair_of_runs(bench, f"scale-{workers}x{servers}", settings)
        expected = predicted(Shape(SMALL, PARTITIONS, SPLITS, workers, servers))
        row: dict[str, Any] = {"workers": workers, "servers": servers}
        for kind, member, formula in (("W", "worker", expected[0]), ("S", "server", expected[1])):
            counted = per_iteration(short, long, kind)
            row[member] = {"predicted": _rounded(formula), "counted": counted}
            for what in ("messages", "bytes"):
                limit = MESSAGES_TOLERANCE if what == "messages" else BYTES_TOLERANCE
                off = max(
                    abs(counted[f"{what}_{way}"] / getattr(formula, f"{what}_{way}") - 1) for way in ("out", "in")
                )
                name = f"{workers}x{servers}, {what} of a {member}: counted off predicted by"
                bars.append(Bar(name, round(off, 5), limit, False))
        row["iteration_s"] = rounded(statistics.median(long.iteration_s))
        row["foreign_cores"] = rounded(long.foreign_cores)
        row["resent"] = long.report["ledger"]["duplicates_refused"]
        rows.append(row)
    return {"parameters": SMALL, "splits": SPLITS, "partitions": PARTITIONS, "sizes": rows}, bars


def _rounded(values: Traffic) -> dict[str, float]:
    return {what: rounded(getattr(values, what)) for what in COUNTS}


def cpu(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """Measure the processor time of members for each GB of pushes and pulls, including arithmetic."""
    rows, bars = [], []
    parameters = SMALL * 10 if bench.quick else MIDDLE
    for workers, servers, van in ((2, 1, "auto"), (2, 1, "tcp"), (4, 2, "auto")):
        say(f"processor time: {workers} workers, {servers} servers, van {van}")
        settings = bench.dense(
            parameters, splits=4, partitions=CPU_PARTITIONS, workers=workers, servers=servers, van=van
        )
        expected = predicted(Shape(parameters, CPU_PARTITIONS, 4, workers, servers))
        short, long = pair_of_runs(bench, f"cpu-{workers}x{servers}-{van}", settings)
        row: dict[str, Any] = {"workers": workers, "servers": servers, "van": van}
        for kind, member, formula in (("W", "worker", expected[0]), ("S", "server", expected[1])):
            counted = per_iteration(short, long, kind)
            row[member] = {"predicted": _rounded(formula), "counted": counted}
            gigabytes = (counted["bytes_out"] + counted["bytes_in"]) / 1e9
            row[f"cpu_s_per_gb_{member}"] = ratio(counted["cpu_s"], gigabytes, 3)
        row["iteration_s"] = rounded(statistics.median(long.iteration_s))
        row["foreign_cores"] = rounded(long.foreign_cores)
        off = row["worker"]["counted"]["messages_out"] / expected[0].messages_out - 1
        name = f"{workers}x{servers}, van {van}, {parameters / 1e6:g} M: messages of a worker off predicted by"
        bars.append(Bar(name, round(abs(off), 5), MESSAGES_TOLERANCE, False))
        rows.append(row)
    return {"parameters": parameters, "sizes": rows}, bars


def memory(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """Compare the memory of a server with the data that it must hold."""
    parameters = 10_000_000 if bench.quick else LARGE
    results: dict[str, Any] = {"parameters": parameters}
    bars = []
    for optimizer, slots in (("sgd", 0), ("momentum", 1)):
        say(f"memory: {parameters / 1e6:g} M parameters, {optimizer}")
        settings = bench.dense(parameters, optimizer=optimizer, workers=1, servers=1, splits=2, iterations=6)
        ran = run_job(bench.home, f"memory-{optimizer}", settings, memory=True)
        (server,), (worker,) = ran.logs_of("S"), ran.logs_of("W")
        own, pss, rss = ran.memory.peaks[server]
        hold = must_hold_bytes(parameters, slots)
        results[optimizer] = {
            "must_hold_bytes": hold,
            "server_peak_own_bytes": own,
            "server_peak_pss_bytes": pss,
            "server_peak_rss_bytes": rss,
            "worker_peak_pss_bytes": ran.memory.peaks[worker][1],
            "total_peak_pss_bytes": ran.memory.total_pss_bytes,
            "total_by_process_bytes": ran.memory.at_total,
        }
        note = f"Pss {pss / hold:.2f}; Rss {rss / hold:.2f}, with the worker's push, which lies in shared memory"
        name = f"memory of a server, {optimizer}: its own / must hold"
        bars.append(Bar(name, ratio(own, hold, 3), MEMORY_BAR, False, note))
    return results, bars


def largest(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """Train the largest supported model; return the memory of all processes together."""
    say(f"memory: {LARGEST / 1e6:g} M parameters")
    settings = bench.dense(LARGEST, workers=1, servers=1, splits=2, iterations=4)
    ran = run_job(bench.home, "largest", settings, memory=True)
    total = ran.memory.total_pss_bytes
    result = {
        "parameters": LARGEST,
        "total_peak_pss_bytes": total,
        "total_by_process_bytes": ran.memory.at_total,
        "peaks_bytes": {name: peak[1] for name, peak in ran.memory.peaks.items()},
        "completed_s": [entry["seconds"] for entry in ran.report["history"]],
        "loss": [entry["loss"] for entry in ran.report["history"]],
    }
    return result, [Bar("memory of all processes, 400 M parameters, GB", rounded(total / 1e9), LARGEST_BAR_GB, False)]


def reproducible(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """Compare iterations with reproducible sums and with plain ones."""
    jobs = {
        "dense, 1 M parameters": bench.dense(SMALL * 10, splits=4, workers=2, servers=1, iterations=80),
        "dense, 10 M parameters": bench.dense(MIDDLE, splits=4, workers=2, servers=1, iterations=24),
    }
    if bench.a9a is not None:
        jobs["a9a, logistic"] = {**a9a_settings(bench.a9a), "workers": 2, "servers": 1, "splits": 4, "iterations": 150}
    results: dict[str, Any] = {}
    bars = []
    for number, (name, settings) in enumerate(jobs.items()):
        say(f"reproducible: {name}")
        speeds: dict[bool, list[float]] = {True: [], False: []}
        foreign = []
        turns = 1 if bench.quick else 11
        for turn in range(turns):
            say(f"  turn {turn + 1} of {turns}")
            for choice in (True, False) if turn % 2 else (False, True):
                ran = quiet_job(
                    lambda name=f"same-{number}-{turn}-{choice}", choice=choice, settings=settings: run_job(
                        bench.home, name, {**settings, "reproducible": choice}
                    ),
                    bench.patience_s / 30,
                )
                speeds[choice].append(1 / statistics.median(ran.iteration_s))
                foreign.append(ran.foreign_cores)
        slower = statistics.median(1 - a / b for a, b in zip(speeds[True], speeds[False], strict=True))
        results[name] = {
            "iterations_per_s": spread(speeds[True]),
            "iterations_per_s_not_reproducible": spread(speeds[False]),
            "slower_by": rounded(slower),
            "foreign_cores": spread(foreign),
        }
        bars.append(Bar(f"reproducible, {name}: slower by", rounded(slower), REPRODUCIBLE_BAR, False))
    return results, bars


def start(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """Measure the time to the end of the first iteration on a9a."""
    if bench.a9a is None:
        return {"absent": "--a9a does not say where the data is"}, []
    say("start of eps run on a9a")
    settings = {**a9a_settings(bench.a9a), "iterations": 3}
    results = scale_start.measure(bench.home, settings, 2 if bench.quick else 5, bench.patience_s / 3)
    bars = [
        Bar(f"start on a9a, cache {kind}: s to the first iteration", results[kind]["first_iteration_s"]["median"],
            START_BAR_S, False)
        for kind in ("cold", "warm")
    ]  # fmt: skip
    return results, bars


def table(result: dict[str, Any], bars: Sequence[Bar]) -> str:
    """Return the results as a table."""
    lines = []
    if "traffic" in result:
        lines.append(f"\n{'size':>6} {'member':<7} {'messages/it':>11} {'predicted':>9} {'bytes out/it':>13} "
                     f"{'predicted':>13} {'bytes in/it':>13} {'CPU ms/it':>9} {'iteration ms':>12}")  # fmt: skip
        for row in result["traffic"]["sizes"]:
            for member in ("worker", "server"):
                counted, formula = row[member]["counted"], row[member]["predicted"]
                lines.append(
                    f"{row['workers']:>3}x{row['servers']:<2} {member:<7} {counted['messages_out']:>11g} "
                    f"{formula['messages_out']:>9g} {counted['bytes_out']:>13,.0f} {formula['bytes_out']:>13,.0f} "
                    f"{counted['bytes_in']:>13,.0f} {1e3 * counted['cpu_s']:>9.2f} {1e3 * row['iteration_s']:>12.1f}"
                )
    for row in result.get("cpu", {}).get("sizes", ()):
        lines.append(
            f"{row['workers']}x{row['servers']}, van {row['van']}: CPU s/GB worker {row['cpu_s_per_gb_worker']}, "
            f"server {row['cpu_s_per_gb_server']}; {1e3 * row['iteration_s']:.1f} ms an iteration"
        )
    for name in ("sgd", "momentum"):
        row = result.get("memory", {}).get(name)
        if row:
            lines.append(
                f"memory, {name}: server {row['server_peak_own_bytes'] / 1e9:.2f} GB (Rss "
                f"{row['server_peak_rss_bytes'] / 1e9:.2f}), must hold {row['must_hold_bytes'] / 1e9:.2f}, worker "
                f"{row['worker_peak_pss_bytes'] / 1e9:.2f}, all {row['total_peak_pss_bytes'] / 1e9:.2f}"
            )
    for name, row in result.get("reproducible", {}).items():
        fast, plain = row["iterations_per_s"], row["iterations_per_s_not_reproducible"]
        lines.append(f"{name}: {fast['median']:.1f} iterations/s, not reproducible {plain['median']:.1f}")
    for kind in ("cold", "warm"):
        row = result.get("start", {}).get(kind)
        if row:
            shown = ", ".join(f"{name} {1e3 * s:.0f}" for name, s in row["milestones_s"].items())
            lines.append(f"start, cache {kind} (ms after the shell): {shown}")
    for process, row in result.get("start", {}).get("imports", {}).items():
        shown = ", ".join(f"{name} {ms:.0f}" for name, ms in row["largest_ms"].items())
        lines.append(f"imports of {process}: {row['total_ms']:.0f} ms: {shown}")
    return "\n".join([*lines, "", *(bar.line() for bar in bars)])


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw messages and bytes of a worker and of a server over the size of the job."""
    rows = result.get("traffic", {}).get("sizes")
    if not rows:
        return
    pyplot = plotting()
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    names = [f"{row['workers']}x{row['servers']}" for row in rows]
    for axis, what, title in ((axes[0], "messages_out", "messages"), (axes[1], "bytes_out", "bytes")):
        for member in ("worker", "server"):
            axis.plot(names, [row[member]["predicted"][what] for row in rows], label=f"{member}, predicted")
            axis.plot(names, [row[member]["counted"][what] for row in rows], "x", label=f"{member}, counted")
        axis.set_title(f"{title} sent in an iteration")
        axis.set_xlabel("workers x servers")
        axis.set_ylabel(f"{title} (logarithmic)")
        axis.set_yscale("log")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure, joined by commas (default: all)")
    parser.add_argument("--patience", type=float, default=300.0, metavar="S", help="limit of all waits for quiet")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    parser.add_argument("--picture", type=picture_file, help="draw a picture (needs matplotlib)")
    parser.add_argument("--a9a", type=Path, help="folder of a9a.gz and a9a.t.gz; without it no start is measured")
    parser.add_argument("--keep", type=Path, help="keep jobs and logs in this folder")
    parser.add_argument("--quick", action="store_true", help="small and once: check that it works")
    parser.add_argument("--largest", action="store_true", help="also train 400 million parameters (12 GB)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, with ``--quick`` 0."""
    arguments = parse_arguments(argv)
    end_in_order()
    result: dict[str, Any] = {"machine": machine()}
    bars: list[Bar] = []
    parts = {"traffic": traffic, "cpu": cpu, "memory": memory, "reproducible": reproducible, "start": start}
    chosen = [part for part in arguments.only.split(",") if part]
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="eps-scale-") as scratch:
        home = arguments.keep.absolute() if arguments.keep else Path(scratch)
        home.mkdir(parents=True, exist_ok=True)
        write_data(home / "data.csv")
        patience_s = 0.0 if arguments.quick else arguments.patience
        bench = Bench(home, home / "data.csv", patience_s, arguments.quick, arguments.a9a)
        try:
            for part in chosen:
                result[part], found = parts[part](bench)
                bars += found
            if arguments.largest:
                result["largest"], found = largest(bench)
                bars += found
        finally:
            end_descendants()
    result["bars"] = [bar.as_dict() for bar in bars]
    text = json.dumps(result, indent=1)
    write_json(arguments.output, text)
    if arguments.picture:
        draw(result, arguments.picture)
    say(table(result, bars))
    print(text)
    return exit_code(bars, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
