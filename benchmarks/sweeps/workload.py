"""The sweep of the benchmark: its points, rungs and emulated work, the same for EPS and its peers.

A trial is softmax regression on scikit-learn's digits.  Computing is emulated: a worker sleeps for each of its splits,
so that one worker takes :attr:`Pace.work_s` for an iteration.  Everything else is real: processes, exchange of
parameters, changes of size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hscheduler.spec import Spec

#: Containers of the simulated cluster: nodes of :data:`VCORES` containers each.
NODES, VCORES = 4, 4
CONTAINERS = NODES * VCORES
#: Three for each container, so that 2, 3, 4, 6, 8, 12 and 16 workers have equal shares.
SPLITS = 3 * CONTAINERS
#: At most so many servers: a model of 650 parameters needs no more, and each pair of worker and server costs messages.
PARTITIONS = 4
ETA = 3
METRIC = "test_loss"
SEED = 0
#: Trials of the small and the large sweep; the small one has the first points of the large one.
FEW, MANY = 27, 81
#: Poisson arrivals bring this share of what the cluster can compute.
LOAD = 0.8

SPACE = {"learning_rate": {"loguniform": [1e-3, 1.0]}, "l2": {"choice": [0.0, 1e-4, 1e-2]}}
#: Settings of a job that decide what it learns.
MODEL: dict[str, Any] = {
    "data": "sklearn:digits",
    "model": "softmax",
    "test": "0.2",
    "splits": SPLITS,
    "partitions": PARTITIONS,
}


@dataclass(frozen=True)
class Pace:
    """How long an iteration takes, and after how many of them trials are judged."""

    #: Seconds of an iteration with one worker, all of them slept.
    work_s: float
    grace: int
    #: Iterations of a trial that no rung stops.
    most: int

    @property
    def rungs(self) -> tuple[int, ...]:
        """Iterations at which trials are judged, the last one included."""
        found = [self.grace]
        while found[-1] * ETA <= self.most:
            found.append(found[-1] * ETA)
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Return the pace for JSON."""
        return {**dataclasses.asdict(self), "rungs": list(self.rungs)}


#: By the seconds of an iteration.  In 16 containers a job takes 0.05 s of processor time for an iteration.
PACES = {
    "0.5": Pace(0.5, 20, 540),
    "1": Pace(1.0, 12, 324),
    "1.25": Pace(1.25, 12, 324),
    "quick": Pace(0.1, 4, 36),
}


@dataclass(frozen=True)
class Size:
    """The size that a trial asks for: containers with a worker and a server each, or members with one each."""

    hosts: int = 0
    workers: int = 0
    servers: int = 0

    @property
    def containers(self) -> int:
        """Number of containers."""
        return self.hosts + self.workers + self.servers

    def settings(self) -> dict[str, int]:
        """Return the settings of a job of this size."""
        return {"reliable": self.hosts} if self.hosts else {"workers": self.workers, "servers": self.servers}


def sha_iterations(trials: int, pace: Pace) -> int:
    """Return the iterations that synchronous successive halving trains."""
    total, left, done = 0, trials, 0
    for rung in pace.rungs:
        total += left * (rung - done)
        left, done = max(1, left // ETA), rung
    return total


def arrival_gap_s(trials: int, pace: Pace) -> float:
    """Return the mean seconds between arrivals at :data:`LOAD`, if trials train as under successive halving."""
    work_s = sha_iterations(trials, pace) / trials * pace.work_s
    return round(work_s / (LOAD * CONTAINERS), 3)


def job_settings(pace: Pace, size: Size) -> dict[str, Any]:
    """Return the settings of a trial's job, without its point."""
    slept = {"stretch_s": round(pace.work_s / SPLITS, 9), "iterations": pace.most}
    return {**MODEL, **slept, **size.settings()}


def tables(
    trials: int, pace: Pace, size: Size, sweep: Mapping[str, Any], *, arrives: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the tables of a sweep's file.

    Parameters
    ----------
    trials : int
    pace : Pace
    size : Size
        What each trial asks for.
    sweep : mapping
        More settings of ``[sweep]``, such as the stopping rule.
    arrives : bool
        Whether trials arrive one by one; otherwise all at once.
    """
    arrival = f"poisson:{arrival_gap_s(trials, pace)}s" if arrives else "burst"
    found = {
        "trials": trials,
        "algorithm": "random",
        "seed": SEED,
        "arrival": arrival,
        "metric": METRIC,
        "feedback_iteration": pace.grace,
    }
    return {
        "cluster": {"nodes": NODES, "vcores": VCORES, "memory": f"{4 * VCORES}GiB"},
        "sweep": {**found, **sweep},
        "space": SPACE,
        "job": job_settings(pace, size),
    }


def points(trials: int) -> list[dict[str, Any]]:
    """Return the points of a sweep, in the order of its trials."""
    size = Size(workers=1, servers=1)
    drawn = Spec.of(tables(trials, PACES["0.5"], size, {})).points()
    return [next(drawn) for _ in range(trials)]
