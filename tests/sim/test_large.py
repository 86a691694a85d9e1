"""Jobs of hundreds of members: what holds of four workers and four servers holds of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from eps.core.events import JobState
from eps.core.reconfig import Change, Operation, Phase
from eps.core.types import CoreSettings
from tests.fakes.network import Faults
from tests.sim.checkpointed import CheckpointedJob, MortalCheckpointedJob
from tests.sim.faithful import Breaks
from tests.sim.test_faithful import LIMIT_S
from tests.tiers import seed_of_run


@pytest.mark.parametrize(
    ("workers", "servers"), [(30, 10), pytest.param(200, 50, marks=pytest.mark.tier("all"))], ids=["40", "250"]
)
def test_large_job_that_changes_its_size_and_loses_members_and_masters_finishes_with_the_oracles_parameters(
    workers: int, servers: int, tmp_path: Path
) -> None:
    kind: Callable[..., CheckpointedJob] = CheckpointedJob
    iterations = 24 if workers < 100 else 12
    if workers < 100:
        # Each restores the state of all members, and most of the time would be that.
        kind = partial(MortalCheckpointedJob, directory=tmp_path / "log", deaths=0.0005, lossy=True)
    settings = CoreSettings(workers + workers // 5, servers + servers // 5, iterations, followers=1)
    job = kind(
        seed_of_run(), settings, workers, servers,
        faults=Faults(drop=0.0, duplicate=0.0, late=0.05), breaks=Breaks(0.001, 0.001), iteration_s=0.2, every=5,
    )  # fmt: skip
    changes = (
        Change(Operation.ADD_WORKERS, workers // 10),
        Change(Operation.ADD_SERVERS, servers // 5),
        Change(Operation.REMOVE_WORKERS, workers // 5),
        Change(Operation.REMOVE_SERVERS, servers // 10),
    )

    def ask(number: int, change: Change) -> None:
        if job.master.state is JobState.STARTING:
            job.at(0.25, lambda: ask(number, change))
        else:
            job.ask(f"change-{number}", change)

    for number, change in enumerate(changes):
        job.at(1.0 + number, lambda n=number, c=change: ask(n, c))
    victims = ("worker-2", "server-3", "worker-5", "server-6")
    for number, name in enumerate(victims):
        job.at(1.5 + number, lambda victim=name: job.kill(victim))
    job.run(LIMIT_S)
    job.check_finished()
    # Connections break at random, too, and may cost further members.
    assert {loss.name for loss in job.master.recovery.losses} >= set(victims)
    assert {plan.phase for plan in job.master.plans.all.values()} >= {Phase.RELEASED}
