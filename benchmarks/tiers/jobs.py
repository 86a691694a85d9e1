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
from eps.errors import ResourceError
from eps.system.waits import wait_for

#: Few users and many items: a worker's splits have their own users and nearly all items, so that servers with equal
#: numbers of parameters have equal loads.
LAW = Law(users=600, items=12_000, ratings=200_000, rank=8)
#: Factors of each user and item: 214,200 parameters.
RANK = 16
#: Divisible by the workers of each case, so that no worker has more than another.
SPLITS = 240
PARTITIONS = 48
#: Iterations before the speed is steady.
SETTLING = 2
#: Iterations that are measured.
MEASURED = 5
JOB_TIMEOUT_S = 300.0
MODEL = f"{Path(__file__).resolve().parent / 'timed_mf.py'}:TimedMf"


@dataclass(frozen=True)
class Network:
    """The speed of hosts and links."""

    #: Number of hosts.
    hosts: int = 16
    #: Rate of a link in each direction, Mbit/s.
    mbit: float = 75.0
    #: Computing time for each rating, in microseconds.
    rating_us: float = 64.0


@dataclass(frozen=True)
class Case:
    """A job: its containers, and the stage that it uses."""

    name: str
    reliable: int
    transient: int
    #: ``--stage-rule``; empty for a job without it.
    rule: str = ""
    #: 0: it is killed when enough iterations were measured.
    iterations: int = 0
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
    #: When each clock was completed, on the job's clock.
    completed_s: Sequence[float]
    #: Cores that the job's processes used, and those that others used.
    cores: float
    foreign_cores: float
    #: Bytes sent and received through the link of each host, over all of the job.
    link_bytes: Sequence[tuple[int, int]]

    @property
    def steady_s(self) -> list[float]:
        """Durations of the iterations after the last change of the stage, without the first ones."""
        settled = max(0, self.tiers["stages"][-1]["clock"])
        return [b - a for a, b in pairwise(self.completed_s)][settled + SETTLING - 1 :][:MEASURED]

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
            "largest_lag": tiers["largest_lag"],
            "cores": round(self.cores, 2),
            "foreign_cores": round(self.foreign_cores, 2),
        }
        for tier, links in (("reliable", self.link_bytes[:first]), ("transient", self.link_bytes[first:])):
            if links:
                sent, received = (statistics.mean(link[i] for link in links) for i in (0, 1))
                per = 1e6 * len(self.completed_s)
                found[f"{tier}_link_mb"] = {"sent": round(sent / per, 3), "received": round(received / per, 3)}
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

    def start(self, case: Case) -> eps.Job:
        """Start a job; it ends with this process."""
        os.environ[CUT_PAUSE] = "" if case.cuts else str(JOB_TIMEOUT_S)
        reliable = self.network.mbit * case.throttle
        links = [reliable if host < case.reliable else self.network.mbit for host in range(self._hosts.number)]
        self._hosts.limit(links)
        self._count += 1
        options = {"rank": RANK, "rating_us": self.network.rating_us * case.computing}
        settings: dict[str, Any] = {
            "name": f"job-{self._count}",
            "data": str(self._data),
            "model": MODEL,
            "model_options": json.dumps(options),
            "splits": SPLITS,
            "partitions": PARTITIONS,
            "optimizer": "sgd",
            "learning_rate": 10.0,
            "followers": 0,
            # More than it completes, unless it ends by itself.
            "iterations": case.iterations or 1_000_000,
            "reliable": case.reliable,
            "transient": case.transient,
        }
        if case.rule:
            settings["stage_rule"] = case.rule
        return eps.Job.start(**{**settings, **case.more})

    def run(self, case: Case) -> Ran:
        """Run a job until enough iterations are measured, or to its end.

        Raises
        ------
        ResourceError
            The job failed.
        """
        sent = self._hosts.sent_bytes()
        busy_s, own_s, began_s = machine_busy_s(), _own_s(), time.monotonic()
        with self.start(case) as job:
            job.wait_until_trains()
            if case.iterations:
                found = job.wait(JOB_TIMEOUT_S)
                history = found["history"]
                if found["state"] != "finished":
                    raise ResourceError(f"{case.name}: the job {found['state']}: {found.get('reason')}")
            else:
                found = wait_for_clocks(job, SETTLING + MEASURED, case.rule)
                history = job.history()
            after = self._hosts.sent_bytes()
            wall_s, spent_s = time.monotonic() - began_s, _own_s() - own_s
            foreign_s = max(0.0, machine_busy_s() - busy_s - spent_s)
            # No orderly end, which would export the model through the links.
            job.kill_at_once()
        links = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(sent, after, strict=True)]
        completed_s = [entry["seconds"] for entry in history]
        return Ran(case, found["tiers"], completed_s, spent_s / wall_s, foreign_s / wall_s, links)


def wait_for_clocks(job: eps.Job, number: int, rule: str = "") -> dict[str, Any]:
    """Wait until a job has completed some more clocks in a stage, while nothing changed; return its status.

    Parameters
    ----------
    job : Job
    number : int
    rule : str
        The job's ``--stage-rule``: a fixed stage must have been reached.
    """
    seen = now = job.status()

    def calm() -> bool:
        nonlocal seen, now
        now = job.status()
        moved = now["membership_version"] != seen["membership_version"]
        if moved or now["clock"] < seen["clock"] or (rule.isdecimal() and now["tiers"]["stage"] != int(rule)):
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
