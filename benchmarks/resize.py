"""Measure the pause of a running job that is resized, against stopping and restarting it at the new size.

    python benchmarks/resize.py [--sizes 1,10,100] [--repeats N] [--output out.json] [--picture out.png] [--quick]

For each size of the model, a job of 3 workers and 3 servers repeatedly adds and removes a server and a worker while it
trains.  Its report has the cost of each change.  Then the same job is exported, stopped and restarted with ``--init``
at each of the new sizes.  JSON goes to standard output, a table to standard error.

Restarts get every advantage: they begin exactly when a clock is complete, the next supervisor and job master are
already imported and forked, and the data set is prepared.  A restart is measured from the last complete clock of the
stopped job to the first of the new one, less one usual iteration.  All sizes take four minutes and 7 GB.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# For the processes of the jobs, which import from this folder.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.bench_common import (  # noqa: E402
    end_in_order,
    machine,
    parse_with_results,
    picture_file,
    plotting,
    positive,
    ratio,
    redrawn,
    rounded,
    run_to_the_end,
    say,
    spread,
    write_json,
)
from benchmarks.warm_job import WarmJob, prepare_data  # noqa: E402
from eps.core.progress import pause_and_slowdown  # noqa: E402
from eps.spec.job_spec import JobSpec  # noqa: E402

NUM_FEATURES = 64
NUM_ROWS = 48
MEMBERS = 3
SPLITS = 6
PARTITIONS = 12
#: Changes in this order, so that each starts from or ends at 3 workers and 3 servers.
OPERATIONS = ("add-servers", "remove-servers", "add-workers", "remove-workers")
#: Size after each change.
SIZES_AFTER = {"add-servers": (3, 4), "remove-servers": (3, 3), "add-workers": (4, 3), "remove-workers": (3, 3)}
RESTART_ITERATIONS = 3
#: With fewer quiet iterations than this, the usual time is that of all iterations.
MIN_QUIET = 8
JOB_TIMEOUT_S = 560.0


@dataclass(frozen=True)
class Scale:
    """The clocks of a job of one model size."""

    num_parameters: int
    repeats: int
    #: Clocks before the first change, and between one change and the next.
    gap_clocks: int

    @property
    def triggers(self) -> tuple[tuple[int, str], ...]:
        """(clock, operation) of every change."""
        return tuple((self.gap_clocks * (i + 1), OPERATIONS[i % 4]) for i in range(4 * self.repeats))

    @property
    def iterations(self) -> int:
        """Number of clocks to train."""
        return self.gap_clocks * (4 * self.repeats + 1)


def scale_of(millions: float, repeats: int | None, quick: bool) -> Scale:
    """Return the clocks of the job for a model of ``millions`` parameters."""
    num_parameters = round(millions * 1e6 / NUM_FEATURES) * NUM_FEATURES
    if quick:
        return Scale(num_parameters, repeats or 1, 12)
    if millions <= 2:
        return Scale(num_parameters, repeats or 5, 40)
    if millions <= 20:
        return Scale(num_parameters, repeats or 3, 24)
    return Scale(num_parameters, repeats or 1, 8)


def job_settings(scale: Scale, data: Path, optimizer: str) -> dict[str, Any]:
    """Return the settings of the job and its restarts."""
    return {
        "model": f"{ROOT / 'benchmarks' / 'big_model.py'}:TiledLinear",
        "model_options": json.dumps({"num_parameters": scale.num_parameters}),
        "intercept": False,
        "data": str(data),
        "format": "csv",
        "label_column": "last",
        "splits": SPLITS,
        "partitions": PARTITIONS,
        "optimizer": optimizer,
        "learning_rate": 0.1 if optimizer == "sgd" else 1e-4,
        "iterations": scale.iterations,
        "workers": MEMBERS,
        "servers": MEMBERS,
        # protection.py measures the cost of followers.
        "followers": 0,
    }


def write_data(path: Path) -> None:
    """Write a small regression data set: the size of the model does not depend on it."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((NUM_ROWS, NUM_FEATURES))
    target = features @ rng.standard_normal(NUM_FEATURES) / math.sqrt(NUM_FEATURES)
    np.savetxt(path, np.column_stack([features, target]), fmt="%.6f", delimiter=",")


@contextmanager
def warm_job(name: str) -> Iterator[WarmJob]:
    """A job that ends with the block."""
    job = WarmJob(name)
    try:
        yield job
    finally:
        job.close()


def measure(scale: Scale, data: Path, optimizer: str, restarts: bool) -> dict[str, Any]:
    """Run the job of one model size and its restarts; return the costs."""
    settings = job_settings(scale, data, optimizer)
    prepare_data(JobSpec.from_dict(settings))
    with warm_job("elastic") as job:
        first_restart = WarmJob("restart-0") if restarts else None
        say(f"{scale.num_parameters / 1e6:g} M parameters: {scale.iterations} iterations, {4 * scale.repeats} changes")
        job.go({**settings, "at": [f"{clock}:{operation}=1" for clock, operation in scale.triggers]})
        report = job.wait(JOB_TIMEOUT_S)
        result = _elastic_result(scale, report, job.peak_memory_bytes)
        if first_restart is not None:
            restarted = _restart(scale, settings, job, report, first_restart, result["iteration_s"]["p50"])
            for operation, values in restarted.items():
                entry = result["operations"][operation]
                entry["restart_s"] = spread([v["restart_s"] for v in values])
                entry["restart_phases_s"] = values
                entry["restart_over_pause"] = ratio(entry["restart_s"]["median"], entry["pause_s"]["median"])
                entry["restart_over_slowdown"] = ratio(entry["restart_s"]["median"], entry["slowdown_s"]["median"])
    return result


def _elastic_result(scale: Scale, report: dict[str, Any], peak_memory_bytes: int) -> dict[str, Any]:
    completed_s = [entry["seconds"] for entry in report["history"]]
    lives = [
        # A change of ``--at K`` is requested when clock K - 1 completes.
        (completed_s[clock - 1] + change["seconds"]["proposed"], completed_s[clock - 1] + change["seconds"]["released"])
        for (clock, _), change in zip(scale.triggers, report["changes"], strict=True)
    ]
    # The last two are the evaluation of the final parameters and the clock before it.
    quiet = [b - a for a, b in pairwise(completed_s[5:-1]) if all(b <= begin or a >= end for begin, end in lives)]
    if len(quiet) < MIN_QUIET:
        quiet = [b - a for a, b in pairwise(completed_s[5:-1])]
    result: dict[str, Any] = {
        "parameters": scale.num_parameters,
        "size_bytes": 4 * scale.num_parameters,
        "iterations": scale.iterations,
        "iteration_s": {
            "p50": rounded(statistics.median(quiet)),
            "p90": rounded(sorted(quiet)[int(0.9 * len(quiet))]),
            "max": rounded(max(quiet)),
            "count": len(quiet),
        },
        "peak_memory_bytes": peak_memory_bytes,
        "ledger": report["ledger"],
        "operations": {},
    }
    usual_s = result["iteration_s"]["p50"]
    for operation in OPERATIONS:
        chosen = [i for i, (_, name) in enumerate(scale.triggers) if name == operation]
        changes = [report["changes"][i] for i in chosen]
        lasted = [lives[i][1] - lives[i][0] for i in chosen]
        pause = spread([change["pause_s"] for change in changes])
        result["operations"][operation] = {
            "phases": sorted({change["phase"] for change in changes}),
            "pause_s": pause,
            "pause_iterations": ratio(pause["median"], usual_s),
            "slowdown_s": spread([change["slowdown_s"] for change in changes]),
            "completion_s": spread(lasted),
            "phases_s": changes[-1]["seconds"],
            "bytes_moved": changes[-1]["bytes_moved"],
            "quiet_pause_s": _quiet_pause(completed_s, lives, statistics.median(lasted)),
        }
    return result


def _quiet_pause(completed_s: list[float], lives: Sequence[tuple[float, float]], lasted_s: float) -> float | None:
    """Return the noise: the median ``pause_s`` of windows as long as a change, but without one."""
    found = []
    gaps = zip([0.0, *(end for _, end in lives)], [*(begin for begin, _ in lives), completed_s[-3]], strict=True)
    for begin, end in gaps:
        begin = max(begin, completed_s[5])
        while begin + lasted_s < end:
            found.append(pause_and_slowdown(completed_s, begin, begin + lasted_s)[0])
            begin += lasted_s
    return rounded(statistics.median(found)) if found else None


