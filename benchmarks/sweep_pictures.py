"""Pictures of a comparison of policies: the best value over time, what containers did, and makespans by rule.

    python -m benchmarks.sweep_pictures compare.json --out FOLDER               # of hscheduler compare --report
    python -m benchmarks.sweep_pictures sha.json asha.json --name rules --out FOLDER

Several files are drawn side by side if their stopping rules differ; those of the same rule are repeats.  Each picture
is written as .png, .svg and .json (its numbers).  Labels say whether runs are real, and whether computing is emulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench_common import NO_PICTURE, can_draw, say
from benchmarks.paper import drawing, timelines
from eps.errors import ConfigError, EpsError
from hscheduler.cli.commands.results import read_reports

Report = Mapping[str, Any]
#: Rule -> policy -> the reports of its repeats.
Runs = dict[str, dict[str, list[Report]]]
WINDOWS = 160
#: What containers do, from the bottom of the picture, and its colour.
USES = {"computing": "#0072B2", "waiting": "#E69F00", "idle": "#E4E4E4"}
#: Colours of policies that :mod:`benchmarks.paper.drawing` does not name.
_OTHERS = ("#000000", "#8C510A", "#01665E", "#762A83")


def runs_in(paths: Sequence[Path]) -> Runs:
    """Return the reports of files of ``hscheduler compare``, ``sweep`` or ``simulate``.

    Raises
    ------
    EpsError
        A file cannot be read, or has reports of an earlier version.
    """
    found: Runs = {}
    for path in paths:
        for policy, report in read_reports(path).items():
            if "container_s" not in report:
                raise ConfigError(f"{path} was written by an earlier version, without what containers did")
            found.setdefault(str(report.get("stop", "")), {}).setdefault(policy, []).append(report)
    return found


def is_simulated(report: Report) -> bool:
    """Return whether a report comes from the simulator, whose trials have no jobs."""
    return not any(trial["name"] for trial in report["trials"])


def about(runs: Runs) -> str:
    """Return where the numbers are from."""
    reports = [report for policies in runs.values() for each in policies.values() for report in each]
    report = reports[0]
    spec = report["spec"] or {"job": {}, "cluster": {}, "sweep": {}}
    job, cluster = spec["job"], spec["cluster"]
    kind = "SIMULATED" if is_simulated(report) else "REAL processes"
    containers = cluster.get("nodes", 0) * cluster.get("vcores", 0) // max(1, cluster.get("container_vcores", 1))
    emulated = (
        f"; computing is EMULATED: a worker sleeps {job['stretch_s']:g} s for each of its splits"
        if job.get("stretch_s")
        else ""
    )
    repeats = max(len(each) for policies in runs.values() for each in policies.values())
    return (
        f"{kind}: {len(report['trials'])} trials of {job.get('model', 'a job')} on {containers} containers, arrivals "
        f"{spec['sweep'].get('arrival', 'unknown')}, {repeats} repeat(s){emulated}"
    )


def colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each policy."""
    others = [name for name in names if name not in drawing.COLOURS]
    spare = {name: _OTHERS[k % len(_OTHERS)] for k, name in enumerate(others)}
    return {name: drawing.COLOURS.get(name) or spare[name] for name in names}


def label(policy: str) -> str:
    """Return the name of a policy in a picture."""
    return drawing.LABELS.get(policy, policy)


def best_so_far(runs: Runs, out: Path, name: str) -> None:
    """Draw the best value of the metric that was known at each time, by policy; repeats are thin lines."""
    figure, axes = drawing.start(columns=len(runs), size=(1.5 + 6.5 * len(runs), 4.4), sharey=True)
    numbers: dict[str, Any] = {"figure": "best value over time", "about": about(runs), "best": {}}
    policies = list(dict.fromkeys(policy for each in runs.values() for policy in each))
    shades = colours(policies)
    for axis, (rule, by_policy) in zip(axes[0], runs.items(), strict=True):
        for policy, reports in by_policy.items():
            for number, report in enumerate(reports):
                steps = [(at, value) for at, value, _ in report["anytime"]]
                if not steps:
                    continue
                steps.append((report["makespan_s"], steps[-1][1]))
                axis.step(
                    [at for at, _ in steps],
                    [value for _, value in steps],
                    where="post",
                    color=shades[policy],
                    linewidth=1.8 if number == 0 else 0.7,
                    label=label(policy) if number == 0 else None,
                )
                axis.plot(*steps[-1], marker="o", markersize=4, color=shades[policy])
            numbers["best"].setdefault(rule, {})[policy] = [report["anytime"] for report in reports]
        metric = next(iter(by_policy.values()))[0]["metric"]
        target = next((r["target"] for reports in by_policy.values() for r in reports if r["target"]), None)
        if target:
            axis.axhline(target["value"], color="black", linestyle=":", linewidth=1, label="target")
        axis.set_xlabel("time (s); dot: the end of the sweep")
        axis.set_xlim(left=0)
        if rule:
            axis.set_title(f"rule {rule}", loc="left")
    axes[0][0].set_ylabel(f"best {metric} so far")
    axes[0][-1].legend(loc="best")
    drawing.save(figure, out, f"{name}_anytime", "The best value that was known, over time", about(runs), numbers)


def _changes(steps: timelines.Steps) -> Iterator[tuple[float, float]]:
    before = 0.0
    for at, number in steps:
        yield at, number - before
        before = number


