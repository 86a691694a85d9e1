"""Pictures of the benchmark of sweeps: makespans, anytime curves, the use of containers over time, stopping rules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_common import plotting
from benchmarks.sweeps.results import TITLE
from benchmarks.sweeps.running import known_over_time

Run = Mapping[str, Any]
#: Case -> how a picture names it; fixed sizes and widths follow from their number.
NAMES = {
    "asked": "2 workers, 1 server",
    "rungs": "resized between rungs",
    "kill": "kill and restart",
    "elastic": "elastic (Algorithm 1)",
    "gain": "gain",
    "ray-1": "Ray Tune, one slot",
    "tune-resizing": "Ray, resizing at rungs",
    "tune-resizing-often": "Ray, resizing often",
}
PARTS = {
    "sha": "{} trials at once, successive halving",
    "asha": "{} trials at once, ASHA",
    "poisson": "{} trials, arriving one by one, ASHA",
}
RULES = {"none": "no stopping rule", "asha": "ASHA", "sha": "successive halving"}
#: Row of the simulated results that has a rule; its bars, of the fixed sizes the best one.
RULE_ROW = "{} trials, {}, efficiency 0.5, 900 iterations"
RULE_CASES = ("asked", "static-", "kill", "elastic", "gain")
#: Colors that the color-blind can tell apart (Okabe and Ito): ours, a fixed size, and another system or policy.
OURS, FIXED, OTHERS = "#0072B2", "#999999", "#E69F00"
LINES = {
    "gain": OURS,
    "elastic": OTHERS,
    "kill": "#009E73",
    "rungs": "#CC79A7",
    "ray-1": "#D55E00",
    "tune-resizing": "#009E73",
    "tune-resizing-often": "#CC79A7",
}
USES = {"computing": "#0072B2", "waiting: starts, stops, changes of size": "#E69F00", "idle": "#DDDDDD"}
SHARES = {"useful": "computing", "waiting": "waiting", "idle": "idle"}
#: A container is held at most so long before its member takes part, and waits at most so long after that.
_MOST_SHIFT_S = 30.0
_DPI = 150
_FONTS = {"font.size": 10, "axes.titlesize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9}


def name_of(case: str) -> str:
    """Return how a picture names a case."""
    if case in NAMES:
        return NAMES[case]
    kind, _, number = case.rpartition("-")
    what = "containers" if int(number) > 1 else "container"
    return f"{number} {what} each" if kind == "static" else f"Ray Tune, {number} slots"


def title_of(part: str) -> str:
    """Return the title of a part."""
    kind = part.rstrip("0123456789")
    return PARTS[kind].format(part[len(kind) :])


def color_of(case: str) -> str:
    """Return the color of a case: ours, a fixed size, or another system or policy."""
    return OURS if case == "gain" else FIXED if case.startswith("static") else OTHERS


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the results of :mod:`benchmarks.sweeps.real` into a folder, as PNG and SVG; return the files."""
    pyplot = plotting()
    pyplot.rcParams.update(_FONTS)
    parts = [part for part, cases in document["cases"].items() if cases]
    pictures = {"makespans": _makespans(pyplot, document, parts)}
    for part in parts:
        runs = runs_of(document, part)
        pictures[f"anytime-{part}"] = _anytime(pyplot, runs, part, document["settings"]["containers"])
        pictures[f"containers-{part}"] = _containers(pyplot, runs, part, document["settings"]["containers"])
    return _saved(pyplot, pictures, folder, TITLE)


