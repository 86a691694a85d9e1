"""Jobs of matrix factorization on hosts with limited links, and the durations of their iterations."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import eps
from benchmarks.bench_common import process_cpu_s, rounded
from benchmarks.peers_watch import descendants, machine_busy_s
from benchmarks.ratings import Law
from benchmarks.tiers.hosts import CUT_PAUSE, Hosts
from eps.core.tiers import MEASURED_CLOCKS, SETTLING_CLOCKS
from eps.system.waits import wait_for

#: Few users and many items: a worker's splits have their own users and nearly all items, so that servers with equal
#: numbers of parameters have equal loads.
LAW = Law(users=600, items=12_000, ratings=200_000, rank=8)
#: Factors of each user and item: 214,200 parameters.
RANK = 16
#: Iterations before the speed is steady.
SETTLING = 2
#: Iterations that are measured, and iterations in a stage after which a controller that chooses tries no other.
MEASURED, CHOOSING = 5, SETTLING_CLOCKS + MEASURED_CLOCKS + 2
#: Rate of the links until a fixed stage is reached.
FAST_MBIT = 1000.0
JOB_TIMEOUT_S = 300.0
MODEL = f"{Path(__file__).resolve().parent / 'timed_mf.py'}:TimedMf"


@dataclass(frozen=True)
class Network:
    """The speed of hosts and links."""

    #: Number of hosts.
    hosts: int = 16
    #: Rate of a link in each direction, Mbit/s.
    mbit: float = 120.0
    #: Computing time for each rating, in microseconds.
    rating_us: float = 40.0
    #: Divisible by the workers of each case, so that no worker has more than another.
    splits: int = 240
    partitions: int = 48


@dataclass(frozen=True)
class Case:
    """A job: its containers, and the stage that it uses."""

    name: str
    reliable: int
    transient: int
    #: ``--stage-rule``; empty for a job without it.
    rule: str = ""
    #: The links of reliable hosts have this share of the rate.
    throttle: float = 1.0
    #: Computing time, of the network's.
    computing: float = 1.0
    #: Whether BackupPSs get more than the first copy of the parameters.
    cuts: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of containers."""
        return self.reliable + self.transient


@dataclass(frozen=True)
class Ran:
    """The results of a job."""

    case: Case
    #: Key ``tiers`` of the job's status.
    tiers: Mapping[str, Any]
    #: When each clock was completed, on the job's clock, from its start to the end of the measurement.
    completed_s: Sequence[float]
    #: Cores that the job's processes used during the measurement, and those that others used.
    cores: float
    foreign_cores: float
    #: Bytes sent and received through the link of each host, of an iteration of the measurement.
    link_bytes: Sequence[tuple[float, float]]

    @property
    def steady_s(self) -> list[float]:
        """Durations of the measured iterations."""
        return [b - a for a, b in pairwise(self.completed_s)][-MEASURED:]

    @property
    def iteration_s(self) -> float:
        """Duration of a usual iteration."""
        return statistics.median(self.steady_s)

    def as_dict(self) -> dict[str, Any]:
        """Return the results for JSON."""
        tiers = self.tiers
        first = self.case.reliable
        found: dict[str, Any] = {
            "iteration_s": rounded(self.iteration_s),
            "iterations": len(self.steady_s),
            "stage": tiers["stage"],
            "reason": tiers["reason"],
            "largest_lag": tiers["largest_lag"],
            "cores": round(self.cores, 2),
            "foreign_cores": round(self.foreign_cores, 2),
        }
        for tier, links in (("reliable", self.link_bytes[:first]), ("transient", self.link_bytes[first:])):
            if links:
                sent, received = (statistics.mean(link[i] for link in links) for i in (0, 1))
                found[f"{tier}_link_mb"] = {"sent": round(sent / 1e6, 3), "received": round(received / 1e6, 3)}
        return found


