"""The systems of ``peers.py``: run one of them and return its time and loss.

A run trains from zero for ``warm_up + iterations`` iterations.  The measured time is that of the last ``iterations``.
The loss is the mean over all rows at the final parameters.
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
#: Number of keys of ps-lite's dense model: with several, messages are applied while others are sent.
DENSE_CHUNKS = 10


@dataclass(frozen=True)
class Length:
    """The length of a run, in iterations."""

    warm_up: int
    iterations: int

    @property
    def total(self) -> int:
        """Number of all iterations."""
        return self.warm_up + self.iterations


@dataclass(frozen=True)
class Run:
    """The result of one run."""

    #: Times of ``time.monotonic``: after the last iteration of the warm-up, and after the last one.
    begin_s: float
    end_s: float
    loss: float
    #: Known only for systems that report the end of each iteration.
    iteration_s: tuple[float, ...] = ()


#: (files, length, folder of the run) -> result; raises RunError.
Runner = Callable[[CaseFiles, Length, Path], Run]


def eps_runner(settings: dict[str, Any]) -> Runner:
    """Return a runner of EPS with its defaults, two splits, and some further settings."""

    def run(files: CaseFiles, length: Length, folder: Path) -> Run:
        values = eps_settings(files, length.total) | settings
        # A new name: jobs of earlier rounds are kept until the benchmark ends.
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
        # The entry after the last iteration is the evaluation of the final parameters.
        measured = completed_s[length.warm_up - 1 : length.total]
        iteration_s = tuple(b - a for a, b in pairwise(measured))
        return Run(measured[0], measured[-1], float(report["history"][length.total]["loss"]), iteration_s)

    return run


def eps_settings(files: CaseFiles, iterations: int) -> dict[str, Any]:
    """Return the settings of the job; all others are EPS's defaults."""
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
        # With sparse rows, it would exchange only the touched parameters by default.
        settings["push"] = "dense"
    return settings


def exchanges_all(case: Case) -> bool:
    """Return whether EPS exchanges all parameters in this case, although the rows are sparse."""
    return not case.sparse and "push" in SETTINGS


def gloo_runner(environment: Environment, pieces: int) -> Runner:
    """Return a runner of PyTorch's all-reduce, of the whole vector or in ``pieces`` at once."""

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
        # Paths of Unix sockets must be short, so the temporary folder cannot be used.
        with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as short:
            extra = {**SINGLE_THREADED, "PEERS_RAY_FOLDER": short, "RAY_USAGE_STATS_ENABLED": "0"}
            program = [str(environment.python), str(SCRIPTS / "ray_lr.py"), str(task)]
            run_together([Command(program, extra)], folder / "log", DEADLINE_S)
        return read_results(files, folder, 1)

    return run


def ps_lite_runner(program: Path, lists: bool, local: bool) -> Runner:
    """Return a runner of ps-lite.

    Parameters
    ----------
    program : Path
    lists : bool
        Whether the server knows the keys of sparse data.
    local : bool
        Whether it uses Unix sockets.
    """

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
    """Write the task of the Python peers and return the file."""
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
    """Return the results of a run's processes; the slowest one's time counts."""
    found = [json.loads((folder / f"result.{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]
    longest = max(found, key=lambda each: each["end_s"] - each["begin_s"])
    loss = sum(each["loss_sum"] for each in found) / files.case.num_rows
    return Run(longest["begin_s"], longest["end_s"], loss)


def free_ports(count: int) -> list[int]:
    """Return different TCP ports that are currently free."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def measure(runner: Runner, files: CaseFiles, length: Length, folder: Path) -> dict[str, Any]:
    """Make one run and return its result as plain values."""
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
