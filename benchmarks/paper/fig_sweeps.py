"""Figures of whole sweeps: training time, jobs over time, early feedback, utilisation, overhead (EPS §7.1 to §7.4)."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.paper import drawing, published, timelines
from benchmarks.paper.sources import Report, Source

#: The approaches of Figs 15 to 19.
APPROACHES = ("static", "kill-declared", "elastic")
WINDOWS = 120
#: Repeats below which no error bar is drawn.
FEWEST = 3
#: Names of policies here -> in the paper, if they differ.
PAPERS_NAMES = {"kill-declared": "kill", "priority-stop": "priority"}


def deviation(values: list[float], digits: int | None = None) -> float | None:
    """Return the standard deviation; None of fewer than :data:`FEWEST` values, which have no error bar."""
    if len(values) < FEWEST:
        return None
    return stdev(values) if digits is None else round(stdev(values), digits)


def scaled_deviation(values: list[float], scale: float = 1.0) -> float:
    """Return the standard deviation times a factor, to draw it; NaN of too few values draws nothing."""
    found = deviation(values)
    return math.nan if found is None else scale * found


def _labels(source: Source) -> list[str]:
    return [published.LABELS[model] for model in source.models]


def _title(number: str, what: str, source: Source) -> str:
    of = f", {published.LABELS[source.shown_model]}" if len(source.models) > 1 else ""
    return f"{number}: {what}{of} ({source.kind}, the first repeat)"


def _shown(suffix: str) -> str:
    return suffix.replace("_papers_costs", ", changes cost what the paper's do")


def _approaches(source: Source) -> list[str]:
    return [policy for policy in APPROACHES if policy in source.policies]


def fig14(source: Source, out: Path, suffix: str) -> None:
    """Draw the training time: the time until the last job of a sweep has ended."""
    spans = {
        policy: [[report["makespan_s"] for report in source.reports(model, policy)] for model in source.models]
        for policy in source.policies
    }
    # Of one repeat: all policies have the same jobs.
    over = {
        policy: [
            [span / ours for span, ours in zip(spans[policy][k], spans["elastic"][k], strict=False)]
            for k in range(len(source.models))
        ]
        for policy in source.policies
        if policy != "elastic"
    }
    hidden = _hidden(source)
    figure, axes = drawing.start(rows=2, size=(9.5, 6.6))
    times, ratios = axes[0][0], axes[1][0]
    middles = {p: [mean(v) / source.unit_s for v in values] for p, values in spans.items()}
    errors = {p: [scaled_deviation(v, 1 / source.unit_s) for v in values] for p, values in spans.items()}
    one = len(source.models) == 1
    drawing.bars(times, _labels(source), middles, errors, "{:.0f}" if one else "")
    times.set_ylabel(f"training time ({source.unit})")
    drawing.legend_above(times, 3 if len(spans) > 4 else 4)
    places = drawing.bars(
        ratios,
        _labels(source),
        {p: [mean(v) for v in values] for p, values in over.items()},
        {p: [scaled_deviation(v) for v in values] for p, values in over.items()},
        "{:.2f}" if one else "",
    )
    label = "the paper (§7.1)"
    for policy, xs in places.items():
        theirs = published.MAKESPAN_OVER_ELASTIC.get(PAPERS_NAMES.get(policy, policy))
        if theirs is not None and not (policy == "kill" and "kill-declared" in places):
            ratios.plot(xs, [theirs[model] for model in source.models], label=label, **drawing.PAPER)
            label = "_"
    ratios.axhline(1.0, color=drawing.COLOURS["elastic"], linewidth=1)
    ratios.set_ylabel("time over that of EPS")
    ratios.legend(*_only_paper(ratios), loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)
    numbers = {
        "figure": "14",
        "kind": source.kind,
        "source": published.SOURCES["fig14"],
        "about": source.foot,
        "training_time_s": {
            policy: {
                model: {"mean": mean(values), "deviation": deviation(values), "values": values}
                for model, values in zip(source.models, of, strict=True)
            }
            for policy, of in spans.items()
        },
        "over_elastic": {
            policy: {
                model: {"mean": round(mean(values), 3), "deviation": deviation(values, 3)}
                for model, values in zip(source.models, of, strict=True)
            }
            for policy, of in over.items()
        },
        "paper_over_elastic": published.MAKESPAN_OVER_ELASTIC,
        **hidden,
    }
    title = f"Fig. 14: training time of a sweep, mean and standard deviation ({_shown(suffix)})"
    drawing.save(figure, out, f"fig14_{suffix}", title, source.foot, numbers)


def _hidden(source: Source) -> dict[str, Any]:
    """Return the training times that are not drawn: too long, or of our own policy; only of the shown model."""
    if source.kind != "simulated":
        return {}
    ours = [report["makespan_s"] for report in source.reports(source.shown_model, "elastic")]
    over = {
        policy: [
            report["makespan_s"] / b for report, b in zip(source.reports(source.shown_model, policy), ours, strict=True)
        ]
        for policy in ("priority", "static-stop")
    }
    return {
        f"over_elastic_{source.shown_model}_only": {
            policy: {"mean": round(mean(values), 3), "deviation": deviation(values, 3)}
            for policy, values in over.items()
        }
    }


def _only_paper(axis: Any) -> tuple[list[Any], list[str]]:
    found = [(handle, label) for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)]
    kept = [(handle, label) for handle, label in found if label.startswith("the paper")]
    return [handle for handle, _ in kept], [label for _, label in kept]


def _anchors(axis: Any, source: Source, *, height: bool = False) -> None:
    """Draw the minutes, and the number of jobs, that the paper's text gives for its sweep of LR under the default PS.

    A real sweep has another time axis, so it shows the number only if its threshold is the paper's.
    """
    if source.kind != "simulated":
        return
    known = published.RUNNING_JOBS
    for minute, told in (
        (known["threshold_reached_min"], f"t$_a$: {known['most_running_static']} jobs train"),
        (known["first_finishes_static_min"], "t$_b$: the first finishes"),
    ):
        axis.axvline(minute, color="black", linestyle=":", linewidth=1)
        place = axis.get_xaxis_transform()
        axis.text(minute, 1.0, f" {told}", rotation=90, va="top", ha="right", fontsize=7, transform=place)
    if height:
        axis.axhline(known["most_running_static"], color="black", linestyle=":", linewidth=1)
    axis.plot([], [], color="black", linestyle=":", linewidth=1, label="the paper, default PS (§7.1)")


def anchors_of(report: Report, threshold: int) -> dict[str, float | None]:
    """Return the minutes of a simulated sweep that the paper's text gives for its own."""
    reached = timelines.when_at_least(timelines.past_feedback(report), threshold)
    finished = timelines.first_finish_s(report)
    return {
        "threshold_reached_min": None if reached is None else round(reached / 60, 2),
        "first_finishes_static_min": None if finished is None else round(finished / 60, 2),
    }


