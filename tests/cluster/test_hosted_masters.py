"""Masters of several jobs in one process: they end one by one, as told, and with the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from eps.cluster.broker.service import Broker
from eps.cluster.yarn.application import MasterOrders
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate
from eps.cluster.yarn.resources import Timing, YarnResourceManager
from eps.job.yarn import masters
from eps.job.yarn.masters import HostedMaster
from eps.job.yarn.shared_application import SharedApplication, role_key
from eps.spec.file import RunRequest
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath
from eps.system.waits import wait_for
from tests.fakes.webhdfs import FakeHdfs
from tests.fakes.yarn import FakeYarn

pytest.importorskip("requests")
DEADLINE_S = 60.0
FAST = Timing(idle_s=0.2, busy_s=0.05, owner_s=1e6)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedApplication]:
    """Give an application whose containers never begin; two masters share a process."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    monkeypatch.setattr(masters, "MOST_IN_ONE", 2)
    roles: dict[str, RoleTemplate] = {}
    resources = YarnResourceManager(*FakeYarn().clients(), LaunchTemplate(roles), timing=FAST)
    broker = Broker(resources, role_of=role_key)
    with FakeHdfs() as hdfs:
        shared = RemotePath("webhdfs", hdfs.authority, "/sweeps/one")
        orders = MasterOrders(str(shared), "python", {}, {})
        made = SharedApplication(orders, shared.parent, "attempt-1", "127.0.0.1", broker, roles)
        yield made
        made.close()
        broker.close()
        resources.close()


def start(place: SharedApplication, name: str) -> tuple[JobDir, HostedMaster]:
    settings = {"name": name, "data": "sklearn:digits", "model": "softmax", "on": "yarn"}
    job, master = place.start(RunRequest.from_values(settings))
    wait_for(job.master_json.exists, DEADLINE_S, f"the master of {name}")
    return job, master


def test_masters_share_processes_and_end_one_by_one(place: SharedApplication) -> None:
    (first, ends), (second, stays), (third, _) = (start(place, name) for name in ("one", "two", "three"))
    assert len(place.host_pids()) == 2 and first.is_running() and third.is_running()
    ends.close(DEADLINE_S)
    end = first.record().end
    assert end is not None and (end.state, ends.poll()) == ("killed", end.exit_code)
    assert not first.is_running() and second.is_running() and stays.poll() is None
    assert "KillRequested" not in second.log("master").read_text(), "each job has a log of its own"
    # Its place is free for another.
    start(place, "four")
    assert len(place.host_pids()) == 2


def test_one_that_is_killed_at_once_is_over_without_its_master(place: SharedApplication) -> None:
    job, master = start(place, "one")
    master.kill()
    assert master.wait(DEADLINE_S) == 1
    assert not job.is_running() and job.record().end is not None
    assert start(place, "two")[0].is_running(), "the process goes on"


def test_with_their_process_all_its_jobs_end_and_the_next_has_another(place: SharedApplication) -> None:
    (first, one), (second, two) = start(place, "one"), start(place, "two")
    (pid,) = place.host_pids()
    os.kill(pid, signal.SIGKILL)
    assert one.wait(DEADLINE_S) == two.wait(DEADLINE_S) == 1
    ends = [job.settle().end for job in (first, second)]
    assert all(end is not None and end.is_lost for end in ends), ends
    assert start(place, "three")[0].is_running() and place.host_pids() != [pid]
