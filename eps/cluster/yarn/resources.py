"""Containers that YARN grants: the resource manager of a job master that is an application master.

Five kinds of thread around one pure state (:mod:`eps.cluster.yarn.allocation`) and its lock, which nobody holds while
another process is asked:

* whoever wishes and polls, as with every backend;
* one that beats: every beat takes what is new to the ResourceManager and brings what it has to say; it also says at the
  end that the application is over, so that the ResourceManager hears one thread only;
* some that start containers, since a node that hangs must hold up neither beats nor other nodes;
* some that stop them: of a node that is lost several are to be stopped at once, and none of them waits for its answer
  where others wait for what takes their place;
* one that looks at deadlines, and ends this process where the owner thread of the job master hangs, so that YARN starts
  another attempt.

Source: EPS §5.2 (one application master for each job).  Deviation: requests carry numbers (YARN's allocationRequestId)
and containers outlive the master, both of which the paper's Hadoop 2.8 did not have.
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
#: The owner thread's silence is looked at this often.
LOOK_S = 0.5
#: A beat may be late by this much before the ResourceManager counts as silent.
LATE_S = 2.0
#: Exit code of a process whose owner thread hangs.
HANGS_EXIT_CODE = 70
#: So end calls to a node that is lost; any other end is its answer.
UNREACHABLE = (PeerUnavailableError, DeadlineError)
_FINAL = {"finished": FinalStatus.SUCCEEDED, "failed": FinalStatus.FAILED, "killed": FinalStatus.KILLED}


@dataclass(frozen=True, slots=True)
class Timing:
    """How often, and how long at most, in seconds."""

    #: From a beat that has said or brought something to the next one; the pause doubles with each beat that has not.
    busy_s: float = 0.1
    #: The longest pause, which is Hadoop's own; also how late a warning may be heard.
    idle_s: float = 1.0
    #: An owner thread that beats not for this long hangs, unless it asked for more patience; counted from its first.
    owner_s: float = 3.0
    #: Containers that are ended with the job are waited for this long.
    farewell_s: float = 5.0
    #: After that, the ResourceManager has this long to hear that the job has ended.
    unregister_s: float = 30.0


@dataclass(frozen=True, slots=True)
class MasterEndpoint:
    """Addresses at which the job master registers."""

    host: str = "localhost"
    #: Of its control plane.
    port: int = 0
    #: Of the job's page; behind the ResourceManager's proxy.
    tracking_url: str = ""


def end_process(reason: str) -> None:
    """End this process at once, without what it would do at its end: it hangs."""
    logger.critical("M %s: this process ends, so that another takes over", reason)
    for handler in logging.getLogger().handlers:
        with suppress(Exception):
            handler.flush()
    os._exit(HANGS_EXIT_CODE)


class Watchdog:
    """Notices that the owner thread of the job master hangs.

    Parameters
    ----------
    owner_s : float, seconds
        The longest silence, unless the owner thread asked for more patience.
    on_hang : callable
        Called with the reason, once.
    """

    def __init__(self, owner_s: float, on_hang: Callable[[str], object]) -> None:
        self._owner_s, self._on_hang = owner_s, on_hang
        self._silence_s, self._patience_s = 0.0, owner_s
        self._is_on = False

    def beat(self, patience_s: float) -> None:
        """Count silence from now on; it may last ``patience_s``, where that is more than usual."""
        self._patience_s = max(self._owner_s, patience_s)
        self._silence_s = 0.0
        self._is_on = True

    def end(self) -> None:
        """Count no more."""
        self._is_on = False

    def look(self, passed_s: float) -> None:
        """Look again, so many seconds after the last time."""
        # A process that was stopped, or waited long for a processor, has not listened itself.
        self._silence_s += min(passed_s, 2 * LOOK_S)
        if self._is_on and self._silence_s >= self._patience_s:
            self._is_on = False
            self._on_hang(f"the job master's owner thread was silent for {self._patience_s:g} s")


class YarnResourceManager(Waitable):
    """YARN as a :class:`~eps.cluster.api.ResourceManager`.

    ``pid`` of its events is the container's number within the application: YARN does not tell process ids.  Where an
    attempt before has left containers, nothing is heard before :meth:`adopt`.

    Parameters
    ----------
    am, nm : AmClient, NmClient
        Closed with this object.
    template : LaunchTemplate
        What runs in the containers of each role.
    place : MasterEndpoint
        Said when registering; the control plane must listen there by then.
    limits : Limits, optional
    timing : Timing, optional
    max_containers : int
        Containers that may be there at once, and be asked for; 0 sets no limit.
    home : Home, optional
        Where this process runs, if the next one has to find room for itself.
    on_hang : callable
        Called with the reason where the owner thread hangs; does not return in earnest.
    on_ended : callable
        Called with the reason where YARN has ended this attempt of the application, before anybody else hears of it.
        A job whose masters follow each other gives one that ends this process: what the next attempt finds must not be
        changed by what this one made of its end.

    Raises
    ------
    EpsError
        The ResourceManager does not take the application master.
    ConfigError
        ``max_containers`` is negative.

    Attributes
    ----------
    fraction_done : float
        Progress of the job from 0 to 1, as YARN shows it; anybody may set it.
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
        #: What the job master has not polled; the wakeup is set while there is any, or nothing more will come.
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
        self._last_words: tuple[FinalStatus, str] | None = None
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
        """Take over what the attempts before have left; see :class:`~eps.cluster.api.ResourceManager`.

        What is not known, or was granted and never started, is given back.
        """
        with self._lock:
            kept = self._allocation.kept
        states = self._states_of(kept)
        with self._lock:
            adopted = self._allocation.adopt(known, states)
            self._pass_on()
        return adopted

    def request(self, request: ContainerRequest) -> None:
        """Ask for a container; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._lock:
            self._check_open()
            self._allocation.request(request, time.monotonic())
            self._pass_on()

    def withdraw(self, container_id: str) -> bool:
        """Take a request back that has not been granted, as far as it is known here; return whether that was so.

        What YARN grants nevertheless is given back without a word.
        """
        with self._lock:
            withdrawn = not self._closed and self._allocation.withdraw(container_id)
            self._pass_on()
            return withdrawn

    def release(self, container_id: str) -> None:
        """Give a container back by id; harmless for one that has ended or is unknown."""
        with self._lock:
            if not self._closed:
                self._allocation.release(container_id)
                self._pass_on()

    def kill(self, container_id: str) -> None:
        """Have its node end a container at once, and give it back; harmless for one that is not there."""
        with self._lock:
            if not self._closed:
                self._allocation.kill(container_id)
                self._pass_on()

    def poll(self) -> list[ContainerEvent]:
        """Return what has happened since the last call, in order.

        Raises
        ------
        ResourceError
            YARN has ended this attempt of the application, and everything before that has been returned.
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
        """Say that the owner thread lives: from the first beat on, this process ends where no other comes in time."""
        self._watchdog.beat(patience_s)

    def room(self) -> Mapping[str, int]:
        """Return how many containers of each role fit into room that nobody else seems to want."""
        with self._lock:
            return self._allocation.room(time.monotonic())

    def silent_s(self) -> float:
        """Return for how long the ResourceManager has not answered, in seconds; 0.0 where it does."""
        silent_s = time.monotonic() - self._heard_s
        return 0.0 if self._left.is_set() or silent_s < self._timing.idle_s + LATE_S else silent_s

    def granted(self) -> dict[str, str]:
        """Return what YARN calls each container that is there, by our id."""
        with self._lock:
            return self._allocation.granted()

    def waiting(self) -> dict[str, str]:
        """Return what is known of why each container that was asked for has not been granted, by our id."""
        with self._lock:
            return self._allocation.waiting(self.silent_s())

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """End whatever still runs, and have YARN know how the job ended; returns when it does.

        Raises
        ------
        DeadlineError
            The ResourceManager has not heard of it in time: when this process ends, YARN starts another attempt.
        EpsError
            It does not take it.
        """
        with self._lock:
            self._check_open()
            self._watchdog.end()
            self._allocation.end()
            self._leave_by_s = time.monotonic() + self._timing.farewell_s
            self._last_words = _FINAL[state], reason
            self._pass_on()
        self._beat_now.set()
        if not self._left.wait(self._timing.farewell_s + self._timing.unregister_s):
            raise DeadlineError(
                f"the ResourceManager has not heard within {self._timing.unregister_s:g} s that the job has {state}: "
                "YARN starts the job's master again, which says so once more"
            )
        if self._leaving_failed is not None:
            raise self._leaving_failed

    def show_page(self, url: str) -> None:
        """Have YARN lead whoever asks for the application's page to ``url`` from the next beat on."""
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
            # One that a process elsewhere holds up ends with this process.
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
        """Take out of the state what is for others: the job master, the launchers, the next beat."""
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

    # ---- the thread that beats

    def _register(self) -> Registration:
        place = self._place
        return self._am.register(place.host, place.port, place.tracking_url)

    def _states_of(self, kept: tuple[Grant, ...]) -> dict[str, ContainerState]:
        """Ask the nodes of containers that outlived the attempt before; all at once, since some may be slow."""

        def state_of(grant: Grant) -> ContainerState:
            try:
                return self._nm.status(grant.container)
            except EpsError as error:
                # If it is lost, YARN will say so.
                logger.warning("M the node of %s cannot be asked: %s", grant.container, error)
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
            # Without beats YARN ends the attempt anyway; the job master is to know why.
            logger.exception("M YARN cannot be spoken to any more")
            with self._lock:
                self._give_up(f"YARN cannot be spoken to any more: {error}")
            self._leaving_failed = ResourceError(self._gone)
            self._left.set()

    def _beat_once(self) -> bool:
        """Beat; return whether anything was said or heard."""
        with self._lock:
            turn = self._allocation.take_turn()
            new_url, self._new_url = self._new_url, None
        has_news = bool(turn)
        # Those of a turn that was not heard are said again with this one, and refused with it.
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
        logger.warning("M the ResourceManager was started again: registering again")
        try:
            registration = self._register()
        except RpcError as error:
            self._log.warning("M the ResourceManager does not answer: %s", error)
            return
        with self._lock:
            self._allocation.on_forgotten(registration)
            self._pass_on()

    def _leave_if_done(self) -> None:
        if self._last_words is None:
            return
        with self._lock:
            if self._allocation.has_containers and time.monotonic() < self._leave_by_s:
                return
        status, reason = self._last_words
        try:
            self._am.unregister(status, reason)
        except NotRegisteredError:
            self._register_again()
            return
        except RpcError as error:
            self._log.warning("M the ResourceManager does not hear that the job has ended: %s", error)
            return
        except EpsError as error:
            self._leaving_failed = error
        with self._lock:
            # YARN ends what is left of an application that is over.
            self._allocation.finish()
            self._pass_on()
        self._left.set()

    def _look_at_deadlines(self, now_s: float) -> None:
        """End what has been waited for long enough, also while the ResourceManager does not answer."""
        with self._lock:
            if not self._closed:
                self._allocation.look_at_deadlines(now_s, self.silent_s())
                self._pass_on()

    # ---- the threads that start and stop

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
                # It is given back as well, so that YARN ends it.
                logger.warning("M %s cannot be stopped at its node: %s", order.container, error)
                reached = not isinstance(error, UNREACHABLE)
            with self._lock:
                self._allocation.on_stopped(order, reached=reached)
                self._pass_on()

    def _start(self, order: StartContainer) -> None:
        container_id = order.request.container_id
        with self._lock:
            if self._closed or not self._allocation.is_starting(container_id):
                return
            # Its role may be gone as soon as it is given back.
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

    # ---- the thread that watches the owner

    def _watch_owner(self) -> None:
        looked_s = time.monotonic()
        while not self._stop.wait(min(LOOK_S, self._timing.owner_s / 4)):
            now_s = time.monotonic()
            self._look_at_deadlines(now_s)
            self._watchdog.look(now_s - looked_s)
            looked_s = now_s
