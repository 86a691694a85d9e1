"""Profile an iteration: processor time of each process, and of the functions that use it.

    python benchmarks/hotspots.py                         # the two cases of peers.py
    python benchmarks/hotspots.py --case dense --seconds 20 --output hotspots.json
    python benchmarks/hotspots.py --quick

A job of two workers and one server trains.  py-spy (extra ``benchmarks``) samples each process in turn; it needs the
right to trace other processes.  A sample counts for the innermost Python function of a thread, in milliseconds of an
iteration.  Time in NumPy and SciPy counts for their caller.  Functions that only wait are left out.  Receiving and
polling both wait and work, so their time is an upper bound.  The kernel's count of processor time, in user and system
mode, is taken before the samples, because sampling slows a process down.  Without py-spy it is the only result.

The results need a quiet machine: under load, iterations take longer and caches are colder.  Each measurement waits
until other processes use less than a quarter of a core, for ``--patience`` seconds in all.  The result includes what
they used during the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# For the processes of the jobs, which import from this folder.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import eps  # noqa: E402
from benchmarks.bench_common import (  # noqa: E402
    MOST_FOREIGN_CORES,
    Sampler,
    end_in_order,
    machine,
    new_file,
    rounded,
    run_to_the_end,
    say,
    write_json,
)
from benchmarks.peers_data import CASES, Case, CaseFiles, prepare  # noqa: E402
from benchmarks.peers_systems import DEADLINE_S, eps_settings  # noqa: E402
from benchmarks.peers_watch import adopt_orphans, end_descendants  # noqa: E402
from eps.storage.atomic import read_json  # noqa: E402

SAMPLES_PER_S = 250
MOST_FUNCTIONS = 15
#: More iterations than any run completes.
ITERATIONS = 1_000_000
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*?)(:\d+)?\)$")
#: Functions in which the threads of a job only wait.
WAITING = frozenset(
    "Condition.wait socket.accept _worker _serve _run_channel_spin_thread.<locals>.channel_spin "
    "MemberSession._obey_all Sessions.Attach LocalResourceManager.wait Master._next_event Event.wait".split()
)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> tuple[float, float]:
    """Return (user, system) processor time of a process, in seconds."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * _TICK_S, int(fields[12]) * _TICK_S


def place_of(file: str) -> str:
    """Return the part of the system that a source file belongs to."""
    folder, _, rest = file.replace(os.sep, "/").rpartition("eps/")
    if folder or file.startswith("eps/"):
        return "eps/" + rest.split("/")[0]
    for name in ("numpy", "scipy", "grpc", "google/protobuf"):
        if f"{name}/" in file:
            return name
    return "Python"


