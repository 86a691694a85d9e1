"""Whole jobs that take checkpoints while they change their size: complete checkpoints agree with the oracle."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

from tests.sim.checkpointed import CheckpointedJob, MortalCheckpointedJob
from tests.sim.evicting import EvictingJob
from tests.sim.random_jobs import faithful_job, hostile_job, schedule
from tests.sim.test_faithful import LIMIT_S
from tests.tiers import until_met


class EvictedCheckpointedJob(CheckpointedJob, EvictingJob):
    """The same, whose containers are taken away."""


class MortalEvictedCheckpointedJob(MortalCheckpointedJob, EvictingJob):
    """The same, with masters that die."""


def played(seed: int, directory: Path | None = None, *, hostile: bool = False) -> CheckpointedJob:
    """Return a random job that was played to its end and checked; in a directory its master dies now and then."""
    kind = partial(CheckpointedJob, every=1 + seed % 4)
    if directory is not None:
        kind = partial(MortalCheckpointedJob, every=1 + seed % 4, directory=directory, deaths=0.02, lossy=True)
    job = hostile_job(seed, kind) if hostile else faithful_job(seed, kind=kind)
    assert isinstance(job, CheckpointedJob)
    schedule(Random(seed + 2), job)
    job.run(LIMIT_S)
    job.check_finished()
    return job


def test_checkpoints_are_the_oracles_whatever_joins_leaves_and_breaks(sim_seed: int) -> None:
    played(sim_seed)
    played(sim_seed, hostile=True)


def test_checkpoints_are_the_oracles_where_masters_die(crash_seed: int, tmp_path: Path) -> None:
    played(crash_seed, tmp_path / "faithful")
    played(crash_seed, tmp_path / "hostile", hostile=True)


def test_many_checkpoints_are_complete_and_some_are_skipped() -> None:
    """Otherwise the tests above would prove less than they say."""
    met: Counter[str] = Counter()
    # One fails where a member is lost meanwhile; in these jobs none is.
    for seed in range(40):
        met.update(played(seed).master.checkpoints.counts)
        assert not met["failed"], met
        if met["complete"] >= 25 and met["skipped"]:
            return
    raise AssertionError(met)


# ---- where containers are taken away


def evicted(seed: int, directory: Path | None = None, *, hostile: bool = False) -> CheckpointedJob:
    """Return one whose containers are taken away; of three, two take a checkpoint only when every server goes."""
    every = 1 + seed % 4 if seed % 3 == 0 else 100_000
    kind = partial(EvictedCheckpointedJob, every=every)
    if directory is not None:
        kind = partial(MortalEvictedCheckpointedJob, every=every, directory=directory, deaths=0.01, lossy=True)
    followers = seed % 2
    job = (hostile_job if hostile else faithful_job)(seed, kind=kind, followers=followers, patient=seed % 4 > 1)
    assert isinstance(job, CheckpointedJob)
    schedule(Random(seed + 3), job)
    job.run(LIMIT_S)
    job.check_finished()
    return job


def test_checkpoints_are_the_oracles_whatever_is_taken_away(eviction_seed: int) -> None:
    evicted(eviction_seed)
    evicted(eviction_seed, hostile=True)


def test_checkpoints_are_the_oracles_where_masters_die_and_containers_are_taken_away(
    eviction_seed: int, tmp_path: Path
) -> None:
    evicted(eviction_seed, tmp_path / "faithful")
    evicted(eviction_seed, tmp_path / "hostile", hostile=True)


def test_jobs_go_back_to_checkpoints_that_are_taken_because_every_server_goes() -> None:
    """Otherwise the tests above would prove less than they say."""
    complete = back = 0
    for seed in (seed for seed in until_met() if seed % 3):
        job = evicted(seed)
        assert job.master.membership is not None
        complete += job.master.checkpoints.counts["complete"]
        back += bool(job.master.membership.checkpoint)
        if complete >= 3 and back:
            return
    raise AssertionError((complete, back))
