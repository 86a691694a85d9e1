"""The requesting end of a connection: the threads that read replies, and waiting for the first of several."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from eps.errors import DeadlineError, PeerUnavailableError, PlanError
from eps.net.arrays.api import Connection, Handler, Limits, Message, ReplyTo, Van
from eps.net.arrays.connection import Replies, SocketConnection
from eps.net.arrays.frames import Kind
from eps.net.arrays.in_process import InProcessVan
from eps.net.arrays.memory import Arena
from eps.net.arrays.sockets import SocketVan
from eps.net.arrays.wires import Wire
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
    receive,
    send,
    still_works,
)
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
    """A memory that fits a number of copies, and then fails with an unexpected error."""

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
        for send in (connection.request, connection.post):
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
        # An array of a dropped reply, which must be returned to the peer.
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


WAYS = ["tcp", "unix", "shm", "inproc"]


def van_of(way: str) -> Van:
    return InProcessVan() if way == "inproc" else SocketVan(way, TOKEN)


class Members:
    """Connections to listeners of any kind, given back at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def connect(self, way: str, handler: Handler = echo) -> Connection:
        van = van_of(way)
        listener = van.listen(handler)
        self._stack.callback(listener.close)
        connection = van.connect(listener.address, DEADLINE_S)
        self._stack.callback(connection.close)
        return connection

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def members() -> Iterator[Members]:
    with nothing_left(spare_descriptors=8):
        members = Members()
        yield members
        members.close()


def drain(replies: Replies[int]) -> dict[int, bytes]:
    found = {}
    while len(replies):
        answered = replies.next(DEADLINE_S)
        assert answered is not None
        tag, future = answered
        assert tag not in found
        found[tag] = future.result().header
    return found


@pytest.mark.parametrize("ways", [[way] * 3 for way in WAYS] + [WAYS, ["tcp", "inproc"], ["shm", "unix"]], ids="-".join)
def test_each_request_is_answered_once_with_its_tag(members: Members, ways: list[str]) -> None:
    connections = [members.connect(way) for way in ways]
    replies: Replies[int] = Replies()
    for round_number in range(5):
        for tag in range(40):
            message = Message(b"%d" % tag, (np.full(int(10 ** (tag % 6)), tag),))
            replies.request(tag, connections[tag % len(connections)], message)
        assert len(replies) == 40 and sorted(replies.tags) == list(range(40)), round_number
        assert drain(replies) == {tag: b"%d" % tag for tag in range(40)}
    assert replies.next(0.0) is None


@pytest.mark.parametrize("ways", [["tcp", "unix"], ["shm", "tcp"], ["inproc", "shm"]], ids="-".join)
def test_the_first_reply_is_given_first(members: Members, ways: list[str]) -> None:
    kept: list[tuple[Message, ReplyTo]] = []
    slow = members.connect(ways[0], lambda message, reply: kept.append((message, reply)))
    fast = members.connect(ways[1])
    replies: Replies[str] = Replies()
    replies.request("slow", slow, Message(b"slow"))
    for _ in range(3):
        replies.request("fast", fast, Message(b"fast"))
        answered = replies.next(DEADLINE_S)
        assert answered is not None and answered[0] == "fast"
    assert replies.tags == ["slow"]
    while not kept:
        threading.Event().wait(0.001)
    kept[0][1].send(kept[0][0])
    answered = replies.next(DEADLINE_S)
    assert answered is not None and answered[0] == "slow" and answered[1].result().header == b"slow"


@pytest.mark.parametrize("ways", [["tcp"], ["tcp", "inproc"], ["inproc"]], ids="-".join)
def test_waiting_ends_when_the_time_is_over(members: Members, ways: list[str]) -> None:
    replies: Replies[int] = Replies()
    assert replies.next(DEADLINE_S) is None, "nothing is under way"
    for tag, way in enumerate(ways):
        replies.request(tag, members.connect(way, lambda message, reply: None), Message())
    for timeout_s in (0.0, 0.05):
        started_s = time.monotonic()
        assert replies.next(timeout_s) is None
        assert timeout_s <= time.monotonic() - started_s < DEADLINE_S
    assert len(replies) == len(ways), "they are still under way"


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_is_a_reply(members: Members, way: str) -> None:
    replies: Replies[int] = Replies()
    replies.request(1, members.connect(way, lambda message, reply: reply.fail(PlanError("no"))), Message())
    answered = replies.next(DEADLINE_S)
    assert answered is not None
    with pytest.raises(PlanError, match="no"):
        answered[1].result()


