"""The validation metric of each point by iteration, recorded once: what the peers' emulated trials report.

    python -m benchmarks.sweeps.curves          # trains all points with EPS and writes curves.npz: six minutes

Every fourth iteration is kept, which includes all rungs.

EPS's own trials train the same model, and BSP makes its numbers independent of the size: they report the same values.
``--check`` trains some points again, at another size, and compares.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import eps
from benchmarks.bench_common import end_in_order, run_to_the_end, say
from benchmarks.sweeps.workload import MANY, METRIC, MODEL, PACES, points

FILE = Path(__file__).with_name("curves.npz")
#: Iterations from one recorded value to the next.
STRIDE = 4
#: Points that ``--check`` trains again.
CHECKED = (0, 13, 26, 80)


def train(point: dict[str, Any], iterations: int, **size: int) -> list[float]:
    """Return the metric of a point after every :data:`STRIDE` iterations."""
    report = eps.run(**MODEL, **point, **size, iterations=iterations, eval_every=1, followers=0)
    found = {entry["clock"]: entry[METRIC] for entry in report["history"] if METRIC in entry}
    return [float(found[clock]) for clock in range(STRIDE - 1, iterations, STRIDE)]


def load(path: Path = FILE) -> np.ndarray:
    """Return the metric: an array with a row for each point and a column for every fourth iteration."""
    with np.load(path) as found:
        values: np.ndarray = found[METRIC]
    return values


def reported(values: np.ndarray, trial: int, iteration: int) -> float:
    """Return what a trial reports when ``iteration`` iterations are complete: the metric of the last one."""
    return float(values[trial, iteration // STRIDE - 1])


def main(argv: Sequence[str] | None = None) -> int:
    """Record or check the curves; return 1 if a point differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="train some points at another size and compare")
    args = parser.parse_args(argv)
    end_in_order()
    iterations = max(pace.most for pace in PACES.values())
    with tempfile.TemporaryDirectory(prefix="eps-curves-") as home:
        os.environ["EPS_HOME"] = home
        if args.check:
            known, found = load(), points(MANY)
            wrong = [
                k
                for k in CHECKED
                if not np.array_equal(np.array(train(found[k], iterations, reliable=3), np.float32), known[k])
            ]
            say(f"differ: {wrong}" if wrong else f"{len(CHECKED)} points are the same with three containers")
            return bool(wrong)
        rows = []
        for number, point in enumerate(points(MANY), 1):
            rows.append(train(point, iterations, workers=1, servers=1))
            say(f"{number} of {MANY}: {point} {rows[-1][-1]:.4f}")
    np.savez_compressed(FILE, **{METRIC: np.array(rows, np.float32)})
    return 0


if __name__ == "__main__":
    run_to_the_end(main)
