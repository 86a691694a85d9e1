"""Simulate the sweep of a file: its jobs are modelled instead of trained.

By default an iteration takes ``stretch_s`` for each active split plus a fixed time, and early feedback and losses are
drawn from the sweep's seed.  A model that was fitted to real runs replaces the speeds
(:mod:`hscheduler.simulator.fit`).  The report of a real run replaces arrivals, early feedback and losses
(:func:`simulate_like`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from random import Random
from typing import Any

from eps.errors import DataError
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase, best, reason_of
from hscheduler.policies import POLICIES
from hscheduler.reports.measures import has_diverged, regret
from hscheduler.reports.report import report
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.fit import Model
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.workload import Arrival, SimulatedJob, qualities
from hscheduler.spec import Spec

SWEEP = "sweep"


def simulate(spec: Spec, policy: str, costs: Costs | None = None, model: Model | None = None) -> dict[str, Any]:
    """Simulate a sweep under a policy; return its report (:mod:`hscheduler.reports.report`).

    Parameters
    ----------
    spec : Spec
    policy : str
    costs : Costs, optional
        By default the model's, or the declared ones.
    model : Model, optional
        Fitted to real runs.
    """
    spec = spec.under(policy)
    points: dict[str, dict[str, Any]] = {}
    jobs = _jobs(spec, points, model)
    return _simulate(spec, policy, jobs, spec.sweep.trials, points, costs or costs_of(spec, model))


def simulate_like(spec: Spec, real: Mapping[str, Any], policy: str, model: Model | None = None) -> dict[str, Any]:
    """Simulate a real run of a sweep: the same points arrive at the same times, with the same feedback and losses.

    Trials without iterations (refused, or failed at once) are skipped.  A trial that was killed in the real run has no
    final loss; if it finishes here, its latest value is used.  A trial that was cut short (:func:`cut_short`) ends here
    after as many iterations.  NaN ranks worst.

    Parameters
    ----------
    spec : Spec
    real : mapping
        The report of a real run.
    policy : str
        The policy of the real run, or another.
    model : Model, optional

    Returns
    -------
    dict
        A report, with ``like``: both makespans, predicted over real, and the number of skipped trials.

    Raises
    ------
    DataError
        All trials were skipped.
    """
    trials = sorted((t for t in real["trials"] if t["iterations"]), key=lambda t: float(t["arrived_s"]))
    if not trials:
        raise DataError("no trial of the report has iterated: there is nothing to simulate")
    points = {str(trial["job_id"]): dict(trial["point"]) for trial in trials}
    # Where arrivals are given, nothing else may limit them.
    parallelism = 0 if any(trial["arrived_s"] for trial in trials) else spec.sweep.parallelism
    alone = dataclasses.replace(spec, sweep=dataclasses.replace(spec.sweep, arrival="burst", parallelism=parallelism))
    jobs = _jobs_like(spec.under(policy), trials, cut_short(real), model)
    found = _simulate(alone, policy, jobs, len(trials), points, costs_of(spec, model))
    # A trial that the real run stopped has no final loss.
    found["regret"] = None
    found["like"] = {
        "real_makespan_s": real["makespan_s"],
        "predicted_makespan_s": found["makespan_s"],
        "predicted_over_real": round(found["makespan_s"] / real["makespan_s"], 4),
        "left_out": len(real["trials"]) - len(trials),
    }
    return found


def _simulate(
    spec: Spec,
    policy: str,
    jobs: Iterable[SimulatedJob],
    trials: int,
    points: Mapping[str, Mapping[str, Any]],
    costs: Costs,
) -> dict[str, Any]:
    direction = Direction(spec.sweep.direction)
    opened = dataclasses.replace(spec.opened(SWEEP), trials=trials)
    #: The final losses of all points, also of those that a policy stops.
    losses: list[float | None] = []

    def noted() -> Iterator[SimulatedJob]:
        for job in jobs:
            losses.append(job.loss)
            yield job

    simulation = Simulation(
        spec.cluster.capacities(),
        POLICIES[policy],
        noted(),
        costs,
        spec.sweep.feedback_iteration,
        [opened],
        spec.sweep.seed,
        spec.sweep.parallelism,
    )
    found = _report(simulation, policy, spec, direction, points)
    first, result = best(losses, direction), None if found["best"] is None else found["best"]["loss"]
    return {**found, "regret": regret(result, None if first is None else losses[first], direction)}


def simulate_jobs(spec: Spec, jobs: Iterable[SimulatedJob], policy: str) -> dict[str, Any]:
    """Simulate any jobs, such as those of a trace, on a sweep's cluster; return the report.

    Of the sweep's settings, the feedback iteration, the seed, the threshold and the stopping rule apply.  The threshold
    holds for each sweep of the jobs; by default it is the number of jobs that fit at the size they ask for.
    """
    sweep, jobs = spec.sweep, list(jobs)
    opened = [
        e.SweepOpened(name, threshold=sweep.threshold or None, stopping=sweep.stopping(), trials=trials)
        for name, trials in Counter(job.request.sweep for job in jobs).items()
    ]
    simulation = Simulation(
        spec.cluster.capacities(),
        POLICIES[policy],
        jobs,
        costs_of(spec),
        sweep.feedback_iteration,
        opened,
        sweep.seed,
    )
    return _report(simulation, policy, spec, Direction.MINIMIZE, {})


def _report(
    simulation: Simulation, policy: str, spec: Spec, direction: Direction, points: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
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
        spec=spec,
    )


def costs_of(spec: Spec, model: Model | None = None) -> Costs:
    """Return the costs of changes.  A sweep may declare the seconds of a restart, from the command to the job's end."""
    costs = Costs() if model is None else model.costs
    if spec.sweep.kill_restart_s < 0:
        return costs
    declared_s = max(0.0, spec.sweep.kill_restart_s - costs.end_s)
    # A model has measured the iterations that are computed again; without one, the declared time includes them.
    return dataclasses.replace(costs, restart_s=declared_s + (0.0 if model is None else costs.restart_s))


