"""The client of a service, with the same methods as a scheduler in this process.

Source: EPS §5.1 (jobs are submitted to the scheduler).
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from eps.errors import DeadlineError, PeerUnavailableError
from eps.net.calls.call import error_of
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import json_bytes
from eps.storage.locations import Location, location, write_public
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live.submission import Submission
from hscheduler.pb import scheduler_pb2 as pb
from hscheduler.pb.scheduler_pb2_grpc import HSchedulerStub
from hscheduler.service.connection import CALL_TIMEOUT_S, GIVE_UP_S, Connection
from hscheduler.service.directory import ServiceDir

#: Most seconds that a single call waits; then the client repeats it.
WAIT_S = 20.0


@dataclass(frozen=True)
class News:
    """An event, as a sentence."""

    number: int
    at_s: float
    text: str


class SchedulerClient:
    """Calls a service.  Calls are retried while the service is unreachable; all of them are idempotent.

    Without an address, the first call fails at once if no service runs in the directory.

    Parameters
    ----------
    directory : ServiceDir, path or None
        Directory of the service, with its sockets or certificates; None: ``EPS_HOME/hscheduler``.
    address : str, optional
        ``HOST:PORT``; by default the address in the directory, read again after each failed call.
    give_up_s : float, seconds
        Seconds without an answer after which a call fails.

    Raises
    ------
    ConfigError
        The address is invalid.
    StorageError
        An address is given, but the directory has no certificates.
    """

    def __init__(
        self, directory: ServiceDir | str | Path | None, address: str = "", give_up_s: float = GIVE_UP_S
    ) -> None:
        found = directory if isinstance(directory, ServiceDir) else ServiceDir.of(directory)
        self._connection = Connection(found, address, give_up_s)

    # ---- jobs

    def open_sweep(self, opened: e.SweepOpened) -> None:
        """Open a sweep, to which this client submits jobs; the event says how they are ranked."""
        self._connection.call(
            "OpenSweep",
            pb.OpenSweepRequest(
                sweep=opened.sweep,
                direction=opened.direction,
                threshold=opened.threshold or 0,
                metric=opened.metric,
                feedback_iteration=opened.feedback_iteration,
                stop=opened.stopping.rule,
                eta=opened.stopping.eta,
                grace_iterations=opened.stopping.grace_iterations,
                max_iterations=opened.stopping.max_iterations,
                trials=opened.trials,
                keep_diverged=not opened.stop_diverged,
            ),
            f"open sweep {opened.sweep}",
        )

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec, point: Mapping[str, Any] | None = None) -> Submission:
        """Submit a job.  The service computes its own request from ``spec``.

        Raises
        ------
        ConfigError
            A setting is invalid, or the id belongs to another job.
        """
        request = submitted.request
        return self.submit_job(request.job_id, spec, request.sweep, point)

    def submit_job(
        self, job_id: str, spec: JobSpec, sweep: str = "", point: Mapping[str, Any] | None = None
    ) -> Submission:
        """Submit a job; an empty id is replaced by a new one.  Raises as :meth:`submit`."""
        request = pb.SubmitJobRequest(
            job_id=job_id or f"job-{uuid.uuid4().hex[:8]}",
            sweep=sweep,
            settings_json=spec.to_json(),
            point_json=json.dumps(dict(point or {})),
        )
        reply = self._connection.call("SubmitJob", request, f"submit {request.job_id}")
        values = json.loads(reply.job_json)
        submission = Submission(values["job_id"], values["sweep"], values["name"], spec, dict(point or {}))
        return _updated(submission, values)

    def wait(self, submission: Submission, timeout_s: float | None = None) -> None:
        """Wait for the end of a job.

        Raises
        ------
        DeadlineError
            The job has not ended after ``timeout_s`` seconds.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not submission.is_over:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise DeadlineError(f"job {submission.job_id} has not ended after {timeout_s:g} s")
            request = pb.GetJobRequest(job_id=submission.job_id, wait_s=min(left_s, WAIT_S))
            reply = self._connection.call("GetJob", request, f"wait for {submission.job_id}")
            _updated(submission, json.loads(reply.job_json))

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the state of a job.

        Raises
        ------
        JobNotFoundError
            No job has this id.
        """
        reply = self._connection.call("GetJob", pb.GetJobRequest(job_id=job_id), f"job {job_id}")
        return dict(json.loads(reply.job_json))

    def jobs(self, sweep: str = "") -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the states of the jobs of a sweep (empty: of all), and of the scheduler."""
        found, about, _ = self._list(pb.ListJobsRequest(sweep=sweep))
        return found, about

    def unfinished_jobs(self, sweep: str = "") -> tuple[list[dict[str, Any]], dict[str, Any], int]:
        """Return as :meth:`jobs`, only for unfinished jobs, and the number of ended jobs."""
        return self._list(pb.ListJobsRequest(sweep=sweep, going_on_only=True))

    def _list(self, request: pb.ListJobsRequest) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
        reply = self._connection.call("ListJobs", request, "list jobs")
        return [json.loads(text) for text in reply.job_json], json.loads(reply.scheduler_json), int(reply.num_left_out)

    def cancel(self, job_id: str, why: str) -> list[str]:
        """End a job, or all jobs of a sweep; return their ids.  Idempotent.

        Raises
        ------
        JobNotFoundError
            No job or sweep has this name.
        """
        return list(self._connection.call("Kill", pb.KillRequest(name=job_id, why=why), f"kill {job_id}").job_ids)

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        """Write the report and model of an ended job to the requested paths.

        Raises
        ------
        StorageError
            A file cannot be written.
        """
        if request.report and submission.report is not None:
            write_public(location(request.report), json_bytes(submission.report))
        if request.export and submission.phase is Phase.FINISHED:
            self.save_model(submission.job_id, location(request.export))

    def save_model(self, job_id: str, path: Location | str) -> None:
        """Write the trained model of a finished job to a file.

        Raises
        ------
        StorageError
            There is no model, or the file cannot be written.
        """
        what = f"the model of {job_id}"

        def fetched(stub: HSchedulerStub) -> bytes:
            try:
                parts = stub.GetModel(pb.GetModelRequest(job_id=job_id), timeout=10 * CALL_TIMEOUT_S)
                return b"".join(part.data for part in parts)
            except grpc.RpcError as error:
                raise error_of(error, what) from error

        data = self._connection.repeated(fetched, what)
        write_public(location(path) if isinstance(path, str) else path, data)

    # ---- sweeps

    def run_sweep(self, tables: Mapping[str, Any], name: str = "") -> str:
        """Run a sweep in the service; return its name.

        Raises
        ------
        ConfigError
            A setting is invalid, or the name belongs to another sweep.
        """
        request = pb.RunSweepRequest(
            sweep=name or f"sweep-{uuid.uuid4().hex[:8]}", tables_json=json.dumps(tables, default=str)
        )
        return str(self._connection.call("RunSweep", request, "run a sweep").sweep)

    def report(self, sweep: str = "", wait_s: float = 0.0) -> tuple[dict[str, Any], bool]:
        """Wait at most ``wait_s`` seconds for the end of a sweep; return its report, and whether it has ended."""
        reply = self._connection.call(
            "GetReport", pb.GetReportRequest(sweep=sweep, wait_s=wait_s), f"report of {sweep}", wait_s + CALL_TIMEOUT_S
        )
        return json.loads(reply.report_json), bool(reply.ended)

    def watch(self, sweep: str = "") -> Iterator[News]:
        """Yield the events of a sweep until it has ended; resume at the same event if the service restarts."""
        after, ended, what = 0, False, f"news of {sweep or 'H-scheduler'}"
        while not ended:

            def opened(stub: HSchedulerStub, after: int = after) -> tuple[Any, Any]:
                stream = stub.Watch(pb.WatchRequest(sweep=sweep, after=after))
                try:
                    return stream, next(stream, None)
                except grpc.RpcError as error:
                    raise error_of(error, what) from error

            stream, news = self._connection.repeated(opened, what)
            try:
                while news is not None:
                    ended = news.ended
                    after = max(after, news.number)
                    if news.text:
                        yield News(news.number, news.at_s, news.text)
                    news = next(stream, None)
            except grpc.RpcError as error:
                ours = error_of(error, what)
                if not isinstance(ours, PeerUnavailableError):
                    raise ours from error
                self._connection.close()
            finally:
                stream.cancel()

    # ---- the connection

    def close(self) -> None:
        """Close the connection.  Idempotent."""
        self._connection.close()

    def __enter__(self) -> SchedulerClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _updated(submission: Submission, values: Mapping[str, Any]) -> Submission:
    submission.why, submission.is_stopped = values["why"], values["is_stopped"]
    submission.has_started = values["has_started"]
    submission.loss, submission.feedback = number(values["loss"]), number(values["feedback"])
    submission.is_paused = values.get("is_paused", False)
    submission.rungs = [(int(iteration), float(value)) for iteration, value in values.get("rungs", ())]
    submission.report = values.get("report")
    if values["is_over"]:
        submission.end(Phase(values["phase"]))
    return submission


def number(value: Any) -> float | None:
    """Return a number from JSON, in which infinity and NaN are text; None stays None."""
    return None if value is None else float(value)
