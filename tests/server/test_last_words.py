"""The last log line of a member, which says why it ended."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eps.core.types import Role
from eps.errors import PeerUnavailableError
from eps.job import member as module
from eps.job.member import Member
from eps.net.security.credentials import Security

TIMEOUT_S = 60.0
WHY = "the job master is unreachable"


NOTHING_MORE = "nothing more is written"


class Shell:
    """What a member does, which speaks when it ends: a server's writer gives up what it had begun."""

    def __init__(self, *_: object) -> None:
        self.loop = self
        self._stopped = threading.Event()

    def close(self) -> None:
        """Do nothing."""

    def prepare(self, servers: list[Any]) -> None:
        """Do nothing."""

    def end_writing(self) -> None:
        logging.getLogger("eps").warning(NOTHING_MORE)

    def run(self) -> None:
        assert self._stopped.wait(TIMEOUT_S)
        self.end_writing()

    def stop(self) -> None:
        self._stopped.set()


class ServerShell(Shell):
    """That of a server."""


class WorkerShell(Shell):
    """That of a worker."""


class Session:
    """A session that breaks when the member is ready."""

    def __init__(self, *_: object, **__: object) -> None:
        self._breaking = threading.Thread()

    def open(self, on_order: Any, on_end: Any) -> Any:
        def end() -> None:
            assert on_end.__self__._ready.wait(TIMEOUT_S)
            on_end(PeerUnavailableError("nobody answers"))

        self._breaking = threading.Thread(target=end, daemon=True)
        self._breaking.start()
        return lambda: SimpleNamespace(name="member-1", job_json="", servers=())

    def close(self) -> None:
        """Do nothing."""

    def be_patient(self, _: object) -> None:
        pass

    def report(self, *_: object, **__: object) -> None:
        pass


@pytest.mark.parametrize("role", Role)
def test_the_last_line_of_a_member_says_why_it_ended_whatever_it_ends_with(
    role: Role, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """If HDFS is unreachable, a checkpoint is still in progress, which the end aborts."""
    spec = SimpleNamespace(
        recovery=SimpleNamespace(member_timeout_s=3.0, master_timeout_s=60.0), network=SimpleNamespace(van="")
    )
    runtime = SimpleNamespace(within=lambda job_dir: SimpleNamespace(spec=spec, job_dir=job_dir))
    van = SimpleNamespace(
        listen=lambda *_: SimpleNamespace(address="127.0.0.1:1", close=lambda: None), restrict_to=lambda ways: None
    )
    monkeypatch.setattr(Security, "of_job", lambda job_dir: None)
    monkeypatch.setattr(module, "Runtime", SimpleNamespace(from_json=lambda text: runtime))
    for name, fake in (
        ("NegotiatedVan", lambda security, within=None: van),
        ("MemberSession", Session),
        ("ServerShell", ServerShell),
        ("WorkerShell", WorkerShell),
        ("make_shell", WorkerShell),
    ):
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(module, "master_finder", lambda job_dir: None)
    context: Any = SimpleNamespace(job_dir=tmp_path, container_id="container-2", host="", master_address="127.0.0.1:2")
    with caplog.at_level(logging.INFO):
        assert Member(context, role).run() == 1
    assert caplog.messages[-2:] == [NOTHING_MORE, f"{role[0].upper()}[member-1] M ends: {WHY}: nobody answers"]
