"""Jobs on two tiers keep copies on servers that stay: one that goes, cuts that fail, copies no longer needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core import server_events as s
from eps.core.cuts import MOST_FAILURES
from eps.core.reconfig import Change, Operation, Phase
from eps.core.tiers import Stage, StageRule
from eps.core.types import CoreSettings, Tier
from tests.fakes.network import RELIABLE
from tests.sim.faithful import Breaks, FaithfulServer
from tests.sim.server import SimServer
from tests.sim.tiered import TieredJob

SETTINGS = CoreSettings(12, 8, 120)
LIMIT_S = 900.0
#: Orders to drop copies have arrived this long after the last change.
QUIET_S = 1.0


class KeepingJob(TieredJob):
    """A job that checks after each event which servers keep copies.

    Parameters
    ----------
    meets : callable
        Called with the job after each event.
    """

    def __init__(
        self,
        seed: int,
        reliable: int,
        transient: int,
        meets: Callable[[KeepingJob], None] = lambda _: None,
        **more: Any,
    ) -> None:
        tiers = {Tier.RELIABLE: reliable, Tier.TRANSIENT: transient}
        details = {"stage_rule": StageRule.STAGE_2, "warnings": 0.0, "iteration_s": 0.1, **more}
        count = reliable + transient
        super().__init__(seed, SETTINGS, count, reliable, tiers=tiers, faults=RELIABLE, breaks=Breaks(), **details)
        self._meets = meets
        #: Since when nothing is exposed, and no plan is in flight.
        self._quiet_s: float | None = None

    def on_event(self, event: e.Event) -> None:
        super().on_event(event)
        master = self.master
        if self.is_exposed and not self.is_late and master.recovery.inquiry is None:
            assert master.membership is not None and master.cuts.is_held_by(master.membership.servers)
        if self.is_exposed or not master.plans.is_idle:
            self._quiet_s = None
        elif self._quiet_s is None:
            self._quiet_s = self.net.now_s
        elif self.net.now_s > self._quiet_s + QUIET_S:
            assert not self.keeping, "nobody needs their copies"
            self.count("quiet")
        self.count("copies" if self.keeping else "no copies")
        self._meets(self)

    @property
    def is_exposed(self) -> bool:
        """Whether a transient container has parameters."""
        hosting = self.master.hosting
        return hosting is not None and bool(hosting.stages) and hosting.stages[-1].stage is not Stage.PARAM_SERVS

    @property
    def is_late(self) -> bool:
        """Whether the job ends before another cut: then a drain commits without one."""
        return self.master.progress.horizon >= self.settings.iterations

    @property
    def keeping(self) -> list[str]:
        """The servers that keep copies; one that has not begun has none."""
        found = (process for process in self.processes.values() if isinstance(process, SimServer))
        return [process.name for process in found if process.alive and getattr(process, "kept", None)]


@pytest.mark.parametrize(("reliable", "warned"), [(2, 1), (1, 1), (3, 2), (2, 2)])
def test_a_backup_that_goes_leaves_once_a_later_cut_is_on_others(reliable: int, warned: int) -> None:
    """At that moment all transient containers are lost: the job rolls back to a cut, not to its seed."""
    gone: list[str] = []
    cuts: list[int] = []

    def meets(job: KeepingJob) -> None:
        master = job.master
        if not gone and job.is_exposed and master.progress.completed >= 20 and master.plans.is_idle:
            gone.extend(job.containers(Tier.RELIABLE)[-warned:])
            job.warn(dict.fromkeys(gone, 1000.0))
        elif gone and not cuts and not set(gone) & set(master.members.hosts):
            assert master.cuts.committed is not None and job.is_exposed
            cuts.append(master.cuts.committed.clock)
            for container_id in job.containers(Tier.TRANSIENT):
                job.fail_container(container_id)

    job = KeepingJob(3, reliable, 2, meets)
    job.run(LIMIT_S)
    job.check_finished()
    (back,) = job.master.recovery.goings_back
    assert cuts and back.to >= cuts[0] > 0 and job.counted["to a cut"] == 1


def test_a_stage_change_is_aborted_if_reliable_containers_cannot_take_copies() -> None:
    """It waits until then: no transient container gets parameters that would be lost with it."""
    copied, failed = set(), set()
    sends = SimServer._send_cut

    def fails_in_part(server: SimServer, command: s.CopyForCut) -> None:
        if command.partition != 5:
            sends(server, command)
            return
        failed.add(command.cut_id)
        server._say(command.cut_id, m.CutFailed(server.name, command.cut_id, 5, "no memory"))

    def meets(job: KeepingJob) -> None:
        assert job.is_late or not job.is_exposed
        plan = job.master.plans.flight.plan
        if plan is not None and plan.phase is Phase.COPIED:
            copied.add(plan.plan_id)

    with patch.object(FaithfulServer, "_send_cut", fails_in_part):
        job = KeepingJob(3, 1, 4, meets)
        job.run(LIMIT_S)
    job.check_finished()
    why = "reliable containers could not take copies: server-1, partition 5: no memory"
    aborted = {plan.plan_id for plan in job.master.plans.all.values() if plan.reason == why}
    assert aborted and aborted <= copied and len(failed) >= MOST_FAILURES * len(aborted)
    assert job.master.cuts.count == 0 and job.counted["copies"] and job.counted["quiet"]


def test_no_copy_is_left_when_a_job_returns_to_stage_1() -> None:
    job = KeepingJob(3, 1, 2, stage_rule=StageRule.RATIO)
    fewer = Change(Operation.TIERS, 1, containers=((Tier.TRANSIENT, -1),))
    job.at(8.0, lambda: job.ask("fewer", fewer))
    job.run(LIMIT_S)
    job.check_finished()
    assert job.transitions == {(Stage.PARAM_SERVS, Stage.ACTIVE_PSS), (Stage.ACTIVE_PSS, Stage.PARAM_SERVS)}
    assert job.counted["copies"] and job.counted["quiet"]


@pytest.mark.parametrize("max_lag_s", [0.0, 6.0])
def test_the_lag_is_within_its_bound_although_copies_take_long(max_lag_s: float) -> None:
    """Without a bound, the next cut would wait four times as long as the last one took."""
    sends = SimServer._send_cut

    def sends_late(server: SimServer, command: s.TakeCut) -> None:
        server.net.after(1.0, lambda: sends(server, command))

    with patch.object(FaithfulServer, "_send_cut", sends_late):
        job = KeepingJob(3, 1, 2, max_lag_s=max_lag_s)
        job.run(LIMIT_S)
    job.check_finished()
    lag = job.master.cuts.lag
    assert (lag.largest_s <= 6.0) == (max_lag_s > 0), vars(lag)
