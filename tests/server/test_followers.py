"""The stream to a follower: it ends once, and a refusal after a takeover delays no other stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from eps.core import server_events as s
from eps.core.types import Address
from eps.errors import DeadlineError, PlanError, TakenOverError
from eps.net.arrays.api import Connection, Listener, Message, Peers, ReplyTo
from eps.net.arrays.in_process import InProcessVan
from eps.server import followers
from eps.server.followers import FollowerStream, Transfer
from eps.system.waits import wait_for

TIMEOUT_S = 10.0


class Follower:
    """A follower that keeps updates and acknowledges them on the test's order."""

    def __init__(self) -> None:
        self.van = InProcessVan()
        self.came = threading.Semaphore(0)
        self.replies: list[ReplyTo] = []
        self.listener: Listener = self.van.listen(self._take)
        self.peers = Peers(self.van)

    def _take(self, message: Message, reply: ReplyTo) -> None:
        self.replies.append(reply)
        self.came.release()


@pytest.fixture
def follower() -> Iterator[Follower]:
    follower = Follower()
    yield follower
    follower.peers.close()
    follower.listener.close()


def told_by(stream: FollowerStream) -> tuple[threading.Thread, list[object]]:
    """Drive a stream on a thread, as a server does; return what it yields."""
    told: list[object] = []

    def drive() -> None:
        for found in stream.acknowledged():
            told.append(found)

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    return thread, told


def transfer(size_bytes: int = 8) -> Transfer:
    return Transfer(Message(b"update"), size_bytes)


def test_a_failure_is_told_once_however_many_threads_notice(follower: Follower) -> None:
    stream = FollowerStream(follower.peers, follower.listener.address, 3, "server-2")
    threads = 8
    together = threading.Barrier(threads)
    failures: list[s.SendingFailed | None] = []

    def notice() -> None:
        together.wait(TIMEOUT_S)
        failures.append(stream.fail(DeadlineError("late")))

    noticing = [threading.Thread(target=notice) for _ in range(threads)]
    for thread in noticing:
        thread.start()
    for thread in noticing:
        thread.join(TIMEOUT_S)
    assert [one for one in failures if one is not None] == [s.SendingFailed(3, "server-2", "late")]
    assert list(stream.acknowledged()) == []


def test_an_acknowledgement_that_comes_after_the_end_is_not_told(follower: Follower) -> None:
    stream = FollowerStream(follower.peers, follower.listener.address)
    thread, told = told_by(stream)
    first, second = transfer(), transfer()
    stream.send(first)
    assert follower.came.acquire(timeout=TIMEOUT_S)
    follower.replies[0].send(Message())
    # One whose end the sending thread is certain to have seen.
    stream.send(second)
    assert follower.came.acquire(timeout=TIMEOUT_S)
    wait_for(lambda: told == [first], TIMEOUT_S, "the first to be acknowledged")
    stream.stop()
    follower.replies[1].send(Message())
    thread.join(TIMEOUT_S)
    assert told == [first]


def test_a_follower_that_refuses_fails_the_stream(follower: Follower) -> None:
    stream = FollowerStream(follower.peers, follower.listener.address, 3, "server-2")
    thread, told = told_by(stream)
    stream.send(transfer())
    assert follower.came.acquire(timeout=TIMEOUT_S)
    follower.replies[0].fail(PlanError("no"))
    thread.join(TIMEOUT_S)
    assert stream.wait_for_room() is None
    assert told == [s.SendingFailed(3, "server-2", "no")]


def test_a_follower_that_takes_nothing_fails_the_stream_where_a_worker_waits(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "SEND_TIMEOUT_S", 0.01)
    stream = FollowerStream(follower.peers, follower.listener.address, 3, "server-2")
    stream.send(transfer(followers.MOST_WAITING_BYTES + 1))
    failed = stream.wait_for_room()
    assert failed is not None and "did not receive queued updates" in failed.why
    assert stream.wait_for_room() is None and list(stream.acknowledged()) == []


def test_a_refused_update_is_not_acknowledged_and_those_behind_it_are_sent(follower: Follower) -> None:
    stream = FollowerStream(follower.peers, follower.listener.address)
    thread, told = told_by(stream)
    refused, on_its_way, queued, late = (transfer() for _ in range(4))
    for one in (refused, on_its_way, queued):
        stream.send(one)
    for _ in range(3):
        assert follower.came.acquire(timeout=TIMEOUT_S)
    follower.replies[0].fail(TakenOverError("server-2 owns partition 0 now"))
    follower.replies[1].send(Message())
    follower.replies[2].send(Message())
    stream.send(late)
    assert follower.came.acquire(timeout=TIMEOUT_S)
    follower.replies[3].send(Message())
    wait_for(lambda: stream._waiting_bytes == 0, TIMEOUT_S, "the stream to be empty")
    stream.stop()
    thread.join(TIMEOUT_S)
    assert told == [on_its_way, queued, late]


def test_whatever_goes_wrong_on_the_sending_thread_fails_the_stream(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(address: Address) -> Connection:
        raise MemoryError("no room for a message")

    monkeypatch.setattr(follower.peers, "to", no_room)
    stream = FollowerStream(follower.peers, follower.listener.address)
    stream.send(transfer())
    (failed,) = stream.acknowledged()
    assert isinstance(failed, s.SendingFailed) and failed.why == "MemoryError: no room for a message"
    # No sender is blocked, and no update is kept for an ended stream.
    stream.send(transfer())
    assert stream.wait_for_room() is None
    assert stream._waiting_bytes == 0 and not stream._waiting