def _over_time(source: Source, out: Path, number: str, what: str, label: str, steps_of: Any, suffix: str) -> None:
    figure, axes = drawing.start(size=(8.5, 4.2))
    axis = axes[0][0]
    numbers: dict[str, Any] = {
        "figure": number,
        "kind": source.kind,
        "source": published.SOURCES[f"fig{number}"],
        "about": source.foot,
        "steps_s": {},
    }
    for policy in _approaches(source):
        report = source.reports(source.shown_model, policy)[0]
        steps = steps_of(report)
        axis.step(
            [at / source.unit_s for at, _ in steps],
            [value for _, value in steps],
            where="post",
            color=drawing.COLOURS[policy],
            label=drawing.LABELS[policy],
            linewidth=1.4,
        )
        numbers["steps_s"][policy] = timelines.thinned(steps)
    if number == "15":
        _running_jobs(axis, source, numbers)
    _anchors(axis, source, height=number == "15")
    axis.set_xlabel(f"time ({source.unit})")
    axis.set_ylabel(label)
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    drawing.legend_above(axis, 3)
    title = _title(f"Fig. {number}", what, source)
    foot = f"{source.foot}. {numbers['note']}" if number == "15" else source.foot
    drawing.save(figure, out, f"fig{number}_{suffix}", title, foot, numbers)


FIG15_PALE = "Pale: with jobs that start or restart."
#: Why the most jobs of the simulated Fig. 15 differ from the paper's.
FIG15_NOTE = (
    f"{FIG15_PALE} EPS runs more than 11, since jobs before their early feedback do not count "
    "against the threshold. Unlike in the paper kill runs more jobs than EPS: a job that restarts is not in the "
    "training phase, so the threshold is exceeded less often, and fewer jobs are stopped early"
)


def _running_jobs(axis: Any, source: Source, numbers: dict[str, Any]) -> None:
    """Add the jobs that start or restart to Fig. 15, and the most jobs under each policy to its numbers."""
    numbers["paper"] = published.RUNNING_JOBS
    numbers["most"] = {}
    for policy in _approaches(source):
        reports = source.reports(source.shown_model, policy)
        begun = timelines.running_jobs(reports[0])
        axis.step(
            [at / source.unit_s for at, _ in begun],
            [value for _, value in begun],
            where="post",
            color=drawing.COLOURS[policy],
            alpha=0.3,
            linewidth=1.0,
        )
        numbers["most"][policy] = {
            "train": max(value for _, value in timelines.training_jobs(reports[0])),
            "train_start_or_restart": max(value for _, value in begun),
            "past_early_feedback": max(value for _, value in timelines.past_feedback(reports[0])),
            "trained_to_the_end": reports[0]["completed"],
        }
    static = source.reports(source.shown_model, "static")[0]
    numbers["most_running_static"] = numbers["most"]["static"]["train_start_or_restart"]
    numbers["note"] = FIG15_NOTE if source.kind == "simulated" else FIG15_PALE
    if source.kind == "simulated":
        numbers["ours"] = anchors_of(static, published.RUNNING_JOBS["most_running_static"])


