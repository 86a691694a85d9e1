"""What elasticity is worth, simulated: the same points, stopping rule and work under every policy.

    python -m benchmarks.sweeps.simulated                     # some minutes; writes results/sweeps/simulated.json
    python -m benchmarks.sweeps.simulated --seeds 10-12 --trials 27 --output /tmp/simulated.json
    python -m benchmarks.sweeps.simulated --redraw --pictures DIR     # makespans by stopping rule, from results/

Sweeps of 27 and 81 equal trials on 16 containers, with rungs at 100, 300 and 900, which is the last iteration or the
third of it.  An iteration takes 0.1 s in one container; the efficiency in 16 containers is 0.5, 0.7 or 0.9.  Costs of
starts and changes are those fitted to real processes (results/paper/predicted.json).  Tuned on seeds 0 to 9, reported
on others.  Compute is simulated.

Regret is measured on recorded curves (:mod:`benchmarks.sweeps.curves`): decisions are simulated, losses are real.

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
from statistics import median, stdev
from typing import Any

from benchmarks.bench_common import NO_PICTURE, can_draw, spread
from benchmarks.sweeps import curves, fluid
from benchmarks.sweeps.between_rungs import plan_of
from benchmarks.sweeps.cases import SIZES
from benchmarks.sweeps.drawing import draw_rules
from benchmarks.sweeps.workload import CONTAINERS, LOAD, SPLITS
from hscheduler.core import events as e
from hscheduler.core.decisions import Decision, Policy, Restart, Start, View
from hscheduler.core.jobs import Direction, JobRequest
from hscheduler.core.resources import NOTHING, Resources
from hscheduler.core.rungs import Stopping
from hscheduler.policies import POLICIES
from hscheduler.policies.placing import place, roles_of
from hscheduler.simulator import paper, pollux
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.run import simulate, simulate_jobs
from hscheduler.simulator.workload import Arrival, SimulatedJob, qualities
from hscheduler.spec import Spec

RESULTS = Path(__file__).resolve().parents[1] / "results"
TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "job_traces" / "pollux_osdi21" / "workloads"
SWEEP = "sweep"
RUNGS = (100, 300, 900, 2700)
#: The recorded curves have every fourth iteration, of a pace that is five times slower.
RECORDED_STEP = 5 * curves.STRIDE
ITERATION_S = 0.1
ONE = Resources(1, 1024)


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
    efficiency: float = 0.5
    #: Iterations of a trial: one of :data:`RUNGS`.
    last: int = 900
    #: Mean seconds between arrivals; 0: all at once.
    gap_s: float = 0.0

    def jobs(self, workers: int, servers: int) -> list[SimulatedJob]:
        """Return the trials, which ask for this size."""
        drawn = qualities(Random(f"qualities:{self.seed}"))
        times = Arrival(self.gap_s).times_s(Random(f"arrivals:{self.seed}"))
        found = []
        for number in range(self.trials):
            most = SPLITS, SPLITS if servers else 0
            request = JobRequest(f"trial-{number + 1}", SWEEP, workers, servers, ONE, ONE, NOTHING, *most)
            at_s = next(times)
            found.append(SimulatedJob(at_s, request, self.last, speed(self.efficiency), *next(drawn)))
        return found


def run(
    setting: Setting, policy: Policy, workers: int, servers: int, at: Costs, jobs: Sequence[SimulatedJob] = ()
) -> dict[str, float]:
    """Simulate a sweep, or its trials ``jobs``; return its makespan, iterations and times to early feedback."""
    stopping = Stopping(setting.stop, fluid.ETA, RUNGS[0], setting.last)
    opened = e.SweepOpened(
        SWEEP, Direction.MINIMIZE, feedback_iteration=RUNGS[0], stopping=stopping, trials=setting.trials
    )
    nodes = {f"node{k}": Resources(4, 4096) for k in range(CONTAINERS // 4)}
    simulation = Simulation(nodes, policy, jobs or setting.jobs(workers, servers), at, RUNGS[0], [opened], setting.seed)
    record = simulation.run()
    trials = list(record.trials.values())
    feedback = [trial.early_feedback_s for trial in trials if trial.early_feedback_s is not None]
    return {
        "makespan_s": max(trial.finished_s or 0.0 for trial in trials),
        "iterations": sum(trial.iteration for trial in trials),
        "feedback_s": median(feedback),
        "mean_feedback_s": sum(feedback) / len(feedback),
        "resizes": sum(trial.resizes for trial in trials),
        "decisions": len(record.decisions),
        "best_loss": min(simulation.losses.values()),
    }


def start_in(sizes: Sequence[int], view: View) -> Decision:
    """Start the head of the queue in the size for its rung, if that is free (RubberBand's executor).

    A trial that was not paused at its rung restarts in the size for the next one.
    """
    for job in view.running():
        size = sizes[min(len(job.rungs), len(sizes) - 1)]
        if job.rungs and job.workers != size:
            return Decision((Restart(job.job_id, size, 0),), f"{job.job_id} restarts in {size} containers")
    if view.queue:
        job = view.queue[0]
        size = sizes[min(len(job.rungs), len(sizes) - 1)]
        places, left = place(view.room(), job.request, roles_of(job.request, size, 0))
        if not left:
            return Decision((Start(job.job_id, tuple(places)),), f"{job.job_id} starts in {size} containers")
    return Decision()


def between_rungs(setting: Setting, at: Costs) -> Policy:
    """Return the policy that starts each trial in the best size for its rung."""
    return partial(start_in, plan_of(fluid_sweep(setting, at)))


def fluid_sweep(setting: Setting, at: Costs) -> fluid.Sweep:
    """Return the fluid model of a sweep, in iterations of one container."""
    return fluid.Sweep(
        setting.trials,
        fluid.Curve.of_efficiency(setting.efficiency),
        tuple(rung for rung in RUNGS if rung <= setting.last),
        start=(at.start_s + at.end_s) / ITERATION_S,
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
        ideal = fluid_sweep(setting, at)
        rows["optimum / gain"] = fluid.instant(dataclasses.replace(ideal, start=0.0)) * ITERATION_S / gain_s
        rows["optimum with starts / gain"] = fluid.instant(ideal) * ITERATION_S / gain_s
    return rows


def paper_pair(seeds: Sequence[int]) -> dict[str, Any]:
    """Return static + threshold over elastic, the paper's own pair with its rule binding for both, at its size."""
    found = {}
    for name in ("LR", "SVM", "Softmax"):
        pairs = []
        for seed in seeds:
            spec = paper.paper_spec(name, seed)
            made = [simulate(spec, policy, model=paper.MODEL)["makespan_s"] for policy in ("static-stop", "elastic")]
            pairs.append(made[0] / made[1])
        found[name] = spread(pairs)
    return found


def traces(workloads: Sequence[int]) -> dict[str, Any]:
    """Return makespan, mean completion time and early feedback of Pollux's workloads on 64 containers; no rule stops.

    No stopping rule, so that all policies train the same.  Jobs have workers and servers of their own.
    """
    spec = Spec.of({"cluster": {"nodes": 16}, "sweep": {"stop": "none"}})
    rows: dict[str, Any] = {}
    for number in workloads:
        path = TRACES / f"workload-{number}.csv"
        jobs = pollux.read_pollux(path, spec.cluster.container(), 0, RUNGS[0], spec.cluster.master())
        for policy in ("static", "elastic", "gain"):
            made = simulate_jobs(spec, jobs, policy)
            ends = [trial["finished_s"] - trial["arrived_s"] for trial in made["trials"]]
            rows[f"workload-{number}, {policy}"] = {
                "jobs": len(jobs),
                "makespan_s": made["makespan_s"],
                "mean_completion_s": sum(ends) / len(ends),
                "mean_feedback_s": made["summary"]["early_feedback_mean_s"],
            }
    return rows


def regret(seeds: Sequence[int], stop: str, trials: int = 27) -> dict[str, Any]:
    """Return the regret of ``gain`` less that of ``static-1`` on recorded curves, paired by seed, and both regrets."""
    recorded, at, rows = curves.load(), costs(), []
    for seed in seeds:
        drawn = recorded[Random(f"points:{seed}").sample(range(len(recorded)), trials)]
        made = []
        for policy in ("static", "gain"):
            setting = Setting(trials, seed, stop)
            steps = range(RECORDED_STEP, setting.last + 1, RECORDED_STEP)
            jobs = []
            for job, values in zip(setting.jobs(1, 0), drawn, strict=True):
                points = tuple(zip(steps, map(float, values), strict=False))
                found = dataclasses.replace(job, curve=points, loss=points[-1][1])
                jobs.append(dataclasses.replace(found, feedback=found.value(RUNGS[0], RUNGS[0])))
            least = float(drawn[:, len(steps) - 1].min())
            made.append(run(setting, POLICIES[policy], 1, 0, at, jobs)["best_loss"] - least)
        rows.append(made)
    differences = [mine - fixed for fixed, mine in rows]
    return {
        "static": spread([fixed for fixed, _ in rows]),
        "gain": spread([mine for _, mine in rows]),
        "difference": spread(differences),
        "standard_error": stdev(differences) / len(differences) ** 0.5,
    }


def settings(trials: Sequence[int], seeds: Sequence[int]) -> Iterator[tuple[str, list[Setting]]]:
    """Yield name and settings, one for each seed, of every row of the table."""
    for number in trials:
        for stop, efficiency, last in (
            ("sha", 0.5, 900), ("sha", 0.7, 900), ("sha", 0.9, 900), ("sha", 0.7, 2700), ("asha", 0.5, 900),
            ("none", 0.5, 900),
        ):  # fmt: skip
            name = f"{number} trials, {stop}, efficiency {efficiency:g}, {last} iterations"
            yield name, [Setting(number, seed, stop, efficiency, last) for seed in seeds]
        for stop in ("sha", "asha"):
            gap_s = fluid.Sweep(number, fluid.Curve(0.0), RUNGS[:3]).limit() * ITERATION_S / number / LOAD
            found = [Setting(number, seed, stop, gap_s=gap_s) for seed in seeds]
            yield f"{number} trials, {stop}, efficiency 0.5, 900 iterations, load {LOAD:g}", found


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
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw the results into this folder, PNG and SVG")
    parser.add_argument("--redraw", action="store_true", help="simulate nothing: draw what --output has")
    options = parser.parse_args(argv)
    if options.pictures and not can_draw():
        parser.error(NO_PICTURE)
    if options.redraw:
        if not options.pictures:
            parser.error("--redraw needs --pictures, the folder to draw into")
        draw_rules(json.loads(options.output.read_text(encoding="utf-8")), options.pictures)
        return 0
    first, _, last = options.seeds.partition("-")
    found = table(options.trials or (27, 81), range(int(first), int(last or first) + 1))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "seeds": options.seeds,
        "costs": dataclasses.asdict(costs()),
        "rows": found,
        "static-stop / elastic, paper's size": paper_pair(range(3)),
        "regret, 30 seeds": {stop: regret(range(100, 130), stop) for stop in ("sha", "asha")},
        "traces": traces((1, 2, 3)) if TRACES.is_dir() else {},
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    if options.pictures:
        draw_rules(result, options.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
