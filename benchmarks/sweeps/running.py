"""Runs in processes of their own, and how busy they kept the machine."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_common import rounded
from benchmarks.peers_setup import AbsentError, Environment, make_environment
from benchmarks.peers_watch import RunError, end_descendants, machine_busy_s
from benchmarks.sweeps import curves, speedup
from benchmarks.sweeps.between_rungs import plan_of
from benchmarks.sweeps.cases import Case
from benchmarks.sweeps.fluid import Curve, Sweep
from benchmarks.sweeps.workload import CONTAINERS, ETA, SPLITS, Pace, tables

RAY = Path(__file__).with_name("peers") / "ray_tune.py"
#: Of Ray, without which its numbers could not be compared with those of another time.
RAY_PACKAGE = "ray[tune]"
DEADLINE_S = 1200.0
#: Seconds from the start of a trial to its first iteration, about.
START_S = 1.0
#: A metric within two percent of the best one counts as found.
NEAR = 1.02
#: Interval of the samples of the machine's use, and the window whose use is called the busiest.
_SAMPLE_S, _WINDOW_S = 0.5, 3.0
#: A run whose processes used more of the cores is void: it measured the processor, not the policy.
MOST_BUSY = 0.6
#: Ray: no statistics, no loggers, and no kill of process groups, which can hit Ray's own on a loaded machine.
_RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_process_group_cleanup_enabled": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "OMP_NUM_THREADS": "1",
}


def ray_environment(cache: Path) -> tuple[Environment, str]:
    """Return the environment of Ray Tune, and Ray's version; install it if missing.

    Raises
    ------
    AbsentError
        It cannot be installed.
    """
    environment = make_environment(cache)
    version = _ray_version(environment)
    if not version:
        environment.install(RAY_PACKAGE)
        version = _ray_version(environment)
    if not version:
        raise AbsentError("ray was installed but ray.tune cannot be imported")
    return environment, version


def _ray_version(environment: Environment) -> str:
    command = [str(environment.python), "-c", "import ray, ray.tune; print(ray.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout.strip()


def sweep_of(trials: int, pace: Pace, seconds: Mapping[int, float], start_s: float = 0.0) -> Sweep:
    """Return the fluid model of a sweep on the measured speed-up; its times are in iterations of one container."""
    return Sweep(trials, fitted(seconds), pace.rungs, ETA, CONTAINERS, start_s / seconds[1])


def fitted(seconds: Mapping[int, float]) -> Curve:
    """Return the fluid model's curve nearest to measured seconds of an iteration by size."""
    times = {size: value / seconds[1] for size, value in seconds.items() if size > 1}
    rows = np.array([[1 - 1 / size, size - 1] for size in times]) / np.array([list(times.values())]).T
    target = 1 - np.array([1 / size for size in times]) / np.array(list(times.values()))
    found = np.clip(np.linalg.lstsq(rows, target, rcond=None)[0], 0.0, None)
    if not found[1]:
        found[0] = max(0.0, float(rows[:, 0] @ target / (rows[:, 0] @ rows[:, 0])))
    return Curve(float(found[0]), float(found[1]))


