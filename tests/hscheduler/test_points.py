"""Sources of points."""

from __future__ import annotations

import math
import sys
from statistics import mean

import pytest

from eps.errors import ConfigError
from hscheduler.core.jobs import Direction
from hscheduler.live.points import GivenPoints, TpePoints, points_of
from hscheduler.spec import Spec
from hscheduler.spec.space import Dimension

SPACE = (
    Dimension.of("learning_rate", {"loguniform": [1e-4, 1]}),
    Dimension.of("l2", {"choice": [0, 1e-4]}),
    Dimension.of("momentum", {"uniform": [0.5, 0.99]}),
    Dimension.of("batch_size", {"quniform": [10, 100, 10]}),
    Dimension.of("seed", {"randint": [3, 9]}),
)


def test_tpe_stays_in_the_space_with_plain_values():
    points = TpePoints(SPACE, 1, Direction.MINIMIZE)
    for k in range(30):
        point = points.ask(f"t{k}")
        assert 1e-4 <= point["learning_rate"] <= 1
        assert point["l2"] in (0, 1e-4)
        assert 0.5 <= point["momentum"] <= 0.99
        assert point["batch_size"] in range(10, 101, 10)
        assert 3 <= point["seed"] < 9
        assert {name: type(value) for name, value in point.items() if name in ("batch_size", "seed")} == {
            "batch_size": int,
            "seed": int,
        }
        points.tell(f"t{k}", point["learning_rate"])


@pytest.mark.parametrize(("direction", "low"), [(Direction.MINIMIZE, True), (Direction.MAXIMIZE, False)])
def test_tpe_learns_from_results(direction, low):
    """The better half of the space is the lower one, or the upper one if more is better."""
    points = TpePoints(SPACE[2:3], 5, direction)
    found = []
    for k in range(80):
        value = points.ask(f"t{k}")["momentum"]
        found.append(value)
        points.tell(f"t{k}", value)
    # The mean of random points would be 0.745, with a standard error of 0.02.
    assert mean(found[40:]) < 0.68 if low else mean(found[40:]) > 0.81


def test_tpe_is_the_same_for_the_same_seed_and_takes_failures():
    runs = []
    for _ in range(2):
        points = TpePoints(SPACE, 7, Direction.MINIMIZE)
        run = []
        for k in range(25):
            run.append(points.ask(f"t{k}"))
            points.tell(f"t{k}", (None, math.nan, 0.5, float(k))[k % 4])
        runs.append(run)
    assert runs[0] == runs[1]
    assert TpePoints(SPACE, 8, Direction.MINIMIZE).ask("t0") != runs[0][0]


@pytest.mark.parametrize("direction", list(Direction))
def test_tpe_learns_from_rungs_as_from_results(direction):
    runs = []
    for at_rungs in (True, False):
        points, run = TpePoints(SPACE, 7, direction), []
        for k in range(30):
            run.append(points.ask(f"t{k}"))
            value = math.nan if k == 3 else run[-1]["momentum"]
            if at_rungs and k % 2:
                points.tell_rungs(f"t{k}", [(10, 99.0), (30, value)])
            else:
                points.tell(f"t{k}", value)
        runs.append(run)
    assert runs[0] == runs[1]


def test_the_result_of_a_trial_replaces_its_value_at_a_rung():
    points = TpePoints(SPACE, 7, Direction.MAXIMIZE)
    points.ask("t")
    points.tell_rungs("t", [(10, 0.5)])
    assert points._trials.losses() == [-0.5]
    points.tell("t", 0.75)
    assert points._trials.losses() == [-0.75]


def test_a_sweep_has_the_source_of_its_algorithm():
    tables = {"space": {"learning_rate": {"uniform": [0.1, 1]}}, "sweep": {"algorithm": "random"}}
    assert isinstance(points_of(Spec.of(tables)), GivenPoints)
    assert isinstance(points_of(Spec.of({"space": tables["space"]})), TpePoints), "as EPS §6"
    assert points_of(Spec.of({})).ask("t1") == {}, "without a space all jobs are the same"


def test_a_space_that_hyperopt_refuses_is_refused():
    too_large = Dimension.of("seed", {"randint": [0, 10**30]})
    with pytest.raises(ConfigError, match="high is out of bounds"):
        TpePoints((too_large,), 0, Direction.MINIMIZE)


def test_without_hyperopt_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "hyperopt", None)
    with pytest.raises(ConfigError, match=r"\[sweep\].* use random"):
        TpePoints(SPACE, 0, Direction.MINIMIZE)


def test_a_quarter_of_the_points_of_a_sweep_is_random():
    """Results change the points from then on only."""
    for trials, random in ((8, 5), (40, 10), (200, 20), (0, 20)):
        ones, twos = (TpePoints(SPACE[2:3], 5, Direction.MINIMIZE, trials) for _ in range(2))
        same = []
        for k in range(random + 8):
            first, second = ones.ask(f"t{k}"), twos.ask(f"t{k}")
            same.append(first == second)
            ones.tell(f"t{k}", first["momentum"])
            twos.tell(f"t{k}", -second["momentum"])
        assert all(same[:random]) and not all(same), trials
