"""Figures of one job or two: the case study, removing a worker and a server, nodes (EPS §2.3, §7.4, §7.5)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.paper import case_study, drawing, overhead, published, timelines

JOB_COLOURS = {"job-1": "#0072B2", "job-2": "#D55E00"}


# ---- the case study


def case_study_foot(found: Mapping[str, Any]) -> str:
    """Return the source of the case study's numbers."""
    if found["kind"] == "real":
        return (
            f"REAL processes on {found['machine']['cpus']} cores: logistic regression on sklearn's breast_cancer, "
            "iterations stretched by sleep, under every policy; "
            f"about {found['faster']:g} times as fast as the paper's.\n"
            f"kill, declared delay: a restart takes at least {case_study.RESTART_S:g} s, what the paper's times imply"
        )
    return (
        "SIMULATED: three nodes of a worker and a server each. Times to start, of an iteration and of changes are "
        "solved from the times in the paper's text (benchmarks/paper/scaled.py),\n"
        "so that only what the text does not give is new: the end of job 1 under kill and EPS, and the order"
    )


def _approaches_of(found: Mapping[str, Any]) -> list[str]:
    return [name for name in case_study.RUNS if name in found["reports"]]


def _paper_feedback_s(name: str) -> float | None:
    entry = published.CASE_STUDY.get(name.removesuffix("-declared"))
    return entry["second_gives_feedback_s"] if isinstance(entry, dict) else None


def fig2(found: Mapping[str, Any], out: Path, suffix: str) -> None:
    """Draw the workers and servers of the two jobs over time."""
    names = _approaches_of(found)
    figure, axes = drawing.start(rows=len(names), size=(8.5, 1.75 * len(names) + 1), sharex=True, sharey=True)
    scale = 1.0 / found.get("faster", 1.0)
    numbers: dict[str, Any] = {
        "figure": "2",
        "kind": found["kind"],
        "source": published.SOURCES["fig2"],
        "about": case_study_foot(found),
        "ours": {},
        "paper": published.CASE_STUDY,
        "paper_faster_by": 1 / scale,
    }
    for axis, name in zip(axes[:, 0], names, strict=True):
        first, second = case_study.first_and_second(found["reports"][name])
        for trial in (first, second):
            steps = [(at, workers) for at, workers, _ in timelines.sizes(trial)]
            steps.append((trial["finished_s"], 0))
            colour = JOB_COLOURS[trial["job_id"]]
            axis.step(
                [at for at, _ in steps],
                [count for _, count in steps],
                where="post",
                color=colour,
                linewidth=2,
                label=f"{trial['job_id']}",
            )
            axis.plot([trial["arrived_s"] + trial["early_feedback_s"]], [0.12], marker="^", color=colour, clip_on=False)
        theirs = None if name == "kill" and "kill-declared" in names else _paper_feedback_s(name)
        if theirs is not None:
            axis.axvline(theirs * scale, color="black", linestyle=":", linewidth=1)
        axis.set_title(drawing.LABELS[name], loc="left")
        axis.set_ylim(0, 3.5)
        axis.set_yticks([0, 1, 2, 3])
        numbers["ours"][name] = {
            "first_gives_feedback_s": first["early_feedback_s"],
            "first_finishes_s": first["finished_s"],
            "second_queued_s": second["started_s"] - second["arrived_s"],
            "second_gives_feedback_s": second["arrived_s"] + second["early_feedback_s"],
            "resizing_s": first["resize_pause_s"],
        }
    last = axes[-1][0]
    last.plot([], [], marker="^", color="#555555", linestyle="none", label="early feedback")
    last.plot([], [], color="black", linestyle=":", label="that of job 2 in the paper")
    last.legend(loc="upper right")
    axes[-1][0].set_xlabel("time (s)")
    axes[-1][0].set_xlim(left=0)
    figure.supylabel("workers (as many servers)", fontsize=10)
    title = f"Fig. 2: two jobs, three approaches ({found['kind']})"
    drawing.save(figure, out, f"fig2_{suffix}", title, case_study_foot(found), numbers)


def _means(found: Mapping[str, Any], name: str) -> dict[str, float]:
    trials = case_study.first_and_second(found["reports"][name])
    return {
        "queueing": mean(trial["started_s"] - trial["arrived_s"] for trial in trials),
        "early feedback latency": mean(trial["early_feedback_s"] for trial in trials),
        "training time": max(trial["finished_s"] for trial in trials),
    }


def paper_means() -> dict[str, dict[str, float]]:
    """Return those means of Fig. 3, in seconds, that follow from the times in the paper's text."""
    arrives_s = published.CASE_STUDY["second_arrives_s"]
    first_s = published.CASE_STUDY["first_gives_feedback_s"]
    found = {}
    for name in ("static", "kill", "elastic"):
        latency_s = published.CASE_STUDY[name]["second_gives_feedback_s"] - arrives_s
        found[name] = {"early feedback latency": (first_s + latency_s) / 2}
    # The second job starts when the first has ended; both have ended when the second has given its feedback.
    found["static"]["queueing"] = (published.CASE_STUDY["static"]["first_finishes_s"] - arrives_s) / 2
    found["static"]["training time"] = published.CASE_STUDY["static"]["second_gives_feedback_s"]
    return found


def _short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def fig3(found: Mapping[str, Any], out: Path, suffix: str) -> None:
    """Draw queueing, early feedback latency and training time of the case study."""
    names = _approaches_of(found)
    ours = {name: _means(found, name) for name in names}
    theirs = paper_means()
    scale = 1.0 / found.get("faster", 1.0)
    figure, axes = drawing.start(columns=3, size=(10.5, 4.2))
    label = "the paper, as much faster" if scale != 1.0 else "the paper (from §2.3)"
    for axis, what in zip(axes[0], ("queueing", "early feedback latency", "training time"), strict=True):
        heights = [ours[name][what] for name in names]
        drawn = axis.bar(range(len(names)), heights, 0.7, color=[drawing.COLOURS[name] for name in names])
        axis.bar_label(drawn, labels=[_short(height) for height in heights], padding=8, fontsize=9)
        axis.margins(y=0.12)
        for place, name in enumerate(names):
            paper_s = theirs.get(name.removesuffix("-declared"), {}).get(what)
            if paper_s is not None and not (name == "kill" and "kill-declared" in names):
                axis.plot([place], [paper_s * scale], label=label, **drawing.PAPER)
                label = "_"
        axis.set_xticks(range(len(names)), [name.replace("-", "\n") for name in names])
        axis.set_title(f"{'average ' if what != 'training time' else ''}{what} (s)")
    axes[0][0].legend(loc="upper right")
    numbers = {
        "figure": "3",
        "kind": found["kind"],
        "source": published.SOURCES["fig3"],
        "about": case_study_foot(found),
        "ours_s": ours,
        "paper_s": theirs,
        "paper_faster_by": 1 / scale,
    }
    title = f"Fig. 3: the case study ({found['kind']})"
    drawing.save(figure, out, f"fig3_{suffix}", title, case_study_foot(found), numbers)


# ---- removing a worker and a server


def overhead_foot(found: Mapping[str, Any]) -> str:
    """Return the source of the numbers of Figs 20 and 21."""
    return (
        f"REAL processes, all on {found['machine']['cpus']} cores: softmax regression on sklearn's digits; medians, "
        "ranges as whiskers. No simulated counterpart: the simulator takes such costs as given"
    )


def fig20(found: Mapping[str, Any], out: Path, suffix: str) -> None:
    """Draw the steps of removing a worker and a server."""
    entry = found["fig20"]
    figure, axes = drawing.start(size=(8.5, 3.6))
    axis = axes[0][0]
    shades = (1.0, 0.65, 0.35)
    approaches = ("elastic", "kill")
    for place, approach in enumerate(approaches):
        left = 0.0
        for shade, step in zip(shades, overhead.STEPS[approach], strict=False):
            width = entry["steps"][approach][step]["median"]
            colour = drawing.COLOURS[approach]
            axis.barh(place, width, 0.55, left=left, color=colour, alpha=shade, label=f"{step}: {width:.3g} s")
            left += width
        axis.text(left, place, f"  {left:.2f} s", va="center", fontsize=9)
    axis.set_yticks(range(len(approaches)), [drawing.LABELS[approach] for approach in approaches])
    axis.set_xlabel("time (s)")
    axis.grid(axis="x", alpha=0.3)
    axis.grid(axis="y", visible=False)
    axis.set_ylim(-0.6, 1.6)
    axis.margins(x=0.12)
    drawing.legend_above(axis, 2)
    numbers = {
        "figure": "20",
        "kind": found["kind"],
        "source": published.SOURCES["fig20"],
        "about": overhead_foot(found),
        "measured": entry,
    }
    size = entry["members"]
    title = f"Fig. 20: removing one worker and one server of {size} and {size} ({found['kind']})"
    drawing.save(figure, out, f"fig20_{suffix}", title, overhead_foot(found), numbers)


