"""The parameter plane over servers: pushes and pulls go to the owners of partitions.

A part is resent if it was refused because of an old membership, or if its server disconnected; the newest membership
routes it.  Work is identified by (clock, split, partition), so a duplicate is applied once.
Source: EPS §2.2 Fig. 1b steps 1, 5 and 6, Fig. 7; design section 6.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from eps.core.membership import Membership
from eps.core.types import Address, MemberId, Role
from eps.core.worker_state import Kept, WorkerState
from eps.errors import DeadlineError, PeerUnavailableError, ProtocolError
from eps.net.messages.codec import membership_from_pb
from eps.net.messages.exchange import PullAnswer, PullPart, PushAnswer, PushPart
from eps.pb import data_pb2 as pb
from eps.worker.compute import Computation, Contribution, Program
from eps.worker.loop import Progress, Wakeup
from eps.worker.wire import Sent, Wire

logger = logging.getLogger(__name__)

PartT = TypeVar("PartT", PushPart, PullPart)
Part = PushPart | PullPart

#: Added to the time that members wait for a job master; after both, parts that no server accepts time out.
ROUTING_GRACE_S = 30.0
#: Refused parts are resent after this time, because the membership that routes them is on its way.
RETRY_S = 0.02
#: Bytes of sums in one message, or of values in its answer; larger exchanges are split into several messages.
MESSAGE_BYTES = 4 << 20
#: Parts in one message: each has a few arrays, and a message can carry 1,024.
MESSAGE_PARTS = 200
#: Key sets that a worker takes for registered; it then forgets all, and sends keys again.
MOST_KNOWN = 1 << 16
#: Refusals further apart than this are unrelated.
CALM_S = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts of an exchange, in seconds."""

    #: Until a clock is complete everywhere.
    exchange_s: float
    #: Until some server accepts a part; without a master there is no new membership.
    routing_s: float


class PushPull:
    """The plane over a wire to the servers.

    Parameters
    ----------
    state : WorkerState
    wakeup : Wakeup
    program : Program
    wire : Wire
    patience : Patience
    """

    def __init__(self, state: WorkerState, wakeup: Wakeup, program: Program, wire: Wire, patience: Patience) -> None:
        self.state = state
        self.lock = wakeup.lock
        self.now_s = wakeup.now_s
        self.program = program
        self.wire = wire
        self.patience = patience
        #: Key sets that servers have registered; a registration moves with its partition.
        self.known: set[tuple[int, bytes]] = set()
        #: Partition -> its latest received clock (EPS Fig. 1b step 3).
        self.clocks: dict[int, int] = {}
        self._version = 0

    def prepare(self, addresses: Iterable[Address]) -> None:
        """Start connecting to servers in advance; for any thread."""
        self.wire.prepare(addresses)

    def follow(self, membership: Membership) -> None:
        """Disconnect from servers that have left."""
        if membership.version == self._version:
            return
        self._version = membership.version
        self.wire.keep(membership.addresses.values())
        logger.info(
            "W[%s] v=%d from clock %d: server list %s, worker list %s, clock list %s",
            self.state.name,
            membership.version,
            membership.from_clock,
            membership.holdings(Role.SERVER),
            membership.holdings(Role.WORKER),
            self.state.memberships.clock_list(self.clocks),
        )

    def exchange(self, put: Sequence[Kept], get: Computation | None, clock: int, min_clock: int) -> PushPullExchange:
        """Start an exchange; see :class:`eps.worker.loop.ParameterPlane`."""
        return PushPullExchange(self, put, get, clock, min_clock)

    def rest(self) -> None:
        """Close the connections and return memory to the system."""
        self.wire.rest()

    def close(self) -> None:
        """Close the connections."""
        self.wire.close()


