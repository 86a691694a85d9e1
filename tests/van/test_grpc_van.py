"""What is special to the van over gRPC: tokens, hostile peers, back-pressure, processes that vanish."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from eps.core.types import Address
from eps.errors import DeadlineError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import MAX_FRAME_BYTES, MIB, Limits, Message, ReplyTo
from eps.net.arrays.frames import Decoder, Kind, check_message, encode
from eps.net.arrays.grpc_van import GrpcListener, GrpcVan
from eps.net.arrays.memory import tune_malloc
from eps.net.arrays.outbox import Outbox
from eps.net.calls import call as rpc
from eps.net.security.credentials import Security
from tests.van.raw_peers import DEADLINE_S, TOKEN, RawStream, dial, echo


@pytest.fixture
def listener() -> Iterator[GrpcListener]:
    listener = GrpcVan(TOKEN).listen(echo)
    yield listener
    listener.close()


def assert_works(listener: GrpcListener, security: Security = TOKEN) -> None:
    connection = GrpcVan(security).connect(listener.address, DEADLINE_S)
    assert connection.request(Message(b"hello")).result(DEADLINE_S).header == b"hello"
    connection.close()


GOOD = next(iter(encode(Message(b"good"), 1, Kind.REQUEST)))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"garbage",
        GOOD[:-1],
        GOOD + b"more",
        bytes(MAX_FRAME_BYTES + 1),
        next(iter(encode(Message(b"not a request"), 1, Kind.REPLY))),
        np.random.default_rng(1).bytes(5000),
    ],
    ids=["empty", "garbage", "truncated", "too long a body", "oversized", "a reply", "noise"],
)
def test_what_is_not_a_frame_ends_its_own_connection_only(listener: GrpcListener, bad: bytes) -> None:
    other = GrpcVan(TOKEN).connect(listener.address, DEADLINE_S)
    raw = RawStream(listener.address).greet()
    raw.send(GOOD)
    received = Decoder(Limits()).feed(next(raw.call))
    assert received is not None and received.message.header == b"good"
    raw.send(bad)
    with pytest.raises(grpc.RpcError) as caught:
        next(raw.call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["eps-error"] == "FrameError"
    raw.close()
    assert other.request(Message(b"still here")).result(DEADLINE_S).header == b"still here"
    other.close()
    assert_works(listener)


def test_an_announcement_above_the_limit_ends_the_connection_before_memory_is_reserved() -> None:
    listener = GrpcVan(TOKEN, Limits(max_message_bytes=MIB)).listen(echo)
    connection = GrpcVan(TOKEN).connect(listener.address, DEADLINE_S)
    future = connection.request(Message(b"", (np.zeros(8 * MIB, np.uint8),)))
    with pytest.raises(PeerUnavailableError, match="the limit"):
        future.result(DEADLINE_S)
    connection.close()
    assert_works(listener)
    listener.close()


def test_bytes_that_are_not_even_http_harm_nobody(listener: GrpcListener) -> None:
    other = GrpcVan(TOKEN).connect(listener.address, DEADLINE_S)
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", np.random.default_rng(2).bytes(100_000), b"PRI * HTTP/2.0\r\n\r\nSM"):
        with dial(listener.address) as raw:
            try:
                raw.sendall(noise)
            except OSError:
                continue
    assert other.request(Message(b"still here")).result(DEADLINE_S).header == b"still here"
    other.close()
    assert_works(listener)


def test_another_method_is_refused(listener: GrpcListener) -> None:
    with rpc.channel(listener.address, TOKEN) as channel, pytest.raises(ProtocolError, match="UNIMPLEMENTED"):
        rpc.call(channel.unary_unary("/eps.van/Other"), b"", DEADLINE_S, what="another method")


def test_a_connection_above_the_limit_is_refused_and_those_before_go_on() -> None:
    listener = GrpcVan(TOKEN, max_connections=2).listen(echo)
    held = [GrpcVan(TOKEN).connect(listener.address, DEADLINE_S) for _ in range(2)]
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
        GrpcVan(TOKEN).connect(listener.address, DEADLINE_S)
    assert [c.request(Message(b"x")).result(DEADLINE_S).header for c in held] == [b"x", b"x"]
    for connection in held:
        connection.close()
    listener.close()


def test_a_port_that_takes_connections_and_says_nothing_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(PeerUnavailableError, match=r"0\.2 s"):
            GrpcVan(TOKEN).connect(address, 0.2)


SERVING = """
import sys
from eps.net.security.credentials import JobToken, Security
from eps.net.arrays.grpc_van import GrpcVan
listener = GrpcVan(Security(JobToken(b"the token of these tests"))).listen(lambda message, reply: None)
print(listener.address.port, flush=True)
sys.stdin.read()
if sys.argv[1:] == ["raise"]:
    raise SystemExit(3)
