"""Pictures of the benchmark of sweeps: makespans, anytime curves, and the containers of each trial over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
OURS, FIXED, OTHERS = "#1f6f4a", "#8fa3b5", "#c98a3b"
_DPI = 160


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
    pyplot, drawn = plotting(), []
    folder.mkdir(parents=True, exist_ok=True)
    parts = [part for part, cases in document["cases"].items() if cases]
    runs = {part: runs_of(document, part) for part in parts}
    pictures = [("makespans", _makespans(pyplot, document, parts))]
    for part in parts:
        pictures.append((f"anytime-{part}", _anytime(pyplot, runs[part], part, document["settings"])))
        pictures.append((f"containers-{part}", _containers(pyplot, runs[part], part, document["settings"])))
    for name, figure in pictures:
        if figure is None:
            continue
        figure.text(0.01, 0.005, TITLE, fontsize=6.5, color="#555555")
        for suffix in ("png", "svg"):
            drawn.append(folder / f"{name}.{suffix}")
            figure.savefig(drawn[-1], dpi=_DPI)
        pyplot.close(figure)
    return drawn


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


def held_over_time(run: Run) -> tuple[list[float], list[list[int]]]:
    """Return the times at which a trial's containers changed, and for each trial its containers from each time on."""
    changes = [[(at_s, sum(size)) for at_s, *size in trial["containers"]] for trial in run["trials"]]
    times = sorted({0.0, *(at_s for trial in changes for at_s, _ in trial), float(run["makespan_s"])})
    held = []
    for trial in changes:
        steps, number, row = iter(sorted(trial)), 0, []
        due = next(steps, None)
        for at_s in times:
            while due is not None and due[0] <= at_s:
                number, due = due[1], next(steps, None)
            row.append(number)
        held.append(row)
    return times, held


def _makespans(pyplot: Any, document: Mapping[str, Any], parts: Sequence[str]) -> Any:
    columns = min(2, len(parts))
    rows = -(-len(parts) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5.6 * columns, 3.6 * rows), squeeze=False)
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
            axis.text(spread["max"], row, f" {spread['median']:.0f} s", va="center", fontsize=7)
        model = (document["model"] or {}).get(part.lstrip("ahops"))
        if model and part.startswith("sha"):
            for value, what in ((model["limit_s"], "iterations / 16"), (model["instant_s"], "simulated optimum")):
                line = ":" if "16" in what else "--"
                axis.axvline(value, color="#444444", linewidth=0.9, linestyle=line, label=f"{what}: {value:.0f} s")
            axis.legend(fontsize=7, frameon=False, loc="upper right")
        axis.set_yticks(range(len(order)), [name_of(case) for case in order], fontsize=7)
        axis.set_ylim(-0.6, max(6, len(order)) - 0.4)
        axis.set_xlabel("makespan, s", fontsize=8)
        axis.set_title(title_of(part), fontsize=9)
        axis.tick_params(axis="x", labelsize=7)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure


def chosen(runs: Mapping[str, Run]) -> list[str]:
    """Return the cases of a part that fit one picture: our policies and the fastest fixed size and width."""
    fastest = []
    for prefix in ("static-", "ray-"):
        found = [case for case in runs if case.startswith(prefix) and "resizing" not in case]
        fastest += sorted(found, key=lambda case: float(runs[case]["makespan_s"]))[:1]
    others = [case for case in runs if case in NAMES and case not in fastest]
    return [*fastest, *others]


def _anytime(pyplot: Any, runs: Mapping[str, Run], part: str, settings: Mapping[str, Any]) -> Any:
    figure, axis = pyplot.subplots(figsize=(6.4, 3.8))
    for case in chosen(runs):
        points = known_over_time(runs[case])
        if not points:
            continue
        end_s = float(runs[case]["makespan_s"])
        times, values = [*(at_s for at_s, _ in points), end_s], [*(value for _, value in points), points[-1][1]]
        style = {"linewidth": 2.2, "color": OURS} if case == "gain" else {"linewidth": 1.2}
        (line,) = axis.step(times, values, where="post", label=name_of(case), **style)
        axis.plot([end_s], [values[-1]], "o", markersize=3.5, color=line.get_color())
    axis.set_yscale("log")
    for which in ("major", "minor"):
        getattr(axis.yaxis, f"set_{which}_formatter")("{x:g}")
    axis.tick_params(which="both", labelsize=7)
    axis.set_xlabel("seconds since the sweep began; a dot is its end", fontsize=8)
    axis.set_ylabel("best validation loss known", fontsize=8)
    axis.set_title(f"{title_of(part)}, {settings['containers']} containers", fontsize=9)
    axis.legend(fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure


def _containers(pyplot: Any, runs: Mapping[str, Run], part: str, settings: Mapping[str, Any]) -> Any:
    cases = [case for case in chosen(runs) if runs[case].get("trials")]
    if not cases:
        return None
    longest = max(float(runs[case]["makespan_s"]) for case in cases)
    figure, axes = pyplot.subplots(len(cases), 1, figsize=(7.0, 1.25 * len(cases) + 0.9), sharex=True, squeeze=False)
    colors = pyplot.get_cmap("tab20").colors
    for case, axis in zip(cases, axes.flat, strict=True):
        times, held = held_over_time(runs[case])
        axis.stackplot(
            times, held, step="post", colors=[colors[k % len(colors)] for k in range(len(held))], linewidth=0
        )
        axis.axvline(float(runs[case]["makespan_s"]), color="#333333", linewidth=0.8)
        axis.set_ylim(0, settings["containers"])
        axis.set_yticks([0, settings["containers"] // 2, settings["containers"]])
        axis.set_xlim(0, longest)
        axis.set_ylabel("containers", fontsize=7)
        used = runs[case].get("useful_share")
        share = "" if used is None else f", {used:.0%} of container-seconds computed"
        axis.set_title(f"{name_of(case)}: {runs[case]['makespan_s']:.0f} s{share}", fontsize=7.5, loc="left", pad=2)
        axis.tick_params(labelsize=7)
    axes.flat[-1].set_xlabel(
        "seconds since the sweep began; a color is a trial; white is idle, or its processes start", fontsize=8
    )
    figure.suptitle(title_of(part), fontsize=9)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure
