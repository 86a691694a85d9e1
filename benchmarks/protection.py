"""Measure the cost of fault tolerance without faults: followers and checkpoints.

    python benchmarks/protection.py [--parameters 2] [--rounds 5] [--output out.json] [--quick]

A job of 2 workers and 2 servers spends 80 % of an iteration on computing.  It runs without followers and with them, in
turn.  The members count the bytes.  A second job, whose ten iterations last at least two seconds, runs without
checkpoints and with one every ten iterations.  JSON goes to standard output, a table to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# For the processes of the jobs, which import from this folder.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from benchmarks.bench_common import (  # noqa: E402
    Bar,
    end_in_order,
    exit_code,
    machine,
    new_file,
    positive,
    rounded,
    run_to_the_end,
    say,
    spread,
    write_json,
)
from benchmarks.resize import NUM_FEATURES, write_data  # noqa: E402
from benchmarks.scale_jobs import Ran, quiet_job, run_job  # noqa: E402

#: Share of an iteration that is spent on computing.
COMPUTING = 0.8
FOLLOWERS_BAR = 1.05
CHECKPOINTS_BAR = 1.03
#: Least duration of ten iterations of the job with checkpoints.
TEN_ITERATIONS_S = 2.2
EVERY = 10


def settings(data: Path, parameters: int, busy_s: float, iterations: int, **more: object) -> dict[str, object]:
    """Return the settings of one job."""
    return {
        "model": f"{ROOT / 'benchmarks' / 'big_model.py'}:BusyLinear",
        "model_options": json.dumps({"num_parameters": parameters, "busy_s": busy_s}),
        "intercept": False,
        "data": data,
        "format": "csv",
        "label_column": "last",
        "splits": 2,
        "partitions": 8,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "iterations": iterations,
        "workers": 2,
        "servers": 2,
        **more,
    }


class Bench:
    """Runs jobs in one EPS_HOME while the machine is quiet."""

    def __init__(self, home: Path, patience_s: float) -> None:
        self._home = home
        self._patience_s = patience_s
        self._count = 0

    def run(self, values: dict[str, object]) -> Ran:
        """Run one job."""

        def once() -> Ran:
            self._count += 1
            return run_job(self._home, f"job-{self._count}", values)

        return quiet_job(once, self._patience_s)


def median_s(ran: Ran) -> float:
    """Return the median time of an iteration."""
    return statistics.median(ran.iteration_s)


def server_bytes(ran: Ran) -> int:
    """Return the bytes that the servers sent."""
    return sum(member.bytes_out for member in ran.of_kind("S"))


def followers(bench: Bench, data: Path, parameters: int, rounds: int, iterations: int) -> tuple[dict[str, Any], Bar]:
    """Return the cost of followers for a job that computes for 80 % of an iteration."""
    bare = median_s(bench.run(settings(data, parameters, 0.0, iterations, followers=0)))
    busy_s = bare * COMPUTING / (1 - COMPUTING)
    say(f"an exchange takes {bare * 1e3:.1f} ms, so a gradient takes {busy_s * 1e3:.1f} ms")
    found: dict[int, list[Ran]] = {0: [], 1: []}
    for number in range(rounds):
        for count in (0, 1) if number % 2 else (1, 0):
            ran = bench.run(settings(data, parameters, busy_s, iterations, followers=count))
            found[count].append(ran)
            say(f"  {count} followers: {median_s(ran) * 1e3:.2f} ms")
    ratios = [median_s(b) / median_s(a) for a, b in zip(found[0], found[1], strict=True)]
    extra = [(server_bytes(b) - server_bytes(a)) / iterations for a, b in zip(found[0], found[1], strict=True)]
    bar = Bar("an iteration with followers, of one without", rounded(statistics.median(ratios)), FOLLOWERS_BAR, False)
    result = {
        "exchange_s": rounded(bare),
        "computing_s": rounded(busy_s),
        "computing_of_an_iteration": rounded(busy_s / statistics.median(map(median_s, found[0]))),
        "iteration_s": {str(count): spread([median_s(ran) for ran in runs]) for count, runs in found.items()},
        "ratio": spread(ratios),
        "bytes_per_iteration": spread(extra),
        "bytes_of_a_gradient": 4 * parameters,
        "bar": bar.as_dict(),
    }
    return result, bar


def checkpoints(bench: Bench, data: Path, parameters: int, rounds: int) -> tuple[dict[str, Any], Bar]:
    """Return the cost of a checkpoint every ten iterations."""
    busy_s = TEN_ITERATIONS_S / 10
    found: dict[str, list[Ran]] = {"": [], str(EVERY): []}
    iterations = 5 * EVERY + 5
    for number in range(rounds):
        for every in ("", str(EVERY)) if number % 2 else (str(EVERY), ""):
            more = {"checkpoint_every": every} if every else {}
            ran = bench.run(settings(data, parameters, busy_s, iterations, followers=0, **more))
            found[every].append(ran)
            say(f"  checkpoint every {every or 'never'}: {statistics.mean(ran.iteration_s) * 1e3:.1f} ms")
    # Means, because a checkpoint makes only some iterations longer.
    means = {every: [statistics.mean(ran.iteration_s) for ran in runs] for every, runs in found.items()}
    ratios = [b / a for a, b in zip(means[""], means[str(EVERY)], strict=True)]
    bar = Bar(
        "training with checkpoints, of training without", rounded(statistics.median(ratios)), CHECKPOINTS_BAR, False
    )
    result = {
        "every": EVERY,
        "iteration_s": {every or "never": spread(values) for every, values in means.items()},
        "ratio": spread(ratios),
        "bytes_of_a_checkpoint": 4 * parameters,
        "bar": bar.as_dict(),
    }
    return result, bar


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, with ``--quick`` 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=2.0, help="millions of parameters")
    parser.add_argument("--rounds", type=positive, default=5, help="rounds; each measures every case once")
    parser.add_argument(
        "--iterations", type=positive, default=80, help="iterations of the job with or without followers"
    )
    parser.add_argument("--patience-s", type=float, default=120.0, help="longest wait for a quiet machine")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    parser.add_argument("--quick", action="store_true", help="a small model, once: check that it works")
    args = parser.parse_args(argv)
    end_in_order()
    if args.quick:
        args.parameters, args.rounds, args.patience_s = 0.2, 1, 0.0
    parameters = round(args.parameters * 1e6 / NUM_FEATURES) * NUM_FEATURES
    with tempfile.TemporaryDirectory(prefix="eps-protection-") as folder:
        data = Path(folder) / "data.csv"
        write_data(data)
        bench = Bench(Path(folder) / "home", args.patience_s)
        following, follower_bar = followers(bench, data, parameters, args.rounds, args.iterations)
        writing, checkpoint_bar = checkpoints(bench, data, parameters, args.rounds)
    result = {"machine": machine(), "parameters": parameters, "followers": following, "checkpoints": writing}
    text = json.dumps(result, indent=1)
    print(text)
    for bar in (follower_bar, checkpoint_bar):
        say(bar.line())
    write_json(args.output, text)
    return exit_code((follower_bar, checkpoint_bar), args.quick)


if __name__ == "__main__":
    run_to_the_end(main)
