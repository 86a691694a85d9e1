"""The comparison of the policies with real jobs: every bar of "Speed to reach" from one command.

    python -m benchmarks.paper.compare --repeats 3 --output compare.json
    python -m benchmarks.paper.compare --quick           # four short trials, to see whether it works

Each repeat runs the sweep of ``sweep.toml`` six times, with the same points and arrivals:

- ``elastic``, ``static``, ``static-stop`` and ``priority``;
- ``kill`` with the real time of a restart;
- ``kill-declared``, whose restarts take a declared delay (--restart).  By default it is the delay at which ``kill``
  loses about the share of Table 2 of the paper in the simulator.

Each repeat draws new points and arrivals.  Ratios are taken within a repeat; bars are judged at their medians.

The command writes --output after every run, and resumes from it.  With another declared delay it repeats only the runs
of ``kill-declared``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bench_common import end_in_order, machine, new_file, positive, say, write_results
from benchmarks.paper import measures
from benchmarks.paper.declared import declared_restart_s, with_restart, with_seed
from eps.errors import ConfigError
from hscheduler.core import events as e
from hscheduler.live.sweep import Sweep
from hscheduler.policies import POLICIES
from hscheduler.spec import Spec

SPEC = Path(__file__).with_name("sweep.toml")
#: Name of a run -> its policy.
RUNS = {
    "elastic": "elastic",
    "static": "static",
    "static-stop": "static-stop",
    "kill": "kill",
    "kill-declared": "kill",
    "priority": "priority",
}
#: The only setting that changes a single run of a repeat.
_DECLARED = "declared_restart_s"
#: How often the progress line is written, seconds.
_SAID_EVERY_S = 5.0
EXIT_INTERRUPTED = 130
#: Fits a sweep of a few seconds.
QUICK_RESTART_S = 1.0


class Results:
    """The runs so far, kept in a file.

    Parameters
    ----------
    path : Path, optional
        Written after every run.  If it exists, its runs with equal settings are kept.
    settings : dict
        Settings that must be equal for runs of the file to be kept.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self._path = path
        self._settings = settings
        self.runs: list[dict[str, Any]] = []
        if path is not None and path.exists():
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                raise ConfigError(f"output is {str(path)!r}, which is not a result of this command") from None
            theirs = before.get("settings") if isinstance(before, dict) else None
            if not isinstance(theirs, dict) or {**theirs, _DECLARED: None} != {**settings, _DECLARED: None}:
                raise ConfigError(f"output is {str(path)!r}, which has results of other settings: name another file")
            same_delay = theirs.get(_DECLARED) == settings[_DECLARED]
            self.runs = [run for run in before["runs"] if same_delay or run["name"] != "kill-declared"]

    def has(self, repeat: int, name: str) -> bool:
        """Return whether a run was made."""
        return any(run["repeat"] == repeat and run["name"] == name for run in self.runs)

    def add(self, repeat: int, name: str, took_s: float, report: dict[str, Any]) -> None:
        """Keep a run."""
        self.runs.append({"repeat": repeat, "name": name, "took_s": round(took_s, 3), "report": report})
        if self._path is not None:
            write_results(self._path, self.as_dict())

    def repeats(self) -> list[dict[str, dict[str, Any]]]:
        """Return the reports by name, one mapping for each repeat."""
        numbers = sorted({run["repeat"] for run in self.runs})
        return [{run["name"]: run["report"] for run in self.runs if run["repeat"] == number} for number in numbers]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        repeats = self.repeats()
        rows = [{name: measures.row(report) for name, report in repeat.items()} for repeat in repeats]
        return {
            "kind": "real",
            "settings": self._settings,
            "machine": machine(),
            "bars": [bar.as_dict() for bar in measures.bars(repeats)],
            "rows": rows,
            "runs": self.runs,
        }


