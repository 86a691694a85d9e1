"""Get containers from YARN: the resource manager of a job master that is an application master.

Five kinds of threads share one pure state (:mod:`eps.cluster.yarn.allocation`) and its lock, which none holds during a
call to another process:

* the owner thread requests containers and polls events, as with every backend;
* one thread sends heartbeats with the changes to the ResourceManager and processes the answers.  It also unregisters
  the application, so that only one thread talks to the ResourceManager;
* some threads start containers, since a node that hangs must block neither heartbeats nor other nodes;
* some threads stop containers: a lost node does not answer for a while, and may have several containers to stop;
* one thread checks deadlines.  If the owner thread of the job master hangs, it ends this process, so that YARN starts
  another attempt.

Source: EPS §5.2 (one application master for each job).  Deviation: requests have numbers (YARN's allocationRequestId)
and containers outlive the master; the paper's Hadoop 2.8 had neither.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from eps.cluster.api import NO_NEWS, ContainerEvent, ContainerRequest
from eps.cluster.backend import Waitable, Wakeup
from eps.cluster.yarn.allocation import Allocation, Limits, StartContainer, StopContainer
from eps.cluster.yarn.facade import AmClient, NmClient
from eps.cluster.yarn.headroom import Home
from eps.cluster.yarn.launch import LaunchTemplate, build_launch
from eps.cluster.yarn.types import Ask, ContainerState, FinalStatus, Grant, Registration
from eps.core.retries import Backoff
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, ResourceError, RpcError
from eps.hadoop.errors import AskRefusedError, AttemptEndedError, NotRegisteredError
from eps.system.logs import LimitedLog

logger = logging.getLogger(__name__)

#: Threads that start containers, and threads that stop them.
NUM_LAUNCHERS, NUM_STOPPERS = 4, 8
#: How often the deadlines and the owner thread are checked.
CHECK_S = 0.5
#: The ResourceManager counts as silent if an answer is late by more than this.
LATE_S = 2.0
#: Exit code of a process whose owner thread hangs.
HANGS_EXIT_CODE = 70
#: Errors of calls to a lost node; any other error is the node's answer.
UNREACHABLE = (PeerUnavailableError, DeadlineError)
_FINAL = {"finished": FinalStatus.SUCCEEDED, "failed": FinalStatus.FAILED, "killed": FinalStatus.KILLED}


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals and timeouts, in seconds."""

    #: Pause after a heartbeat with news; it doubles with each heartbeat without.
    busy_s: float = 0.1
    #: Longest pause, as Hadoop's own; a warning may arrive this late.
    idle_s: float = 1.0
    #: The owner thread hangs if it sends no beat for this long, unless it asked for more; counts from its first beat.
    owner_s: float = 3.0
    #: At the end of the job, longest wait for its containers to end.
    farewell_s: float = 5.0
    #: After that, longest wait for the ResourceManager to accept the end of the application.
    unregister_s: float = 30.0


@dataclass(frozen=True, slots=True)
class MasterEndpoint:
    """Addresses that the job master registers with YARN."""

    host: str = "localhost"
    #: Port of the control plane.
    port: int = 0
    #: URL of the job's page, for the ResourceManager's proxy.
    tracking_url: str = ""


def end_process(reason: str) -> None:
    """Exit at once, without cleanup, which could hang as well."""
    logger.critical("M %s: this process exits, so that YARN starts another attempt", reason)
    for handler in logging.getLogger().handlers:
        with suppress(Exception):
            handler.flush()
    os._exit(HANGS_EXIT_CODE)


class Watchdog:
    """Detects that the owner thread of the job master hangs.

    Parameters
    ----------
    owner_s : float, seconds
        Longest time between two beats, unless the owner thread asked for more.
    on_hang : callable
        Called once, with the reason.
    """

    def __init__(self, owner_s: float, on_hang: Callable[[str], object]) -> None:
        self._owner_s, self._on_hang = owner_s, on_hang
        self._silence_s, self._patience_s = 0.0, owner_s
        self._is_on = False

    def beat(self, patience_s: float) -> None:
        """Restart the timeout, which is ``patience_s`` if that is longer than usual."""
        self._patience_s = max(self._owner_s, patience_s)
        self._silence_s = 0.0
        self._is_on = True

    def end(self) -> None:
        """Stop watching."""
        self._is_on = False

    def check(self, passed_s: float) -> None:
        """Check the timeout, ``passed_s`` seconds after the last check."""
        # Time in which this process itself was suspended, or had no processor, counts only in part.
        self._silence_s += min(passed_s, 2 * CHECK_S)
        if self._is_on and self._silence_s >= self._patience_s:
            self._is_on = False
            self._on_hang(f"the job master's owner thread was silent for {self._patience_s:g} s")


