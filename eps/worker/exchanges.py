"""A worker's side of the data plane: sends the parts of a clock to their owners and collects the answers.

A part that was refused because it was routed by an old membership, or whose server has gone, is sent again by the
newest one; work is identified by (clock, split, partition), so that sending twice applies once.

Source: EPS §2.2 Fig. 1b steps 1, 5 and 6, Fig. 7; design section 6.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import numpy as np

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import Address, MemberId
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import Connection, Message, Van
from eps.net.arrays.replies import Replies
from eps.net.messages.codec import membership_from_pb, results_to_pb
from eps.net.messages.exchange import MOST_KEYS, PullAnswer, PullPart, PushAnswer, PushPart, build_exchange, parse_reply
from eps.net.messages.lean import PLAIN, Lean
from eps.pb import control_pb2
from eps.pb import data_pb2 as pb

logger = logging.getLogger(__name__)

PartT = TypeVar("PartT", PushPart, PullPart)

#: A part that no membership can place is given up so long after the job master would have been.
ROUTING_GRACE_S = 30.0
RETRY_S = 0.02
CONNECT_TIMEOUT_S = 5.0
#: Sums in one message, or values in its answer; an exchange with more is cut into several.
MESSAGE_BYTES = 4 << 20
#: Parts of one message: each has a few arrays, and a message carries 1,024.
MESSAGE_PARTS = 200
#: Refusals further apart than this have nothing to do with each other.
CALM_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """One message on its way."""

    server: MemberId
    pushes: tuple[PushPart, ...]
    pulls: tuple[PullPart, ...]


@dataclass
class _Trouble:
    """Since when parts have been refused or unreachable without a break."""

    since_s: float | None = None
    _last_s: float = 0.0

    def met(self, now_s: float) -> None:
        """Note that a part was refused or could not be sent."""
        if self.since_s is None or now_s - self._last_s > CALM_S:
            self.since_s = now_s
        self._last_s = now_s


class TakenOver(EpsError):
    """Members were lost while an exchange was under way: it begins anew when it is known who takes over."""


class Passed(EpsError):
    """The clock that was asked for is complete everywhere: a lost worker had pushed what its heir was to compute."""


class Exchanges:
    """Connections to the servers, and the exchanges that are under way.

    Parameters
    ----------
    van : Van
    keys_of : callable
        Returns the global keys of (partition, keyset digest), for a server that does not know the set.
    on_membership : callable
        Takes the membership that came with a refusal.
    timeout_s : float
        A clock that is not complete everywhere after this long is given up.
    lean : Lean
        What is left out on the wire.
    longest : int
        Keys of the largest partition.
    master_timeout_s : float
        How long a member waits for the next job master.
    """

    def __init__(
        self,
        van: Van,
        keys_of: Callable[[int, bytes], np.ndarray],
        on_membership: Callable[[Membership], None],
        timeout_s: float,
        lean: Lean = PLAIN,
        longest: int = MOST_KEYS,
        master_timeout_s: float = 0.0,
    ) -> None:
        #: Without a master nobody is placed anew.
        self._routing_timeout_s = master_timeout_s + ROUTING_GRACE_S
        self._lean = lean
        self._longest = longest
        self._van = van
        self._keys_of = keys_of
        self._on_membership = on_membership
        self._timeout_s = timeout_s
        self._connections: dict[Address, Connection] = {}
        #: Made for a plan that is under way; taken, or closed, when its membership holds.
        self._prepared: dict[Address, Future[Connection]] = {}
        self._preparing = threading.Lock()
        self._connector = ThreadPoolExecutor(2, thread_name_prefix="connect")
        #: Not the same: nobody waits for newcomers that are slow to answer.
        self._preparer = ThreadPoolExecutor(4, thread_name_prefix="prepare")
        self._known: set[tuple[int, bytes]] = set()
        self._results: list[control_pb2.ClockReported] = []
        #: Of the membership by which parts are routed.
        self.incarnation = 0
        self._stopped = False

    def run(
        self,
        pushes: list[PushPart],
        pulls: list[PullPart],
        route: Callable[[], tuple[Membership, Membership]],
        on_not_used: Callable[[PushPart, PushAnswer], list[PushPart]],
        on_pulls: Callable[[Sequence[PullAnswer]], None],
        on_sent: Callable[[], None] = lambda: None,
        interrupted: Callable[[], bool] = lambda: False,
        results: Sequence[m.ClockReported] = (),
        on_acked: Callable[[PushPart], None] = lambda push: None,
    ) -> None:
        """Send all parts to their owners and return when each is answered.

        Parameters
        ----------
        route : callable
            Returns the memberships that say who owns a partition: for pushes, and for pulls.
        on_not_used : callable
            Takes a push whose sum was not used, and the answer to it; returns the pushes to send in its place.
        on_pulls : callable
            Takes the parameters of some partitions, which came together.
        on_sent : callable
            Called once, when everything has been sent for the first time: what can be done while servers work.
        interrupted : callable
            Returns whether members were lost: then all of it begins anew when it is known who takes over.
        results : sequence of ClockReported
            What was measured at the clocks of the pushes; servers remember it.
        on_acked : callable
            Takes a push that its partition's owner has.

        Raises
        ------
        TakenOver
            It was interrupted; answers that still come are ignored.
        Passed
            The clock that was pulled is complete everywhere.
        ProtocolError
            A server says that a part breaks the protocol.
        DeadlineError
            Not everything was answered in time; says what is missing.
        """
        self._results = [results_to_pb(report) for report in results]
        under_way: Replies[_Sent] = Replies()
        again: list[PushPart | PullPart] = [*pushes, *pulls]
        started_s = retry_s = time.monotonic()
        trouble = _Trouble()
        told = False
        while again or under_way:
            if interrupted():
                raise TakenOver("members were lost during an exchange")
            now_s = time.monotonic()
            if again and now_s >= retry_s:
                again = self._send(again, route, under_way, interrupted)
                if again:
                    retry_s = now_s + RETRY_S
                    trouble.met(now_s)
            if not told:
                told = True
                on_sent()
            self._check_deadlines(now_s, started_s, trouble.since_s, again, under_way)
            answered = under_way.next(RETRY_S)
            if answered is None:
                continue
            sent, future = answered
            refused, at_once = self._take(sent, future, on_not_used, on_pulls, on_acked)
            again += refused + at_once
            if refused:
                # The membership that places them is on its way.
                now_s = time.monotonic()
                retry_s = now_s + RETRY_S
                trouble.met(now_s)

    def _check_deadlines(
        self,
        now_s: float,
        started_s: float,
        stuck_s: float | None,
        again: list[PushPart | PullPart],
        under_way: Replies[_Sent],
    ) -> None:
        if self._stopped:
            raise PeerUnavailableError("this worker was told to end")
        if again and stuck_s is not None and now_s - stuck_s > self._routing_timeout_s:
            raise PeerUnavailableError(f"no membership places {_names(again)} for {self._routing_timeout_s:g} s")
        if now_s - started_s > self._timeout_s:
            waiting = list(again)
            for late in under_way.tags:
                waiting += [*late.pushes, *late.pulls]
            raise DeadlineError(f"waited {self._timeout_s:g} s for {_names(waiting)}")

    def _send(
        self,
        parts: list[PushPart | PullPart],
        route: Callable[[], tuple[Membership, Membership]],
        under_way: Replies[_Sent],
        interrupted: Callable[[], bool],
    ) -> list[PushPart | PullPart]:
        """Group parts by owner and send them; return those whose owner cannot be reached now."""
        for_pushes, for_pulls = route()
        addresses: dict[MemberId, Address] = {}
        by_owner: dict[MemberId, list[PushPart | PullPart]] = {}
        for part in parts:
            membership = for_pushes if isinstance(part, PushPart) else for_pulls
            owner = membership.partitions.owners[part.partition]
            if owner not in by_owner:
                by_owner[owner] = []
            addresses[owner] = membership.addresses[owner]
            by_owner[owner].append(part)
        failed: list[PushPart | PullPart] = []
        waiting = [(server, deque(messages_of(group))) for server, group in by_owner.items()]
        while waiting:
            # In turn, so that all servers have something to do from the beginning.
            for server, messages in waiting:
                group = messages.popleft()
                if not self._send_one(server, addresses[server], group, under_way, interrupted):
                    # The rest of what is for it is not tried now: others wait for their messages meanwhile.
                    failed.extend(chain(group, *messages))
                    messages.clear()
            waiting = [(server, messages) for server, messages in waiting if messages]
        return failed

    def _send_one(
        self,
        server: MemberId,
        address: Address,
        group: list[PushPart | PullPart],
        under_way: Replies[_Sent],
        interrupted: Callable[[], bool],
    ) -> bool:
        """Send one message; return False where the server cannot be reached now."""
        pushes = [self._attach(p) for p in group if isinstance(p, PushPart)]
        pulls = [self._attach(p) for p in group if isinstance(p, PullPart)]
        sent = _Sent(server, tuple(pushes), tuple(pulls))
        try:
            message = build_exchange(
                pushes, pulls, self._lean, incarnation=self.incarnation, results=self._results if pushes else ()
            )
            under_way.request(sent, self._connection(address, interrupted), message)
        except (ProtocolError, TakenOver):
            raise
        except EpsError as error:
            # Its port may be somebody else's by now: whoever is to be there, the next membership says.
            logger.info("%s is not reachable: %s", server, error)
            return False
        return True

    def _attach(self, part: PartT) -> PartT:
        """Add the keys where nobody has registered the set yet; a registration moves with its partition."""
        if not part.keyset:
            return part
        name = part.partition, part.keyset
        if name in self._known:
            return part if part.keys is None else replace(part, keys=None)
        self._known.add(name)
        return replace(part, keys=self._keys_of(part.partition, part.keyset))

    def _connection(self, address: Address, interrupted: Callable[[], bool] = lambda: False) -> Connection:
        found = self._connections.get(address)
        if found is None or found.closed:
            if found is not None:
                found.close()
            found = self._connections[address] = self._connected(address, interrupted)
        return found

    def _connected(self, address: Address, interrupted: Callable[[], bool]) -> Connection:
        """Return the connection that was prepared, where there is one that works, or a new one.

        Raises
        ------
        TakenOver
            It was interrupted: whoever does not answer is perhaps the one who was lost.
        EpsError
            Nobody can be reached there.
        """
        with self._preparing:
            prepared = self._prepared.pop(address, None)
        if prepared is not None:
            try:
                connection = self._await_connection(prepared, interrupted)
                if not connection.closed:
                    return connection
                connection.close()
            except TakenOver:
                raise
            except (EpsError, CancelledError) as error:
                logger.info("%s is not reachable yet: %s", address, error)
        return self._await_connection(
            self._connector.submit(self._van.connect, address, CONNECT_TIMEOUT_S), interrupted
        )

    def _await_connection(self, connecting: Future[Connection], interrupted: Callable[[], bool]) -> Connection:
        deadline_s = time.monotonic() + 2 * CONNECT_TIMEOUT_S
        while not wait([connecting], RETRY_S).done:
            taken_over = interrupted()
            if taken_over or self._stopped or time.monotonic() > deadline_s:
                if not connecting.cancel():
                    connecting.add_done_callback(_close_prepared)
                if taken_over:
                    raise TakenOver("members were lost while a connection was made")
                raise DeadlineError(f"a connection was not made within {2 * CONNECT_TIMEOUT_S:g} s")
        return connecting.result()

    def prepare(self, addresses: Iterable[Address]) -> None:
        """Begin to connect to servers that a plan adds, before anybody waits for them; returns at once, any thread."""
        with self._preparing:
            for address in addresses:
                if address not in self._prepared and address not in self._connections:
                    self._prepared[address] = self._preparer.submit(self._van.connect, address, CONNECT_TIMEOUT_S)

    def _drop_prepared(self, addresses: Iterable[Address]) -> None:
        with self._preparing:
            dropped = [self._prepared.pop(address) for address in addresses if address in self._prepared]
        for prepared in dropped:
            prepared.add_done_callback(_close_prepared)

    def _take(
        self,
        sent: _Sent,
        future: Future[Message],
        on_not_used: Callable[[PushPart, PushAnswer], list[PushPart]],
        on_pulls: Callable[[Sequence[PullAnswer]], None],
        on_acked: Callable[[PushPart], None],
    ) -> tuple[list[PushPart | PullPart], list[PushPart | PullPart]]:
        """Hand the answers on; return the parts to send again after a while, and those to send at once."""
        try:
            pushed, pulled = parse_reply(future.result(), self._longest)
        except PeerUnavailableError as error:
            logger.info("%s went away: %s", sent.server, error)
            return [*sent.pushes, *sent.pulls], []
        refused: list[PushPart | PullPart] = []
        at_once: list[PushPart | PullPart] = []
        asked = {push.partition: push for push in sent.pushes}
        for answer in pushed:
            push = _asked(asked, answer.partition)
            if answer.refusal is not None:
                (at_once if self._wants_keys(push, answer.refusal, sent.server) else refused).append(push)
            elif answer.accepted:
                on_acked(push)
            else:
                at_once += on_not_used(push, answer)
        served = [got for got in pulled if got.refusal is None]
        if served:
            on_pulls(served)
        for got in pulled if len(served) < len(pulled) else ():
            if got.refusal is not None:
                pull = _asked({part.partition: part for part in sent.pulls}, got.partition)
                (at_once if self._wants_keys(pull, got.refusal, sent.server) else refused).append(pull)
        return refused, at_once

    def _wants_keys(self, part: PushPart | PullPart, refusal: pb.Refusal, server: MemberId) -> bool:
        """Return whether a server refused a part because it does not know the key set (any more)."""
        if refusal.passed:
            raise Passed(f"{server} has begun a later clock")
        if refusal.error:
            raise ProtocolError(f"{server}: {refusal.error}")
        if refusal.HasField("membership"):
            self._on_membership(membership_from_pb(refusal.membership))
        if refusal.unknown_keyset:
            self._known.discard((part.partition, part.keyset))
        return refusal.unknown_keyset

    def keep(self, addresses: Iterable[Address]) -> None:
        """Close the connections to everybody else; call between exchanges."""
        wanted = set(addresses)
        for address in [a for a in self._connections if a not in wanted]:
            self._connections.pop(address).close()
        self._drop_prepared([a for a in list(self._prepared) if a not in wanted or a in self._connections])

    def connect(self, membership: Membership) -> None:
        """Connect to every server, so that the first exchange need not; who does not answer is tried again there."""
        for server in membership.servers:
            try:
                self._connection(membership.addresses[server])
            except EpsError as error:
                logger.info("%s is not reachable yet: %s", server, error)

    def stop(self) -> None:
        """Make a wait that is under way end."""
        self._stopped = True

    def close(self) -> None:
        """Close the connections."""
        self._drop_prepared(list(self._prepared))
        for pool in (self._connector, self._preparer):
            pool.shutdown(wait=False, cancel_futures=True)
        for connection in self._connections.values():
            try:
                connection.close()
            except EpsError as error:
                logger.debug("closing a connection: %s", error)


def _close_prepared(prepared: Future[Connection]) -> None:
    if not prepared.cancelled() and prepared.exception() is None:
        prepared.result().close()


def _asked(parts: Mapping[int, PartT], partition: int) -> PartT:
    """Return the part that an answer is about."""
    if partition not in parts:
        raise ProtocolError(f"an answer about partition {partition}, which was not asked for")
    return parts[partition]


def messages_of(parts: Sequence[PushPart | PullPart]) -> list[list[PushPart | PullPart]]:
    """Divide what goes to one server into messages, in order of partitions, a push with the pull that follows it.

    Of one partition a message has one push and one pull at most.  A large exchange is cut at :data:`MESSAGE_BYTES`: the
    server adds the first partitions while the last ones are on the wire, and answers them as they are ready.
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
    """Divide one push and one pull at most of each partition into messages; what is of one stays together."""
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
                # What comes back is what counts.
                size_bytes += 4 * pull.size
    return messages


def _names(parts: list[PushPart | PullPart]) -> str:
    pushes = sorted({(p.partition, p.clock) for p in parts if isinstance(p, PushPart)})
    pulls = sorted({(p.partition, p.min_clock) for p in parts if isinstance(p, PullPart)})
    texts = [f"the push of clock {clock} to partition {partition}" for partition, clock in pushes]
    texts += [f"partition {partition} to complete clock {clock - 1}" for partition, clock in pulls]
    return ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
