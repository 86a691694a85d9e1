"""What a member writes last, from which others learn why it ended."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

from eps.server.main import Server
from eps.worker.main import Worker


@pytest.mark.parametrize("member", [Server, Worker])
def test_the_last_line_of_a_member_says_why_it_ended(
    member: type[Server | Worker], caplog: pytest.LogCaptureFixture
) -> None:
    """YARN tells of a container that failed what it wrote last: that was how much it had sent."""
    ready = threading.Event()
    ready.set()
    one = SimpleNamespace(name="server-1", _ended=threading.Event(), _ready=ready, _loop=None)
    with caplog.at_level(logging.INFO):
        member._end(one, 1, "the job master is gone")  # type: ignore[arg-type]
    assert caplog.messages[-1].endswith("M ends: the job master is gone")
