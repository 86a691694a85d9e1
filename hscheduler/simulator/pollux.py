"""Pollux's workloads: jobs with measured speed and accuracy by batch size.

A workload has each job's arrival, application and number of replicas.  For some applications the data set also has the
seconds of a step by replicas and batch size, and the accuracy after each epoch by batch size.  The rest is derived, by
rules that are the same for all policies:

- A job with r replicas asks for r workers and r / 2 servers, rounded up, and has four splits for each worker, like jobs
  of Philly (:mod:`hscheduler.simulator.traces`).  Applications without measurements are skipped.
- The jobs of an application are a sweep over batch sizes: each draws a batch size with measured accuracy.  The
  workload's own batch sizes do not vary enough within an application.
- All jobs train the same number of epochs, so a larger batch means fewer steps.  A job has
  :data:`~hscheduler.simulator.traces.ITERATIONS` iterations, which together are the measured steps.
- A step takes ``a + b * batch / replicas + c * replicas`` seconds; a, b and c are fitted to all measured placements, by
  least squares of relative errors.
- Early feedback is 1 - accuracy at the feedback iteration, interpolated between epochs from 0 at the start.  The loss
  is 1 - accuracy at the end.

Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021; files of
its simulator (folders ``workloads`` and ``traces``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from scipy.optimize import nnls

from eps.errors import DataError
from hscheduler.core.resources import NOTHING, Resources
from hscheduler.simulator.models import SpeedModel
from hscheduler.simulator.traces import ITERATIONS, SPLITS_OF_A_WORKER, asked_for, rows_of
from hscheduler.simulator.workload import SimulatedJob

#: Columns of a workload.  Other traces lack the first one.
COLUMNS = ("application", "name", "time", "num_replicas")


@dataclass(frozen=True)
class Application:
    """Measurements of an application."""

    #: Seconds of a step: fixed, for each sample of a replica, for each replica.
    step_s: float
    sample_s: float
    replica_s: float
    #: Batch size -> steps, and the accuracies after them.
    curves: Mapping[int, tuple[np.ndarray, np.ndarray]]

    def speed(self, batch: int, workers: int, servers: int) -> SpeedModel:
        """Return the speed of a job with this batch size that asks for these numbers of workers and servers."""
        splits, steps = SPLITS_OF_A_WORKER * workers, float(self.curves[batch][0][-1]) / ITERATIONS
        # Servers grow with workers, so a replica's cost is split between its worker and its share of a server.
        member_s = self.replica_s * workers / (workers + servers)
        return SpeedModel(
            splits, steps * self.sample_s * batch / splits, steps * self.step_s, member_s=steps * member_s
        )

    def error(self, batch: int, share: float) -> float:
        """Return 1 - accuracy after a share of all steps."""
        steps, accuracies = self.curves[batch]
        return 1.0 - float(np.interp(share * steps[-1], [0.0, *steps], [0.0, *accuracies]))


def read_pollux(
    path: Path, container: Resources, seed: int, feedback_iteration: int, master: Resources = NOTHING
) -> list[SimulatedJob]:
    """Return the jobs of a workload by arrival, by the rules of this module; the first arrives at 0.

    Parameters
    ----------
    path : Path
        A file in the folder ``workloads``, next to the folder ``traces``.
    container : Resources
        Size of a worker's or server's container.
    seed : int
        Seed of the batch sizes.
    feedback_iteration : int
    master : Resources
        Size of a master's container; by default it has none.

    Raises
    ------
    DataError
        A file cannot be read or has another format, or no job's application has measurements.
    """
    traces = path.absolute().parent.parent / "traces"
    known = {folder.name: read_application(folder) for folder in sorted(traces.glob("*")) if folder.is_dir()}
    draw = Random(f"batches:{seed}")
    share = min(1.0, feedback_iteration / ITERATIONS)
    jobs = []
    for line, row in rows_of(path, COLUMNS):
        try:
            arrives_s, workers = float(row["time"]), int(row["num_replicas"])
        except (TypeError, ValueError):
            raise DataError(f"{path}, line {line}: not a job: {row!r}") from None
        application = known.get(row["application"])
        if application is None or workers < 1:
            continue
        batch = draw.choice(sorted(application.curves))
        request = asked_for(row["name"], row["application"], workers, container, master)
        speed = application.speed(batch, workers, request.servers)
        feedback, loss = application.error(batch, share), application.error(batch, 1.0)
        jobs.append(SimulatedJob(arrives_s, request, ITERATIONS, speed, feedback, loss))
    if not jobs:
        raise DataError(f"{path}: {traces} has no measurements for the applications of these jobs")
    jobs.sort(key=lambda job: job.arrives_s)
    return jobs


def read_application(folder: Path) -> Application:
    """Return the measurements of an application.

    Raises
    ------
    DataError
        A file cannot be read or has another format.
    """
    measured = []
    for line, row in rows_of(folder / "placements.csv", ("placement", "local_bsz", "step_time")):
        # One digit for each node: its number of replicas.
        replicas = sum(map(int, re.findall(r"\d", row["placement"])))
        measured.append(_numbers(folder / "placements.csv", line, replicas, row["local_bsz"], row["step_time"]))
    for line, row in rows_of(folder / "scalability.csv", ("num_replicas", "local_bsz", "step_time")):
        numbers = row["num_replicas"], row["local_bsz"], row["step_time"]
        measured.append(_numbers(folder / "scalability.csv", line, *numbers))
    table = np.array(measured)
    matrix = np.stack([np.ones(len(table)), table[:, 1], table[:, 0]], axis=1) / table[:, 2:]
    (step_s, sample_s, replica_s), _ = nnls(matrix, np.ones(len(table)))
    curves = {}
    for path in sorted(folder.glob("validation-*.csv")):
        points = [
            _numbers(path, line, row["iteration"], row["metric"])
            for line, row in rows_of(path, ("iteration", "metric"))
        ]
        steps, accuracies = np.array(points).T
        curves[int(path.stem.partition("-")[2])] = steps, accuracies
    if not curves:
        raise DataError(f"{folder}: no validation-BATCH.csv")
    return Application(float(step_s), float(sample_s), float(replica_s), curves)


def _numbers(path: Path, line: int, *texts: str | int) -> list[float]:
    try:
        return [float(text) for text in texts]
    except (TypeError, ValueError):
        raise DataError(f"{path}, line {line}: not numbers: {texts!r}") from None
