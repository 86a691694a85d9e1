"""The simulated sweeps of the benchmark: every policy trains the same, and ``gain`` is near what is possible."""

from __future__ import annotations

import pytest

from benchmarks.sweeps.simulated import Setting, best_fixed, costs, ratios, regret, ways


# The bar of 1.05 with 81 trials is for measured runs; here restarts take as long as in the runs of the fit.
@pytest.mark.parametrize(("trials", "kill"), [(27, 1.2), (81, 1.0)])
def test_gain_is_faster_than_every_fixed_size(trials: int, kill: float) -> None:
    setting, at = Setting(trials, seed=100), costs()
    found = ways(setting, at, sizes=(3, 4, 5, 8))
    assert len({each["iterations"] for each in found.values()}) == 1, "sha lets every policy train the same"
    assert best_fixed(found) != "static-8"
    rows = ratios(setting, found, at)
    assert rows["best fixed / gain"] >= 1.2
    assert rows["asked / gain"] >= 1.5
    assert rows["kill / gain"] >= kill
    assert rows["limit / gain"] >= 0.75
    assert rows["optimum / gain"] >= 0.9


def test_decisions_on_recorded_curves_lose_nothing_under_sha() -> None:
    found = regret((100, 101), "sha")
    assert found["difference"]["values"] == [0.0, 0.0]