class PushPullExchange:
    """Pushes of some contributions and pulls of one clock: sends them and processes the answers."""

    def __init__(
        self, plane: PushPull, put: Sequence[Kept], get: Computation | None, clock: int, min_clock: int
    ) -> None:
        self.put = put
        self._plane = plane
        self._get = get
        self._clock = clock
        now_s = plane.now_s()
        self._begun_s = now_s
        #: When unsent parts are sent.
        self._retry_s = now_s
        self._refusals = _Refusals()
        #: Contributions of single splits, for all partitions that lack them: each is as long as the whole.
        self._single_splits: dict[tuple[Kept, int], Contribution] = {}
        #: Answers whose arrays are not stored yet, and pushes of which a partition already had some splits.
        self._arrived: list[list[PullAnswer]] = []
        self._partial: list[tuple[PushPart, PushAnswer]] = []
        state = plane.state
        with plane.lock:
            self._epoch, self._incarnation = state.epoch, state.memberships.incarnation
            outbox = state.outbox
            pushes = [kept.content.push(p) for kept in put for p in outbox.missing(kept)]
        self._unsent: list[Part] = [*pushes, *(get.pulls(min_clock) if get is not None else ())]
        self._results = tuple(kept.report for kept in put)
        plane.wire.begin()
        self._send()

    @property
    def due_s(self) -> float:
        """The time at which there is something to do even if no answer arrives."""
        end_s = self._begun_s + self._plane.patience.exchange_s
        return min(self._retry_s, end_s) if self._unsent else end_s

    def advance(self) -> Progress:
        """Send what is due and process the answers that arrive."""
        plane = self._plane
        while True:
            now_s = plane.now_s()
            if self._unsent and now_s >= self._retry_s:
                self._send()
            if not self._unsent and not plane.wire.waiting():
                return Progress.COMPLETE
            self._check_deadlines(now_s)
            answered = plane.wire.next(max(0.0, self.due_s - now_s))
            if answered is None:
                return Progress.UNDER_WAY
            message, answers = answered
            with plane.lock:
                if plane.state.epoch != self._epoch:
                    return Progress.UNDER_WAY
                if answers is None:
                    self._resend_later([*message.pushes, *message.pulls])
                elif self._take(message, *answers):
                    return Progress.PASSED
            # Memory lent by servers is released only when nothing refers to it.
            del answered, message, answers
            self._store_arrays()

    def _check_deadlines(self, now_s: float) -> None:
        patience, stuck_s = self._plane.patience, self._refusals.since_s
        if self._unsent and stuck_s is not None and now_s - stuck_s > patience.routing_s:
            raise PeerUnavailableError(f"no server accepted {_names(self._unsent)} for {patience.routing_s:g} s")
        if now_s - self._begun_s > patience.exchange_s:
            waiting = list(self._unsent)
            for late in self._plane.wire.waiting():
                waiting += [*late.pushes, *late.pulls]
            raise DeadlineError(f"waited {patience.exchange_s:g} s for {_names(waiting)}")

    # ---- sending

    def _send(self) -> None:
        """Group parts by owner and send them."""
        plane, state, parts = self._plane, self._plane.state, self._unsent
        with plane.lock:
            if state.epoch != self._epoch:
                return
            version = state.memberships.version
            for_pushes = state.memberships.route(self.put[-1].clock if self.put else self._clock)
            for_pulls = state.memberships.route(self._clock)
        self._unsent = []
        addresses: dict[MemberId, Address] = {}
        by_owner: dict[MemberId, list[Part]] = {}
        for part in parts:
            membership = for_pushes if isinstance(part, PushPart) else for_pulls
            owner = membership.partitions.owners[part.partition]
            addresses[owner] = membership.addresses[owner]
            by_owner.setdefault(owner, []).append(part)
        waiting = [(server, deque(messages_of(group))) for server, group in by_owner.items()]
        while waiting:
            # Round-robin, so that all servers are busy from the beginning.
            for server, messages in waiting:
                plane.wire.send(self._message(server, addresses[server], messages.popleft(), version))
            waiting = [(server, messages) for server, messages in waiting if messages]

    def _message(self, server: MemberId, address: Address, group: list[Part], version: int) -> Sent:
        pushes = tuple([self._attach(part) for part in group if isinstance(part, PushPart)])
        pulls = tuple([self._attach(part) for part in group if isinstance(part, PullPart)])
        return Sent(server, address, pushes, pulls, self._incarnation, version, self._results)

    def _attach(self, part: PartT) -> PartT:
        """Add the keys if no server has registered the key set yet."""
        if not part.keyset:
            return part
        name = part.partition, part.keyset
        if name in self._plane.known:
            return part if part.keys is None else replace(part, keys=None)
        if len(self._plane.known) >= MOST_KNOWN:
            self._plane.known.clear()
        self._plane.known.add(name)
        return replace(part, keys=self._keys_of(part.partition, part.keyset))

    def _keys_of(self, partition: int, keyset: bytes) -> np.ndarray:
        sets = [kept.content.active for kept in self.put]
        if self._get is not None:
            sets.append(self._get.active)
        found: np.ndarray = next(a for a in sets if a.keysets[partition] == keyset).keys_of(partition)
        return found

    # ---- answers

    def _resend_later(self, parts: Iterable[Part]) -> None:
        """Resend parts after a pause, when the membership that routes them may have arrived."""
        now_s = self._plane.now_s()
        self._unsent.extend(parts)
        self._retry_s = now_s + RETRY_S
        self._refusals.note(now_s)

    def _resend_now(self, parts: Iterable[Part]) -> None:
        if not self._unsent:
            self._retry_s = self._plane.now_s()
        self._unsent.extend(parts)

    def _take(self, message: Sent, pushes: Sequence[PushAnswer], pulls: Sequence[PullAnswer]) -> bool:
        """Process the answers to a message, except arrays; return whether the pulled clock has passed."""
        state, passed = self._plane.state, False
        asked = {push.partition: push for push in message.pushes}
        for pushed in pushes:
            push = _part_of(asked, pushed.partition)
            if pushed.refusal is not None:
                passed |= self._refused(push, pushed.refusal, message)
            elif pushed.accepted:
                state.outbox.on_held(push.partition, push.clock, push.splits)
            else:
                self._partial.append((push, pushed))
        served = [pulled for pulled in pulls if pulled.refusal is None]
        for pulled in served:
            state.outbox.on_read(pulled.partition, self._clock)
            self._plane.clocks[pulled.partition] = pulled.clock
        if served:
            self._arrived.append(served)
        for pulled in pulls if len(served) < len(pulls) else ():
            if pulled.refusal is not None:
                pull = _part_of({part.partition: part for part in message.pulls}, pulled.partition)
                passed |= self._refused(pull, pulled.refusal, message)
        return passed

    def _refused(self, part: Part, refusal: pb.Refusal, message: Sent) -> bool:
        """Resend a part as its refusal requires; return whether its clock has passed."""
        if refusal.passed:
            logger.info("W[%s] %s is past clock %d", self._plane.state.name, message.server, self._clock)
            return True
        if refusal.error:
            raise ProtocolError(f"{message.server}: {refusal.error}")
        if refusal.HasField("membership"):
            membership = membership_from_pb(refusal.membership)
            # The membership of a recovery comes with the master's order, which loads the splits that it needs.
            if not membership.takes_over:
                self._plane.state.on_membership(membership)
        if refusal.unknown_keyset:
            self._plane.known.discard((part.partition, part.keyset))
            self._resend_now([part])
        elif self._plane.state.memberships.version > message.version:
            # The membership that routes it has arrived.
            self._resend_now([part])
        else:
            self._resend_later([part])
        return False

    def _store_arrays(self) -> None:
        """Store the arrays that arrived, and compute what partitions lack of pushes."""
        if self._arrived:
            came, self._arrived = self._arrived, []
            assert self._get is not None
            for answers in came:
                self._get.take(answers)
        partial, self._partial = self._partial, []
        for push, answer in partial:
            self._resend_now(self._missing_pushes(push, answer))

    def _missing_pushes(self, push: PushPart, answer: PushAnswer) -> list[PushPart]:
        """Return what to push if a partition already had some of a push's splits.

        A sum cannot be taken apart, so the splits that a server lacks are pushed one by one (reproducible.md).
        """
        kept = next(k for k in self.put if k.clock == push.clock and k.splits == push.splits)
        parts = []
        for split in (split for split in push.splits if split not in answer.have):
            found = self._single_splits.get((kept, split))
            if found is None:
                found = self._single_splits[kept, split] = self._plane.program.alone(kept.content, split)
            parts.append(found.push(push.partition))
        return parts


