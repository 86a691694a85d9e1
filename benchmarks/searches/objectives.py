"""Tabulated objectives: the loss of any point of a space in microseconds, interpolated from recorded points.

    python -m benchmarks.searches.objectives     # records breast_cancer.npz again: a minute

- ``digits``: softmax regression, trained by EPS (:mod:`benchmarks.sweeps.curves`); step size and penalty.
- ``breast_cancer``: logistic regression by momentum SGD, trained here with NumPy; step size, penalty and momentum.
- ``branin``: the test function of that name on a grid (Dixon and Szegő, 1978); its three minima are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sweeps import curves
from benchmarks.sweeps.workload import MANY, SPACE, points
from hscheduler.spec.space import Dimension, Space

FILE = Path(__file__).with_name("breast_cancer.npz")
ITERATIONS, BATCH = 60, 32
_MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Axis:
    """The recorded values of one setting, ascending; ``is_log``: losses are interpolated over its logarithm."""

    name: str
    values: tuple[float, ...]
    is_log: bool = False

    def place(self, value: float) -> tuple[int, float]:
        """Return the cell of a value, and how far it is in there, from 0 to 1."""
        grid = np.log(self.values) if self.is_log else np.array(self.values)
        at = float(np.interp(math.log(value) if self.is_log else value, grid, np.arange(len(grid))))
        cell = min(int(at), len(grid) - 2)
        return cell, at - cell


@dataclass(frozen=True)
class Table:
    """Losses on a grid, interpolated linearly between its points."""

    name: str
    space: Space
    axes: tuple[Axis, ...]
    #: An array with a dimension for each axis.
    losses: np.ndarray

    def __call__(self, point: Mapping[str, Any]) -> float:
        """Return the loss of a point."""
        cells = [axis.place(float(point[axis.name])) for axis in self.axes]
        loss = 0.0
        for corner in product((0, 1), repeat=len(cells)):
            weight = math.prod(share if side else 1 - share for side, (_, share) in zip(corner, cells, strict=True))
            if weight:
                loss += weight * float(
                    self.losses[tuple(cell + side for side, (cell, _) in zip(corner, cells, strict=True))]
                )
        return loss

    @property
    def best(self) -> float:
        """The lowest loss: that of a point of the grid, as between points losses are interpolated."""
        return float(self.losses.min())


def digits() -> Table:
    """Return the objective of the recorded points of a sweep: for each penalty, over the step sizes of its points."""
    last = curves.load()[:, -1]
    known = points(MANY)
    penalties = tuple(sorted({float(point["l2"]) for point in known}))
    rates = np.geomspace(1e-3, 1.0, 40)
    rows = []
    for penalty in penalties:
        mine = sorted(
            (point["learning_rate"], float(last[k])) for k, point in enumerate(known) if point["l2"] == penalty
        )
        xs, losses = zip(*mine, strict=True)
        rows.append(np.interp(np.log(rates), np.log(xs), losses))
    space = tuple(Dimension.of(name, value) for name, value in SPACE.items())
    axes = Axis("l2", penalties), Axis("learning_rate", tuple(map(float, rates)), is_log=True)
    return Table("digits", space, axes, np.array(rows))


def breast_cancer() -> Table:
    """Return the objective that :func:`record` trained."""
    with np.load(FILE) as found:
        rates, penalties, momenta, losses = (found[name] for name in ("rates", "penalties", "momenta", "losses"))
    space = (
        Dimension.of("learning_rate", {"loguniform": [float(rates[0]), float(rates[-1])]}),
        Dimension.of("l2", {"loguniform": [float(penalties[0]), float(penalties[-1])]}),
        Dimension.of("momentum", {"uniform": [float(momenta[0]), float(momenta[-1])]}),
    )
    axes = (
        Axis("learning_rate", tuple(map(float, rates)), is_log=True),
        Axis("l2", tuple(map(float, penalties)), is_log=True),
        Axis("momentum", tuple(map(float, momenta))),
    )
    return Table("breast_cancer", space, axes, losses.astype(np.float64))


def branin() -> Table:
    """Return Branin's function on a grid."""
    xs, ys = np.linspace(-5, 10, 61), np.linspace(0, 15, 61)
    x, y = np.meshgrid(xs, ys, indexing="ij")
    bend = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    losses = bend**2 + 10 * (1 - 1 / (8 * math.pi)) * np.cos(x) + 10
    space = Dimension.of("x", {"uniform": [-5, 10]}), Dimension.of("y", {"uniform": [0, 15]})
    return Table("branin", space, (Axis("x", tuple(map(float, xs))), Axis("y", tuple(map(float, ys)))), losses)


OBJECTIVES = (digits, breast_cancer, branin)


def train(X: np.ndarray, y: np.ndarray, test_X: np.ndarray, test_y: np.ndarray, point: tuple[float, ...]) -> float:
    """Return the test loss of a logistic regression after :data:`ITERATIONS` mini-batches; at most 10."""
    rate, penalty, momentum = point
    rng = np.random.default_rng(0)
    weights, step = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for _ in range(ITERATIONS):
        rows = rng.integers(0, len(y), BATCH)
        share = 1 / (1 + np.exp(-np.clip(X[rows] @ weights, -30, 30)))
        gradient = X[rows].T @ (share - y[rows]) / BATCH + penalty * weights
        step = momentum * step - rate * gradient
        weights = weights + step
    margins = np.clip((2 * test_y - 1) * (test_X @ weights), -30, 30)
    return min(10.0, float(np.log1p(np.exp(-margins)).mean()))


def record() -> None:
    """Train all points of the grid, and write :data:`FILE`."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(y))
    X, y = X[order], y[order]
    cut = int(0.7 * len(y))
    X = (X - X[:cut].mean(0)) / X[:cut].std(0)
    X = np.hstack([X, np.ones((len(y), 1))])
    rates, penalties = np.geomspace(1e-4, 10, 26), np.geomspace(1e-6, 1, 13)
    losses = [train(X[:cut], y[:cut], X[cut:], y[cut:], point) for point in product(rates, penalties, _MOMENTA)]
    shape = len(rates), len(penalties), len(_MOMENTA)
    np.savez_compressed(
        FILE,
        rates=rates,
        penalties=penalties,
        momenta=np.array(_MOMENTA),
        losses=np.array(losses, np.float32).reshape(shape),
    )


if __name__ == "__main__":
    record()
