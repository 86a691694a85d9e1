"""Measures of the policies from reports of sweeps, real or simulated: pure functions.

Times are seconds since the start of the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from benchmarks.bench_common import Bar, ratio
from hscheduler.core.jobs import Direction
from hscheduler.reports.report import aligned

Report = Mapping[str, Any]
#: Runs of one repeat by name (:data:`benchmarks.paper.compare.RUNS`).
Repeat = Mapping[str, Report]

#: Share of the jobs' time that kill loses in Table 2 of the paper: smallest and largest.
KILL_LOSES = (0.21, 0.292)

#: Decisions made when a job arrives have the time of the arrival, which reports round.
_SAME_S = 1e-5


def placed_at_once(report: Report) -> dict[str, bool]:
    """Return, for each job that was placed on arrival, whether others had to shrink for it."""
    arrived = {trial["job_id"]: trial["arrived_s"] for trial in report["trials"]}
    found: dict[str, bool] = {}
    for decision in report["decisions"]:
        # A plan names the jobs that shrink first, and the job that starts last.
        job_id = decision["jobs"][-1]
        starts = decision["sentence"].startswith(f"{job_id} starts with ")
        if starts and abs(decision["at_s"] - arrived[job_id]) < _SAME_S:
            found.setdefault(job_id, len(decision["jobs"]) > 1)
    return found


def arrived_at_a_full_cluster(report: Report) -> list[Mapping[str, Any]]:
    """Return the trials whose requested containers were not free when they arrived."""
    placed = placed_at_once(report)
    return [trial for trial in report["trials"] if placed.get(trial["job_id"]) is not False]


def queueing_s(trial: Mapping[str, Any]) -> float | None:
    """Return the seconds from a trial's arrival until it has its containers."""
    return None if trial["started_s"] is None else trial["started_s"] - trial["arrived_s"]


def first_iteration_after_s(trial: Mapping[str, Any]) -> float | None:
    """Return the seconds from a trial's arrival to its first complete iteration."""
    return None if trial["first_iteration_s"] is None else trial["first_iteration_s"] - trial["arrived_s"]


