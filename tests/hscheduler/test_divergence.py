"""Trials whose loss grows by orders of magnitude end early."""

from __future__ import annotations

import math
from random import Random

import pytest

from eps.errors import DIVERGED
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live.job_state import HistoryReader
from hscheduler.policies import POLICIES
from hscheduler.stopping.divergence import GROWTH, LossWatch
from tests.hscheduler.toy import Toy, request


def diverges_at(losses: list[float]) -> int | None:
    watch = LossWatch()
    return next((k for k, loss in enumerate(losses) if watch.take(loss)), None)


@pytest.mark.parametrize("factor", [1.02, 1.1, 2, 10, 1e6])
def test_a_loss_that_grows_exponentially_diverges(factor):
    found = diverges_at([0.7 * factor ** min(k, 300 / math.log10(factor)) for k in range(2000)])
    assert found is not None
    assert found <= max(9, 2 * math.log(GROWTH, factor) + 2), "it takes twice the iterations of a growth by the bound"


def test_a_negative_first_loss_has_a_scale_too():
    assert diverges_at([-0.7, *(2.0**k for k in range(40))]) is not None


@pytest.mark.parametrize("seed", range(20))
def test_training_that_may_still_win_never_diverges(seed):
    lot = Random(seed)
    bad = [0.7, *(lot.uniform(1, 600) for _ in range(300))]
    falls = [math.exp(-k / 30) * lot.uniform(0.5, 2) for k in range(300)]
    tiny = [1.0, *(1e-9 * lot.uniform(0.1, 1e4) for _ in range(300))]
    spikes = [10 ** lot.uniform(4, 9) if k % 5 == 4 else 1.0 for k in range(300)]
    recovers = [1.0, *(1e6 / (k + 1) for k in range(300))]
    from_zero = [0.0, 0.0, 1.0, *(lot.uniform(0, 900) for _ in range(300))]
    # A classifier with a step size of a million, without and with momentum: its accuracy may be the best of all.
    linear = [0.7 + 1e6 * k for k in range(300)]
    quadratic = [0.7 + 1e6 * k**2 for k in range(300)]
    for losses in (bad, falls, tiny, spikes, recovers, from_zero, linear, quadratic):
        assert diverges_at(losses) is None


def history(losses: list[float | None], first: int = 0) -> list[dict[str, object]]:
    return [{"clock": first + k, "loss": loss, "seconds": float(k)} for k, loss in enumerate(losses)]


def test_a_job_reports_its_divergence_once():
    reading = HistoryReader("a", "loss", 10)
    losses: list[float | None] = [1.0, *(10.0**k for k in range(12)), None]
    assert reading.diverged(history(losses[:7])) == []
    assert reading.diverged(history(losses[7:], 7)) == [
        e.LossDiverged("a", "training diverged: its loss grew from 1 to 1e+08 by iteration 10")
    ]
    assert reading.diverged(history(losses[10:], 10)) == []


def started(**opened: bool) -> Toy:
    toy = Toy.of(2, POLICIES["static"])
    toy.send(e.SweepOpened("sweep", **opened))
    for job_id in ("a", "b"):
        toy.send(e.JobSubmitted(request(job_id)))
    toy.settle()
    return toy


def test_a_diverged_trial_is_killed_with_the_reason():
    toy = started()
    toy.send(e.LossDiverged("a", f"{DIVERGED}: its loss grew"))
    toy.settle()
    assert toy.job("a").phase is Phase.KILLED
    assert toy.job("a").why == "a is killed: training diverged: its loss grew"
    assert toy.job("b").phase is Phase.EARLY_FEEDBACK


def test_a_sweep_may_let_diverged_trials_train():
    toy = started(stop_diverged=False)
    toy.send(e.LossDiverged("a", f"{DIVERGED}: its loss grew"))
    toy.settle()
    assert toy.job("a").phase is Phase.EARLY_FEEDBACK


def test_a_diverged_trial_that_completes_before_its_end_has_not_finished():
    toy = started()
    toy.send(e.LossDiverged("a", f"{DIVERGED}: its loss grew"))
    toy.answers.clear()
    toy.send(e.JobEnded("a", Phase.FINISHED, "", None, 1e30))
    assert (toy.job("a").phase, toy.job("a").loss) == (Phase.KILLED, None)
    assert "training diverged" in toy.job("a").why


def test_a_loss_that_is_not_finite_kills_its_trial_too():
    toy = started()
    toy.send(e.JobEnded("a", Phase.FAILED, f"the loss at clock 3 is nan: {DIVERGED}", has_diverged=True))
    assert toy.job("a").phase is Phase.KILLED
    toy.send(e.JobEnded("b", Phase.FAILED, "worker-1 was lost"))
    assert toy.job("b").phase is Phase.FAILED
