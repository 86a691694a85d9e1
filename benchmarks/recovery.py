"""Measure how long a job stops when one of its processes is killed or hangs.

    python benchmarks/recovery.py [--repeats 20] [--kinds kill,stop] [--victims worker,server,master]
        [--parameters 10] [--output out.json] [--picture out.png] [--quick]

A job of 4 workers and 4 servers with followers trains a dense model.  One of its processes gets SIGKILL or SIGSTOP at a
random moment and is replaced; then the next one is hit.

The result is the longer of the first two iterations without the lost member, less a usual iteration (the median of the
twenty before).  Two are compared, because a signal at the end of an iteration delays the next one.  For the job master
it is the longest iteration that begins within two seconds.  ``next_s`` is the time from the signal to the next complete
iteration.  ``longest_s`` is the longest iteration of the next two seconds, less a usual one; it includes the cost of a
new member.

For comparison, the supervisor of the same job is killed and the job is resumed with ``eps resume``.  The benchmark
takes a quarter of an hour.  JSON goes to standard output, a table to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# For the processes of the jobs, which import from this folder.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))

from benchmarks.bench_common import (  # noqa: E402
    end_in_order,
    machine,
    parse_with_results,
    picture_file,
    plotting,
    positive,
    ratio,
    redrawn,
    rounded,
    run_to_the_end,
    say,
    spread,
)
from benchmarks.resize import NUM_FEATURES, job_settings, scale_of, write_data  # noqa: E402
from eps.cluster.supervisor.process import MASTER  # noqa: E402
from eps.errors import EpsError  # noqa: E402
from eps.job.client import Job  # noqa: E402
from eps.storage.atomic import read_json  # noqa: E402

MEMBERS = 4
SPLITS = 8
#: Number of iterations whose median is the usual time.
USUAL = 20
#: Time for the job to regain its size and followers after a signal; otherwise the measurement fails.
SETTLE_S = 60.0
#: Iterations that begin within this time after a signal may be affected.
AFTER_S = 2.0
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
#: Bars, in seconds after the signal, or for a hang after the timeout for silence.
BARS = {"worker": 0.3, "server": 0.3, "master": 1.0}


def settings(millions: float, data: Path, deadline_s: float) -> dict[str, Any]:
    """Return the settings of the job."""
    return {
        **job_settings(scale_of(millions, 1, quick=True), data, "sgd"),
        "splits": SPLITS,
        "partitions": 3 * MEMBERS,
        "workers": MEMBERS,
        "servers": MEMBERS,
        "followers": 1,
        # More than it completes: it is killed at the end.
        "iterations": 1_000_000,
        "member_timeout_s": deadline_s,
    }


class Watched:
    """A job, with its times converted to this process's clock."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def offset_s(self) -> float:
        """Return the offset from the job's clock to this process's, in seconds."""
        best = (float("inf"), 0.0)
        for _ in range(5):
            asked_s = time.monotonic()
            elapsed_s = self.job.status()["elapsed_s"]
            lasted_s = time.monotonic() - asked_s
            best = min(best, (lasted_s, asked_s + lasted_s / 2 - elapsed_s))
        return best[1]

    def completed_s(self) -> list[float]:
        """Return the end of each iteration on this process's clock."""
        offset_s = self.offset_s()
        return [entry["seconds"] + offset_s for entry in self.job.history()]

    def hurt(self, before: dict[str, Any]) -> None:
        """Wait until the job has noticed the loss."""
        deadline_s = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline_s:
            with suppress(EpsError):
                status = self.job.status()
                if any(status[name] > before[name] for name in ("membership_version", "generation")):
                    return
            time.sleep(0.05)
        raise TimeoutError(f"the job did not notice the signal within {SETTLE_S:g} s: {self.job.status()}")

    def settle(self) -> dict[str, Any]:
        """Wait until the job has its size and nothing changes; return its status."""
        deadline_s = time.monotonic() + SETTLE_S
        clock, calm = -1, 0
        status: dict[str, Any] = {}
        while time.monotonic() < deadline_s:
            with suppress(EpsError):
                status = self.job.status()
                whole = (
                    status["workers"] == status["servers"] == MEMBERS and not status["plan"] and not status["queued"]
                )
                calm = calm + 1 if whole and status["clock"] > clock else 0
                clock = status["clock"]
                # Long enough for a follow-up change to begin, and for usual iterations in between.
                if calm >= 12:
                    return status
            time.sleep(0.2)
        raise TimeoutError(f"the job did not get back to its size within {SETTLE_S:g} s: {status}")


def victim(watched: Watched, status: dict[str, Any], role: str, rng: random.Random) -> int:
    """Return the pid of a process to hit."""
    if role == "master":
        return int(read_json(watched.job.directory.master_json)["pid"])
    return int(rng.choice([member["pid"] for member in status["members"] if member["role"] == role]))


