"""The stream to a follower: it ends once, whoever notices, and what is refused as taken over holds up nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from eps.errors import DeadlineError, EpsError, PlanError, TakenOverError, TransferError
from eps.net.arrays.api import Listener, Message, ReplyTo
from eps.net.arrays.inproc import InProcessVan
from eps.net.arrays.peers import Peers
from eps.server.follower_stream import FollowerStream
from eps.system.waits import wait_for

TIMEOUT_S = 10.0


class Follower:
    """Keeps what it gets and answers when it is told to."""

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


def test_a_failure_is_told_once_however_many_threads_notice(follower: Follower) -> None:
    failures: list[EpsError] = []
    stream = FollowerStream(follower.peers, follower.listener.address, failures.append)
    threads = 8
    together = threading.Barrier(threads)

    class Meeting(threading.Condition):
        """Lets the threads that leave the lock for the first time go on together: none may have decided by then."""

        def __exit__(self, *args: object) -> None:
            super().__exit__(*args)  # type: ignore[arg-type]
            if threading.current_thread().name.startswith("notices"):
                together.wait(TIMEOUT_S)

    before = stream._changed
    stream._changed = Meeting()
    noticing = [
        threading.Thread(target=lambda: stream._fail(DeadlineError("late")), name=f"notices-{n}")
        for n in range(threads)
    ]
    for thread in noticing:
        thread.start()
    for thread in noticing:
        thread.join(TIMEOUT_S)
    stream._changed = before
    stream.stop()
    assert len(failures) == 1


def test_an_acknowledgement_that_comes_after_the_end_is_not_told(follower: Follower) -> None:
    failures: list[EpsError] = []
    told: list[str] = []
    stream = FollowerStream(follower.peers, follower.listener.address, failures.append)
    stream.send(lambda: Message(b"first"), 1, lambda: told.append("first"))
    assert follower.came.acquire(timeout=TIMEOUT_S)
    follower.replies[0].send(Message())
    # One whose end the sending thread is certain to have seen.
    stream.send(lambda: Message(b"second"), 1, lambda: told.append("second"))
    assert follower.came.acquire(timeout=TIMEOUT_S)
    stream.stop()
    follower.replies[1].send(Message())
    stream._thread.join(TIMEOUT_S)
    assert told == ["first"] and not failures


def test_a_follower_that_refuses_fails_the_stream(follower: Follower) -> None:
    failed = threading.Event()
    failures: list[EpsError] = []

    def fail(error: EpsError) -> None:
        failures.append(error)
        failed.set()

    stream = FollowerStream(follower.peers, follower.listener.address, fail)
    stream.send(lambda: Message(b"first"), 1)
    assert follower.came.acquire(timeout=TIMEOUT_S)
    follower.replies[0].fail(PlanError("no"))
    assert failed.wait(TIMEOUT_S)
    stream.wait_for_room()
    assert len(failures) == 1


def test_a_refused_update_is_not_acknowledged_and_those_behind_it_are_sent(follower: Follower) -> None:
    failures: list[EpsError] = []
    told: list[str] = []
    stream = FollowerStream(follower.peers, follower.listener.address, failures.append)
    names = ("refused", "on its way", "queued", "late")
    for name in names[:3]:
        stream.send(lambda: Message(b"update"), 8, lambda name=name: told.append(name))  # type: ignore[misc]
    for _ in names[:3]:
        assert follower.came.acquire(timeout=TIMEOUT_S)
    follower.replies[0].fail(TakenOverError("server-2 owns partition 0 now"))
    follower.replies[1].send(Message())
    follower.replies[2].send(Message())
    stream.send(lambda: Message(b"update"), 8, lambda: told.append(names[3]))
    assert follower.came.acquire(timeout=TIMEOUT_S)
    follower.replies[3].send(Message())
    wait_for(lambda: stream._waiting_bytes == 0, TIMEOUT_S, "the stream to be empty")
    stream.stop()
    assert told == list(names[1:]) and not failures


@pytest.mark.parametrize("where", ["make", "done"])
def test_whatever_goes_wrong_on_the_sending_thread_fails_the_stream(follower: Follower, where: str) -> None:
    failed = threading.Event()
    failures: list[EpsError] = []

    def fail(error: EpsError) -> None:
        failures.append(error)
        failed.set()

    def no_room() -> Message:
        raise MemoryError("no room for a message")

    stream = FollowerStream(follower.peers, follower.listener.address, fail)
    if where == "make":
        stream.send(no_room, 8)
    else:
        stream.send(lambda: Message(b"update"), 8, no_room)  # type: ignore[arg-type]
        assert follower.came.acquire(timeout=TIMEOUT_S)
        follower.replies[0].send(Message())
    assert failed.wait(TIMEOUT_S)
    (error,) = failures
    assert isinstance(error, TransferError) and "MemoryError: no room for a message" in str(error)
    # Nobody waits for room, and nothing is kept for a follower that gets no more.
    stream.send(no_room, 8)
    stream.wait_for_room()
    assert stream._waiting_bytes == 0 and not stream._waiting
