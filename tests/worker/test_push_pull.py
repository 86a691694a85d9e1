"""A worker's exchanges: servers that cannot be reached, and what answers mean."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import Address, CoreSettings
from eps.core.worker_state import Kept, WorkerState
from eps.errors import DeadlineError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import Connection, Message, ReplyTo
from eps.net.arrays.in_process import InProcessVan
from eps.net.messages.codec import membership_to_pb
from eps.net.messages.exchange import (
    PLAIN,
    PullAnswer,
    PullPart,
    PushAnswer,
    PushPart,
    build_reply,
    parse_exchange,
    parse_header,
)
from eps.pb import data_pb2 as pb
from eps.worker.loop import Progress, Wakeup
from eps.worker.push_pull import CALM_S, MESSAGE_BYTES, RETRY_S, Patience, PushPull, PushPullExchange
from eps.worker.wire import Answers, Sent, ServerWire, Wire

TIMEOUT_S = 20.0
PARTITIONS = 8
HERE, SILENT = Address("here", 1), Address("silent", 2)
SERVERS = ("server-1", "server-2")
SETTINGS = CoreSettings(num_splits=2, num_partitions=PARTITIONS, iterations=9, reproducible=False)


def membership(owners: tuple[str, ...] = SERVERS * (PARTITIONS // 2), **changes: Any) -> Membership:
    """Return a job whose even partitions are with the server that answers."""
    addresses = {"worker-1": Address("worker", 3), "server-1": HERE, "server-2": SILENT}
    splits = SplitTable.of(("worker-1",) * SETTINGS.num_splits)
    found = Membership(1, 0, ("worker-1",), SERVERS, PartitionTable(owners), splits, addresses)
    return replace(found, **changes)


@dataclass(eq=False)
class Content:
    """A computed contribution: a push of the given size for each partition."""

    splits: tuple[int, ...]
    values: int = 1
    keyset: bytes = b""

    @property
    def active(self) -> Any:
        return SimpleNamespace(keysets=(self.keyset,) * PARTITIONS, keys_of=lambda partition: np.array([partition]))

    def push(self, partition: int) -> PushPart:
        total, maxima = np.zeros(self.values, np.float32), np.zeros(0, np.float32)
        return PushPart(partition, 0, self.splits, 1, total, maxima, self.keyset)


@dataclass
class Reading:
    """Parameters that arrive."""

    min_clock: int = 1

    def __post_init__(self) -> None:
        self.active: Any = None
        self.taken: list[int] = []

    def pulls(self, min_clock: int) -> list[PullPart]:
        return [PullPart(partition, min_clock) for partition in range(PARTITIONS)]

    def take(self, answers: Iterable[PullAnswer]) -> None:
        self.taken += [answer.partition for answer in answers]


class Worker:
    """The pure state and the plane of a worker that has computed clock 0."""

    def __init__(self, wire: Wire, content: Content | None = None, **settings: Any) -> None:
        self.now_s = 0.0
        self.state = WorkerState("worker-1", replace(SETTINGS, **settings))
        self.state.on_membership(membership())
        content = content or Content((0, 1))
        self.kept = Kept(0, content.splits, m.ClockReported("worker-1", 0, (), 0), content)
        self.state.outbox.add(self.kept)
        program: Any = SimpleNamespace(alone=lambda content, split: Content((split,)))
        patience = Patience(exchange_s=60.0, routing_s=5.0)
        self.plane = PushPull(self.state, Wakeup(lambda: self.now_s), program, wire, patience)

    def exchange(self, reading: Reading | None = None) -> PushPullExchange:
        return self.plane.exchange([self.kept], reading, 1, 1)  # type: ignore[arg-type]


class Script:
    """A wire with scripted answers."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.answers: deque[tuple[Sent, Answers]] = deque()

    def begin(self) -> None:
        self.sent.clear()
        self.answers.clear()

    def send(self, message: Sent) -> None:
        self.sent.append(message)

    def next(self, timeout_s: float) -> tuple[Sent, Answers] | None:
        return self.answers.popleft() if self.answers else None

    def waiting(self) -> list[Sent]:
        return [*self.sent, *(message for message, _ in self.answers)]

    def prepare(self, addresses: Iterable[Address]) -> None:
        raise AssertionError("no plan is under way")

    def keep(self, addresses: Iterable[Address]) -> None:
        raise AssertionError("the membership stays")

    def rest(self) -> None:
        raise AssertionError("the worker works")

    close = rest

    def answer(self, server: str, answer: Callable[[Sent], Answers] = lambda message: accepted(message)) -> None:
        """Answer the messages sent to a server."""
        found = [message for message in self.sent if message.server == server]
        assert found
        self.sent = [message for message in self.sent if message.server != server]
        self.answers.extend((message, answer(message)) for message in found)


