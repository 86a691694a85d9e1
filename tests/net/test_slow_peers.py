"""Peers that send nothing, stop halfway or do not read lose their connection, and delay no other peer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest

from eps.core.types import Address
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, PlanError
from eps.net.arrays.api import MIB, Connection, Limits, Listener, Message, ReplyTo
from eps.net.arrays.connection import Replies
from eps.net.arrays.frames import Kind
from eps.net.arrays.sockets import ANSWER_BYTES, ConnectorHandshake, SocketVan
from eps.net.arrays.wires import PlainWire
from eps.net.arrays.writer import Part, StreamWriter
from eps.net.security.certificates import make_certificates
from eps.net.security.credentials import Security, TlsFiles
from tests.net.raw_peers import (
    DEADLINE_S,
    TOKEN,
    RawListener,
    accept_handshake,
    dial,
    eventually,
    frame_of,
    nothing_left,
    proven,
    receive,
    rest,
    send,
    still_works,
)

#: More than the buffers of any socket here.
LARGE_BYTES = 24 * MIB
#: Closing takes no longer than this for any behaviour of the peers.
END_S = 8.0
WAYS = ["tcp", "unix", "shm"]


def large_or_echo(message: Message, reply: ReplyTo) -> None:
    """Answer with more than the socket takes where the header asks for it."""
    if message.header == b"large":
        # Through the socket also where there is shared memory.
        reply.send(Message(b"", tuple(np.zeros(4000) for _ in range(LARGE_BYTES // 32_000))))
    elif message.header == b"fail":
        raise PlanError("refused")
    else:
        reply.send(message)


@dataclass
class Port:
    way: str
    van: SocketVan | None
    listener: Listener | None

    @property
    def address(self) -> Address:
        assert self.listener is not None
        return self.listener.address

    def connect(self) -> Connection:
        assert self.van is not None
        return self.van.connect(self.address, DEADLINE_S)

    def check(self) -> None:
        """A member that comes now is served."""
        connection = self.connect()
        still_works(connection)
        connection.close()

    def close(self) -> None:
        assert self.listener is not None
        started_s = time.monotonic()
        self.listener.close()
        assert time.monotonic() - started_s < END_S


def ports(way: str, security: Security = TOKEN, limits: Limits | None = None) -> Iterator[Port]:
    van = SocketVan(way, security, limits)
    port = Port(way, van, van.listen(large_or_echo))
    yield port
    port.close()
    # A reference to the port must not keep the shared memory of the van.
    port.van = port.listener = None


@pytest.fixture(params=WAYS)
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    with nothing_left():
        yield from ports(request.param)


def test_peers_that_say_nothing_hold_up_nobody(port: Port) -> None:
    with ExitStack() as open_sockets:
        silent = [open_sockets.enter_context(dial(port.address)) for _ in range(20)]
        send(silent[0], b"EPSH")
        send(silent[1], ConnectorHandshake(TOKEN.token, port.way).challenge())
        assert len(receive(silent[1], ANSWER_BYTES)) == ANSWER_BYTES
        port.check()
        # The listener ends while they are still there.
        port.close()
        assert [rest(sock) for sock in silent] == [b""] * 20


def test_strangers_hold_a_bounded_number_of_threads(port: Port) -> None:
    before = threading.active_count()
    with ExitStack() as open_sockets:
        silent = [open_sockets.enter_context(dial(port.address)) for _ in range(90)]
        # The first ones are ended by the listener, for the last ones.
        assert [rest(sock) for sock in silent[:26]] == [b""] * 26
        eventually(lambda: threading.active_count() <= before + 64, "their threads end")
    eventually(lambda: threading.active_count() <= before, "their threads end with them")
    port.check()


def test_more_members_than_strangers_may_be_connected(port: Port) -> None:
    connections = [port.connect() for _ in range(80)]
    futures = [connection.request(Message(b"%d" % i)) for i, connection in enumerate(connections)]
    assert [future.result(DEADLINE_S).header for future in futures] == [b"%d" % i for i in range(80)]
    for connection in connections:
        connection.close()


def test_peers_that_stop_in_the_middle_of_a_frame_hold_up_nobody(port: Port) -> None:
    frame = frame_of(Message(b"x", (np.zeros(100_000),)))
    with ExitStack() as open_sockets:
        stopped = [open_sockets.enter_context(proven(port.address, port.way)) for _ in range(6)]
        for sock, length in zip(stopped, (1, 23, 39, 80, 5000, len(frame) - 1), strict=True):
            send(sock, frame[:length])
        port.check()
        port.close()
        assert [rest(sock) for sock in stopped] == [b""] * 6


def test_peers_that_do_not_read_hold_up_nobody(port: Port) -> None:
    with ExitStack() as open_sockets:
        deaf = [open_sockets.enter_context(proven(port.address, port.way)) for _ in range(3)]
        for sock in deaf:
            send(sock, frame_of(Message(b"large")) * 2)
        for sock in deaf:
            # It has begun to answer.
            assert receive(sock, 4) == b"EPSV"
        port.check()
        port.close()


def test_a_peer_that_reads_late_gets_everything(port: Port) -> None:
    with proven(port.address, port.way) as sock:
        send(sock, frame_of(Message(b"large")) * 2 + frame_of(Message(b"last")))
        port.check()
        large = frame_of(Message(b"", tuple(np.zeros(4000) for _ in range(LARGE_BYTES // 32_000))), kind=Kind.REPLY)
        assert receive(sock, len(large)) == receive(sock, len(large)) == large
        last = frame_of(Message(b"last"), kind=Kind.REPLY)
        assert receive(sock, len(last)) == last


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("second", [b"x", b"fail", b"large"])
def test_a_peer_that_takes_nothing_is_lost_when_patience_ends(
    monkeypatch: pytest.MonkeyPatch, way: str, second: bytes
) -> None:
    """Also where the answer that finds no room is the handler's failure."""
    monkeypatch.setattr(StreamWriter.__init__, "__defaults__", (0.05,))
    with nothing_left():
        for port in ports(way, limits=Limits(max_outgoing_bytes=MIB)):
            with proven(port.address, port.way) as sock:
                send(sock, frame_of(Message(b"large")) + frame_of(Message(second)) * 3)
                eventually(lambda: len(threads_of("eps-van-serve")) == 0, "the listener gives the peer up")
                rest(sock)
            port.check()


