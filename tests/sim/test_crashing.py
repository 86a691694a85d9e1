"""Whole jobs whose members crash in the middle of plans of every kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from eps.core.reconfig import OPERATIONS, Change, Operation, Phase
from tests.sim.crashing import CrashingJob
from tests.sim.job import SimJob
from tests.sim.mortal import MortalJob
from tests.sim.random_jobs import (
    faithful_job,
    hostile_job,
    random_change,
    random_scale,
    schedule,
    schedule_crashes,
)
from tests.sim.test_faithful import LIMIT_S
from tests.tiers import until_met


class MortalCrashingJob(CrashingJob, MortalJob):
    """The same, with masters that die."""


def played(
    seed: int,
    directory: Path | None = None,
    *,
    hostile: bool = False,
    followers: int = 1,
    change: Callable[[Random, SimJob], Change] = random_change,
) -> SimJob:
    """Return a random job that was played to its end and checked; in a directory its master dies now and then."""
    kind = partial(CrashingJob)
    if directory is not None:
        kind = partial(MortalCrashingJob, directory=directory, deaths=0.01, lossy=True)
    make = hostile_job if hostile else faithful_job
    job = make(seed, kind=kind, followers=followers, patient=True)
    schedule(Random(seed + 3), job, change)
    if seed % 3 == 0:
        schedule_crashes(Random(seed + 4), job)
    job.run(LIMIT_S)
    job.check_finished()
    return job


def test_job_finishes_with_the_oracles_parameters_whoever_crashes_in_whatever_plan(crash_seed: int) -> None:
    played(crash_seed)
    played(crash_seed, hostile=True)


def test_job_without_followers_finishes_with_them_too(crash_seed: int) -> None:
    played(crash_seed, followers=0)


def test_job_whose_masters_die_too_finishes_with_them(crash_seed: int, tmp_path: Path) -> None:
    played(crash_seed, tmp_path / "faithful")
    played(crash_seed, tmp_path / "hostile", hostile=True)


def test_job_that_is_scaled_finishes_with_them_too(crash_seed: int, tmp_path: Path) -> None:
    played(crash_seed, tmp_path, hostile=bool(crash_seed % 2), change=random_scale)


def test_members_crash_at_every_step_of_every_kind_of_plan() -> None:
    """Otherwise the tests above would prove less than they say."""
    met: Counter[str] = Counter()
    # A change that adds no member waits for none.
    wanted = [
        f"{operation} {step}"
        for operation in (*OPERATIONS, Operation.SCALE)
        for step in [Phase.LISTS_UPDATED, Phase.COMMITTED, Phase.SWITCHED] + [Phase.PROPOSED] * operation.adds
    ]
    for seed in until_met():
        met += played(seed).counted
        met += played(seed, change=random_scale).counted
        if all(met[step] for step in wanted) and any(what.startswith(Operation.FOLLOW) for what in met):
            return
    raise AssertionError(([step for step in wanted if not met[step]], met))
