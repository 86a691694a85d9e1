"""Measure the bytes that the options for smaller messages save, and their effect on time and loss.

    python benchmarks/lean.py
    python benchmarks/lean.py --quick
    python benchmarks/lean.py --output lean.json

One job of 2 workers and 2 servers over TCP trains on sparse rows in small batches, so that an iteration changes few
values.  It runs once for each setting, interleaved over rounds.  The members count the bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from benchmarks.bench_common import (  # noqa: E402
    end_in_order,
    machine,
    new_file,
    positive,
    ratio,
    run_to_the_end,
    say,
    spread,
    write_json,
)
from benchmarks.scale_jobs import Ran, quiet_job, run_job  # noqa: E402

ROWS, FEATURES, NONZEROS = 20_000, 400_000, 15
#: Name -> settings; all are compared with the first.
VARIANTS: dict[str, dict[str, object]] = {
    "all keys": {"push": "dense"},
    "keys that are touched": {"push": "auto"},
    "changes only": {"push": "changes"},
    "not reproducible": {"push": "auto", "reproducible": False},
    "not reproducible, float16": {"push": "auto", "reproducible": False, "wire": "float16"},
}


def write_data(folder: Path, seed: int = 7) -> dict[str, object]:
    """Write rows whose features follow a power law, in the order of their frequency; return the job's settings."""
    rng = np.random.default_rng(seed)
    columns = np.minimum((rng.pareto(0.7, (ROWS, NONZEROS)) * 20).astype(np.int64), FEATURES - 1)
    X = scipy.sparse.csr_matrix(
        (np.ones(ROWS * NONZEROS, np.float32), columns.ravel(), np.arange(0, ROWS * NONZEROS + 1, NONZEROS)),
        shape=(ROWS, FEATURES),
    )
    X.sum_duplicates()
    weights = rng.normal(size=FEATURES).astype(np.float32)
    np.save(folder / "y.npy", (X @ weights > 0).astype(np.int32))
    scipy.sparse.save_npz(folder / "X.npz", X, compressed=False)
    return {"data": folder / "X.npz", "labels": folder / "y.npy", "features": FEATURES}


def settings_of(variant: dict[str, object], data: dict[str, object], iterations: int) -> dict[str, object]:
    """Return the settings of one job."""
    return {
        **data,
        "model": "logistic",
        "optimizer": "sgd",
        "learning_rate": 1.0,
        "batch_size": 64,
        "iterations": iterations,
        "splits": 4,
        "partitions": 32,
        "workers": 2,
        "servers": 2,
        "followers": 0,
        "van": "tcp",
        **variant,
    }


def measure(rounds: int, iterations: int, patience_s: float) -> dict[str, Any]:
    """Return for each setting the bytes sent, the time of an iteration, and the final loss."""
    found: dict[str, list[Ran]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="eps-lean-") as folder:
        data = write_data(Path(folder))
        for round_ in range(rounds):
            for name, variant in VARIANTS.items():
                say(f"round {round_ + 1} of {rounds}: {name}")
                job = f"lean-{round_}-{list(VARIANTS).index(name)}"
                settings = settings_of(variant, data, iterations)
                found[name].append(quiet_job(lambda s=settings, j=job: run_job(Path(folder), j, s), patience_s, 1))
    base = next(iter(VARIANTS))
    return {name: _entry(runs, found[base], iterations) for name, runs in found.items()}


def _entry(runs: Sequence[Ran], base: Sequence[Ran], iterations: int) -> dict[str, Any]:
    sent = _bytes(runs[0]) / iterations
    iteration_s = [statistics.median(ran.iteration_s) for ran in runs]
    digests = {ran.report["model_sha256"] for ran in runs}
    return {
        "bytes_per_iteration": round(sent),
        "bytes_of_all_keys": ratio(sent, _bytes(base[0]) / iterations, 4),
        "iteration_s": spread(iteration_s),
        "train_loss": runs[0].report["metrics"]["train_loss"],
        "same_bits_in_every_round": len(digests) == 1,
        "same_model_as_all_keys": digests == {ran.report["model_sha256"] for ran in base},
        "foreign_cores": [round(ran.foreign_cores, 2) for ran in runs],
    }


def _bytes(ran: Ran) -> int:
    return sum(member.bytes_out + member.bytes_in for member in ran.of_kind("W"))


def table(results: dict[str, Any]) -> str:
    """Return the results as a table."""
    lines = [f"{'':34} {'KB/iteration':>12} {'of all':>8} {'ms':>7} {'loss':>9} {'same model':>10}"]
    for name, entry in results.items():
        lines.append(
            f"{name:34} {entry['bytes_per_iteration'] / 1000:>12.1f} {entry['bytes_of_all_keys']:>8.4f} "
            f"{1000 * entry['iteration_s']['median']:>7.1f} {entry['train_loss']:>9.5f} "
            f"{'yes' if entry['same_model_as_all_keys'] else 'no':>10}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=3, help="rounds; each measures every case once")
    parser.add_argument("--iterations", type=positive, default=150, help="iterations of a job")
    parser.add_argument("--quick", action="store_true", help="one round of 30 iterations: check that it works")
    parser.add_argument("--patience", type=float, default=120.0, metavar="S", help="longest wait for a quiet machine")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    arguments = parser.parse_args(argv)
    end_in_order()
    rounds, iterations = (1, 30) if arguments.quick else (arguments.rounds, arguments.iterations)
    results = measure(rounds, iterations, 0.0 if arguments.quick else arguments.patience)
    say(table(results))
    text = json.dumps({"benchmark": "lean", "machine": machine(), "variants": results}, indent=1)
    write_json(arguments.output, text)
    print(text)
    return 0


if __name__ == "__main__":
    run_to_the_end(main)
