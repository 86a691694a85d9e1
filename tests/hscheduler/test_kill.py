"""The kill policy restarts no job that would end later because of it."""

from __future__ import annotations

import dataclasses

import pytest

from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.policies import POLICIES
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.workload import SimulatedJob
from tests.hscheduler.toy import Toy, nodes, request

RESTART_S = 10.0


def alone(iteration: int, iterations: int = 1000) -> Toy:
    """Return a job of two workers and a server on four nodes that has given its feedback; no other job runs."""
    toy = Toy.of(4, POLICIES["kill"])
    toy.submit(dataclasses.replace(request("a"), iterations=iterations, restart_s=RESTART_S))
    toy.settle()
    toy.send(e.Iterated("a", iteration, (0.1,) * 10))
    toy.send(e.FeedbackGiven("a", 1.0))
    return toy


@pytest.mark.parametrize(
    ("iteration", "phase"),
    [
        # Twice as many members save at most half of the remaining time: 45 s, 10.5 s and 9.5 s.
        (100, Phase.RESTARTING),
        (790, Phase.RESTARTING),
        (810, Phase.TRAINING),
    ],
)
def test_a_job_grows_where_that_saves_more_than_a_restart_costs(iteration, phase):
    assert alone(iteration).job("a").phase is phase


def test_a_job_of_unknown_length_grows():
    assert alone(810, iterations=0).job("a").phase is Phase.RESTARTING


@pytest.mark.parametrize(("iteration", "phase"), [(500, Phase.RESTARTING), (950, Phase.TRAINING)])
def test_a_growth_is_undone_where_that_saves_more_than_a_restart_costs(iteration, phase):
    toy = alone(100)
    toy.settle()
    assert toy.job("a").size == (4, 2)
    toy.send(e.Iterated("a", iteration, (0.2,) * 10))
    assert toy.job("a").phase is phase
    undone = any("its iterations take 100 % longer" in sentence for sentence in toy.sentences)
    assert undone is (phase is Phase.RESTARTING)


@pytest.mark.parametrize(("iterations_of_b", "restarts"), [(300, 1), (900, 0)])
def test_decisions_use_the_simulated_jobs_current_progress(iterations_of_b, restarts):
    """When b ends, a has 700 or 100 iterations left, of 0.055 s: 38.5 s or 5.5 s, of which half could be saved."""
    speed = SpeedModel(12, 0.05 / 6)
    jobs = [
        SimulatedJob(0.0, request(name), iterations, speed, feedback=1.0, loss=1.0)
        for name, iterations in (("a", 1000), ("b", iterations_of_b))
    ]
    simulation = Simulation(nodes(2), POLICIES["kill"], jobs, Costs(restart_s=RESTART_S))
    assert simulation.run().trials["a"].restarts == restarts
