"""The fluid model of a sweep: the order of its divisions."""

from __future__ import annotations

import pytest

from benchmarks.sweeps.fluid import Curve, Sweep, best_fixed, between_rungs, fixed, instant


@pytest.mark.parametrize("trials", [27, 81])
@pytest.mark.parametrize("efficiency", [0.5, 0.7, 0.9])
def test_every_division_lies_between_the_limit_and_the_best_fixed_size(trials: int, efficiency: float) -> None:
    sweep = Sweep(trials, Curve.of_efficiency(efficiency))
    assert sweep.limit() <= instant(sweep) <= between_rungs(sweep) <= best_fixed(sweep)[0]


def test_a_perfect_speed_up_reaches_the_limit() -> None:
    sweep = Sweep(27, Curve(0.0))
    assert instant(sweep) == pytest.approx(sweep.limit())
    assert best_fixed(sweep) == (pytest.approx(sweep.limit()), 16)
    assert fixed(sweep, 1) == 200 + 200 + 600 + 1800
