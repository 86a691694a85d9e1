"""A figure that the paper does not have: the gain of elasticity by the arrival rate of jobs."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.paper import drawing, scaled
from benchmarks.paper.fig_sweeps import deviation, scaled_deviation
from hscheduler.simulator import paper

GAPS_S = (0.001, 20.0, 40.0, 60.0, 90.0, paper.MEAN_GAP_S, 180.0)
POLICIES = ("static", "kill-declared", "priority-stop")


def load(out: Path, seeds: int) -> None:
    """Draw the training time over that of EPS by the mean time between two arrivals."""
    over: dict[str, dict[float, list[float]]] = {policy: {} for policy in POLICIES}
    spans: dict[float, float] = {}
    for gap_s in GAPS_S:
        experiments = [scaled.Experiment("logistic", seed, gap_s) for seed in range(seeds)]
        ours = [scaled.simulate(experiment, "elastic")["makespan_s"] for experiment in experiments]
        spans[gap_s] = mean(ours)
        for policy in POLICIES:
            theirs = [scaled.simulate(experiment, policy)["makespan_s"] for experiment in experiments]
            over[policy][gap_s] = [a / b for a, b in zip(theirs, ours, strict=True)]
    figure, axes = drawing.start(size=(8.5, 4.2))
    axis = axes[0][0]
    for policy, by_gap in over.items():
        axis.errorbar(
            list(by_gap),
            [mean(values) for values in by_gap.values()],
            yerr=[scaled_deviation(values) for values in by_gap.values()],
            color=drawing.COLOURS[policy],
            marker="o",
            capsize=3,
            label=drawing.LABELS[policy],
        )
    axis.axhline(1.0, color=drawing.COLOURS["elastic"], linewidth=1)
    axis.axvline(paper.MEAN_GAP_S, color="#999999", linestyle=":", linewidth=1)
    axis.set_xlabel("mean time between two arrivals (s); dotted: that of the other figures; 0: all at once")
    axis.set_ylabel("training time over that of EPS")
    axis.legend(loc="upper right")
    foot = (
        f"SIMULATED: LR as in Fig. 14, {seeds} seeds, mean and standard deviation. Dotted: eleven jobs train at minute "
        "28, as in §7.1;\nits LR sweep takes 2.5 times as long under the default PS as under EPS"
    )
    numbers: dict[str, Any] = {
        "figure": "load (not in the paper)",
        "kind": "simulated",
        "about": foot,
        "elastic_makespan_s": {f"{gap:g}": round(span, 1) for gap, span in spans.items()},
        "over_elastic": {
            policy: {
                f"{gap:g}": {"mean": round(mean(values), 3), "deviation": deviation(values, 3)}
                for gap, values in by_gap.items()
            }
            for policy, by_gap in over.items()
        },
    }
    title = "What elasticity gains, by how fast jobs arrive (simulated)"
    drawing.save(figure, out, "load_simulated", title, foot, numbers)
