"""The gRPC service of a job master, and the announcement of its address.

Each request arrives on its own thread.  The owner thread answers changes; reads take the lock of the state.

Source: EPS §5.2 (addServers, addWorkers, removeServers, removeWorkers, called by H-scheduler).
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc

from eps.core import events as e
from eps.core.events import ENDED_STATES
from eps.core.reconfig import Change, Operation
from eps.errors import ConfigError, DeadlineError, PlanError
from eps.master import records
from eps.master.sessions import Sessions
from eps.master.state_log import LoggedJob
from eps.net.calls.call import BoundServer
from eps.net.security.credentials import Security
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import JobMasterServicer, add_JobMasterServicer_to_server
from eps.spec.changes import check_change, check_request_id, scale_of
from eps.spec.runtime import Runtime
from eps.storage.api import Storage
from eps.storage.atomic import json_object, read_json, write_json_atomic
from eps.storage.jobdir import MASTER_FILE, JobDir
from eps.system.web import drawn

ANSWER_TIMEOUT_S = 30.0
#: Shortest and longest interval between two messages to a watching client; a status also shows elapsed times.
WATCH_INTERVAL_S, QUIET_INTERVAL_S = 0.2, 5.0
LONGEST_WAIT_S = 3600.0
#: Longest reason of a kill, in characters; the rest is cut.
MOST_REASON = 1000
#: History entries in one message to a watching client.
MOST_ENTRIES = 1000


class Announcements:
    """The file with the address of a job's master, in the job's directory and in the store that its hosts share.

    Parameters
    ----------
    job : JobDir
    shared : Storage, optional
        The store, if processes of the job run on several hosts.

    Raises
    ------
    StorageError
        The latest announcement cannot be read.
    """

    def __init__(self, job: JobDir, shared: Storage | None = None) -> None:
        self._job = job
        self._shared = shared
        #: Generation of the latest announced master; 0 before the first.
        self.generation = int(self._last().get("generation", 0))

    def _last(self) -> Mapping[str, Any]:
        if self._shared is None:
            return read_json(self._job.master_json) or {}
        if MASTER_FILE not in self._shared.names(""):
            return {}
        with self._shared.read(MASTER_FILE) as file:
            return json_object(file.read(), self._shared.describe(MASTER_FILE))

    def add(self, place: Mapping[str, Any]) -> None:
        """Announce the address of the job's master.

        Raises
        ------
        StorageError
            The announcement cannot be written.
        """
        write_json_atomic(self._job.master_json, place, sync=False)
        if self._shared is not None:
            with self._shared.write(MASTER_FILE) as file:
                file.write(json.dumps(place).encode("utf-8"))


def open_place(job: JobDir, security: Security) -> tuple[BoundServer | None, Announcements]:
    """Return the server of a job's master, None for a job on one host, and where it announces its address.

    Raises
    ------
    ConfigError
        The address cannot be listened on.
    StorageError
        The store that the job's processes share cannot be used.
    """
    part = job.record().yarn
    if part.broker is None or not part.shared:
        return None, Announcements(job)
    # Imported only if needed: it is slow.
    from eps.storage.locations import open_storage

    announcements = Announcements(job, open_storage(part.shared))
    return BoundServer(str(part.broker["host"]), security=security), announcements


class Requests:
    """Requests of clients: changes go to the owner thread, reads to the state.

    Parameters
    ----------
    runtime : Runtime
    job : LoggedJob
    put : callable
        Takes events; never blocks.
    """

    def __init__(self, runtime: Runtime, job: LoggedJob, put: Callable[..., None]) -> None:
        self._runtime, self._job, self._put = runtime, job, put
        self._state, self._changed = job.state, job.changed
        self._answers: dict[str, e.Answer] = {}
        #: Request id -> number of calls that wait for its answer.
        self._asked: dict[str, int] = {}

    def ask(self, event: e.Event, request_id: str, timeout_s: float) -> e.Answer:
        """Queue a request and wait for its answer.

        Raises
        ------
        EpsError
            The job refuses the request.
        DeadlineError
            There is no answer in time.
        """
        with self._changed:
            self._asked[request_id] = self._asked.get(request_id, 0) + 1
        self._put(event)
        with self._changed:
            self._changed.wait_for(lambda: request_id in self._answers, timeout_s)
            answer = self._answers.get(request_id)
            self._asked[request_id] -= 1
            if not self._asked[request_id]:
                del self._asked[request_id]
                self._answers.pop(request_id, None)
        if answer is None:
            raise DeadlineError(f"the job master did not decide on request {request_id} within {timeout_s:g} s")
        if answer.error is not None:
            raise answer.error
        return answer

    def answer(self, answer: e.Answer) -> None:
        """Pass an answer to the calls that wait for it; called on the owner thread."""
        with self._changed:
            if answer.request_id in self._asked:
                self._answers[answer.request_id] = answer
            self._changed.notify_all()

    def history_after(self, clock: int) -> tuple[list[dict[str, Any]], bool]:
        """Return (the next history entries after ``clock``, whether they are the last)."""
        first = max(0, clock + 1)
        with self._changed:
            history = self._state.progress.history
            found = history[first : first + MOST_ENTRIES]
            ended = self._state.state in ENDED_STATES and len(history) <= first + MOST_ENTRIES
        # Outside the lock: formatting must not delay the owner thread.
        return [records.history_entry(self._runtime, record, 0.0) for record in found], ended

    def history_at_most(self, most: int) -> list[dict[str, Any]]:
        """Return at most ``most`` entries of the history, including the latest and clocks that were evaluated."""
        every = self._runtime.spec.evaluation_clocks
        with self._changed:
            history = self._state.progress.history
            evaluated = (0, *range(every - 1, len(history), every))
            found = [history[clock] for clock in drawn(len(history), evaluated, most)]
        return [records.history_entry(self._runtime, record, 0.0) for record in found]

    @property
    def num_news(self) -> int:
        """Number of events that may have changed the status."""
        return self._job.num_news

    def wait_for_news(self, clock: int, num_news: int, still_wanted: Callable[[], bool]) -> None:
        """Wait until a client that has the history up to ``clock`` and the status of ``num_news`` needs an update.

        Return at once if the job has ended, or if more history is left than one message takes.  Otherwise wait
        :data:`WATCH_INTERVAL_S` at least and :data:`QUIET_INTERVAL_S` at most.
        """

        def at_once() -> bool:
            history = self._state.progress.history
            return self._state.state in ENDED_STATES or len(history) > clock + 1 + MOST_ENTRIES

        with self._changed:
            if self._changed.wait_for(at_once, WATCH_INTERVAL_S):
                return
            self._job.num_waiting += 1
            self._changed.wait_for(
                lambda: at_once() or self.num_news != num_news or not still_wanted(), QUIET_INTERVAL_S
            )
            self._job.num_waiting -= 1

    def wake(self) -> None:
        """Wake the waiting threads, so that they notice disconnected clients."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_plan(
        self, plan_id: int, wait_s: float, still_wanted: Callable[[], bool]
    ) -> tuple[dict[str, Any], bool]:
        """Return (plan, whether it has ended), after waiting at most ``wait_s`` for its end.

        Raises
        ------
        PlanError
            There is no such plan.
        """
        deadline = self._job.now() + wait_s
        with self._changed:
            plan = self._state.plans.all.get(plan_id)
            if plan is None:
                raise PlanError(f"there is no plan {plan_id}; the job has {len(self._state.plans.all)}")
            while not plan.ended and self._job.now() < deadline and still_wanted():
                self._changed.wait(min(0.5, max(0.0, deadline - self._job.now())))
            return records.live_entry(self._state, plan, self._job.now()), plan.ended