class YarnResourceManager(Waitable):
    """YARN as a :class:`~eps.cluster.api.ResourceManager`.

    ``pid`` of its events is the container's number within the application, since YARN does not report process ids.  If
    an earlier attempt has left containers, there are no events before :meth:`adopt`.

    Parameters
    ----------
    am, nm : AmClient, NmClient
        Closed with this object.
    template : LaunchTemplate
        How the containers of each role are started.
    place : MasterEndpoint
        Addresses to register; the control plane must listen there already.
    limits : Limits, optional
    timing : Timing, optional
    max_containers : int
        Most containers and open requests at once; 0: no limit.
    home : Home, optional
        This process's own container, for whose next attempt capacity must stay free; None: no such need.
    on_hang : callable
        Called with the reason if the owner thread hangs; outside of tests it does not return.
    on_ended : callable
        Called with the reason if YARN has ended this attempt of the application, before any event of it.
        A job whose master is restarted passes one that ends this process: it must not change the state that the next
        attempt restores.

    Raises
    ------
    EpsError
        The ResourceManager refuses the application master.
    ConfigError
        ``max_containers`` is negative.

    Attributes
    ----------
    fraction_done : float
        Progress of the job from 0 to 1, as YARN shows it.  Any thread may set it.
    """

    def __init__(
        self,
        am: AmClient,
        nm: NmClient,
        template: LaunchTemplate,
        place: MasterEndpoint | None = None,
        *,
        limits: Limits | None = None,
        timing: Timing | None = None,
        max_containers: int = 0,
        home: Home | None = None,
        on_hang: Callable[[str], object] = end_process,
        on_ended: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._am = am
        self._nm = nm
        self._template = template
        self._place = place or MasterEndpoint()
        self._timing = timing or Timing()
        self._watchdog = Watchdog(self._timing.owner_s, on_hang)
        self._on_ended = on_ended
        self.fraction_done = 0.0
        self._lock = threading.Lock()
        self._allocation = Allocation(template.placements, limits, max_containers, home)
        self._allocation.on_registered(self._register())
        #: Events that were not polled yet; the wakeup is set while there are any, or no more can come.
        self._events: list[ContainerEvent] = []
        self._gone = ""
        self._wakeup = Wakeup()
        self._closed = False
        self._heard_s = time.monotonic()
        self._log = LimitedLog(logger)
        self._new_url: str | None = None
        #: What was asked for in turns that the ResourceManager may not have heard.
        self._unheard: tuple[Ask, ...] = ()
        # ---- the end
        self._outcome: tuple[FinalStatus, str] | None = None
        self._leave_by_s = 0.0
        self._left = threading.Event()
        self._leaving_failed: EpsError | None = None
        # ---- threads
        self._pace = Backoff(self._timing.busy_s, self._timing.idle_s)
        self._beat_now = threading.Event()
        self._stop = threading.Event()
        self._starts: queue.SimpleQueue[StartContainer | None] = queue.SimpleQueue()
        self._stops: queue.SimpleQueue[StopContainer | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._keep_beating, name="yarn beats", daemon=True),
            threading.Thread(target=self._watch_owner, name="yarn watch", daemon=True),
            *(threading.Thread(target=self._start_all, name="yarn launch", daemon=True) for _ in range(NUM_LAUNCHERS)),
            *(threading.Thread(target=self._stop_all, name="yarn stop", daemon=True) for _ in range(NUM_STOPPERS)),
        ]
        for thread in self._threads:
            thread.start()

    # ---- the interface

    def adopt(self, known: Mapping[str, int]) -> Mapping[str, int]:
        """Take over containers of earlier attempts; see :class:`~eps.cluster.api.ResourceManager`.

        Containers that are unknown or were never started are released.
        """
        with self._lock:
            kept = self._allocation.kept
        states = self._states_of(kept)
        with self._lock:
            adopted = self._allocation.adopt(known, states)
            self._pass_on()
        return adopted

    def request(self, request: ContainerRequest) -> None:
        """Request a container; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._lock:
            self._check_open()
            self._allocation.request(request, time.monotonic())
            self._pass_on()

    def withdraw(self, container_id: str) -> bool:
        """Withdraw a request unless its grant is known here; return whether it was withdrawn.

        A later grant for it is released without an event.
        """
        with self._lock:
            withdrawn = not self._closed and self._allocation.withdraw(container_id)
            self._pass_on()
            return withdrawn

    def release(self, container_id: str) -> None:
        """Release a container by id; does nothing for an ended or unknown one."""
        with self._lock:
            if not self._closed:
                self._allocation.release(container_id)
                self._pass_on()

    def kill(self, container_id: str) -> None:
        """Have the node kill a container, and release it; does nothing for an ended or unknown one."""
        with self._lock:
            if not self._closed:
                self._allocation.kill(container_id)
                self._pass_on()

    def poll(self) -> list[ContainerEvent]:
        """Return the events since the last call, in order.

        Raises
        ------
        ResourceError
            YARN has ended this attempt of the application, and all earlier events have been returned.
        """
        with self._lock:
            self._check_open()
            events, self._events = self._events, []
            if not self._gone:
                self._wakeup.clear()
            elif not events:
                raise ResourceError(self._gone)
            return events

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        """Show that the owner thread is alive; after the first beat this process exits if the next one is late."""
        self._watchdog.beat(patience_s)

    def room(self) -> Mapping[str, int]:
        """Return how many containers of each role fit into idle capacity."""
        with self._lock:
            return self._allocation.room(time.monotonic())

    def silent_s(self) -> float:
        """Return how long the ResourceManager has not answered, in seconds; 0.0 while it answers."""
        silent_s = time.monotonic() - self._heard_s
        return 0.0 if self._left.is_set() or silent_s < self._timing.idle_s + LATE_S else silent_s

    def granted(self) -> dict[str, str]:
        """Return container id -> YARN's name, for each granted container that has not ended."""
        with self._lock:
            return self._allocation.granted()

    def waiting(self) -> dict[str, str]:
        """Return container id -> why its request has not been granted yet, as far as is known."""
        with self._lock:
            return self._allocation.waiting(self.silent_s())

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Release all containers and unregister the application; return when YARN has accepted its outcome.

        Raises
        ------
        DeadlineError
            The ResourceManager did not answer in time: when this process exits, YARN starts another attempt.
        EpsError
            The ResourceManager refuses.
        """
        with self._lock:
            self._check_open()
            self._watchdog.end()
            self._allocation.end()
            self._leave_by_s = time.monotonic() + self._timing.farewell_s
            self._outcome = _FINAL[state], reason
            self._pass_on()
        self._beat_now.set()
        if not self._left.wait(self._timing.farewell_s + self._timing.unregister_s):
            raise DeadlineError(
                f"the ResourceManager has not answered for {self._timing.unregister_s:g} s and does not know that the "
                f"job has {state}: YARN will restart the job's master, which reports it again"
            )
        if self._leaving_failed is not None:
            raise self._leaving_failed

    def show_page(self, url: str) -> None:
        """Have YARN show ``url`` as the application's page from the next heartbeat on."""
        with self._lock:
            self._new_url = url
        self._beat_now.set()

    def close(self) -> None:
        """Close the connections to YARN; containers keep running.  Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._watchdog.end()
        self._stop.set()
        self._beat_now.set()
        for _ in range(NUM_LAUNCHERS):
            self._starts.put(None)
        for _ in range(NUM_STOPPERS):
            self._stops.put(None)
        until_s = time.monotonic() + self._timing.farewell_s
        for thread in self._threads:
            # A thread that waits for another process ends with this process.
            thread.join(max(0.0, until_s - time.monotonic()))
        self._nm.close()
        self._am.close()
        with self._lock:
            self._wakeup.close()

    # ---- with the lock held

    def _check_open(self) -> None:
        if self._closed:
            raise ResourceError("the resource manager is closed")

    def _pass_on(self) -> None:
        """Pass the state's output on to the job master, the launching and stopping threads, and the next heartbeat."""
        if self._closed:
            return
        for order in self._allocation.take_orders():
            match order:
                case StartContainer():
                    self._starts.put(order)
                case StopContainer():
                    self._stops.put(order)
        events = self._allocation.take_events()
        if events:
            self._events += events
            self._wakeup.notify()
        if self._allocation.has_turn:
            self._beat_now.set()

    def _give_up(self, reason: str) -> None:
        self._gone = reason
        if not self._closed:
            self._wakeup.notify()

    # ---- the heartbeat thread

    def _register(self) -> Registration:
        place = self._place
        return self._am.register(place.host, place.port, place.tracking_url)

    def _states_of(self, kept: tuple[Grant, ...]) -> dict[str, ContainerState]:
        """Ask the nodes for the states of kept containers; in parallel, since some may be slow."""

        def state_of(grant: Grant) -> ContainerState:
            try:
                return self._nm.status(grant.container)
            except EpsError as error:
                # If the node is lost, YARN will report it.
                logger.warning("M the node of %s does not answer: %s", grant.container, error)
                return ContainerState.RUNNING

        if not kept:
            return {}
        with ThreadPoolExecutor(min(16, len(kept)), "yarn status") as pool:
            return dict(zip((grant.container for grant in kept), pool.map(state_of, kept), strict=True))

    def _keep_beating(self) -> None:
        try:
            while not self._stop.is_set() and not self._left.is_set():
                has_news = self._beat_once()
                self._pace = self._pace.succeeded() if has_news else self._pace.failed(time.monotonic())
                self._beat_now.wait(self._pace.pause_s)
                self._beat_now.clear()
        except AttemptEndedError as error:
            self._on_ended(str(error))
            with self._lock:
                self._allocation.finish()
                self._pass_on()
                self._give_up(str(error))
            self._left.set()
        except Exception as error:
            # YARN ends an attempt without heartbeats; the job master is to know why.
            logger.exception("M heartbeats to YARN have failed for good")
            with self._lock:
                self._give_up(f"heartbeats to YARN have failed for good: {error}")
            self._leaving_failed = ResourceError(self._gone)
            self._left.set()

    def _beat_once(self) -> bool:
        """Send a heartbeat; return whether it or its answer had news."""
        with self._lock:
            turn = self._allocation.take_turn()
            new_url, self._new_url = self._new_url, None
        has_news = bool(turn)
        # Asks of a failed heartbeat go with this one, and are refused with it.
        asks, self._unheard = (*self._unheard, *turn.asks), ()
        try:
            if new_url is not None:
                self._am.update_tracking_url(new_url)
            result = self._am.allocate(
                turn.asks,
                turn.withdrawn,
                turn.releases,
                turn.blacklist,
                turn.unblacklist,
                progress=self.fraction_done,
            )
        except NotRegisteredError:
            self._register_again()
        except AskRefusedError as error:
            with self._lock:
                self._allocation.on_refused(asks, str(error))
                self._pass_on()
        except RpcError as error:
            self._unheard = asks
            self._log.warning("M the ResourceManager does not answer: %s", error)
        else:
            has_news = has_news or result.has_news
            self._heard_s = time.monotonic()
            with self._lock:
                self._allocation.on_allocated(result, self._heard_s)
                self._pass_on()
        self._leave_if_done()
        return has_news

    def _register_again(self) -> None:
        logger.warning("M the ResourceManager has restarted: registering again")
        try:
            registration = self._register()
        except RpcError as error:
            self._log.warning("M the ResourceManager does not answer: %s", error)
            return
        with self._lock:
            self._allocation.on_forgotten(registration)
            self._pass_on()

    def _leave_if_done(self) -> None:
        if self._outcome is None:
            return
        with self._lock:
            if self._allocation.has_containers and time.monotonic() < self._leave_by_s:
                return
        status, reason = self._outcome
        try:
            self._am.unregister(status, reason)
        except NotRegisteredError:
            self._register_again()
            return
        except RpcError as error:
            self._log.warning("M the ResourceManager does not answer that the job has ended: %s", error)
            return
        except EpsError as error:
            self._leaving_failed = error
        with self._lock:
            # YARN kills the remaining containers of an unregistered application.
            self._allocation.finish()
            self._pass_on()
        self._left.set()

    def _check_deadlines(self, now_s: float) -> None:
        """End requests that have timed out, also while the ResourceManager does not answer."""
        with self._lock:
            if not self._closed:
                self._allocation.check_deadlines(now_s, self.silent_s())
                self._pass_on()

    # ---- the threads that start and stop containers

    def _start_all(self) -> None:
        while (order := self._starts.get()) is not None:
            self._start(order)

    def _stop_all(self) -> None:
        while (order := self._stops.get()) is not None:
            with self._lock:
                if not self._allocation.on_stopping(order, time.monotonic()):
                    continue
            reached = True
            try:
                self._nm.stop(order.container, order.node)
            except EpsError as error:
                # It is released as well, so YARN stops it.
                logger.warning("M the node of %s does not stop it: %s", order.container, error)
                reached = not isinstance(error, UNREACHABLE)
            with self._lock:
                self._allocation.on_stopped(order, reached=reached)
                self._pass_on()

    def _start(self, order: StartContainer) -> None:
        container_id = order.request.container_id
        with self._lock:
            if self._closed or not self._allocation.is_starting(container_id):
                return
            # With the lock: the role may be removed as soon as the container is released.
            launch = build_launch(self._template, order.request, order.grant)
        failure: EpsError | None = None
        try:
            self._nm.start(order.grant.container, launch)
        except EpsError as error:
            failure = error
        logger.info("M %s is %s on %s", container_id, order.grant.container, order.grant.node)
        with self._lock:
            if failure is None:
                self._allocation.on_started(container_id)
            else:
                lost = isinstance(failure, UNREACHABLE)
                self._allocation.on_start_failed(container_id, str(failure), unreachable=lost)
            self._pass_on()

    # ---- the thread that checks deadlines and the owner thread

    def _watch_owner(self) -> None:
        checked_s = time.monotonic()
        while not self._stop.wait(min(CHECK_S, self._timing.owner_s / 4)):
            now_s = time.monotonic()
            self._check_deadlines(now_s)
            self._watchdog.check(now_s - checked_s)
            checked_s = now_s