def fig15(source: Source, out: Path, suffix: str) -> None:
    """Draw the number of running jobs."""
    _over_time(source, out, "15", "running jobs", "jobs that run", timelines.training_jobs, suffix)


def fig16(source: Source, out: Path, suffix: str) -> None:
    """Draw how many jobs wait."""
    _over_time(source, out, "16", "queued jobs", "queued jobs", timelines.queued_jobs, suffix)


def _latencies(report: Report) -> list[float]:
    return [trial["early_feedback_s"] for trial in report["trials"] if trial["early_feedback_s"] is not None]


def fig17(source: Source, out: Path, suffix: str) -> None:
    """Draw the average early feedback latency."""
    found = {
        policy: [[mean(_latencies(report)) for report in source.reports(model, policy)] for model in source.models]
        for policy in source.policies
        if policy in APPROACHES or len(source.models) == 1
    }
    figure, axes = drawing.start(size=(9.5, 4.2))
    axis = axes[0][0]
    form = "{:.1f}" if len(source.models) == 1 else ""
    drawing.bars(
        axis,
        _labels(source),
        {p: [mean(v) / source.unit_s for v in values] for p, values in found.items()},
        {p: [scaled_deviation(v, 1 / source.unit_s) for v in values] for p, values in found.items()},
        form,
    )
    axis.set_ylabel(f"average early feedback latency ({source.unit})")
    drawing.legend_above(axis, 3)
    numbers = {
        "figure": "17",
        "kind": source.kind,
        "source": published.SOURCES["fig17"],
        "about": source.foot,
        "latency_s": {
            policy: {
                model: {"mean": round(mean(values), 3), "deviation": deviation(values, 3)}
                for model, values in zip(source.models, of, strict=True)
            }
            for policy, of in found.items()
        },
    }
    title = f"Fig. 17: average early feedback latency, from arrival to feedback ({source.kind})"
    drawing.save(figure, out, f"fig17_{suffix}", title, source.foot, numbers)


def fig18(source: Source, out: Path, suffix: str) -> None:
    """Draw the early feedback latency of each job."""
    figure, axes = drawing.start(size=(8.5, 4.2))
    axis = axes[0][0]
    points: dict[str, list[list[float]]] = {}
    for policy in _approaches(source):
        trials = source.reports(source.shown_model, policy)[0]["trials"]
        points[policy] = [
            [trial["arrived_s"], trial["early_feedback_s"]] for trial in trials if trial["early_feedback_s"] is not None
        ]
        axis.plot(
            [at / source.unit_s for at, _ in points[policy]],
            [latency / source.unit_s for _, latency in points[policy]],
            color=drawing.COLOURS[policy],
            label=drawing.LABELS[policy],
            marker=".",
            markersize=5,
            linewidth=1.0,
        )
    _anchors(axis, source)
    axis.set_xlabel(f"arrival of the job ({source.unit})")
    axis.set_ylabel(f"early feedback latency ({source.unit})")
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    drawing.legend_above(axis, 3)
    numbers = {
        "figure": "18",
        "kind": source.kind,
        "source": published.SOURCES["fig18"],
        "about": source.foot,
        "arrival_and_latency_s": points,
    }
    title = _title("Fig. 18", "early feedback latency of each job", source)
    drawing.save(figure, out, f"fig18_{suffix}", title, source.foot, numbers)


