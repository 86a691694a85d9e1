"""Draw the trials of a comparison under two policies, with the workers that each has over time, as an SVG.

python benchmarks/picture.py                  # docs/elastic.svg from results/yarn/compare.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "benchmarks" / "results" / "yarn" / "compare.json"
PICTURE = ROOT / "docs" / "elastic.svg"
POLICIES = ("static", "elastic")

WIDTH, LEFT, RIGHT, ROW, GAP, HEAD = 760, 64, 12, 13, 4, 26
QUEUED, WORKER, FINISHED, STOPPED = "#c4c9d4", "#3d7bd9", "#2a9d64", "#c94444"


def svg(comparison: dict[str, Any]) -> str:
    """Return the picture: a row for each trial, as high as it has workers."""
    reports = [comparison["policies"][name] for name in POLICIES]
    longest = max(report["makespan_s"] for report in reports)
    most = max(workers for report in reports for trial in report["trials"] for _, workers, _ in trial["containers"])
    top, parts = 0.0, []
    for name, report in zip(POLICIES, reports, strict=True):
        parts.append(text(LEFT, top + 17, f"{name}: {report['makespan_s']:.0f} s", "bold"))
        top += HEAD
        for number, trial in enumerate(report["trials"], 1):
            parts.append(text(LEFT - 6, top + ROW - 3, f"trial {number}", anchor="end"))
            parts += row(trial, top, longest, most)
            top += ROW + GAP
        top += GAP
    marks = (
        (QUEUED, "waits"),
        (WORKER, "trains; the height is the number of workers"),
        (FINISHED, "finished"),
        (STOPPED, "stopped"),
    )
    x = float(LEFT)
    for color, label in marks:
        parts += [box(x, top, 10, 10, color), text(x + 15, top + 9, label)]
        x += 34 + 6.3 * len(label)
    height = round(top + 18)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
    parts = [f'{head} font-family="sans-serif" font-size="11">', box(0, 0, WIDTH, height, "#fff"), *parts, "</svg>"]
    return "\n".join(parts) + "\n"


def row(trial: dict[str, Any], top: float, longest: float, most: int) -> list[str]:
    """Return the boxes of one trial: the time it waits, then its workers over time, then how it ended."""

    def at(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / longest

    begin, end = at(trial["started_s"]), at(trial["finished_s"])
    parts = [box(at(trial["arrived_s"]), top + ROW - 3, begin - at(trial["arrived_s"]), 3, QUEUED)]
    steps = [(at(seconds), workers) for seconds, workers, _ in trial["containers"]]
    for (x, workers), (until, _) in zip(steps, [*steps[1:], (end, 0)], strict=True):
        if workers and until > x:
            height = ROW * workers / most
            parts.append(box(x, top + ROW - height, until - x, height, WORKER))
    parts.append(box(end, top, 3, ROW, FINISHED if trial["phase"] == "finished" else STOPPED))
    return parts


def box(x: float, y: float, width: float, height: float, color: str) -> str:
    """Return a filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'


def text(x: float, y: float, words: str, weight: str = "normal", anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-weight="{weight}" text-anchor="{anchor}" fill="#222">{words}</text>'


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(svg(json.loads(REPORT.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
