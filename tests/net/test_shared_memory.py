"""Arrays that are lent, not copied: whose memory they are in, when it is used again, and that none of it is left."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from eps.core.types import Address
from eps.errors import DeadlineError, PeerUnavailableError
from eps.net.arrays import memory as arena_module
from eps.net.arrays.api import MIB, Connection, Handler, Limits, Listener, Message, ReplyTo
from eps.net.arrays.memory import SLAB_BYTES, Arena, Reader, Segment
from eps.net.arrays.sockets import SocketVan
from tests.net.raw_peers import (
    DEADLINE_S,
    TOKEN,
    ask,
    descriptors,
    echo,
    eventually,
    nothing_left,
    shared_files,
    shared_mappings,
)

#: A block of this size is a segment of its own.
LARGE_BYTES = 20 * MIB


@contextmanager
def pair(handler: Handler, limits: Limits | None = None) -> Iterator[tuple[SocketVan, Listener, Connection]]:
    """Yield a van, a listener and a connection to it, whose ends share the van's arena."""
    van = SocketVan("shm", TOKEN, limits)
    listener = van.listen(handler)
    connection = van.connect(listener.address, DEADLINE_S)
    try:
        yield van, listener, connection
    finally:
        connection.close()
        listener.close()


class Gate:
    """A handler that keeps each request until the test has looked at it."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.kept: list[tuple[Message, ReplyTo]] = []

    def __call__(self, message: Message, reply: ReplyTo) -> None:
        self.kept.append((message, reply))
        self.arrived.release()

    def next(self) -> Message:
        assert self.arrived.acquire(timeout=DEADLINE_S)
        return self.kept[-1][0]

    def answer_all(self) -> None:
        while self.kept:
            self.kept.pop()[1].send(Message())


def place_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def size_of(van: SocketVan) -> int:
    assert van.arena is not None
    return van.arena.size_bytes


def test_an_array_of_the_van_is_received_where_it_lies() -> None:
    gate = Gate()
    with pair(gate) as (van, _, connection):
        sent = van.empty((1000, 100), np.float64)
        sent[...] = np.arange(100_000).reshape(1000, 100)
        connection.request(Message(b"", (sent,)))
        received = gate.next().arrays[0]
        assert not received.flags.writeable
        assert received.tobytes() == sent.tobytes()
        assert place_of(received) != place_of(sent), "mapped a second time"
        sent[3, 4] = -1.0
        assert received[3, 4] == -1.0, "no copy in between"
        del received
        gate.answer_all()


def test_what_a_peer_lent_cannot_be_written_by_any_means() -> None:
    gate = Gate()
    gc.collect()
    before = len(shared_mappings())
    with pair(gate) as (van, _, connection):
        connection.request(Message(b"", (van.empty(MIB, np.uint8),)))
        received = gate.next().arrays[0]
        assert not received.flags.writeable
        place, ways = place_of(received), []
        for line in shared_mappings():
            span, allowed = line.split()[:2]
            start, stop = (int(number, 16) for number in span.split("-"))
            ways.append((allowed, start <= place < stop))
        assert len(ways) == before + 2
        assert [allowed for allowed, here in ways if here] == ["r--s"]
        del received
        gate.answer_all()


def test_an_ordinary_array_is_copied_once_when_it_is_sent() -> None:
    gate = Gate()
    with pair(gate) as (van, _, connection):
        sent = np.zeros(MIB)
        connection.request(Message(b"", (sent,)))
        received = gate.next().arrays[0]
        sent[0] = 1.0
        assert received[0] == 0.0 and not received.flags.writeable
        assert size_of(van) == SLAB_BYTES, "the copy lies in shared memory"
        del received
        gate.answer_all()


def test_a_small_array_travels_through_the_socket() -> None:
    gate = Gate()
    with pair(gate) as (van, _, connection):
        connection.request(Message(b"", (np.zeros(1000), np.zeros(()), np.zeros(0))))
        assert all(array.flags.writeable for array in gate.next().arrays)
        assert size_of(van) == 0
        gate.answer_all()


def test_memory_of_a_request_is_used_again_once_it_is_answered() -> None:
    gate = Gate()
    with pair(gate) as (van, _, connection):
        sent = van.empty(MIB, np.uint8)
        first = place_of(sent)
        future = connection.request(Message(b"", (sent,)))
        gate.next()
        del sent
        others = [van.empty(MIB, np.uint8) for _ in range(5)]
        assert first not in {place_of(array) for array in others}
        gate.answer_all()
        future.result(DEADLINE_S)
        assert place_of(van.empty(MIB, np.uint8)) == first


def test_memory_of_a_reply_is_used_again_once_the_last_view_of_it_is_gone() -> None:
    places = []

    def give(message: Message, reply: ReplyTo) -> None:
        array = van.empty(MIB, np.uint8)
        array[:] = len(places)
        places.append(place_of(array))
        reply.send(Message(b"", (array,)))

    with pair(give) as (van, _, connection):
        held = [ask(connection, Message()).arrays[0] for _ in range(4)]
        assert len(set(places)) == 4
        view = held[1][100:200]
        del held[1]
        ask(connection, Message())
        assert len(set(places)) == 5, "a view of it is still there"
        assert set(view.tolist()) == {1} and [int(array[0]) for array in held] == [0, 2, 3]
        del view, held
        ask(connection, Message())
        # What has come back is told with the next message; only then is it there to be used.
        ask(connection, Message())
        assert len(set(places)) < len(places)


def test_what_was_lent_on_a_connection_that_its_requester_closed_is_not_written_again() -> None:
    gate = Gate()
    with pair(gate) as (van, listener, connection):
        for size_bytes in (MIB, LARGE_BYTES):
            asking = van.connect(listener.address, DEADLINE_S)
            sent = van.empty(size_bytes, np.uint8)
            sent[:] = 5
            asking.request(Message(b"", (sent, np.full(MIB, 5, np.uint8))))
            reading = gate.next().arrays
            asking.close()
            del sent
            for _ in range(4):
                van.empty(size_bytes, np.uint8)[:] = 9
                van.empty(MIB, np.uint8)[:] = 9
            assert [set(np.unique(array).tolist()) for array in reading] == [{5}, {5}]
            del reading
        assert not connection.closed


def test_what_a_listener_had_lent_when_it_closed_is_not_written_again() -> None:
    def give(message: Message, reply: ReplyTo) -> None:
        array = van.empty(LARGE_BYTES, np.uint8)
        array[:] = 5
        reply.send(Message(b"", (array, np.full(MIB, 5, np.uint8))))

    with pair(give) as (van, listener, connection):
        reading = ask(connection, Message()).arrays
        listener.close()
        for _ in range(4):
            van.empty(LARGE_BYTES, np.uint8)[:] = 9
            van.empty(MIB, np.uint8)[:] = 9
        assert [set(np.unique(array).tolist()) for array in reading] == [{5}, {5}]


def test_a_peer_hears_that_a_segment_is_gone_also_where_another_peer_was_lost_with_it() -> None:
    gate = Gate()
    gc.collect()
    before = len(shared_mappings())
    with pair(gate) as (van, listener, connection):
        other = van.connect(listener.address, DEADLINE_S)
        shared = van.empty(LARGE_BYTES, np.uint8)
        other.request(Message(b"", (shared,)))
        gate.next()
        future = connection.request(Message(b"", (shared,)))
        gate.next()
        assert len(shared_mappings()) == before + 3
        other.close()
        gate.answer_all()
        future.result(DEADLINE_S)
        del shared
        # The arena notices when it is next asked, the peer with the next message.
        small = van.empty(MIB, np.uint8)
        connection.request(Message(b"", (small,)))
        gate.next()
        gate.answer_all()
        del small
        # The slab, here and at the peer.
        eventually(lambda: len(shared_mappings()) == before + 2, "the lost segment is unmapped at both ends")


def test_segments_that_are_too_many_to_keep_are_forgotten_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "MOST_IDLE_BYTES", 2 * LARGE_BYTES)
    gc.collect()
    before = len(shared_mappings())
    with pair(lambda message, reply: reply.send(Message())) as (van, listener, connection):
        for i in range(40):
            # Each of a size of its own, so that none fits where another was; pages that nobody touches cost nothing.
            sent = van.empty(LARGE_BYTES + i * 4 * MIB, np.uint8)
            sent[-1] = i
            ask(connection, Message(b"", (sent,)))
            del sent
            assert size_of(van) <= 6 * (LARGE_BYTES + i * 4 * MIB)
            assert len(shared_mappings()) <= before + 8
    del van, listener, connection
    gc.collect()
    assert len(shared_mappings()) == before


def test_the_arena_stays_small_over_thousands_of_messages_of_changing_sizes() -> None:
    rng = np.random.default_rng(3)
    source = rng.random(100_000)
    with pair(echo) as (van, _, connection):
        for _ in range(2000):
            array = source[: int(np.exp(rng.uniform(np.log(2_000), np.log(60_000))))]
            received = ask(connection, Message(b"", (array,))).arrays[0]
            assert received[-1] == array[-1] and len(received) == len(array)
        assert size_of(van) == SLAB_BYTES


def test_above_the_budget_of_copies_arrays_go_through_the_socket() -> None:
    gate = Gate()
    with pair(gate, Limits(max_outgoing_bytes=3 * MIB)) as (van, _, connection):
        for _ in range(2):
            lent = []
            futures = []
            for i in range(4):
                futures.append(connection.request(Message(b"", (np.full(MIB, i, np.uint8),))))
                array = gate.next().arrays[0]
                assert set(array.tolist()) == {i}
                lent.append(not array.flags.writeable)
                del array
            assert lent == [True, True, True, False]
            own = van.empty(MIB, np.uint8)
            futures.append(connection.request(Message(b"", (own,))))
            assert not gate.next().arrays[0].flags.writeable, "what is no copy is lent whatever the budget is"
            gate.answer_all()
            for future in futures:
                future.result(DEADLINE_S)


def test_without_memory_to_share_arrays_go_through_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    with pair(echo) as (_, _, connection):
        monkeypatch.setattr(os, "memfd_create", refuse)
        received = ask(connection, Message(b"", (np.arange(MIB),)))
        assert received.arrays[0].tolist() == list(range(MIB))


def test_a_segment_that_cannot_be_made_closes_nobody_elses_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(OSError, match="No space") as caught:
        Segment(1, MIB, False)
    # It has the number that is free again, while what was not made is still held by the error.
    with (tmp_path / "other").open("wb") as other:
        del caught
        gc.collect()
        os.fstat(other.fileno())


def test_a_segment_that_could_not_be_passed_for_lack_of_room_is_passed_later() -> None:
    gate = threading.Event()

    def hold(message: Message, reply: ReplyTo) -> None:
        gate.wait(DEADLINE_S)
        reply.send(Message(bytes(message.arrays[0][:1]) if message.arrays else b""))

    with pair(hold, Limits(max_outgoing_bytes=MIB)) as (van, _, connection):
        connection._writer._patience_s = 0.05  # type: ignore[attr-defined]
        futures = []
        with pytest.raises(DeadlineError):
            for _ in range(1000):
                futures.append(connection.request(Message(bytes(300_000))))
        sent = van.empty(LARGE_BYTES, np.uint8)
        sent[:] = 7
        for _ in range(3):
            with pytest.raises(DeadlineError):
                connection.request(Message(b"", (sent,)))
        gate.set()
        for future in futures:
            future.result(DEADLINE_S)
        assert ask(connection, Message(b"", (sent,))).header == b"\x07"


def test_a_message_that_was_let_through_leaves_although_the_room_was_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()

    def hold(message: Message, reply: ReplyTo) -> None:
        gate.wait(DEADLINE_S)
        reply.send(Message(bytes(message.arrays[0][:1]) if message.arrays else b""))

    with pair(hold, Limits(max_outgoing_bytes=MIB)) as (van, _, connection):
        writer = connection._writer  # type: ignore[attr-defined]
        writer._patience_s = 0.05
        sent = van.empty(LARGE_BYTES, np.uint8)
        sent[:] = 7
        small: list[Future[Message]] = []
        await_room = writer.await_room

        def fill(size_bytes: int) -> None:
            """Let the message through, and take the room: in vain where the queue is full."""
            await_room(size_bytes)
            with pytest.raises(DeadlineError):
                while True:
                    small.append(connection.request(Message(bytes(3000))))

        monkeypatch.setattr(writer, "await_room", fill)
        large = connection.request(Message(b"", (sent,)))
        gate.set()
        assert large.result(DEADLINE_S).header == b"\x07"
        assert [future.result(DEADLINE_S).header for future in small] == [b""] * len(small)


def test_threads_that_reply_on_one_connection_may_each_need_a_new_segment() -> None:
    with ThreadPoolExecutor(8) as pool:

        def give(message: Message, reply: ReplyTo) -> None:
            pool.submit(give_one, int(message.header), reply)

        def give_one(number: int, reply: ReplyTo) -> None:
            array = van.empty(LARGE_BYTES + number * 8192, np.uint8)
            array[0] = array[-1] = number
            reply.send(Message(b"", (array, np.full(50_000, number))))

        with pair(give) as (van, _, connection):
            futures = [connection.request(Message(b"%d" % number)) for number in range(40)]
            for number, future in enumerate(futures):
                large, small = future.result(DEADLINE_S).arrays
                assert (large[0], large[-1], len(large)) == (number, number, LARGE_BYTES + number * 8192)
                assert (small == number).all()


def test_threads_that_ask_on_one_connection_may_each_need_a_new_segment() -> None:
    with pair(lambda message, reply: reply.send(Message(bytes(message.arrays[0][-1:])))) as (van, _, connection):

        def ask_for(number: int) -> bool:
            sent = van.empty(LARGE_BYTES + number * 8192, np.uint8)
            sent[-1] = number
            return ask(connection, Message(b"", (sent,))).header == bytes([number])

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask_for, range(40)))


SERVING = f"""
import sys
import numpy as np
from eps.net.security.credentials import JobToken, Security
from eps.net.arrays.api import Message
from eps.net.arrays.sockets import SocketVan
van = SocketVan("shm", Security(JobToken(b"the token of these tests")))
def give(message, reply):
    array = van.empty({LARGE_BYTES}, np.uint8)
    array[:] = 5
    reply.send(Message(b"", (array, np.full(100_000, 5, np.uint8))))
