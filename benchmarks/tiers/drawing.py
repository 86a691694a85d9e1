"""Pictures of the tiers, as SVG: the paper's figures with its numbers beside ours, and a replayed trace."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.picture import box, text

WIDTH, LEFT, RIGHT, ROW, HEAD, GAP = 760, 150, 300, 16, 24, 10
#: Left of the text beside a bar, and the width of the longest bar.
LONGEST = WIDTH - LEFT - RIGHT
BASE, STAGES, CHOSEN, MARK = "#8a92a3", ("#e0a030", "#3d7bd9", "#2a9d64"), "#7b54b5", "#c94444"
#: Proteus §6.4 to §6.6, where the text has numbers; over the all-reliable job.
PAPER = {
    "15:1 stage 1": "over 1.85",
    "1:1 stage 1": "negligible slowdown",
    "15:1 stage 2": "1.18",
    "7:1 stage 2": "no slowdown",
    "63:1 stage 2": "2",
    "63:1 stage 3": "1.0",
}
SCALING = "Fig. 15: more hosts"
FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Fig. 11: servers on reliable hosts only (stage 1)",
        ("all-reliable", *(f"{n}:1 stage 1" for n in (1, 3, 7, 15))),
    ),
    (
        "Fig. 12: servers on half of the transient hosts (stage 2)",
        ("all-reliable", *(f"{n}:1 stage {s}" for n in (7, 15) for s in (1, 2))),
    ),
    (
        "Fig. 13: no worker on the reliable host (stage 3), whose link is throttled",
        ("all-reliable", "63:1 stage 2", "63:1 stage 3"),
    ),
    ("Fig. 14: as many reliable as transient hosts", ("1:1 stage 2", "1:1 stage 3")),
    ("The controller's choice", tuple(f"{n}:1 auto" for n in (1, 3, 7, 15, 63))),
    (SCALING, ("4 hosts", "8 hosts", "16 hosts")),
    ("Copies for BackupPSs", ("7:1 stage 2", "7:1 stage 2, no cuts")),
)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write the picture of ``stages.py``'s results."""
    cases = found["cases"]
    network = found["network"]
    top, parts = float(HEAD), []
    about = f"{network['hosts']} hosts, links of {network['mbit']:g} Mbit/s; seconds of an iteration"
    parts.append(text(8, 16, f"Matrix factorization on {about}", "bold"))
    for title, names in FIGURES:
        shown = [name for name in names if name in cases]
        if shown and shown != ["all-reliable"]:
            top, more = _bars(title, {name: cases[name] for name in shown}, top)
            parts += more
    if found["elasticity"]:
        top, more = _elasticity(found["elasticity"][-1], top)
        parts += more
    if found["kills"]:
        values = sorted(kill["pause_s"] for kill in found["kills"])
        words = f"SIGKILL of all transient containers: training goes on after {statistics.median(values):.2f} s"
        parts.append(text(8, top + 16, f"{words} ({values[0]:.2f} to {values[-1]:.2f})", "bold"))
        top += HEAD
    _write(path, parts, top + 8)


def _bars(title: str, cases: Mapping[str, Any], top: float) -> tuple[float, list[str]]:
    """Return the bottom of a figure, and its parts: a bar for each case."""
    parts = [text(8, top + 16, title, "bold")]
    top += HEAD
    longest = max(case["iteration_s"]["max"] for case in cases.values())
    for name, case in cases.items():
        time_s = case["iteration_s"]
        width = LONGEST * time_s["median"] / longest
        low, high = (LEFT + LONGEST * time_s[key] / longest for key in ("min", "max"))
        words = f"{time_s['median']:.2f} s"
        if title == SCALING:
            words += _of_ideal(name, cases)
        elif name != "all-reliable" and "over_all" in case:
            words += f", {case['over_all']['median']:.2f} of all-reliable"
        if name.endswith("auto"):
            words += f" (stage {case['runs'][-1]['stage']})"
        if name in PAPER:
            words += f"; the paper: {PAPER[name]}"
        parts += [
            text(LEFT - 6, top + ROW - 4, name, anchor="end"),
            box(LEFT, top + 2, width, ROW - 5, _color(name)),
            box(low, top + ROW / 2 - 1, max(1.0, high - low), 1, "#222"),
            text(max(LEFT + width, high) + 6, top + ROW - 4, words),
        ]
        top += ROW
    return top + GAP, parts


def _of_ideal(name: str, cases: Mapping[str, Any]) -> str:
    """Return the speed of a job on some hosts, as a share of that of fewer hosts times their ratio."""
    first = min(cases, key=_hosts_of)
    times = [cases[each]["iteration_s"]["median"] for each in (first, name)]
    ideal = times[0] * _hosts_of(first) / _hosts_of(name) / times[1]
    return "" if name == first else f", {ideal:.2f} of ideal"


