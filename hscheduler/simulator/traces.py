"""Workloads from traces of real clusters.

A trace has each job's arrival, number of devices and duration.  The rest is derived, by rules that are the same for all
policies:

- A job with g devices asks for g workers and g / 2 servers, rounded up (EPS §6: eight workers and four servers).
- A job has :data:`ITERATIONS` iterations and four splits for each worker that it asks for.  At the size it asks for it
  takes as long as in the trace; twice the workers take half the time.
- Jobs of one user group and size form a sweep if each arrived within :data:`SAME_SWEEP_S` of the one before: bursts of
  similar jobs are typical of a hyperparameter search.
- Early feedback and losses are random (:func:`hscheduler.simulator.workload.qualities`).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TextIO

from eps.errors import DataError
from hscheduler.core.jobs import JobRequest
from hscheduler.core.resources import NOTHING, Resources
from hscheduler.simulator.models import SpeedModel
from hscheduler.simulator.workload import SimulatedJob, qualities

ITERATIONS = 1000
SAME_SWEEP_S = 60.0
SPLITS_OF_A_WORKER = 4
#: A job may grow to this multiple of the size it asks for.
MOST_GROWTH = 4

_PHILLY = ("timestamp", "duration", "num_gpus", "cluster")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace."""

    arrives_s: float
    duration_s: float
    num_devices: int
    group: str


def columns_of(path: Path) -> list[str]:
    """Return the columns of a CSV file; raises like :func:`rows_of`."""
    try:
        with _opened(path) as lines:
            return next(csv.reader(lines), [])
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, row) of a CSV file, which may be gzipped.

    Raises
    ------
    DataError
        The file cannot be read or lacks a column; the message names file and line.
    """
    try:
        with _opened(path) as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"{path}, line 1: no column {missing[0]!r}; expected {', '.join(columns)}")
            for row in reader:
                yield reader.line_num, dict(row)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _opened(path: Path) -> TextIO:
    return gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="")


def read_philly(path: Path) -> list[TraceJob]:
    """Return the jobs of a trace in Philly's format (columns timestamp, duration, num_gpus, cluster), by arrival.

    The first job arrives at 0.  Jobs of zero duration are skipped.

    Source: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019; the
    columns are those of the file that the authors of Pollux (OSDI 2021) derived from it.

    Raises
    ------
    DataError
        The file cannot be read or is not such a trace; the message names file and line.
    """
    rows: list[tuple[float, TraceJob]] = []
    for line, row in rows_of(path, _PHILLY):
        try:
            at = datetime.fromisoformat(row["timestamp"])
            # Without a time zone, assume UTC: local time may skip an hour.
            at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
            duration_s, devices = float(row["duration"]), int(row["num_gpus"])
        except (TypeError, ValueError):
            raise DataError(f"{path}, line {line}: not a job: {row!r}") from None
        if duration_s > 0 and devices > 0:
            rows.append((at_s, TraceJob(0.0, duration_s, devices, row["cluster"])))
    if not rows:
        raise DataError(f"{path}: no jobs")
    rows.sort(key=lambda row: row[0])
    first_s = rows[0][0]
    return [TraceJob(at_s - first_s, job.duration_s, job.num_devices, job.group) for at_s, job in rows]


def asked_for(job_id: str, sweep: str, workers: int, container: Resources, master: Resources) -> JobRequest:
    """Return the request of a job of a trace, with one server for every two workers."""
    servers = -(-workers // 2)
    most = MOST_GROWTH * workers, MOST_GROWTH * servers
    return JobRequest(job_id, sweep, workers, servers, container, container, master, *most)


def workload(
    jobs: list[TraceJob], container: Resources, seed: int, master: Resources = NOTHING
) -> Iterator[SimulatedJob]:
    """Yield the jobs of a trace for a simulation, by the rules of this module."""
    drawn = qualities(Random(f"qualities:{seed}"))
    #: (group, devices) -> the current sweep and the arrival of its latest job.
    sweeps: dict[tuple[str, int], tuple[str, float]] = {}
    for number, job in enumerate(jobs, 1):
        kind = job.group, job.num_devices
        sweep, latest_s = sweeps.get(kind, ("", float("-inf")))
        if job.arrives_s - latest_s > SAME_SWEEP_S:
            sweep = f"sweep-{number}"
        sweeps[kind] = sweep, job.arrives_s
        workers = job.num_devices
        request = asked_for(f"job-{number}", sweep, workers, container, master)
        split_s = job.duration_s / ITERATIONS / SPLITS_OF_A_WORKER
        speed = SpeedModel(SPLITS_OF_A_WORKER * workers, split_s, fixed_s=0.0)
        feedback, loss = next(drawn)
        yield SimulatedJob(job.arrives_s, request, ITERATIONS, speed, feedback, loss)
