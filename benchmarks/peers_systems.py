"""The systems of ``peers.py``: how one run of each is made and what it tells.

A run trains from zero for ``warm_up + iterations`` iterations.  Its measured time is that of the last ``iterations`` of
them in a row; the mean loss over all rows is taken at the parameters after the last one.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import eps
from benchmarks.peers_data import WORKERS, Case, CaseFiles
from benchmarks.peers_setup import SCRIPTS, Environment
from benchmarks.peers_watch import Command, RunError, Watch, run_together
from eps.spec.job_spec import SETTINGS

DEADLINE_S = 180.0
SINGLE_THREADED = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
#: Keys that ps-lite's dense model is cut into: its messages are then applied while others are on the wire.
DENSE_CHUNKS = 10


@dataclass(frozen=True)
class Length:
    """How long a run is."""

    warm_up: int
    iterations: int

    @property
    def total(self) -> int:
        """All iterations of a run."""
        return self.warm_up + self.iterations


@dataclass(frozen=True)
class Run:
    """What one run found."""

    #: Times of ``time.monotonic``: after the last iteration of the warm-up, and after the last one.
    begin_s: float
    end_s: float
    loss: float
    #: Of systems that say when each iteration was complete.
    iteration_s: tuple[float, ...] = ()


#: (files, length, folder for this run) -> what it found; raises RunError.
Runner = Callable[[CaseFiles, Length, Path], Run]


def eps_runner(settings: dict[str, Any]) -> Runner:
    """Return a runner of EPS with its defaults, two splits, and some further settings."""

    def run(files: CaseFiles, length: Length, folder: Path) -> Run:
        values = eps_settings(files, length.total) | settings
        # A name of its own: jobs of earlier rounds stay where they are until the benchmark ends.
        with eps.Job.start(name=f"{files.case.name}-{folder.name}", **values) as job:
            job.wait_until_trains(DEADLINE_S)
            started_s = time.monotonic() - float(job.status()["elapsed_s"])
            report = job.wait(DEADLINE_S)
        if report["state"] != "finished":
            raise RunError(f"the job {report['state']}: {report.get('reason')}")
        ledger = report["ledger"]
        if ledger["applied"] != ledger["expected"] or ledger["lost"] or ledger["applied_twice"]:
            raise RunError(f"the ledger is not even: {ledger}")
        completed_s = [started_s + entry["seconds"] for entry in report["history"]]
        # The entry after the last iteration is the evaluation of what was trained.
        measured = completed_s[length.warm_up - 1 : length.total]
        iteration_s = tuple(b - a for a, b in pairwise(measured))
        return Run(measured[0], measured[-1], float(report["history"][length.total]["loss"]), iteration_s)

    return run


def eps_settings(files: CaseFiles, iterations: int) -> dict[str, Any]:
    """Return the settings of the job: what the problem asks for, and else EPS's defaults."""
    settings: dict[str, Any] = {
        "model": "logistic",
        "intercept": False,
        "data": str(files.matrix),
        "labels": str(files.labels),
        "optimizer": "sgd",
        "learning_rate": files.case.learning_rate,
        "iterations": iterations,
        "splits": WORKERS,
        "workers": WORKERS,
        "servers": 1,
    }
    if exchanges_all(files.case):
        # The rows are sparse, so that it would exchange what they touch.
        settings["push"] = "dense"
    return settings


def exchanges_all(case: Case) -> bool:
    """Tell whether EPS exchanges all parameters: asked to, and able to with rows that are sparse."""
    return not case.sparse and "push" in SETTINGS


def gloo_runner(environment: Environment, pieces: int) -> Runner:
    """Return a runner of PyTorch's all-reduce, of the whole vector or of so many pieces at once."""

    def run(files: CaseFiles, length: Length, folder: Path) -> Run:
        task = write_task(files, length, folder, pieces)
        program = [str(environment.python), str(SCRIPTS / "gloo_lr.py"), str(task)]
        extra = {**SINGLE_THREADED, "GLOO_SOCKET_IFNAME": "lo"}
        commands = [Command([*program, str(rank)], extra) for rank in range(WORKERS)]
        run_together(commands, folder / "log", DEADLINE_S)
        return read_results(files, folder, WORKERS)

    return run