print(van.listen(give).address.host, flush=True)
sys.stdin.read()
"""

ASKING = f"""
import sys
import numpy as np
from eps.core.types import Address
from eps.net.security.credentials import JobToken, Security
from eps.net.arrays.api import Message
from eps.net.arrays.sockets import SocketVan
van = SocketVan("shm", Security(JobToken(b"the token of these tests")))
connection = van.connect(Address(sys.argv[1], 0))
array = van.empty({LARGE_BYTES}, np.uint8)
array[:] = 5
connection.request(Message(b"", (array, np.full(100_000, 5, np.uint8))))
sys.stdin.read()
"""


def child(script: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def segments_open() -> list[str]:
    return [name for name in descriptors().values() if "memfd:eps-" in name]


def test_a_listener_that_is_killed_leaves_no_memory() -> None:
    gc.collect()
    before, files = len(shared_mappings()), shared_files()
    with nothing_left(), child(SERVING) as process:
        assert process.stdout is not None
        address = Address(process.stdout.readline().decode().strip(), 0)
        connection = SocketVan("shm", TOKEN).connect(address, DEADLINE_S)
        reading = ask(connection, Message()).arrays
        assert len(shared_mappings()) == before + 2
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
        with pytest.raises(PeerUnavailableError):
            ask(connection, Message())
        connection.close()
        assert [set(np.unique(array).tolist()) for array in reading] == [{5}, {5}], "whoever reads is not disturbed"
        del reading
        assert len(shared_mappings()) == before
        process.stdout.close()
        if process.stdin is not None:
            process.stdin.close()
    assert shared_files() <= files


def test_a_requester_that_is_killed_leaves_no_memory() -> None:
    gc.collect()
    before, files, opened = len(shared_mappings()), shared_files(), len(segments_open())
    arrived, go_on, done = threading.Event(), threading.Event(), threading.Event()
    seen: list[set[int]] = []

    def read(message: Message, reply: ReplyTo) -> None:
        arrived.set()
        go_on.wait(DEADLINE_S)
        seen.extend(set(np.unique(array).tolist()) for array in message.arrays)
        reply.send(Message())
        done.set()

    listener = SocketVan("shm", TOKEN).listen(read)
    with child(ASKING, listener.address.host) as process:
        assert arrived.wait(DEADLINE_S)
        assert len(shared_mappings()) == before + 2
        process.kill()
        process.wait(DEADLINE_S)
        go_on.set()
        assert done.wait(DEADLINE_S) and seen == [{5}, {5}]
    eventually(lambda: len(shared_mappings()) == before, "the segments of the dead are unmapped")
    eventually(lambda: len(segments_open()) == opened, "and closed")
    listener.close()
    assert shared_files() <= files


def test_an_arena_gives_everything_back_with_its_last_array() -> None:
    gc.collect()
    before, opened = len(shared_mappings()), len(segments_open())
    arena = Arena()
    arrays = [arena.array(size, np.uint8) for size in (1, 5000, MIB, LARGE_BYTES, SLAB_BYTES)]
    last = arrays[2][10:]
    assert len(shared_mappings()) == before + 3
    del arena, arrays
    last[0] = 1
    del last
    assert (len(shared_mappings()), len(segments_open())) == (before, opened)


def test_what_a_lost_peer_may_be_reading_is_used_again_when_its_process_has_ended() -> None:
    arena = Arena()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as reader:
        array = arena.array(5000, np.uint8)
        place = place_of(array)
        Arena.retire(array, Reader(reader.pid))
        del array
        others = [arena.array(5000, np.uint8) for _ in range(3)]
        assert place not in map(place_of, others)
        reader.kill()
        reader.wait(DEADLINE_S)
    assert place_of(arena.array(5000, np.uint8)) == place
    # One that has ended already, and one of which nothing is known.
    assert Reader(reader.pid).gone and not Reader(0).gone
