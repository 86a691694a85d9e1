"""Whole jobs of which all servers are taken, and which are granted nothing beyond what they have left."""

from __future__ import annotations

import pytest

from eps.core.settings import CoreSettings
from eps.core.types import Role
from tests.fakes.network import RELIABLE
from tests.sim.cramped import CrampedJob
from tests.sim.faithful import Breaks
from tests.sim.test_faithful import LIMIT_S


@pytest.mark.parametrize("deadline_s", [None, 0.5, 15.0])
@pytest.mark.parametrize("seed", range(2))
def test_job_goes_on_with_a_worker_less_when_all_its_servers_are_taken(seed: int, deadline_s: float | None) -> None:
    settings = CoreSettings(9, 4, 150, followers=1)
    job = CrampedJob(seed, settings, 3, 2, faults=RELIABLE, breaks=Breaks(), room=5, iteration_s=0.1)
    job.at(3.0, lambda: job.take_room(("server-1", "server-2"), deadline_s))
    job.run(LIMIT_S)
    job.check_finished()

    assert job.fewest == {Role.WORKER: 2, Role.SERVER: 1}
    in_time = deadline_s == 15.0
    assert [loss.name for loss in job.master.losses] == ([] if in_time else ["server-1", "server-2", "worker-3"])