def fig21(found: Mapping[str, Any], out: Path, suffix: str) -> None:
    """Draw the time of a removal by the size of the job, and by the number of removed members."""
    figure, axes = drawing.start(columns=2, size=(9.5, 4.2), sharey=True)
    for axis, part, key, what in (
        (axes[0][0], "fig21a", "members", "workers and servers that the job has, each"),
        (axes[0][1], "fig21b", "removed", f"workers and servers removed of {overhead.FIG21B_SIZE}, each"),
    ):
        for approach in ("kill", "elastic"):
            xs = [entry[key] for entry in found[part]]
            totals = [entry["total_s"][approach] for entry in found[part]]
            ranges = [[t["median"] - t["min"] for t in totals], [t["max"] - t["median"] for t in totals]]
            axis.errorbar(
                xs,
                [t["median"] for t in totals],
                yerr=ranges,
                color=drawing.COLOURS[approach],
                marker="o",
                capsize=3,
                label=drawing.LABELS[approach],
            )
        axis.set_xticks(xs)
        axis.set_xlabel(what)
        axis.set_ylim(bottom=0)
    axes[0][0].set_title("(a) one of each removed", loc="left")
    axes[0][1].set_title("(b) several removed at once", loc="left")
    axes[0][0].set_ylabel("from the order until it is over (s)")
    axes[0][1].legend(loc="center left")
    numbers = {
        "figure": "21",
        "kind": found["kind"],
        "source": published.SOURCES["fig21"],
        "about": overhead_foot(found),
        "a": found["fig21a"],
        "b": found["fig21b"],
        "note": "the paper has 6 to 16 workers and servers in (a), and removes from 8 of each in (b)",
    }
    title = f"Fig. 21: removing workers and servers ({found['kind']})"
    drawing.save(figure, out, f"fig21_{suffix}", title, overhead_foot(found), numbers)


# ---- elasticity


def elasticity_foot(found: Mapping[str, Any]) -> str:
    """Return the source of the numbers of Fig. 22."""
    sizes = {(entry["workers"], entry["servers"]) for entry in found["litz"]}
    ((workers, servers),) = sizes
    litz = (
        f"Litz-PS has {workers} workers and {servers} servers on any number of nodes; where those are more than the "
        "processors, all take as much longer"
    )
    if found["kind"] == "real":
        return (
            f"REAL processes on {found['machine']['cpus']} cores: softmax on sklearn's digits, iterations stretched by "
            "sleep. EPS is one job, which grows and shrinks by the four calls to the sizes of Algorithm 1.\n"
            f"{litz}: a declared sleep"
        )
    return (
        "SIMULATED: sizes are those to which Algorithm 1 grows a job; an iteration as in Fig. 14 (LR).\n"
        f"{litz}. A worker has one vCPU here, so that more than 5 nodes do not help Litz-PS"
    )


def fig22(found: Mapping[str, Any], out: Path, suffix: str) -> None:
    """Draw the time of an iteration by the number of nodes."""
    figure, axes = drawing.start(size=(8.5, 4.2))
    axis = axes[0][0]
    lines = (("elastic", "EPS (elastic)", drawing.COLOURS["elastic"], "."), ("litz", "Litz-PS", "#444444", "x"))
    for key, label, colour, marker in lines:
        nodes = [entry["nodes"] for entry in found[key]]
        times_s = [entry["iteration_s"] for entry in found[key]]
        axis.plot(nodes, times_s, color=colour, marker=marker, markersize=5, label=label)
    axis.set_xlabel("nodes that the job has (4 vCPU each)")
    axis.set_ylabel("time of an iteration (s)")
    axis.set_ylim(bottom=0)
    most = max(entry["nodes"] for entry in found["elastic"])
    axis.set_xticks([1, *np.arange(4, most + 1, 4)] if most > 12 else list(range(1, most + 1)))
    axis.legend(loc="upper right")
    numbers = {
        "figure": "22",
        "kind": found["kind"],
        "source": published.SOURCES["fig22"],
        "about": elasticity_foot(found),
        "elastic": found["elastic"],
        "litz": found["litz"],
        "paper": "Litz-PS is slower below 2 nodes (contention) and does not get faster beyond 12; EPS does (§7.5)",
    }
    title = f"Fig. 22: an iteration by the number of nodes ({found['kind']})"
    drawing.save(figure, out, f"fig22_{suffix}", title, elasticity_foot(found), numbers)