class Runner:
    """Runs cases.

    Parameters
    ----------
    pace : Pace
    seconds : mapping
        Containers -> seconds of an iteration, measured.
    ray : Environment or None
    voids : bool
        Whether a run with processors too busy is void.
    """

    def __init__(self, pace: Pace, seconds: Mapping[int, float], ray: Environment | None, *, voids: bool) -> None:
        self._pace, self._seconds, self._ray, self._voids = pace, seconds, ray, voids

    def run(self, case: Case) -> dict[str, Any]:
        """Return the results of a case, with the use of the machine.

        Raises
        ------
        RunError
            The run failed.
        """
        # Paths of Unix sockets must be short.
        with tempfile.TemporaryDirectory(prefix="sw", dir="/tmp", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            if case.is_ray:
                assert self._ray is not None
                program = [str(self._ray.python), str(RAY)]
                task = self._ray_task(case)
                # Not this project's packages: Ray's environment has its own.
                extra = {**_RAY_SETTINGS, "SWEEPS_RAY_FOLDER": name, "PYTHONPATH": ""}
            else:
                program = [sys.executable, "-m", "benchmarks.sweeps.ours"]
                task = self._task(case)
                extra = {"EPS_HOME": f"{name}/home"}
            (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
            use = run_watched([*program, f"{name}/task.json", f"{name}/result.json"], extra, folder / "log")
            found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if found.get("failures"):
            raise RunError(f"{len(found['failures'])} trials failed: {found['failures'][0]}")
        used = use.during(found.pop("began_s"), found.pop("ended_s"))
        return {**found, **used, "void": self._voids and used["cores"] > MOST_BUSY * (os.cpu_count() or 1)}

    def _task(self, case: Case) -> dict[str, Any]:
        rule = {
            "stop": case.rule,
            "eta": ETA,
            "grace_iterations": self._pace.grace,
            "max_iterations": self._pace.most,
        }
        plan = plan_of(sweep_of(case.trials, self._pace, self._seconds, START_S))
        given = tables(case.trials, self._pace, case.size, rule, arrives=case.arrives)
        return {"tables": given, "policy": case.policy, "plan": plan}

    def _ray_task(self, case: Case) -> dict[str, Any]:
        pace, recorded = self._pace, curves.load()
        reports = list(range(pace.grace, pace.most + 1, pace.grace)) if case.often else list(pace.rungs)
        return {
            "trials": case.trials,
            "width": case.width,
            "resizes": case.resizes,
            "cpus": CONTAINERS,
            "first": min(case.trials, CONTAINERS // case.width),
            "eta": ETA,
            "rungs": list(pace.rungs),
            "reports": reports,
            "iteration_s": {n: speedup.at(self._seconds, n, pace.work_s, SPLITS) for n in range(1, CONTAINERS + 1)},
            "values": [[curves.reported(recorded, k, at) for at in reports] for k in range(case.trials)],
        }


class Use:
    """Processor use of a run.

    Parameters
    ----------
    samples : sequence of (float, float)
        Time and processor seconds of the whole machine so far.
    own_s : float
        Processor seconds of all processes of the run.
    """

    def __init__(self, samples: Sequence[tuple[float, float]], own_s: float) -> None:
        self._samples, self._own_s = samples, own_s

    def during(self, began_s: float, ended_s: float) -> dict[str, Any]:
        """Return the cores in use during the sweep, and what others used from the begin of the run to its end."""
        times, busy = np.array(self._samples).T
        cores = (np.interp(ended_s, times, busy) - np.interp(began_s, times, busy)) / max(1e-9, ended_s - began_s)
        starts = np.arange(began_s, max(began_s + _SAMPLE_S, ended_s - _WINDOW_S), _SAMPLE_S)
        windows = (np.interp(starts + _WINDOW_S, times, busy) - np.interp(starts, times, busy)) / _WINDOW_S
        foreign = (busy[-1] - busy[0] - self._own_s) / (times[-1] - times[0])
        return {
            "cores": round(float(cores), 3),
            "busiest_cores": round(float(windows.max()), 3),
            "busy_share_of_time": round(float((windows > MOST_BUSY * (os.cpu_count() or 1)).mean()), 3),
            "own_cpu_s": round(self._own_s, 2),
            "foreign_cores": round(max(0.0, float(foreign)), 3),
            "took_s": round(float(times[-1] - times[0]), 2),
        }


def run_watched(command: Sequence[str], extra: Mapping[str, str], log: Path) -> Use:
    """Run a command to its end, and end what it leaves behind.  This process must adopt orphans.

    Raises
    ------
    RunError
        It failed or did not end in time; the text has its last lines.
    """
    before = _children_s()
    samples = [(time.time(), machine_busy_s())]
    deadline = time.monotonic() + DEADLINE_S
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, **extra},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(_SAMPLE_S)
                samples.append((time.time(), machine_busy_s()))
            code = process.poll()
        finally:
            if process.poll() is None:
                process.terminate()
            end_descendants()
    samples.append((time.time(), machine_busy_s()))
    if code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        how = f"did not end within {DEADLINE_S:g} s" if code is None else f"ended with {code}"
        raise RunError(f"the run {how}: {' | '.join(lines[-4:]) or 'no output'}")
    return Use(samples, _children_s() - before)


def _children_s() -> float:
    """Return the processor seconds of ended children, and of their ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def early_feedback_s(found: Mapping[str, Any], grace: int) -> float | None:
    """Return the median seconds from a trial's arrival to its early feedback; Ray's clock starts at the arrival."""
    if "reports" in found:
        waits = [at_s for at_s, _, iterations, *_ in found["reports"] if iterations == grace]
    else:
        waits = [trial["early_feedback_s"] for trial in found["trials"] if trial["early_feedback_s"] is not None]
    return rounded(statistics.median(waits)) if waits else None


def best_value(found: Mapping[str, Any], most: int) -> float | None:
    """Return the metric of the best trial that trained to its end."""
    if "reports" in found:
        return min((value for _, _, iterations, value, _ in found["reports"] if iterations == most), default=None)
    return None if found["best"] is None else float(found["best"]["loss"])


def known_over_time(found: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return (time, value) whenever a run knew a better value than before."""
    if "anytime" in found:
        return [(at_s, value) for at_s, value, _ in found["anytime"]]
    reports = sorted((at_s, value) for at_s, _, _, value, _ in found["reports"])
    best = list(accumulate((value for _, value in reports), min))
    return [
        (at_s, value) for (at_s, _), value, before in zip(reports, best, [None, *best], strict=False) if value != before
    ]


def target_of(trials: int, most: int) -> float:
    """Return the metric that counts as found: within :data:`NEAR` of the best of all points, trained to their ends."""
    return float(curves.load()[:trials, most // curves.STRIDE - 1].min()) * NEAR


def target_s(found: Mapping[str, Any], target: float) -> float | None:
    """Return when a run first knew a metric as good as the target; None if it never did."""
    return next((at_s for at_s, value in known_over_time(found) if value <= target), None)
