"""The requesting end of a socket: its threads, and what it does with a request that could not be sent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from eps.errors import DeadlineError, PeerUnavailableError
from eps.net.arrays.api import Limits, Message, ReplyTo
from eps.net.arrays.connection import Replies, SocketConnection
from eps.net.arrays.frames import Kind
from eps.net.arrays.memory import Arena
from eps.net.arrays.sockets import SocketVan
from eps.net.arrays.wires import Wire
from tests.net.raw_peers import DEADLINE_S, TOKEN, echo, eventually, nothing_left, still_works
from tests.threads import SeenLock


class Silence:
    """A handler that keeps requests for later."""

    def __init__(self) -> None:
        self.requests: list[tuple[Message, ReplyTo]] = []

    def __call__(self, message: Message, reply: ReplyTo) -> None:
        if message.header == b"later":
            self.requests.append((message, reply))
        else:
            reply.send(message)


@pytest.fixture
def silence() -> Silence:
    return Silence()


@pytest.fixture
def connection(silence: Silence) -> Iterator[SocketConnection]:
    with nothing_left(spare_descriptors=8):
        van = SocketVan("unix", TOKEN)
        listener = van.listen(silence)
        connection = van.connect(listener.address, DEADLINE_S)
        yield connection
        connection.close()
        listener.close()


def test_a_reply_that_comes_while_its_request_is_armed_leaves_nothing_armed(connection: SocketConnection) -> None:
    request_id, future = connection._pending.add()
    taken, lock = threading.Event(), SeenLock()
    connection.replies._changed = threading.Condition(lock)  # type: ignore[arg-type]

    def take() -> None:
        with connection.replies._reading:
            connection.replies._take((Kind.REPLY, request_id, Message()))
            taken.set()

    thread = threading.Thread(target=take)
    done = future.done

    def done_just_before_the_reply() -> bool:
        before = done()
        thread.start()
        # It has to wait for this thread, or nothing keeps it from taking the reply.
        eventually(lambda: lock.waited.is_set() or taken.is_set(), "the reply")
        return before

    future.done = done_just_before_the_reply  # type: ignore[method-assign]
    connection.replies.arm(request_id, future)
    thread.join(DEADLINE_S)
    assert not connection.replies._armed
    still_works(connection)


class FailingArena(Arena):
    """Has room for a number of copies, and fails in a way that nobody foresees."""

    copies_left = 0

    def copy(self, array: np.ndarray) -> np.ndarray:
        if not self.copies_left:
            raise RuntimeError("no more")
        self.copies_left -= 1
        return super().copy(array)


def test_a_request_that_cannot_be_made_is_forgotten_with_what_it_lent() -> None:
    with nothing_left(spare_descriptors=8):
        arena = FailingArena()
        van = SocketVan("shm", TOKEN, arena=arena)
        listener = SocketVan("shm", TOKEN).listen(echo)
        connection = van.connect(listener.address, DEADLINE_S)
        large = Message(b"", (np.ones(100_000), np.zeros(100_000)))
        for send in (connection.request, connection.post, lambda message: connection.call(message, DEADLINE_S)):
            arena.copies_left = 1
            with pytest.raises(RuntimeError, match="no more"):
                send(large)
        assert not connection._pending._futures
        assert connection._lender is not None and not connection._lender.requests
        assert not connection._lender._lent
        arena.copies_left = 100
        still_works(connection)
        connection.close()
        listener.close()


@pytest.mark.parametrize("others", [0, 1])
def test_waiting_for_what_another_thread_reads_costs_no_processor(
    connection: SocketConnection, silence: Silence, others: int
) -> None:
    van = SocketVan("tcp", TOKEN)
    listener = van.listen(silence)
    replies: Replies[int] = Replies()
    further = [van.connect(listener.address, DEADLINE_S) for _ in range(others)]
    with connection.replies._reading:
        replies.request(1, connection, Message(b"now"))
        for other in further:
            replies.request(2, other, Message(b"later"))
        began_s = time.thread_time()
        assert replies.next(0.5) is None
        assert time.thread_time() - began_s < 0.15
    answered = replies.next(DEADLINE_S)
    assert answered is not None and answered[0] == 1
    if others:
        eventually(lambda: bool(silence.requests), "the other request has come")
        silence.requests[0][1].send(Message())
        answered = replies.next(DEADLINE_S)
        assert answered is not None and answered[0] == 2
    for other in further:
        other.close()
    listener.close()


def test_a_connection_is_closed_soon_although_another_thread_waits_for_room(
    monkeypatch: pytest.MonkeyPatch, silence: Silence
) -> None:
    with nothing_left(spare_descriptors=8):
        go_on = threading.Event()
        van = SocketVan("shm", TOKEN, Limits(max_outgoing_bytes=1 << 20))
        listener = SocketVan("shm", TOKEN).listen(
            lambda message, reply: (go_on.wait(DEADLINE_S), silence(message, reply))
        )  # type: ignore[func-returns-value]
        connection = van.connect(listener.address, DEADLINE_S)
        writer = connection._writer
        monkeypatch.setattr(writer, "_patience_s", 0.05)
        with pytest.raises(DeadlineError):
            while True:
                connection.request(Message(bytes(100_000)))
        monkeypatch.setattr(writer, "_patience_s", DEADLINE_S)
        refused = threading.Event()

        def ask() -> None:
            with pytest.raises(PeerUnavailableError):
                connection.request(Message(b"", (np.zeros(100_000),))).result(0)
            refused.set()

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: connection._requests._lending.locked(), "it waits for room")
        # An array of a reply that is gone, which the peer is to be told of.
        connection.replies.returned.append(1)
        began_s = time.monotonic()
        connection.close()
        assert time.monotonic() - began_s < DEADLINE_S / 3
        assert refused.wait(DEADLINE_S)
        asking.join(DEADLINE_S)
        go_on.set()
        listener.close()


def test_a_connection_that_is_met_while_its_listener_closes_leaves_nothing_in_the_arena(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with nothing_left(spare_descriptors=8):
        van = SocketVan("shm", TOKEN)
        listener = van.listen(echo)
        meet = listener._meet

        def meet_late(sock: socket.socket) -> Wire | None:
            wire = meet(sock)
            listener._closed = True
            return wire

        monkeypatch.setattr(listener, "_meet", meet_late)
        other = SocketVan("shm", TOKEN).connect(listener.address, DEADLINE_S)
        eventually(lambda: not listener._threads, "its thread has ended")
        other.close()
        listener.close()
        assert van.arena is not None and not van.arena._listeners