def _hosts_of(name: str) -> int:
    return int(name.split()[0])


def _color(name: str) -> str:
    for number, color in enumerate(STAGES, 1):
        if f"stage {number}" in name:
            return color
    return CHOSEN if name.endswith("auto") else BASE


def _elasticity(found: Mapping[str, Any], top: float) -> tuple[float, list[str]]:
    """Return the bottom of Fig. 16, and its parts: a column for each iteration."""
    usual, joined = found["usual_s"], found["usual_joined_s"]
    title = f"Fig. 16: hosts join from clock {found['joined_clock']} and leave at clock {found['left_clock']}"
    words = (
        f"longest iteration while they join {found['joining']:.2f} of a usual one (the paper: no disruption), "
        f"of the eviction {found['evicting']:.2f} (the paper: 1.13)"
    )
    parts = [text(8, top + 16, title, "bold"), text(8, top + 32, words)]
    top += 40
    values = found["iteration_s"][1:-1]
    longest, height = max(values), 70.0
    step = (WIDTH - LEFT - 20) / len(values)
    for number, value in enumerate(values, 1):
        here = height * value / longest
        color = STAGES[1] if found["joined_clock"] <= number < found["left_clock"] else BASE
        parts.append(box(LEFT + step * (number - 1), top + height - here, step * 0.8, here, color))
    for value in (usual, joined):
        y = top + height * (1 - value / longest)
        parts += [box(LEFT - 4, y, WIDTH - LEFT - 12, 1, MARK), text(LEFT - 8, y + 4, f"{value:.2f} s", anchor="end")]
    return top + height + GAP, parts


def draw_replay(found: Mapping[str, Any], path: Path) -> None:
    """Write the picture of ``replay.py``'s results: members, stage and throughput over time."""
    samples = found["samples"]
    end_s = samples[-1]["s"]
    top, parts = 0.0, [text(8, 16, _replay_title(found), "bold")]
    top += HEAD
    lanes = (
        ("hosts", [(s["s"], s["reliable"] + s["transient"]) for s in samples], BASE, 110.0),
        ("clocks/s", [(s["s"], s["per_s"]) for s in samples], STAGES[1], 110.0),
        ("stage", [(s["s"], s["stage"]) for s in samples], STAGES[2], 40.0),
    )
    for name, points, color, height in lanes:
        most = max([value for _, value in points] + [s["wanted"] for s in samples if name == "hosts"]) or 1.0
        parts += [text(60, top + 12, name, anchor="end"), text(60, top + 28, f"{most:.3g}", anchor="end")]
        for x, width, value in _spans(points, end_s):
            parts.append(box(x, top + height * (1 - value / most), width, height * value / most, color))
        if name == "hosts":
            for x, width, value in _spans([(s["s"], s["wanted"]) for s in samples], end_s):
                parts.append(box(x, top + height * (1 - value / most), width, 1.5, MARK))
        top += height + GAP
    for event in found["events"]:
        if event["kind"] == "fail":
            parts.append(box(_x(event["s"], end_s), HEAD, 1, top - HEAD, MARK))
    parts.append(text(66, top + 10, "0 s"))
    parts.append(text(WIDTH - 12, top + 10, f"{end_s:.0f} s", anchor="end"))
    marks = ((BASE, "hosts of the job"), (MARK, "hosts of the trace; vertical: SIGKILL without a warning"))
    x = 120.0
    for color, label in marks:
        parts += [box(x, top + 1, 10, 10, color), text(x + 15, top + 10, label)]
        x += 40 + 6.3 * len(label)
    _write(path, parts, top + 20)


def _replay_title(found: Mapping[str, Any]) -> str:
    summary = found["summary"]
    return (
        f"{found['trace']}, {found['speed']:g} times as fast: {summary['clocks']} iterations, "
        f"hosts evicted {summary['evicted']}, failed {summary['failed']}; clocks rolled back {summary['rolled_back']}"
    )


def _x(seconds: float, end_s: float) -> float:
    return 66 + (WIDTH - 78) * seconds / end_s


def _spans(points: Sequence[tuple[float, float]], end_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield left edge, width and value of each span with one value."""
    changes = [point for i, point in enumerate(points) if not i or point[1] != points[i - 1][1]]
    for (begin_s, value), (until_s, _) in zip(changes, [*changes[1:], (end_s, 0.0)], strict=True):
        yield _x(begin_s, end_s), _x(until_s, end_s) - _x(begin_s, end_s), value


def _write(path: Path, parts: Sequence[str], height: float) -> None:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}"'
    lines = [
        f'{head} font-family="sans-serif" font-size="11">',
        box(0, 0, WIDTH, height, "#fff"),
        *parts,
        "</svg>",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
