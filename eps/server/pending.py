"""Exchanges on their way through a server: the parts of a message, and the answer that they wait to complete."""

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
    """How far an exchange is."""

    #: Its parts are looked at, one after the other.
    TAKING_IN = auto()
    #: All were looked at once; some answers are missing.
    WAITING = auto()
    ANSWERED = auto()


class PendingExchange:
    """One message of a worker; answered when its last part is.

    A part that is refused, or a sum that is not used, ends the wait of the others: what they wait for may be what the
    worker has to send first.  Parts without an answer are then to be sent again.

    Called with the server's lock held, but for :meth:`send`.

    Parameters
    ----------
    later : deque
        Takes this exchange once its answer is complete; :meth:`send` is then due.
    """

    def __init__(
        self,
        reply: ReplyTo,
        pushes: Sequence[PushPart],
        pulls: Sequence[PullPart],
        later: deque[Later],
        lean: Lean = PLAIN,
    ) -> None:
        self._reply = reply
        self._later = later
        self._lean = lean
        self._pushes: dict[int, PushAnswer | None] = dict.fromkeys((part.partition for part in pushes), None)
        self._pulls: dict[int, PullAnswer | None] = dict.fromkeys((part.partition for part in pulls), None)
        self._missing = len(self._pushes) + len(self._pulls)
        if not self._missing or self._missing != len(pushes) + len(pulls):
            raise ProtocolError("an exchange has at least one part, and one push and one pull at most for a partition")
        self._stage = Stage.TAKING_IN
        #: A part was refused, so the others are not waited for.
        self._hurried = False
        self._requests: list[PushRequest] = []
        self._answer: Message | None = None

    def track(self, request: PushRequest) -> None:
        """Know a push of this message: the server may need it after the message was answered."""
        self._requests.append(request)

    def settle(self, answer: PushAnswer | PullAnswer) -> None:
        """Take the answer to one part; one that comes after the reply was sent is too late to matter."""
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
        """Answer that all parts but these are not served."""
        for partition in self._pushes.keys() - {part.partition for part in pushes}:
            self.settle(PushAnswer(partition, accepted=False, refusal=refusal))
        for partition in self._pulls.keys() - {part.partition for part in pulls}:
            self.settle(PullAnswer(partition, refusal=refusal))

    def taken_in(self) -> None:
        """Every part has been looked at once."""
        self._stage = Stage.WAITING
        self._maybe_answer()

    def _maybe_answer(self) -> None:
        if self._missing and not self._hurried:
            return
        self._stage = Stage.ANSWERED
        for request in self._requests if self._missing else ():
            if self._pushes[request.part.partition] is None:
                # Its memory is the worker's again as soon as the answer has left.
                request.part = request.part.copied()
        again = pb.Refusal(retry=True)
        pushes = [a or PushAnswer(p, accepted=False, refusal=again) for p, a in self._pushes.items()]
        pulls = [a or PullAnswer(p, refusal=again) for p, a in self._pulls.items()]
        self._answer = build_reply(pushes, pulls, self._lean)
        self._requests = []
        self._later.append(self)

    def send(self) -> None:
        """Send the answer; outside the server's lock, because the requester runs at once, and may be in the way.

        Never raises: the calling thread usually serves another requester.
        """
        assert self._answer is not None
        try:
            self._reply.send(self._answer)
        except ProtocolError as error:
            logger.warning("an answer cannot be sent: %s", error)
            self._reply.fail(error)
        except EpsError as error:
            logger.warning("an answer was not taken: %s", error)


@dataclass(slots=True, eq=False)
class PushRequest:
    """A push part, waiting; the key under which the pure state knows it."""

    exchange: PendingExchange
    part: PushPart

    def __post_init__(self) -> None:
        self.exchange.track(self)

    def refuse(self, refusal: pb.Refusal) -> None:
        """Answer that the part is not served."""
        self.exchange.settle(PushAnswer(self.part.partition, accepted=False, refusal=refusal))


@dataclass(slots=True, eq=False)
class PullRequest:
    """A pull part, waiting."""

    exchange: PendingExchange
    part: PullPart

    def refuse(self, refusal: pb.Refusal) -> None:
        """Answer that the part is not served."""
        self.exchange.settle(PullAnswer(self.part.partition, refusal=refusal))


@dataclass(eq=False)
class TransferRequest:
    """A snapshot, an update or a promotion from the partition's owner, waiting to be applied."""

    reply: ReplyTo
    header: pb.DataHeader
    message: Message
    #: The partition that a snapshot describes.
    store: PartitionStore | None = None
    #: Why it is not taken; None: it is acknowledged.
    refusal: EpsError | None = None

    def send(self) -> None:
        """Answer that it is done, or why it is not taken; never raises."""
        try:
            if self.refusal is None:
                self.reply.send(Message(simple("done")))
            else:
                self.reply.fail(self.refusal)
        except EpsError as error:
            logger.warning("the answer to a transfer was not taken: %s", error)


#: Answers that commands leave to be sent without the server's lock.
Later = PendingExchange | TransferRequest
