"""Simulated sweeps at the size of the paper's evaluation (:mod:`hscheduler.simulator.paper`), by seed.

``priority`` has no stopping rule, in the paper's text and here.  Pictures show it with one, since its sweeps take five
times as long otherwise.  The JSON has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from hscheduler.core import events as e
from hscheduler.core.decisions import Decision, Policy, View, needing
from hscheduler.core.jobs import Direction, JobRequest
from hscheduler.core.resources import Resources
from hscheduler.policies import POLICIES
from hscheduler.policies.priority import priority
from hscheduler.reports.report import report
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.paper import (
    FEEDBACK_ITERATION,
    ITERATIONS,
    MEAN_GAP_S,
    MODEL,
    NODES,
    OURS,
    PARTITIONS,
    SERVERS,
    SPLITS,
    THRESHOLD,
    TRIALS,
    WORKERS,
)
from hscheduler.simulator.workload import Arrival, SimulatedJob, qualities

NODE = Resources(4, 16384)
CONTAINER = Resources(1, 4096)


@dataclass(frozen=True)
class Experiment:
    """One sweep at the paper's size."""

    model: str = "logistic"
    seed: int = 0
    mean_gap_s: float = MEAN_GAP_S
    trials: int = TRIALS
    nodes: int = NODES

    def speed(self) -> SpeedModel:
        """Return how long its iterations take."""
        return speed_of(self.model)

    def arrivals_s(self) -> Iterator[float]:
        """Yield the time of each arrival: a Poisson process in which job :data:`THRESHOLD` comes at its mean time.

        Gaps of a Poisson process whose n-th arrival is known are those of any other, scaled to that time.

        Source: EPS §7.1 (eleven jobs are in the training phase at minute 28).
        """
        times = Arrival(self.mean_gap_s).times_s(Random(f"arrivals:{self.seed}:{self.model}"))
        first = [next(times) for _ in range(THRESHOLD)]
        known_s, drawn_s = self.mean_gap_s * (THRESHOLD - 1), first[-1]
        yield from (at_s * known_s / drawn_s for at_s in first)
        yield from (at_s - drawn_s + known_s for at_s in times)

    def jobs(self) -> Iterator[SimulatedJob]:
        """Yield its jobs by arrival: the same for every policy."""
        arrivals = self.arrivals_s()
        drawn = qualities(Random(f"qualities:{self.seed}:{self.model}"))
        speed = self.speed()
        for number in range(1, self.trials + 1):
            name = f"trial-{number}"
            request = JobRequest(name, "sweep", WORKERS, SERVERS, CONTAINER, CONTAINER, CONTAINER, SPLITS, PARTITIONS)
            feedback, loss = next(drawn)
            yield SimulatedJob(next(arrivals), request, ITERATIONS, speed, feedback, loss)


def speed_of(model: str) -> SpeedModel:
    """Return how long the iterations of a model take."""
    return SpeedModel(SPLITS, **MODEL.speeds[model])


def nodes(number: int) -> dict[str, Resources]:
    """Return ``number`` nodes like those of the paper."""
    return {f"node-{k:0{len(str(number))}}": NODE for k in range(1, number + 1)}


@needing(stop="threshold")
def priority_stop(view: View) -> Decision:
    """Decide at random, with the stopping rule of the other policies."""
    return priority(view)


#: Name -> policy of the pictures.
RUNS: dict[str, Policy] = {**POLICIES, "kill-declared": POLICIES["kill"], "priority-stop": priority_stop}


def simulate(experiment: Experiment, name: str, costs: Costs = OURS) -> dict[str, Any]:
    """Simulate a sweep under one of :data:`RUNS`; return its report."""
    simulation = Simulation(
        nodes(experiment.nodes),
        RUNS[name],
        experiment.jobs(),
        costs,
        FEEDBACK_ITERATION,
        [e.SweepOpened("sweep", Direction.MINIMIZE, THRESHOLD)],
        experiment.seed,
    )
    record = simulation.run()
    return report(
        record,
        policy=name,
        direction=Direction.MINIMIZE,
        losses=simulation.losses,
        points={},
        leaked=len(simulation.scheduler.ledger.all()),
    )
