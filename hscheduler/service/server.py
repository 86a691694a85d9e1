"""The gRPC server of H-scheduler.  It translates calls and decides nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc

from eps.errors import ConfigError, JobNotFoundError, PeerUnavailableError, PlanError
from eps.spec.job_spec import JobSpec
from eps.system.nearest import did_you_mean
from hscheduler.core import events as e
from hscheduler.core.codec import spelt
from hscheduler.core.jobs import Direction
from hscheduler.core.rungs import DEFAULT
from hscheduler.live.job_results import open_model, own_report
from hscheduler.live.scheduler import LiveScheduler
from hscheduler.live.submission import Submission, attempts_of
from hscheduler.live.sweep import SETTLE_TIMEOUT_S
from hscheduler.pb import scheduler_pb2 as pb
from hscheduler.pb.scheduler_pb2_grpc import HSchedulerServicer
from hscheduler.service.observer import NewsBoard
from hscheduler.service.sweeps import ALONE, Sweeps
from hscheduler.spec import ClusterSpec, checked_stopping, request_of

#: Seconds after which a waiting call checks that its client is still connected.
CHECK_S = 0.5
LONGEST_WAIT_S = 60.0
PART_BYTES = 1 << 20
#: Most decisions returned with a job, the latest ones.
MOST_DECISIONS = 200


class SchedulerService(HSchedulerServicer):
    """Answers the calls of clients for a scheduler in this process.

    Parameters
    ----------
    scheduler : LiveScheduler
    cluster : ClusterSpec
        Its container size applies to all jobs.
    board : NewsBoard
    sweeps : Sweeps
    """

    def __init__(self, scheduler: LiveScheduler, cluster: ClusterSpec, board: NewsBoard, sweeps: Sweeps) -> None:
        self._scheduler = scheduler
        self._cluster = cluster
        self._board = board
        self._sweeps = sweeps
        #: Makes check and submission of a job atomic: a retry may overtake its first call.
        self._submitting = threading.Lock()

    # ---- jobs

    def OpenSweep(self, request: pb.OpenSweepRequest, context: grpc.ServicerContext) -> pb.OpenSweepReply:
        """Open a sweep for a client's jobs.  Idempotent."""
        if not request.sweep or request.sweep in self._scheduler.registry.tables:
            raise ConfigError(f"sweep is {request.sweep!r}, but must be an unused name")
        opened = e.SweepOpened(
            request.sweep,
            _direction(request.direction),
            request.threshold or None,
            request.metric,
            request.feedback_iteration,
            checked_stopping(
                request.stop, request.eta or DEFAULT.eta, request.grace_iterations, request.max_iterations
            ),
            request.trials,
            stop_diverged=not request.keep_diverged,
        )
        self._check_takes_jobs(request.sweep)
        self._scheduler.check_room()
        before = self._scheduler.registry.sweeps.get(request.sweep)
        if before is not None and replace(before, trials=opened.trials) != opened:
            raise ConfigError(f"sweep {request.sweep!r} was opened with other settings before: use another name")
        if before is None and self._scheduler.look_ups.has_sweep(request.sweep):
            raise ConfigError(f"sweep {request.sweep!r} has jobs already: open it before its first job")
        if before != opened:
            self._scheduler.open_sweep(opened)
            self._settle()
        return pb.OpenSweepReply()

    def SubmitJob(self, request: pb.SubmitJobRequest, context: grpc.ServicerContext) -> pb.JobReply:
        """Submit a job.  Idempotent: the same id means the same job."""
        self._check()
        self._scheduler.check_room()
        spec = JobSpec.from_dict(_object(request.settings_json, "settings"), "settings")
        point, sweep = _object(request.point_json or "{}", "point"), request.sweep or ALONE
        if not request.job_id:
            raise ConfigError("job id is empty, but must be a new id")
        with self._submitting:
            known = self._known(request.job_id)
            if known is None:
                self._sweeps.check_job_id(request.job_id)
                self._check_takes_jobs(sweep)
                asked = request_of(spec, request.job_id, sweep, self._cluster)
                known = self._scheduler.submit(e.JobSubmitted(asked), spec, point)
        if (known.spec, dict(known.point), known.sweep) != (spec, point, sweep):
            raise ConfigError(f"job id is {request.job_id!r}, but must be a new id: another job has it")
        # Also for a retry: the first call may still wait for the record.
        self._settle()
        return self._job_reply(known)

    def GetJob(self, request: pb.GetJobRequest, context: grpc.ServicerContext) -> pb.JobReply:
        """Return a job; with ``wait_s`` wait for its end first."""
        found = self._found(request.job_id)
        was_paused = found.is_paused
        # A pause is news, too: the client may submit another job meanwhile.
        self._wait_for(lambda: found.is_over or found.is_paused != was_paused, found.wait, request.wait_s, context)
        # Decisions may be large, and callers that wait for the end do not need them.
        return self._job_reply(found, with_decisions=not request.wait_s)

    def ListJobs(self, request: pb.ListJobsRequest, context: grpc.ServicerContext) -> pb.ListJobsReply:
        """Return the jobs of a sweep, or of all, and the state of the scheduler."""
        if request.sweep:
            self._check_sweep(request.sweep)
        look_ups = self._scheduler.look_ups
        here, about = self._scheduler.ask(lambda: self._list(request.sweep))
        if request.going_on_only:
            going_on = [job for job in here if not job["is_over"]]
            over = look_ups.counts(request.sweep)[0].total() + len(here) - len(going_on)
            return pb.ListJobsReply(
                job_json=map(json.dumps, going_on), scheduler_json=json.dumps(about), num_left_out=over
            )
        # Read second: a job that has left the scheduler in between is taken from the first answer.
        past = {each.job_id: self._job(each) for each in look_ups.past(request.sweep)}
        jobs = (past | {job["job_id"]: job for job in here}).values()
        return pb.ListJobsReply(job_json=map(json.dumps, jobs), scheduler_json=json.dumps(about))

    def Kill(self, request: pb.KillRequest, context: grpc.ServicerContext) -> pb.KillReply:
        """End a job, or a sweep with all of its jobs."""
        name, why = request.name, request.why or "killed on request"
        if self._known(name) is not None:
            # A trial that is retried goes on in its latest job.
            name = attempts_of(self._scheduler.look_ups.current()).get(name, [name])[-1]
            jobs = [] if self._found(name).is_over else [name]
            self._scheduler.cancel(name, why)
        else:
            self._check_sweep(name)
            # A concurrent submission is either listed here, or finds the sweep closed.
            with self._submitting:
                jobs = [each.job_id for each in self._scheduler.look_ups.current(name) if not each.is_over]
                self._end(name, jobs, why)
        self._settle()
        self._sweeps.wake()
        return pb.KillReply(job_ids=jobs)

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> Iterator[pb.ModelPart]:
        """Stream the trained model of a finished job."""
        found = self._found(request.job_id)
        if not found.is_over:
            raise PlanError(f"job {request.job_id!r} has no model yet: it has not ended")
        with open_model(found) as file:
            while data := file.read(PART_BYTES):
                yield pb.ModelPart(data=data)

    # ---- sweeps

    def RunSweep(self, request: pb.RunSweepRequest, context: grpc.ServicerContext) -> pb.RunSweepReply:
        """Run a sweep.  Idempotent: the same name means the same sweep."""
        self._check()
        self._scheduler.check_room()
        self._sweeps.run(request.sweep, _object(request.tables_json, "tables"))
        return pb.RunSweepReply(sweep=request.sweep)

    def GetReport(self, request: pb.GetReportRequest, context: grpc.ServicerContext) -> pb.GetReportReply:
        """Return the report of a sweep; with ``wait_s`` wait for its end first."""
        if request.sweep:
            self._check_sweep(request.sweep)
        self._wait_for(lambda: self._has_ended(request.sweep), self._board.wait, request.wait_s, context)
        found = self._sweeps.report(request.sweep)
        return pb.GetReportReply(report_json=json.dumps(found), ended=self._has_ended(request.sweep))

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.News]:
        """Stream news until the sweep has ended."""
        if request.sweep:
            self._check_sweep(request.sweep)
        after = request.after
        while context.is_active():
            self._check()
            # Checked first: no news follow the end, so the items after it are complete.
            ended = self._has_ended(request.sweep)
            items = self._board.after(after, request.sweep, 0.0 if ended else CHECK_S)
            for item in items:
                after = item.number
                yield pb.News(number=item.number, at_s=item.at_s, text=item.text)
            if ended and not items:
                yield pb.News(number=after, ended=True)
                return
            if not items:
                # Only a message shows whether the client is still connected.
                yield pb.News(number=after)

    # ---- inside

    def _wait_for(
        self, is_so: Callable[[], bool], wait: Callable[[float], object], wait_s: float, context: grpc.ServicerContext
    ) -> None:
        """Wait for a condition, at most ``wait_s`` seconds and while the client is connected."""
        until_s = time.monotonic() + _wait_s(wait_s)
        while not is_so() and context.is_active():
            self._check()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            wait(min(CHECK_S, left_s))

    def _check(self) -> None:
        """Raise PeerUnavailableError if the scheduler has ended; the client retries with the next service."""
        if self._scheduler.has_ended:
            raise PeerUnavailableError("H-scheduler has ended")

    def _settle(self) -> None:
        """Wait until all events so far are in the record."""
        try:
            self._scheduler.settle(SETTLE_TIMEOUT_S)
        except RuntimeError as error:
            raise PeerUnavailableError(str(error)) from error

    def _has_ended(self, sweep: str) -> bool:
        return bool(sweep) and self._sweeps.has_ended(sweep)

    def _check_sweep(self, sweep: str) -> None:
        if not self._scheduler.look_ups.has_sweep(sweep):
            look_ups = self._scheduler.look_ups
            known = [*self._scheduler.registry.sweeps, *(each.job_id for each in look_ups.current())]
            raise JobNotFoundError(f"there is no job or sweep {sweep!r}{did_you_mean(sweep, known)}")

    def _end(self, sweep: str, jobs: Sequence[str], why: str) -> None:
        if sweep != ALONE:
            self._scheduler.close_sweep(sweep, why)
            return
        # Jobs without a sweep: cancel them, but accept further ones.
        for job_id in jobs:
            self._scheduler.cancel(job_id, why)

    def _check_takes_jobs(self, sweep: str) -> None:
        why = None if sweep == ALONE else self._scheduler.registry.closed.get(sweep)
        if why is not None:
            raise ConfigError(f"sweep is {sweep!r}, but must be open: it was ended ({why})")

    def _known(self, job_id: str) -> Submission | None:
        return self._scheduler.look_ups.submission(job_id)

    def _found(self, job_id: str) -> Submission:
        found = self._known(job_id)
        if found is None:
            known = [each.job_id for each in self._scheduler.look_ups.current()]
            raise JobNotFoundError(f"there is no job {job_id!r}{did_you_mean(job_id, known)}")
        return found

    def _job_reply(self, submission: Submission, *, with_decisions: bool = False) -> pb.JobReply:
        values = self._scheduler.ask(lambda: self._job(submission))
        if values["is_over"]:
            values["report"] = own_report(submission)
        if with_decisions:
            values["decisions"] = self._decisions(submission)[-MOST_DECISIONS:]
        return pb.JobReply(job_json=json.dumps(values))

    def _list(self, sweep: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the states of the jobs in memory, and of the scheduler; runs on its thread."""
        scheduler, ledger = self._scheduler, self._scheduler.state.ledger
        about = {
            "policy": scheduler.settings.policy,
            "now_s": round(scheduler.now_s(), 3),
            "used_vcores": ledger.used().vcores,
            "vcores": ledger.total().vcores,
            "sweeps": self._sweeps.states(),
        }
        return [self._job(each) for each in scheduler.look_ups.current(sweep)], about

    def _decisions(self, submission: Submission) -> list[tuple[float, str]]:
        """Return the times and sentences of all decisions about a job, the latest last."""
        here = self._scheduler.ask(lambda: list(self._scheduler.registry.timeline.decisions))
        past = self._scheduler.look_ups.decisions(submission.sweep)
        known = dict.fromkeys(each for each in (*past, *here) if submission.job_id in each.jobs)
        return [(round(each.at_s, 3), each.sentence) for each in known]

    def _metric(self, sweep: str) -> str:
        opened = self._scheduler.registry.sweeps.get(sweep)
        return (opened.metric if opened is not None else "") or self._scheduler.settings.metric

    def _job(self, submission: Submission) -> dict[str, Any]:
        """Return the state of a job; runs on the scheduler's thread."""
        job = self._scheduler.state.jobs.get(submission.job_id)
        record = self._scheduler.registry.timeline.trials.get(submission.job_id)
        arrived_s = submission.arrived_s if record is None else record.arrived_s
        metric, value = self._metric(submission.sweep), submission.loss
        if value is None:
            value = submission.feedback if record is None else record.latest(metric, None)
        phase = submission.phase or (job.phase if job is not None else "submitted")
        return {
            "job_id": submission.job_id,
            "sweep": submission.sweep,
            "name": submission.name,
            "point": dict(submission.point),
            "phase": str(phase),
            "why": submission.why or (job.why if job is not None else ""),
            "is_over": submission.is_over,
            "is_stopped": submission.is_stopped,
            "is_paused": submission.is_paused,
            "rungs": [[iteration, spelt(value)] for iteration, value in submission.rungs],
            "has_started": submission.has_started,
            "on": self._scheduler.settings.job_settings.get("on", submission.spec.on),
            # The metric by which its sweep ranks it, and that metric: the final value, else the latest.
            "metric": metric,
            "value": None if value is None else spelt(value),
            # The final value only, whatever the metric.
            "loss": None if submission.loss is None else spelt(submission.loss),
            "feedback": None if submission.feedback is None else spelt(submission.feedback),
            "iteration": job.iteration if job is not None else submission.iteration,
            "iterations": submission.spec.iterations,
            "workers": job.workers if job is not None else 0,
            "servers": job.servers if job is not None else 0,
            "arrived_s": None if arrived_s is None else round(arrived_s, 3),
        }


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what} must be JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} is {value!r}, but must be a JSON object")
    return dict(value)


def _direction(text: str) -> Direction:
    try:
        return Direction(text or Direction.MINIMIZE)
    except ValueError:
        raise ConfigError(f"direction is {text!r}, but must be one of {', '.join(Direction)}") from None


def _wait_s(value: float) -> float:
    if not 0 <= value <= LONGEST_WAIT_S:
        raise ConfigError(f"wait_s is {value}, but must be between 0 and {LONGEST_WAIT_S:g}")
    return value
