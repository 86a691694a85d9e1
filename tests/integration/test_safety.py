"""Whole jobs, as another user sees them: their sockets cannot be reached, and their secrets cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

import eps
from eps.core.types import Address
from eps.errors import EpsError, PeerUnavailableError
from eps.net.calls import call as rpc
from eps.net.security.credentials import NO_SECURITY, Security
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import JobMasterStub, MemberSessionStub
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir
from tests.integration.conftest import asked_phases, processes_with
from tests.integration.test_operations import ENDLESS, wait_for_clock

DEADLINE_S = 20.0
SHORT = {"data": "sklearn:digits", "model": "softmax", "iterations": 12, "splits": 6, "partitions": 6, "test": "0.2"}


def master_of(directory: JobDir) -> Address:
    record = read_json(directory.master_json)
    assert record is not None
    return Address(record["host"], record["port"])


def refusals(address: Address, security: Security) -> set[type[EpsError]]:
    """Try a call of each service and kind; return the refusals."""
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
    """Assert that no process and no file but the token's own contains the token."""
    seen = text_of_processes(home)
    assert str(home).encode() in seen and secret.encode() not in seen
    files = [path for path in job.directory.path.rglob("*") if path.is_file() and path != job.directory.token]
    assert job.directory.log("master") in files and len(list(job.directory.logs.iterdir())) >= 4
    for path in files:
        data = path.read_bytes()
        assert secret.encode() not in data and bytes.fromhex(secret) not in data, path


def listening(pids: Iterable[int]) -> list[str]:
    """Return the sockets that a process of another user could reach: TCP ports, abstract Unix sockets."""
    inodes = set()
    for pid in pids:
        for fd in (Path("/proc") / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                inodes.add(os.readlink(fd))
    found = []
    for table in ("tcp", "tcp6"):
        for words in (line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:]):
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.append(f"{table} {words[1]}")
    for words in (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]):
        if len(words) > 7 and words[7].startswith("@") and f"socket:[{words[6]}]" in inodes:
            found.append(words[7])
    return found


def test_a_running_job_listens_only_in_its_folder_and_reveals_no_token(home: Path) -> None:
    with eps.Job.start(name="guarded", workers=2, servers=2, **ENDLESS) as job:
        wait_for_clock(job, 1)
        status, address = job.status(), master_of(job.directory)
        pids = [member["pid"] for member in status["members"]]
        assert len(pids) == 4 and all(pids) and listening([*pids, *processes_with(str(home))]) == []
        assert address.is_unix and all(Address(m["host"], m["port"]).is_unix for m in status["members"])
        folder = job.directory.sockets.stat()
        assert (folder.st_mode & 0o777, folder.st_uid) == (0o700, os.geteuid())
        check_secret(job, home, job.directory.read_token())
        wait_for_clock(job, job.status()["clock"] + 5)
    assert not job.directory.sockets.exists()


def test_job_with_tls_trains_the_same_bits(home: Path) -> None:
    plain = eps.run(name="plain", workers=2, servers=2, **SHORT)
    changes: dict[str, Any] = {"at": ["3:add-workers=1", "6:remove-servers=1"]}
    with eps.Job.start(name="encrypted", workers=2, servers=2, tls=True, **SHORT, **changes) as job:
        report = job.wait(120.0)
    assert report["state"] == "finished", report["reason"]
    assert report["model_sha256"] == plain["model_sha256"]
    assert asked_phases(report) == ["released"] * 2


def test_the_master_of_a_job_with_tls_refuses_the_handshake_of_strangers(home: Path) -> None:
    with eps.Job.start(name="encrypted", workers=1, servers=1, tls=True, **ENDLESS) as job:
        wait_for_clock(job, 1)
        assert refusals(master_of(job.directory), NO_SECURITY) == {PeerUnavailableError}
        assert job.add_workers(1)["phase"] == "released"
