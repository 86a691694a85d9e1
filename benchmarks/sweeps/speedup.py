"""The speed-up of one job: seconds of an iteration with 1 to 16 containers, a worker and a server in each.

The compute is emulated, so it divides perfectly; the rest is measured: the exchange, messages and fixed work of an
iteration.  ``serial_s`` is what an iteration takes beyond its share of the compute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

import eps
from benchmarks.bench_common import process_cpu_s, rounded
from benchmarks.peers_watch import RunError, descendants, machine_busy_s
from benchmarks.sweeps.workload import CONTAINERS, MODEL, Pace, Size

#: Containers of the jobs that are measured.
MEASURED_SIZES = (1, 2, 4, 8, 16)
#: Iterations that are not measured, and that are.
SETTLING, MEASURED = 3, 16
#: Emulated seconds after which enough iterations are measured.
ENOUGH_S = 8.0
TIMEOUT_S = 120.0
_LOOK_S = 0.25


def measure(pace: Pace, size: Size) -> dict[str, Any]:
    """Return the seconds of an iteration of a job, and the cores that the machine used meanwhile."""
    wanted = SETTLING + max(6, min(MEASURED, round(ENOUGH_S / pace.work_s * size.containers)))
    settings = {**MODEL, **size.settings(), "stretch_s": pace.work_s / MODEL["splits"], "iterations": 1_000_000}
    with eps.Job.start(**settings, eval_every=1) as job:
        job.wait_until_trains()
        _wait(job, SETTLING)
        busy_s, own_s, began_s = machine_busy_s(), _own_s(), time.monotonic()
        begun = job.status()["clock"]
        _wait(job, wanted)
        busy_s, own_s, lasted_s = machine_busy_s() - busy_s, _own_s() - own_s, time.monotonic() - began_s
        clocks = job.status()["clock"] - begun
        history = job.history()
        job.kill_at_once()
    durations = [b["seconds"] - a["seconds"] for a, b in pairwise(history[SETTLING:wanted])]
    return {
        "containers": size.containers,
        "iteration_s": rounded(statistics.median(durations)),
        "mean_s": rounded(statistics.fmean(durations)),
        "cpu_s": rounded(own_s / clocks),
        "cores": round(own_s / lasted_s, 2),
        "foreign_cores": round(max(0.0, busy_s - own_s) / lasted_s, 2),
    }


def _wait(job: eps.Job, clock: int) -> None:
    """Wait for a clock; look rarely, because a look takes processor time."""
    deadline = time.monotonic() + TIMEOUT_S
    while job.status()["clock"] < clock:
        if time.monotonic() > deadline:
            raise RunError(f"{job.name} did not reach iteration {clock} within {TIMEOUT_S:g} s")
        time.sleep(_LOOK_S)


def _own_s() -> float:
    """Return the processor time of this process and its descendants."""
    found = time.process_time()
    for pid in descendants():
        with suppress(OSError):
            found += process_cpu_s(pid)
    return found


def curve_of(entries: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return containers -> median seconds of an iteration, from the measurements of all repeats."""
    found: dict[int, list[float]] = {}
    for entry in entries:
        found.setdefault(entry["containers"], []).append(entry["iteration_s"])
    return {number: statistics.median(values) for number, values in sorted(found.items())}


def at(curve: Mapping[int, float], containers: int, work_s: float, splits: int) -> float:
    """Return the seconds of an iteration at any size.

    The worker with most splits decides how long the compute takes; what an iteration takes beyond that is interpolated.
    """
    sizes = sorted(curve)
    beyond = [curve[number] - _compute_s(number, work_s, splits) for number in sizes]
    return _compute_s(containers, work_s, splits) + float(np.interp(containers, sizes, beyond))


def _compute_s(containers: int, work_s: float, splits: int) -> float:
    return work_s * -(-splits // containers) / splits


def efficiency(curve: Mapping[int, float], containers: int = CONTAINERS) -> float:
    """Return the speed-up over one container, divided by the number of containers."""
    return curve[1] / curve[containers] / containers
