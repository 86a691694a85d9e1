"""Jobs from Python: start them, watch them, change their size, get what they trained.

The command line is made of this; whatever it does can be done here.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

from eps.cluster.choice import check_backend
from eps.cluster.supervisor.start import JobHandle, WarmSupervisor, kill_supervisor
from eps.core.reconfig import Change, Operation, Phase
from eps.errors import (
    ConfigError,
    DeadlineError,
    EpsError,
    JobFinishedError,
    PeerUnavailableError,
    PlanError,
    ResourceError,
    RpcError,
    StorageError,
    TrainingError,
)
from eps.job.entry_points import ENTRY_POINTS
from eps.job.master_link import GIVE_UP_S, RETRY_S, MasterLink, Progress, WaitNews
from eps.job.status import (
    BEING_STARTED,
    application_id_of,
    ended_report,
    ended_status,
    is_on_yarn,
    waiting_status,
    with_application,
)
from eps.pb import control_pb2 as pb
from eps.spec.changes import change_of, check_request_id
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import check_results, copy_result, deliver_results
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir, find_job
from eps.storage.locations import location
from eps.system.waits import wait_for

#: A plan is asked for its news at least this often while somebody waits for it.
PLAN_NEWS_S = 0.25
#: A job has this long to end after it was told to; then its processes are ended.
KILL_TIMEOUT_S = 10.0
_METHODS = {
    Operation.ADD_SERVERS: "AddServers",
    Operation.ADD_WORKERS: "AddWorkers",
    Operation.REMOVE_SERVERS: "RemoveServers",
    Operation.REMOVE_WORKERS: "RemoveWorkers",
}

#: Where it is set, :func:`run` hands its request to this and returns what it returns: under a scheduler a job is
#: submitted, not started.
submit_instead: ContextVar[Callable[[RunRequest], dict[str, Any]] | None] = ContextVar("submit_instead", default=None)

#: A change of size as in the report's ``changes``.
ChangeRecord = dict[str, Any]


class Job:
    """One job, running or ended; made by :meth:`start` or :meth:`find`.

    As a context manager it ends a job that it started, unless that was detached.

    Examples
    --------
    ::

        with eps.Job.start(data="sklearn:digits", model="softmax", test="0.2", iterations=200) as job:
            job.add_workers(2)
            report = job.wait()
    """

    def __init__(self, directory: JobDir, handle: JobHandle | None = None, *, patience_s: float = GIVE_UP_S) -> None:
        self._directory = directory
        self._handle = handle
        self._link = MasterLink(directory, patience_s)

    @classmethod
    def start(cls, spec: JobSpec | None = None, *, name: str = "", detach: bool = False, **settings: Any) -> Job:
        """Start a job and return at once.

        Parameters
        ----------
        spec : JobSpec, optional
            All settings; or give them one by one, by the names of :class:`~eps.spec.job_spec.JobSpec`.
        name : str, optional
            By default the model's name with a number.
        detach : bool
            The job goes on when this process ends; else it ends with it.

        Raises
        ------
        ConfigError
            The settings cannot work; JobExistsError where a job of that name runs.
        DataError
            The data cannot be used.
        ResourceError
            The processes cannot be started.
        """
        if spec is None:
            request = RunRequest.from_values({"name": name, **settings})
        elif settings:
            raise ConfigError(f"settings {', '.join(sorted(settings))} and a JobSpec exclude each other")
        else:
            request = RunRequest.of_spec(spec, name)
        if request.report or request.export:
            raise ConfigError("report and export belong to eps.run; of a Job, use wait() and export()")
        return cls.start_request(request, detach=detach)

    @classmethod
    def start_request(
        cls,
        request: RunRequest,
        *,
        detach: bool = False,
        before_data: Callable[[], None] | None = None,
        warm: WarmSupervisor | None = None,
    ) -> Job:
        """Start the job of a request; ``before_data`` is called before its data is read.  Raises as :meth:`start`.

        The supervisor that is ``warm`` is its own, or ended; by default one that begins now.
        """
        check_backend(request.spec)
        if request.spec.on == "yarn":
            from eps.job.yarn.starting import start

            if warm is not None:
                warm.cancel()
            return cls(*start(request, tied=not detach, before_data=before_data))
        # Not needed to look at a job or to change its size, and the slowest import of all.
        # It imports what the job's processes need while this process imports what it needs, and reads the data.
        warm = WarmSupervisor(ENTRY_POINTS) if warm is None else warm
        try:
            from eps.job.launch import start_here
            from eps.job.yarn.starting import settle_former_of

            settle_former_of(request.name)
            prepared, handle = start_here(request, warm, tied=not detach, before_data=before_data)
        except BaseException:
            warm.cancel()
            raise
        return cls(prepared.directory, handle)

    @classmethod
    def resume(
        cls,
        name: str,
        *,
        workers: int = 0,
        servers: int = 0,
        python: str = "",
        detach: bool = False,
        on_begin: Callable[[str, Sequence[str]], None] | None = None,
        warm: WarmSupervisor | None = None,
    ) -> Job:
        """Start a job again that has stopped before its end, from its latest checkpoint or from its seed.

        Parameters
        ----------
        name : str
        workers, servers : int
            0 takes the size that the job was to have at the checkpoint.
        python : str
            On YARN, another interpreter or archive than it had; empty takes that.
        detach, warm
            As of :meth:`start` and :meth:`start_request`.
        on_begin : callable, optional
            Called with what it goes on from, and with warnings of what is damaged.

        Raises
        ------
        ConfigError
            It cannot have that size or interpreter; JobExistsError where it is running.
        JobFinishedError
            It has finished; JobNotFoundError where there is none.
        ResourceError
            Its containers cannot be had.
        StorageError
            Its directory cannot be used.
        """
        directory = find_job(name)
        on_yarn = is_on_yarn(directory)
        if on_yarn and warm is not None:
            warm.cancel()
        warm = None if on_yarn else WarmSupervisor(ENTRY_POINTS) if warm is None else warm
        check: Callable[[JobSpec], None] | None = None
        try:
            if on_yarn:
                from eps.job.yarn.former import settle_former
                from eps.job.yarn.starting import check_prepared as check

                settle_former(directory)
            from eps.job.resume import prepare_resume

            resumed = prepare_resume(name, workers, servers, python, check)
            if on_begin is not None:
                on_begin(resumed.describe(), resumed.warnings)
            if warm is None:
                from eps.job.yarn.starting import start_prepared

                handle = start_prepared(resumed.prepared, tied=not detach)
            else:
                handle = resumed.prepared.start(tied=not detach, warm=warm)
        except BaseException:
            if warm is not None:
                warm.cancel()
            raise
        return cls(resumed.prepared.directory, handle)

    @classmethod
    def find(cls, name: str) -> Job:
        """Return a job by name, whoever started it.

        Raises
        ------
        JobNotFoundError
            There is none.
        """
        directory = find_job(name)
        if directory.is_running() or directory.settle().yarn.application is None:
            return cls(directory)
        from eps.job.yarn.former import look_after

        # The application may well run, where only who attended to it here was ended.
        return cls(directory, look_after(directory))

    @classmethod
    def attach(cls, name: str) -> Job:
        """Return a running job by name; any process of this user may have started it.

        Raises
        ------
        JobNotFoundError
            There is none of that name.
        JobFinishedError
            It has ended: :meth:`find` returns it all the same.
        """
        job = cls.find(name)
        if not job.running:
            raise JobFinishedError(f"job {name!r} has ended: it is {job.status()['state']}")
        return job

    @property
    def name(self) -> str:
        """The job's name."""
        return self._directory.name

    @property
    def directory(self) -> JobDir:
        """Where its files are."""
        return self._directory

    @property
    def running(self) -> bool:
        """True while any of it runs."""
        return self._directory.is_running()

    # ---- what it does

    def status(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return what ``eps status --json`` prints; of an ended job, how it ended.

        Raises
        ------
        PeerUnavailableError
            It runs, but its master does not answer.
        """
        return with_application(self._directory, self._status(timeout_s))

    def _status(self, timeout_s: float) -> dict[str, Any]:
        what, until_s = f"status of job {self.name!r}", time.monotonic() + timeout_s
        while True:
            if (waiting := waiting_status(self._directory)) is not None and self.running:
                return waiting
            try:
                reply = self._link.call("Status", pb.StatusRequest(), what, timeout_s, waits=False)
            except JobFinishedError:
                return ended_status(self._directory)
            if reply is not None:
                return _object(reply.status_json)
            # Its cluster has begun to let it wait meanwhile, or has ended that since.
            if time.monotonic() >= until_s:
                raise PeerUnavailableError(f"{what}: no answer within {timeout_s:g} s")
            time.sleep(RETRY_S)

    def history(self) -> list[dict[str, Any]]:
        """Return loss and metrics of each iteration so far."""
        found: list[dict[str, Any]] = []
        for progress in self._link.watch():
            # A long history comes in several messages.
            found += progress.history
            if not progress.history or found[-1]["clock"] + 1 >= progress.status["clock"]:
                return found
        return list((read_json(self._directory.report) or {}).get("history", []))

    def watch(self, after_clock: int = -1, *, is_patient: bool = False) -> Iterator[Progress]:
        """Yield news until the job has ended, about five times a second; see :meth:`MasterLink.watch`."""
        return self._link.watch(after_clock, is_patient=is_patient)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until the job and all its processes have ended; return its report, whose ``state`` says how.

        Raises
        ------
        DeadlineError
            It has not ended within ``timeout_s`` seconds.
        StorageError
            As of :meth:`report`.
        """
        wait_for(lambda: not self.running, timeout_s, f"the end of job {self.name!r}")
        if self._handle is not None:
            self._handle.wait(KILL_TIMEOUT_S)
        # Where its supervisor was killed outright, and could not tidy up.
        self._directory.settle()
        return self.report()

    def report(self) -> dict[str, Any]:
        """Return the report of an ended job.

        Raises
        ------
        PlanError
            It still runs.
        StorageError
            It has finished, and its report is not here: it could not be fetched from its cluster, say.
        """
        if self.running:
            raise PlanError(f"job {self.name!r} runs: it has no report yet")
        return ended_report(self._directory)

    def export(self, path: str | Path) -> None:
        """Copy the trained model to ``path``, which may be on HDFS.

        Raises
        ------
        StorageError
            There is none, or ``path`` cannot be written.
        """
        copy_result(self._directory.model, location(path), f"job {self.name!r} has no trained model")

    # ---- changes of size (EPS section 5.2)

    def add_workers(self, count: int, *, wait: bool = True, request_id: str = "") -> ChangeRecord:
        """Add workers; see :meth:`change`."""
        return self.change(Operation.ADD_WORKERS, count, wait=wait, request_id=request_id)

    def add_servers(self, count: int, *, wait: bool = True, request_id: str = "") -> ChangeRecord:
        """Add servers; see :meth:`change`."""
        return self.change(Operation.ADD_SERVERS, count, wait=wait, request_id=request_id)

    def remove_workers(
        self, count_or_names: int | Sequence[str], *, wait: bool = True, request_id: str = ""
    ) -> ChangeRecord:
        """Remove workers, by count (the highest numbers go) or by name; see :meth:`change`."""
        return self.change(Operation.REMOVE_WORKERS, count_or_names, wait=wait, request_id=request_id)

    def remove_servers(
        self, count_or_names: int | Sequence[str], *, wait: bool = True, request_id: str = ""
    ) -> ChangeRecord:
        """Remove servers, by count (the highest numbers go) or by name; see :meth:`change`."""
        return self.change(Operation.REMOVE_SERVERS, count_or_names, wait=wait, request_id=request_id)

    def change(
        self,
        operation: Operation | str,
        count_or_names: int | Sequence[str],
        *,
        wait: bool = True,
        request_id: str = "",
        on_news: Callable[[ChangeRecord], None] | None = None,
        manager: str = "",
        for_queue: bool = False,
    ) -> ChangeRecord:
        """Change the job's size.

        Parameters
        ----------
        operation : Operation
            ``add-workers``, ``add-servers``, ``remove-workers`` or ``remove-servers``.
        count_or_names : int or sequence of str
        wait : bool
            Return when the change has happened, else when it is accepted.
        request_id : str, optional
            The same id again is the same change.  By default a new one; retries within this call share it.
        on_news : callable, optional
            Called with the change whenever there may be news of it.
        manager : str
            Who asks, where the job's size is a scheduler's to decide.
        for_queue : bool
            Another application of the job's queue needs the room: what is removed is lent, what is added is taken back.

        Returns
        -------
        dict
            The change as in the report's ``changes``; ``plan_id`` names it.

        Raises
        ------
        PlanError
            It is refused (UnknownMemberError, JobFinishedError), or was aborted before its commit.
        PeerUnavailableError
            The master does not answer.
        """
        change = change_of(operation, count_or_names)
        reply = self._ask(change, request_id or uuid.uuid4().hex, manager=manager, for_queue=for_queue)
        record = self.plan(reply.plan_id)
        if not wait:
            return record
        while True:
            if on_news is not None:
                on_news(record)
            if record["phase"] == Phase.ABORTED:
                raise PlanError(f"plan {reply.plan_id} ({operation}) was aborted: {record['reason'] or 'no reason'}")
            if record["phase"] == Phase.RELEASED:
                return record
            if not self.running:
                # What the report says of it is the last that there will be.
                record = self.plan(reply.plan_id)
                if record["phase"] not in (Phase.ABORTED, Phase.RELEASED):
                    raise JobFinishedError(
                        f"job {self.name!r} ended before plan {reply.plan_id} ({operation}) was complete"
                    )
                continue
            record = self.plan(reply.plan_id, PLAN_NEWS_S)

    def dry_run(self, operation: Operation | str, count_or_names: int | Sequence[str]) -> str:
        """Return what a change would move, in words; nothing happens.  Raises as :meth:`change`."""
        return str(self._ask(change_of(operation, count_or_names), uuid.uuid4().hex, dry_run=True).text)

    def _ask(self, change: Change, request_id: str, **more: Any) -> pb.ChangeReply:
        check_request_id(request_id)
        operation = change.operation
        request: pb.AddRequest | pb.RemoveRequest
        if operation.adds:
            request = pb.AddRequest(count=change.count, request_id=request_id, **more)
        else:
            count = 0 if change.names else change.count
            request = pb.RemoveRequest(count=count, names=change.names, request_id=request_id, **more)
        self.wait_until_trains()
        reply: pb.ChangeReply = self._link.call(_METHODS[operation], request, f"{operation} of job {self.name!r}")
        return reply

    def wait_until_trains(self, timeout_s: float = 60.0, tell: Callable[[str], None] = lambda text: None) -> None:
        """Wait until the job has got its first workers and servers, or has ended; ``tell`` is told what that waits for.

        Raises
        ------
        DeadlineError
            It has not within ``timeout_s`` seconds.
        """
        try:
            what = f"the start of job {self.name!r}"
            waits = WaitNews(tell)
            wait_for(lambda: self._link.answers() and not waits.go_on(self.status()), timeout_s, what)
        except DeadlineError as error:
            why = "it is starting"
            with suppress(EpsError):
                why = self.status()["reason"] or why
            raise DeadlineError(f"{error}; {why}") from None

    def plan(self, plan_id: int, wait_s: float = 0.0) -> ChangeRecord:
        """Return a change, after waiting at most ``wait_s`` seconds for its end.

        Raises
        ------
        PlanError
            There is no such plan.
        """
        request = pb.PlanRequest(plan_id=_plan_id(plan_id), wait_s=wait_s)
        try:
            reply = self._link.call("GetPlan", request, f"plan {plan_id} of job {self.name!r}", wait_s + 60.0)
        except JobFinishedError:
            for record in (read_json(self._directory.report) or {}).get("changes", []):
                if record["plan_id"] == plan_id:
                    return dict(record)
            raise
        return _object(reply.plan_json)

    def cancel(self, plan_id: int | None = None) -> int:
        """Abort a change before its commit: the one given, else the one on its way or first in the queue.

        Returns
        -------
        int
            The plan that was aborted.

        Raises
        ------
        PlanError
            There is none, or it is committed.
        """
        if plan_id is None:
            status = self.status()
            waiting = [record["plan_id"] for record in (status["plan"], *status["queued"]) if record]
            if not waiting:
                raise PlanError(f"job {self.name!r} has no change on its way that could be cancelled")
            plan_id = int(waiting[0])
        self._link.call(
            "Cancel", pb.CancelRequest(plan_id=_plan_id(plan_id)), f"cancel plan {plan_id} of job {self.name!r}"
        )
        return plan_id

    # ---- the end

    def kill(
        self,
        reason: str = "killed on request",
        timeout_s: float = KILL_TIMEOUT_S,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """End the job and wait until its processes are gone; harmless if it has ended.

        Parameters
        ----------
        reason : str
        timeout_s : float
        tell : callable
            On YARN, called with what is waited for.

        Raises
        ------
        DeadlineError
            They are not, not even after the supervisor was told to end them, and then killed.  On YARN, which ends
            what it was told to end when its ResourceManager is there, after a minute at least: it goes on being told.
        PeerUnavailableError
            On YARN: its ResourceManager does not answer; it is told when it does.
        """
        if not self.running:
            return
        end_job(self._directory, reason, timeout_s, tell)
        if self._handle is not None:
            self._handle.wait(timeout_s)

    def kill_at_once(self) -> bool:
        """End the supervisor, and with it all other processes, without asking; for a job that this object started.

        Returns
        -------
        bool
            Whether it has ended: on YARN that cannot be done at once, and who attends to the job goes on with it.
        """
        if self._handle is not None and self._handle.poll() is None:
            if application_id_of(self._directory):
                self._handle.leave()
                return False
            self._handle.kill()
            self._handle.wait(KILL_TIMEOUT_S)
        return True

    def close(self) -> None:
        """Let go of the job: one that is tied to this process is ended, any other goes on.  Harmless when repeated."""
        self._link.close()
        if self._handle is not None:
            self._handle.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run(**settings: Any) -> dict[str, Any]:
    """Train a job to its end and return its report; ``report`` and ``export`` name files to write as well.

    Raises
    ------
    ConfigError, DataError
        As :meth:`Job.start`.
    TrainingError
        The job failed or was killed; StoppedEarlyError where a scheduler ended it for its early feedback.
    StorageError
        It finished, and its results cannot be fetched from its cluster, or not be written.
    """
    request = RunRequest.from_values(settings)
    check_results(request)
    submit = submit_instead.get()
    if request.spec.folds and request.spec.fold < 0:
        from eps.job.folds import run_folds

        return run_folds(request, submit or _train)
    if submit is not None:
        return submit(request)
    with Job.start_request(request) as job:
        report = job.wait()
        deliver_results(job.directory, request)
    if report["state"] != "finished":
        raise TrainingError(f"job {job.name!r} {report['state']}: {report.get('reason') or 'no reason given'}")
    return report


def _train(request: RunRequest) -> dict[str, Any]:
    with Job.start_request(request) as job:
        return job.wait()


def _plan_id(number: int) -> int:
    if not 0 <= number < 2**32:
        raise PlanError(f"there is no such plan: plans have numbers from 1 to {2**32 - 1}")
    return number


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise RpcError(f"the job master answered with a {type(value).__name__}, not with an object")
    return value


def end_job(job: JobDir, reason: str, timeout_s: float, tell: Callable[[str], None]) -> None:
    """End a job that runs; parameters and errors as of :meth:`Job.kill`."""
    what = f"the end of job {job.name!r}"
    with suppress(EpsError):
        # A master that is up ends the job in order, with a report; one that is not is ended by who stands for the job.
        link = MasterLink(job, give_up_s=0.0)
        try:
            request = pb.KillRequest(reason=reason)
            if link.call("Kill", request, f"kill job {job.name!r}", timeout_s=2.0, waits=False) is not None:
                wait_for(lambda: not job.is_running(), timeout_s, what)
        finally:
            link.close()
    told = is_wished = False

    def has_ended_or_is_on_yarn() -> bool:
        nonlocal told, is_wished
        # Who submits a job to YARN notes its application at any moment; who attends to it then is not to be ended.
        if application_id_of(job) or not job.is_running():
            return True
        # Again until it is told: a supervisor that has just been started cannot be found yet.
        told = told or kill_supervisor(job)
        if not told and not is_wished:
            is_wished = _wish_no_submission(job, reason)
        return not job.is_running()

    try:
        wait_for(has_ended_or_is_on_yarn, timeout_s, what)
    except DeadlineError as error:
        if not told:
            raise DeadlineError(f"{error}; {BEING_STARTED.format(name=job.name)}") from None
        if not application_id_of(job):
            # It hangs, or was stopped.
            kill_supervisor(job, signal.SIGKILL)
        wait_for(has_ended_or_is_on_yarn, timeout_s, what)
    if job.is_running():
        from eps.job.yarn.ending import end_application

        end_application(job, reason, timeout_s, tell)


def _wish_no_submission(job: JobDir, reason: str) -> bool:
    """Have a job end that is being submitted to YARN, by whoever does that; return whether it is one."""
    with suppress(StorageError):
        if is_on_yarn(job):
            from eps.job.yarn.ending import wish

            wish(job, "", reason)
            return True
    return False


class SpareSupervisor:
    """One supervisor that waits for a job; thread-safe.  It ends with this process, however that ends.

    The imports of a job's processes take longer than the rest of its start; a spare supervisor has done them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: WarmSupervisor | None = None
        self._closed = False

    def take(self) -> WarmSupervisor:
        """Return the spare one, or one that only begins.

        Raises
        ------
        ResourceError
            The process cannot be started.
        """
        with self._lock:
            spare, self._spare = self._spare, None
        return WarmSupervisor(ENTRY_POINTS) if spare is None else spare

    def refill(self) -> None:
        """Have a spare one again: best when no job is being started, as its imports take a core for half a second."""
        with self._lock:
            if self._spare is None and not self._closed:
                try:
                    self._spare = WarmSupervisor(ENTRY_POINTS)
                except ResourceError:
                    # The next take says why.
                    self._spare = None

    def close(self) -> None:
        """End the spare one; harmless when repeated."""
        with self._lock:
            spare, self._spare, self._closed = self._spare, None, True
        if spare is not None:
            spare.cancel()
