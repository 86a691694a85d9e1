"""The state of a live job whose containers host a worker and a server each; its container is what a seat names."""

from __future__ import annotations

from typing import Any

import pytest

from eps.core.reconfig import Operation
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Role
from hscheduler.live import job as live
from hscheduler.live.job_state import Attach, HistoryReader, JobState, Poll, Request, Seat, Start
from tests.hscheduler.live_job_world import containers


def status(*numbers: int, state: str = "running", gone: dict[int, str] | None = None) -> dict[str, Any]:
    """Return the status of a job with these containers; ``gone`` has the outcomes of evictions."""
    evictions = [
        {
            "name": f"worker-{n}, server-{n}",
            "container": f"container-{n:04d}",
            "outcome": how,
            "reason": "is preempted",
        }
        for n, how in (gone or {}).items()
    ]
    # A role of a container has a new member with a new number after it has paused.
    names = [(f"{role}-{10 * n}", role, n) for n in numbers for role in ("worker", "server")]
    members = [{"name": name, "role": role, "container": f"container-{n:04d}"} for name, role, n in names]
    more = {"evictions": {"members": evictions}, "plan": None, "queued": [], "changes": []}
    return {"state": state, "members": members, "tiers": {}, **more}


def record(phase: str, *added: int) -> dict[str, Any]:
    found = [f"container-{n:04d}" for n in added]
    more = {"added": ["worker-7", "server-7"], "containers": {"added": found, "removed": []}, "reason": ""}
    return {"plan_id": 1, "operation": "tiers", "phase": phase, "committed_clock": 5, **more}


def seats(**numbers: int) -> tuple[tuple[str, str], ...]:
    return tuple((place, f"container-{n:04d}") for place, n in numbers.items())


class Hosted:
    """A started job in the containers c1 and c2."""

    def __init__(self) -> None:
        self.state = JobState("a", "name", HistoryReader("a", "loss", 10), hosts=True)
        self.number = 0
        self.start(e.StartJob("a", containers(("c1", "w"), ("c2", "w")), False))

    def obey(self, order: e.Order) -> Any:
        self.number += 1
        self.state.obey(self.number, order, 0.0)
        return self.state.next_action()

    def start(self, order: e.StartJob, *numbers: int) -> None:
        action = self.obey(order)
        assert isinstance(action, Start) and action.places[Role.SERVER] == []
        assert self.state.started(action, is_resumed=False) == [], "its containers are known once it trains"
        said = self.state.progressed(status(*(numbers or (1, 2))), ())
        assert said == [e.MembersFound("a", self.state.places.items()), e.JobStarted("a")]


def test_a_growth_adds_reliable_containers() -> None:
    job = Hosted()
    assert job.state.places.items() == seats(c1=1, c2=2)
    action = job.obey(e.GrowJob("a", containers(("c3", "w"), ("c4", "w"))))
    assert action == Request(Operation.SCALE, "reliable=+2", "name-order-2-scale")
    assert job.state.resize.changed(record("queued")) == []
    assert job.state.next_action() == Poll(1)
    said = job.state.resize.changed(record("released", 3, 4))
    assert said == [e.GrowthDone("a", seats(c1=1, c2=2, c3=3, c4=4))]
    assert job.state.resize.last_clock == 5


def test_a_shrink_removes_the_named_containers() -> None:
    job = Hosted()
    action = job.obey(e.ShrinkJob("a", ("c1",)))
    assert action == Request(Operation.SCALE, "containers=-container-0001", "name-order-2-scale")
    assert job.state.resize.changed(record("released")) == [e.ContainersGone("a", ("c1",))]
    assert job.state.places.items() == seats(c2=2)


def test_a_restart_has_new_containers() -> None:
    job = Hosted()
    job.obey(e.EndJob("a", True, "another size"))
    report = {"state": "killed", "reason": "another size", "history": [], "changes": []}
    (ended,) = job.state.ended(report)
    assert ended.phase is Phase.KILLED
    job.start(e.StartJob("a", containers(("c8", "w")), True), 9)
    assert job.state.places.items() == seats(c8=9)


def test_a_taken_container_is_reported_once() -> None:
    job = Hosted()
    for warned in ("warned", "withdrawn"):
        assert job.state.progressed(status(1, 2, gone={2: warned}), ()) == []
    gone = status(1, gone={2: "drained"})
    assert job.state.progressed(gone, ()) == [e.ContainersGone("a", ("c2",), "its container is preempted")]
    assert job.state.progressed(gone, ()) == []


def test_the_job_replaces_its_last_container() -> None:
    job = Hosted()
    both = {1: "drained", 2: "drained"}
    said = job.state.progressed(status(3, gone=both), ())
    assert said == [e.ContainersGone("a", ("c2",), "its container is preempted")]
    assert job.state.places.items() == seats(c1=3)


def test_a_container_that_the_scheduler_added_is_no_replacement() -> None:
    job = Hosted()
    now = {**status(1, 3, gone={2: "lost"}), "plan": {**record("proposed", 3), "asked_by": "user"}}
    assert job.state.progressed(now, ()) == [e.ContainersGone("a", ("c2",), "its container is preempted")]
    assert job.state.places.items() == seats(c1=1)


def test_a_shrink_of_a_crashed_container_removes_its_successor() -> None:
    job = Hosted()
    job.obey(e.ShrinkJob("a", ("c2",)))
    assert job.state.resize.replaced(status(1, 3)) == [e.MembersFound("a", seats(c1=1, c2=3))]
    action = job.state.next_action()
    assert action == Request(Operation.SCALE, "containers=-container-0003", "name-order-2-scale-of-others")


def test_another_process_goes_on() -> None:
    state = JobState("a", "name", HistoryReader("a", "loss", 10), hosts=True)
    state.restore(7, {"c1": Seat("container-0001", Role.WORKER)}, True, True)
    action = state.next_action()
    assert action == Attach({Role.WORKER: ["c1"], Role.SERVER: []})
    assert state.started(action, is_resumed=False) == []
    assert state.progressed(status(1), ()) == [e.JobStarted("a")]
    assert state.places.items() == seats(c1=1)


def test_a_launch_starts_and_resumes_with_reliable_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class FakeJob:
        @staticmethod
        def start_request(request: Any, **more: Any) -> None:
            asked.append((request.spec.tiers.reliable, request.spec.first_size))

        @staticmethod
        def resume(name: str, **more: Any) -> None:
            asked.append({key: value for key, value in more.items() if key not in ("detach", "warm")})

    monkeypatch.setattr(live, "Job", FakeJob)
    places = {Role.WORKER: ["c1", "c2", "c3"], Role.SERVER: []}
    launch = live.Launch("sweep-a", JobSpec.from_dict({"reliable": 1}))
    launch.start(places, again=False)
    launch.resume(places)
    assert asked == [(3, (3, 3)), {"reliable": 3}]
    other = live.Launch("sweep-a", JobSpec(workers=2, servers=1))
    other.resume({Role.WORKER: ["c1"], Role.SERVER: ["c2"]})
    assert asked[-1] == {"workers": 1, "servers": 1}
