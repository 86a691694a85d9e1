"""What clients ask of a job master: the four operations, status, plans, progress, the end.  Only translates.

Source: EPS §5.2 (addServers, addWorkers, removeServers, removeWorkers, called by H-scheduler).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from eps.core import events as e
from eps.core.reconfig import Change, Operation, Purpose, check_change, check_request_id
from eps.errors import ConfigError, PlanError
from eps.master.requests import Requests
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import JobMasterServicer

ANSWER_TIMEOUT_S = 30.0
#: Progress is sent at most this often.
WATCH_INTERVAL_S = 0.2
LONGEST_WAIT_S = 3600.0
#: What is kept of the reason to end a job, in characters.
MOST_REASON = 1000


class JobMasterService(JobMasterServicer):
    """The gRPC face of a job master.

    Parameters
    ----------
    requests : Requests
    status : callable
        Returns what ``eps status`` shows.
    put : callable
        Takes events; never blocks.
    manager : str
        The scheduler that alone may change the job's size; empty: any client may.
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

    def _add(self, operation: Operation, request: pb.AddRequest) -> pb.ChangeReply:
        return self._change(Change(operation, request.count), request)

    def _remove(self, operation: Operation, request: pb.RemoveRequest) -> pb.ChangeReply:
        names = tuple(request.names)
        if names and request.count and request.count != len(names):
            raise PlanError(f"{operation}: count {request.count} and {len(names)} names contradict each other")
        return self._change(Change(operation, len(names) or request.count, names), request)

    def _change(self, change: Change, request: pb.AddRequest | pb.RemoveRequest) -> pb.ChangeReply:
        manager = self._manager
        if manager and request.manager != manager and not request.dry_run:
            raise PlanError(
                f"{change.operation}: only {manager} changes the size of this job, as its containers are what it "
                "grants; a job that is started by itself has a size of its own"
            )
        purpose = Purpose.LEND if request.for_queue else Purpose.ASKED
        check_change(change)
        if not request.request_id and not request.dry_run:
            raise PlanError(f"{change.operation}: request_id is empty, but must name the request: a repeat counts once")
        check_request_id(request.request_id)
        event = e.ChangeRequested(request.request_id or uuid.uuid4().hex, change, request.dry_run, purpose)
        answer = self._requests.ask(event, event.request_id, ANSWER_TIMEOUT_S)
        return pb.ChangeReply(plan_id=answer.plan_id, text=answer.text)

    def Cancel(self, request: pb.CancelRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        """Abort a plan that is not committed."""
        event = e.CancelRequested(uuid.uuid4().hex, request.plan_id)
        answer = self._requests.ask(event, event.request_id, ANSWER_TIMEOUT_S)
        return pb.ChangeReply(plan_id=answer.plan_id)

    def GetPlan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanReply:
        """Return a plan, after waiting for its end if asked to."""
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
        while context.is_active():
            entries, ended = self._requests.history_after(after)
            # Not before: the last status that is sent is that of the end.
            yield pb.ProgressUpdate(
                status_json=json.dumps(self._status()), history_json=[json.dumps(entry) for entry in entries]
            )
            if entries:
                after = entries[-1]["clock"]
            if ended:
                return
            self._requests.wait_for_change(after, WATCH_INTERVAL_S)