def average(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def row(report: Report) -> dict[str, Any]:
    """Return the figures of one sweep by which policies are compared."""
    full = arrived_at_a_full_cluster(report)
    placed = placed_at_once(report)
    made_room = [trial for trial in full if placed.get(trial["job_id"])]
    return {
        "makespan_s": report["makespan_s"],
        "best_loss": None if report["best"] is None else report["best"]["loss"],
        "completed": report["completed"],
        "killed": report["phases"]["killed"],
        "failed": report["phases"]["failed"],
        "leaked": report["resources"]["leaked"],
        "utilisation": report["utilisation"],
        "resizing_share": report["summary"]["resizing_share"],
        "changing_share": report["summary"]["changing_share"],
        "restarts": sum(trial["restarts"] for trial in report["trials"]),
        "full_arrivals": len(full),
        "room_was_made_for": len(made_room),
        "first_iteration_median_s": middle([first_iteration_after_s(trial) for trial in made_room]),
        "queueing_mean_s": average([queueing_s(trial) for trial in full]),
        "queueing_median_s": middle([queueing_s(trial) for trial in full]),
        "early_feedback_mean_s": average([trial["early_feedback_s"] for trial in full]),
        "early_feedback_median_s": middle([trial["early_feedback_s"] for trial in full]),
    }


def over(repeats: Sequence[Repeat], name: str, key: str, of: str = "elastic") -> list[float | None]:
    """Return the ratio of a figure of two runs, for each repeat that has both."""
    found: list[float | None] = []
    for repeat in repeats:
        if name in repeat and of in repeat:
            above, below = row(repeat[name])[key], row(repeat[of])[key]
            found.append(ratio(above, below, 3) if above is not None and below is not None else None)
    return found


def figures(repeats: Sequence[Repeat], name: str, key: str) -> list[float | None]:
    """Return a figure of one run, by repeat."""
    return [row(repeat[name])[key] for repeat in repeats if name in repeat]


def loss_over_static(repeats: Sequence[Repeat]) -> list[float | None]:
    """Return for each repeat by how much the best loss is worse than that of ``static``; 0 if it is the same trial."""
    found: list[float | None] = []
    for repeat in repeats:
        if "elastic" in repeat and "static" in repeat:
            ours, theirs = row(repeat["elastic"])["best_loss"], row(repeat["static"])["best_loss"]
            # Older reports have no direction; their metric is a loss.
            sign = -1.0 if repeat["elastic"].get("direction") == Direction.MAXIMIZE else 1.0
            found.append(None if ours is None or theirs is None else sign * (ours - theirs))
    return found


def failed_or_leaked(repeats: Sequence[Repeat]) -> list[float | None]:
    """Return for each repeat the failed trials and the containers held at the end, summed over its runs."""
    rows = [[row(report) for report in repeat.values()] for repeat in repeats]
    return [float(sum(each["failed"] + each["leaked"] for each in of_one)) for of_one in rows]


def bars(repeats: Sequence[Repeat]) -> list[Bar]:
    """Return the bars of "Speed to reach".

    Ratios, shares and times are judged at the medians of the repeats.  Failed trials and worse models must never occur,
    so they are judged at the worst repeat.
    """

    def judged(
        name: str, value: float | None, values: Sequence[float | None], limit: float, note: str, most: bool
    ) -> Bar:
        known = ", ".join("-" if each is None else f"{each:.3g}" for each in values)
        # Significant digits: a value just above 0 must not become 0.
        shown = None if value is None else float(f"{value:.5g}")
        return Bar(name, shown, limit, not most, "; ".join(part for part in (known, note) if part))

    def bar(name: str, values: Sequence[float | None], limit: float, note: str = "", *, most: bool = False) -> Bar:
        return judged(name, middle(values), values, limit, note, most)

    def never(name: str, values: Sequence[float | None]) -> Bar:
        known = [value for value in values if value is not None]
        return judged(name, max(known) if known and len(known) == len(values) else None, values, 0.0, "", True)

    makespan = {name: over(repeats, name, "makespan_s") for name in ("static", "static-stop", "priority", "kill")}
    declared = over(repeats, "kill-declared", "makespan_s")
    share = figures(repeats, "kill-declared", "resizing_share")
    return [
        bar("makespan: static / elastic", makespan["static"], 2.0, "the paper: 1.7 to 2.5"),
        bar("makespan: static-stop / elastic", makespan["static-stop"], 1.25),
        bar("makespan: priority / elastic", makespan["priority"], 1.4),
        bar("makespan: kill with the declared delay / elastic", declared, 1.25),
        bar("makespan: kill with our restart / elastic", makespan["kill"], 1.0),
        bar("what kill with the declared delay loses, at least", share, KILL_LOSES[0], "Table 2 of the paper"),
        bar("what kill with the declared delay loses, at most", share, KILL_LOSES[1], "Table 2", most=True),
        never("best loss worse than static's by", loss_over_static(repeats)),
        never("trials that failed and containers that leaked, of all runs", failed_or_leaked(repeats)),
        bar(
            "first iteration after arrival where room was made, s",
            figures(repeats, "elastic", "first_iteration_median_s"),
            1.0,
            "medians of trials that came to a full cluster",
            most=True,
        ),
        *(
            bar(f"{what} at a full cluster: {kill} / elastic", over(repeats, name, key), limit, "means")
            for what, key, limit in (
                ("queueing", "queueing_mean_s", 3.0),
                ("early feedback", "early_feedback_mean_s", 1.4),
            )
            for kill, name in (("kill with our restart", "kill"), ("kill with the declared delay", "kill-declared"))
        ),
        bar(
            "time for which changes of size paused jobs, of the jobs' time",
            figures(repeats, "elastic", "resizing_share"),
            0.005,
            most=True,
        ),
    ]


def table(repeats: Sequence[Repeat], names: Sequence[str]) -> str:
    """Return the runs side by side, medians of the repeats, as text."""
    columns = (
        ("makespan s", "makespan_s", "{:.1f}"),
        ("best loss", "best_loss", "{:.4g}"),
        ("done", "completed", "{:.0f}"),
        ("killed", "killed", "{:.0f}"),
        ("failed", "failed", "{:.0f}"),
        ("restarts", "restarts", "{:.0f}"),
        ("paused %", "resizing_share", "{:.2%}"),
        ("resizing %", "changing_share", "{:.2%}"),
        ("utilisation", "utilisation", "{:.1%}"),
        ("queued s", "queueing_mean_s", "{:.2f}"),
        ("feedback s", "early_feedback_mean_s", "{:.1f}"),
        ("first it. s", "first_iteration_median_s", "{:.2f}"),
    )
    rows = [["", *(title for title, _, _ in columns), "makespan / elastic"]]
    for name in names:
        cells = []
        for _, key, form in columns:
            value = middle(figures(repeats, name, key))
            cells.append("-" if value is None else form.format(value))
        above = middle(over(repeats, name, "makespan_s"))
        rows.append([name, *cells, "-" if above is None else f"{above:.2f}"])
    return aligned(rows)
