"""A worker's exchanges with servers that cannot be reached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from eps.core.membership import Membership
from eps.core.tables import PartitionTable, SplitTable
from eps.core.types import Address
from eps.errors import PeerUnavailableError
from eps.net.arrays.api import Connection, Message, ReplyTo
from eps.net.arrays.inproc import InProcessVan
from eps.net.messages.exchange import PushAnswer, PushPart, build_reply, parse_exchange, parse_header
from eps.worker.exchanges import MESSAGE_BYTES, Exchanges, TakenOver

TIMEOUT_S = 20.0
PARTITIONS = 8
HERE, SILENT = Address("here", 1), Address("silent", 2)


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


def memberships() -> tuple[Membership, Membership]:
    """Return a job whose even partitions are with the server that answers."""
    servers = ("server-1", "server-2")
    found = Membership(
        1,
        0,
        ("worker-1",),
        servers,
        PartitionTable(servers * (PARTITIONS // 2)),
        SplitTable.of(("worker-1",)),
        {"worker-1": Address("worker", 3), "server-1": HERE, "server-2": SILENT},
    )
    return found, found


def pushes() -> list[PushPart]:
    """Return a push of each partition, each a message of its own."""
    total, maxima = np.zeros(MESSAGE_BYTES // 4, np.float32), np.zeros(0, np.float32)
    return [PushPart(partition, 0, (0,), 1, total, maxima) for partition in range(PARTITIONS)]


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def not_used(push: PushPart, answer: PushAnswer) -> list[PushPart]:
    raise AssertionError("every sum is used here")


def no_pulls(answers: object) -> None:
    raise AssertionError("nothing was pulled")


def run(exchanges: Exchanges, interrupted: Callable[[], bool]) -> None:
    exchanges.run(pushes(), [], memberships, not_used, no_pulls, interrupted=interrupted)


def exchanges_over(van: HalfSilentVan) -> Exchanges:
    return Exchanges(van, lambda partition, digest: np.empty(0, np.int64), lambda membership: None, TIMEOUT_S)


def test_take_over_is_noticed_while_a_server_does_not_answer(released: threading.Event) -> None:
    connecting = threading.Event()

    def silent() -> None:
        connecting.set()
        released.wait(TIMEOUT_S)

    van = HalfSilentVan(silent)
    exchanges = exchanges_over(van)
    with pytest.raises(TakenOver):
        run(exchanges, connecting.is_set)
    assert not released.is_set() and van.connects.count(SILENT) == 1
    exchanges.close()
    van.served.close()


def test_server_that_cannot_be_reached_is_tried_once_in_a_round_and_others_get_their_messages() -> None:
    van = HalfSilentVan(lambda: None)
    exchanges = exchanges_over(van)
    rounds = 0

    def interrupted() -> bool:
        nonlocal rounds
        rounds += 1
        return {0, 2, 4, 6} <= van.pushed

    with pytest.raises(TakenOver):
        run(exchanges, interrupted)
    assert van.pushed == {0, 2, 4, 6} and van.connects.count(SILENT) <= rounds
    exchanges.close()
    van.served.close()


def test_newcomers_that_are_slow_to_answer_hold_up_no_connection(released: threading.Event) -> None:
    van = HalfSilentVan(lambda: released.wait(TIMEOUT_S))
    exchanges = exchanges_over(van)
    exchanges.prepare([SILENT, *(Address("silent too", port) for port in range(8))])
    exchanges._connection(HERE).close()
    assert not released.is_set()
    released.set()
    exchanges.close()
    van.served.close()
