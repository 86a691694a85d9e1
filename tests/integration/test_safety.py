"""Whole jobs, seen by a stranger: nothing answers without the token, and the token is nowhere to be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

import eps
from eps.core.types import Address
from eps.errors import AuthenticationError, EpsError, PeerUnavailableError
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import JobMasterStub, MemberSessionStub
from eps.rpc import call as rpc
from eps.rpc.security import NO_SECURITY, Security
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir, create_job_dir
from tests.integration.conftest import asked_phases, processes_with
from tests.integration.test_operations import ENDLESS, wait_for_clock

DEADLINE_S = 20.0
SHORT = {"data": "sklearn:digits", "model": "softmax", "iterations": 12, "splits": 6, "partitions": 6, "test": "0.2"}


def master_of(directory: JobDir) -> Address:
    record = read_json(directory.master_json)
    assert record is not None
    return Address(record["host"], record["port"])


def refusals(address: Address, security: Security) -> set[type[EpsError]]:
    """Try a call of each service and kind; return how they were refused."""
    found: set[type[EpsError]] = set()
    with rpc.channel(address, security) as channel:
        master = JobMasterStub(channel)  # type: ignore[no-untyped-call]
        members = MemberSessionStub(channel)  # type: ignore[no-untyped-call]
        hello = pb.Reports(reports=[pb.Report(hello=pb.Hello(container_id="worker-9", pid=1))])
        for attempt in (
            lambda: master.Status(pb.StatusRequest(), timeout=DEADLINE_S),
            lambda: master.Kill(pb.KillRequest(), timeout=DEADLINE_S),
            lambda: next(master.Watch(pb.WatchRequest(), timeout=DEADLINE_S)),
            lambda: next(members.Attach(iter([hello]), timeout=DEADLINE_S)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                attempt()
            found.add(type(rpc.error_of(caught.value, "ask")))
    return found


def text_of_processes(home: Path) -> bytes:
    """Return command lines and environments of a home's processes."""
    blobs = []
    for pid in processes_with(str(home)):
        blobs += [(Path("/proc") / str(pid) / name).read_bytes() for name in ("cmdline", "environ")]
    return b"\0".join(blobs)


def check_secret(job: eps.Job, home: Path, secret: str) -> None:
    """Assert that no process and no file but the token's own shows the token."""
    seen = text_of_processes(home)
    assert str(home).encode() in seen and secret.encode() not in seen
    files = [path for path in job.directory.path.rglob("*") if path.is_file() and path != job.directory.token]
    assert job.directory.log("master") in files and len(list(job.directory.logs.iterdir())) >= 4
    for path in files:
        data = path.read_bytes()
        assert secret.encode() not in data and bytes.fromhex(secret) not in data, path


def test_running_job_refuses_strangers_and_shows_its_token_to_nobody(home: Path, tmp_path: Path) -> None:
    other, lock = create_job_dir("other", tmp_path / "elsewhere")
    lock.close()
    with eps.Job.start(name="guarded", workers=1, servers=1, **ENDLESS) as job:
        wait_for_clock(job, 1)
        address, secret = master_of(job.directory), job.directory.read_token()
        for security in (NO_SECURITY, Security.of_job(other.path)):
            assert refusals(address, security) == {AuthenticationError}
        check_secret(job, home, secret)
        wait_for_clock(job, job.status()["clock"] + 5)
        assert "refused a call" in job.directory.log("master").read_text()


def test_job_with_tls_trains_the_same_bits(home: Path) -> None:
    plain = eps.run(name="plain", workers=2, servers=2, **SHORT)
    changes: dict[str, Any] = {"at": ["3:add-workers=1", "6:remove-servers=1"]}
    with eps.Job.start(name="encrypted", workers=2, servers=2, tls=True, **SHORT, **changes) as job:
        report = job.wait(120.0)
    assert report["state"] == "finished", report["reason"]
    assert report["model_sha256"] == plain["model_sha256"]
    assert asked_phases(report) == ["released"] * 2


def test_master_of_a_job_with_tls_does_not_even_shake_hands_with_strangers(home: Path) -> None:
    with eps.Job.start(name="encrypted", workers=1, servers=1, tls=True, **ENDLESS) as job:
        wait_for_clock(job, 1)
        address, token = master_of(job.directory), Security.of_job(job.directory.path).token
        assert refusals(address, NO_SECURITY) == refusals(address, Security(token)) == {PeerUnavailableError}
        assert job.add_workers(1)["phase"] == "released"