def _speed(job: JobSpec, model: Model | None) -> SpeedModel:
    return SpeedModel(job.splits, job.stretch_s) if model is None else model.speed(job)


def _jobs(spec: Spec, points: dict[str, dict[str, Any]], model: Model | None) -> Iterator[SimulatedJob]:
    seed = spec.sweep.seed
    # Separate random streams, so that arrivals do not depend on other draws.
    arrivals = Arrival(spec.sweep.mean_gap_s()).times_s(Random(f"arrivals:{seed}"))
    drawn = qualities(Random(f"qualities:{seed}"))
    searched = spec.points()
    for number in range(1, spec.sweep.trials + 1):
        job_id = f"trial-{number}"
        points[job_id] = point = next(searched)
        feedback, loss = next(drawn)
        if spec.sweep.direction == Direction.MAXIMIZE:
            # Such as an accuracy: between 0 and 1 also early, as early losses are below 2.
            feedback, loss = 1 - feedback / 2, 1 - loss / 2
        job, request = spec.job_spec(point), spec.request(job_id, SWEEP, point)
        speed = _speed(job, model)
        yield SimulatedJob(next(arrivals), request, job.iterations, speed, feedback, loss)


def cut_short(real: Mapping[str, Any]) -> set[str]:
    """Return the trials of a report that ended early, but not by the stopping rule: failed, diverged, or were stopped.

    The rule ends a trial here again, if at all; nothing else does.
    """
    return {
        str(trial["job_id"])
        for trial in real["trials"]
        if trial["phase"] == Phase.FAILED
        or has_diverged(trial)
        or (trial["phase"] == Phase.KILLED and not _is_of_rule(trial))
    }


def _is_of_rule(trial: Mapping[str, Any]) -> bool:
    """Return whether a stopping rule killed a trial; ``why`` then begins with the name of its job."""
    jobs = [trial["job_id"], *(attempt["job_id"] for attempt in trial.get("attempts", ()))]
    return any(reason_of(job_id, trial["why"]) != trial["why"] for job_id in jobs)


def _jobs_like(
    spec: Spec, trials: Iterable[Mapping[str, Any]], short: Collection[str], model: Model | None
) -> Iterator[SimulatedJob]:
    for trial in trials:
        job, request = spec.job_spec(trial["point"]), spec.request(trial["job_id"], SWEEP, trial["point"])
        loss = math.nan if trial["latest"] is None else float(trial["latest"])
        feedback = loss if trial["feedback"] is None else float(trial["feedback"])
        iterations = min(job.iterations, trial["iterations"]) if trial["job_id"] in short else job.iterations
        points = trial["curve"] if spec.sweep.metric == "loss" else trial["values"]
        curve = tuple((int(at), float(value)) for _, at, value in points if value is not None)
        yield SimulatedJob(float(trial["arrived_s"]), request, iterations, _speed(job, model), feedback, loss, curve)
