"""Soak test: a job that is resized every few seconds must not grow.

    python benchmarks/soak.py --minutes 60 [--every-s 3] [--output out.json]
    python benchmarks/soak.py --minutes 2 --quick

A small job trains while workers and servers are added and removed in turn.  Memory, descriptors, threads and
shared-memory segments of its long-lived processes are sampled: supervisor, job master, first worker and first server.
The last quarter of the samples is compared with the second, because caches fill during the first.

Memory is resident memory without files, shared or not.  The processes are forked and share pages until they write to
them.  Such a copy is no growth of resident memory, but of the proportional set size, which is reported without a bar.
The job master's history grows with every clock.

A value is flat if its median over the last quarter exceeds that over the second by at most a factor or an amount:
memory 1.1 times or 8 MiB, descriptors 1.1 times or 8, threads 1.1 times or 4, shared segments 1.2 times or 6.

JSON goes to standard output, a table to standard error; the exit code is 1 if a value grew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# For the processes of the jobs, which import from this folder.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from benchmarks.bench_common import end_in_order, machine, new_file, rounded, run_to_the_end, say, write_json  # noqa: E402
from benchmarks.resize import job_settings, scale_of, write_data  # noqa: E402
from eps.errors import EpsError  # noqa: E402
from eps.job.client import Job  # noqa: E402
from eps.storage.atomic import read_json  # noqa: E402

CHANGES = (("add_workers", 1), ("add_servers", 1), ("remove_workers", 1), ("remove_servers", 1))
#: Largest allowed factor from the second quarter to the last, for each value.
MOST_GROWTH = {"memory_bytes": 1.1, "descriptors": 1.1, "threads": 1.1, "segments": 1.2}
#: Allowed amount: a connection that is not closed yet is no growth.
SLACK = {"memory_bytes": 8 << 20, "descriptors": 8, "threads": 4, "segments": 6}


def sample(pid: int) -> dict[str, int]:
    """Return memory, descriptors, threads and segments of a process."""
    folder = Path("/proc") / str(pid)
    links = []
    for entry in os.scandir(folder / "fd"):
        with suppress(OSError):
            links.append(os.readlink(entry.path))
    rollup, status = (_values(folder / name) for name in ("smaps_rollup", "status"))
    return {
        "memory_bytes": 1024 * (status["RssAnon"] + status["RssShmem"]),
        "proportional_bytes": 1024 * rollup["Pss"],
        "descriptors": len(links),
        "threads": status["Threads"],
        "segments": sum(link.startswith("/memfd:") for link in links),
    }


def _values(path: Path) -> dict[str, int]:
    """Return the values in a file of ``/proc`` with a name and a number in each line."""
    found = {}
    for line in path.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if value.split() and value.split()[0].isdecimal():
            found[name] = int(value.split()[0])
    return found


def long_lived(job: Job) -> dict[str, int]:
    """Return the pids of the processes that live as long as the job."""
    found = {
        "supervisor": job.directory.record().pid,
        "job master": int(read_json(job.directory.master_json)["pid"]),
    }
    members = {member["name"]: member["pid"] for member in job.status()["members"]}
    return {**found, "worker-1": members["worker-1"], "server-1": members["server-1"]}


def soak(minutes: float, every_s: float, parameters: float) -> dict[str, Any]:
    """Resize a job for some minutes; return the samples of its processes."""
    home = Path(tempfile.mkdtemp(prefix="eps-soak-"))
    os.environ["EPS_HOME"] = str(home / "home")
    write_data(home / "data.csv")
    settings = {**job_settings(scale_of(parameters, 1, quick=True), home / "data.csv", "adam"), "workers": 2}
    job = Job.start(name="soak", **{**settings, "servers": 2, "followers": 1, "iterations": 100_000_000})
    samples: dict[str, list[dict[str, int]]] = {}
    changes = failed = 0
    try:
        job.wait_until_trains()
        pids = long_lived(job)
        end_s = time.monotonic() + 60 * minutes
        told_s = 0.0
        for name, count in itertools.cycle(CHANGES):
            due_s = time.monotonic() + every_s
            try:
                getattr(job, name)(count)
                changes += 1
            except EpsError as error:
                failed += 1
                say(f"  {name}: {error}")
            for process, pid in pids.items():
                samples.setdefault(process, []).append(sample(pid))
            if time.monotonic() - told_s > 30:
                told_s = time.monotonic()
                clock = job.status()["clock"]
                say(f"  {changes} changes, clock {clock}: {samples['server-1'][-1]}")
            if time.monotonic() >= end_s:
                break
            time.sleep(max(0.0, due_s - time.monotonic()))
        status = job.status()
    finally:
        with suppress(EpsError):
            job.kill()
        shutil.rmtree(home, ignore_errors=True)
    return {
        "machine": machine(),
        "minutes": minutes,
        "changes": changes,
        "changes_refused": failed,
        "iterations": status["clock"],
        "members_lost": len(status.get("losses", ())),
        "processes": {process: compare(found) for process, found in samples.items()},
    }


def compare(found: list[dict[str, int]]) -> dict[str, Any]:
    """Return each value in the second and the last quarter, and whether it grew."""
    quarter = max(1, len(found) // 4)
    result = {}
    for key in found[0]:
        early = statistics.median(entry[key] for entry in found[quarter : 2 * quarter] or found)
        late = statistics.median(entry[key] for entry in found[-quarter:])
        result[key] = {"second_quarter": early, "last_quarter": late, "growth": rounded(late / max(1, early))}
        if key in MOST_GROWTH:
            result[key]["flat"] = late <= early * MOST_GROWTH[key] or late - early <= SLACK[key]
    return result


def row(process: str, key: str, value: dict[str, Any]) -> str:
    """Return one value as a row of the table."""
    verdict = {True: "flat", False: "GREW", None: "not judged"}[value.get("flat")]
    most = f"flat: at most {MOST_GROWTH[key]:g} times, or {SLACK[key]} more" if key in MOST_GROWTH else "no bar"
    change = f"{value['second_quarter']:.0f} -> {value['last_quarter']:.0f}"
    return f"{verdict:10s}  {process:11s} {key:18s} {change}  ({most})"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every-s", type=float, default=3.0, help="least seconds between changes")
    parser.add_argument("--parameters", type=float, default=0.2, help="millions of parameters")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    parser.add_argument("--quick", action="store_true", help="half a minute: check that it works")
    args = parser.parse_args()
    end_in_order()
    result = soak(0.5 if args.quick else args.minutes, args.every_s, args.parameters)
    text = json.dumps(result, indent=1)
    print(text)
    grew = False
    for process, values in result["processes"].items():
        for key, value in values.items():
            grew |= value.get("flat") is False
            say(row(process, key, value))
    write_json(args.output, text)
    return int(grew)


if __name__ == "__main__":
    run_to_the_end(main)
