"""Measure the speed at which partitions move to an added server, against a bare TCP socket in the same run.

    python benchmarks/move.py
    python benchmarks/move.py --quick
    python benchmarks/move.py --output move.json

A job of one worker and one server adds a second server, which gets half of the parameters.  The job trains, or is idle
(its model's gradient sleeps for seconds).  The speed is the moved bytes divided by the time from the address lists to
the last acknowledged copy, including checksums at both ends.

Before the added server confirms the address lists, it touches its memory beside training; ``ready_s`` is that time.
The socket of the bars receives into memory that was touched before.  Its speed into fresh memory, the limit of the
machine for the whole change, is given as well.
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

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from benchmarks import van_raw  # noqa: E402
from benchmarks.bench_common import (  # noqa: E402
    Bar,
    conclude,
    end_in_order,
    new_file,
    positive,
    ratio,
    rounded,
    run_to_the_end,
    say,
    spread,
)
from benchmarks.scale_jobs import Ran, run_job  # noqa: E402
from benchmarks.van_measure import Peer  # noqa: E402

MODEL = ROOT / "benchmarks" / "big_model.py"
ROWS, FEATURES = 240, 100
#: Time of a gradient in an idle job: enough for all copies.
IDLE_S = 1.5


def job_settings(folder: Path, num_parameters: int, van: str, idle: bool) -> dict[str, object]:
    """Return the settings of a job that adds a server."""
    options: dict[str, object] = {"num_parameters": num_parameters}
    at, iterations = (4, 7) if idle else (12, 40)
    if idle:
        options["sleep_s"] = IDLE_S
    return {
        "model": f"{MODEL}:{'IdleLinear' if idle else 'TiledLinear'}",
        "model_options": json.dumps(options),
        "data": folder / "X.npy",
        "labels": folder / "y.npy",
        "optimizer": "sgd",
        "learning_rate": 0.001,
        "splits": 2,
        "partitions": 12,
        "workers": 1,
        "servers": 1,
        "followers": 0,
        "iterations": iterations,
        "at": f"{at}:add-servers=1",
        "van": van,
    }


def moved(ran: Ran) -> dict[str, Any]:
    """Return the bytes that the change moved, its speed, and the slowdown of the iterations meanwhile."""
    (change,) = ran.report["changes"]
    phases = change["seconds"]
    copied_s = phases["copied"] - phases["lists-updated"]
    # Time of the same iterations without a change.
    usual_s = phases["released"] - change["slowdown_s"]
    return {
        "moved_bytes": change["bytes_moved"],
        "ready_s": rounded(phases["lists-updated"] - phases["prepared"]),
        "asked_to_copied_s": rounded(phases["copied"]),
        "copied_s": rounded(copied_s),
        "gb_per_s": rounded(change["bytes_moved"] / copied_s / 1e9),
        "iteration_s": rounded(statistics.median(ran.iteration_s)),
        "slower": rounded(change["slowdown_s"] / usual_s) if usual_s > 0 else None,
        "foreign_cores": rounded(ran.foreign_cores),
    }


def raw_gb_per_s(size_bytes: int, rounds: int) -> dict[str, Any]:
    """Return the speed of a bare TCP socket between two processes, as :mod:`benchmarks.van` measures it."""
    from time import perf_counter

    found: dict[str, list[float]] = {mode: [] for mode in van_raw.MODES}
    with tempfile.TemporaryDirectory(prefix="eps-move-") as folder:
        peer = Peer.start(Path(folder))
        try:
            sock = peer.connect_raw("tcp")
            array = np.ones(size_bytes // 4, np.float32)
            for _ in range(rounds + 1):
                for mode in van_raw.MODES:
                    began = perf_counter()
                    van_raw.push(sock, array, mode)
                    found[mode].append(size_bytes / (perf_counter() - began) / 1e9)
            sock.close()
        finally:
            peer.end()
    best = max(found.values(), key=lambda speeds: statistics.median(speeds[1:]))
    return spread(best[1:])


def raw_fresh_gb_per_s(size_bytes: int) -> float:
    """Return the speed of the first bytes over a bare TCP socket into fresh memory."""
    from time import perf_counter

    with tempfile.TemporaryDirectory(prefix="eps-move-") as folder:
        peer = Peer.start(Path(folder))
        try:
            sock = peer.connect_raw("tcp")
            array = np.ones(size_bytes // 4, np.float32)
            began = perf_counter()
            van_raw.push(sock, array, "1 MB pieces")
            speed = size_bytes / (perf_counter() - began) / 1e9
            sock.close()
        finally:
            peer.end()
    return speed


def measure(num_parameters: int, rounds: int) -> dict[str, Any]:
    """Return the speeds by transport, idle and training, and those of the socket."""
    rng = np.random.default_rng(3)
    results: dict[str, Any] = {
        "parameters": num_parameters,
        "raw_tcp_gb_per_s": raw_gb_per_s(1 << 27, 5),
        "raw_tcp_fresh_gb_per_s": spread([raw_fresh_gb_per_s(num_parameters * 2) for _ in range(rounds)]),
        "moves": {},
    }
    with tempfile.TemporaryDirectory(prefix="eps-move-") as name:
        folder = Path(name)
        np.save(folder / "X.npy", rng.normal(size=(ROWS, FEATURES)).astype(np.float32))
        np.save(folder / "y.npy", rng.normal(size=ROWS).astype(np.float32))
        for round_ in range(rounds):
            for van in ("tcp", "auto"):
                for idle in (True, False):
                    what = f"{van} {'idle' if idle else 'training'}"
                    say(f"round {round_ + 1} of {rounds}: {what}")
                    settings = job_settings(folder, num_parameters, van, idle)
                    ran = run_job(folder, f"move-{round_}-{van}-{int(idle)}", settings)
                    found = moved(ran)
                    # Each move is compared with a socket measured next to it, because the load of the machine varies.
                    found["raw_tcp_gb_per_s"] = raw_gb_per_s(1 << 27, 3)["median"]
                    found["of_raw_tcp"] = ratio(found["gb_per_s"], found["raw_tcp_gb_per_s"], 3)
                    results["moves"].setdefault(what, []).append(found)
    return results


def bars(results: dict[str, Any]) -> list[Bar]:
    """Return the bars with their measured values."""
    found = []
    for what, moves in results["moves"].items():
        share = statistics.median(move["of_raw_tcp"] for move in moves)
        limit = 0.7 if what.endswith("idle") else 0.4
        found.append(Bar(f"{what}: speed of a move / raw TCP", rounded(share), limit, at_least=True))
        if what.endswith("training"):
            slower = statistics.median(move["slower"] for move in moves)
            found.append(Bar(f"{what}: training slower by", rounded(slower), 1 / 3, at_least=False))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, with ``--quick`` 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=positive, default=100, help="millions of parameters")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds; each measures every case once")
    parser.add_argument("--quick", action="store_true", help="4 million parameters, one round: check that it works")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    arguments = parser.parse_args(argv)
    end_in_order()
    millions, rounds = (4, 1) if arguments.quick else (arguments.millions, arguments.rounds)
    results = measure(millions * 1_000_000, rounds)
    judged = bars(results)
    return conclude("move", results, judged, arguments.output, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
