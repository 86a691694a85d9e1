"""Jobs on two tiers whose transient containers come late: they start on the reliable ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from eps.core.tiers import StageRule
from eps.core.types import Tier
from tests.sim.faithful import Breaks
from tests.sim.job import SimJob
from tests.sim.random_jobs import random_settings

#: Transient containers are granted this late: a job waits 20 s for them.
LATE_S = 30.0


class LateJob(SimJob):
    """A job whose transient containers come late."""

    def _grant(self, container_id: str) -> None:
        if self.master.members.hosts[container_id].tier is Tier.RELIABLE:
            super()._grant(container_id)
            return
        self.net.after(LATE_S, lambda: self._granted(container_id))
        self.net.after(LATE_S, lambda: self._launch(container_id))


def test_a_job_starts_without_its_transient_containers_and_takes_them_in_later() -> None:
    settings = replace(random_settings(Random(1), 0), num_splits=12, num_partitions=8, iterations=120)
    tiers = {Tier.RELIABLE: 2, Tier.TRANSIENT: 4}
    job = LateJob(1, settings, 6, 2, tiers=tiers, stage_rule=StageRule.RATIO, iteration_s=0.2, breaks=Breaks())
    job.run(900.0)
    job.check_finished()
    hosting = job.master.hosting
    assert hosting is not None
    first, last = hosting.stages[0], hosting.stages[-1]
    assert (first.stage, first.reliable, first.transient) == (1, 2, 0)
    assert (last.stage, last.reliable, last.transient) == (2, 2, 4)


class RefusedJob(SimJob):
    """A job whose transient containers end before they run."""

    def _grant(self, container_id: str) -> None:
        if self.master.members.hosts[container_id].tier is Tier.RELIABLE:
            super()._grant(container_id)
            return
        self.count("refused")
        self.net.after(0.3, lambda: self.on_process_ended(container_id, "refused"))


def test_a_transient_container_that_is_refused_does_not_hold_up_the_start() -> None:
    settings = replace(random_settings(Random(1), 0), num_splits=12, num_partitions=8, iterations=30)
    tiers = {Tier.RELIABLE: 1, Tier.TRANSIENT: 3}
    job = RefusedJob(1, settings, 4, 1, tiers=tiers, stage_rule=StageRule.RATIO, iteration_s=0.05, breaks=Breaks())
    begun_s: list[float] = []
    job.at(5.0, lambda: begun_s.extend([5.0] if job.master.membership is not None else []))
    job.run(900.0)
    job.check_finished()
    assert begun_s, "it requested another one each time that one was refused, and did not begin"
    assert job.counted["refused"] >= 3