class Bench:
    """Runs jobs on hosts, one after the other.

    Parameters
    ----------
    hosts : Hosts
    network : Network
    folder : Path
        For the ratings.
    """

    def __init__(self, hosts: Hosts, network: Network, folder: Path) -> None:
        self._hosts = hosts
        self.network = network
        self._data = folder / "ratings.npz"
        LAW.write(self._data)
        self._count = 0

    def limit(self, case: Case) -> None:
        """Give the links the rates of a case."""
        reliable = self.network.mbit * case.throttle
        self._hosts.limit([reliable if host < case.reliable else self.network.mbit for host in range(self.hosts)])

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self._hosts.number

    def start(self, case: Case) -> eps.Job:
        """Start a job; it ends with this process."""
        os.environ[CUT_PAUSE] = "" if case.cuts else str(JOB_TIMEOUT_S)
        self._count += 1
        options = {"rank": RANK, "rating_us": self.network.rating_us * case.computing}
        settings: dict[str, Any] = {
            "name": f"job-{self._count}",
            "data": str(self._data),
            "model": MODEL,
            "model_options": json.dumps(options),
            "splits": self.network.splits,
            "partitions": self.network.partitions,
            "optimizer": "sgd",
            "learning_rate": 10.0,
            "followers": 0,
            # More than it completes.
            "iterations": 1_000_000,
            "reliable": case.reliable,
            "transient": case.transient,
        }
        if case.rule:
            settings["stage_rule"] = case.rule
        return eps.Job.start(**{**settings, **case.more})

    def run(self, case: Case) -> Ran:
        """Run a job until enough iterations are measured."""
        fixed = case.rule != "auto"
        # The way to a fixed stage is not measured: a controller that chooses would not take it over such links.
        self._hosts.limit([FAST_MBIT] * self.hosts)
        if not fixed:
            self.limit(case)
        with self.start(case) as job:
            job.wait_until_trains()
            # A controller that chooses measures first.
            wait_for_clocks(job, 1 if fixed else CHOOSING, case.rule)
            self.limit(case)
            before = self._counters(job)
            found = wait_for_clocks(job, SETTLING + MEASURED, case.rule)
            after = self._counters(job)
            completed_s = [entry["seconds"] for entry in job.history()][: found["clock"]]
            # No orderly end, which would export the model through the links.
            job.kill_at_once()
        wall_s, clocks = after.at_s - before.at_s, max(1, after.clock - before.clock)
        own_s = after.own_s - before.own_s
        foreign_s = max(0.0, after.busy_s - before.busy_s - own_s)
        pairs = zip(before.links, after.links, strict=True)
        links = [((b[0] - a[0]) / clocks, (b[1] - a[1]) / clocks) for a, b in pairs]
        return Ran(case, found["tiers"], completed_s, own_s / wall_s, foreign_s / wall_s, links)

    def _counters(self, job: eps.Job) -> _Counters:
        links = self._hosts.sent_bytes()
        return _Counters(time.monotonic(), job.status()["clock"], machine_busy_s(), _own_s(), links)


@dataclass(frozen=True)
class _Counters:
    at_s: float
    clock: int
    #: Processor seconds of this machine, and of this benchmark's processes.
    busy_s: float
    own_s: float
    links: Sequence[tuple[int, int]]


def wait_for_clocks(job: eps.Job, number: int, rule: str = "") -> dict[str, Any]:
    """Wait until a job has completed some more clocks in a stage, while nothing changed; return its status.

    Parameters
    ----------
    job : Job
    number : int
    rule : str
        The job's ``--stage-rule``: a fixed stage must have been reached, and a controller that chooses tries no other.
    """
    seen = now = job.status()

    def calm() -> bool:
        nonlocal seen, now
        now = job.status()
        moves = now["membership_version"] != seen["membership_version"] or now["clock"] < seen["clock"]
        if rule == "auto":
            moves = moves or now["plan"] or "tried" in now["tiers"]["reason"]
        elif rule:
            moves = moves or now["tiers"]["stage"] != int(rule)
        if moves:
            seen = now
        return bool(now["clock"] >= seen["clock"] + number)

    wait_for(calm, JOB_TIMEOUT_S, f"{number} clocks of job {job.name!r} without a change")
    return now


def _own_s() -> float:
    """Return the processor time of this process, its descendants, and those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = ended.ru_utime + ended.ru_stime + time.process_time()
    for pid in descendants():
        with suppress(OSError):
            found += process_cpu_s(pid)
    return found