def sampled(pid: int, seconds: float, iteration_s: float, folder: Path) -> dict[str, Any]:
    """Return the milliseconds of an iteration in each function and each part of one process."""
    raw = folder / f"{pid}.txt"
    words = ["py-spy", "record", "-f", "raw", "-r", str(SAMPLES_PER_S), "-d", str(round(seconds)), "-o", str(raw)]
    done = subprocess.run([*words, "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return {"absent": done.stderr.strip()[-300:]}
    functions: Counter[str] = Counter()
    places: Counter[str] = Counter()
    for line in raw.read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        found = _FRAME.match(stack.rpartition(";")[2])
        if found is not None and found["function"] not in WAITING:
            functions[f"{found['function']} ({found['file']})"] += int(count)
            places[place_of(found["file"])] += int(count)

    def ms(count: int) -> float:
        return rounded(1000 * iteration_s * count / (SAMPLES_PER_S * round(seconds)))

    return {
        "functions_ms": {name: ms(count) for name, count in functions.most_common(MOST_FUNCTIONS)},
        "places_ms": {name: ms(count) for name, count in places.most_common()},
    }


def _job(case: Case, files: CaseFiles, home: Path) -> eps.Job:
    os.environ["EPS_HOME"] = str(home)
    return eps.Job.start(name=f"hotspots-{case.name}", **eps_settings(files, ITERATIONS))


def measure(case: Case, cache: Path, seconds: float, patience_s: float) -> dict[str, Any]:
    """Train a case; return the processor time of its processes for an iteration, by function."""
    files = prepare(case, cache)
    tracing = shutil.which("py-spy") is not None
    result: dict[str, Any] = {"processes": {}}
    # Processes that are ended in a hurry may still write.
    with (
        tempfile.TemporaryDirectory(prefix="eps-hotspots-", ignore_cleanup_errors=True) as name,
        ExitStack() as ended,
    ):
        ended.callback(end_descendants)
        job = ended.enter_context(_job(case, files, Path(name)))
        job.wait_until_trains(DEADLINE_S)
        pids = {member["name"]: int(member["pid"]) for member in job.status()["members"]}
        pids["job master"] = int(read_json(job.directory.master_json)["pid"])
        supervisor = job.directory.record().pid
        sampler = Sampler([*pids.values(), supervisor], patience_s)
        (iteration_s, used_ms), _used = sampler.take(lambda: _processor_ms(job, pids, seconds))
        result["iteration_ms"] = rounded(1000 * iteration_s)
        for member, pid in sorted(pids.items()):
            say(f"{case.name}: {member}")
            user_ms, system_ms = used_ms[member]
            row: dict[str, Any] = {"user_ms": rounded(user_ms), "system_ms": rounded(system_ms)}
            sampler.wait()
            row |= sampled(pid, seconds, iteration_s, Path(name)) if tracing else {"absent": "py-spy is not installed"}
            result["processes"][member] = row
        result["noise"] = sampler.noise()
        job.kill("measured")
    return result


def _processor_ms(job: eps.Job, pids: dict[str, int], seconds: float) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the milliseconds of an iteration, and the processor time of each process in it (user, system)."""
    begun_s, clock, before = time.monotonic(), job.status()["clock"], {n: cpu_s(p) for n, p in pids.items()}
    time.sleep(seconds)
    iterations = max(1, job.status()["clock"] - clock)
    iteration_s, after = (time.monotonic() - begun_s) / iterations, {n: cpu_s(p) for n, p in pids.items()}
    return iteration_s, {
        name: (
            1000 * (after[name][0] - before[name][0]) / iterations,
            1000 * (after[name][1] - before[name][1]) / iterations,
        )
        for name in pids
    }


def table(results: dict[str, Any]) -> list[str]:
    """Return the results as a table."""
    lines = []
    for case, result in results.items():
        foreign = result["noise"]["foreign_cores_max"]
        quiet = "" if foreign <= MOST_FOREIGN_CORES else ": not quiet, the times are too long"
        lines.append(
            f"{case}: an iteration takes {result['iteration_ms']:.2f} ms; others used {foreign:.2f} cores{quiet}"
        )
        for member, row in result["processes"].items():
            lines.append(f"  {member}: {row['user_ms']:.2f} ms of user and {row['system_ms']:.2f} of system time")
            lines += [
                f"    {took_ms:6.2f} ms  {name}" for name, took_ms in list(row.get("functions_ms", {}).items())[:8]
            ]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 130 if it was interrupted."""
    default_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eps-peers"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this case")
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="duration of the measurement of processor time, and of the samples of each process",
    )
    parser.add_argument(
        "--patience", type=float, default=240.0, metavar="S", help="limit of all waits for a quiet machine"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=default_cache,
        help="folder for the data, shared with peers.py (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="two seconds, no waits: check that it works")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    arguments = parser.parse_args(argv)
    seconds = 2.0 if arguments.quick else arguments.seconds
    if not seconds >= 1:
        parser.error(f"--seconds is {seconds}, but must be at least 1")
    patience_s = 0.0 if arguments.quick else arguments.patience
    chosen = [case for case in CASES if arguments.case in (None, case.name)]
    adopt_orphans()
    end_in_order()
    results = {case.name: measure(case, arguments.cache.absolute(), seconds, patience_s) for case in chosen}
    for line in table(results):
        say(line)
    text = json.dumps({"benchmark": "hotspots", "machine": machine(), "cases": results}, indent=1)
    write_json(arguments.output, text)
    print(text)
    return 0


if __name__ == "__main__":
    run_to_the_end(main)