def draw_rules(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the results of :mod:`benchmarks.sweeps.simulated` into a folder, as PNG and SVG; return the files."""
    pyplot = plotting()
    pyplot.rcParams.update(_FONTS)
    rows = document["rows"]
    few = [trials for trials in (27, 81) if all(RULE_ROW.format(trials, rule) in rows for rule in RULES)]
    if not few:
        return []
    note = "simulated, with costs fitted to real processes; medians over seeds; efficiency in 16 containers: 0.5"
    return _saved(pyplot, {"rules": _rules(pyplot, rows, few)}, folder, note)


def _saved(pyplot: Any, pictures: Mapping[str, Any], folder: Path, note: str) -> list[Path]:
    drawn = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in pictures.items():
        if figure is None:
            continue
        figure.text(0.01, 0.008, note, fontsize=8.5, color="#444444")
        for suffix in ("png", "svg"):
            drawn.append(folder / f"{name}.{suffix}")
            figure.savefig(drawn[-1], dpi=_DPI)
        shrink(folder / f"{name}.png")
        pyplot.close(figure)
    return drawn


def shrink(path: Path) -> None:
    """Rewrite a PNG with a palette: a third of its size."""
    # A dependency of matplotlib.
    image = importlib.import_module("PIL.Image")
    image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


def runs_of(document: Mapping[str, Any], part: str) -> dict[str, Run]:
    """Return the run with the median makespan of each case of a part."""
    found: dict[str, list[Run]] = {}
    for run in document["runs"]:
        if run["part"] == part and not run.get("void"):
            found.setdefault(run["case"], []).append(run)
    return {
        case: sorted(runs, key=lambda run: float(run["makespan_s"]))[(len(runs) - 1) // 2]
        for case, runs in found.items()
    }


def changes_of(trial: Run, shift_s: float, end_s: float) -> list[tuple[float, int]]:
    """Return when a trial's containers change, and by how many.

    A shift moves additions, but not beyond the next change.  Containers are held before their members take part, and
    compute after that: a negative shift shows the first, a positive one the second.
    """
    found, number = [], 0
    for (at_s, *size), (next_s, *_) in pairwise([*trial["containers"], (end_s,)]):
        change = sum(size) - number
        if change > 0:
            at_s = max(0.0, min(at_s + shift_s, next_s))
        found.append((min(at_s, end_s), change))
        number += change
    return found


def over_time(changes: Iterable[tuple[float, int]], end_s: float, containers: int) -> tuple[Any, Any]:
    """Return times, and the number of containers from each time on."""
    ordered = sorted(changes)
    numbers = list(accumulate((change for _, change in ordered), initial=0))
    return np.array([0.0, *(at_s for at_s, _ in ordered), end_s]), np.minimum([*numbers, numbers[-1]], containers)


def container_s(times: Any, numbers: Any) -> float:
    """Return the container-seconds of numbers over time."""
    return float(np.diff(times) @ numbers[:-1])


def shift_of(measure: Callable[[float], float], goal: float, low_s: float, high_s: float) -> float:
    """Return the shift at which a measure, which falls with it, is the goal."""
    for _ in range(40):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (middle_s, high_s) if measure(middle_s) > goal else (low_s, middle_s)
    return (low_s + high_s) / 2


def computing_of(trial: Run, end_s: float) -> list[tuple[float, int]]:
    """Return when the containers of a trial that compute change, and by how many."""

    def measure(shift_s: float) -> float:
        return sum(change * (end_s - at_s) for at_s, change in changes_of(trial, shift_s, end_s))

    return changes_of(trial, shift_of(measure, trial["container_s"], 0.0, _MOST_SHIFT_S), end_s)


def uses_over_time(run: Run, containers: int) -> tuple[Any, list[Any]]:
    """Return times, and the containers that compute, wait and are idle from each time on.

    A run has its members over time.  Of what they do it has only the sums: what each trial computed, and how long
    containers were idle.  So additions are shifted until the sums are the measured ones.
    """
    end_s = float(run["makespan_s"])

    def held(shift_s: float) -> tuple[Any, Any]:
        changes = [change for trial in run["trials"] for change in changes_of(trial, shift_s, end_s)]
        return over_time(changes, end_s, containers)

    held_s = (1 - run["idle_share"]) * end_s * containers
    all_held = held(shift_of(lambda shift_s: container_s(*held(shift_s)), held_s, -_MOST_SHIFT_S, 0.0))
    computing = [change for trial in run["trials"] for change in computing_of(trial, end_s)]
    found = [over_time(computing, end_s, containers), all_held]
    times = np.unique(np.concatenate([each for each, _ in found]))
    computes, holds = (numbers[np.searchsorted(at_s, times, side="right") - 1] for at_s, numbers in found)
    return times, [computes, np.maximum(0, holds - computes), containers - np.maximum(holds, computes)]


def _makespans(pyplot: Any, document: Mapping[str, Any], parts: Sequence[str]) -> Any:
    columns = min(2, len(parts))
    rows = -(-len(parts) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5 * columns, 3.1 * rows + 0.5), squeeze=False)
    for axis in axes.flat[len(parts) :]:
        axis.set_axis_off()
    for part, axis in zip(parts, axes.flat, strict=False):
        cases = {case: found["makespan_s"] for case, found in document["cases"][part].items()}
        order = sorted(cases, key=lambda case: float(cases[case]["median"]), reverse=True)
        for row, case in enumerate(order):
            spread = cases[case]
            low, high = spread["median"] - spread["min"], spread["max"] - spread["median"]
            many = len(spread["values"]) > 1
            axis.barh(row, spread["median"], color=color_of(case), height=0.68, xerr=[[low], [high]] if many else None)
            axis.text(spread["max"], row, f" {spread['median']:.0f} s", va="center", fontsize=9)
        axis.set_xlabel("makespan, s")
        model = (document["model"] or {}).get(part.lstrip("ahops"))
        if model and part.startswith("sha"):
            least = {"dotted": model["limit_s"], "dashed": model["instant_s"]}
            for style, value in least.items():
                axis.axvline(value, color="#222222", linewidth=1.0, linestyle=style)
            limits = "dotted: iterations / 16, {dotted:.0f} s;\ndashed: simulated optimum, {dashed:.0f} s"
            axis.set_xlabel(f"makespan, s ({limits.format(**least)})")
        axis.set_yticks(range(len(order)), [name_of(case) for case in order])
        axis.set_ylim(-0.6, max(6, len(order)) - 0.4)
        axis.margins(x=0.12)
        axis.set_title(title_of(part))
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.suptitle(f"Makespan by policy, {document['settings']['containers']} containers; compute is emulated")
    figure.tight_layout(rect=(0, 0.025, 1, 1))
    return figure


def chosen(runs: Mapping[str, Run]) -> list[str]:
    """Return the cases of a part that fit one picture: our policies and the fastest fixed size and width."""
    fastest = []
    for prefix in ("static-", "ray-"):
        found = [case for case in runs if case.startswith(prefix) and "resizing" not in case]
        fastest += sorted(found, key=lambda case: float(runs[case]["makespan_s"]))[:1]
    found = [*fastest, *(case for case in runs if case in NAMES and case not in (*fastest, "asked"))]
    return sorted(found, key=lambda case: float(runs[case]["makespan_s"]), reverse=True)


def _anytime(pyplot: Any, runs: Mapping[str, Run], part: str, containers: int) -> Any:
    figure, axis = pyplot.subplots(figsize=(9, 5))
    lowest = 1.0
    for case in chosen(runs):
        points = known_over_time(runs[case])
        if not points:
            continue
        end_s, lowest = float(runs[case]["makespan_s"]), min(lowest, points[-1][1])
        times, values = [*(at_s for at_s, _ in points), end_s], [*(value for _, value in points), points[-1][1]]
        color = LINES.get(case, FIXED if case.startswith("static-") else "#000000")
        width = 2.8 if case == "gain" else 1.6
        label = f"{name_of(case)}: {end_s:.0f} s"
        axis.step(times, values, where="post", label=label, color=color, linewidth=width)
        axis.plot([end_s], [values[-1]], "o", markersize=6, color=color)
    axis.set_yscale("log")
    # What is known before the first rung says little, and would take most of the picture.
    axis.set_ylim(lowest * 0.93, lowest * 6)
    for which in ("major", "minor"):
        getattr(axis.yaxis, f"set_{which}_formatter")("{x:g}")
    axis.tick_params(which="both", labelsize=9)
    axis.set_xlabel("time since the sweep began, s (a dot is its end)")
    axis.set_ylabel("best validation loss so far")
    axis.set_title(f"Best value so far: {title_of(part)},\n{containers} containers; compute is emulated")
    axis.legend(frameon=False)
    figure.tight_layout(rect=(0, 0.035, 1, 1))
    return figure


def _containers(pyplot: Any, runs: Mapping[str, Run], part: str, containers: int) -> Any:
    cases = [case for case in chosen(runs) if runs[case].get("trials")]
    if not cases:
        return None
    rows = -(-len(cases) // 2)
    size = {"figsize": (10, 2.0 * rows + 1.5), "sharex": True, "sharey": True, "squeeze": False}
    figure, axes = pyplot.subplots(rows, 2, **size)
    for axis in axes.flat[len(cases) :]:
        axis.set_axis_off()
    for case, axis in zip(cases, axes.flat, strict=False):
        run = runs[case]
        times, uses = uses_over_time(run, containers)
        areas = axis.stackplot(times, uses, step="post", colors=list(USES.values()), linewidth=0)
        shares = (f"{run[f'{use}_share']:.0%} {name}" for use, name in SHARES.items())
        axis.set_title(f"{name_of(case)}, {run['makespan_s']:.0f} s: {', '.join(shares)}", fontsize=9, loc="left")
        axis.set_ylim(0, containers)
        axis.set_yticks([0, containers // 2, containers])
        axis.tick_params(labelbottom=True)
    for axis in axes.flat[: len(cases)]:
        axis.set_xlim(0, max(float(runs[case]["makespan_s"]) for case in cases))
    figure.supylabel("containers", fontsize=10)
    note = "waits are as long as measured, but all drawn where containers are added"
    figure.supxlabel(f"time since the sweep began, s ({note})", fontsize=10, y=0.045)
    figure.legend(areas, list(USES), loc="upper center", bbox_to_anchor=(0.5, 0.945), ncols=3, frameon=False)
    figure.suptitle(f"What {containers} containers do: {title_of(part)}; compute is emulated", fontsize=11)
    figure.tight_layout(rect=(0, 0.04, 1, 0.955))
    return figure


def rule_cases(policies: Mapping[str, Run]) -> dict[str, str]:
    """Return the bars of a stopping rule and their cases: of the fixed sizes the best one."""
    best = min((case for case in policies if case.startswith("static-")), key=lambda case: policies[case]["makespan_s"])
    return {case: best if case == "static-" else case for case in RULE_CASES}


def _rules(pyplot: Any, rows: Mapping[str, Any], few: Sequence[int]) -> Any:
    figure, axes = pyplot.subplots(1, len(few), figsize=(10, 6), squeeze=False)
    for trials, axis in zip(few, axes.flat, strict=True):
        ticks, names, fixed_s, gain_s, top = [], [], {}, {}, 0.0
        for rule, title in reversed(RULES.items()):
            policies = rows[RULE_ROW.format(trials, rule)]["policies"]
            cases = rule_cases(policies)
            fixed_s[rule], gain_s[rule] = (policies[cases[bar]]["makespan_s"] for bar in ("static-", "gain"))
            for bar, case in reversed(cases.items()):
                value = policies[case]["makespan_s"]
                ratio = f": {fixed_s[rule] / value:.2f}× by elasticity" if bar == "gain" else ""
                size = f" ({case.partition('-')[2]} per trial)" if bar == "static-" else ""
                axis.barh(top, value, color=color_of(case), height=0.75)
                axis.text(value, top, f" {value:.0f} s{size}{ratio}", va="center", fontsize=9)
                ticks.append(top)
                names.append("best fixed size" if bar == "static-" else NAMES[bar])
                top += 1
            axis.text(0, top - 0.2, f" {title}", fontsize=10, fontweight="bold", va="center")
            top += 0.7
        axis.set_yticks(ticks, names if axis is axes.flat[0] else [])
        axis.set_ylim(-0.7, top - 0.2)
        axis.margins(x=0.2)
        axis.set_xlabel("makespan, s")
        before, halved, after = fixed_s["none"], fixed_s["sha"], gain_s["sha"]
        axis.set_title(
            f"{trials} trials: {before:.0f} s (fixed, no rule) to {after:.0f} s (gain, halving):\n"
            f"{before / halved:.2f}× by halving, {halved / after:.2f}× by elasticity"
        )
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    title = "Simulated makespan by stopping rule and policy, 16 containers: what elasticity adds to the rule"
    figure.suptitle(title, fontsize=11)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure
