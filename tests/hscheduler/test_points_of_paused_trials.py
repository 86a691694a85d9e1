"""A source of points knows the values of paused trials, also after the sweep was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live import scheduler as live
from hscheduler.live.points import GivenPoints, Rungs
from hscheduler.live.sweep import Sweep
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.spec import Spec
from tests.hscheduler.world import FakeLive, World

SPEC = Spec.of(
    {
        "sweep": {"trials": 3, "stop": "sha", "grace_iterations": 10, "parallelism": 1, "algorithm": "random"},
        "job": {"iterations": 20},
    }
)


class Reaches(FakeLive):
    """A job that is at its rung at once; its value is its number.  When it resumes, it finishes."""

    def obey(self, number: int, order: e.Order) -> None:
        match order:
            case e.StartJob(resumes=False):
                self._say(e.JobStarted(self._job_id))
                self._say(e.RungReached(self._job_id, 10, float(self._job_id[-1])))
            case e.StartJob():
                self._say(e.JobStarted(self._job_id))
                self._say(e.JobEnded(self._job_id, Phase.FINISHED, loss=0.5))
            case e.EndJob():
                self._say(e.JobEnded(self._job_id, Phase.KILLED))

    def interrupt(self) -> None:
        pass


class Told(GivenPoints):
    """Points that record what the sweep tells them.  Drawing one of them raises KeyboardInterrupt, as Ctrl-C does."""

    def __init__(self, interrupted_at: str = "") -> None:
        super().__init__([{}] * 3)
        self.interrupted_at = interrupted_at
        self.told: list[Any] = []

    def ask(self, job_id: str) -> dict[str, Any]:
        if job_id == self.interrupted_at:
            raise KeyboardInterrupt
        self.told.append(f"asked for {job_id}")
        return super().ask(job_id)

    def tell_rungs(self, job_id: str, rungs: Rungs) -> None:
        self.told.append((job_id, list(rungs)))

    def tell(self, job_id: str, loss: float | None, killed: bool = False, rungs: Rungs = ()) -> None:
        self.told.append((job_id, loss))


def test_values_at_rungs_are_told_before_the_next_point_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(0)

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        return Reaches(world, job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    first = Told(interrupted_at="trial-3")
    with pytest.raises(KeyboardInterrupt):
        Sweep(SPEC, "static", points=first).run(SqliteRecord(tmp_path / "record.sqlite"))
    paused, killed = ("trial-1", [(10, 1.0)]), ("trial-2", 2.0)
    assert first.told == ["asked for trial-1", paused, "asked for trial-2", killed]
    again = Told()
    found = Sweep(SPEC, "static", points=again).run(SqliteRecord(tmp_path / "record.sqlite"))
    assert again.told[:3] == [killed, paused, "asked for trial-3"]
    assert sorted(again.told[3:]) == [("trial-1", 0.5), ("trial-3", 3.0)]
    assert found["completed"] == 1
