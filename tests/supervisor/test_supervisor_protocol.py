"""The lines between job master and supervisor."""

from __future__ import annotations

import json
import random

import pytest

from eps.cluster.supervisor.protocol import (
    MAX_LINE_BYTES,
    JobDone,
    KillProcess,
    LaunchProcess,
    LineBuffer,
    ProcessExited,
    ProcessLaunched,
    RequestRefused,
    decode_notice,
    decode_request,
    encode_notice,
    encode_request,
    exit_reason,
    refused_container,
)
from eps.errors import ProtocolError


@pytest.mark.parametrize(
    "request_",
    [
        LaunchProcess("container-0001", "worker", {"A": "ü\n", "B": ""}, "w.log"),
        LaunchProcess("c", "server"),
        KillProcess("c", 9),
        JobDone(255, "killed", "because"),
    ],
    ids=["launch", "launch-plain", "kill", "job-done"],
)
def test_a_request_survives_its_line(request_: LaunchProcess | KillProcess | JobDone) -> None:
    line = encode_request(request_)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode_request(line[:-1]) == request_


@pytest.mark.parametrize(
    "notice",
    [
        ProcessLaunched("c", 12),
        ProcessExited("c", 3, None),
        ProcessExited("c", None, 9),
        RequestRefused("no\nsuch thing", "c"),
    ],
    ids=["launched", "exited", "signalled", "refused"],
)
def test_a_notice_survives_its_line(notice: ProcessLaunched | ProcessExited | RequestRefused) -> None:
    assert decode_notice(encode_notice(notice)[:-1]) == notice


def test_job_done_without_a_state_takes_it_from_the_exit_code() -> None:
    assert decode_request(b'{"op":"job-done","exit_code":0}') == JobDone(0, "finished")
    assert decode_request(b'{"op":"job-done","exit_code":1}') == JobDone(1, "failed")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"op": "launch", "role": "worker"}, "container_id is missing"),
        ({"op": "launch", "container_id": "a/b", "role": "worker"}, "container_id"),
        ({"op": "launch", "container_id": "..", "role": "worker"}, "container_id"),
        ({"op": "launch", "container_id": "c" * 65, "role": "worker"}, "container_id"),
        ({"op": "launch", "container_id": "c", "role": "master"}, "role"),
        ({"op": "launch", "container_id": "c", "role": ["worker"]}, "role"),
        ({"op": "launch", "container_id": "c", "role": "worker", "log": "../x"}, "log"),
        ({"op": "launch", "container_id": "c", "role": "worker", "env": {"A": 1}}, "env"),
        ({"op": "launch", "container_id": "c", "role": "worker", "env": {"A=B": ""}}, "env"),
        ({"op": "launch", "container_id": "c", "role": "worker", "env": {"A": "\0"}}, "env"),
        ({"op": "kill", "container_id": "c", "signal": 0}, "signal"),
        ({"op": "kill", "container_id": "c", "signal": True}, "signal"),
        ({"op": "kill", "container_id": "c", "signal": 1000}, "signal"),
        ({"op": "job-done"}, "exit_code is missing"),
        ({"op": "job-done", "exit_code": 256}, "exit_code"),
        ({"op": "job-done", "exit_code": 0, "state": "great"}, "state"),
        ({"op": {}}, "op is"),
        ({}, "op is None"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_by_name(value: dict[str, object], word: str) -> None:
    with pytest.raises(ProtocolError, match=word):
        decode_request(json.dumps(value).encode())


def test_bytes_that_are_no_request_are_protocol_errors_and_nothing_else() -> None:
    rng = random.Random(5)
    good = encode_request(LaunchProcess("c", "worker", {"A": "b"}))[:-1]
    for line in (b"\xff\xfe", b"[" * 60000, b"null", b'"x"', b"1e999"):
        with pytest.raises(ProtocolError):
            decode_request(line)
    for _ in range(2000):
        line = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            line[rng.randrange(len(line))] = rng.randrange(256)
        try:
            decode_request(bytes(line))
        except ProtocolError:
            refused_container(bytes(line))


def test_the_container_of_a_malformed_launch_is_found_where_it_can_be() -> None:
    assert refused_container(b'{"op":"launch","container_id":"c","role":1}') == "c"
    assert refused_container(b'{"op":"launch","container_id":1}') == ""
    assert refused_container(b"{") == ""


def test_a_request_beyond_the_limit_is_refused_where_it_is_made() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_LINE_BYTES)):
        encode_request(LaunchProcess("c", "worker", {"A": "x" * MAX_LINE_BYTES}))


def test_lines_are_the_same_however_the_stream_is_cut() -> None:
    stream = b"one\n\ntwo\n" + b"x" * 50 + b"\nthree\n" + b"y" * 200 + b"\nfour\nrest"
    expected = [b"one", b"", b"two", None, b"three", None, b"four"]
    for seed in range(200):
        rng = random.Random(seed)
        buffer, lines, at = LineBuffer(max_line_bytes=20), [], 0
        while at < len(stream):
            size = rng.randrange(1, 40)
            lines += buffer.feed(stream[at : at + size])
            at += size
        assert lines == expected, seed


def test_how_a_process_ended_is_said_in_words() -> None:
    assert exit_reason(3, None) == "exited with code 3"
    assert exit_reason(None, 9) == "was ended by SIGKILL"
    assert exit_reason(None, 40) == "was ended by signal 40"
