"""Spaces with branches: a point has the settings of one option of each."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from eps.errors import ConfigError
from hscheduler.live.points import Points, points_of
from hscheduler.spec import Spec
from hscheduler.spec.space import num_points, samples, space_of

FILE = """
[sweep]
algorithm = "ALGORITHM"
trials = 40

[space]
l2 = { choice = [0, 1e-4] }

[space.how]
choice = [
    { optimizer = "sgd", learning_rate = { loguniform = [1e-3, 1] } },
    { optimizer = "momentum", learning_rate = { loguniform = [1e-4, 0.1] }, momentum = { uniform = [0.5, 0.99] } },
    { optimizer = "adam", size = { choice = [{ batch_size = "full" }, { batch_size = { quniform = [10, 90, 10] } }] } },
]

[job]
model = "softmax"
data = "sklearn:digits"
"""
OWN = {
    "sgd": {"learning_rate"},
    "momentum": {"learning_rate", "momentum"},
    "adam": {"batch_size"},
}


def read(tmp_path: Path, algorithm: str = "random") -> Spec:
    path = tmp_path / "sweep.toml"
    path.write_text(FILE.replace("ALGORITHM", algorithm))
    return Spec.read(path)


def check(point: dict[str, Any]) -> None:
    assert point.keys() == {"l2", "optimizer", *OWN[point["optimizer"]]}, point
    rate, least = point.get("learning_rate", 0.01), 1e-3 if point["optimizer"] == "sgd" else 1e-4
    assert least <= rate <= 1
    assert point.get("batch_size", 10) in ("full", *range(10, 100, 10))


def loss(point: dict[str, Any]) -> float:
    """Return a loss that is lowest with momentum near 0.6."""
    return abs(point["momentum"] - 0.6) if point["optimizer"] == "momentum" else 1.0


@pytest.mark.parametrize("algorithm", ["random", "tpe", "optuna"])
def test_each_source_draws_the_settings_of_one_option(tmp_path: Path, algorithm: str) -> None:
    pytest.importorskip("optuna" if algorithm == "optuna" else "hyperopt")
    spec = read(tmp_path, algorithm)
    points = points_of(spec)
    drawn = []
    for k in range(60):
        point = points.ask(f"t{k}")
        check(point)
        spec.job_spec(point)
        drawn.append(point)
        points.tell(f"t{k}", loss(point))
    found = [point["optimizer"] for point in drawn]
    assert set(found[:20]) == set(OWN)
    if algorithm != "random":
        assert found[30:].count("momentum") > 15, "it learns which option is best"


@pytest.mark.parametrize("algorithm", ["random", "tpe", "optuna"])
def test_a_source_goes_on_after_a_restart(tmp_path: Path, algorithm: str) -> None:
    pytest.importorskip("optuna" if algorithm == "optuna" else "hyperopt")

    def told(points: Points, restored: list[dict[str, Any]]) -> None:
        for k, point in enumerate(restored):
            points.restore(f"t{k}", point)
            points.tell(f"t{k}", loss(point))

    first = points_of(read(tmp_path, algorithm))
    drawn = []
    for k in range(25):
        drawn.append(first.ask(f"t{k}"))
        first.tell(f"t{k}", loss(drawn[-1]))
    again = points_of(read(tmp_path, algorithm))
    told(again, drawn)
    for k in range(25, 35):
        check(again.ask(f"t{k}"))


@pytest.mark.parametrize("algorithm", ["random", "tpe", "optuna"])
def test_a_source_draws_no_point_again_after_a_restart(tmp_path: Path, algorithm: str) -> None:
    """Also while it draws at random, before it learns."""
    pytest.importorskip("optuna" if algorithm == "optuna" else "hyperopt")
    first, again = points_of(read(tmp_path, algorithm)), points_of(read(tmp_path, algorithm))
    drawn = [first.ask(f"t{k}") for k in range(3)]
    for k, point in enumerate(drawn):
        again.restore(f"t{k}", point)
    drawn += [again.ask(f"t{k}") for k in range(3, 6)]
    assert all(point not in drawn[:k] for k, point in enumerate(drawn))


@pytest.mark.parametrize("algorithm", ["random", "tpe", "optuna"])
@pytest.mark.parametrize(
    ("bounds", "values"),
    [
        ([0.5, 0.99, 0.1], [0.5, 0.6, 0.7, 0.8, 0.9]),
        ([0.1, 0.3, 0.1], [0.1, 0.2, 0.3]),
        ([15, 54, 10], [20, 30, 40, 50]),
        ([-3, 1, 2], [-2, 0]),
    ],
)
def test_a_quniform_draws_the_multiples_of_its_step(bounds: list[float], values: list[float], algorithm: str) -> None:
    pytest.importorskip("optuna" if algorithm == "optuna" else "hyperopt")
    spec = Spec.of({"sweep": {"algorithm": algorithm}, "space": {"momentum": {"quniform": bounds}}})
    points, drawn = points_of(spec), []
    for k in range(60):
        drawn.append(points.ask(f"t{k}")["momentum"])
        points.tell(f"t{k}", float(k))
    assert set(drawn) == set(values) and {type(value) for value in drawn} == {type(values[0])}
    (dimension,) = spec.leaves()
    assert dimension.corners() == [values[0], values[-1]] and dimension.size() == len(values)
    again = points_of(spec)
    again.restore("t0", {"momentum": values[-1]})
    again.tell("t0", 0.5)


def test_a_space_with_branches_survives_the_trip_as_tables(tmp_path: Path) -> None:
    spec = read(tmp_path)
    assert Spec.of(spec.tables()) == spec
    assert spec.searched() == {"l2", "optimizer", "learning_rate", "momentum", "batch_size"}
    assert num_points(spec.space) == math.inf
    assert num_points(space_of({"a": {"choice": [{"x": {"choice": [1, 2]}}, {"x": 3}, {}]}})) == 4
    corners = list(samples(spec.space, Random(0)))
    for corner in corners:
        check(corner)
    assert {point["optimizer"] for point in corners} == set(OWN)


def test_a_space_in_python_may_have_tuples_and_arrays() -> None:
    space = space_of(
        {
            "rate": {"loguniform": (1e-3, 1)},
            "size": {"choice": np.arange(100, 300, 100)},
            "how": {"choice": ({"depth": {"randint": np.array([1, 9])}}, {"layers": (64, 10)})},
        }
    )
    assert space == space_of(
        {
            "rate": {"loguniform": [1e-3, 1]},
            "size": {"choice": [100, 200]},
            "how": {"choice": [{"depth": {"randint": [1, 9]}}, {"layers": [64, 10]}]},
        }
    )
    json.dumps([each.table() for each in space])


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"choice": [len, max]}, r"space.act.choice has <built-in function len>, but must have .* as text"),
        ({"choice": [{"act": Random, "size": 3}, {}]}, "space.act.choice.act has <class"),
        ({"choice": np.array([1 + 2j])}, r"space.act.choice has \(1\+2j\)"),
        ({"choice": np.array([0.1, math.nan])}, "must have finite numbers"),
    ],
)
def test_values_that_a_record_cannot_hold_are_refused(entry: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Spec.of({"space": {"act": entry}}, is_callable=True)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ([{"learning_rat": 1}, {}], "'learning_rat' is not a setting of eps run"),
        ([{"l2": 1}, {}], r"l2 is in \[space\] twice"),
        ([{"momentum": {"uniform": [0, 1]}, "x": {"choice": [{"momentum": 1}]}}], r"momentum is in \[space\] twice"),
        ([{"model": "svm"}, {}], r"model is in \[space\] and in \[job\]"),
        ([{"batch_size": {"uniform": [1, 9]}}], "batch_size: uniform draws fractions"),
        ([{"momentum": {"unifrom": [0, 1]}}], "space.momentum is .*did you mean uniform"),
        ([{"momentum": math.inf}], "must have finite numbers"),
    ],
)
def test_branches_that_cannot_work_are_refused(how: list[Any], why: str) -> None:
    tables = {"space": {"l2": {"choice": [0, 1]}, "how": {"choice": how}}, "job": {"model": "softmax"}}
    with pytest.raises(ConfigError, match=why):
        Spec.of(tables)


def test_files_of_options_start_at_the_folder_of_the_sweep(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('[space.from]\nchoice = [{ data = "a.svm", l2 = 0 }, { data = { choice = ["b.svm"] } }]\n')
    points = list(Spec.read(path).samples())
    assert {point["data"] for point in points} == {str(tmp_path / "a.svm"), str(tmp_path / "b.svm")}
