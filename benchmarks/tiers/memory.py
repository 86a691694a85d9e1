"""The memory of the copies for cuts: reliable and transient containers in stage 1 and in stage 2.

    python -m benchmarks.tiers.memory --output memory.json

A local job of one reliable and two transient containers, each process with a worker and a server, trains a perceptron
with Adagrad.  ``state_mb`` is the size of all parameters and slots.  Memory is private and shared memory of a process
(PSS), in which parameters that are sent through shared memory count once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import eps
from benchmarks.bench_common import end_in_order, new_file

FEATURES, CLASSES, HIDDEN = 200, 10, 3_000
ROWS, BATCH = 2_000, 60
#: Adagrad keeps one slot for each parameter.
STATE_MB = 2 * 4 * (FEATURES * HIDDEN + HIDDEN * HIDDEN + HIDDEN * CLASSES + 2 * HIDDEN + CLASSES) / 1e6
SETTLED_S, READINGS = 12.0, 24


def memory_mb(pid: int) -> float:
    """Return the proportional memory of a process in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def measured(data: Path, rule: str) -> dict[str, Any]:
    """Return the largest and the median memory of each container in a stage, in MB."""
    job = eps.Job.start(
        data=str(data), model="dnn", hidden=f"{HIDDEN},{HIDDEN}", optimizer="adagrad", batch_size=BATCH,
        iterations=100_000, reliable=1, transient=2, stage_rule=rule, eval_every=100_000, splits=6,
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + 120
        while True:
            status = job.status()
            tiers = status.get("tiers", {})
            if tiers.get("stage") == int(rule) and status["clock"] > 3 and (rule == "1" or tiers["cuts"] > 2):
                break
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"stage {rule} was not reached: {tiers}")
            time.sleep(0.5)
        found: dict[str, list[float]] = {}
        for _ in range(READINGS):
            time.sleep(SETTLED_S / READINGS)
            for member in job.status()["members"]:
                if member["role"] == "server":
                    name = f"{member['tier']}, {member['server_tier'] or 'no server'}"
                    found.setdefault(name, []).append(memory_mb(member["pid"]))
        cuts = job.status()["tiers"]["cuts"]
    finally:
        job.kill()
    rows = {name: {"median_mb": statistics.median(v), "largest_mb": max(v)} for name, v in sorted(found.items())}
    return {"containers": rows, "cuts": cuts}


def main() -> None:
    """Measure both stages and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", help="file for the JSON")
    options = parser.parse_args()
    end_in_order()
    with TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        data = Path(folder) / "rows.npz"
        rows = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
        np.savez(data, X=rows, y=rng.integers(0, CLASSES, ROWS))
        stages = {rule: measured(data, rule) for rule in ("1", "2")}
    result = {"benchmark": "tiers/memory", "state_mb": round(STATE_MB, 1), "stages": stages}
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        new_file(options.output).write_text(text + "\n")


if __name__ == "__main__":
    main()
