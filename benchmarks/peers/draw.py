"""The picture of ``peers.py``: iterations per second of each system.

python draw.py SUMMARY.json PICTURE.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot


def main() -> None:
    """Draw one panel for each case, the fastest system on top."""
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results = found["results"]
    tallest = max(len(result["systems"]) for result in results)
    figure, axes = pyplot.subplots(1, len(results), figsize=(5.5 * len(results), 1.4 + 0.45 * tallest), squeeze=False)
    for axis, result in zip(axes[0], results, strict=True):
        entries = sorted(result["systems"].items(), key=lambda item: item[1]["iterations_per_s"])
        speeds = [entry["iterations_per_s"] for _, entry in entries]
        slowest = [speed - 1 / max(e["iteration_s"]["values"]) for speed, (_, e) in zip(speeds, entries, strict=True)]
        fastest = [1 / min(e["iteration_s"]["values"]) - speed for speed, (_, e) in zip(speeds, entries, strict=True)]
        colors = ["tab:blue" if name == "EPS" else "tab:gray" for name, _ in entries]
        ranges = [[max(0.0, value) for value in side] for side in (slowest, fastest)]
        axis.barh([name for name, _ in entries], speeds, xerr=ranges, color=colors, ecolor="black", capsize=3)
        best = result.get("best_peer")
        if best:
            aim = found["target"] * result["systems"][best]["iterations_per_s"]
            axis.axvline(aim, color="tab:red", linestyle="--", linewidth=1, label=f"{found['target']} x best peer")
            axis.legend(loc="lower right", fontsize=8)
        millions = result["features"] / 1e6
        title = f"{result['case']}: {millions:g} M parameters"
        if result["case"] == "sparse":
            title += f", {result['touched_per_worker'][0] / 1e3:.0f} k touched per worker"
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("iterations per second (median; bars: slowest to fastest round)", fontsize=8)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=120)


if __name__ == "__main__":
    main()