def accepted(message: Sent) -> Answers:
    pulls = [PullAnswer(pull.partition, 1, np.zeros(1, np.float32)) for pull in message.pulls]
    return [PushAnswer(push.partition) for push in message.pushes], pulls


def refused(refusal: pb.Refusal) -> Callable[[Sent], Answers]:
    return lambda message: (
        [PushAnswer(push.partition, refusal=refusal) for push in message.pushes],
        [PullAnswer(pull.partition, refusal=refusal) for pull in message.pulls],
    )


# ---- what the answers mean


def test_exchange_is_complete_when_every_part_is_answered() -> None:
    wire, reading = Script(), Reading()
    worker = Worker(wire)
    exchange = worker.exchange(reading)
    assert exchange.advance() is Progress.UNDER_WAY
    wire.answer("server-2")
    assert exchange.advance() is Progress.UNDER_WAY
    assert worker.state.outbox.missing(worker.kept) == [0, 2, 4, 6] and sorted(reading.taken) == [1, 3, 5, 7]
    wire.answer("server-1")
    assert exchange.advance() is Progress.COMPLETE
    assert sorted(reading.taken) == list(range(PARTITIONS))


def test_part_whose_server_went_away_is_sent_again_after_a_while_by_the_newest_membership() -> None:
    wire = Script()
    worker = Worker(wire, staleness=2)
    exchange = worker.exchange()
    wire.answer("server-1")
    wire.answer("server-2", lambda message: None)
    assert exchange.advance() is Progress.UNDER_WAY and not wire.sent
    assert exchange.due_s == pytest.approx(RETRY_S)
    worker.state.on_membership(membership(("server-1",) * PARTITIONS, version=2))
    worker.now_s = exchange.due_s
    assert exchange.advance() is Progress.UNDER_WAY
    assert [(message.server, [push.partition for push in message.pushes]) for message in wire.sent] == [
        ("server-1", [1, 3, 5, 7])
    ]


def test_refusal_brings_the_membership_but_not_one_that_takes_over() -> None:
    for change, version in (({}, 2), ({"split_clocks": (0, 0), "recovery": 1}, 1)):
        wire = Script()
        worker = Worker(wire, staleness=2)
        exchange = worker.exchange()
        wire.answer("server-1")
        news = membership(("server-1",) * PARTITIONS, version=2, **change)
        wire.answer("server-2", refused(pb.Refusal(retry=True, membership=membership_to_pb(news))))
        assert exchange.advance() is Progress.UNDER_WAY
        assert worker.state.memberships.version == version
        assert bool(wire.sent) == (version == 2), "by a membership that is here already it is sent at once"
        worker.now_s = exchange.due_s
        exchange.advance()
        assert {message.server for message in wire.sent} == {"server-1" if version == 2 else "server-2"}


def test_keys_go_along_until_a_server_knows_them_and_again_where_it_does_not_any_more() -> None:
    wire = Script()
    worker = Worker(wire, Content((0, 1), keyset=b"some"))
    worker.exchange()
    with_keys = [[push.keys is not None for push in message.pushes] for message in wire.sent]
    exchange = worker.exchange()
    without = [[push.keys is not None for push in message.pushes] for message in wire.sent]
    wire.answer("server-1")
    wire.answer("server-2", refused(pb.Refusal(unknown_keyset=True)))
    assert exchange.advance() is Progress.UNDER_WAY
    (again,) = wire.sent
    assert with_keys == [[True] * 4] * 2 and without == [[False] * 4] * 2
    assert again.server == "server-2" and all(push.keys is not None for push in again.pushes)


def test_a_worker_that_has_sent_many_key_sets_sends_keys_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Script()
    worker = Worker(wire, Content((0, 1), keyset=b"some"))
    worker.exchange()
    monkeypatch.setattr("eps.worker.push_pull.MOST_KNOWN", 4)
    worker.plane.known.update((0, bytes([number])) for number in range(9))
    worker.plane.known.discard((3, b"some"))
    worker.exchange()
    again = {push.partition: push.keys is not None for message in wire.sent for push in message.pushes}
    assert again[3] and len(worker.plane.known) <= 4


def test_splits_that_a_partition_lacks_are_pushed_one_by_one() -> None:
    wire = Script()
    worker = Worker(wire)
    exchange = worker.exchange()
    wire.answer("server-2")
    wire.answer(
        "server-1", lambda sent: ([PushAnswer(p.partition, (0,), accepted=p.partition > 0) for p in sent.pushes], [])
    )
    assert exchange.advance() is Progress.UNDER_WAY
    (again,) = wire.sent
    assert [(push.partition, push.splits) for push in again.pushes] == [(0, (1,))]
    assert worker.state.outbox.missing(worker.kept) == [0]
    wire.answer("server-1")
    assert exchange.advance() is Progress.COMPLETE
    worker.state.outbox.on_pushed(exchange.put)
    assert worker.state.outbox.unpushed() == []