def hit(watched: Watched, role: str, kind: str, rng: random.Random, deadline_s: float) -> dict[str, float]:
    """Hit one process and return the delays, in seconds."""
    status = watched.settle()
    before_s = watched.completed_s()[-USUAL - 1 :]
    usual_s = statistics.median([b - a for a, b in pairwise(before_s)])
    time.sleep(rng.random() * usual_s)
    pid = victim(watched, status, role, rng)
    os.kill(pid, SIGNALS[kind])
    signalled_s = time.monotonic()
    watched.hurt(status)
    watched.settle()
    completed_s = watched.completed_s()
    following = next(i for i, at_s in enumerate(completed_s) if at_s > signalled_s)
    waited_s = deadline_s if kind == "stop" else 0.0
    after = [b - a for a, b in pairwise(completed_s[following - 1 :]) if a < signalled_s + waited_s + AFTER_S]
    longest_s = max(after) - usual_s
    without = None if role == "master" else first_clock_without(watched)
    return {
        "usual_s": usual_s,
        "recovery_s": longest_s if without is None else longer_of_two(completed_s, without) - usual_s,
        "longest_s": longest_s,
        "next_s": completed_s[following] - signalled_s,
    }


def first_clock_without(watched: Watched) -> int:
    """Return the first clock under the latest membership that took over from lost members."""
    log = watched.job.directory.log(MASTER).read_text(errors="replace")
    return max(0, int(re.findall(r": M (?:taken-over|rolled-back) .* clock=(-?\d+)", log)[-1]))


def longer_of_two(completed_s: list[float], clock: int) -> float:
    """Return the time of the longer of the iterations ``clock`` and ``clock + 1``."""
    return max(b - a for a, b in pairwise(completed_s[max(0, clock - 1) : clock + 2]))


def resume(millions: float, data: Path, repeats: int, deadline_s: float) -> list[float]:
    """Kill the whole job and resume it from a checkpoint; return the delay in seconds."""
    found = []
    for number in range(repeats):
        name = f"resumed-{number}"
        job = Job.start(name=name, detach=True, **{**settings(millions, data, deadline_s), "checkpoint_every": "10"})
        watched = Watched(job)
        while not (status := watched.settle()).get("checkpoints", {}).get("complete"):
            time.sleep(0.1)
        usual_s = status["iteration_s"]
        supervisor = job.directory.record().pid
        os.kill(supervisor, signal.SIGKILL)
        killed_s = time.monotonic()
        while job.running:
            time.sleep(0.002)
        subprocess.run([sys.executable, "-m", "eps", "resume", name, "--detach"], check=True, capture_output=True)
        again = Watched(Job.find(name))
        # The history begins with the clocks of the checkpoint.
        resumed_clock = int(again.job.directory.record().runtime["start"]["clock"])
        completed_s: list[float] = []
        while len(completed_s) <= resumed_clock:
            with suppress(EpsError):
                completed_s = again.completed_s()
            time.sleep(0.01)
        found.append(completed_s[resumed_clock] - killed_s - usual_s)
        say(f"  resume {number + 1}: {found[-1]:.3f} s")
        again.job.kill()
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Hit a job repeatedly, in a temporary folder; return the result."""
    # Killed processes may still write.
    with tempfile.TemporaryDirectory(prefix="eps-recovery-", ignore_cleanup_errors=True) as folder:
        return measure_in(Path(folder), args)


def measure_in(home: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Hit a job repeatedly; return the result."""
    rng = random.Random(args.seed)
    os.environ["EPS_HOME"] = str(home / "home")
    data = home / "data.csv"
    write_data(data)
    cases = [(role, kind) for kind in args.kinds.split(",") for role in args.victims.split(",")]
    found: dict[tuple[str, str], list[dict[str, float]]] = {case: [] for case in cases}
    job = Job.start(name="recovery", **settings(args.parameters, data, args.deadline_s))
    try:
        job.wait_until_trains()
        watched = Watched(job)
        for number in range(args.repeats):
            for role, kind in cases:
                values = hit(watched, role, kind, rng, args.deadline_s)
                found[role, kind].append(values)
                say(
                    f"  {number + 1:2d} {kind} {role:6s} {values['recovery_s'] * 1e3:7.0f} ms more than the usual "
                    f"{values['usual_s'] * 1e3:.0f} ms; {values['next_s'] * 1e3:.0f} ms to the next iteration"
                )
        report = job.status()
    finally:
        with suppress(EpsError):
            job.kill_at_once()
    resumed = resume(args.parameters, data, args.resumes, args.deadline_s) if args.resumes else []
    return {
        "machine": machine(),
        "parameters": round(args.parameters * 1e6 / NUM_FEATURES) * NUM_FEATURES,
        "workers": MEMBERS,
        "servers": MEMBERS,
        "deadline_s": args.deadline_s,
        "iterations": report["clock"],
        "resume_s": spread(resumed) if resumed else None,
        "cases": [case(role, kind, values, resumed, args.deadline_s) for (role, kind), values in found.items()],
    }


