"""Messages that arrive in pieces: only a thread without other work waits for the rest."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from eps.errors import PeerUnavailableError
from eps.net.arrays import connection, reader, wires
from eps.net.arrays.api import MIB, Connection, Limits, Message
from eps.net.arrays.connection import Replies
from eps.net.arrays.frames import Kind
from eps.net.arrays.reader import StreamReader
from eps.net.arrays.sockets import SocketVan
from tests.net.raw_peers import (
    DEADLINE_S,
    TOKEN,
    RawListener,
    accept_handshake,
    ask,
    echo,
    eventually,
    frame_of,
    nothing_left,
    proven,
    receive,
    rest,
    send,
)
from tests.net.test_small_messages import KINDS, MESSAGES, Pieces, read_all

WAYS = ["tcp", "unix", "shm"]
REPLY = Message(b"reply", (np.arange(500_000),))
FRAME = frame_of(REPLY, 1, Kind.REPLY)
#: Of a wait for something else, on a busy machine.
SOON_S = 5.0
STALL_S = 0.8
#: Where nothing comes in time, however long that is.
LOST_S = 0.3


@pytest.fixture
def short_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (wires, reader, connection):
        monkeypatch.setattr(module, "STALL_S", STALL_S)


@pytest.fixture
def shorter_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (wires, reader, connection):
        monkeypatch.setattr(module, "STALL_S", LOST_S)


@contextmanager
def answering(way: str, play: Callable[[socket.socket], None]) -> Iterator[Connection]:
    """Yield a connection to a peer that takes one request and then does what a test wants."""

    def serve(sock: socket.socket) -> None:
        accept_handshake(sock, way)
        assert receive(sock, 40)
        play(sock)

    with nothing_left(), RawListener(serve, unix=way != "tcp") as listener:
        connection = SocketVan(way, TOKEN).connect(listener.address, DEADLINE_S)
        yield connection
        connection.close()


def trickle(content: bytes, done: threading.Event, pause_s: float = 0.01) -> Callable[[socket.socket], None]:
    """Return a player that sends ``content`` byte by byte."""

    def play(sock: socket.socket) -> None:
        for place in range(len(content)):
            if done.wait(pause_s):
                return
            send(sock, content[place : place + 1])

    return play


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [1, 30, 70, 1000, 100_000, len(FRAME) - 1])
def test_half_a_reply_holds_up_no_other_and_is_gone_on_with(way: str, length: int) -> None:
    half, go_on = threading.Event(), threading.Event()

    def stop_halfway(sock: socket.socket) -> None:
        send(sock, FRAME[:length])
        half.set()
        assert go_on.wait(DEADLINE_S)
        send(sock, FRAME[length:])

    with answering(way, stop_halfway) as slow:
        listener = SocketVan("unix", TOKEN).listen(echo)
        other = SocketVan("unix", TOKEN).connect(listener.address, DEADLINE_S)
        replies: Replies[str] = Replies()
        replies.request("slow", slow, Message())
        began_s = time.monotonic()
        # Its buffers may take less than this half.
        while not half.is_set() and time.monotonic() < began_s + DEADLINE_S:
            assert replies.next(0.05) is None
        for _ in range(5):
            replies.request("other", other, Message(b"other"))
            answered = replies.next(DEADLINE_S)
            assert answered is not None and answered[0] == "other"
        assert time.monotonic() - began_s < SOON_S
        go_on.set()
        answered = replies.next(DEADLINE_S)
        assert answered is not None and answered[0] == "slow"
        message = answered[1].result()
        assert message.header == b"reply" and np.array_equal(message.arrays[0], REPLY.arrays[0])
        other.close()
        listener.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("begin", [0, 500])
def test_a_wait_ends_in_time_while_its_reply_trickles_in(way: str, begin: int) -> None:
    done = threading.Event()

    def play(sock: socket.socket) -> None:
        send(sock, FRAME[:begin])
        trickle(FRAME[begin:], done)(sock)

    with answering(way, play) as connection:
        began_s = time.monotonic()
        replies: Replies[int] = Replies()
        replies.request(1, connection, Message())
        assert replies.next(0.3) is None
        assert time.monotonic() - began_s < SOON_S
        done.set()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("taken_by", ["replies", "a thread"])
@pytest.mark.parametrize("begin", [0, 500])
def test_a_peer_whose_reply_trickles_in_is_lost(shorter_stall: None, way: str, taken_by: str, begin: int) -> None:
    done = threading.Event()

    def play(sock: socket.socket) -> None:
        send(sock, FRAME[:begin])
        trickle(FRAME[begin:], done)(sock)

    with answering(way, play) as connection:
        with pytest.raises(PeerUnavailableError, match="stalled in the middle"):
            if taken_by == "replies":
                ask(connection, Message())
            else:
                connection.request(Message()).result(DEADLINE_S)
        done.set()


@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_stops_for_good_is_lost_to_who_waits_for_others_too(shorter_stall: None, way: str) -> None:
    done = threading.Event()
    with answering(way, lambda sock: (send(sock, FRAME[:5000]), done.wait(DEADLINE_S))) as connection:  # type: ignore[func-returns-value]
        replies: Replies[int] = Replies()
        replies.request(1, connection, Message())
        answered = replies.next(DEADLINE_S)
        assert answered is not None
        with pytest.raises(PeerUnavailableError, match="stalled in the middle"):
            answered[1].result()
        done.set()


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_reply_comes_as_long_as_it_goes_on_coming(short_stall: None, way: str) -> None:
    def play(sock: socket.socket) -> None:
        pause = threading.Event()
        for place in range(0, len(FRAME), 160_000):
            send(sock, FRAME[place : place + 160_000])
            pause.wait(0.06)

    with answering(way, play) as connection:
        began_s = time.monotonic()
        assert np.array_equal(connection.request(Message()).result(DEADLINE_S).arrays[0], REPLY.arrays[0])
        assert time.monotonic() - began_s > 1.5 * STALL_S


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_trickles_in_costs_its_sender_the_connection(shorter_stall: None, way: str) -> None:
    listener = SocketVan(way, TOKEN).listen(echo)
    done = threading.Event()
    with nothing_left(spare_descriptors=2), proven(listener.address, way) as sock:
        sending = threading.Thread(target=trickle(frame_of(REPLY), done), args=(sock,))
        sending.start()
        assert rest(sock) == b""
        done.set()
        sending.join(DEADLINE_S)
    eventually(lambda: not listener._served, "it is served no more")
    listener.close()


def test_messages_are_the_same_whenever_nothing_comes_for_a_while() -> None:
    rng = random.Random(0)
    messages = [*MESSAGES.values(), Message(b"long", (np.arange(30_000.0),)), Message(bytes(70_000))]
    for _ in range(50):
        frames = [frame_of(message, rng.getrandbits(64), rng.choice(KINDS)) for message in rng.choices(messages, k=6)]
        expected = [found for frame in frames for found in read_all(frame)]
        lengths = [rng.choice((0, 0, 1, 7, 24, 40, 100, 500, 5000)) for _ in range(rng.choice((20, 400)))]
        reader = StreamReader(Pieces(b"".join(frames), lengths), Limits(max_message_bytes=MIB), KINDS)  # type: ignore[arg-type]
        found: list[object] = []
        while len(found) < len(expected):
            received = reader.read()
            if received is not None:
                kind, request_id, message = received
                arrays = [(array.dtype.str, array.shape, array.tobytes()) for array in message.arrays]
                found.append((kind, request_id, message.header, arrays))
        assert found == expected
        assert not reader.buffered
