"""The style of the pictures: one colour for each policy; every title says whether the numbers are real or simulated.

matplotlib is imported here only, and only when a picture is drawn.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_common import plotting, say

#: In drawing order; colours that colour-blind readers can tell apart (Okabe and Ito).
COLOURS = {
    "elastic": "#0072B2",
    "static": "#7F7F7F",
    "static-stop": "#56B4E9",
    "kill": "#D55E00",
    "kill-declared": "#E69F00",
    "priority": "#009E73",
    "priority-stop": "#009E73",
}
LABELS = {
    "elastic": "EPS (elastic)",
    "static": "default PS (static)",
    "static-stop": "static, with stopping",
    "kill": "kill",
    "kill-declared": "kill, declared delay",
    "priority": "priority",
    "priority-stop": "priority, with stopping",
}
#: Style of the paper's values beside ours.
PAPER = {"color": "black", "marker": "D", "markersize": 5, "linestyle": "none"}

#: Width of the text at the foot of a picture.
LETTERS_OF_AN_INCH = 14.5

_STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "eps",
    "figure.constrained_layout.use": True,
}


def start(columns: int = 1, rows: int = 1, size: tuple[float, float] = (8.0, 4.2), **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, shape (rows, columns)."""
    pyplot = plotting()
    pyplot.rcParams.update(_STYLE)
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False, **options)


def save(figure: Any, out: Path, name: str, title: str, foot: str, numbers: Mapping[str, Any]) -> None:
    """Write a picture as PNG and SVG and its numbers as JSON; ``foot`` says where they are from."""
    figure.suptitle(title, fontsize=12, fontweight="bold")
    wrapped = textwrap.fill(" ".join(foot.split()), int(figure.get_figwidth() * LETTERS_OF_AN_INCH))
    figure.supxlabel(wrapped, fontsize=8, color="#444444", x=0.01, ha="left")
    # Without dates and versions: the same numbers give the same file.
    figure.savefig(out / f"{name}.png", dpi=130, metadata={"Software": None})
    figure.savefig(out / f"{name}.svg", metadata={"Date": None, "Creator": None})
    plotting().close(figure)
    (out / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    say(f"{out / name}.png, .svg, .json")


def bars(
    axis: Any,
    groups: Sequence[str],
    values: Mapping[str, Sequence[float]],
    errors: Mapping[str, Sequence[float]] | None = None,
    form: str = "",
    named_below: float = math.inf,
) -> dict[str, list[float]]:
    """Draw a group of bars for each name, one bar for each policy; return the middles of the bars by policy.

    With ``form``, bars lower than ``named_below`` have their height above them.
    """
    width = 0.8 / len(values)
    middles: dict[str, list[float]] = {}
    for k, (policy, heights) in enumerate(values.items()):
        middles[policy] = [place - 0.4 + width * (k + 0.5) for place in range(len(groups))]
        drawn = axis.bar(
            middles[policy],
            heights,
            width * 0.92,
            color=COLOURS[policy],
            label=LABELS[policy],
            yerr=None if errors is None else errors[policy],
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#333333"},
        )
        if form:
            axis.bar_label(
                drawn, labels=[form.format(h) if h < named_below else "" for h in heights], fontsize=8, padding=2
            )
    axis.set_xticks(range(len(groups)), groups)
    axis.set_xlim(-0.6, len(groups) - 0.4)
    return middles


def legend_above(axis: Any, columns: int) -> None:
    """Put a legend above the axes, where it covers nothing."""
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2)
