"""The figures of the paper, one command each.

    python -m benchmarks.paper.figures fig14                          # simulated, at the paper's size
    python -m benchmarks.paper.figures fig14 --real compare.json      # of real runs (benchmarks.paper.compare)
    python -m benchmarks.paper.figures fig2 --real case_study.json    # also fig3 (benchmarks.paper.case_study)
    python -m benchmarks.paper.figures fig20 --real overhead.json     # also fig21 (benchmarks.paper.overhead)
    python -m benchmarks.paper.figures fig22 --real elasticity.json   # benchmarks.paper.elasticity
    python -m benchmarks.paper.figures all --out FOLDER               # everything

Each command writes NAME_simulated or NAME_real as .png, .svg and .json.  The JSON has the numbers, and those of the
paper that its text gives.  `all` reads compare.json, case_study.json, overhead.json and elasticity.json in FOLDER, if
they exist.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench_common import NO_PICTURE, can_draw, positive, say
from benchmarks.paper import case_study, elasticity, fig_jobs, fig_load, fig_sweeps
from benchmarks.paper.sources import Real, Simulated, Source
from eps.errors import ConfigError

OUT = Path(__file__).resolve().parent.parent / "results" / "paper"

SWEEPS: dict[str, Callable[[Source, Path, str], None]] = {
    "fig14": fig_sweeps.fig14,
    "fig15": fig_sweeps.fig15,
    "fig16": fig_sweeps.fig16,
    "fig17": fig_sweeps.fig17,
    "fig18": fig_sweeps.fig18,
    "fig19": fig_sweeps.fig19,
    "table2": fig_sweeps.table2,
}
CASE_STUDY = {"fig2": fig_jobs.fig2, "fig3": fig_jobs.fig3}
OVERHEAD = {"fig20": fig_jobs.fig20, "fig21": fig_jobs.fig21}
NAMES = ("fig2", "fig3", *SWEEPS, "fig20", "fig21", "fig22", "load", "all")


def read(path: Path, key: str) -> dict[str, Any]:
    """Return the results of a command.

    Raises
    ------
    ConfigError
        The file cannot be read, or has no such key.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(found, dict) or key not in found:
        raise ConfigError(f"{path} has no {key!r}: it is the result of another command")
    return found


def draw(name: str, args: argparse.Namespace, simulated: Simulated) -> None:
    """Draw a figure from the source that the flags name."""
    suffix = simulated.suffix
    if name in SWEEPS:
        if args.real is None:
            SWEEPS[name](simulated, args.out, suffix)
        else:
            SWEEPS[name](Real(args.real), args.out, "real")
    elif name in CASE_STUDY:
        if args.real is None:
            CASE_STUDY[name]({"kind": "simulated", "reports": case_study.simulated()}, args.out, "simulated")
        else:
            CASE_STUDY[name](read(args.real, "reports"), args.out, "real")
    elif name in OVERHEAD:
        if args.real is None:
            raise ConfigError(f"{name} is of real jobs only: give --real FILE of benchmarks.paper.overhead")
        OVERHEAD[name](read(args.real, name if name == "fig20" else "fig21a"), args.out, "real")
    elif name == "fig22":
        found = elasticity.simulated() if args.real is None else read(args.real, "litz")
        fig_jobs.fig22(found, args.out, found["kind"])
    else:
        fig_load.load(args.out, args.seeds)


def everything(args: argparse.Namespace) -> None:
    """Draw all simulated figures, and those of the real results in the folder."""
    simulated = Simulated(args.seeds)
    for name in NAMES[:-1]:
        if name not in OVERHEAD:
            draw(name, args, simulated)
    draw("fig14", args, Simulated(args.seeds, papers_costs=True))
    draw("table2", args, Simulated(args.seeds, papers_costs=True))
    real = (("compare", SWEEPS), ("case_study", CASE_STUDY), ("overhead", OVERHEAD), ("elasticity", ("fig22",)))
    for file, names in real:
        path = args.out / f"{file}.json"
        if not path.exists():
            say(f"no {path}: {', '.join(names)} are drawn simulated only")
            continue
        for name in names:
            draw(name, argparse.Namespace(**{**vars(args), "real": path}), simulated)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=NAMES)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--real", type=Path, metavar="FILE", help="draw these results of real runs")
    kinds.add_argument("--simulated", action="store_true", help="simulate at the paper's size; the default")
    parser.add_argument("--papers-costs", action="store_true", help="costs of changes are those of the paper")
    parser.add_argument("--seeds", type=positive, default=10, metavar="N", help="simulated repeats; default: 10")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="default: benchmarks/results/paper")
    args = parser.parse_args()
    if not can_draw():
        parser.error(NO_PICTURE)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        if args.figure == "all":
            everything(args)
        else:
            draw(args.figure, args, Simulated(args.seeds, args.papers_costs))
    except ConfigError as error:
        say(f"figures: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