def threads_of(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == name]


def test_outgoing_memory_is_bounded_and_the_sender_is_told() -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(DEADLINE_S)
    reasons: list[str] = []
    limits = Limits(max_outgoing_bytes=2 * MIB)
    writer = StreamWriter(PlainWire(ours), limits, "eps-van-test", reasons.append, patience_s=0.05)
    piece = bytes(300_000)
    accepted = 0
    with pytest.raises(DeadlineError, match="is the limit"):
        for number in range(10_000):
            assert writer.send([Part([number.to_bytes(4, "little"), piece])], len(piece) + 4)
            accepted += 1
    assert accepted * len(piece) < 2 * MIB + 20 * MIB, "the limit, and what the system's buffers hold"

    for number in range(accepted):
        assert receive(theirs, 4) == number.to_bytes(4, "little")
        assert receive(theirs, len(piece)) == piece
    assert writer.send([Part([b"room again"])], 10)
    assert receive(theirs, 10) == b"room again"
    assert reasons == []
    ours.shutdown(socket.SHUT_RDWR)
    writer.close()
    assert not writer.send([Part([b"closed"])], 6)
    ours.close()
    theirs.close()


def test_a_sender_that_waits_for_room_goes_on_when_the_connection_ends() -> None:
    ours, theirs = socket.socketpair()
    wire = PlainWire(ours)
    writer = StreamWriter(wire, Limits(max_outgoing_bytes=MIB), "eps-van-test", lambda reason: None, patience_s=0.05)
    with pytest.raises(DeadlineError):
        for _ in range(1000):
            writer.send([Part([bytes(MIB)])], MIB)
    writer._patience_s = DEADLINE_S
    sent: list[bool] = []
    waiting = threading.Thread(target=lambda: sent.append(writer.send([Part([bytes(MIB)])], MIB)))
    waiting.start()
    wire.shut_down()
    writer.close()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive() and sent in ([False], [True])
    wire.close()
    theirs.close()