"""


def test_a_process_that_is_killed_fails_what_is_outstanding() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        connection = GrpcVan(TOKEN).connect(Address("127.0.0.1", int(process.stdout.readline())), DEADLINE_S)
        future = connection.request(Message(b"never answered"))
        process.kill()
        with pytest.raises(PeerUnavailableError):
            future.result(DEADLINE_S)
        assert connection.closed
        connection.close()


def test_a_process_ends_even_if_it_did_not_close_its_listener() -> None:
    command = [sys.executable, "-c", SERVING, "raise"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        connection = GrpcVan(TOKEN).connect(Address("127.0.0.1", int(process.stdout.readline())), DEADLINE_S)
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 3
        connection.close()


def test_closing_the_listener_is_not_held_up_by_a_peer_that_reads_nothing() -> None:
    entered = threading.Event()

    def flood(message: Message, reply: ReplyTo) -> None:
        entered.set()
        reply.send(Message(b"", (np.zeros(64 * MIB, np.uint8),)))

    listener = GrpcVan(TOKEN).listen(flood)
    raw = RawStream(listener.address).greet()
    raw.send(GOOD)
    assert entered.wait(DEADLINE_S)
    other = GrpcVan(TOKEN).connect(listener.address, DEADLINE_S)
    assert other.request(Message()).result(DEADLINE_S).arrays[0].nbytes == 64 * MIB
    other.close()
    listener.close()
    raw.close()


def put(outbox: Outbox, message: Message) -> bool:
    return outbox.put(message, check_message(message, Limits()), 1, Kind.REQUEST)


def test_a_full_outbox_holds_the_sender_up_until_its_patience_ends() -> None:
    outbox = Outbox(Limits(max_outgoing_bytes=1000), patience_s=0.01)
    assert put(outbox, Message(bytes(5000))), "one message is always admitted"
    with pytest.raises(DeadlineError, match="1000 is the limit"):
        put(outbox, Message(b"next"))
    outbox.close()
    assert not put(outbox, Message(b"after the close"))


def test_a_sender_goes_on_when_the_writer_has_made_room() -> None:
    outbox = Outbox(Limits(max_outgoing_bytes=1000), patience_s=DEADLINE_S)
    put(outbox, Message(bytes(900)))
    second = threading.Thread(target=put, args=(outbox, Message(bytes(800))))
    second.start()
    frames = iter(outbox)
    lengths = [len(next(frames)), len(next(frames))]
    second.join(DEADLINE_S)
    assert lengths[0] - lengths[1] == 100
    outbox.close()
    assert list(frames) == []


class CLibrary:
    """A C library whose mallopt refuses one setting."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.asked: list[int] = []

    def mallopt(self, option: int, value: int) -> int:
        self.asked.append(option)
        return int(len(self.asked) - 1 != self.refused)


@pytest.mark.parametrize("refused", [-1, 0, 3])
def test_tune_malloc_says_whether_all_its_settings_were_taken(monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    library = CLibrary(refused)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert tune_malloc() is (refused == -1)
    assert len(set(library.asked)) == 4, "one that is refused does not keep the others from being made"


def test_tune_malloc_does_nothing_where_the_c_library_has_no_mallopt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert tune_malloc() is False