def case(
    role: str, kind: str, values: list[dict[str, float]], resumed: list[float], deadline_s: float
) -> dict[str, Any]:
    """Return the result of one case; for a hang, the time after the timeout for silence."""
    less_s = deadline_s if kind == "stop" else 0.0
    recovery = [v["recovery_s"] - less_s for v in values]
    median_s = statistics.median(recovery)
    return {
        "victim": role,
        "signal": kind,
        "recovery_s": spread(recovery),
        "longest_s": spread([v["longest_s"] - less_s for v in values]),
        "next_s": spread([v["next_s"] for v in values]),
        "usual_s": rounded(statistics.median([v["usual_s"] for v in values])),
        "resume_over_recovery": ratio(statistics.median(resumed), median_s, 1) if resumed else None,
        "bar_s": BARS[role],
        "kept": median_s <= BARS[role],
    }


def table(result: dict[str, Any]) -> str:
    """Return the result as a table."""
    lines = ["      SIGNAL  VICTIM   RECOVERY (median, min-max)      BAR      RESUME/RECOVERY"]
    for entry in result["cases"]:
        r = entry["recovery_s"]
        lines.append(
            f"{'pass' if entry['kept'] else 'FAIL'}  {entry['signal']:7s} {entry['victim']:8s} "
            f"{r['median'] * 1e3:6.0f} ms ({r['min'] * 1e3:.0f}-{r['max'] * 1e3:.0f})".ljust(55)
            + f"{entry['bar_s'] * 1e3:.0f} ms   {entry['resume_over_recovery'] or '-'}"
        )
    if result["resume_s"]:
        lines.append(f"kill of everything and eps resume: {result['resume_s']['median']:.2f} s")
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw recovery times as points, with the bars."""
    pyplot = plotting()
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    names = []
    for x, entry in enumerate(result["cases"]):
        values = entry["recovery_s"]["values"]
        axes.plot([x + 0.3 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))], values, ".", color="C0")
        axes.plot([x - 0.3, x + 0.3], [entry["recovery_s"]["median"]] * 2, "-", color="C0", label="" if x else "median")
        axes.plot([x - 0.35, x + 0.35], [entry["bar_s"]] * 2, "--", color="C3", label="" if x else "promised")
        names.append(f"{entry['signal']}\n{entry['victim']}")
    if result["resume_s"]:
        axes.axhline(result["resume_s"]["median"], color="0.5", linewidth=1, label="kill all, eps resume")
    axes.set_xticks(range(len(names)), names)
    axes.axhline(0, color="0.8", linewidth=1, zorder=0)
    axes.set_ylabel("longest iteration less a usual one, s\n(stop: less the deadline)")
    axes.set_title(f"{result['parameters'] / 1e6:g} M parameters, {MEMBERS} workers, {MEMBERS} servers")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=20, help="signals of each kind to each victim")
    parser.add_argument("--kinds", default="kill,stop", help="kill, stop, or both")
    parser.add_argument("--victims", default="worker,server,master", help="processes to hit")
    parser.add_argument("--parameters", type=float, default=10.0, help="millions of parameters")
    parser.add_argument("--deadline-s", type=float, default=3.0, help="timeout for silent members")
    parser.add_argument("--resumes", type=int, default=3, help="kills of the whole job, with eps resume")
    parser.add_argument("--seed", type=int, default=0, help="seed of the victims and moments")
    args = parse_with_results(parser, argv, "a small model, twice each: check that it works", picture_file)
    if args.quick:
        args.repeats, args.parameters, args.resumes = min(args.repeats, 2), 0.1, min(args.resumes, 1)
    for name, known in (("kinds", set(SIGNALS)), ("victims", set(BARS))):
        unknown = set(getattr(args, name).split(",")) - known
        if unknown:
            parser.error(f"--{name} {', '.join(sorted(unknown))}: known are {', '.join(sorted(known))}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, with ``--quick`` 0."""
    args = parse(argv)
    if redrawn(args, draw):
        return 0
    end_in_order()
    result = measure(args)
    text = json.dumps(result, indent=1)
    print(text)
    say(table(result))
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")
    if args.picture:
        draw(result, args.picture)
    return 0 if args.quick or all(entry["kept"] for entry in result["cases"]) else 1


if __name__ == "__main__":
    run_to_the_end(main)