def fig19(source: Source, out: Path, suffix: str) -> None:
    """Draw the share of the cluster's processors that computes, and the share of its memory that jobs hold."""
    approaches = _approaches(source)
    reports = {policy: source.reports(source.shown_model, policy)[0] for policy in approaches}
    longest_s = max(report["makespan_s"] for report in reports.values())
    figure, axes = drawing.start(columns=2, rows=len(approaches), size=(10.5, 6.8), sharex=True, sharey=True)
    numbers: dict[str, Any] = {
        "figure": "19",
        "kind": source.kind,
        "source": published.SOURCES["fig19"],
        "about": source.foot,
        "paper": {"nothing_submitted_min": published.NOTHING_SUBMITTED_MIN},
        "mean_until_its_end": {},
        "windows_s": {},
    }
    for row, policy in zip(axes, approaches, strict=True):
        report = reports[policy]
        end_s = report["makespan_s"]
        number = max(2, round(WINDOWS * end_s / longest_s))
        used = timelines.computing(report, source.busy(report))
        of_each = {
            "CPU": [(at, value / source.capacity) for at, value in used],
            "memory": timelines.held(report),
        }
        numbers["mean_until_its_end"][policy] = {}
        numbers["windows_s"][policy] = {}
        for axis, (what, steps) in zip(row, of_each.items(), strict=True):
            windows = timelines.in_windows(steps, end_s, number)
            axis.fill_between(
                [at / source.unit_s for at, _ in [*windows, (end_s, 0.0)]],
                [100 * value for _, value in [*windows, windows[-1]]],
                step="post",
                color=drawing.COLOURS[policy],
                alpha=0.8,
                linewidth=0,
            )
            mean_share = timelines.mean_of(steps, 0.0, end_s)
            if source.kind == "simulated":
                begin_min, end_min = published.NOTHING_SUBMITTED_MIN
                axis.axvspan(begin_min, end_min, color="black", alpha=0.08, linewidth=0)
            axis.set_title(f"{drawing.LABELS[policy]}: {what}, mean {100 * mean_share:.0f} %", loc="left")
            axis.set_ylim(0, 105)
            axis.set_xlim(0, longest_s / source.unit_s)
            numbers["mean_until_its_end"][policy][what] = round(mean_share, 4)
            numbers["windows_s"][policy][what] = timelines.thinned(windows, 1)
    axes[1][0].set_ylabel("share of the cluster (%)")
    for axis in axes[-1]:
        axis.set_xlabel(f"time ({source.unit})")
    title = _title("Fig. 19", "CPU and memory utilisation", source)
    quiet = "Grey: nothing is submitted in the paper (§7.3). " if source.kind == "simulated" else ""
    foot = (
        f"{source.foot}. {quiet}CPU: what workers compute and servers exchange, without waits within an iteration. "
        "Memory: all containers that jobs hold, from grant to release; what processes use of it is not known"
    )
    drawing.save(figure, out, f"fig19_{suffix}", title, foot, numbers)


def _changing(report: Report) -> float:
    """Return the share of Table 2; of a report of an earlier version, the share in which jobs stood still."""
    summary = report["summary"]
    return float(summary.get("changing_share", summary["resizing_share"]) or 0.0)


def table2(source: Source, out: Path, suffix: str) -> None:
    """Draw the share of the jobs' time in which members are added or removed."""
    policies = [policy for policy in ("kill", "kill-declared", "elastic") if policy in source.policies]
    found = {
        policy: [[_changing(report) for report in source.reports(model, policy)] for model in source.models]
        for policy in policies
    }
    paused = {
        policy: [
            [report["summary"]["resizing_share"] or 0.0 for report in source.reports(model, policy)]
            for model in source.models
        ]
        for policy in policies
    }
    figure, axes = drawing.start(size=(9.5, 4.2))
    axis = axes[0][0]
    places = drawing.bars(
        axis,
        _labels(source),
        {p: [100 * mean(v) for v in values] for p, values in found.items()},
        {p: [scaled_deviation(v, 100) for v in values] for p, values in found.items()},
        "{:.2g}",
        named_below=1.0,
    )
    label = "the paper (Table 2)"
    for policy, xs in places.items():
        theirs = published.OVERHEAD[PAPERS_NAMES.get(policy, policy)]
        known = [(x, 100 * theirs[model]) for x, model in zip(xs, source.models, strict=True) if model in theirs]
        if known and not (policy == "kill" and "kill-declared" in places):
            axis.plot(*zip(*known, strict=True), label=label, **drawing.PAPER)
            label = "_"
    axis.set_ylabel("time spent on removing and adding\n(% of the jobs' runtime)")
    drawing.legend_above(axis, 4)
    numbers = {
        "figure": "Table 2",
        "kind": source.kind,
        "source": published.SOURCES["table2"],
        "about": source.foot,
        "note": "the delay of kill's restart is declared so that it loses about as much as in the paper",
        "share": {
            policy: {model: round(mean(values), 5) for model, values in zip(source.models, of, strict=True)}
            for policy, of in found.items()
        },
        "standing_still_share": {
            policy: {model: round(mean(values), 5) for model, values in zip(source.models, of, strict=True)}
            for policy, of in paused.items()
        },
        "paper": published.OVERHEAD,
    }
    title = f"Table 2: overhead of changes of size ({_shown(suffix)})"
    still = 100 * mean(mean(values) for values in paused["elastic"])
    foot = (
        f"{source.foot}. All time in which members are added or removed counts, also while the job trains on; under "
        f"EPS jobs stand still for {still:.2g} %"
    )
    drawing.save(figure, out, f"table2_{suffix}", title, foot, numbers)