def test_one_message_is_admitted_however_long_it_is() -> None:
    ours, theirs = socket.socketpair()
    wire = PlainWire(ours)
    writer = StreamWriter(wire, Limits(max_outgoing_bytes=1000), "eps-van-test", lambda reason: None, patience_s=0.05)
    assert writer.send([Part([bytes(LARGE_BYTES)])], LARGE_BYTES)
    theirs.settimeout(DEADLINE_S)
    received = 0
    while received < LARGE_BYTES:
        received += len(theirs.recv(MIB))
    wire.shut_down()
    writer.close()
    wire.close()
    theirs.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_listener_that_never_answers_is_unavailable_in_time(way: str) -> None:
    done = threading.Event()

    def say_nothing(sock: socket.socket) -> None:
        done.wait(DEADLINE_S)

    def stop_before_the_greeting(sock: socket.socket) -> None:
        accept_handshake(sock, way, greets=False)
        done.wait(DEADLINE_S)

    def drip(sock: socket.socket) -> None:
        while not done.wait(0.01):
            send(sock, b"x")

    for play in (say_nothing, stop_before_the_greeting, drip):
        done.clear()
        with nothing_left(), RawListener(play, unix=way != "tcp") as listener:
            started_s = time.monotonic()
            with pytest.raises(EpsError) as caught:
                SocketVan(way, TOKEN).connect(listener.address, 0.3)
            assert time.monotonic() - started_s < END_S
            assert isinstance(caught.value, PeerUnavailableError) or play is drip
            done.set()


@pytest.mark.parametrize("way", WAYS)
def test_a_reply_that_does_not_come_is_not_waited_for(way: str) -> None:
    done = threading.Event()

    def keep(sock: socket.socket) -> None:
        accept_handshake(sock, way)
        done.wait(DEADLINE_S)

    with nothing_left(), RawListener(keep, unix=way != "tcp") as listener:
        connection = SocketVan(way, TOKEN).connect(listener.address, DEADLINE_S)
        replies: Replies[int] = Replies()
        replies.request(1, connection, Message())
        assert replies.next(0.1) is None
        done.set()
        connection.close()


@pytest.mark.parametrize("way", WAYS)
def test_closing_does_not_wait_for_a_listener_that_stopped_in_the_middle_of_a_reply(way: str) -> None:
    begun, done = threading.Event(), threading.Event()

    def begin(sock: socket.socket) -> None:
        accept_handshake(sock, way)
        receive(sock, 40)
        send(sock, frame_of(Message(bytes(1000)), 1, Kind.REPLY)[:500])
        begun.set()
        done.wait(DEADLINE_S)

    with nothing_left(), RawListener(begin, unix=way != "tcp") as listener:
        connection = SocketVan(way, TOKEN).connect(listener.address, DEADLINE_S)
        future = connection.request(Message())
        assert begun.wait(DEADLINE_S)
        started_s = time.monotonic()
        connection.close()
        assert time.monotonic() - started_s < END_S
        with pytest.raises(PeerUnavailableError):
            future.result(0)
        done.set()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Security:
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return Security(TOKEN.token, TlsFiles.within(directory))


def test_strangers_that_never_finish_tls_hold_up_neither_members_nor_the_end(tls: Security) -> None:
    with nothing_left():
        for port in ports("tcp", tls):
            with ExitStack() as open_sockets:
                silent = [open_sockets.enter_context(dial(port.address)) for _ in range(5)]
                send(silent[0], b"\x16\x03\x01\x02\x00\x01")
                port.check()
                started_s = time.monotonic()
                port.close()
                assert time.monotonic() - started_s < 4.0, "not only when their time to shake hands is over"
                assert [rest(sock) for sock in silent] == [b""] * 5
