"""Exchanges on their way through a server: the parts of a message, and the answer that they wait to complete."""

from __future__ import annotations

from dataclasses import dataclass, field

from eps.errors import ProtocolError
from eps.pb import data_pb2 as pb
from eps.rpc.exchange import PullAnswer, PullPart, PushAnswer, PushPart, build_reply
from eps.van.api import Message, ReplyTo


@dataclass(eq=False)
class PendingExchange:
    """One message of a worker; answered when its last part is."""

    reply: ReplyTo
    missing: int
    pushes: list[PushAnswer] = field(default_factory=list)
    pulls: list[PullAnswer] = field(default_factory=list)

    def settle(self, answer: PushAnswer | PullAnswer) -> None:
        """Take the answer to one part; the last one sends the reply."""
        if isinstance(answer, PushAnswer):
            self.pushes.append(answer)
        else:
            self.pulls.append(answer)
        self.missing -= 1
        if self.missing == 0:
            self.reply.send(build_reply(self.pushes, self.pulls))


@dataclass(eq=False)
class PushRequest:
    """A push part, waiting; the key under which the pure state knows it."""

    exchange: PendingExchange
    part: PushPart

    def refuse(self, refusal: pb.Refusal) -> None:
        """Answer that the part is not served."""
        self.exchange.settle(PushAnswer(self.part.partition, accepted=False, refusal=refusal))


@dataclass(eq=False)
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
    #: Of a snapshot as it arrived.
    checksum: str = ""


def key_of(part: PushPart | PullPart) -> tuple[int, bytes]:
    """Return where the keys of a part are registered.

    Raises
    ------
    ProtocolError
        Keys without a digest.
    """
    if part.keys is not None and not part.keyset:
        raise ProtocolError(f"a part of partition {part.partition} has keys but no digest of them")
    return part.partition, part.keyset
