"""A sweep's file, simulated: its jobs with models in place of training.

What the file does not say is declared here: a job's iteration sleeps ``stretch_s`` for each active split, as real jobs
do where that is set, besides a fixed time; early feedback and losses are drawn from the sweep's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.policies import POLICIES
from hscheduler.report import report
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.traces import TraceJob, workload
from hscheduler.simulator.workload import Arrival, SimulatedJob, qualities
from hscheduler.spec import Spec

SWEEP = "sweep"


def simulate(spec: Spec, policy: str, costs: Costs | None = None) -> dict[str, Any]:
    """Simulate a sweep under a policy; return its report (:mod:`hscheduler.report`)."""
    costs = costs or costs_of(spec)
    points: dict[str, dict[str, Any]] = {}
    direction = Direction(spec.sweep.direction)
    opened = e.SweepOpened(SWEEP, direction, spec.sweep.threshold or None)
    simulation = Simulation(
        spec.cluster.capacities(),
        POLICIES[policy],
        _jobs(spec, points),
        costs,
        spec.sweep.feedback_iteration,
        [opened],
        spec.sweep.seed,
        spec.sweep.parallelism,
    )
    record = simulation.run()
    leaked = len(simulation.scheduler.ledger.all())
    return report(
        record,
        policy=policy,
        direction=direction,
        losses=simulation.losses,
        points=points,
        leaked=leaked,
        metric=spec.sweep.metric,
    )


def simulate_trace(spec: Spec, jobs: list[TraceJob], policy: str) -> dict[str, Any]:
    """Simulate jobs of a trace on a sweep's cluster; return the report.

    Of the sweep count the feedback iteration, the seed, and the threshold, which holds for each sweep of the trace;
    where it has none, as many jobs of one go on as fit the cluster as they ask.
    """
    simulation = Simulation(
        spec.cluster.capacities(),
        POLICIES[policy],
        workload(jobs, spec.cluster.container(), spec.sweep.seed),
        costs_of(spec),
        spec.sweep.feedback_iteration,
        seed=spec.sweep.seed,
        threshold=spec.sweep.threshold or None,
    )
    record = simulation.run()
    return report(
        record,
        policy=policy,
        direction=Direction.MINIMIZE,
        losses=simulation.losses,
        points={},
        leaked=len(simulation.scheduler.ledger.all()),
    )


def costs_of(spec: Spec) -> Costs:
    """Return what changes cost, with the restart that a sweep declares."""
    usual = Costs()
    if spec.sweep.kill_restart_s < 0:
        return usual
    return Costs(usual.start_s, usual.add_s, usual.remove_s, usual.pause_s, usual.end_s, spec.sweep.kill_restart_s)


def _jobs(spec: Spec, points: dict[str, dict[str, Any]]) -> Iterator[SimulatedJob]:
    seed = spec.sweep.seed
    # Streams of their own: the same jobs come at the same times whatever else is drawn.
    arrivals = Arrival(spec.sweep.mean_gap_s()).times_s(Random(f"arrivals:{seed}"))
    drawn = qualities(Random(f"qualities:{seed}"))
    searched = spec.points()
    for number in range(1, spec.sweep.trials + 1):
        job_id = f"trial-{number}"
        points[job_id] = next(searched)
        feedback, loss = next(drawn)
        sign = 1.0 if spec.sweep.direction == Direction.MINIMIZE else -1.0
        job = spec.job_spec(points[job_id])
        request = spec.request(job_id, SWEEP, points[job_id])
        speed = SpeedModel(job.splits, job.stretch_s)
        yield SimulatedJob(next(arrivals), request, job.iterations, speed, sign * feedback, sign * loss)
