"""Whole jobs that grow, shrink and are interrupted at random, on a hostile network.

See :mod:`tests.sim.hostile` for what that proves, and :mod:`tests.sim.job` for what is checked.
"""

from __future__ import annotations

from random import Random

from eps.core import events as e
from eps.core.events import JobState
from eps.core.reconfig import Change, Operation, Phase
from eps.core.types import CoreSettings
from tests.fakes.network import RELIABLE, Faults
from tests.sim.job import Chaos, SimJob
from tests.sim.random_jobs import hostile_job, schedule, schedule_crashes

#: Unanswered requests are repeated for a long time.
LIMIT_S = 300.0


def test_job_finishes_with_the_oracles_parameters_whatever_joins_and_leaves(sim_seed: int) -> None:
    job = hostile_job(sim_seed)
    schedule(Random(sim_seed + 2), job)
    job.run()
    job.check_finished()


def test_same_seed_gives_the_same_run() -> None:
    """Everything is drawn from the seed, so a failure can be played again."""

    def play() -> tuple[float, int, list[str]]:
        job = hostile_job(7)
        schedule(Random(9), job)
        job.run()
        plans = [f"{p.change} {p.phase} {p.commit_clock}" for p in job.master.plans.all.values()]
        return job.net.now_s, job.net.dropped, plans

    assert play() == play()


def crashing(seed: int) -> SimJob:
    """Return a random job whose members crash, played to its end."""
    random = Random(seed)
    # Containers arrive: a job without members waits for them without a limit.
    job = hostile_job(seed, followers=random.choice((0, 1, 1)), patient=True)
    schedule(random, job)
    schedule_crashes(random, job)
    job.run(LIMIT_S)
    return job


def test_job_whose_members_crash_finishes_with_the_oracles_parameters(crash_seed: int) -> None:
    crashing(crash_seed).check_finished()


def test_container_that_never_comes_gives_way_to_a_removal() -> None:
    """A growth that waits for containers is aborted for a shrink, and the job goes on without it."""
    settings = CoreSettings(num_splits=6, num_partitions=4, iterations=12)
    job = SimJob(3, settings, 3, 2, faults=RELIABLE, chaos=Chaos(never=1.0))
    job.at(1.0, lambda: job.ask("grow", Change(Operation.ADD_WORKERS, 2)))
    job.at(1.2, lambda: job.ask("shrink", Change(Operation.REMOVE_WORKERS, 1, ("worker-1",))))

    job.run()
    job.check_finished()

    grow, shrink = job.master.plans.all[1], job.master.plans.all[2]
    assert (grow.phase, shrink.phase) == (Phase.ABORTED, Phase.RELEASED)
    assert "still waiting for containers" in grow.reason
    assert job.counted["never granted"] == 2
    assert job.master.membership is not None and job.master.membership.workers == ("worker-2", "worker-3")


def test_newcomer_that_vanishes_before_commit_aborts_its_plan_only() -> None:
    settings = CoreSettings(num_splits=6, num_partitions=4, iterations=12)
    job = SimJob(5, settings, 2, 2, chaos=Chaos(vanish=1.0))
    job.at(1.0, lambda: job.ask("grow", Change(Operation.ADD_SERVERS, 1)))

    job.run()
    job.check_finished()

    assert job.master.plans.all[1].phase is Phase.ABORTED
    assert job.master.plans.all[1].reason == "server-3 ended before it took part: taken away"


def test_partition_that_comes_back_to_a_server_answers_what_it_knows() -> None:
    """A lost acknowledgement is asked for again at a server that gave the partition away and is getting it back."""
    settings = CoreSettings(num_splits=2, num_partitions=4, iterations=12)
    for seed in range(12):
        # Only workers that release a plan before they are past its commit clock get into this.
        faults = Faults(drop=0.2, duplicate=0.1, late=0.2)
        job = SimJob(seed, settings, 2, 1, faults=faults, releases_at_once=True)
        job.at(1.0, lambda j=job: j.ask("grow", Change(Operation.ADD_SERVERS, 2)))
        job.at(1.1, lambda j=job: j.ask("shrink", Change(Operation.REMOVE_SERVERS, 2)))

        job.run(limit_s=200.0)
        job.check_finished()


def test_kill_ends_every_container() -> None:
    settings = CoreSettings(num_splits=6, num_partitions=4, iterations=400)
    job = SimJob(11, settings, 3, 2)
    job.at(1.0, lambda: job.ask("grow", Change(Operation.ADD_SERVERS, 1)))
    job.at(2.0, lambda: job.on_event(e.KillRequested("enough")))

    job.run()

    assert (job.master.state, job.master.reason) == (JobState.KILLED, "enough")