def test_clock_that_has_passed_ends_the_exchange_and_a_broken_rule_ends_the_worker() -> None:
    wire = Script()
    exchange = Worker(wire).exchange(Reading())
    wire.answer("server-1", refused(pb.Refusal(passed=True)))
    assert exchange.advance() is Progress.PASSED
    exchange = Worker(wire).exchange()
    wire.answer("server-1", refused(pb.Refusal(error="two sums of one split")))
    with pytest.raises(ProtocolError, match="two sums"):
        exchange.advance()


def test_answer_that_comes_after_members_were_lost_does_not_count() -> None:
    wire = Script()
    worker = Worker(wire)
    exchange = worker.exchange(Reading())
    wire.answer("server-1")
    worker.state.inventory(1)
    assert exchange.advance() is Progress.UNDER_WAY
    assert worker.state.outbox.missing(worker.kept) == list(range(PARTITIONS))


def test_part_that_no_membership_places_is_given_up() -> None:
    wire = Script()
    worker = Worker(wire)
    exchange = worker.exchange()
    wire.answer("server-1")
    with pytest.raises(PeerUnavailableError, match="clock 0 to partition 1"):
        for _ in range(10_000):
            if wire.sent:
                wire.answer("server-2", lambda message: None)
            exchange.advance()
            worker.now_s = min(exchange.due_s, worker.now_s + RETRY_S)
    assert 5.0 < worker.now_s < 5.0 + 2 * CALM_S


def test_clock_that_is_not_complete_in_time_is_given_up() -> None:
    wire = Script()
    worker = Worker(wire)
    exchange = worker.exchange(Reading())
    wire.answer("server-1")
    assert exchange.advance() is Progress.UNDER_WAY and exchange.due_s == 60.0
    worker.now_s = 61.0
    with pytest.raises(DeadlineError, match=r"clock 0 .* 1, .* 4 more"):
        exchange.advance()


# ---- the wire


class HalfSilentVan(InProcessVan):
    """A van that reaches one server, and asks ``silent`` before it gives up on the other."""

    def __init__(self, silent: Callable[[], None]) -> None:
        super().__init__()
        self._silent = silent
        self.connects: list[Address] = []
        self.served = self.listen(self._serve)
        #: Partitions of which a push arrived.
        self.pushed: set[int] = set()

    def _serve(self, message: Message, reply: ReplyTo) -> None:
        pushes, _ = parse_exchange(parse_header(message).exchange, message.arrays, 1 << 30)
        self.pushed.update(push.partition for push in pushes)
        reply.send(build_reply([PushAnswer(push.partition, push.splits) for push in pushes], []))

    def connect(self, address: Address, timeout_s: float = 10.0) -> Connection:
        self.connects.append(address)
        if address == SILENT:
            self._silent()
            raise PeerUnavailableError(f"nobody answers at {address}")
        return super().connect(self.served.address, timeout_s)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def over(van: HalfSilentVan) -> Worker:
    """Return a worker over a van, each of whose pushes is a message of its own."""
    return Worker(ServerWire(van, PLAIN, MESSAGE_BYTES), Content((0, 1), MESSAGE_BYTES // 4))


def test_server_that_does_not_answer_holds_up_neither_the_loop_nor_other_servers(released: threading.Event) -> None:
    van = HalfSilentVan(lambda: released.wait(TIMEOUT_S) and None)
    worker = over(van)
    exchange = worker.exchange()
    while not {0, 2, 4, 6} <= van.pushed or worker.state.outbox.missing(worker.kept) != [1, 3, 5, 7]:
        assert exchange.advance() is Progress.UNDER_WAY
    assert not released.is_set() and van.connects.count(SILENT) == 1
    worker.plane.close()
    van.served.close()


def test_server_that_cannot_be_reached_is_tried_once_in_a_round() -> None:
    van = HalfSilentVan(lambda: None)
    worker = over(van)
    exchange = worker.exchange()
    for rounds in range(1, 6):
        # The exchange's clock stands still until this round's part is found to be lost and the other has arrived.
        while exchange.due_s == 60.0 or len(van.pushed) < 4:
            assert exchange.advance() is Progress.UNDER_WAY
        assert van.connects.count(SILENT) == rounds
        worker.now_s = exchange.due_s
        assert exchange.advance() is Progress.UNDER_WAY
    assert van.pushed == {0, 2, 4, 6}
    worker.plane.close()
    van.served.close()


def test_newcomers_that_are_slow_to_answer_hold_up_no_connection(released: threading.Event) -> None:
    van = HalfSilentVan(lambda: released.wait(TIMEOUT_S) and None)
    worker = over(van)
    worker.plane.prepare([SILENT, *(Address("silent too", port) for port in range(8)), HERE])
    exchange = worker.exchange()
    while not {0, 2, 4, 6} <= van.pushed:
        assert exchange.advance() is Progress.UNDER_WAY
    assert not released.is_set()
    released.set()
    worker.plane.close()
    van.served.close()
