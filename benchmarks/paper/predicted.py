"""Makespans of the real comparison, beside those that the simulator predicts.

    python -m benchmarks.paper.predicted --real compare.json --output predicted.json

A model of speeds and costs is fitted to some runs of one repeat of ``benchmarks.paper.compare``.  Then each run is
simulated with this model and its own points, arrivals and early feedback, as ``hscheduler simulate --like`` does.  The
runs of the fit are marked.  The command takes a second and is deterministic.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench_common import new_file, say, write_json
from eps.errors import ConfigError, EpsError
from hscheduler.simulator.fit import fit, spec_of
from hscheduler.simulator.run import simulate_like

REAL = Path(__file__).parents[1] / "results" / "paper" / "compare.json"
#: Runs of the first repeat that the model is fitted to: each shows another kind of change.
FITTED = ("elastic", "static", "kill")
#: How far from 1 predicted / real may be.
WITHIN = 0.1


def predicted(found: Mapping[str, Any], fitted: Sequence[str] = FITTED, repeat: int = 0) -> dict[str, Any]:
    """Return predicted and real makespans by name of the run.

    Parameters
    ----------
    found : mapping
        The output of ``benchmarks.paper.compare``.
    fitted : sequence of str
        Names of the runs that the model is fitted to.
    repeat : int
        Number of their repeat, from 0.

    Raises
    ------
    ConfigError
        ``found`` has no such runs, or is not such an output.
    """
    try:
        # Repeated runs are last in the file.
        runs = {(run["name"], run["repeat"]): run["report"] for run in found["runs"]}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"this is not a result of benchmarks.paper.compare: {error!r}") from None
    missing = [name for name in fitted if (name, repeat) not in runs]
    if missing:
        raise ConfigError(f"fit is {missing[0]!r}, but must be a run of repeat {repeat} of what --real holds")
    model = fit([runs[name, repeat] for name in fitted])
    by_name: dict[str, list[dict[str, Any]]] = {}
    for name, number in sorted(runs):
        real = runs[name, number]
        like = simulate_like(spec_of(real), real, real["policy"], model)["like"]
        is_fitted = number == repeat and name in fitted
        by_name.setdefault(name, []).append({"repeat": number, "policy": real["policy"], **like, "fitted": is_fitted})
    ratios = {name: [run["predicted_over_real"] for run in each] for name, each in by_name.items()}
    outside = sum(abs(value - 1) > WITHIN for each in ratios.values() for value in each)
    return {
        "kind": "simulated like real",
        "settings": found.get("settings"),
        "fitted_to": {"repeat": repeat, "runs": list(fitted)},
        "model": model.as_dict(),
        "runs": by_name,
        "median_predicted_over_real": {name: round(median(each), 4) for name, each in ratios.items()},
        "within": WITHIN,
        "runs_outside": outside,
    }


def main() -> int:
    """Run the command; return its exit code."""
    args = _parser().parse_args()
    try:
        found = predicted(json.loads(args.real.read_text(encoding="utf-8")), args.fit, args.repeat)
    except (OSError, ValueError, EpsError) as error:
        say(f"predicted: {args.real}: {error}")
        return 2
    for name, runs in found["runs"].items():
        told = ", ".join(
            f"{run['predicted_makespan_s']:.1f} / {run['real_makespan_s']:.1f} = {run['predicted_over_real']:.2f}"
            for run in runs
        )
        say(f"{name:>13}  {told}")
    text = json.dumps(found, indent=1)
    write_json(args.output, text)
    print(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=Path, default=REAL, metavar="FILE", help="default: that of results/paper")
    parser.add_argument(
        "--fit",
        type=lambda text: text.split(","),
        default=list(FITTED),
        metavar="NAME,...",
        help=f"runs that the model is fitted to; default: {','.join(FITTED)}",
    )
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="repeat of these runs, from 0; default: 0")
    parser.add_argument("--output", type=new_file, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
