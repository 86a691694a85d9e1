"""Measure the time from the start of ``eps run`` to the end of the first iteration, and its parts."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench_common import rounded, say, spread
from benchmarks.scale_jobs import Ran, flags, quiet_job, run_job
from eps.storage.jobdir import JobDir

DAY_S = 86400.0
_LOG_TIME = re.compile(r"^(\d\d):(\d\d):(\d\d)\.(\d\d\d) ")
_IMPORT = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)")
_AT_S = re.compile(r"'at_s': ([\d.]+)")


def measure(home: Path, settings: Mapping[str, object], rounds: int, patience_s: float) -> dict[str, Any]:
    """Return the times of starts without the cached data set (``cold``) and with it (``warm``)."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    deadline = time.monotonic() + patience_s
    foreign = []
    number = 0
    for _ in range(rounds):
        for kind, rows in found.items():

            def start(kind: str = kind) -> Ran:
                nonlocal number
                number += 1
                if kind == "cold":
                    shutil.rmtree(home / "cache", ignore_errors=True)
                return run_job(home, f"start-{number}", settings)

            ran = quiet_job(start, max(0.0, deadline - time.monotonic()))
            rows.append(milestones(ran))
            foreign.append(ran.foreign_cores)
            say(f"  start, {kind}: {rows[-1]['first iteration']:.2f} s")
    results: dict[str, Any] = {"foreign_cores": spread(foreign)}
    for kind, rows in found.items():
        results[kind] = {
            "first_iteration_s": spread([row["first iteration"] for row in rows]),
            "milestones_s": {name: rounded(statistics.median(row[name] for row in rows)) for name in rows[0]},
        }
    results["imports"] = imports(home, settings)
    return results


def milestones(ran: Ran) -> dict[str, float]:
    """Return the seconds from the start of the command to each milestone, from the job's files."""
    directory, began_s = ran.directory, ran.began_s
    master = (directory / "logs" / "master.log").read_text(encoding="utf-8").splitlines()
    master_began_s, registered_s = 0.0, 0.0
    for line in master:
        at = _AT_S.search(line)
        if at and "'started'" in line:
            master_began_s = _after(line, began_s) - float(at[1])
            registered_s = master_began_s
        if at and "'membership', 'version': 1," in line:
            registered_s = master_began_s + float(at[1])
    ready, connected = [], []
    for path in (directory / "logs").glob("container-*.log"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if " M ready at " in line:
                ready.append(_after(line, began_s))
            if " clock -1: active" in line or " clock 0: active" in line:
                connected.append(_after(line, began_s))
    first = ran.report["history"][0]["seconds"]
    return {
        "job's directory": os.stat(directory / "token").st_mtime - began_s,
        "settings written (data cut)": JobDir(directory).record().started_s - began_s,
        "job master runs": master_began_s,
        "last member ready": max(ready),
        "membership 1": registered_s,
        "last worker has its splits": max(connected, default=registered_s),
        "first iteration": master_began_s + first,
    }


def _after(line: str, began_s: float) -> float:
    """Return the seconds from ``began_s`` to a log line, which has only the time of day."""
    match = _LOG_TIME.match(line)
    if match is None:
        return 0.0
    hours, minutes, seconds, milliseconds = map(int, match.groups())
    began = time.localtime(began_s)
    began_of_day_s = began.tm_hour * 3600 + began.tm_min * 60 + began.tm_sec + began_s % 1
    return (hours * 3600 + minutes * 60 + seconds + milliseconds / 1000 - began_of_day_s) % DAY_S


def imports(home: Path, settings: Mapping[str, object], count: int = 14) -> dict[str, Any]:
    """Return the slowest imports: milliseconds without nested imports, by package and process.

    The timing slows imports by about a third.
    """
    name = "start-imports"
    command = [sys.executable, "-m", "eps", "run", "--quiet", "--name", name, *flags(settings)]
    environment = {**os.environ, "EPS_HOME": str(home), "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    texts = {"command": done.stderr}
    for path in sorted((home / "jobs" / name / "logs").glob("*.log")):
        texts[path.stem] = path.read_text(encoding="utf-8")
    results: dict[str, Any] = {}
    for process, text in texts.items():
        packages: dict[str, float] = {}
        for line in text.splitlines():
            match = _IMPORT.match(line)
            if match:
                # For other packages, only the top package.
                parts = match[4].split(".")
                package = ".".join(parts[: 3 if parts[0] == "eps" else 2 if parts[0] in ("google", "scipy") else 1])
                packages[package] = packages.get(package, 0.0) + int(match[1]) / 1000
        if packages:
            largest = sorted(packages.items(), key=lambda item: -item[1])[:count]
            results[process] = {
                "total_ms": rounded(sum(packages.values())),
                "largest_ms": {package: rounded(ms) for package, ms in largest},
            }
    return results
