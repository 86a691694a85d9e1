"""Fixed sizes, resizing policies and Ray Tune on the same sweep, with real processes and emulated compute.

    python -m benchmarks.sweeps.real --output real.json                  # everything, three times: hours
    python -m benchmarks.sweeps.real --only curve,sha27 --output real.json   # parts, one after the other, into one file
    python -m benchmarks.sweeps.real --quick                             # every part once, with short trials

Trials train softmax on digits; an iteration sleeps, so that two cores carry 16 containers (``workload.py``).  Ray Tune
is installed into an environment under ``--cache``; its trials sleep as long as EPS's take, and report the recorded
metrics of the same points.  A run in which processes used more than 60 % of the cores, or others more than 0.3 of one,
is void, and is repeated once.

Of fixed sizes and widths all are tried in the first repeat, the two fastest ones in the others.  A result file that
exists is continued: runs that it has are not repeated.

curve               seconds of an iteration with 1, 2, 4, 8, 16 containers; all other parts need it
sha27, sha81        27 or 81 trials at once under synchronous successive halving: each policy trains the same iterations
asha27, asha81      the same under ASHA, with Ray Tune: each width, and its ResourceChangingScheduler
poisson27, poisson81    trials that arrive one by one, at 0.8 of what the cluster can compute, under ASHA
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench_common import (
    NO_PICTURE,
    can_draw,
    end_in_order,
    exit_code,
    new_file,
    positive,
    run_to_the_end,
    say,
    write_results,
)
from benchmarks.peers_setup import AbsentError, Environment
from benchmarks.peers_watch import RunError, adopt_orphans, wait_until_quiet
from benchmarks.sweeps import results as found_results
from benchmarks.sweeps import speedup
from benchmarks.sweeps.cases import CURVE, PARTS, SIZES, Case, cases_of, to_repeat
from benchmarks.sweeps.drawing import draw
from benchmarks.sweeps.results import Results
from benchmarks.sweeps.running import (
    Runner,
    best_value,
    early_feedback_s,
    ray_environment,
    target_of,
    target_s,
)
from benchmarks.sweeps.speedup import MEASURED_SIZES
from benchmarks.sweeps.workload import PACES, Size
from eps.errors import ConfigError

#: Runs that others disturbed are made again, at most so often.
TRIES = 2
#: A run is void, too, if others used more cores.
MOST_FOREIGN = 0.3
QUICK_SIZES = (1, 4)


def measure_curve(results: Results, repeats: int, patience_s: float) -> None:
    """Measure the speed-up of a job."""
    for repeat in range(repeats):
        for size in MEASURED_SIZES if repeat % 2 else reversed(MEASURED_SIZES):
            case = f"hosts-{size}"
            if results.has(CURVE, case, repeat):
                continue
            wait_until_quiet(patience_s)
            with tempfile.TemporaryDirectory(prefix="sw", dir="/tmp", ignore_cleanup_errors=True) as home:
                os.environ["EPS_HOME"] = home
                found = speedup.measure(results.pace, Size(hosts=size))
            results.add(CURVE, case, repeat, found)
            say(f"  {repeat + 1} {case:10s} {found}")


def run_part(results: Results, runner: Runner, part: str, args: argparse.Namespace) -> None:
    """Run the cases of a part, in turn in each repeat."""
    cases = cases_of(part, args.sizes)
    for repeat in range(args.repeats):
        chosen = cases if repeat == 0 else to_repeat(cases, results.makespans(part, 0))
        chosen = [case for case in chosen if not args.cases or case.name in args.cases]
        # The other way round each time, so that a drift of the machine's speed does not favour a case.
        for case in chosen if repeat % 2 == 0 else reversed(chosen):
            if results.has(part, case.name, repeat):
                continue
            tries = 1 if args.quick else TRIES
            while tries and not _run(results, runner, case, repeat, args.patience_s):
                tries -= 1
    say(found_results.table(results, part))


def _run(results: Results, runner: Runner, case: Case, repeat: int, patience_s: float) -> bool:
    """Run a case and keep it; return whether it counts, undisturbed."""
    wait_until_quiet(patience_s)
    began_s = time.monotonic()
    try:
        found = runner.run(case)
    except RunError as error:
        say(f"  {repeat + 1} {case.part} {case.name}: {error}")
        return False
    found["early_feedback_s"] = early_feedback_s(found, results.pace.grace)
    found["best_value"] = best_value(found, results.pace.most)
    found["target_s"] = target_s(found, target_of(case.trials, results.pace.most))
    found["void"] = found["void"] or found["foreign_cores"] > MOST_FOREIGN
    results.add(case.part, case.name, repeat, found)
    say(
        f"  {repeat + 1} {case.part} {case.name:18s} {found['makespan_s']:7.1f} s, {found['iterations_trained']} "
        f"iterations, {found['cores']:.2f} cores ({found['foreign_cores']:.2f} of others), "
        f"{time.monotonic() - began_s:.0f} s{', VOID' if found['void'] else ''}"
    )
    return not found["void"]


def parts_of(text: str) -> list[str]:
    """Return the parts to run; an argument type for :mod:`argparse`."""
    found = text.split(",")
    if unknown := sorted(set(found) - set(PARTS)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} must be one of {', '.join(PARTS)}")
    return [part for part in PARTS if part in found]


def sizes_of(text: str) -> list[int]:
    """Return sizes in containers; an argument type for :mod:`argparse`."""
    found = [int(each) for each in text.split(",") if each.isdecimal()]
    if not found or not set(found) <= set(range(1, 17)):
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers from 1 to 16, joined by commas")
    return found


def _parser() -> argparse.ArgumentParser:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eps-sweeps"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=parts_of, default=list(PARTS), metavar="PART,...", help="parts to run")
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), metavar="NAME,...", help="only these runs of them"
    )
    parser.add_argument("--sizes", type=sizes_of, default=list(SIZES), metavar="N,...", help="fixed sizes and widths")
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="repeats of each run (default 3)")
    parser.add_argument("--pace", choices=("0.5", "1", "1.25"), default="1", help="seconds of an iteration")
    parser.add_argument("--patience-s", type=float, default=10.0, help="longest wait for a quiet machine before a run")
    parser.add_argument("--cache", type=Path, default=cache, help="folder for Ray's environment")
    parser.add_argument("--output", type=new_file, help="write the JSON to this file after every run; continue it")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw the results into this folder, PNG and SVG")
    parser.add_argument("--redraw", action="store_true", help="run nothing: draw what --output has")
    parser.add_argument("--quick", action="store_true", help="short trials, two sizes, once: check that it works")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, with ``--quick`` 0."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.pictures and not can_draw():
        parser.error(NO_PICTURE)
    if args.redraw:
        if not args.pictures or not args.output:
            parser.error("--redraw needs --output, the results, and --pictures, the folder to draw into")
        draw(json.loads(args.output.read_text(encoding="utf-8")), args.pictures)
        return 0
    pace = PACES["quick" if args.quick else args.pace]
    if args.quick:
        args.repeats, args.patience_s, args.sizes = 1, 0.0, list(QUICK_SIZES)
    try:
        results = Results(args.output, pace)
        if CURVE not in args.only and not results.seconds():
            raise ConfigError("the other parts need the curve: run --only curve with the same --output first")
        end_in_order()
        adopt_orphans()
        ray: Environment | None = None
        if any(case.is_ray for part in args.only for case in cases_of(part)):
            ray, results.versions["ray"] = ray_environment(args.cache)
    except (AbsentError, ConfigError) as error:
        say(f"real: {error}")
        return 2
    if CURVE in args.only:
        measure_curve(results, args.repeats, args.patience_s)
    runner = Runner(pace, results.seconds(), ray, voids=not args.quick)
    for part in args.only:
        if part != CURVE:
            run_part(results, runner, part, args)
    document = results.as_dict()
    if args.pictures:
        draw(document, args.pictures)
    bars = found_results.bars(results)
    for bar in bars:
        say(bar.line())
    if args.output is not None:
        write_results(args.output, document)
    print(json.dumps({**document, "runs": len(results.runs)}, indent=1))
    return exit_code(bars, args.quick)


if __name__ == "__main__":
    run_to_the_end(main)
