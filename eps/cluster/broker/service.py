"""One resource manager shared by several jobs: the side of the process that holds the containers.

Each job's master calls its own endpoint, which only processes of this job can reach
(:mod:`eps.cluster.broker.resources` is the client).  It does not see other jobs.  A job cannot have more containers
than the scheduler grants it.
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

#: Polling interval for events and for the request to close.
LOOK_S = 0.2
#: Maximum time that a call waits for news.
MOST_WAIT_S = 30.0
#: Concurrent calls per job.
MOST_CALLS = 16
_STOP_GRACE_S = 0.5


class _JobEndpoint(ContainerBrokerServicer):
    """The endpoint of one job, for its successive masters.

    All calls but :meth:`Open` raise TakenOverError after another master has opened a session.
    """

    def __init__(self, broker: Broker, share: Share) -> None:
        self.share = share
        self._broker = broker
        self._session = ""
        self._is_closed = False
        self._wished = 0
        #: Events that the master has not acknowledged; the first one has the number ``_first``.
        self._told: list[ContainerEvent] = []
        self._first = 1
        #: One condition per job, on the common lock: news of a job wakes only its own master.
        self._changed = threading.Condition(broker.lock)

    def Open(self, request: pb.OpenContainersRequest, context: grpc.ServicerContext) -> pb.OpenContainersReply:
        """Begin the session of a new master; return the running containers -> pid."""
        with self._changed:
            self._check(self._session)
            self._session, self._wished, self._told, self._first = request.session, 0, [], 1
            adopted, orders = self.share.begin(time.monotonic())
            self._broker.carry_out(self.share, orders)
            self._changed.notify_all()
            return pb.OpenContainersReply(adopted=dict(adopted))

    def Wish(self, request: pb.WishContainersRequest, context: grpc.ServicerContext) -> pb.WishContainersReply:
        """Carry out numbered wishes; repeated ones only once."""
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
        """Wake the waiting calls; the caller holds the lock."""
        self._changed.notify_all()

    def close(self) -> None:
        """Refuse further calls; the caller holds the lock."""
        self._is_closed = True
        self.wake()

    def _check(self, session: str) -> None:
        if self._is_closed:
            raise ResourceError(f"job {self.share.job} was removed from this application: it gets no more containers")
        if session != self._session:
            raise TakenOverError(f"another master of job {self.share.job} has taken over")


class Broker:
    """Share the containers of one resource manager among several jobs.

    Parameters
    ----------
    manager : ResourceManager
        Used by no other object; not closed with this one.
    role_of : callable, optional
        (job, role or tier) -> role of the request to ``manager``; by default that of the job.

    Attributes
    ----------
    gone : str
        Why there are no more containers; empty while there are.
    lock : RLock
        Guards all state here; used by the endpoints.
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
        self._endpoints: dict[str, _JobEndpoint] = {}
        self._servers: dict[str, grpc.Server] = {}
        #: Container name -> its job's share, until the container has ended; also for removed jobs.
        self._owners: dict[str, Share] = {}
        #: Containers that the scheduler grants; also for jobs that are not added yet.
        self._leases: dict[str, int] = {}
        self._is_leased = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="broker", daemon=True)
        self._thread.start()

    def add(self, job: str, security: Security, max_containers: int = 0) -> Address:
        """Add a job; return the address at which its master requests containers.

        Raises
        ------
        ConfigError
            A job of that name exists, or ``max_containers`` is negative.
        """
        lease = self._leases.get(job, 0) if self._is_leased else None
        share = Share(
            job,
            # The naming scheme of job masters.
            lambda: f"container-{next(self._numbers):04d}",
            lambda role: self._role_of(job, role),
            max_containers,
            lease,
        )
        endpoint = _JobEndpoint(self, share)
        with self.lock:
            if job in self._endpoints:
                raise ConfigError(f"job {job!r} is in this application already: a job is added once")
            self._endpoints[job] = endpoint
        try:
            self._servers[job], address = serve(
                lambda server: add_ContainerBrokerServicer_to_server(endpoint, server),
                max_workers=MOST_CALLS,
                security=security,
            )
        except EpsError:
            with self.lock:
                del self._endpoints[job]
            raise
        with self.lock:
            # The lease may have changed meanwhile.
            if self._is_leased:
                self.carry_out(share, share.set_lease(self._leases.get(job, 0)))
        return address

    def remove(self, job: str) -> None:
        """Release all containers of a job and close its endpoint; no effect if the job is not here."""
        with self.lock:
            endpoint, server = self._endpoints.pop(job, None), self._servers.pop(job, None)
            if endpoint is not None:
                self.carry_out(endpoint.share, endpoint.share.end())
                endpoint.close()
        if server is not None:
            stop(server, _STOP_GRACE_S)

    def lease(self, leases: Mapping[str, int]) -> None:
        """Set how many containers the scheduler grants each job; after the first call, a missing job gets none."""
        with self.lock:
            self._leases, self._is_leased = dict(leases), True
            for job, endpoint in self._endpoints.items():
                self.carry_out(endpoint.share, endpoint.share.set_lease(self._leases.get(job, 0)))

    def close(self) -> None:
        """Remove all jobs and release their containers.  Idempotent."""
        for job in list(self._endpoints):
            self.remove(job)
        self._closed.set()
        self._thread.join(2 * LOOK_S)

    def carry_out(self, share: Share, orders: Sequence[Order]) -> None:
        """Carry out the orders of a share, without blocking; the caller holds the lock."""
        waiting = list(orders)
        while waiting:
            match waiting.pop(0):
                case WantContainer(request):
                    waiting += self._ask(share, request)
                case ReleaseContainer(name):
                    self._manager.release(name)
                case KillContainer(name):
                    self._manager.kill(name)
        if share.events and (endpoint := self._endpoints.get(share.job)) is not None:
            endpoint.wake()

    def _ask(self, share: Share, request: ContainerRequest) -> list[Order]:
        self._owners[request.container_id] = share
        logger.info("H requests %s for %s", request.container_id, share.job)
        try:
            self._manager.request(request)
        except ResourceError as error:
            # If the resource manager is gone for good, the listening thread notices.
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
            logger.error("H no more containers: %s", reason)
        self.gone = self.gone or reason
        for endpoint in self._endpoints.values():
            endpoint.wake()