@dataclass
class _Refusals:
    """Since when parts have been refused or unreachable without a break."""

    since_s: float | None = None
    _last_s: float = 0.0

    def note(self, now_s: float) -> None:
        """Record that a part was refused or could not be sent."""
        if self.since_s is None or now_s - self._last_s > CALM_S:
            self.since_s = now_s
        self._last_s = now_s


def _part_of(parts: Mapping[int, PartT], partition: int) -> PartT:
    """Return the part that an answer is about."""
    if partition not in parts:
        raise ProtocolError(f"an answer about partition {partition}, which was not requested")
    return parts[partition]


def messages_of(parts: Sequence[PushPart | PullPart]) -> list[list[PushPart | PullPart]]:
    """Divide the parts for one server into messages, in order of partitions, each push followed by its pull.

    A message has at most one push and one pull of each partition.  Large exchanges are split at :data:`MESSAGE_BYTES`:
    the server adds the first partitions while the last are on the wire, and answers each message when it is ready.
    """
    messages: list[list[PushPart | PullPart]] = []
    rest = parts
    while rest:
        pushes: dict[int, PushPart] = {}
        pulls: dict[int, PullPart] = {}
        later: list[PushPart | PullPart] = []
        for part in rest:
            if isinstance(part, PushPart):
                if pushes.setdefault(part.partition, part) is not part:
                    later.append(part)
            elif pulls.setdefault(part.partition, part) is not part:
                later.append(part)
        messages += _cut(pushes, pulls)
        rest = later
    return messages


def _cut(pushes: Mapping[int, PushPart], pulls: Mapping[int, PullPart]) -> list[list[PushPart | PullPart]]:
    """Divide at most one push and one pull of each partition into messages; those of one partition stay together."""
    messages: list[list[PushPart | PullPart]] = []
    size_bytes = MESSAGE_BYTES
    for partition in sorted(pushes.keys() | pulls.keys()):
        if size_bytes >= MESSAGE_BYTES or len(messages[-1]) >= MESSAGE_PARTS:
            messages.append([])
            size_bytes = 0
        push, pull = pushes.get(partition), pulls.get(partition)
        if push is not None:
            messages[-1].append(push)
            size_bytes += push.total.nbytes
        if pull is not None:
            messages[-1].append(pull)
            if push is None:
                # The size of the answer counts.
                size_bytes += 4 * pull.size
    return messages


def _names(parts: list[PushPart | PullPart]) -> str:
    pushes = sorted({(p.partition, p.clock) for p in parts if isinstance(p, PushPart)})
    pulls = sorted({(p.partition, p.min_clock) for p in parts if isinstance(p, PullPart)})
    texts = [f"the push of clock {clock} to partition {partition}" for partition, clock in pushes]
    texts += [f"partition {partition} to complete clock {clock - 1}" for partition, clock in pulls]
    return ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