def ray_runner(environment: Environment) -> Runner:
    """Return a runner of Ray's actors."""

    def run(files: CaseFiles, length: Length, folder: Path) -> Run:
        task = write_task(files, length, folder)
        # Names of Unix sockets must be short, whatever the temporary folder is.
        with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as short:
            extra = {**SINGLE_THREADED, "PEERS_RAY_FOLDER": short, "RAY_USAGE_STATS_ENABLED": "0"}
            program = [str(environment.python), str(SCRIPTS / "ray_lr.py"), str(task)]
            run_together([Command(program, extra)], folder / "log", DEADLINE_S)
        return read_results(files, folder, 1)

    return run


def ps_lite_runner(program: Path, lists: bool, local: bool) -> Runner:
    """Return a runner of ps-lite; ``lists``: of sparse data the server knows the keys; ``local``: Unix sockets."""

    def run(files: CaseFiles, length: Length, folder: Path) -> Run:
        case = files.case
        mode = ("lists" if lists else "kv") if case.sparse else "dense"
        step = case.learning_rate / case.num_rows
        numbers = (case.num_rows, case.num_features, step, length.warm_up, length.iterations, DENSE_CHUNKS)
        arguments = [str(program), str(files.folder), str(folder), mode, *map(str, numbers)]
        roles = ["scheduler", "server", *["worker"] * WORKERS]
        ports = free_ports(len(roles))
        shared = {
            **SINGLE_THREADED,
            "DMLC_NUM_WORKER": str(WORKERS),
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(ports[0]),
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_LOCAL": str(int(local)),
        }
        commands = [
            Command(arguments, {**shared, "DMLC_ROLE": role, "PORT": str(port)})
            for role, port in zip(roles, ports, strict=True)
        ]
        try:
            run_together(commands, folder / "log", DEADLINE_S)
        finally:
            for port in ports:
                # Where ps-lite puts its Unix sockets, and leaves them.
                with suppress(OSError):
                    os.unlink(f"/tmp/{port}")
        return read_results(files, folder, WORKERS)

    return run


def write_task(files: CaseFiles, length: Length, folder: Path, pieces: int = 1) -> Path:
    """Write what the Python peers are to do; returns the file."""
    case = files.case
    values = {
        "data": str(files.folder),
        "folder": str(folder),
        "sparse": case.sparse,
        "num_workers": WORKERS,
        "num_features": case.num_features,
        "num_rows": case.num_rows,
        "learning_rate": case.learning_rate,
        "warm_up": length.warm_up,
        "iterations": length.iterations,
        "deadline_s": DEADLINE_S,
        "pieces": pieces,
    }
    path = folder / "task.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def read_results(files: CaseFiles, folder: Path, count: int) -> Run:
    """Return what the processes of a run wrote; the slowest one's time counts."""
    found = [json.loads((folder / f"result.{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]
    longest = max(found, key=lambda each: each["end_s"] - each["begin_s"])
    loss = sum(each["loss_sum"] for each in found) / files.case.num_rows
    return Run(longest["begin_s"], longest["end_s"], loss)


def free_ports(count: int) -> list[int]:
    """Return TCP ports, all different, that were free a moment ago."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def measure(runner: Runner, files: CaseFiles, length: Length, folder: Path) -> dict[str, Any]:
    """Make one run and return it as plain values."""
    folder.mkdir(parents=True)
    with Watch() as watch:
        run = runner(files, length, folder)
    lasted_s = run.end_s - run.begin_s
    use = watch.use(run.begin_s, run.end_s)
    return {
        "iteration_s": lasted_s / length.iterations,
        "cpu_s_per_iteration": use.own_s / length.iterations,
        "foreign_cores": use.foreign_cores,
        "loss": run.loss,
    }
