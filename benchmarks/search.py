"""Compare searches: TPE in a sweep, with trials in parallel; random points; and Hyperopt alone, one trial at a time.

    python benchmarks/search.py --quick                  # 10 seeds: check that it works
    python benchmarks/search.py --output search.json     # 100 seeds: ten minutes

Objectives are tables (:mod:`benchmarks.searches.objectives`), so a trial costs microseconds.  Everything else is real:
the source of points is that of a sweep, and the scheduler is the one that runs live, driven by the simulator under the
default policy.  A point is drawn when its trial can start, from the results known by then.  There is no stopping rule,
so that only the search matters.

Regret is the best loss after :data:`TRIALS` trials less the lowest of the table.  For the pooled figures the regrets of
each space are divided by the median of those of random points.  The test is Wilcoxon's signed-rank test, one-sided,
over the pairs of equal space and seed.  Hyperopt alone has the seeds of the sweep, so its first, random points are the
same.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bench_common import Bar, conclude, new_file, positive, rounded, run_to_the_end, say
from benchmarks.searches.objectives import OBJECTIVES, Table
from hscheduler.core.jobs import Direction
from hscheduler.live.points import GivenPoints, Points, TpePoints
from hscheduler.policies import POLICIES
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.workload import SimulatedJob
from hscheduler.spec import Spec
from hscheduler.spec.space import draw_point

TRIALS, SEEDS, QUICK_SEEDS = 40, 100, 10
POLICY = "elastic"
#: The cluster holds four trials at the size that they ask for; running ones shrink for more.
SPEC = Spec.of(
    {
        "cluster": {"nodes": 3},
        "sweep": {"trials": TRIALS, "stop": "none"},
        "job": {"workers": 2, "servers": 1, "stretch_s": 0.01},
    }
)
#: Iterations of a trial are drawn between these, so that trials do not end together.
ITERATIONS = 100, 300
ALPHA, MOST_OVER_SEQUENTIAL = 0.05, 1.1
METHODS = ("sweep", "random", "sequential")


def swept(table: Table, points: Points, seed: int) -> tuple[float, int]:
    """Return the best loss of a sweep, and the most trials without a result when a point was drawn."""
    draw, job = Random(f"iterations:{seed}"), SPEC.job_spec()
    speed = SpeedModel(job.splits, job.stretch_s)
    losses: dict[str, float] = {}
    open_trials: set[str] = set()
    most = 0
    #: The simulation asks for its first trial while it is made.
    made: list[Simulation] = []

    def jobs() -> Iterator[SimulatedJob]:
        nonlocal most
        for number in range(1, TRIALS + 1):
            ended = open_trials & made[0].losses.keys() if made else set()
            for job_id in sorted(ended):
                points.tell(job_id, losses[job_id])
            open_trials.difference_update(ended)
            most = max(most, len(open_trials))
            job_id = f"trial-{number}"
            open_trials.add(job_id)
            losses[job_id] = loss = table(points.ask(job_id))
            yield SimulatedJob(0.0, SPEC.request(job_id, "sweep"), draw.randint(*ITERATIONS), speed, loss, loss)

    opened = SPEC.opened("sweep")
    made.append(Simulation(SPEC.cluster.capacities(), POLICIES[POLICY], jobs(), Costs(), 100, [opened], seed))
    made[0].run()
    assert len(losses) == TRIALS, f"{len(losses)} trials were drawn"
    return min(losses.values()), most


def randomly(table: Table, seed: int) -> float:
    """Return the best loss of random points."""
    draw = Random(f"points:{seed}")
    points = (draw_point(table.space, draw) for _ in range(TRIALS))
    return swept(table, GivenPoints(points), seed)[0]


class Seeds:
    """Gives Hyperopt's ``fmin`` the seeds that a sweep gives Hyperopt."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(f"points:{seed}")

    def integers(self, most: int) -> int:
        """Return the next seed."""
        return self._draw.randrange(2**31)


def sequentially(table: Table, seed: int) -> float:
    """Return the best loss that Hyperopt alone finds."""
    import hyperopt

    from hscheduler.live.points import hyperopt_space

    trials = hyperopt.Trials()
    hyperopt.fmin(
        table,
        hyperopt_space(table.space),
        algo=hyperopt.tpe.suggest,
        max_evals=TRIALS,
        trials=trials,
        rstate=Seeds(seed),
        show_progressbar=False,
    )
    return float(min(trials.losses()))


def searched(table: Table, seed: int) -> dict[str, Any]:
    """Return the regret of each method in one space with one seed."""
    best, most = swept(table, TpePoints(table.space, seed, Direction.MINIMIZE, TRIALS), seed)
    found = {"sweep": best, "random": randomly(table, seed), "sequential": sequentially(table, seed)}
    return {**{name: value - table.best for name, value in found.items()}, "in_flight": most}


def pooled(results: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """Return the regrets of each method over all spaces and seeds, in units of the median of random points."""
    units = {name: median(each["random"] for each in rows) for name, rows in results.items()}
    return {
        method: [each[method] / units[name] for name, rows in results.items() for each in rows] for method in METHODS
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed."""
    from scipy.stats import wilcoxon

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=SEEDS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds: check that it works")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    arguments = parser.parse_args(argv)
    logging.getLogger("hyperopt").setLevel(logging.WARNING)
    seeds = QUICK_SEEDS if arguments.quick else arguments.seeds
    results: dict[str, list[dict[str, Any]]] = {}
    spaces = {}
    for make in OBJECTIVES:
        table = make()
        rows = results[table.name] = [searched(table, seed) for seed in range(seeds)]
        medians = {method: rounded(median(row[method] for row in rows)) for method in METHODS}
        spaces[table.name] = {"lowest": rounded(table.best), "median_regret": medians}
        say(f"{table.name}: median regret {medians}")
    regrets = pooled(results)
    medians = {method: rounded(median(regrets[method])) for method in METHODS}
    against = {
        method: float(wilcoxon(regrets["sweep"], regrets[method], alternative="less").pvalue)
        for method in ("random", "sequential")
    }
    over = rounded(medians["sweep"] / medians["sequential"])
    note = f"{len(results)} spaces, {seeds} seeds, {TRIALS} trials"
    bars = [
        Bar("better than random points, p", float(f"{against['random']:.3g}"), ALPHA, at_least=False, note=note),
        Bar("median regret over Hyperopt's alone", over, MOST_OVER_SEQUENTIAL, at_least=False, note=note),
    ]
    document = {
        "seeds": seeds,
        "trials": TRIALS,
        "policy": POLICY,
        "most_in_flight": max(row["in_flight"] for rows in results.values() for row in rows),
        "spaces": spaces,
        "pooled": {"median_regret": medians, "p": {name: float(f"{p:.3g}") for name, p in against.items()}},
        "regrets": {name: {m: [rounded(row[m]) for row in rows] for m in METHODS} for name, rows in results.items()},
    }
    return conclude("search", document, bars, arguments.output, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