def _restart(
    scale: Scale, settings: dict[str, Any], old: WarmJob, report: dict[str, Any], new: WarmJob, usual_s: float
) -> dict[str, list[dict[str, float]]]:
    """Stop the job and restart it at each of the new sizes; ``new`` is already warm."""
    found: dict[str, list[dict[str, float]]] = {operation: [] for operation in OPERATIONS}
    ended_s = time.monotonic()
    count = 4 * scale.repeats
    stopped = old
    try:
        for i in range(count):
            operation = OPERATIONS[i % 4]
            workers, servers = SIZES_AFTER[operation]
            stop_s = stopped.started_s + report["history"][-1]["seconds"]
            # Not measured: reading the report and warming the next job.
            following = WarmJob(f"restart-{i + 1}") if i + 1 < count else None
            begin_s = time.monotonic()
            again = {**settings, "workers": workers, "servers": servers, "iterations": RESTART_ITERATIONS}
            new.go(again, stopped.job_dir.model)
            told_s = time.monotonic()
            if stopped is not old:
                stopped.close()
            report = new.wait(JOB_TIMEOUT_S)
            say(f"  restart {i + 1} of {count}")
            now_ended_s = time.monotonic()
            first_s = new.started_s + report["history"][0]["seconds"]
            phases = {
                "export_and_end_s": ended_s - stop_s,
                "prepare_s": told_s - begin_s,
                "start_and_first_iteration_s": first_s - told_s,
            }
            found[operation].append(
                {"restart_s": rounded(sum(phases.values()) - usual_s), **{k: rounded(v) for k, v in phases.items()}}
            )
            stopped, ended_s = new, now_ended_s
            if following is None:
                break
            new = following
    finally:
        new.close()
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the results as a table."""
    lines = [
        f"{'parameters':>11} {'operation':<15} {'iteration':>9} {'pause ms (range)':>24} {'pause/it':>8} "
        f"{'quiet':>7} {'slowdown':>9} {'completion':>10} {'restart':>9} {'restart/pause':>13}"
    ]
    for result in results:
        usual_ms = 1000 * result["iteration_s"]["p50"]
        for operation, entry in result["operations"].items():
            pause = entry["pause_s"]
            shown = f"{1000 * pause['median']:.1f} ({1000 * pause['min']:.1f} - {1000 * pause['max']:.1f})"
            restart = entry.get("restart_s")
            restart_ms = "-" if restart is None else f"{1000 * restart['median']:.0f}"
            lines.append(
                f"{result['parameters'] / 1e6:>9g} M {operation:<15} {usual_ms:>9.1f} {shown:>24} "
                f"{entry['pause_iterations'] or 0:>8.2f} {1000 * (entry['quiet_pause_s'] or math.nan):>7.1f} "
                f"{1000 * entry['slowdown_s']['median']:>9.1f} {1000 * entry['completion_s']['median']:>10.1f} "
                f"{restart_ms:>9} {entry.get('restart_over_pause') or math.inf:>13.1f}"
            )
    return "\n".join([*lines, "all times in ms; quiet: the same measure where nothing changed"])


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw medians and ranges of pauses and restarts, beside an iteration and the noise."""
    pyplot = plotting()
    figure, axes = pyplot.subplots(
        1, len(results), figsize=(4 * len(results) + 0.5, 4.5), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, result in zip(axes[0], results, strict=True):
        entries = result["operations"]
        places = np.arange(len(entries))
        for shift, key, label in ((-0.15, "pause_s", "pause"), (0.15, "restart_s", "stop and restart")):
            found = [entry[key] for entry in entries.values() if key in entry]
            if len(found) == len(entries):
                middle = np.array([1e3 * f["median"] for f in found])
                reach = [middle - [1e3 * f["min"] for f in found], [1e3 * f["max"] for f in found] - middle]
                axis.errorbar(places + shift, middle, reach, fmt="o", capsize=4, label=label)
        quiet = [1e3 * (entry["quiet_pause_s"] or math.nan) for entry in entries.values()]
        axis.plot(places - 0.15, quiet, "_", color="0.5", markersize=14, label="the same measure, nothing changed")
        axis.axhline(1e3 * result["iteration_s"]["p50"], color="gray", linestyle="--", label="one iteration")
        axis.set_xticks(places, list(entries), rotation=30, ha="right")
        axis.set_title(f"{result['parameters'] / 1e6:g} M parameters")
        axis.set_yscale("log")
    axes[0][0].set_ylabel("ms, medians and ranges (logarithmic)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,10,100", metavar="M,...", help="million parameters, joined by commas")
    parser.add_argument("--repeats", type=positive, default=None, help="times each operation is measured")
    parser.add_argument("--optimizer", default="sgd", help="optimizer; its slots move with the partitions")
    parser.add_argument("--no-restarts", action="store_true", help="leave stop-and-restart out")
    parser.add_argument("--keep", type=Path, help="keep jobs and logs in this folder")
    return parse_with_results(parser, argv, "1 million parameters once: check that it works", picture_file)


def summary(results: Sequence[dict[str, Any]], optimizer: str) -> dict[str, Any]:
    """Return the results with a description of the machine."""
    return {
        "machine": machine(),
        "job": {
            "workers": MEMBERS,
            "servers": MEMBERS,
            "splits": SPLITS,
            "partitions": PARTITIONS,
            "optimizer": optimizer,
            "consistency": "bsp",
        },
        "results": list(results),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    arguments = parse_arguments(argv)
    if redrawn(arguments, lambda found, path: draw(found["results"], path)):
        return 0
    end_in_order()
    sizes = [1.0] if arguments.quick else [float(text) for text in arguments.sizes.split(",")]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="eps-resize-") as scratch:
        home = arguments.keep.absolute() if arguments.keep else Path(scratch)
        home.mkdir(parents=True, exist_ok=True)
        os.environ["EPS_HOME"] = str(home)
        data = home / "data.csv"
        write_data(data)
        for millions in sizes:
            scale = scale_of(millions, arguments.repeats, arguments.quick)
            results.append(measure(scale, data, arguments.optimizer, not arguments.no_restarts))
            say(table(results[-1:]))
            if arguments.output:
                # After each size, because the larger ones take long.
                write_json(arguments.output, json.dumps(summary(results, arguments.optimizer), indent=1))
    text = json.dumps(summary(results, arguments.optimizer), indent=1)
    if arguments.picture:
        draw(results, arguments.picture)
    if len(results) > 1:
        say(table(results))
    print(text)
    return 0


if __name__ == "__main__":
    run_to_the_end(main)