class Progress:
    """Prints a line every few seconds, and one for every trial that ends."""

    def __init__(self, title: str, trials: int) -> None:
        self._title, self._trials = title, trials
        self._said_s = float("-inf")
        self._over = self._arrived = 0

    def __call__(self, now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        """Take an event."""
        self._arrived += isinstance(event, e.JobSubmitted | e.JobRefused)
        over = sum(isinstance(command, e.JobOver) for command in commands)
        self._over += over
        if over or now_s - self._said_s >= _SAID_EVERY_S:
            self._said_s = now_s
            say(f"{self._title}  {now_s:6.1f} s  {self._arrived} of {self._trials} trials arrived, {self._over} ended")


def quick(spec: Spec) -> Spec:
    """Return a sweep that takes seconds."""
    cluster = dataclasses.replace(spec.cluster, nodes=2)
    sweep = dataclasses.replace(spec.sweep, trials=4, arrival="poisson:0.4s", feedback_iteration=15, threshold=2)
    job = {**spec.job, "iterations": 60, "stretch_s": 0.002}
    return dataclasses.replace(spec, cluster=cluster, sweep=sweep, job=job)


def settings_of(spec: Spec, restart_s: float) -> dict[str, Any]:
    """Return the settings that results depend on."""
    return {
        "cluster": dataclasses.asdict(spec.cluster),
        "sweep": dataclasses.asdict(spec.sweep),
        "space": {each.name: each.table() for each in spec.space},
        "job": dict(spec.job),
        _DECLARED: restart_s,
    }


def run(spec: Spec, repeats: int, names: list[str], results: Results, restart_s: float) -> None:
    """Make the runs that are missing, each policy in turn."""
    for repeat in range(repeats):
        seeded = with_seed(spec, spec.sweep.seed + repeat)
        for number, name in enumerate(names, 1):
            if results.has(repeat, name):
                continue
            declared = with_restart(seeded, restart_s) if name == "kill-declared" else seeded
            title = f"[{repeat + 1}/{repeats}, {number}/{len(names)}] {name}"
            say(title)
            began_s = time.monotonic()
            # All files of the jobs are in this folder.
            with tempfile.TemporaryDirectory(prefix="eps-paper-") as home:
                os.environ["EPS_HOME"] = home
                report = Sweep(declared, RUNS[name], Progress(title, spec.sweep.trials)).run()
            results.add(repeat, name, time.monotonic() - began_s, report)
            say(f"{title}  makespan {report['makespan_s']:.1f} s")


def main() -> int:
    """Run the command; return its exit code."""
    args = _parser().parse_args()
    unknown = [name for name in args.runs if name not in RUNS]
    if unknown:
        say(f"compare: runs is {unknown[0]!r}, but must be of {', '.join(RUNS)}")
        return 2
    end_in_order()
    spec = with_seed(Spec.read(Path(args.spec)), args.seed)
    spec = quick(spec) if args.quick else spec
    try:
        restart_s = args.restart
        if restart_s is None:
            restart_s = QUICK_RESTART_S if args.quick else declared_restart_s(spec)
        say(f"kill-declared: a restart takes {restart_s:g} s")
        results = Results(args.output, settings_of(spec, restart_s))
    except ConfigError as error:
        say(f"compare: {error}")
        return 2
    interrupted = False
    try:
        run(spec, 1 if args.quick else args.repeats, args.runs, results, restart_s)
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted: results so far")
    repeats = results.repeats()
    if repeats:
        say(measures.table(repeats, args.runs))
        for bar in measures.bars(repeats):
            # A run that was not requested misses no bar.
            say(bar.line() if bar.measured is not None else f"not measured  {bar.name}")
    found = results.as_dict()
    print(json.dumps(found if args.full else {**found, "runs": len(results.runs)}, indent=1))
    return EXIT_INTERRUPTED if interrupted else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default=str(SPEC), metavar="SPEC.toml", help="default: sweep.toml beside this file")
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="default: 3")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the first repeat; the next has N + 1")
    parser.add_argument("--restart", type=float, metavar="S", help="the declared delay, instead of the simulator's")
    parser.add_argument("--quick", action="store_true", help="four short trials, once")
    parser.add_argument("--output", type=new_file, metavar="FILE", help="write all runs here; resume from this file")
    parser.add_argument("--full", action="store_true", help="also print the reports of all runs")
    parser.add_argument(
        "--runs", type=lambda text: text.split(","), default=list(RUNS), metavar="NAME,...", help="default: all"
    )
    return parser


assert set(RUNS.values()) <= set(POLICIES)

if __name__ == "__main__":
    sys.exit(main())
