"""One resource manager for several jobs: the side of the process that holds the containers.

Each job's master speaks to a desk of its own, which only processes of this job reach, and sees nothing of the others
(:mod:`eps.cluster.broker.resources` is its end).  A job cannot have more containers than the scheduler grants it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import grpc

from eps.cluster.api import ContainerEvent, ContainerRequest, Exited, ResourceManager
from eps.cluster.broker.calls import event_to_pb, wish_from_pb
from eps.cluster.broker.share import KillContainer, Order, ReleaseContainer, Share, WantContainer
from eps.core.types import Address
from eps.errors import ConfigError, EpsError, ResourceError, TakenOverError
from eps.net.calls.call import serve, stop
from eps.net.security.credentials import Security
from eps.pb import broker_pb2 as pb
from eps.pb.broker_pb2_grpc import ContainerBrokerServicer, add_ContainerBrokerServicer_to_server

logger = logging.getLogger(__name__)

#: Closing is noticed within this.
LOOK_S = 0.2
#: A master that waits for news is answered within this at most.
MOST_WAIT_S = 30.0
#: Calls of one job's masters at the same time.
MOST_CALLS = 16
_STOP_GRACE_S = 0.5


class _JobDesk(ContainerBrokerServicer):
    """Where one job's masters, one after the other, ask for containers.

    All but :meth:`Open` raise TakenOverError where another master has come since.
    """

    def __init__(self, broker: Broker, share: Share) -> None:
        self.share = share
        self._broker = broker
        self._session = ""
        self._is_closed = False
        self._wished = 0
        #: Events that the master may not have, the first of which has this number.
        self._told: list[ContainerEvent] = []
        self._first = 1
        #: Of its own, under the lock of all: what is news of one job wakes no other's master.
        self._changed = threading.Condition(broker.lock)

    def Open(self, request: pb.OpenContainersRequest, context: grpc.ServicerContext) -> pb.OpenContainersReply:
        """Take a new master; return the containers that run already -> pid."""
        with self._changed:
            self._check(self._session)
            self._session, self._wished, self._told, self._first = request.session, 0, [], 1
            adopted, orders = self.share.begin(time.monotonic())
            self._broker.carry_out(self.share, orders)
            self._changed.notify_all()
            return pb.OpenContainersReply(adopted=dict(adopted))

    def Wish(self, request: pb.WishContainersRequest, context: grpc.ServicerContext) -> pb.WishContainersReply:
        """Take wishes with their numbers, those that were taken before once only."""
        wishes = [(each.number, wish_from_pb(each)) for each in request.wishes]
        with self._changed:
            self._check(request.session)
            for number, wish in wishes:
                if number > self._wished:
                    self._wished = number
                    self._broker.carry_out(self.share, self.share.take(wish))
        return pb.WishContainersReply()

    def Hear(self, request: pb.HearContainersRequest, context: grpc.ServicerContext) -> pb.HearContainersReply:
        """Return the events after a number, as soon as there is one; none at the end of the wait."""
        found = self._hear(request.session, request.after, request.wait_s)
        return pb.HearContainersReply(news=[event_to_pb(number, event) for number, event in found])

    def _hear(self, session: str, after: int, wait_s: float) -> list[tuple[int, ContainerEvent]]:
        until_s = time.monotonic() + min(wait_s, MOST_WAIT_S)
        with self._changed:
            while True:
                self._check(session)
                self._told += self.share.events
                self.share.events.clear()
                heard = max(0, after + 1 - self._first)
                del self._told[:heard]
                self._first += heard
                left_s = until_s - time.monotonic()
                if self._told or left_s <= 0:
                    return list(enumerate(self._told, self._first))
                if self._broker.gone:
                    raise ResourceError(self._broker.gone)
                self._changed.wait(left_s)

    def wake(self) -> None:
        """Have the calls that wait look for news; with the lock held."""
        self._changed.notify_all()

    def close(self) -> None:
        """Refuse further calls; with the lock held."""
        self._is_closed = True
        self.wake()

    def _check(self, session: str) -> None:
        if self._is_closed:
            raise ResourceError(f"job {self.share.job} has no containers any more")
        if session != self._session:
            raise TakenOverError(f"another master of job {self.share.job} has come")


class Broker:
    """Gives the containers of one resource manager to several jobs.

    Parameters
    ----------
    manager : ResourceManager
        Used by no other object; not closed with this one.
    role_of : callable, optional
        (job, role) -> the role as which a container is asked for; by default the job's own.

    Attributes
    ----------
    gone : str
        Why there are no containers any more; empty while there are.
    lock : RLock
        Of everything here; for the desks.
    """

    def __init__(
        self,
        manager: ResourceManager,
        role_of: Callable[[str, str], str] = lambda job, role: role,
    ) -> None:
        self._manager = manager
        self._role_of = role_of
        self._numbers = itertools.count(1)
        self.lock = threading.RLock()
        self.gone = ""
        self._desks: dict[str, _JobDesk] = {}
        self._servers: dict[str, grpc.Server] = {}
        #: Name -> whose it is, until it has ended, also of jobs that are not here any more.
        self._owners: dict[str, Share] = {}
        #: What the scheduler grants, of jobs that may not be here yet.
        self._leases: dict[str, int] = {}
        self._is_leased = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="broker", daemon=True)
        self._thread.start()

    def add(self, job: str, security: Security, max_containers: int = 0) -> Address:
        """Take a job in; return where its master asks for containers.

        Raises
        ------
        ConfigError
            There is one of that name, or ``max_containers`` is negative.
        """
        lease = self._leases.get(job, 0) if self._is_leased else None
        share = Share(
            job,
            # As job masters name them.
            lambda: f"container-{next(self._numbers):04d}",
            lambda role: self._role_of(job, role),
            max_containers,
            lease,
        )
        desk = _JobDesk(self, share)
        with self.lock:
            if job in self._desks:
                raise ConfigError(f"job {job!r} has containers of this application already")
            self._desks[job] = desk
        try:
            self._servers[job], address = serve(
                lambda server: add_ContainerBrokerServicer_to_server(desk, server),
                max_workers=MOST_CALLS,
                security=security,
            )
        except EpsError:
            with self.lock:
                del self._desks[job]
            raise
        with self.lock:
            # It may have changed since.
            if self._is_leased:
                self.carry_out(share, share.set_lease(self._leases.get(job, 0)))
        return address

    def remove(self, job: str) -> None:
        """Give back all that a job has, and let its master in no more; harmless where it is not here."""
        with self.lock:
            desk, server = self._desks.pop(job, None), self._servers.pop(job, None)
            if desk is not None:
                self.carry_out(desk.share, desk.share.end())
                desk.close()
        if server is not None:
            stop(server, _STOP_GRACE_S)

    def lease(self, leases: Mapping[str, int]) -> None:
        """Set what the scheduler grants each job; from the first time on, a job that is not named has nothing."""
        with self.lock:
            self._leases, self._is_leased = dict(leases), True
            for job, desk in self._desks.items():
                self.carry_out(desk.share, desk.share.set_lease(self._leases.get(job, 0)))

    def close(self) -> None:
        """Let all jobs go, with their containers; harmless when repeated."""
        for job in list(self._desks):
            self.remove(job)
        self._closed.set()
        self._thread.join(2 * LOOK_S)

    def carry_out(self, share: Share, orders: Sequence[Order]) -> None:
        """Pass on what a share wants; with the lock held.  Nothing of it blocks."""
        waiting = list(orders)
        while waiting:
            match waiting.pop(0):
                case WantContainer(request):
                    waiting += self._ask(share, request)
                case ReleaseContainer(name):
                    self._manager.release(name)
                case KillContainer(name):
                    self._manager.kill(name)
        if share.events and (desk := self._desks.get(share.job)) is not None:
            desk.wake()

    def _ask(self, share: Share, request: ContainerRequest) -> list[Order]:
        self._owners[request.container_id] = share
        logger.info("H %s of %s is asked for", request.container_id, share.job)
        try:
            self._manager.request(request)
        except ResourceError as error:
            # If the resource manager is gone for good, the thread that listens finds out.
            del self._owners[request.container_id]
            return share.on_event(Exited(request.container_id, None, f"was refused: {error}"), time.monotonic())
        return []

    def _listen(self) -> None:
        while not self._closed.is_set() and not self.gone:
            try:
                self._manager.wait(LOOK_S)
                events = self._manager.poll()
            except ResourceError as error:
                with self.lock:
                    self._give_up(str(error))
                return
            with self.lock:
                for event in events:
                    self._on_event(event)

    def _on_event(self, event: ContainerEvent) -> None:
        share = self._owners.get(event.container_id)
        if share is None:
            return
        orders = share.on_event(event, time.monotonic())
        if isinstance(event, Exited):
            del self._owners[event.container_id]
        self.carry_out(share, orders)

    def _give_up(self, reason: str) -> None:
        if not self.gone and not self._closed.is_set():
            logger.error("H there are no containers any more: %s", reason)
        self.gone = self.gone or reason
        for desk in self._desks.values():
            desk.wake()
