"""A service's client, whose threads share one line: what one of them finds out does not harm the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, PeerUnavailableError
from hscheduler.pb.scheduler_pb2_grpc import HSchedulerStub
from hscheduler.service import client as client_module
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir

TIMEOUT_S = 20.0
NOBODY = "127.0.0.1:1"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[SchedulerClient]:
    directory = ServiceDir(tmp_path)
    directory.security()
    with SchedulerClient(directory, NOBODY, give_up_s=0.5) as found:
        yield found


def test_a_line_that_another_thread_has_closed_is_opened_again(
    client: SchedulerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[object] = []

    def stub_of(line: Any) -> HSchedulerStub:
        stub = HSchedulerStub(line)
        lines.append(line)
        client.close()
        return stub

    monkeypatch.setattr(client_module, "_make_stub", stub_of)
    with pytest.raises(PeerUnavailableError, match=r"does not answer for 0\.5 s"):
        client.jobs()
    assert len(lines) > 2


def test_nobody_who_waits_for_a_service_that_is_gone_hears_anything_else(client: SchedulerClient) -> None:
    found: list[Exception] = []

    def ask() -> None:
        try:
            client.jobs()
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert {type(error) for error in found} == {PeerUnavailableError} and len(found) == 12


def test_an_error_of_the_service_is_told_as_it_is(client: SchedulerClient) -> None:
    def refuse(stub: HSchedulerStub) -> None:
        client.close()
        raise ConfigError("that cannot work")

    with pytest.raises(ConfigError, match="that cannot work"):
        client._repeated(refuse, "something")
