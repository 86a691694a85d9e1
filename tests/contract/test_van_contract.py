"""What every van owes (``eps/net/arrays/api.py``).  A van is done when it passes: give it a class at the end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

import numpy as np
import pytest

from eps.core.types import Address
from eps.errors import ConfigError, EpsError, IllegalTransitionError, PeerUnavailableError, PlanError, ProtocolError
from eps.net.arrays.api import (
    ALIGNMENT_BYTES,
    DTYPES,
    MIB,
    Connection,
    Handler,
    Limits,
    Listener,
    Message,
    ReplyTo,
    Van,
)
from eps.net.arrays.connection import Replies
from eps.net.arrays.in_process import InProcessVan
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.arrays.sockets import SocketVan
from eps.net.calls.error_codec import ERROR_CLASSES
from eps.net.security.certificates import make_certificates
from eps.net.security.credentials import JobToken, Security, TlsFiles
from tests.threads import at_once

DEADLINE_S = 20.0
#: One of each class that takes only a text.
FAILURES = [cls("the reason") for cls in ERROR_CLASSES.values()]


def echo(message: Message, reply: ReplyTo) -> None:
    reply.send(message)


def ask(connection: Connection, header: bytes = b"", *arrays: np.ndarray) -> Message:
    return connection.request(Message(header, arrays)).result(DEADLINE_S)


def assert_same(received: Message, sent: Message) -> None:
    assert received.header == sent.header
    assert len(received.arrays) == len(sent.arrays)
    for got, want in zip(received.arrays, sent.arrays, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert got.tobytes() == want.tobytes()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


class Ends:
    """Listeners and connections of one test, given back at its end."""

    def __init__(self, van: Van) -> None:
        self.van = van
        self._closers: list[Callable[[], None]] = []

    def listen(self, handler: Handler) -> Listener:
        listener = self.van.listen(handler)
        self._closers.append(listener.close)
        return listener

    def connect(self, listener: Listener) -> Connection:
        connection = self.van.connect(listener.address, DEADLINE_S)
        self._closers.append(connection.close)
        return connection

    def pair(self, handler: Handler = echo) -> Connection:
        return self.connect(self.listen(handler))

    def close(self) -> None:
        for closer in reversed(self._closers):
            closer()


class VanContract:
    """The suite; a subclass says which van."""

    def make_van(self, limits: Limits | None = None) -> Van:
        raise NotImplementedError

    @pytest.fixture
    def ends(self) -> Iterator[Ends]:
        before = set(threading.enumerate())
        ends = Ends(self.make_van())
        yield ends
        ends.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), f"{thread.name} is left"

    def test_every_type_and_shape_comes_back_as_it_was(self, ends: Ends) -> None:
        rng, connection = np.random.default_rng(1), ends.pair()
        for dtype in DTYPES:
            for shape in [(), (0,), (1,), (1000,), (3, 5), (0, 7), (2, 3, 4), (2, 1, 3, 2)]:
                array = rng.integers(0, 255, size=(*shape, dtype.itemsize), dtype=np.uint8).view(dtype).reshape(shape)
                sent = Message(b"header", (array,))
                assert_same(connection.request(sent).result(DEADLINE_S), sent)

    def test_messages_without_arrays_or_header_come_back(self, ends: Ends) -> None:
        connection = ends.pair()
        for sent in (Message(), Message(b"only a header"), Message(b"", (np.arange(3),)), Message(bytes(300_000))):
            assert_same(connection.request(sent).result(DEADLINE_S), sent)

    def test_many_arrays_of_odd_lengths_come_back_aligned(self, ends: Ends) -> None:
        rng = np.random.default_rng(2)
        arrays = tuple(
            rng.integers(0, 100, size=int(rng.integers(0, 70))).astype(DTYPES[int(rng.integers(len(DTYPES)))])
            for _ in range(200)
        )
        sent = Message(b"h", arrays)
        received = ends.pair().request(sent).result(DEADLINE_S)
        assert_same(received, sent)
        for array in received.arrays:
            assert array.size == 0 or array.ctypes.data % ALIGNMENT_BYTES == 0
            assert array.flags.c_contiguous

    def test_arrays_of_many_mebibytes_come_back(self, ends: Ends) -> None:
        rng = np.random.default_rng(3)
        sent = Message(b"big", (rng.random(10_000_000, dtype=np.float32), np.arange(7), rng.random((1000, 33))))
        assert_same(ends.pair().request(sent).result(DEADLINE_S), sent)

    def test_a_read_only_array_is_carried(self, ends: Ends) -> None:
        array = np.arange(5)
        array.flags.writeable = False
        assert ask(ends.pair(), b"", array).arrays[0].tolist() == [0, 1, 2, 3, 4]

    def test_what_the_receiver_writes_does_not_reach_the_sender(self, ends: Ends) -> None:
        def overwrite(message: Message, reply: ReplyTo) -> None:
            message.arrays[0][:] = 7
            reply.send(message)

        array = np.zeros(4)
        assert ask(ends.pair(overwrite), b"", array).arrays[0].tolist() == [7, 7, 7, 7]
        assert array.tolist() == [0, 0, 0, 0]

    @pytest.mark.parametrize(
        "array",
        [np.zeros(2, dtype=np.complex128), np.zeros((4, 4))[:, 1], np.zeros((1,) * 5), np.zeros(2, dtype=">f4")],
        ids=["complex", "strided", "five dimensions", "big-endian"],
    )
    def test_an_array_that_is_not_carried_is_refused_where_it_is_given(self, ends: Ends, array: np.ndarray) -> None:
        connection = ends.pair()
        with pytest.raises(ProtocolError):
            connection.request(Message(b"", (array,)))
        assert ask(connection, b"still open").header == b"still open"

    def test_a_reply_that_is_not_carried_reaches_the_requester_as_an_error(self, ends: Ends) -> None:
        connection = ends.pair(lambda message, reply: reply.send(Message(b"", (np.zeros(1, dtype=bool),))))
        with pytest.raises(ProtocolError, match="bool"):
            ask(connection)

    def test_a_message_above_the_limit_is_refused_where_it_is_given(self) -> None:
        ends = Ends(self.make_van(Limits(max_message_bytes=MIB)))
        connection = ends.pair()
        with pytest.raises(ProtocolError, match="at most"):
            connection.request(Message(b"", (np.zeros(MIB, dtype=np.uint8),)))
        assert ask(connection, b"small").header == b"small"
        ends.close()

    def test_requests_reach_the_handler_in_the_order_they_were_made(self, ends: Ends) -> None:
        seen: list[bytes] = []

        def remember(message: Message, reply: ReplyTo) -> None:
            seen.append(message.header)
            reply.send(Message())

        connection = ends.pair(remember)
        sizes = [0, 3_000_000, 10, 500_000, 1, 0, 2_000_000, 5]
        sent = [Message(str(i).encode(), (np.zeros(sizes[i % 8], np.uint8),)) for i in range(64)]
        wait([connection.request(message) for message in sent], DEADLINE_S)
        assert seen == [message.header for message in sent]

    def test_replies_may_come_in_any_order(self, ends: Ends) -> None:
        kept: list[tuple[Message, ReplyTo]] = []

        def keep(message: Message, reply: ReplyTo) -> None:
            kept.append((message, reply))
            if message.header == b"last":
                for earlier, its_reply in reversed(kept):
                    its_reply.send(earlier)

        connection = ends.pair(keep)
        futures = [connection.request(Message(b"%d" % i, (np.full(i * 1000, i),))) for i in range(50)]
        assert ask(connection, b"last").header == b"last"
        for i, future in enumerate(futures):
            assert_same(future.result(DEADLINE_S), Message(b"%d" % i, (np.full(i * 1000, i),)))

    def test_a_thousand_requests_may_be_outstanding(self, ends: Ends) -> None:
        kept: list[ReplyTo] = []
        connection = ends.pair(lambda message, reply: kept.append(reply) if message.header else answer(kept, reply))

        def answer(waiting: list[ReplyTo], reply: ReplyTo) -> None:
            for other in waiting:
                other.send(Message(b"yes"))
            reply.send(Message())

        futures = [connection.request(Message(b"q")) for _ in range(1000)]
        assert not any(future.done() for future in futures)
        ask(connection)
        assert [future.result(DEADLINE_S).header for future in futures] == [b"yes"] * 1000

    def test_replies_may_be_given_from_other_threads(self, ends: Ends) -> None:
        threads: list[threading.Thread] = []

        def elsewhere(message: Message, reply: ReplyTo) -> None:
            threads.append(threading.Thread(target=reply.send, args=(message,)))
            threads[-1].start()

        connection = ends.pair(elsewhere)
        sent = [Message(b"%d" % i, (np.full(100_000 * (i % 4), i),)) for i in range(24)]
        for message, future in zip(sent, [connection.request(message) for message in sent], strict=True):
            assert_same(future.result(DEADLINE_S), message)
        for thread in threads:
            thread.join()

    @pytest.mark.parametrize("connections", [1, 3])
    def test_posted_requests_are_answered_where_their_sender_reads(self, ends: Ends, connections: int) -> None:
        def refuse_odd(message: Message, reply: ReplyTo) -> None:
            if int(message.header) % 2:
                raise PlanError("odd")
            reply.send(message)

        listener = ends.listen(refuse_odd)
        opened = [ends.connect(listener) for _ in range(connections)]
        sent = [Message(b"%d" % i, (np.full(10_000 * (i % 5), i),)) for i in range(30)]
        replies: Replies[int] = Replies()
        for i, message in enumerate(sent):
            replies.request(i, opened[i % connections], message)
        while len(replies):
            answered = replies.next(DEADLINE_S)
            assert answered is not None
            tag, waiting = answered
            if tag % 2:
                assert isinstance(waiting.outcome, PlanError)
            else:
                assert_same(waiting.result(), sent[tag])
        assert replies.next(0.0) is None

    def test_posted_requests_fail_with_their_connection(self, ends: Ends) -> None:
        entered = threading.Event()
        listener = ends.listen(lambda message, reply: entered.set())
        connection = ends.connect(listener)
        replies: Replies[int] = Replies()
        replies.request(1, connection, Message())
        assert entered.wait(DEADLINE_S)
        assert replies.next(0.0) is None
        listener.close()
        answered = replies.next(DEADLINE_S)
        assert answered is not None and isinstance(answered[1].outcome, PeerUnavailableError)

    def test_requests_may_be_made_from_many_threads(self, ends: Ends) -> None:
        connection = ends.pair()

        def work(number: int) -> None:
            for i in range(30):
                sent = Message(b"%d" % number, (np.full(40_000 * (i % 3), number),))
                assert_same(connection.request(sent).result(DEADLINE_S), sent)

        assert at_once(6, work) == [None] * 6

    def test_a_failure_reaches_the_requester_as_the_same_class(self, ends: Ends) -> None:
        failures = iter(FAILURES)
        connection = ends.pair(lambda message, reply: reply.fail(next(failures)))
        for error in FAILURES:
            with pytest.raises(EpsError) as caught:
                ask(connection)
            assert type(caught.value) is type(error) and str(caught.value) == "the reason"

    def test_what_an_error_carries_comes_with_it(self, ends: Ends) -> None:
        with pytest.raises(IllegalTransitionError) as caught:
            ask(ends.pair(lambda message, reply: reply.fail(IllegalTransitionError("no", story=("first", "then")))))
        assert caught.value.story == ("first", "then")

    def test_what_a_handler_raises_is_the_answer(self, ends: Ends) -> None:
        def refuse(message: Message, reply: ReplyTo) -> None:
            if message.header == b"bug":
                raise ZeroDivisionError("a bug")
            raise PlanError("refused")

        connection = ends.pair(refuse)
        with pytest.raises(PlanError, match="refused"):
            ask(connection)
        with pytest.raises(EpsError, match="ZeroDivisionError: a bug"):
            ask(connection, b"bug")

    def test_a_request_is_answered_once(self, ends: Ends) -> None:
        refusals: list[str] = []

        def twice(message: Message, reply: ReplyTo) -> None:
            reply.send(Message(b"first"))
            if message.header == b"the others are through":
                return
            for again in (lambda: reply.send(Message(b"second")), lambda: reply.fail(PlanError("third"))):
                try:
                    again()
                except ProtocolError as error:
                    refusals.append(str(error))
            if message.header == b"raise":
                raise PlanError("after the answer")

        connection = ends.pair(twice)
        assert ask(connection).header == b"first"
        assert ask(connection, b"raise").header == b"first"
        ask(connection, b"the others are through")
        assert len(refusals) == 4

    def test_a_blocked_handler_holds_up_its_own_connection_only(self, ends: Ends) -> None:
        release, entered = threading.Event(), threading.Event()

        def block(message: Message, reply: ReplyTo) -> None:
            if message.header == b"block":
                entered.set()
                release.wait(DEADLINE_S)
            reply.send(message)

        listener = ends.listen(block)
        blocked, free = ends.connect(listener), ends.connect(listener)
        first, behind = blocked.request(Message(b"block")), blocked.request(Message(b"behind"))
        assert entered.wait(DEADLINE_S)
        for i in range(20):
            assert ask(free, b"%d" % i, np.zeros(100_000)).header == b"%d" % i
        assert not first.done() and not behind.done()
        release.set()
        assert [first.result(DEADLINE_S).header, behind.result(DEADLINE_S).header] == [b"block", b"behind"]

    def test_closing_a_connection_fails_what_is_outstanding(self, ends: Ends) -> None:
        entered = threading.Event()
        connection = ends.pair(lambda message, reply: entered.set())
        future = connection.request(Message(b"never answered"))
        assert entered.wait(DEADLINE_S)
        assert not connection.closed
        connection.close()
        assert connection.closed
        with pytest.raises(PeerUnavailableError):
            future.result(DEADLINE_S)
        with pytest.raises(PeerUnavailableError):
            connection.request(Message())
        connection.close()

    def test_closing_a_listener_fails_what_is_outstanding(self, ends: Ends) -> None:
        entered = threading.Event()
        listener = ends.listen(lambda message, reply: entered.set())
        connection = ends.connect(listener)
        future = connection.request(Message(b"never answered"))
        assert entered.wait(DEADLINE_S)
        listener.close()
        with pytest.raises(PeerUnavailableError):
            future.result(DEADLINE_S)
        with pytest.raises(PeerUnavailableError):
            connection.request(Message()).result(DEADLINE_S)
        assert connection.closed
        with pytest.raises(PeerUnavailableError):
            ends.van.connect(listener.address, DEADLINE_S)

    def test_a_reply_to_a_peer_that_has_gone_is_dropped(self, ends: Ends) -> None:
        replies: list[ReplyTo] = []
        entered = threading.Event()

        def keep(message: Message, reply: ReplyTo) -> None:
            replies.append(reply)
            entered.set()

        listener = ends.listen(keep)
        gone, other = ends.connect(listener), ends.connect(listener)
        gone.request(Message())
        assert entered.wait(DEADLINE_S)
        gone.close()
        replies[0].send(Message(b"", (np.zeros(1_000_000),)))
        entered.clear()
        future = other.request(Message())
        assert entered.wait(DEADLINE_S)
        replies[1].send(Message(b"here"))
        assert future.result(DEADLINE_S).header == b"here"

    def test_a_request_may_follow_from_the_callback_of_another(self, ends: Ends) -> None:
        connection = ends.pair()
        second: Future[Message] = Future()

        def go_on(first: Future[Message]) -> None:
            connection.request(Message(b"second")).add_done_callback(lambda done: second.set_result(done.result()))

        connection.request(Message(b"first")).add_done_callback(go_on)
        assert second.result(DEADLINE_S).header == b"second"

    def test_connecting_where_nobody_listens_is_refused(self, ends: Ends) -> None:
        listener = ends.listen(echo)
        address = listener.address
        listener.close()
        with pytest.raises(PeerUnavailableError):
            ends.van.connect(address, DEADLINE_S)

    def test_an_address_is_listened_on_once(self, ends: Ends) -> None:
        address = ends.listen(echo).address
        assert address.port > 0 or address.host.startswith("@")
        with pytest.raises(ConfigError, match=f"{address.host}:{address.port}"):
            ends.van.listen(echo, address.host, address.port)

    def test_many_connections_work_at_the_same_time(self, ends: Ends) -> None:
        listener = ends.listen(echo)
        connections = [ends.connect(listener) for _ in range(40)]
        futures = [connection.request(Message(b"%d" % i)) for i, connection in enumerate(connections)]
        assert [future.result(DEADLINE_S).header for future in futures] == [b"%d" % i for i in range(40)]

    def test_nothing_is_left_of_connections_that_came_and_went(self) -> None:
        def come_and_go() -> None:
            ends = Ends(self.make_van())
            listener = ends.listen(echo)
            for _ in range(3):
                ask(ends.connect(listener), b"", np.zeros(300_000))
            ends.close()

        come_and_go()
        threads, descriptors = set(threading.enumerate()), len(open_descriptors())
        for _ in range(5):
            come_and_go()
        for thread in set(threading.enumerate()) - threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), f"{thread.name} is left"
        # The transport closes sockets on threads of its own: a few may still be on their way.
        assert len(open_descriptors()) <= descriptors + 4


class TestInProcessVan(VanContract):
    def make_van(self, limits: Limits | None = None) -> Van:
        return InProcessVan(limits)

    def test_two_vans_know_nothing_of_each_other(self) -> None:
        listener = self.make_van().listen(echo)
        with pytest.raises(PeerUnavailableError):
            self.make_van().connect(listener.address)
        listener.close()


TOKEN = Security(JobToken(b"the token of these tests"))


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Security:
    """Return the security of a job with TLS."""
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return Security(TOKEN.token, TlsFiles.within(directory))


class TestTcpVan(VanContract):
    def make_van(self, limits: Limits | None = None) -> Van:
        return SocketVan("tcp", TOKEN, limits)

    def test_an_address_that_is_not_there_is_unavailable(self) -> None:
        with pytest.raises(PeerUnavailableError):
            self.make_van().connect(Address("127.0.0.1", 1), 5.0)


class TestUnixVan(VanContract):
    def make_van(self, limits: Limits | None = None) -> Van:
        return SocketVan("unix", TOKEN, limits)


class TestSharedMemoryVan(VanContract):
    def make_van(self, limits: Limits | None = None) -> Van:
        return SocketVan("shm", TOKEN, limits)


class TestNegotiatedVan(VanContract):
    def make_van(self, limits: Limits | None = None) -> Van:
        return NegotiatedVan(TOKEN, limits=limits)


class TestNegotiatedVanOverTcp(VanContract):
    def make_van(self, limits: Limits | None = None) -> Van:
        return NegotiatedVan(TOKEN, "tcp", limits)


class TestNegotiatedVanWithinAProcess(VanContract):
    def make_van(self, limits: Limits | None = None) -> Van:
        return NegotiatedVan(TOKEN, limits=limits, within=InProcessVan(limits))

    def test_members_of_one_process_need_no_socket(self, ends: Ends) -> None:
        assert ends.pair().transport == "process"


class WithTls(VanContract):
    @pytest.fixture(autouse=True)
    def _tls(self, tls: Security) -> None:
        self.security = tls


class TestTcpVanUnderTls(WithTls):
    def make_van(self, limits: Limits | None = None) -> Van:
        return SocketVan("tcp", self.security, limits)


class TestNegotiatedVanUnderTls(WithTls):
    def make_van(self, limits: Limits | None = None) -> Van:
        return NegotiatedVan(self.security, limits=limits)
