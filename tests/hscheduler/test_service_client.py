"""A service's client whose threads share one connection: a failure in one does not harm the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, PeerUnavailableError
from hscheduler.pb.scheduler_pb2_grpc import HSchedulerStub
from hscheduler.service import connection as connection_module
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from tests.threads import at_once

NOBODY = "127.0.0.1:1"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[SchedulerClient]:
    directory = ServiceDir(tmp_path)
    directory.security(between_hosts=True)
    with SchedulerClient(directory, NOBODY, give_up_s=0.5) as found:
        yield found


def test_a_connection_closed_by_another_thread_is_reopened(
    client: SchedulerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[object] = []

    def stub_of(line: Any) -> HSchedulerStub:
        stub = HSchedulerStub(line)
        lines.append(line)
        client.close()
        return stub

    monkeypatch.setattr(connection_module, "_make_stub", stub_of)
    with pytest.raises(PeerUnavailableError, match=r"for 0\.5 s"):
        client.jobs()
    assert len(lines) > 2


def test_all_threads_that_wait_for_a_lost_service_get_the_same_error(client: SchedulerClient) -> None:
    assert [type(outcome) for outcome in at_once(12, lambda _: client.jobs())] == [PeerUnavailableError] * 12


def test_an_error_of_the_service_keeps_its_message(client: SchedulerClient) -> None:
    def refuse(stub: HSchedulerStub) -> None:
        client.close()
        raise ConfigError("that cannot work")

    with pytest.raises(ConfigError, match="that cannot work"):
        client._connection.repeated(refuse, "something")
