"""Exchanges that are answered before all of their parts are settled."""

from __future__ import annotations

from collections import deque

import numpy as np

from eps.errors import DeadlineError, EpsError, ProtocolError
from eps.net.arrays.api import Message
from eps.net.messages.exchange import PullAnswer, PullPart, PushAnswer, PushPart, parse_reply
from eps.pb import data_pb2 as pb
from eps.server.open_requests import DeferredAnswer, PendingExchange, PushRequest


class Answers:
    """A reply that keeps the answer, or fails."""

    def __init__(self, *errors: EpsError) -> None:
        self.errors = list(errors)
        self.sent: list[Message] = []
        self.failed: list[EpsError] = []

    def send(self, message: Message) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append(message)

    def fail(self, error: EpsError) -> None:
        self.failed.append(error)


def push(partition: int, value: int) -> PushPart:
    raw = ((0, 0, np.full(2, value, np.float32)),)
    return PushPart(partition, 3, (0,), 5, np.full(4, value, np.int32), np.full(1, value, np.float32), raw=raw)


def test_a_push_that_outlives_its_answer_has_memory_of_its_own() -> None:
    reply, deferred = Answers(), deque[DeferredAnswer]()
    parts = [push(0, 7), push(1, 8)]
    exchange = PendingExchange(reply, parts, [], deferred)
    held, refused = (PushRequest(exchange, part) for part in parts)
    refused.refuse(pb.Refusal(unknown_keyset=True))
    exchange.taken_in()
    assert list(deferred) == [exchange]
    exchange.send()
    assert [answer.accepted for answer in parse_reply(reply.sent[0])[0]] == [False, False]
    for part in parts:
        for array in (part.total, part.maxima, part.raw[0][2]):
            # The worker has its answer and writes the next clock's sums there.
            array[:] = 0
    assert held.part.total.tolist() == [7] * 4
    assert held.part.maxima.tolist() == [7]
    assert held.part.raw[0][2].tolist() == [7, 7]


def test_a_push_that_is_settled_is_not_copied() -> None:
    exchange = PendingExchange(Answers(), [push(0, 7)], [PullPart(1, 4)], deque())
    part = push(0, 7)
    request = PushRequest(exchange, part)
    exchange.settle(PushAnswer(0))
    exchange.settle(PullAnswer(1, 4))
    exchange.taken_in()
    assert request.part is part


def test_an_answer_that_cannot_be_sent_is_told_to_its_requester_and_hurts_nobody_else() -> None:
    for error in (ProtocolError("1101 arrays"), DeadlineError("its queue stayed full")):
        reply = Answers(error)
        exchange = PendingExchange(reply, [push(0, 1)], [], deque())
        exchange.settle(PushAnswer(0))
        exchange.taken_in()
        exchange.send()
        assert reply.failed == ([error] if isinstance(error, ProtocolError) else [])
