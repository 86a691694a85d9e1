"""What elasticity is worth, simulated: the same points, stopping rule and work under every policy.

    python -m benchmarks.sweeps.simulated                     # some minutes; writes results/sweeps/simulated.json
    python -m benchmarks.sweeps.simulated --seeds 10-12 --trials 27 --output /tmp/simulated.json

Sweeps of 27 and 81 equal trials on 16 containers, with rungs at 100, 300 and 900 of 2,700 iterations.  An iteration
takes 0.1 s in one container, and the efficiency in 16 containers is 0.7.  Costs of starts and changes are those fitted
to real processes (results/paper/predicted.json).  Tuned on seeds 0 to 9, reported on others.  Compute is simulated.

``static-N`` runs every trial in N containers, ``asked`` in two workers and one server.  ``between-rungs`` starts each
trial in the best size for its rung, and does not resize it (RubberBand, EuroSys 2021).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.bench_common import spread
from benchmarks.sweeps import fluid
from hscheduler.core import events as e
from hscheduler.core.decisions import Decision, Policy, Start, View
from hscheduler.core.jobs import Direction, JobRequest
from hscheduler.core.resources import NOTHING, Resources
from hscheduler.core.rungs import Stopping
from hscheduler.policies import POLICIES
from hscheduler.policies.placing import place, roles_of
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.workload import SimulatedJob, qualities

RESULTS = Path(__file__).resolve().parents[1] / "results"
SWEEP, CONTAINERS, SPLITS = "sweep", 16, 48
RUNGS = (100, 300, 900, 2700)
ITERATION_S = 0.1
ONE = Resources(1, 1024)
SIZES = (1, 2, 3, 4, 5, 8, 16)
#: Load of the cluster by arriving trials, if each trained as ``sha`` lets the average one.
LOAD = 0.8


def costs() -> Costs:
    """Return the costs of changes that were fitted to real processes."""
    fitted = json.loads((RESULTS / "paper" / "predicted.json").read_text())
    return Costs(**fitted["model"]["costs"])


def speed(efficiency: float) -> SpeedModel:
    """Return a speed model with this efficiency in 16 containers."""
    serial = fluid.Curve.of_efficiency(efficiency).serial
    return SpeedModel(SPLITS, ITERATION_S * (1 - serial) / SPLITS, ITERATION_S * serial)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A sweep to simulate."""

    trials: int
    seed: int
    stop: str = "sha"
    efficiency: float = 0.7
    #: Mean seconds between arrivals; 0: all at once.
    gap_s: float = 0.0

    def arrivals(self) -> Iterator[float]:
        """Yield the times at which trials arrive."""
        draw, now_s = Random(f"arrivals:{self.seed}"), 0.0
        while True:
            yield now_s
            now_s += draw.expovariate(1 / self.gap_s) if self.gap_s else 0.0

    def jobs(self, workers: int, servers: int) -> list[SimulatedJob]:
        """Return the trials, which ask for this size."""
        drawn, times = qualities(Random(f"qualities:{self.seed}")), self.arrivals()
        found = []
        for number in range(self.trials):
            most = SPLITS, SPLITS if servers else 0
            request = JobRequest(f"trial-{number + 1}", SWEEP, workers, servers, ONE, ONE, NOTHING, *most)
            at_s = next(times)
            found.append(SimulatedJob(at_s, request, RUNGS[-1], speed(self.efficiency), *next(drawn)))
        return found


