"""A live job from which the cluster takes containers, over a fake job that the test controls."""

from __future__ import annotations

from typing import Any

import pytest

from eps.errors import UnknownMemberError
from eps.job.master_link import Progress
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.live import job as live
from tests.hscheduler.live_job_world import told_of
from tests.hscheduler.test_live_job import Watched, containers
from tests.hscheduler.test_live_job import watched as watched

WHY = "its container is on node h2, which is decommissioned within 30 s"


def status(*there: str, **gone: str) -> dict[str, Any]:
    reason = WHY.removeprefix("its container ")
    evictions = [{"name": name.replace("_", "-"), "outcome": how, "reason": reason} for name, how in gone.items()]
    return {
        "state": "running",
        "members": told_of(there),
        "evictions": {"members": evictions},
        "plan": None,
    }


def test_taken_containers_are_reported_once_with_the_reason(watched: Watched) -> None:
    watched.start()
    news = status("worker-1", "server-1", worker_2="drained")
    for _ in range(3):
        watched.fake.news.put(Progress(news, ()))
    gone = watched.next(e.ContainersGone)
    assert (gone.containers, gone.why) == (("c2",), WHY)
    # An order to release it meanwhile is answered, and sends no request to the job.
    watched.obey(e.ShrinkJob("a", ("c2",)))
    gone = watched.next(e.ContainersGone)
    assert (gone.containers, gone.why) == (("c2",), "")
    assert watched.fake.changes == []
    # Its replacement has a container of its own.
    watched.fake.names.remove("worker-2")
    watched.obey(e.ShrinkJob("a", ("c1",)))
    assert watched.next(e.ContainersGone).containers == ("c1",)
    assert watched.fake.changes == [("remove-workers", ["worker-1"])]


def test_a_release_of_a_taken_container_is_answered(watched: Watched) -> None:
    watched.start()
    watched.fake.status = lambda: status("worker-1", "server-1", worker_2="lost")  # type: ignore[method-assign]
    watched.fake.refuse["remove-workers"] = [UnknownMemberError("no worker-2")]
    watched.obey(e.ShrinkJob("a", ("c2",)))
    assert watched.next(e.ContainersGone).why == WHY
    assert watched.next(e.ContainersGone) == e.ContainersGone("a", ("c2",))
    assert watched.fake.changes == [("remove-workers", ["worker-2"])]


@pytest.mark.parametrize(("on", "timeout_s"), [("local", 10.0), ("yarn", 60.0)])
def test_a_remote_job_has_longer_to_save_its_results(
    on: str, timeout_s: float, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> dict[str, Any]:
        waited.append(seconds)
        return watched.fake.report

    monkeypatch.setattr(watched.fake, "wait", wait)
    monkeypatch.setattr(watched.fake, "kill", lambda why, seconds: waited.append(seconds))
    job = live.LiveJob("b", live.Launch("sweep-b", JobSpec(workers=2, servers=1, on=on)), "loss", 10, watched.said.put)
    job.obey(1, e.StartJob("b", containers(("c1", "w"), ("c2", "w"), ("c3", "s")), False))
    watched.next(e.JobStarted)
    watched.fake.finish()
    watched.next(e.JobEnded)
    job.close()
    assert set(waited) == {timeout_s}
