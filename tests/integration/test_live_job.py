"""A live job with real processes."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import pytest

from eps.job.client import Job
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.live.job import Launch, LiveJob

pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

TIMEOUT_S = 120.0


def containers(**roles: Role) -> tuple[Container, ...]:
    return tuple(Container(name, "a", role, Resources(1, 1024), "node") for name, role in roles.items())


def test_a_growth_that_is_undone_leaves_the_job_as_it_was(home: Path) -> None:
    said: SimpleQueue[e.Event] = SimpleQueue()
    spec = JobSpec(data="sklearn:digits", model="softmax", iterations=150, stretch_s=0.002, workers=2, servers=1)
    job = LiveJob("a", Launch("a", spec), "loss", 10, said.put)
    try:
        job.obey(1, e.StartJob("a", containers(c1=Role.WORKER, c2=Role.WORKER, c3=Role.SERVER), False))
        while not isinstance(said.get(timeout=TIMEOUT_S), e.JobStarted):
            pass
        job.obey(2, e.GrowJob("a", containers(c4=Role.WORKER, c5=Role.SERVER)))
        job.obey(3, e.ShrinkJob("a", ("c4", "c5")))
        gone: set[str] = set()
        while not isinstance(event := said.get(timeout=TIMEOUT_S), e.JobEnded):
            if isinstance(event, e.ContainersGone):
                gone.update(event.containers)
    finally:
        job.close()
    assert gone == {"c4", "c5"} and event.phase is Phase.FINISHED
    changes = [(change["operation"], change["phase"]) for change in Job.find(job.name).report()["changes"]]
    # Each growth was aborted, or had committed and was removed again, depending on the machine's speed.
    for role in ("workers", "servers"):
        added = [phase for operation, phase in changes if operation == f"add-{role}"]
        removed = [phase for operation, phase in changes if operation == f"remove-{role}"]
        assert (added, removed) in ((["aborted"], []), (["released"], ["released"])), changes
