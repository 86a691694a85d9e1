"""What every resource manager does; a backend is done when it passes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from eps.cluster.api import (
    WITHDRAWN,
    Allocated,
    ContainerEvent,
    ContainerRequest,
    EvictionWarning,
    Exited,
    ResourceManager,
    Running,
)
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate
from eps.cluster.yarn.resources import Timing, YarnResourceManager
from eps.errors import ConfigError, ResourceError
from eps.storage.jobdir import create_job_dir
from tests.conftest import require
from tests.docker_host import connect, image_of_nothing
from tests.fakes.brokered import BrokeredYarn
from tests.fakes.docker_engine import IMAGE, FakeDockerEngine
from tests.fakes.resources import FakeResourceManager
from tests.fakes.supervised import DEADLINE_S, SupervisedJob
from tests.fakes.yarn import KINDS, FakeYarn

#: A cluster that answers at once is asked often; the suite's owner thread never hangs, however busy the machine is.
FAST = Timing(idle_s=0.05, busy_s=0.01, owner_s=1e6)


class Backend(Protocol):
    """How the suite reaches what is behind a resource manager."""

    manager: ResourceManager
    can_evict: bool

    def crash(self, event: Running) -> None: ...

    def broken_request(self) -> ContainerRequest: ...

    def evict(self, container_id: str, deadline_s: float) -> None: ...

    def restart(self) -> ResourceManager: ...

    def stop(self) -> None: ...


class FakeBackend:
    can_evict = True

    def __init__(self, tmp_path: Path, max_containers: int) -> None:
        self.fake = FakeResourceManager(max_containers)
        self.manager: ResourceManager = self.fake

    def crash(self, event: Running) -> None:
        self.fake.crash(event.container_id)

    def broken_request(self) -> ContainerRequest:
        self.fake.fail_launch("c-broken")
        return wanted("c-broken")

    def evict(self, container_id: str, deadline_s: float) -> None:
        self.fake.warn(container_id, deadline_s)

    def restart(self) -> ResourceManager:
        adopted = dict.fromkeys(self.fake.running, 1)
        self.fake.close()
        self.fake = FakeResourceManager(self.fake.max_containers, adopted=adopted)
        self.manager = self.fake
        return self.manager

    def stop(self) -> None:
        self.fake.close()


class LocalBackend:
    can_evict = False

    def __init__(self, tmp_path: Path, max_containers: int) -> None:
        # The test's master stays when the job is done, and is killed after the grace period.
        self.job = SupervisedJob(tmp_path, grace_s=0.5)
        self.max_containers = max_containers
        self.manager: ResourceManager = self.job.resources(max_containers)

    def crash(self, event: Running) -> None:
        os.kill(event.pid, signal.SIGKILL)

    def broken_request(self) -> ContainerRequest:
        return wanted("c-broken", "a role that the supervisor does not know")

    def evict(self, container_id: str, deadline_s: float) -> None:
        raise AssertionError("this backend never takes a container away by itself")

    def restart(self) -> ResourceManager:
        self.manager.close()
        self.job.replace_master()
        self.manager = self.job.resources(self.max_containers)
        return self.manager

    def stop(self) -> None:
        self.manager.close()
        self.job.close()


class YarnFakeBackend:
    can_evict = True

    def __init__(self, tmp_path: Path, max_containers: int) -> None:
        self.max_containers = max_containers
        self.yarn = FakeYarn()
        self.manager: ResourceManager = self._next()

    def _next(self) -> YarnResourceManager:
        template = LaunchTemplate({role: RoleTemplate("python") for role in KINDS})
        return YarnResourceManager(*self.yarn.clients(), template, timing=FAST, max_containers=self.max_containers)

    def crash(self, event: Running) -> None:
        self.yarn.crash(event.container_id)

    def broken_request(self) -> ContainerRequest:
        self.yarn.fail_start("c-broken", "scripted")
        return wanted("c-broken")

    def evict(self, container_id: str, deadline_s: float) -> None:
        node = self.yarn.named(container_id).grant.node
        self.yarn.decommission(node, deadline_s)

    def restart(self) -> ResourceManager:
        self.manager.close()
        self.manager = self._next()
        return self.manager

    def stop(self) -> None:
        self.manager.close()


class BrokeredBackend:
    """A job that shares an application with others."""

    can_evict = True

    def __init__(self, tmp_path: Path, max_containers: int) -> None:
        self.shared = BrokeredYarn(FAST)
        self.shared.add(max_containers=max_containers)
        self.manager: ResourceManager = self.shared.master()

    def crash(self, event: Running) -> None:
        self.shared.yarn.crash(event.container_id)

    def broken_request(self) -> ContainerRequest:
        self.shared.yarn.fail_start("c-broken", "scripted")
        return wanted("c-broken")

    def evict(self, container_id: str, deadline_s: float) -> None:
        self.shared.yarn.decommission(self.shared.yarn.named(container_id).grant.node, deadline_s)

    def restart(self) -> ResourceManager:
        self.manager.close()
        self.manager = self.shared.master()
        return self.manager

    def stop(self) -> None:
        self.manager.close()
        self.shared.close()


class DockerBackend:
    """The Docker engine of this machine, where there is one."""

    can_evict = False

    def __init__(self, tmp_path: Path, max_containers: int) -> None:
        self.max_containers = max_containers
        self.job, self.lock = create_job_dir("job", tmp_path)
        self.manager: ResourceManager = self.connect()

    def connect(self) -> ResourceManager:
        return connect(image_of_nothing(), self.job, self.max_containers)

    def crash(self, event: Running) -> None:
        os.kill(event.pid, signal.SIGKILL)

    def broken_request(self) -> ContainerRequest:
        return ContainerRequest("c-broken", "worker", vcores=1_000_000)

    def evict(self, container_id: str, deadline_s: float) -> None:
        raise AssertionError("this backend never takes a container away by itself")

    def restart(self) -> ResourceManager:
        self.manager.close()
        self.manager = self.connect()
        return self.manager

    def stop(self) -> None:
        self.manager.close()
        # Whatever is left ends with it.
        self.lock.close()


class DockerFakeBackend(DockerBackend):
    """The same with an engine that has no containers."""

    def __init__(self, tmp_path: Path, max_containers: int) -> None:
        self.engine = FakeDockerEngine(tmp_path)
        super().__init__(tmp_path, max_containers)

    def connect(self) -> ResourceManager:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", self.engine.url)
            return connect(IMAGE, self.job, self.max_containers)

    def crash(self, event: Running) -> None:
        self.engine.exits(event.container_id, 128 + signal.SIGKILL)

    def stop(self) -> None:
        super().stop()
        self.engine.close()


Start = Callable[..., Backend]

BACKENDS = {
    "fake": FakeBackend,
    "local": LocalBackend,
    "yarn-fake": YarnFakeBackend,
    "brokered-fake": BrokeredBackend,
    "docker-fake": DockerFakeBackend,
    "docker": DockerBackend,
}


@pytest.fixture(params=BACKENDS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    made: list[Backend] = []
    if request.param == "docker":
        require("docker")

    def start(max_containers: int = 0) -> Backend:
        made.append(BACKENDS[request.param](tmp_path, max_containers))
        return made[-1]

    yield start
    for backend in made:
        backend.stop()


def wanted(container_id: str, role: str = "worker") -> ContainerRequest:
    return ContainerRequest(container_id, role)


def collect(manager: ResourceManager, *last: tuple[type[ContainerEvent], str]) -> list[ContainerEvent]:
    """Return events until each of ``last`` has come."""
    events: list[ContainerEvent] = []
    missing = set(last)
    end_s = time.monotonic() + DEADLINE_S
    while missing:
        assert manager.wait(end_s - time.monotonic()), f"missing {missing} after {events}"
        for event in manager.poll():
            events.append(event)
            missing.discard((type(event), event.container_id))
    return events


def running(manager: ResourceManager, container_id: str) -> Running:
    """Request a container and wait until it runs."""
    manager.request(wanted(container_id))
    last = collect(manager, (Running, container_id))[-1]
    assert isinstance(last, Running)
    return last


def exits(events: list[ContainerEvent]) -> list[str]:
    return [event.container_id for event in events if isinstance(event, Exited)]


def test_a_request_is_allocated_then_runs(start: Start) -> None:
    manager = start().manager
    manager.request(wanted("c-1", "server"))
    allocated, run = collect(manager, (Running, "c-1"))
    assert allocated == Allocated("c-1")
    assert isinstance(run, Running) and run.pid > 0 and run.host


def test_a_container_of_a_tier_has_a_worker_and_a_server(start: Start) -> None:
    manager = start().manager
    manager.request(ContainerRequest("c-1", "server+worker", tier="transient"))
    assert collect(manager, (Running, "c-1"))[0] == Allocated("c-1")
    manager.release("c-1")
    assert exits(collect(manager, (Exited, "c-1"))) == ["c-1"]


def test_nothing_is_said_where_nothing_happened(start: Start) -> None:
    manager = start().manager
    assert manager.poll() == []
    assert not manager.wait(0.0)
    running(manager, "c-1")
    assert not manager.wait(0.0)


def test_a_manager_that_listens_is_not_silent(start: Start) -> None:
    manager = start().manager
    manager.beat(1)
    running(manager, "c-1")
    assert manager.silent_s() == 0.0
    assert manager.poll() == []


def test_a_wait_ends_as_soon_as_something_happens(start: Start) -> None:
    backend = start()
    run = running(backend.manager, "c-1")
    assert backend.manager.fileno() >= 0
    backend.crash(run)
    assert backend.manager.wait(DEADLINE_S)


def test_a_released_container_exits_once(start: Start) -> None:
    manager = start().manager
    running(manager, "c-1")
    manager.release("c-1")
    manager.release("c-1")
    events = collect(manager, (Exited, "c-1"))
    manager.release("c-1")
    running(manager, "c-2")
    assert exits(events) == ["c-1"]
    assert not manager.wait(0.0)


def test_a_container_may_be_released_before_it_runs(start: Start) -> None:
    manager = start().manager
    manager.request(wanted("c-1"))
    manager.release("c-1")
    assert exits(collect(manager, (Exited, "c-1"))) == ["c-1"]


def test_only_the_container_named_is_released(start: Start) -> None:
    manager = start().manager
    for n in range(3):
        running(manager, f"c-{n}")
    manager.release("c-1")
    assert exits(collect(manager, (Exited, "c-1"))) == ["c-1"]
    manager.release("c-0")
    manager.release("c-2")
    assert sorted(exits(collect(manager, (Exited, "c-0"), (Exited, "c-2")))) == ["c-0", "c-2"]


def test_a_container_that_ends_by_itself_exits_once_with_a_reason(start: Start) -> None:
    backend = start()
    backend.crash(running(backend.manager, "c-1"))
    (event,) = collect(backend.manager, (Exited, "c-1"))
    assert isinstance(event, Exited)
    assert event.code is None and "SIGKILL" in event.reason
    backend.manager.release("c-1")
    assert not backend.manager.wait(0.0)


def test_releasing_or_withdrawing_an_unknown_container_is_harmless(start: Start) -> None:
    manager = start().manager
    manager.release("c-9")
    assert not manager.withdraw("c-9")
    assert manager.poll() == []


def test_a_container_id_is_requested_once(start: Start) -> None:
    manager = start().manager
    running(manager, "c-1")
    with pytest.raises(ResourceError, match="c-1"):
        manager.request(wanted("c-1"))
    manager.release("c-1")
    collect(manager, (Exited, "c-1"))
    with pytest.raises(ResourceError, match="c-1"):
        manager.request(wanted("c-1"))


def test_a_request_beyond_the_limit_waits_for_a_release(start: Start) -> None:
    manager = start(max_containers=2).manager
    running(manager, "c-1")
    running(manager, "c-2")
    manager.request(wanted("c-3"))
    manager.request(wanted("c-4"))
    assert not manager.wait(0.0)
    manager.release("c-1")
    events = collect(manager, (Running, "c-3"))
    assert exits(events) == ["c-1"]
    order = [e for e in events if isinstance(e, Exited | Allocated)]
    assert isinstance(order[0], Exited) and order[1:] == [Allocated("c-3")]
    manager.release("c-2")
    collect(manager, (Running, "c-4"))


def test_a_container_that_ends_by_itself_makes_room_too(start: Start) -> None:
    backend = start(max_containers=1)
    run = running(backend.manager, "c-1")
    backend.manager.request(wanted("c-2"))
    backend.crash(run)
    collect(backend.manager, (Running, "c-2"))


def test_a_waiting_request_can_be_withdrawn(start: Start) -> None:
    manager = start(max_containers=1).manager
    running(manager, "c-1")
    manager.request(wanted("c-2"))
    manager.request(wanted("c-3"))
    assert manager.withdraw("c-2")
    assert not manager.withdraw("c-2")
    assert manager.wait(0.0)
    assert manager.poll() == [Exited("c-2", None, WITHDRAWN)]
    manager.release("c-1")
    assert Allocated("c-2") not in collect(manager, (Running, "c-3"))


def test_a_waiting_request_can_be_released(start: Start) -> None:
    manager = start(max_containers=1).manager
    running(manager, "c-1")
    manager.request(wanted("c-2"))
    manager.release("c-2")
    assert manager.poll() == [Exited("c-2", None, WITHDRAWN)]


def test_a_granted_container_is_not_withdrawn(start: Start) -> None:
    manager = start().manager
    running(manager, "c-1")
    assert not manager.withdraw("c-1")
    assert not manager.wait(0.0)


def test_a_launch_that_fails_exits_with_a_reason_and_makes_room(start: Start) -> None:
    backend = start(max_containers=1)
    backend.manager.request(backend.broken_request())
    events = collect(backend.manager, (Exited, "c-broken"))
    assert events[0] == Allocated("c-broken")
    (exited,) = [e for e in events if isinstance(e, Exited)]
    assert exited.code is None and exited.reason
    running(backend.manager, "c-2")


def test_the_end_of_the_job_ends_every_container(start: Start) -> None:
    manager = start().manager
    running(manager, "c-1")
    running(manager, "c-2")
    manager.end_job(0, "finished", "all is done")
    assert sorted(exits(collect(manager, (Exited, "c-1"), (Exited, "c-2")))) == ["c-1", "c-2"]


def test_a_closed_manager_refuses_requests(start: Start) -> None:
    manager = start().manager
    manager.close()
    manager.close()
    with pytest.raises(ResourceError, match="closed"):
        manager.request(wanted("c-1"))
    with pytest.raises(ResourceError, match="closed"):
        manager.poll()


def test_an_eviction_is_announced_before_it_happens(start: Start) -> None:
    backend = start()
    if not backend.can_evict:
        pytest.skip("this backend never takes a container away by itself")
    running(backend.manager, "c-1")
    backend.evict("c-1", deadline_s=120.0)
    assert backend.manager.wait(DEADLINE_S)
    (warning,) = backend.manager.poll()
    assert isinstance(warning, EvictionWarning)
    assert warning.container_id == "c-1"
    # A moment on a clock, less now: not to the last bit.
    assert warning.deadline_s == pytest.approx(120.0)


def test_many_containers_are_requested_and_released_in_any_order(start: Start) -> None:
    manager = start(max_containers=4).manager
    names = [f"c-{n:02d}" for n in range(16)]
    for name in names:
        manager.request(wanted(name))
    for name in names[::3]:
        manager.release(name)
    events: list[ContainerEvent] = []
    gone, held, full = set(names[::3]), list[str](), False
    while len(exits(events)) < len(names):
        assert manager.wait(DEADLINE_S), events
        for event in manager.poll():
            events.append(event)
            if isinstance(event, Running) and event.container_id not in gone:
                held.append(event.container_id)
        # As many as may be there are there once, however slowly they are granted.
        full = full or len(held) >= 4
        while full and held:
            manager.release(held.pop())
    assert sorted(exits(events)) == names
    there = most = 0
    for event in events:
        if isinstance(event, Allocated):
            there += 1
        elif isinstance(event, Exited) and event.reason != WITHDRAWN:
            there -= 1
        most = max(most, there)
    assert most == 4, events


@pytest.mark.parametrize("field", ["memory_mb", "vcores"])
def test_a_request_needs_memory_and_cores(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is 0"):
        ContainerRequest("c-1", "worker", **{field: 0})


def test_a_fake_can_hold_requests_until_told() -> None:
    manager = FakeResourceManager(hold=True)
    manager.request(wanted("c-1"))
    manager.request(wanted("c-2"))
    assert manager.poll() == []
    assert manager.grant() == ["c-1"]
    assert [type(e) for e in manager.poll()] == [Allocated, Running]
    manager.close()


def test_a_local_master_hears_that_its_supervisor_is_gone(tmp_path: Path) -> None:
    with SupervisedJob(tmp_path) as job:
        manager = job.resources()
        running(manager, "c-1")
        os.kill(job.handle.pid, signal.SIGKILL)
        assert manager.wait(DEADLINE_S)
        with pytest.raises(ResourceError, match="supervisor exited"):
            manager.poll()
        manager.close()


def test_a_local_container_that_exits_says_its_code(tmp_path: Path) -> None:
    with SupervisedJob(tmp_path) as job:
        manager = job.resources()
        manager.request(ContainerRequest("c-1", "worker", env={"BEHAVIOUR": "exit 7"}))
        assert collect(manager, (Exited, "c-1"))[-1] == Exited("c-1", 7, "exited with code 7")
        manager.close()


def test_the_manager_of_the_next_job_master_adopts_what_runs(start: Start) -> None:
    backend = start(2)
    assert backend.manager.adopt({}) == {}
    for container_id in ("c-1", "c-2", "c-gone"):
        backend.manager.request(wanted(container_id))
    events = collect(backend.manager, (Running, "c-1"), (Running, "c-2"))
    known = {event.container_id: event.pid for event in events if isinstance(event, Running)}
    manager = backend.restart()
    adopted = manager.adopt(known)
    assert set(adopted) == {"c-1", "c-2"} and all(adopted.values())
    assert manager.poll() == [], "nothing has happened to them since"
    with pytest.raises(ResourceError, match="c-1"):
        manager.request(wanted("c-1"))
    # They count: one more waits until one of them has ended.
    manager.request(wanted("c-3"))
    assert manager.poll() == []
    manager.release("c-1")
    events = collect(manager, (Running, "c-3"))
    assert exits(events) == ["c-1"]
    manager.release("c-2")
    assert exits(collect(manager, (Exited, "c-2"))) == ["c-2"]


def test_a_beat_is_nothing_that_anybody_hears_of(start: Start) -> None:
    manager = start().manager
    manager.beat(1)
    manager.beat(2, patience_s=10.0)
    running(manager, "c-1")
    assert not manager.wait(0.0)
