"""Whole jobs whose processes send as the real shells do, on connections that break.

See :mod:`tests.sim.faithful` for what that proves, and :mod:`tests.sim.job` for what is checked.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from eps.core.events import JobState
from eps.core.reconfig import Change, Operation, Phase, Trigger
from eps.core.types import CoreSettings
from tests.fakes.network import RELIABLE
from tests.sim.faithful import Breaks, FaithfulServer
from tests.sim.job import Chaos, SimJob
from tests.sim.random_jobs import faithful_job, schedule, schedule_crashes
from tests.tiers import until_met

#: A job waits a minute for a newcomer that does not register, and may meet several.
LIMIT_S = 900.0


def played(seed: int) -> SimJob:
    """Return a random job that was played to its end and checked."""
    job = faithful_job(seed)
    schedule(Random(seed + 2), job)
    job.run(LIMIT_S)
    job.check_finished()
    return job


def test_job_finishes_with_the_oracles_parameters_whatever_breaks(sim_seed: int) -> None:
    played(sim_seed)


def test_random_jobs_meet_everything_that_may_happen_and_all_finish() -> None:
    """Otherwise the test above would prove less than it says."""
    met: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    expected = ("broke", "transfer failed", "sent again", "reply left early", "refused", "partial")
    expected += ("mute", "never granted", "vanished", "cancelled on its way", "broke after the commit")
    for seed in until_met():
        job = played(seed)
        met += job.counted
        assert job.master.state is JobState.FINISHED
        ends.update(plan.phase for plan in job.master.plans.all.values())
        if all(met[what] for what in expected) and ends[Phase.RELEASED] and ends[Phase.ABORTED]:
            return
    raise AssertionError(([what for what in expected if not met[what]], ends))


def test_same_seed_gives_the_same_run() -> None:
    """Everything is drawn from the seed, so a failure can be played again."""

    def story() -> tuple[float, Counter[str], list[str]]:
        job = played(8)
        plans = [f"{p.change} {p.phase} {p.commit_clock}" for p in job.master.plans.all.values()]
        return job.net.now_s, job.counted, plans

    assert story() == story()


def crashing(seed: int) -> SimJob:
    """Return a random job whose members crash, played to its end."""
    random = Random(seed)
    # Containers arrive: a job without members waits for them without a limit.
    job = faithful_job(seed, followers=random.choice((0, 1, 1)), patient=True)
    schedule(random, job)
    schedule_crashes(random, job)
    job.run(LIMIT_S)
    return job


def test_job_whose_members_crash_finishes_with_the_oracles_parameters(crash_seed: int) -> None:
    crashing(crash_seed).check_finished()


def test_growth_without_containers_does_not_hold_the_job_for_ever() -> None:
    settings = CoreSettings(num_splits=6, num_partitions=4, iterations=8)
    job = SimJob(3, settings, 3, 2, faults=RELIABLE, chaos=Chaos(never=1.0), breaks=Breaks())
    job.at(1.0, lambda: job.ask("grow", Change(Operation.ADD_WORKERS, 2)))

    job.run()
    job.check_finished()

    assert job.master.plans.all[1].reason == "still waiting for containers when only the last iteration was left"
    assert job.counted["never granted"] == 2


def test_newcomer_that_never_registers_does_not_hold_the_job_for_ever() -> None:
    settings = CoreSettings(num_splits=6, num_partitions=4, iterations=8)
    job = SimJob(3, settings, 3, 2, faults=RELIABLE, chaos=Chaos(mute=1.0), breaks=Breaks())
    job.at(1.0, lambda: job.ask("grow", Change(Operation.ADD_SERVERS, 1)))

    job.run(LIMIT_S)
    job.check_finished()

    assert job.master.plans.all[1].reason == "waited 60 s for server-3 to register"


def test_removal_whose_splits_are_all_there_sends_nothing() -> None:
    """EPS Fig. 11: the copies are loaded and become active."""
    settings = CoreSettings(num_splits=9, num_partitions=2, iterations=24)
    grow, shrink = Trigger(2, Change(Operation.ADD_WORKERS, 1)), Trigger(8, Change(Operation.REMOVE_WORKERS, 1))
    job = SimJob(4, settings, 3, 1, (grow, shrink), faults=RELIABLE, breaks=Breaks())

    job.run()
    job.check_finished()

    moved = [(plan.phase, plan.bytes_moved > 0) for plan in job.master.plans.all.values()]
    assert moved == [(Phase.RELEASED, True), (Phase.RELEASED, False)]


def test_transfer_that_breaks_aborts_its_plan_and_may_be_asked_again() -> None:
    settings = CoreSettings(num_splits=6, num_partitions=4, iterations=40)
    job = SimJob(5, settings, 2, 3, faults=RELIABLE, breaks=Breaks())
    job.at(1.0, lambda: job.ask("shrink", Change(Operation.REMOVE_SERVERS, 1)))

    def cut() -> None:
        donor = job.process_of("server-3")
        assert isinstance(donor, FaithfulServer)
        sending = [c for c in donor.connections.values() if c.outstanding]
        for connection in sending:
            connection.break_(share=1.0)
        if not sending:
            job.at(0.001, cut)

    job.at(1.0, cut)
    job.at(3.0, lambda: job.ask("shrink again", Change(Operation.REMOVE_SERVERS, 1)))
    job.run()
    job.check_finished()

    first, second = job.master.plans.all.values()
    assert (first.phase, second.phase) == (Phase.ABORTED, Phase.RELEASED)
    assert first.reason.startswith("server-3: sending to server-")
