"""The HTTP server for the plugin in a ResourceManager: its answers, and which requests get none."""

from __future__ import annotations

import dataclasses
import http.client
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, StorageError
from hscheduler.cli import build_parser
from hscheduler.cli.commands.yarn_plugin import yarn_plugin
from hscheduler.yarn.endpoint import PluginServer, secret_of
from hscheduler.yarn.plan import make_plan
from hscheduler.yarn.wire import (
    DIGEST,
    MOST_BYTES,
    PROOF,
    Plan,
    Snapshot,
    digest_of,
    proof_of_answer,
    proof_of_request,
)
from tests.hscheduler.yarn_world import container, facts, parse_plan, running, snapshot, snapshot_text, waiting

SECRET = b"not told"
TIMEOUT_S = 20.0


def proof_of(body: bytes) -> str:
    return proof_of_request(SECRET, digest_of(body))


def post(server: PluginServer, body: bytes, path: str = "/plan", **headers: str) -> tuple[int, str | None, bytes]:
    """Return (status, proof, text) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    told = {PROOF: proof_of(body), DIGEST: digest_of(body)} | {key.replace("_", "-"): headers[key] for key in headers}
    try:
        connection.request("POST", path, body, told)
        answer = connection.getresponse()
        return answer.status, answer.getheader(PROOF), answer.read()
    finally:
        connection.close()


def planner(*known: Any) -> Any:
    """Return a function that plans with these facts of jobs."""
    told = {job.application_id: its for job, its in known}
    return lambda found: make_plan(found, told)


def test_plan_comes_with_a_proof_and_its_sentences_are_logged_once() -> None:
    job = running(1, {"n1:1": 4})
    found, told = snapshot(job, waiting(2)), []
    with PluginServer(planner((job, facts(job))), SECRET, tell=told.append) as server:
        for number in (1, 2):
            body = snapshot_text(dataclasses.replace(found, taken_ms=number))

            def answered(body: bytes = body, number: int = number) -> bool:
                status, proof, text = post(server, body)
                if status == 503:
                    return False
                assert proof == proof_of_answer(SECRET, proof_of(body), text)
                assert parse_plan(text).takes == (container(1, 5),)
                return parse_plan(text).taken_ms == number

            _until(answered)
    assert len(told) == 1
    assert "gives 1 worker" in told[0]


def test_strangers_and_invalid_snapshots_get_no_plan() -> None:
    body = snapshot_text(snapshot())
    with PluginServer(planner(), SECRET) as server:
        assert post(server, body, **{PROOF: proof_of_request(b"guessed", digest_of(body))})[:2] == (403, None)
        assert post(server, body, **{PROOF: "\xe9"})[:2] == (403, None)
        assert post(server, body, **{DIGEST: digest_of(b"other")})[:2] == (403, None)
        assert post(server, body, **{PROOF: proof_of(b""), DIGEST: digest_of(b"")})[:2] == (400, None)
        assert post(server, b"end\n")[:2] == (400, None)
        assert post(server, body, path="/other")[:2] == (404, None)
        _until(lambda: post(server, body)[0] == 200)


def test_bodies_are_read_only_with_a_proof_and_up_to_the_limit() -> None:
    """Only the headers are sent: the answer comes without the announced body."""
    digest = digest_of(b"never sent")
    with PluginServer(planner(), SECRET) as server:
        for proof, status in ((proof_of_request(b"guessed", digest), 403), (proof_of_request(SECRET, digest), 400)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
            connection.putrequest("POST", "/plan")
            for name, value in ((PROOF, proof), (DIGEST, digest), ("Content-Length", str(MOST_BYTES + 1))):
                connection.putheader(name, value)
            connection.endheaders()
            assert connection.getresponse().status == status
            connection.close()


def test_a_slow_plan_blocks_no_request_and_the_latest_plan_is_returned() -> None:
    go_on, began = threading.Event(), threading.Event()

    def slow(found: Snapshot) -> Plan:
        if found.taken_ms > 1:
            began.set()
            assert go_on.wait(TIMEOUT_S)
        if found.taken_ms == 3:
            raise RuntimeError("it fails")
        return Plan(found.instance, found.taken_ms)

    def at(taken_ms: int, instance: str = "life") -> tuple[int, bytes]:
        body = snapshot_text(dataclasses.replace(snapshot(), taken_ms=taken_ms, instance=instance))
        status, _, text = post(server, body)
        return status, text

    with PluginServer(slow, SECRET) as server:
        try:
            _until(lambda: at(1)[0] == 200)
            started = time.monotonic()
            status, text = at(2)
            assert time.monotonic() - started < TIMEOUT_S / 4
            assert (status, parse_plan(text).taken_ms) == (200, 1)
            assert began.wait(TIMEOUT_S)
            # Another ResourceManager does not get the plan for the previous one.
            assert at(9, "next life")[0] == 503
        finally:
            go_on.set()
        # After a failure the thread continues.
        at(3)
        _until(lambda: at(4)[1].startswith(b"hscheduler-plan\t3\nat\tlife\nat\t4\n"))


def _until(holds: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline


def test_a_port_in_use_is_reported_by_the_plugins_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigError, match="cannot listen on"):
            PluginServer(planner(), SECRET, port=taken.getsockname()[1])


# ---- the secret, and the command


def test_the_secret_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret = secret_of(path)
    assert len(secret) == 32
    assert secret_of(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(StorageError, match="chmod 600"):
        secret_of(path)
    with pytest.raises(StorageError, match=r"folder, .* be a file"):
        secret_of(tmp_path)
    path.chmod(0o600)
    path.write_text("\n")
    with pytest.raises(StorageError, match="is empty"):
        secret_of(path)
    with pytest.raises(StorageError, match="cannot be created"):
        secret_of(tmp_path / "no" / "secret")


@pytest.mark.parametrize("host", ["0.0.0.0", "nowhere.invalid"])
def test_the_plugins_command_listens_on_the_loopback_interface_only(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    # Later tests of this process wait for interrupts.
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    words = ["yarn-plugin", f"--listen={host}:0", f"--secret-file={tmp_path / 'secret'}"]
    with pytest.raises(ConfigError, match=rf"{host}:0"):
        yarn_plugin(build_parser().parse_args(words))