def uses_over_time(report: Report) -> dict[str, timelines.Steps]:
    """Return the containers that computed, waited and were idle, over time."""
    spec = report["spec"]
    cluster = spec["cluster"]
    total = cluster["nodes"] * cluster["vcores"] / cluster["container_vcores"]
    end_s, number = report["makespan_s"], WINDOWS
    computing = timelines.summed(
        change
        for trial in report["trials"]
        for change in _changes([(at, float(number)) for at, number in trial["computing"]])
    )
    held = timelines.in_windows([(at, share * total) for at, share in timelines.held(report)], end_s, number)
    at_work = timelines.in_windows(computing, end_s, number)
    return {
        "computing": [(at, min(value, of)) for (at, value), (_, of) in zip(at_work, held, strict=True)],
        "waiting": [(at, max(0.0, of - value)) for (at, value), (_, of) in zip(at_work, held, strict=True)],
        "idle": [(at, max(0.0, total - of)) for at, of in held],
    }


def uses(runs: Runs, out: Path, name: str) -> None:
    """Draw what the containers did over time, one row for each rule and policy; of the first repeat."""
    rows = [(rule, policy, reports[0]) for rule, each in runs.items() for policy, reports in each.items()]
    figure, axes = drawing.start(rows=len(rows), size=(9.0, 1.2 + 1.7 * len(rows)), sharex=True, sharey=True)
    numbers: dict[str, Any] = {"figure": "containers by use", "about": about(runs), "shares": {}, "steps": {}}
    longest_s = max(report["makespan_s"] for _, _, report in rows)
    for axis, (rule, policy, report) in zip(axes[:, 0], rows, strict=True):
        over_time = uses_over_time(report)
        times = [at for at, _ in over_time["idle"]] + [report["makespan_s"]]
        below = [0.0] * len(times)
        for what, colour in USES.items():
            values = [value for _, value in over_time[what]]
            top = [low + value for low, value in zip(below, [*values, values[-1]], strict=True)]
            axis.fill_between(times, below, top, step="post", color=colour, linewidth=0, label=what)
            below = top
        shares = {what: report[f"{key}_share"] for what, key in zip(USES, ("useful", "waiting", "idle"), strict=True)}
        told = ", ".join(f"{what} {100 * share:.0f} %" for what, share in shares.items())
        axis.set_title(f"{label(policy)}{f', {rule}' if rule else ''}: {told}", loc="left")
        axis.set_xlim(0, longest_s)
        numbers["shares"][f"{rule} {policy}".strip()] = shares
        numbers["steps"][f"{rule} {policy}".strip()] = {
            what: timelines.thinned(steps, 1) for what, steps in over_time.items()
        }
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3)
    figure.supylabel("containers", fontsize=10)
    axes[-1][0].set_xlabel("time (s)")
    foot = f"{about(runs)}. Computing: between a trial's first and last iteration; waiting: start, restart, release"
    drawing.save(figure, out, f"{name}_uses", "What the containers did", foot, numbers)


def makespans(runs: Runs, out: Path, name: str) -> None:
    """Draw the makespans by rule and policy: medians, and least to most of the repeats as whiskers.

    Elasticity's own share is the median of the fixed sizes over that of the policy, under the same rule.
    """
    policies = list(dict.fromkeys(policy for each in runs.values() for policy in each))
    shades = colours(policies)
    figure, axes = drawing.start(size=(2.5 + 1.1 * len(policies) * len(runs), 4.4))
    axis = axes[0][0]
    numbers: dict[str, Any] = {"figure": "makespan by rule", "about": about(runs), "makespan_s": {}, "elasticity": {}}
    width = 0.8 / len(policies)
    highest = 0.0
    named: set[str] = set()
    for place, (rule, by_policy) in enumerate(runs.items()):
        spans = {policy: [report["makespan_s"] for report in reports] for policy, reports in by_policy.items()}
        fixed = next((policy for policy in ("static", "static-stop") if policy in spans), None)
        numbers["makespan_s"][rule] = {
            policy: {"median": median(values), "values": values} for policy, values in spans.items()
        }
        for k, policy in enumerate(policies):
            if policy not in spans:
                continue
            middle, values = median(spans[policy]), spans[policy]
            x = place - 0.4 + width * (k + 0.5)
            whiskers = [[middle - min(values)], [max(values) - middle]] if len(values) > 2 else None
            axis.bar(
                x,
                middle,
                width * 0.92,
                color=shades[policy],
                yerr=whiskers,
                error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#333333"},
                label="_" if policy in named else label(policy),
            )
            named.add(policy)
            told = f"{middle:.0f} s"
            if fixed is not None and policy != fixed:
                ratio = median(spans[fixed]) / middle
                numbers["elasticity"].setdefault(rule, {})[policy] = round(ratio, 3)
                told += f"\n{ratio:.2f} x"
            if "size" in by_policy[policy][0]:
                told = f"best size:\n{by_policy[policy][0]['size']}\n{told}"
            axis.text(x, max(values), told, ha="center", va="bottom", fontsize=8)
            highest = max(highest, *values)
    axis.set_xticks(range(len(runs)), [f"rule {rule}" if rule else "the file's rule" for rule in runs])
    axis.set_ylim(0, 1.25 * highest)
    axis.set_ylabel("makespan (s)")
    drawing.legend_above(axis, 4)
    foot = f"{about(runs)}. N x: the makespan of fixed sizes under the same rule, over this one: elasticity's own share"
    drawing.save(figure, out, f"{name}_makespans", "Makespan by stopping rule and policy", foot, numbers)


def draw(paths: Sequence[Path], out: Path, name: str) -> None:
    """Draw all pictures of some files.  Raises as :func:`runs_in`."""
    runs = runs_in(paths)
    for picture in (best_so_far, uses, makespans):
        picture(runs, out, name)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+", metavar="COMPARE.json")
    parser.add_argument("--name", default="compare", help="begin of the names of the pictures; default: compare")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    if not can_draw():
        parser.error(NO_PICTURE)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        draw(args.reports, args.out, args.name)
    except (EpsError, json.JSONDecodeError) as error:
        say(f"sweep_pictures: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