@pytest.mark.parametrize("way", WAYS)
def test_requests_of_a_connection_that_breaks_fail_and_others_go_on(way: str) -> None:
    with nothing_left(spare_descriptors=8):
        van, other_van = van_of(way), SocketVan("tcp", TOKEN)
        arrived = threading.Semaphore(0)
        breaking = van.listen(lambda message, reply: arrived.release())
        fine = other_van.listen(echo)
        broken, other = van.connect(breaking.address, DEADLINE_S), other_van.connect(fine.address, DEADLINE_S)
        replies: Replies[int] = Replies()
        for tag in range(3):
            replies.request(tag, broken, Message())
        for _ in range(3):
            assert arrived.acquire(timeout=DEADLINE_S)
        breaking.close()
        replies.request(3, other, Message(b"fine"))
        found = {}
        while len(replies):
            answered = replies.next(DEADLINE_S)
            assert answered is not None
            found[answered[0]] = answered[1].outcome
        assert isinstance(found.pop(3), Message)
        assert [type(error) for error in found.values()] == [PeerUnavailableError] * 3
        with pytest.raises(PeerUnavailableError):
            replies.request(4, broken, Message())
            answered = replies.next(DEADLINE_S)
            assert answered is not None
            answered[1].result()
        broken.close()
        other.close()
        fine.close()


@pytest.mark.parametrize("way", ["tcp", "shm", "inproc"])
def test_requests_of_a_connection_that_is_closed_here_fail(members: Members, way: str) -> None:
    connection = members.connect(way, lambda message, reply: None)
    replies: Replies[int] = Replies()
    for tag in range(3):
        replies.request(tag, connection, Message())
    connection.close()
    for _ in range(3):
        answered = replies.next(DEADLINE_S)
        assert answered is not None
        with pytest.raises(PeerUnavailableError):
            answered[1].result()
    assert replies.next(0.0) is None


def test_a_connection_that_sends_garbage_fails_and_others_go_on(members: Members) -> None:
    other = members.connect("unix")
    replies: Replies[str] = Replies()
    with RawListener(
        lambda sock: (accept_handshake(sock, "tcp"), receive(sock, 40), send(sock, bytes(100)))
    ) as listener:
        bad = SocketVan("tcp", TOKEN).connect(listener.address, DEADLINE_S)
        replies.request("bad", bad, Message())
        replies.request("good", other, Message(b"good"))
        found = {}
        while len(replies):
            answered = replies.next(DEADLINE_S)
            assert answered is not None
            found[answered[0]] = answered[1].outcome
        assert isinstance(found["good"], Message) and isinstance(found["bad"], PeerUnavailableError)
        bad.close()


def test_several_replies_that_came_with_one_segment_are_all_given(members: Members) -> None:
    replies: Replies[int] = Replies()

    def answer_at_once(sock: object) -> None:
        accept_handshake(sock, "tcp")  # type: ignore[arg-type]
        receive(sock, 40 * 3)  # type: ignore[arg-type]
        send(sock, b"".join(frame_of(Message(b"%d" % i), i + 1, Kind.REPLY) for i in (2, 0, 1)))  # type: ignore[arg-type]

    with RawListener(answer_at_once) as listener:
        connection = SocketVan("tcp", TOKEN).connect(listener.address, DEADLINE_S)
        for tag in range(3):
            replies.request(tag, connection, Message())
        assert drain(replies) == {0: b"0", 1: b"1", 2: b"2"}
        connection.close()


def test_posts_and_requests_of_other_threads_share_the_connection(members: Members) -> None:
    connection = members.connect("tcp")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(100):
                header = b"%d %d" % (number, i)
                if number % 2:
                    assert ask(connection, Message(header)).header == header
                else:
                    assert connection.request(Message(header)).result(DEADLINE_S).header == header
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    replies: Replies[int] = Replies()
    for _ in range(20):
        for tag in range(10):
            replies.request(tag, connection, Message(b"%d" % tag))
        assert drain(replies) == {tag: b"%d" % tag for tag in range(10)}
    for thread in threads:
        thread.join(DEADLINE_S)
    assert failures == []
