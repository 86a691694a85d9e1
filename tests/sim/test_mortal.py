"""Whole jobs whose master dies again and again: what the log says is what the master was, and the job ends as ever."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

from eps.core.events import JobState
from tests.sim.job import SimJob
from tests.sim.mortal import MortalJob
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
        assert job.master.generation == job.counted["master died"] + 1
    assert met["master died"] > 25, met
    assert ends[JobState.FINISHED] >= 10, ends