def run(setting: Setting, policy: Policy, workers: int, servers: int, at: Costs) -> dict[str, float]:
    """Simulate a sweep; return its makespan, iterations and times to early feedback."""
    stopping = Stopping(setting.stop, fluid.ETA, RUNGS[0], RUNGS[-1])
    opened = e.SweepOpened(
        SWEEP, Direction.MINIMIZE, feedback_iteration=RUNGS[0], stopping=stopping, trials=setting.trials
    )
    nodes = {f"node{k}": Resources(4, 4096) for k in range(CONTAINERS // 4)}
    simulation = Simulation(nodes, policy, setting.jobs(workers, servers), at, RUNGS[0], [opened], setting.seed)
    record = simulation.run()
    trials = list(record.trials.values())
    feedback = [trial.early_feedback_s for trial in trials if trial.early_feedback_s is not None]
    finished = {name: simulation.losses[name] for name in simulation.losses}
    return {
        "makespan_s": max(trial.finished_s or 0.0 for trial in trials),
        "iterations": sum(trial.iteration for trial in trials),
        "feedback_s": median(feedback),
        "mean_feedback_s": sum(feedback) / len(feedback),
        "resizes": sum(trial.resizes for trial in trials),
        "decisions": len(record.decisions),
        "best_loss": min(finished.values()),
    }


def start_in(sizes: Sequence[int], view: View) -> Decision:
    """Start the head of the queue in the size for its rung, if that is free (RubberBand's executor)."""
    for job in view.queue:
        size = sizes[min(len(job.rungs), len(sizes) - 1)]
        places, left = place(view.room(), job.request, roles_of(job.request, size, 0))
        if not left:
            return Decision((Start(job.job_id, tuple(places)),), f"{job.job_id} starts in {size} containers")
        break
    return Decision()


def between_rungs(setting: Setting, at: Costs) -> Policy:
    """Return the policy that starts each trial in the best size for its rung."""
    sweep = fluid_sweep(setting, at)
    sizes = []
    for trials, iterations in sweep.stages():
        ways = [(fluid.fixed_stage(sweep, size, trials, iterations), size) for size in range(1, CONTAINERS + 1)]
        sizes.append(min(ways)[1])
    return partial(start_in, sizes)


def fluid_sweep(setting: Setting, at: Costs) -> fluid.Sweep:
    """Return the fluid model of a sweep, in iterations of one container."""
    return fluid.Sweep(
        setting.trials,
        fluid.Curve.of_efficiency(setting.efficiency),
        start=(at.start_s + at.end_s) / ITERATION_S,
        restart=(at.end_s + at.restart_s + at.start_s) / ITERATION_S,
    )


def ways(setting: Setting, at: Costs, sizes: Sequence[int] = SIZES) -> dict[str, dict[str, float]]:
    """Simulate a sweep under every policy."""
    found = {f"static-{size}": run(setting, POLICIES["static"], size, 0, at) for size in sizes}
    found["asked"] = run(setting, POLICIES["static"], 2, 1, at)
    if setting.stop == "sha":
        found["between-rungs"] = run(setting, between_rungs(setting, at), 1, 0, at)
    found["kill"] = min((run(setting, POLICIES["kill"], size, 0, at) for size in (1, 2, 3)), key=_makespan_s)
    found["elastic"] = min((run(setting, POLICIES["elastic"], size, 0, at) for size in (1, 2, 3)), key=_makespan_s)
    found["gain"] = run(setting, POLICIES["gain"], 1, 0, at)
    return found


def _makespan_s(found: dict[str, float]) -> float:
    return found["makespan_s"]


def best_fixed(found: dict[str, dict[str, float]]) -> str:
    """Return the fixed size with the shortest makespan."""
    return min((name for name in found if name.startswith("static-")), key=lambda name: found[name]["makespan_s"])


def ratios(setting: Setting, found: dict[str, dict[str, float]], at: Costs) -> dict[str, float]:
    """Return the rows of the table for one sweep."""
    gain_s = found["gain"]["makespan_s"]
    rows = {"best fixed / gain": found[best_fixed(found)]["makespan_s"] / gain_s}
    for name in ("asked", "between-rungs", "kill", "elastic", "static-1"):
        if name in found:
            rows[f"{name} / gain"] = found[name]["makespan_s"] / gain_s
    if setting.gap_s:
        fixed = [found[name] for name in found if name.startswith("static-")]
        rows["feedback, fixed size of best makespan / gain"] = (
            found[best_fixed(found)]["feedback_s"] / found["gain"]["feedback_s"]
        )
        rows["feedback, fixed size of best feedback / gain"] = (
            min(each["feedback_s"] for each in fixed) / found["gain"]["feedback_s"]
        )
        return rows
    rows["limit / gain"] = found["gain"]["iterations"] * ITERATION_S / CONTAINERS / gain_s
    if setting.stop == "sha":
        ideal = fluid_sweep(dataclasses.replace(setting), at)
        rows["optimum / gain"] = fluid.instant(dataclasses.replace(ideal, start=0.0)) * ITERATION_S / gain_s
        rows["optimum with starts / gain"] = fluid.instant(ideal) * ITERATION_S / gain_s
    return rows


def settings(trials: Sequence[int], seeds: Sequence[int]) -> Iterator[tuple[str, list[Setting]]]:
    """Yield name and settings, one for each seed, of every row of the table."""
    for number in trials:
        for stop in ("sha", "asha"):
            for efficiency in (0.5, 0.7, 0.9) if stop == "sha" else (0.7,):
                name = f"{number} trials, {stop}, efficiency {efficiency:g}"
                yield name, [Setting(number, seed, stop, efficiency) for seed in seeds]
        sweep = fluid.Sweep(number, fluid.Curve(0.0))
        gap_s = sweep.limit() * ITERATION_S / number / LOAD
        yield f"{number} trials, asha, load {LOAD:g}", [Setting(number, seed, "asha", 0.7, gap_s) for seed in seeds]


def table(trials: Sequence[int], seeds: Sequence[int]) -> dict[str, Any]:
    """Simulate every row of the table; return medians and ranges over the seeds."""
    at = costs()
    found: dict[str, Any] = {}
    for name, each in settings(trials, seeds):
        runs = [ways(setting, at) for setting in each]
        rows = [ratios(setting, one, at) for setting, one in zip(each, runs, strict=True)]
        found[name] = {
            "ratios": {row: spread([one[row] for one in rows]) for row in rows[0]},
            "policies": {
                policy: {key: median(one[policy][key] for one in runs) for key in runs[0][policy]} for policy in runs[0]
            },
        }
        print(name, flush=True)
        for row, values in found[name]["ratios"].items():
            print(f"  {row:46s} {values['median']:.3f}  ({values['min']:.3f} to {values['max']:.3f})", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print the table, and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", default="10-19", help="first and last seed (default: 10-19)")
    parser.add_argument("--trials", type=int, action="append", help="trials of a sweep (default: 27, 81)")
    parser.add_argument("--output", type=Path, default=RESULTS / "sweeps" / "simulated.json")
    options = parser.parse_args(argv)
    first, _, last = options.seeds.partition("-")
    found = table(options.trials or (27, 81), range(int(first), int(last or first) + 1))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"seeds": options.seeds, "costs": dataclasses.asdict(costs()), "rows": found}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