class JobMasterService(JobMasterServicer):
    """The gRPC service of a job master; it translates messages to :class:`Requests`.

    Parameters
    ----------
    requests : Requests
    status : callable
        Returns what ``eps status`` shows.
    put : callable
        Takes events; never blocks.
    manager : str
        Name of the scheduler that alone may change the job's size; empty if any client may.
    """

    def __init__(
        self, requests: Requests, status: Callable[[], dict[str, Any]], put: Callable[..., None], manager: str
    ) -> None:
        self._requests, self._status, self._put, self._manager = requests, status, put, manager

    def AddServers(self, request: pb.AddRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        """Add servers."""
        return self._add(Operation.ADD_SERVERS, request)

    def AddWorkers(self, request: pb.AddRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        """Add workers."""
        return self._add(Operation.ADD_WORKERS, request)

    def RemoveServers(self, request: pb.RemoveRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        """Remove servers."""
        return self._remove(Operation.REMOVE_SERVERS, request)

    def RemoveWorkers(self, request: pb.RemoveRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        """Remove workers."""
        return self._remove(Operation.REMOVE_WORKERS, request)

    def Scale(self, request: pb.ScaleRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        """Add and remove workers and servers by one plan."""
        return self._change(scale_of(request.sizes), request)

    def _add(self, operation: Operation, request: pb.AddRequest) -> pb.ChangeReply:
        return self._change(Change(operation, request.count), request)

    def _remove(self, operation: Operation, request: pb.RemoveRequest) -> pb.ChangeReply:
        names = tuple(request.names)
        if names and request.count and request.count != len(names):
            raise PlanError(f"{operation}: count {request.count} and {len(names)} names contradict each other")
        return self._change(Change(operation, len(names) or request.count, names), request)

    def _change(self, change: Change, request: pb.AddRequest | pb.RemoveRequest | pb.ScaleRequest) -> pb.ChangeReply:
        manager = self._manager
        if manager and request.manager != manager and not request.dry_run:
            raise PlanError(
                f"{change.operation}: only {manager} changes the size of this job; a job that you start yourself has "
                "no scheduler"
            )
        check_change(change)
        if not request.request_id and not request.dry_run:
            raise PlanError(f"{change.operation}: request_id is empty, but must name the request: a retry counts once")
        check_request_id(request.request_id)
        event = e.ChangeRequested(request.request_id or uuid.uuid4().hex, change, request.dry_run)
        answer = self._requests.ask(event, event.request_id, ANSWER_TIMEOUT_S)
        return pb.ChangeReply(plan_id=answer.plan_id, text=answer.text)

    def Cancel(self, request: pb.CancelRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        """Abort a plan that is not committed yet."""
        event = e.CancelRequested(uuid.uuid4().hex, request.plan_id)
        answer = self._requests.ask(event, event.request_id, ANSWER_TIMEOUT_S)
        return pb.ChangeReply(plan_id=answer.plan_id)

    def GetPlan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanReply:
        """Return a plan; wait for its end for at most ``wait_s``."""
        if not 0 <= request.wait_s <= LONGEST_WAIT_S:
            raise ConfigError(f"wait_s is {request.wait_s}, but must be between 0 and {LONGEST_WAIT_S:g}")
        plan, ended = self._requests.wait_for_plan(request.plan_id, request.wait_s, context.is_active)
        return pb.PlanReply(plan_json=json.dumps(plan), ended=ended)

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        """Return what ``eps status`` shows."""
        return pb.StatusReply(status_json=json.dumps(self._status()))

    def Kill(self, request: pb.KillRequest, context: grpc.ServicerContext) -> pb.KillReply:
        """End the job."""
        self._put(e.KillRequested(request.reason[:MOST_REASON] or "killed on request"))
        return pb.KillReply()

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.ProgressUpdate]:
        """Stream status and new history until the job ends."""
        after = request.after_clock
        context.add_callback(self._requests.wake)
        while context.is_active():
            num_news = self._requests.num_news
            entries, ended = self._requests.history_after(after)
            # The status is read after the history, so that the last one sent is final.
            yield pb.ProgressUpdate(
                status_json=json.dumps(self._status()), history_json=[json.dumps(entry) for entry in entries]
            )
            if entries:
                after = entries[-1]["clock"]
            if ended:
                return
            self._requests.wait_for_news(after, num_news, context.is_active)


class Endpoint:
    """The gRPC server of a job master and the announcement of its address.

    Parameters
    ----------
    server : BoundServer
    announcements : Announcements
    service : JobMasterService
    """

    def __init__(self, server: BoundServer, announcements: Announcements, service: JobMasterService) -> None:
        self._bound, self._announcements, self.service = server, announcements, service
        self._server: grpc.Server | None = None

    def listen(self, sessions: Sessions) -> None:
        """Start to serve clients and members."""

        def register(server: grpc.Server) -> None:
            add_JobMasterServicer_to_server(self.service, server)
            sessions.register(server)

        self._server = self._bound.start(register)

    def announce(self, generation: int) -> None:
        """Announce the address of the master of ``generation``; errors are those of :meth:`Announcements.add`."""
        place = self._bound.address
        self._announcements.add({"host": place.host, "port": place.port, "pid": os.getpid(), "generation": generation})

    def close(self) -> None:
        """Stop the server; calls in progress get two seconds."""
        if self._server is not None:
            self._server.stop(0.5).wait(2.0)
