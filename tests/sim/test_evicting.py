"""Whole jobs whose containers are to be taken away in the middle of plans of every kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from eps.core.evictions import EvictionOutcome
from eps.core.reconfig import OPERATIONS, Operation, Phase
from tests.sim.evicting import EvictingJob
from tests.sim.faithful import Breaks
from tests.sim.job import CALM
from tests.sim.mortal import MortalJob
from tests.sim.random_jobs import faithful_job, hostile_job, schedule, schedule_crashes
from tests.sim.test_faithful import LIMIT_S
from tests.tiers import until_met


class MortalEvictingJob(EvictingJob, MortalJob):
    """The same, with masters that die."""


def played(seed: int, directory: Path | None = None, *, hostile: bool = False, followers: int = 1) -> EvictingJob:
    """Return a random job that was played to its end and checked; in a directory its master dies now and then."""
    kind: Callable[..., EvictingJob] = EvictingJob
    if directory is not None:
        kind = partial(MortalEvictingJob, directory=directory, deaths=0.01, lossy=True)
    kind = partial(kind, managed=seed % 4 == 1)
    job = (hostile_job if hostile else faithful_job)(seed, kind=kind, followers=followers, patient=seed % 2 == 0)
    assert isinstance(job, EvictingJob)
    schedule(Random(seed + 5), job)
    if seed % 5 == 0:
        schedule_crashes(Random(seed + 6), job)
    job.run(LIMIT_S)
    job.check_finished()
    return job


def test_job_finishes_with_the_oracles_parameters_whatever_is_taken_away_and_when(eviction_seed: int) -> None:
    played(1000 + eviction_seed)
    played(eviction_seed, hostile=True)


def test_job_without_followers_finishes_with_them_too(eviction_seed: int) -> None:
    played(eviction_seed, followers=0)


def test_job_whose_masters_die_too_finishes_with_them(eviction_seed: int, tmp_path: Path) -> None:
    played(eviction_seed, tmp_path / "faithful")
    played(eviction_seed, tmp_path / "hostile", hostile=True)


def test_with_time_enough_nobody_is_lost(eviction_seed: int) -> None:
    """Unless the job is about to end there is time for a drain, also where one comes for the last of a role first."""

    def kind(*details: Any, **more: Any) -> EvictingJob:
        return EvictingJob(*details, **{**more, "chaos": CALM, "breaks": Breaks(), "deadlines_s": (1000.0,)})

    job = faithful_job(eviction_seed, kind=kind)
    schedule(Random(eviction_seed + 5), job)
    job.run(LIMIT_S)
    job.check_finished()
    assert not job.master.recovery.losses
    assert not [v for v in job.master.evictions.all if v.outcome in (EvictionOutcome.LOST, EvictionOutcome.LATE)]


def test_warnings_come_at_every_step_of_every_kind_of_plan_and_end_in_every_way() -> None:
    """Otherwise the tests above would prove less than they say."""
    met: Counter[str] = Counter()
    ended: Counter[EvictionOutcome] = Counter()
    wanted = [
        f"{operation} {step}"
        for operation in (*OPERATIONS, Operation.DRAIN)
        for step in [Phase.LISTS_UPDATED, Phase.COMMITTED, Phase.SWITCHED] + [Phase.PROPOSED] * operation.adds
    ]
    for seed in until_met():
        job = played(seed)
        met += job.counted
        ended.update(eviction.outcome for eviction in job.master.evictions.all)
        if all(met[step] for step in wanted) and all(ended[outcome] for outcome in EvictionOutcome):
            return
    raise AssertionError(([step for step in wanted if not met[step]], ended, met))
