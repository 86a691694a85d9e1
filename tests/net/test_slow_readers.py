"""Replies that a peer does not read: the sender does not wait, since it has replies for others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from eps.net.arrays.api import MIB, Handler, Limits, Listener, Message, ReplyTo, Van
from eps.net.arrays.connection import Replies
from eps.net.arrays.frames import Kind
from eps.net.arrays.sockets import SocketVan
from tests.net.raw_peers import (
    DEADLINE_S,
    TOKEN,
    ask,
    eventually,
    frame_of,
    nothing_left,
    proven,
    receive,
    send,
)

WAYS = ["tcp", "unix", "shm"]
#: Far less than a full queue is waited for.
SOON_S = 10.0
LIMITS = Limits(max_outgoing_bytes=MIB)
#: Through the socket also where there is shared memory, and more than the buffers of any socket here.
LARGE = Message(b"", tuple(np.zeros(4000) for _ in range(600)))


class Kept:
    """Keeps requests, and answers them all when one says so, the latest one first."""

    def __init__(self, answer: Message) -> None:
        self.requests: list[tuple[Message, ReplyTo]] = []
        self._answer = answer

    def __call__(self, message: Message, reply: ReplyTo) -> None:
        if message.header != b"go":
            self.requests.append((message, reply))
            return
        for _, kept in self.requests:
            kept.send(self._answer)
        reply.send(message)


@contextmanager
def listening(way: str, handler: Handler) -> Iterator[tuple[Van, Listener]]:
    van = SocketVan(way, TOKEN, LIMITS)
    listener = van.listen(handler)
    try:
        yield van, listener
    finally:
        listener.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_does_not_read_holds_up_no_answer_to_another(way: str) -> None:
    kept = Kept(LARGE)
    with ExitStack() as open_peers, nothing_left(spare_descriptors=8), listening(way, kept) as (van, listener):
        requests = [frame_of(Message(b"later"), number) for number in (1, 2, 3, 4)]
        send(open_peers.enter_context(proven(listener.address, way)), b"".join(requests))
        eventually(lambda: len(kept.requests) == 4, "its requests have come")
        connection = van.connect(listener.address, DEADLINE_S)
        open_peers.callback(connection.close)
        began_s = time.monotonic()
        assert ask(connection, Message(b"go")).header == b"go"
        assert time.monotonic() - began_s < SOON_S
        open_peers.close()


@pytest.mark.parametrize("way", WAYS)
def test_more_answers_than_may_wait_reach_a_peer_that_reads(way: str) -> None:
    """Many requests of a worker are complete at once."""
    kept = Kept(Message(b"", tuple(np.zeros(4000) for _ in range(10))))
    with nothing_left(spare_descriptors=8), listening(way, kept) as (van, listener):
        connection = van.connect(listener.address, DEADLINE_S)
        replies: Replies[int] = Replies()
        for number in range(100):
            replies.request(number, connection, Message(b"later"))
        replies.request(100, connection, Message(b"go"))
        found = set()
        while len(replies):
            answered = replies.next(DEADLINE_S)
            assert answered is not None and isinstance(answered[1].outcome, Message)
            found.add(answered[0])
        assert found == set(range(101))
        connection.close()


@pytest.mark.parametrize("way", WAYS)
def test_no_more_requests_of_a_peer_are_read_than_it_takes_answers(way: str) -> None:
    asked = threading.Semaphore(0)
    count = 0

    def answer(message: Message, reply: ReplyTo) -> None:
        nonlocal count
        count += 1
        reply.send(LARGE)
        asked.release()

    with nothing_left(), listening(way, answer) as (_, listener), proven(listener.address, way) as sock:
        expected = frame_of(LARGE, 1, Kind.REPLY)
        send(sock, b"".join(frame_of(Message(b"x"), number) for number in range(1, 21)))
        assert asked.acquire(timeout=DEADLINE_S)
        for taken in range(20):
            # What the system's buffers hold, one that waits, and one more for the limit that it is below.
            assert count <= taken + 2 + 10 * MIB // len(expected)
            reply = receive(sock, len(expected))
            assert reply[-1000:] == expected[-1000:] and len(reply) == len(expected)
        assert count == 20
