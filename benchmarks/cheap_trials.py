"""What a trial of a sweep costs beyond its training: processor time and time until it trains.

    python -m benchmarks.cheap_trials --output cheap_trials.json      # two minutes

A sweep of 20 trials of logistic regression on a9a, each with 100 passes over the data in one container, is compared
with 20 fits of scikit-learn's ``LogisticRegression`` (saga) of as many passes in one process.  Everything that the
sweep used counts: the command itself, its scheduler, the reading of the data, all processes of all trials.

What a start costs comes from sweeps of trials with one iteration, one at a time: 21 trials against one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.bench_common import Bar, conclude, end_in_order, new_file, positive, ratio, run_to_the_end, say, spread
from benchmarks.peers_watch import RunError, adopt_orphans, wait_until_quiet

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "sparse_binary" / "a9a" / "a9a.gz"
TRIALS, PASSES, QUICK_TRIALS = 20, 100, 2
#: Most seconds of a sweep.
DEADLINE_S = 600.0
PATIENCE_S = 10.0
MOST_OF_FITS, MOST_START_CPU_S, MOST_START_S = 3.0, 0.3, 0.3

_PROGRAM = "import sys; from hscheduler.cli import main; sys.exit(main())"
_SPEC = """\
[cluster]
nodes = 1
vcores = {cores}
memory = "8GiB"
[sweep]
trials = {trials}
algorithm = "random"
arrival = "burst"
metric = "loss"
seed = 1
[space]
learning_rate = {{ loguniform = [1e-3, 1.0] }}
[job]
data = "{data}"
model = "logistic"
reliable = 1
iterations = {iterations}
"""


def run_sweep(data: Path, trials: int, iterations: int, cores: int) -> tuple[float, Mapping[str, Any]]:
    """Run a sweep; return the processor seconds of all its processes, and its report."""
    with tempfile.TemporaryDirectory(prefix="ct", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        text = _SPEC.format(cores=cores, trials=trials, iterations=iterations, data=data)
        (folder / "spec.toml").write_text(text, encoding="utf-8")
        command = [sys.executable, "-c", _PROGRAM, "sweep", "spec.toml", "--plain", "--report", "report.json"]
        before = _children_s()
        found = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "EPS_HOME": f"{name}/home"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        _wait_for_orphans()
        if found.returncode:
            raise RunError(f"the sweep ended with {found.returncode}: {found.stderr.strip()[-400:]}")
        return _children_s() - before, json.loads((folder / "report.json").read_text(encoding="utf-8"))


def _wait_for_orphans() -> None:
    """Wait until the processes that a sweep left to this one have ended."""
    deadline = time.monotonic() + DEADLINE_S
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fit_all(data: Path, number: int) -> float:
    """Return the processor seconds of as many fits of scikit-learn, with the reading of the data."""
    from sklearn.datasets import load_svmlight_file
    from sklearn.linear_model import LogisticRegression

    began_s = time.process_time()
    rows, labels = load_svmlight_file(str(data))
    rows.indices, rows.indptr = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
    with warnings.catch_warnings():
        # It does not converge within the passes, and is not to.
        warnings.simplefilter("ignore")
        for strength in np.logspace(-2, 2, number):
            LogisticRegression(solver="saga", max_iter=PASSES, tol=1e-12, C=strength).fit(rows, labels)
    return time.process_time() - began_s


def measure(data: Path, trials: int, repeats: int) -> dict[str, Any]:
    """Return the measurements of all repeats."""
    found: dict[str, list[float]] = {name: [] for name in ("sweep_cpu_s", "fits_cpu_s", "start_cpu_s", "start_s")}
    for repeat in range(repeats):
        wait_until_quiet(PATIENCE_S)
        found["sweep_cpu_s"].append(run_sweep(data, trials, PASSES, 2)[0])
        found["fits_cpu_s"].append(fit_all(data, trials))
        many_s, report = run_sweep(data, trials + 1, 1, 1)
        one_s, _ = run_sweep(data, 1, 1, 1)
        found["start_cpu_s"].append((many_s - one_s) / trials)
        # The first trial waits for the imports of all.
        starts = [trial["first_iteration_s"] - trial["started_s"] for trial in report["trials"][1:]]
        found["start_s"].append(median(starts))
        say(f"  {repeat + 1} " + ", ".join(f"{name} {values[-1]:.3g}" for name, values in found.items()))
    return {name: spread(values) for name, values in found.items()}


def bars(found: Mapping[str, Any]) -> list[Bar]:
    """Return the bars of the measurements."""
    sweep_s, fits_s = found["sweep_cpu_s"]["median"], found["fits_cpu_s"]["median"]
    return [
        Bar(
            "processor time of a sweep / as many fits by scikit-learn",
            ratio(sweep_s, fits_s),
            MOST_OF_FITS,
            False,
        ),
        Bar("processor seconds of a trial with one iteration", found["start_cpu_s"]["median"], MOST_START_CPU_S, False),
        Bar("seconds until a trial's first iteration is complete", found["start_s"]["median"], MOST_START_S, False),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, with ``--quick`` 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="a9a.gz (default: the copy beside the project)")
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="repeats (default 3)")
    parser.add_argument("--output", type=new_file, help="write the JSON to this file")
    parser.add_argument("--quick", action="store_true", help="two trials, once: check that it works")
    args = parser.parse_args(argv)
    if not args.data.is_file():
        parser.error(f"{args.data} is not there: give --data the path of a9a.gz (LIBSVM's binary datasets)")
    end_in_order()
    adopt_orphans()
    try:
        found = measure(args.data.resolve(), QUICK_TRIALS if args.quick else TRIALS, 1 if args.quick else args.repeats)
    except RunError as error:
        say(f"cheap_trials: {error}")
        return 2
    return conclude("cheap_trials", found, bars(found), args.output, args.quick)


if __name__ == "__main__":
    run_to_the_end(main)
