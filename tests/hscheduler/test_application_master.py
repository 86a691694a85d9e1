"""The master of a sweep's application over a YARN without processes: consecutive attempts."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.yarn.application import CHECKPOINTS, ENDED_FILE, MasterOrders
from eps.cluster.yarn.attempt import PREEMPTION_WAIT, Yarn
from eps.cluster.yarn.types import FinalStatus
from eps.errors import ConfigError, EpsError, StorageError
from eps.net.security.certificates import make_certificates
from eps.spec.job_spec import JobSpec
from eps.storage.local import LocalStorage
from eps.storage.shared_log import DamagedLogError
from eps.system.waits import wait_for
from hscheduler.application import am
from hscheduler.application.am import STATE
from hscheduler.application.monitor import place_of
from hscheduler.application.staged_files import SERVICE_FILE, SERVICE_FOLDER, ServiceOrders
from hscheduler.application.submit import settings_of
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Resources
from hscheduler.live import scheduler as live
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.spec import Spec
from hscheduler.yarn.nodes import Machine
from tests.fakes.storage import SharedFolder
from tests.fakes.yarn import FakeYarn
from tests.hscheduler.world import FakeLive, World

requests = pytest.importorskip("requests")
DEADLINE_S = 30.0
TABLES = {"cluster": {"container_memory": "512MiB"}, "job": {"data": "sklearn:digits", "workers": 1, "servers": 1}}
ORDERS = ServiceOrders(settings_of(Spec.of(TABLES), "static"), Spec.of(TABLES).tables())
END = (0, "finished", "1 of 1 trials finished")


class KilledError(BaseException):
    """Stands for the end of the process."""


class HadoopOfNobody:
    """A session with a Hadoop without a configuration of its own."""

    def get(self, name: str) -> str:
        return ""

    def is_in(self, acl: str, user: str) -> bool:
        return False


class DeadlyStorage(SharedFolder):
    """A storage on which a removal kills the process."""

    deadly = True

    def remove(self, path: str) -> None:
        if self.deadly:
            raise KilledError
        super().remove(path)


class Master:
    """One sweep's application, attempt after attempt."""

    def __init__(self, folder: Path) -> None:
        self.yarn, self.shared = FakeYarn(), DeadlyStorage(folder / "shared")
        self._folder = folder
        sweep = folder / SERVICE_FOLDER
        make_certificates(sweep)

    def run(self) -> int:
        yarn = Yarn(*self.yarn.clients())
        orders = MasterOrders("webhdfs://namenode:1/eps/sweeps/one", "python", {}, {})
        around = am.Environment("127.0.0.1", self._folder, self.shared, list, None, "attempt-000001")
        return am.serve(orders, ORDERS, yarn, around)


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every sweep end at once with its results; return the attempts that ran one."""
    found: list[str] = []

    class EndedAtOnce:
        def __init__(self, orders: Any, resources: Any, broker: Any, place: Any, around: am.Environment) -> None:
            self._shared, self._attempt = around.shared, around.attempt
            self.superseded = threading.Event()

        def run(self, directory: Any) -> tuple[int, str, str]:
            found.append(self._attempt)
            for name in (CHECKPOINTS, STATE):
                with self._shared.write(f"{name}/{self._attempt}/file") as file:
                    file.write(b"state")
            return END

    monkeypatch.setattr(am, "Application", EndedAtOnce)
    return found


@pytest.fixture
def master(sweeps: list[str], tmp_path: Path) -> Iterator[Master]:
    yield Master(tmp_path)


def test_an_ended_sweep_is_not_repeated_if_its_master_crashes_before_it_reports_to_yarn(
    master: Master, sweeps: list[str]
) -> None:
    with pytest.raises(KilledError):
        master.run()
    assert master.yarn.ended is None and master.shared.names(STATE) == ["attempt-000001"]
    assert master.run() == 0
    assert sweeps == ["attempt-000001"]
    assert master.yarn.ended == (FinalStatus.SUCCEEDED, "1 of 1 trials finished")


def test_the_last_attempt_leaves_nothing_to_resume_from(master: Master) -> None:
    master.shared.deadly = False
    assert master.run() == 0
    assert master.shared.names("") == [ENDED_FILE]
    assert master.yarn.ended == (FinalStatus.SUCCEEDED, "1 of 1 trials finished")


def test_a_failed_sweep_is_reported_to_yarn_with_the_recorded_reason(master: Master, sweeps: list[str]) -> None:
    with master.shared.write(ENDED_FILE) as file:
        file.write(json.dumps({"state": "failed", "exit_code": 1, "reason": "no trial finished"}).encode())
    assert master.run() == 1
    assert sweeps == [] and master.yarn.ended == (FinalStatus.FAILED, "no trial finished")


@pytest.mark.parametrize(
    ("error", "is_final"),
    [(StorageError("away"), False), (DamagedLogError("damaged"), True), (ConfigError("other settings"), True)],
)
def test_an_unreachable_file_system_ends_the_attempt_and_not_the_sweep(
    master: Master, monkeypatch: pytest.MonkeyPatch, error: EpsError, is_final: bool
) -> None:
    def run(self: Any, directory: Any) -> tuple[int, str, str]:
        raise error

    monkeypatch.setattr(am.Application, "run", run)
    if is_final:
        assert master.run() == 1
        assert master.yarn.ended == (FinalStatus.FAILED, f"the sweep failed: {error}")
    else:
        with pytest.raises(StorageError, match="away"):
            master.run()
        assert master.yarn.ended is None
    assert (ENDED_FILE in master.shared.names("")) == is_final


def test_a_service_accepts_clients_and_tracks_the_nodes_until_yarn_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(am, "exit_superseded", lambda reason: None)
    monkeypatch.setattr("hscheduler.live.yarn_nodes.LOOK_EVERY_S", 0.05)
    monkeypatch.setenv("EPS_HOME", str(tmp_path / am.HOME))
    before_end: SimpleQueue[Any] = SimpleQueue()

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        before_end.put(launch.before_end)
        return FakeLive(World(0), job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    master, size = Master(tmp_path), Resources(4, 16384)
    machines = [Machine(f"h{number}:1", "RUNNING", size) for number in range(4)]
    around = am.Environment("127.0.0.1", tmp_path, master.shared, lambda: machines, None, "attempt-000001")
    codes: list[int] = []
    orders = MasterOrders("webhdfs://namenode:1/eps/sweeps/one", "python", {}, {})
    settings = ServiceOrders(ORDERS.settings)
    runs = threading.Thread(
        target=lambda: codes.append(am.serve(orders, settings, Yarn(*master.yarn.clients()), around)), daemon=True
    )
    runs.start()
    wait_for(lambda: SERVICE_FILE in master.shared.names(""), DEADLINE_S, "the service")
    place = place_of(master.shared)
    assert place is not None
    with SchedulerClient(ServiceDir(tmp_path / am.HOME / "hscheduler"), str(place)) as client:
        assert client.jobs()[1]["vcores"] == 16
        machines.append(Machine("h4:1", "RUNNING", size))
        wait_for(lambda: client.jobs()[1]["vcores"] == 20, DEADLINE_S, "the node that came")
        job = client.submit_job("one", JobSpec(data="sklearn:digits", splits=99, workers=99, servers=1))
        assert job.phase is Phase.FAILED and "more than the whole cluster holds" in job.why
        client.submit_job("two", JobSpec(data="sklearn:digits", workers=1, servers=1))
        assert before_end.get(timeout=DEADLINE_S).__func__ is am.Application.before_end
    assert master.yarn.place is not None
    page = master.yarn.place[-1]
    assert requests.get(f"{page}page.json", timeout=DEADLINE_S).status_code == 200
    assert requests.get(f"{page[:-2]}/page.json", timeout=DEADLINE_S).status_code == 404, "without the whole secret"
    master.yarn.end_attempt("killed by its user")
    runs.join(DEADLINE_S)
    assert codes == [1] and ENDED_FILE not in master.shared.names(""), "the next attempt would resume"


def test_the_wait_before_preemption_is_read_from_the_resourcemanagers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = f"<property><name>{PREEMPTION_WAIT}</name><value>45000</value></property>"
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    (tmp_path / "capacity-scheduler.xml").write_text(f"<configuration>{entry}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    hadoop: dict[str, Any] = {
        "hadoop.session": SimpleNamespace(HadoopSession=HadoopOfNobody),
        "cluster.yarn.hadoop.files": SimpleNamespace(HadoopFiles=lambda session: None),
        "cluster.yarn.log_storage": SimpleNamespace(HadoopLogStorage=lambda files, shared: shared),
        "cluster.yarn.hadoop.client": SimpleNamespace(HadoopClient=lambda session: None),
        "cluster.yarn.hadoop.master": SimpleNamespace(open_master=lambda session: (None, None)),
        "hadoop.tokens": SimpleNamespace(tokens_for_containers=lambda session: b""),
    }
    for name, module in hadoop.items():
        monkeypatch.setitem(sys.modules, f"eps.{name}", module)
    monkeypatch.setattr(am, "open_storage", lambda place, **more: LocalStorage(place))
    said: list[Any] = []
    monkeypatch.setattr(am, "serve", lambda *given: said.append(given[2].preemption_wait_ms) or 0)
    monkeypatch.setenv(am.CONTAINER, "container_1700_0001_01_000001")
    (tmp_path / SERVICE_FOLDER).mkdir()
    (tmp_path / SERVICE_FOLDER / "orders.json").write_bytes(ORDERS.to_bytes())
    assert am.run(MasterOrders(str(tmp_path), "python", {}, {}), "h", tmp_path) == 0
    assert said == ["45000"]
