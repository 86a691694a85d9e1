"""The messages between job master and supervisor."""

from __future__ import annotations

import pytest

from eps.cluster.supervisor.state import (
    MAX_BYTES,
    Beat,
    JobDone,
    KillProcess,
    LaunchProcess,
    Message,
    ProcessExited,
    ProcessLaunched,
    RequestRefused,
    decode,
    encode,
    exit_reason,
)
from eps.errors import ProtocolError

MESSAGES: tuple[Message, ...] = (
    LaunchProcess("container-0001", "worker", {"A": "ü\n", "B": ""}),
    LaunchProcess("c", "server"),
    KillProcess("c", 9),
    Beat(-1, 2.5),
    JobDone(255, "killed", "because"),
    ProcessLaunched("c", 12),
    ProcessExited("c", 3, None),
    ProcessExited("c", None, 9),
    RequestRefused("no\nsuch thing", "c"),
)


def test_a_message_survives_its_packet() -> None:
    for message in MESSAGES:
        assert decode(encode(message)) == message


def test_bytes_that_are_no_message_are_protocol_errors_and_nothing_else() -> None:
    for packet in (
        b"",
        b"\xff\xfe",
        b"[" * 900,
        b"null",
        b"[1]",
        b'["Dance", {}]',
        b'["Beat", {}]',
        b'["Beat", {"a": 1}]',
    ):
        with pytest.raises(ProtocolError, match="is no message"):
            decode(packet)


def test_a_request_beyond_the_limit_is_refused_where_it_is_made() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_BYTES)):
        encode(LaunchProcess("c", "worker", {"A": "x" * MAX_BYTES}))


def test_how_a_process_ended_is_said_in_words() -> None:
    assert exit_reason(3, None) == "exited with code 3"
    assert exit_reason(None, 9) == "was ended by SIGKILL"
    assert exit_reason(None, 40) == "was ended by signal 40"
