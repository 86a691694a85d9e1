"""The fluid model of a sweep: its orders, and the range in which the best fixed size lies above instant resizing."""

from __future__ import annotations

import pytest

from benchmarks.sweeps.fluid import Curve, Sweep, asha, best_fixed, fixed, instant, restarts, table


@pytest.mark.parametrize("trials", [27, 81])
@pytest.mark.parametrize("efficiency", [0.5, 0.7, 0.9])
def test_every_division_lies_between_the_limit_and_the_best_fixed_size(trials: int, efficiency: float) -> None:
    found = table(trials, efficiency)
    assert found["limit"] <= found["instant"] <= found["restarts"] <= found["best_fixed"]
    assert found["instant"] <= found["between_rungs"] <= found["best_fixed"]
    one = asha(Sweep(trials, Curve.of_efficiency(efficiency)), 0)
    assert one["limit"] <= one["instant"] <= one["fixed"]


def test_the_best_fixed_size_is_a_quarter_slower() -> None:
    assert table(27, 0.5, last=900)["best_fixed_over_instant"] == pytest.approx(1.23, abs=0.005)
    assert table(81, 0.5, last=900)["best_fixed_over_instant"] == pytest.approx(1.29, abs=0.005)
    assert table(27, 0.7)["best_fixed_over_instant"] == pytest.approx(1.27, abs=0.005)
    assert table(81, 0.5)["best_fixed_over_instant"] == pytest.approx(1.25, abs=0.005)


def test_a_perfect_speed_up_reaches_the_limit() -> None:
    sweep = Sweep(27, Curve(0.0))
    assert instant(sweep) == pytest.approx(sweep.limit())
    assert best_fixed(sweep) == (pytest.approx(sweep.limit()), 16)
    assert fixed(sweep, 1) == 200 + 200 + 600 + 1800


def test_a_restart_costs_time() -> None:
    curve = Curve.of_efficiency(0.7)
    times = [restarts(Sweep(27, curve, restart=cost)) for cost in (0.0, 5.0, 20.0, 1e9)]
    assert times == sorted(times)


def test_the_curve_between_whole_sizes_alternates() -> None:
    curve = Curve.of_efficiency(0.5)
    for size in (0.5, 1.0, 1.5, 7.25):
        assert curve.size(curve.speed(size)) == pytest.approx(size)
    assert curve.size(1e9) == float("inf")
