"""Open requests of a server: the parts of a worker's message, and transfers of other servers, until answered."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from eps.errors import EpsError, ProtocolError
from eps.net.arrays.api import Message, ReplyTo
from eps.net.messages.exchange import PLAIN, Lean, PullAnswer, PullPart, PushAnswer, PushPart, build_reply, simple
from eps.pb import data_pb2 as pb
from eps.server.partition_store import PartitionStore

logger = logging.getLogger(__name__)


class Stage(Enum):
    """The stage of an exchange."""

    #: Its parts are being processed, one after the other.
    TAKING_IN = auto()
    #: All parts were processed once; some answers are missing.
    WAITING = auto()
    ANSWERED = auto()


class PendingExchange:
    """One message of a worker, answered when its last part is.

    A refused part, or a sum that is not used, ends the wait for the others.  They may wait for something that the
    worker must send first.  The worker resends parts without an answer.

    Called with the server's lock held, except :meth:`send`.

    Parameters
    ----------
    deferred : deque
        Receives this exchange once its answer is complete; then :meth:`send` is due.
    """

    def __init__(
        self,
        reply: ReplyTo,
        pushes: Sequence[PushPart],
        pulls: Sequence[PullPart],
        deferred: deque[DeferredAnswer],
        lean: Lean = PLAIN,
    ) -> None:
        self._reply = reply
        self._deferred = deferred
        self._lean = lean
        self._pushes: dict[int, PushAnswer | None] = dict.fromkeys((part.partition for part in pushes), None)
        self._pulls: dict[int, PullAnswer | None] = dict.fromkeys((part.partition for part in pulls), None)
        self._missing = len(self._pushes) + len(self._pulls)
        if not self._missing or self._missing != len(pushes) + len(pulls):
            raise ProtocolError("an exchange needs at least one part, and at most one push and one pull a partition")
        self._stage = Stage.TAKING_IN
        #: Whether a part was refused, so that the others are not awaited.
        self._hurried = False
        self._requests: list[PushRequest] = []
        self._answer: Message | None = None

    def track(self, request: PushRequest) -> None:
        """Register a push of this message, whose data may be needed after the message is answered."""
        self._requests.append(request)

    def settle(self, answer: PushAnswer | PullAnswer) -> None:
        """Record the answer to one part; ignored after the reply was sent."""
        if isinstance(answer, PushAnswer):
            if not answer.accepted:
                self._hurried = True
            self._pushes[answer.partition] = answer
        else:
            if answer.refusal is not None:
                self._hurried = True
            self._pulls[answer.partition] = answer
        self._missing -= 1
        if self._stage is Stage.WAITING:
            self._maybe_answer()

    def refuse_others(self, pushes: Sequence[PushPart], pulls: Sequence[PullPart], refusal: pb.Refusal) -> None:
        """Refuse all parts except these."""
        for partition in self._pushes.keys() - {part.partition for part in pushes}:
            self.settle(PushAnswer(partition, accepted=False, refusal=refusal))
        for partition in self._pulls.keys() - {part.partition for part in pulls}:
            self.settle(PullAnswer(partition, refusal=refusal))

    def taken_in(self) -> None:
        """Record that every part was processed once."""
        self._stage = Stage.WAITING
        self._maybe_answer()

    def _maybe_answer(self) -> None:
        if self._missing and not self._hurried:
            return
        self._stage = Stage.ANSWERED
        for request in self._requests if self._missing else ():
            if self._pushes[request.part.partition] is None:
                # After the answer the worker reuses the memory.
                request.part = request.part.copied()
        again = pb.Refusal(retry=True)
        pushes = [a or PushAnswer(p, accepted=False, refusal=again) for p, a in self._pushes.items()]
        pulls = [a or PullAnswer(p, refusal=again) for p, a in self._pulls.items()]
        self._answer = build_reply(pushes, pulls, self._lean)
        self._requests = []
        self._deferred.append(self)

    def send(self) -> None:
        """Send the answer; call without the server's lock, because the requester may run on this thread.

        Never raises, because the calling thread usually serves another requester.
        """
        assert self._answer is not None
        try:
            self._reply.send(self._answer)
        except ProtocolError as error:
            logger.warning("an answer to a worker cannot be sent: %s", error)
            self._reply.fail(error)
        except EpsError as error:
            logger.warning("a worker did not receive its answer: %s", error)


@dataclass(slots=True, eq=False)
class PushRequest:
    """An open push part; the key that the pure state uses for it."""

    exchange: PendingExchange
    part: PushPart

    def __post_init__(self) -> None:
        self.exchange.track(self)

    def refuse(self, refusal: pb.Refusal) -> None:
        """Answer that the part is not served."""
        self.exchange.settle(PushAnswer(self.part.partition, accepted=False, refusal=refusal))


@dataclass(slots=True, eq=False)
class PullRequest:
    """An open pull part."""

    exchange: PendingExchange
    part: PullPart

    def refuse(self, refusal: pb.Refusal) -> None:
        """Answer that the part is not served."""
        self.exchange.settle(PullAnswer(self.part.partition, refusal=refusal))


@dataclass(eq=False)
class TransferRequest:
    """A snapshot, update or promotion from a partition's owner, until it is applied."""

    reply: ReplyTo
    header: pb.DataHeader
    message: Message
    #: The partition that a snapshot describes.
    store: PartitionStore | None = None
    #: Why it is refused; None if it is acknowledged.
    refusal: EpsError | None = None

    def send(self) -> None:
        """Send the acknowledgement or refusal; never raises."""
        try:
            if self.refusal is None:
                self.reply.send(Message(simple("done")))
            else:
                self.reply.fail(self.refusal)
        except EpsError as error:
            logger.warning("another server did not receive the answer to its transfer: %s", error)


#: Answers that are sent after the server's lock is released.
DeferredAnswer = PendingExchange | TransferRequest
