"""The last log line of a member, which says why it ended."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from eps.errors import PeerUnavailableError
from eps.net.security.credentials import Security
from eps.server import main as module
from eps.server.main import Server
from eps.worker.main import Worker

TIMEOUT_S = 60.0
WHY = "the job master is unreachable"


def test_the_last_line_of_a_worker_says_why_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    """YARN tells of a container that failed what it wrote last: that was how much it had sent."""
    ready = threading.Event()
    ready.set()
    one: Any = SimpleNamespace(name="worker-1", _ended=threading.Event(), _ready=ready, _shell=None)
    with caplog.at_level(logging.INFO):
        Worker._end(one, 1, WHY)
    assert caplog.messages[-1] == f"W[worker-1] M ends: {WHY}"


class Shell:
    """What a server does, of which its writer speaks last: it gives up what it had begun."""

    def close(self) -> None:
        """Do nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def end_writing(self) -> None:
        logging.getLogger("eps.server").warning("S[server-1] nothing more is written: the server ends")


class Session:
    """A session that breaks when the server starts to serve."""

    def __init__(self, *_: object, **__: object) -> None:
        self._breaking = threading.Thread()

    def open(self, on_order: Any, on_end: Any) -> Any:
        def end() -> None:
            assert on_end.__self__._ready.wait(TIMEOUT_S)
            on_end(PeerUnavailableError("nobody answers"))

        self._breaking = threading.Thread(target=end, daemon=True)
        self._breaking.start()
        return lambda: SimpleNamespace(name="server-1", job_json="")

    def close(self) -> None:
        """Do nothing."""

    def be_patient(self, _: object) -> None:
        pass

    def report(self, *_: object, **__: object) -> None:
        pass


def test_the_last_line_of_a_server_says_why_it_ended_whatever_its_checkpoint_comes_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If HDFS is unreachable, a checkpoint is still in progress, which the end aborts."""
    spec = SimpleNamespace(
        recovery=SimpleNamespace(member_timeout_s=3.0, master_timeout_s=60.0), network=SimpleNamespace(van="")
    )
    runtime = SimpleNamespace(within=lambda job_dir: SimpleNamespace(spec=spec))
    van = SimpleNamespace(
        listen=lambda *_: SimpleNamespace(address="127.0.0.1:1", close=lambda: None), restrict_to=lambda ways: None
    )
    monkeypatch.setattr(Security, "of_job", lambda job_dir: None)
    monkeypatch.setattr(module, "Runtime", SimpleNamespace(from_json=lambda text: runtime))
    for name, fake in (
        ("NegotiatedVan", lambda security, within=None: van),
        ("MemberSession", Session),
        ("ServerShell", Shell),
    ):
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(module, "master_finder", lambda job_dir: None)
    context: Any = SimpleNamespace(job_dir=None, container_id="container-2", host="", master_address="127.0.0.1:2")
    with caplog.at_level(logging.INFO):
        assert Server(context).run() == 1
    assert caplog.messages[-2:] == [
        "S[server-1] nothing more is written: the server ends",
        f"S[server-1] M ends: {WHY}: nobody answers",
    ]
