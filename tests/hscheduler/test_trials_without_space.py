"""Trials that fail because the disk is full are tried again, and such failures do not count as attempts."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live import scheduler as live
from hscheduler.live import sweep
from hscheduler.live.points import GivenPoints
from hscheduler.live.sweep import MOST_WITHOUT_SPACE, Sweep
from hscheduler.spec import Spec
from tests.hscheduler.world import FakeLive, World

NO_SPACE = f"the trained model could not be written: {os.strerror(errno.ENOSPC)}"


class Failing(FakeLive):
    """A job that fails at its start for some reason, or finishes at once."""

    #: Reasons of the next failures.
    reasons: list[str]

    def obey(self, number: int, order: e.Order) -> None:
        if isinstance(order, e.StartJob):
            self._say(e.JobStarted(self._job_id))
            why = self.reasons.pop(0) if self.reasons else ""
            phase = Phase.FAILED if why else Phase.FINISHED
            self._say(e.JobEnded(self._job_id, phase, why, loss=None if why else 0.5))


@pytest.mark.parametrize(
    ("reasons", "phases"),
    [
        ([NO_SPACE] * 3, ["failed"] * 3 + ["finished"]),
        ([NO_SPACE, "it crashed", NO_SPACE], ["failed"] * 3 + ["finished"]),
        (["it crashed", NO_SPACE, "it crashed"], ["failed"] * 3),
        ([NO_SPACE] * 99, ["failed"] * (MOST_WITHOUT_SPACE + 2)),
    ],
)
def test_failures_for_lack_of_space_do_not_count(
    reasons: list[str], phases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, left = World(0), list(reasons)

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        found = Failing(world, job_id, say)
        found.reasons = left
        return found

    monkeypatch.setattr(live, "LiveJob", fake)
    monkeypatch.setattr(sweep, "SPACE_PAUSE_S", 0.0)
    spec = Spec.of({"sweep": {"trials": 1, "retries": 1, "algorithm": "random"}})
    (trial,) = Sweep(spec, "elastic", points=GivenPoints([{}])).run()["trials"]
    assert [each["phase"] for each in trial["attempts"]] == phases
    assert trial["phase"] == phases[-1]
