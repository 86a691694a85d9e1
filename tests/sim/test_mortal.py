"""Whole jobs whose master dies again and again: what the log says is what the master was, and the job ends as ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from eps.core import events as e
from eps.core.events import JobState
from eps.core.reconfig import OPERATIONS, Change, Operation, Phase
from eps.core.types import CoreSettings
from tests.fakes.network import RELIABLE
from tests.sim.faithful import Breaks
from tests.sim.job import SimJob
from tests.sim.mortal import MortalJob
from tests.sim.process import SimProcess
from tests.sim.random_jobs import faithful_job, hostile_job, schedule
from tests.sim.test_faithful import LIMIT_S


def played(seed: int, directory: Path, *, lossy: bool, deaths: float, hostile: bool = False) -> SimJob:
    """Return a random job that was played to its end and checked."""
    kind = partial(MortalJob, directory=directory, deaths=deaths, lossy=lossy)
    job = hostile_job(seed, kind) if hostile else faithful_job(seed, kind=kind)
    schedule(Random(seed + 2), job)
    job.run(LIMIT_S)
    job.check_finished()
    return job


def test_a_state_that_is_restored_at_any_moment_is_the_one_that_was(sim_seed: int, tmp_path: Path) -> None:
    played(sim_seed, tmp_path / "faithful", lossy=False, deaths=0.05)
    played(sim_seed, tmp_path / "hostile", lossy=False, deaths=0.05, hostile=True)


def test_a_job_whose_masters_die_before_they_act_ends_with_the_oracles_parameters(
    sim_seed: int, tmp_path: Path
) -> None:
    played(sim_seed, tmp_path / "faithful", lossy=True, deaths=0.02)
    played(sim_seed, tmp_path / "hostile", lossy=True, deaths=0.02, hostile=True)


def test_masters_die_in_every_state_of_a_job_and_nearly_all_jobs_finish(tmp_path: Path) -> None:
    """Otherwise the tests above would prove less than they say."""
    met: Counter[str] = Counter()
    ends: Counter[JobState] = Counter()
    for seed in range(12):
        job = played(seed, tmp_path / str(seed), lossy=True, deaths=0.02)
        met += job.counted
        ends[job.master.state] += 1
        assert job.master.masters.generation == job.counted["master died"] + 1
    assert met["master died"] > 25, met
    assert ends[JobState.FINISHED] >= 10, ends


class ForgetfulJob(MortalJob):
    """A job of which there are times when nothing can be logged, nor noted as missing."""

    is_away = False
    #: What was granted by masters whose state is lost.
    granted = -1

    @property
    def horizon(self) -> int:
        return max(self.granted, super().horizon)

    def _record(self, event: e.Event) -> None:
        if not self.is_away:
            super()._record(event)

    def _keep_short(self) -> None:
        if not self.is_away:
            super()._keep_short()

    def _restore(self) -> None:
        """Put the state that the log says in the place of the master's: it may be an older one."""
        self.granted = self.horizon
        before, self.master = self.master, self._logged()
        assert self.master.masters.steps <= before.masters.steps


class UnloggedJob(ForgetfulJob):
    """A job that changes its size while nothing can be logged; then its master is lost."""

    def share(self) -> float:
        # Members find the next master at once: it would hear of what it knows nothing of before it is told who has.
        return 0.0 if self.counted["master died"] else super().share()

    def on_event(self, event: e.Event) -> None:
        super().on_event(event)
        if self.is_away and self.master.plans.all and self.master.plans.all[1].phase is Phase.RELEASED:
            self.is_away = False
            self.net.after(0.0, lambda: self._take_over(event))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_a_job_whose_next_master_misses_what_nobody_could_log_ends_and_says_so(
    seed: int, operation: Operation, tmp_path: Path
) -> None:
    job = UnloggedJob(
        seed, CoreSettings(8, 4, 60), 3, 2,
        faults=RELIABLE, breaks=Breaks(), iteration_s=0.1, directory=tmp_path / "log", deaths=0.0, lossy=False,
    )  # fmt: skip

    def change() -> None:
        job.is_away = True
        job.ask("change", Change(operation, 1))

    job.at(2.0, change)
    job.run(LIMIT_S)
    assert job.master.state is JobState.FAILED and "records are missing" in job.master.reason
    assert job.counted["master died"] == 1


class ForgottenMasterJob(ForgetfulJob):
    """A job of whose masters one can log nothing; those whom it speaks to find only the next but one.

    The next one takes its generation: no process knows of the one before.
    """

    #: Containers that find the one that can log nothing, once it is there.
    misled: frozenset[str] = frozenset()
    #: Whether those find the master that is there now.
    is_theirs = True

    def lose_master(self) -> None:
        """Let the master die, and two more after it."""
        members = sorted(r.container for r in self.master.members.by_name.values())
        self.misled = frozenset(self._random.sample(members, self._random.randint(1, len(members))))
        self.is_away = True
        self._take_over(e.Tick())
        self.net.after(1.0, self.follow)

    def follow(self) -> None:
        """Let another be master for so long that it has seen more events than the one before."""
        self.is_away = self.is_theirs = False
        self._take_over(e.Tick())
        self.net.after(60.0, self.follow_again)

    def follow_again(self) -> None:
        """Let a third be master, whom all find."""
        self.is_theirs = True
        before, self.misled = self.misled, frozenset()
        assert all(self._heard[each][0] == self.master.masters.generation == 2 for each in before)
        self._take_over(e.Tick())

    def hears(self, container_id: str) -> bool:
        """Return whether a process has a session with the master that is there now."""
        return not self.misled or (container_id in self.misled) is self.is_theirs

    def on_event(self, event: e.Event) -> None:
        if isinstance(event, e.ReportReceived) and not self.hears(self._named.get(event.report.name, "")):
            return
        super().on_event(event)

    def _register_again(self, registered: e.MemberRegistered) -> None:
        if self.hears(registered.seat):
            super()._register_again(registered)

    def _tell(self, container_id: str, act: Callable[[SimProcess], None]) -> None:
        if self.hears(container_id):
            super()._tell(container_id, act)


@pytest.mark.parametrize("seed", range(10))
def test_a_job_ends_whose_members_have_heard_a_master_of_whom_two_later_ones_know_nothing(
    seed: int, tmp_path: Path
) -> None:
    job = ForgottenMasterJob(
        seed, CoreSettings(8, 4, 200), 3, 2,
        faults=RELIABLE, breaks=Breaks(), iteration_s=0.1, directory=tmp_path / "log", deaths=0.0, lossy=False,
    )  # fmt: skip
    job.at(2.0, job.lose_master)
    job.run(LIMIT_S)
    assert job.master.state is JobState.FAILED and "records are missing" in job.master.reason
    assert job.counted["master died"] == 3
