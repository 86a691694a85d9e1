"""A job without processes: its directory and lock are real, its master answers what the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from eps.errors import EpsError, PlanError
from eps.net.calls.call import serve, stop
from eps.net.security.credentials import Security
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import JobMasterServicer, add_JobMasterServicer_to_server
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import JobDir, JobLock, create_job_dir
from tests.fakes.records import note_end


def status_of(**changes: Any) -> dict[str, Any]:
    """Return a status like a job master's."""
    return {
        "name": "fake",
        "state": "running",
        "reason": "",
        "as_of_s": None,
        "clock": 50,
        "iterations": 200,
        "membership_version": 1,
        "workers": 2,
        "servers": 1,
        "sizes": [[0, 2, 1]],
        "members": [],
        "plan": None,
        "queued": [],
        "changes": [],
        "checkpoints": {},
        "loss": 0.25,
        "metrics": {"loss": 0.3, "f1": 0.5, "accuracy": 0.875},
        "iteration_s": 0.01,
        "eta_s": 1.5,
        "elapsed_s": 0.5,
        "losses": [],
        "went_back": [],
        "evictions": {},
        "generation": 1,
        "storage_error": "",
        "resources_error": "",
        **changes,
    }


def change_of(plan_id: int = 1, phase: str = "released", **changes: Any) -> dict[str, Any]:
    """Return a change like a job master's, with all phases up to ``phase``."""
    phases = ["queued", "proposed", "prepared", "lists-updated", "copied", "committed", "switched", "released"]
    reached = phases[: phases.index(phase) + 1] if phase in phases else ["queued", "aborted"]
    operation, asked = changes.get("operation", "add-workers"), changes.get("asked", 2)
    return {
        "plan_id": plan_id,
        "operation": operation,
        "asked_by": "user",
        "asked": asked,
        "text": str(asked) if operation in ("scale", "tiers") else f"{operation}={asked}",
        "names": ["worker-3", "worker-4"],
        "added": ["worker-3", "worker-4"],
        "removed": [],
        "phase": phase,
        "reason": "",
        "seconds": {name: round(0.01 * i, 6) for i, name in enumerate(reached)},
        "barriers": {},
        "committed_clock": 61 if phase in ("committed", "switched", "released") else None,
        "bytes_moved": 2_920_000,
        "pause_s": 0.0012,
        "slowdown_s": 0.0,
        **changes,
    }


class FakeMaster(JobMasterServicer):
    """A job master with scripted answers that records its requests."""

    def __init__(self) -> None:
        self.status = status_of()
        self.news: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self.plans: list[dict[str, Any]] = []
        self.asked: list[tuple[str, Any]] = []
        self.refusal: EpsError | None = None
        #: Number of calls that are processed but not answered, as by a master that dies.
        self.drop = 0
        self.on_kill: Callable[[], None] = lambda: None
        self.on_plan: Callable[[], None] = lambda: None

    def _take(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        self.asked.append((method, request))
        if self.drop:
            self.drop -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone in the middle")
        if self.refusal is not None:
            raise self.refusal

    def _change(self, method: str, request: Any, context: grpc.ServicerContext) -> pb.ChangeReply:
        self._take(method, request, context)
        return pb.ChangeReply(plan_id=0, text="moves") if request.dry_run else pb.ChangeReply(plan_id=1)

    def AddWorkers(self, request: pb.AddRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        return self._change("AddWorkers", request, context)

    def AddServers(self, request: pb.AddRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        return self._change("AddServers", request, context)

    def RemoveWorkers(self, request: pb.RemoveRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        return self._change("RemoveWorkers", request, context)

    def RemoveServers(self, request: pb.RemoveRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        return self._change("RemoveServers", request, context)

    def Cancel(self, request: pb.CancelRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        self._take("Cancel", request, context)
        return pb.ChangeReply(plan_id=request.plan_id)

    def GetPlan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanReply:
        """Return the scripted plans in turn, then the last one repeatedly."""
        self.on_plan()
        if not self.plans:
            raise PlanError(f"there is no plan {request.plan_id}")
        plan = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        return pb.PlanReply(plan_json=json.dumps(plan), ended=plan["phase"] in ("released", "aborted"))

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        return pb.StatusReply(status_json=json.dumps(self.status))

    def Kill(self, request: pb.KillRequest, context: grpc.ServicerContext) -> pb.KillReply:
        self._take("Kill", request, context)
        self.on_kill()
        return pb.KillReply()

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.ProgressUpdate]:
        self.asked.append(("Watch", request))
        while self.news:
            status, history = self.news.pop(0)
            yield pb.ProgressUpdate(status_json=json.dumps(status), history_json=[json.dumps(h) for h in history])
            if self.drop:
                self.drop -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone in the middle")


class FakeJob:
    """A running job named ``fake``; :meth:`end` ends it."""

    def __init__(self, home: Path, name: str = "fake") -> None:
        self.dir: JobDir
        self._lock: JobLock
        self.dir, self._lock = create_job_dir(name, home)
        self.master = FakeMaster()
        self._generation = 0
        self.serve()
        self.master.on_kill = lambda: self.end("killed", "killed on request")

    def serve(self) -> None:
        """Start the next master, with the same answers."""
        self._server, address = serve(
            lambda server: add_JobMasterServicer_to_server(self.master, server), security=Security.of_job(self.dir.path)
        )
        self._generation += 1
        place = {"host": address.host, "port": address.port, "pid": 1, "generation": self._generation}
        write_json_atomic(self.dir.master_json, place, sync=False)

    def kill_master(self) -> None:
        """End the master; the job continues."""
        stop(self._server, 0)

    def end(self, state: str = "finished", reason: str = "", report: dict[str, Any] | None = None) -> None:
        """Write the files of an ended job, and release its lock."""
        if report is not None:
            write_json_atomic(self.dir.report, report, sync=False)
        self.dir.master_json.unlink(missing_ok=True)
        note_end(self.dir, state, reason, exit_code=0)
        self._lock.close()

    def close(self) -> None:
        stop(self._server, 0)
        self._lock.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new EPS_HOME."""
    directory = tmp_path / "home"
    monkeypatch.setenv("EPS_HOME", str(directory))
    return directory


@pytest.fixture
def fake(home: Path) -> Iterator[FakeJob]:
    """A job whose master is scripted by the test."""
    job = FakeJob(home)
    yield job
    job.close()
