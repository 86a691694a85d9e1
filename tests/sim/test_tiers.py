"""Jobs on reliable and transient containers: their number changes, they are taken away, and they crash.

Source: Proteus §3.2 and §3.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eps.core import events as e
from eps.core.events import JobState
from eps.core.reconfig import Change, Operation, Phase
from eps.core.tiers import Stage, StageRule
from eps.core.types import UNBOUNDED, CoreSettings, Role, Tier
from tests.fakes.network import RELIABLE, Faults
from tests.sim.evicting import EvictingJob
from tests.sim.faithful import Breaks
from tests.sim.job import SimJob
from tests.sim.random_jobs import random_settings, schedule_crashes
from tests.sim.tiered import (
    CheckpointedTieredJob,
    MortalTieredJob,
    TieredJob,
    eager_controller,
    schedule_failures,
    schedule_sizes,
)
from tests.tiers import until_met

#: A job that goes back several times, with slow messages, takes long.
LIMIT_S = 900.0


def tiered_job(seed: int, *, warnings: float = 0.0, faithful: bool = True, followers: int = 0) -> EvictingJob:
    """Return a random job on two tiers."""
    random = Random(seed)
    settings = replace(random_settings(random, seed), num_splits=12, num_partitions=8, followers=followers)
    tiers = {Tier.RELIABLE: random.choice((1, 2, 3)), Tier.TRANSIENT: random.choice((0, 1, 4))}
    count = sum(tiers.values())
    return EvictingJob(
        seed,
        settings,
        count,
        min(count, 8),
        tiers=tiers,
        stage_rule=StageRule(random.choice(("1", "2", "2", "3", "ratio"))),
        faults=Faults(drop=0.0, duplicate=0.0, late=random.choice((0.0, 0.05, 0.2))) if faithful else RELIABLE,
        iteration_s=random.choice((0.01, 0.05, 0.2)),
        breaks=Breaks() if faithful else None,
        warnings=warnings,
    )


def schedule_scales(random: Random, job: SimJob) -> None:
    """Ask for other numbers of containers at random times."""
    for number in range(random.randint(1, 5)):
        deltas = tuple((tier, random.choice((-2, -1, 1, 2))) for tier in Tier if random.random() < 0.7)
        if not deltas:
            continue
        change = Change(Operation.TIERS, sum(abs(n) for _, n in deltas), containers=deltas)
        at_s = random.uniform(0.7, 0.8 + job.settings.iterations * 0.25)
        job.at(at_s, lambda c=change, n=number: job.ask(f"request-{n}", c))


def check_stage(job: SimJob) -> None:
    """Owners, BackupPSs and workers are those of the stage; no copy is kept for a cut in stage 1."""
    master = job.master
    assert master.membership is not None and master.hosting is not None
    stage = master.hosting.stages[-1].stage
    owners = set(master.membership.partitions.owners)
    for container_id, host in master.members.hosts.items():
        for member in master.members.in_container(container_id):
            if member.name in owners:
                assert (host.tier is Tier.RELIABLE) == (stage is Stage.PARAM_SERVS), f"{member.name} in stage {stage}"
            if member.name in master.membership.workers:
                assert stage is not Stage.NO_RELIABLE_WORKERS or host.tier is Tier.TRANSIENT


def failing_job(
    seed: int,
    kind: str = "plain",
    directory: Path | None = None,
    rules: Sequence[str] = ("2", "2", "3", "ratio", "auto"),
) -> TieredJob:
    """Return a random job that is long enough for cuts, and fails in most cases while it has one.

    ``kind`` is "plain", "hostile", "checkpointed" or "mortal".
    """
    random = Random(seed + 4)
    settings = replace(
        random_settings(random, seed),
        num_splits=12,
        num_partitions=random.choice((3, 8)),
        iterations=random.choice((40, 60, 80)),
        followers=int(random.random() < 0.2),
    )
    tiers = {Tier.RELIABLE: random.choice((1, 1, 2)), Tier.TRANSIENT: random.choice((2, 3, 4, 6))}
    details: dict[str, Any] = {
        "tiers": tiers,
        "stage_rule": StageRule(random.choice(rules)),
        "faults": Faults(drop=0.0, duplicate=0.0, late=random.choice((0.0, 0.05, 0.2))),
        "iteration_s": random.choice((0.05, 0.1)),
        "breaks": Breaks(*random.choice(((0.0, 0.0), (0.0, 0.0), (0.01, 0.02)))),
        "warnings": random.choice((0.0, 0.0, 0.0, 0.3)),
        "fails": random.choice((0.0, 0.02, 0.1)),
        "fails_after_cut": random.choice((0.4, 0.8)),
        "reliable": random.choice((0.0, 0.0, 0.3)),
        "max_lag_s": random.choice((0.0, 0.0, 0.5)),
    }
    count = sum(tiers.values())
    makes: Callable[..., TieredJob] = TieredJob
    if kind == "checkpointed":
        makes = partial(CheckpointedTieredJob, every=random.choice((3, 10)))
    elif kind == "mortal":
        makes = partial(MortalTieredJob, directory=directory, deaths=0.01, lossy=seed % 2 == 0)
    elif kind == "hostile":
        details.update(faults=random.choice((RELIABLE, Faults(), Faults())), breaks=None)
    job = makes(seed, settings, count, min(count, settings.num_partitions), **details)
    schedule_sizes(random, job)
    schedule_failures(random, job)
    return job


@pytest.mark.parametrize("faithful", [True, False], ids=["faithful", "hostile"])
def test_containers_come_and_go(crash_seed: int, faithful: bool) -> None:
    job = tiered_job(crash_seed, faithful=faithful, followers=crash_seed % 2)
    schedule_scales(Random(crash_seed + 1), job)
    job.run(LIMIT_S)
    job.check_finished()
    check_stage(job)


def test_transient_containers_are_evicted(crash_seed: int) -> None:
    job = tiered_job(crash_seed, warnings=0.4, followers=crash_seed % 2)
    schedule_scales(Random(crash_seed + 1), job)
    job.run(LIMIT_S)
    job.check_finished()


def test_containers_crash(crash_seed: int) -> None:
    random = Random(crash_seed + 2)
    job = tiered_job(crash_seed, followers=crash_seed % 2)
    schedule_scales(random, job)
    schedule_crashes(random, job)
    job.run(LIMIT_S)
    job.check_finished()


def managed_job(seed: int) -> EvictingJob:
    """Return a random job of a scheduler on reliable containers, which come by number and leave by name."""
    random = Random(seed + 5)
    settings = replace(
        random_settings(random, seed), num_splits=12, num_partitions=random.choice((2, 8)), followers=seed % 2
    )
    count = random.choice((1, 1, 2, 4))
    job = EvictingJob(
        seed,
        settings,
        count,
        count,
        tiers={Tier.RELIABLE: count, Tier.TRANSIENT: 0},
        managed=True,
        faults=Faults(drop=0.0, duplicate=0.0, late=random.choice((0.0, 0.05, 0.2))),
        iteration_s=random.choice((0.01, 0.05, 0.2)),
        breaks=Breaks(),
        warnings=random.choice((0.0, 0.2)),
    )

    def leave(number: int) -> None:
        there = sorted(job.master.members.hosts)
        chosen = tuple(random.sample(there, min(len(there), random.choice((1, 1, 2, 3)))))
        if chosen:
            job.ask(f"leave-{number}", Change(Operation.TIERS, len(chosen), chosen))

    for number in range(random.randint(2, 6)):
        more = random.choice((1, 2, 4))
        change = Change(Operation.TIERS, more, containers=((Tier.RELIABLE, more),))
        at_s = random.uniform(0.7, 0.8 + settings.iterations * 0.25)
        job.at(at_s, lambda c=change, n=number: job.ask(f"come-{n}", c))  # type: ignore[misc]
        job.at(at_s + random.uniform(0.0, 2.0), partial(leave, number))
    if seed % 3 == 0:
        schedule_crashes(random, job)
    return job


def test_containers_of_a_scheduler_leave_by_name(crash_seed: int) -> None:
    job = managed_job(crash_seed)
    job.run(LIMIT_S)
    job.check_finished()
    check_stage(job)


def test_a_scheduled_job_restores_only_what_its_cluster_did_not_take() -> None:
    """Of three containers it loses one after a warning, and restores one that crashes; then it has two."""
    job = SimJob(1, CoreSettings(12, 4, 60), 3, 3, tiers={Tier.RELIABLE: 3, Tier.TRANSIENT: 0}, managed=True)
    first, second, third = "container-0001", "container-0002", "container-0003"
    job.at(1.0, lambda: job.on_event(e.ContainersWarned((e.ContainerWarning(second, 60.0, "is taken"),))))
    job.at(4.0, lambda: [process.end("killed") for process in job.inside(third)])
    job.run(LIMIT_S)
    job.check_finished()
    hosting = job.master.hosting
    assert hosting is not None and hosting.reliable == 2
    assert set(job.master.members.hosts) == {first, "container-0004"}


@pytest.mark.parametrize("kind", ["plain", "hostile", "checkpointed", "mortal"])
def test_transient_containers_fail_at_once(eviction_seed: int, kind: str, tmp_path: Path) -> None:
    """One, some or all, in every stage, during changes of the stage and during rollbacks."""
    with eager_controller():
        job = failing_job(eviction_seed, kind, tmp_path / "log")
        job.run(LIMIT_S)
    job.check_finished()


def test_most_of_these_jobs_roll_back_to_a_cut() -> None:
    """Otherwise the test above would prove less than it says."""
    met: Counter[str] = Counter()
    for seed in islice(until_met(), 20):
        with eager_controller():
            job = failing_job(seed, rules=("2", "3"))
            job.run(LIMIT_S)
        job.check_finished()
        met.update(kind for kind in job.counted if kind.startswith("to "))
    assert met["to a cut"] >= 4, met


@pytest.mark.parametrize("staleness", [0, 2, UNBOUNDED])
@pytest.mark.parametrize("fails", [0.0, 0.3], ids=["calm", "failing"])
def test_every_transition_between_two_stages_keeps_the_model(eviction_seed: int, staleness: int, fails: float) -> None:
    """With one reliable container: stage 1 with one transient one, stage 2 with two, stage 3 with more."""
    settings = CoreSettings(12, 3, 90, staleness=staleness, reproducible=not staleness)
    with eager_controller():
        job = TieredJob(
            eviction_seed, settings, 2, 2,
            tiers={Tier.RELIABLE: 1, Tier.TRANSIENT: 1}, stage_rule=StageRule.RATIO, faults=RELIABLE, breaks=Breaks(),
            iteration_s=0.05, warnings=0.0, fails_after_cut=fails,
        )  # fmt: skip
        for number, count in enumerate((1, 1, -1, -1, 3, -3)):
            change = Change(Operation.TIERS, abs(count), containers=((Tier.TRANSIENT, count),))
            job.at(1.0 + number / 100, lambda c=change, n=number: job.ask(f"request-{n}", c))
        job.run(LIMIT_S)
    job.check_finished()
    every = {(one, other) for one in Stage for other in Stage if one is not other}
    assert fails or job.transitions == every, job.transitions


def test_the_members_of_a_container_are_those_of_the_tier() -> None:
    settings = replace(random_settings(Random(1), 0), num_splits=12, num_partitions=8, iterations=24)
    job = SimJob(
        1, settings, 3, 3, tiers={Tier.RELIABLE: 1, Tier.TRANSIENT: 2}, stage_rule=StageRule.STAGE_1, breaks=Breaks()
    )
    more = Change(Operation.TIERS, 2, containers=((Tier.TRANSIENT, 2),))
    job.at(1.5, lambda: job.ask("more", more))
    job.at(2.0, lambda: job.ask("workers", Change(Operation.ADD_WORKERS, 1)))
    job.run(LIMIT_S)
    job.check_finished()
    membership, plan = job.master.membership, job.master.plans.all[1]
    assert membership is not None
    assert membership.workers == tuple(f"worker-{n}" for n in range(1, 6)) and membership.servers == ("server-1",)
    assert plan.phase is Phase.RELEASED and plan.coming.of_role(Role.WORKER) == ("worker-4", "worker-5")
    refused = job.answers["workers"]
    assert isinstance(refused, e.Answer) and "transient=+2" in str(refused.error)
    assert job.master.state is JobState.FINISHED
