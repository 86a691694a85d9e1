"""Jobs from Python: start, watch, resize, resume and kill them, and get their results.

The command line is built on this module.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from eps.cluster.choice import check_backend
from eps.cluster.supervisor.start import JobHandle, WarmSupervisor, kill_supervisor
from eps.core.reconfig import Change, Operation, Phase
from eps.errors import (
    ConfigError,
    DeadlineError,
    EpsError,
    JobFinishedError,
    JobNotFoundError,
    PeerUnavailableError,
    PlanError,
    RpcError,
    TrainingError,
)
from eps.job.entry_points import ENTRY_POINTS
from eps.job.master_link import GIVE_UP_S, RETRY_S, MasterLink, OnThisMachine, Progress, WaitNews, Whereabouts
from eps.job.status import BEING_STARTED, ended_report, ended_status, is_on_yarn, with_record
from eps.pb import control_pb2 as pb
from eps.spec.changes import change_of, check_request_id
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import check_results, copy_result, deliver_results
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir, cache_dir, can_be_resumed, find_job, job_dir, list_jobs
from eps.storage.locations import location
from eps.system.interrupt import telling
from eps.system.nearest import did_you_mean
from eps.system.waits import wait_for

if TYPE_CHECKING:
    from eps.job.yarn.remote import YarnJob

#: Longest time between two queries of a plan that a caller waits for.
PLAN_NEWS_S = 0.25
#: Time for a job to end after a kill request; then its processes are killed.
KILL_TIMEOUT_S = 10.0
_METHODS = {
    Operation.ADD_SERVERS: "AddServers",
    Operation.ADD_WORKERS: "AddWorkers",
    Operation.REMOVE_SERVERS: "RemoveServers",
    Operation.REMOVE_WORKERS: "RemoveWorkers",
    Operation.SCALE: "Scale",
    Operation.TIERS: "Scale",
}

#: If set, :func:`run` passes its request to this function and returns the result.  A scheduler sets it to get the job
#: submitted to itself.
submit_instead: ContextVar[Callable[[RunRequest], dict[str, Any]] | None] = ContextVar("submit_instead", default=None)

#: A change of size as in the report's ``changes``.
ChangeRecord = dict[str, Any]


class Job:
    """A job, running or ended; made by :meth:`start`, :meth:`resume` or :meth:`find`.

    Unless detached, a job ends with the ``with`` block or the process that started it.  Only a job on YARN continues if
    that process is killed with SIGKILL.

    Examples
    --------
    ::

        with eps.Job.start(data="sklearn:digits", model="softmax", test="0.2", iterations=200) as job:
            job.add_workers(2)
            report = job.wait()
    """

    def __init__(
        self,
        directory: JobDir,
        handle: JobHandle | None = None,
        *,
        patience_s: float = GIVE_UP_S,
        is_tied: bool = False,
        yarn: YarnJob | None = None,
    ) -> None:
        self._directory = directory
        self._handle = handle
        self._patience_s = patience_s
        #: Client of the job's YARN application; None for other jobs.
        self._yarn = yarn
        self._tied_pid = 0
        self._where: Whereabouts = yarn or OnThisMachine(directory)
        self._link = MasterLink(directory, self._where, patience_s)
        self._look_for_application()
        if is_tied and self._yarn is not None:
            self._tied_pid = os.getpid()
            atexit.register(self._end_with_us)

    def _look_for_application(self) -> bool:
        """Switch to the job's application on YARN, if it has been submitted since; return whether it has."""
        if self._handle is not None or self._yarn is not None or not self._directory.is_on_yarn():
            return False
        from eps.job.yarn.remote import YarnJob

        self._link.close()
        self._where = self._yarn = YarnJob(self._directory)
        self._link = MasterLink(self._directory, self._where, self._patience_s)
        return True

    def _end_with_us(self) -> None:
        """Ask YARN to kill a job whose client exits without closing it."""
        # Not in a forked child: it did not start the job.
        if self._yarn is not None and self._tied_pid == os.getpid():
            self._yarn.tell_to_end("its client has exited")

    @classmethod
    def start(cls, spec: JobSpec | None = None, *, name: str = "", detach: bool = False, **settings: Any) -> Job:
        """Start a job and return at once.

        Parameters
        ----------
        spec : JobSpec, optional
            All settings of the job; pass either this or ``settings``.
        name : str, optional
            By default the model's name and a number.
        detach : bool
            Whether the job continues when this process ends.
        **settings
            The :data:`~eps.spec.job_spec.SETTINGS` of the job.  ``data``, ``labels``, ``test`` and ``test_labels`` may
            be arrays, as in :func:`run`.

        Raises
        ------
        ConfigError
            A setting is invalid.
        JobExistsError
            A job of that name is running, or has stopped and can be resumed.
        DataError
            The data cannot be used.
        ResourceError
            The processes cannot be started.
        """
        if spec is not None and settings:
            raise ConfigError(f"pass either a JobSpec or the settings {', '.join(sorted(settings))}, not both")
        with _array_files(settings) as values:
            request = (
                RunRequest.from_values({"name": name, **values}) if spec is None else RunRequest.of_spec(spec, name)
            )
            if request.report or request.export:
                raise ConfigError("report and export are settings of eps.run; use wait() and export() of the Job")
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
        """Start the job of a request; errors are those of :meth:`start`.

        Parameters
        ----------
        request : RunRequest
        detach : bool
        before_data : callable, optional
            Called before the data is read.
        warm : WarmSupervisor, optional
            Becomes the job's supervisor, or is ended; by default a new one is started.
        """
        check_backend(request.spec)
        if request.name and (former := job_dir(request.name)).is_on_yarn():
            from eps.job.yarn.remote import settle

            # The former job's files must stay while its application runs.
            settle(former)
        if request.spec.on == "yarn":
            from eps.job.yarn import shared_application
            from eps.job.yarn.submit import start

            if warm is not None:
                warm.cancel()
            if (place := shared_application.current()) is not None:
                return cls(*place.start(request, before_data))
            return cls(start(request, before_data), is_tied=not detach)
        # The supervisor imports the code of the job's processes while this process imports its own and reads the data.
        warm = WarmSupervisor(ENTRY_POINTS) if warm is None else warm
        try:
            # Slow to import, and not needed for a job that exists.
            from eps.job.launch import start_here

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
        reliable: int = 0,
        python: str = "",
        detach: bool = False,
        on_begin: Callable[[str, Sequence[str]], None] | None = None,
        warm: WarmSupervisor | None = None,
    ) -> Job:
        """Resume a job that stopped before its end, from its latest checkpoint or from its seed.

        Parameters
        ----------
        name : str
        workers, servers, reliable : int
            0 keeps the size that the job had, or was to have, at the checkpoint.  ``reliable`` is for a job on reliable
            containers alone.
        python : str
            On YARN, the interpreter or archive to use instead; empty keeps that of the job.
        detach, warm
            See :meth:`start` and :meth:`start_request`.
        on_begin : callable, optional
            Called with a sentence that names the checkpoint, and with warnings about damaged ones.

        Raises
        ------
        ConfigError
            The job cannot have that size or interpreter.
        JobExistsError
            The job is running.
        JobFinishedError
            The job has finished.
        JobNotFoundError
            There is no such job.
        ResourceError
            The processes cannot be started.
        StorageError
            The job's directory cannot be used.
        """
        try:
            directory = find_directory(name)
        except BaseException:
            if warm is not None:
                warm.cancel()
            raise
        if is_on_yarn(directory):
            if warm is not None:
                warm.cancel()
            size = workers, servers, reliable
            return cls._resume_on_yarn(directory, size, python, on_begin, is_tied=not detach)
        warm = WarmSupervisor(ENTRY_POINTS) if warm is None else warm
        try:
            from eps.job.resume import prepare_resume

            resumed = prepare_resume(name, workers, servers, python, reliable=reliable)
            if on_begin is not None:
                on_begin(resumed.describe(), resumed.warnings)
            handle = resumed.prepared.start(tied=not detach, warm=warm)
        except BaseException:
            warm.cancel()
            raise
        return cls(resumed.prepared.directory, handle)

    @classmethod
    def _resume_on_yarn(
        cls,
        directory: JobDir,
        size: tuple[int, int, int],
        python: str,
        on_begin: Callable[[str, Sequence[str]], None] | None,
        *,
        is_tied: bool,
    ) -> Job:
        from eps.job.resume import prepare_resume
        from eps.job.yarn import shared_application
        from eps.job.yarn.remote import settle
        from eps.job.yarn.submit import check_prepared, start_prepared

        place = shared_application.current()
        settle(directory)
        (workers, servers, reliable), check = size, check_prepared if place is None else None
        resumed = prepare_resume(directory.name, workers, servers, python, check, reliable=reliable)
        if on_begin is not None:
            on_begin(resumed.describe(), resumed.warnings)
        if place is not None:
            return cls(directory, place.start_prepared(resumed.prepared))
        start_prepared(resumed.prepared)
        return cls(directory, is_tied=is_tied)

    @classmethod
    def find(cls, name: str) -> Job:
        """Return a job of this user by name, running or ended.

        Raises
        ------
        JobNotFoundError
            There is no such job.
        """
        directory = find_directory(name)
        if not directory.is_running():
            # If its supervisor was killed, the record does not have the end yet.
            directory.settle()
        return cls(directory)

    @classmethod
    def attach(cls, name: str) -> Job:
        """Return a running job by name; any process of this user may have started it.

        Raises
        ------
        JobNotFoundError
            There is no such job.
        JobFinishedError
            The job has ended; :meth:`find` returns ended jobs, too.
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
        """The job's directory."""
        return self._directory

    @property
    def running(self) -> bool:
        """Whether a process of the job is running."""
        return self._where.is_running()

    # ---- state and results

    def status(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return what ``eps status --json`` prints.

        Raises
        ------
        PeerUnavailableError
            The job runs, but its master does not answer.
        """
        return with_record(self._directory, self._status(timeout_s))

    def _status(self, timeout_s: float) -> dict[str, Any]:
        what, until_s = f"status of job {self.name!r}", time.monotonic() + timeout_s
        while True:
            if (waiting := self._where.waiting()) is not None:
                return waiting
            try:
                reply = self._link.call("Status", pb.StatusRequest(), what, timeout_s, waits=False)
            except JobFinishedError:
                # The job may have been submitted to YARN since.
                if self._look_for_application():
                    continue
                return ended_status(self._directory)
            if reply is not None:
                return _object(reply.status_json)
            # The job has just begun or ceased to wait for its cluster: look again.
            if time.monotonic() >= until_s:
                raise PeerUnavailableError(f"{what}: no answer within {timeout_s:g} s")
            time.sleep(RETRY_S)

    def history(self) -> list[dict[str, Any]]:
        """Return loss and metrics of each iteration so far."""
        found: list[dict[str, Any]] = []
        for progress in self._link.watch():
            # The master sends a long history in several messages.
            found += progress.history
            if not progress.history or found[-1]["clock"] + 1 >= progress.status["clock"]:
                return found
        return list((read_json(self._directory.report) or ended_status(self._directory)).get("history", []))

    def watch(self, after_clock: int = -1, *, is_patient: bool = False) -> Iterator[Progress]:
        """Yield status and new history until the job has ended, at most five times a second.

        See :meth:`eps.job.master_link.MasterLink.watch`.
        """
        return self._link.watch(after_clock, is_patient=is_patient)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until the job and all its processes have ended; return its report.

        The report's ``state`` is ``finished``, ``failed`` or ``killed``.  The results of a job on YARN are downloaded.

        Parameters
        ----------
        timeout_s : float, optional
            None waits without limit.

        Raises
        ------
        DeadlineError
            The job has not ended within ``timeout_s`` seconds.
        StorageError
            The results cannot be downloaded or read.
        """
        if self._yarn is not None:
            self._yarn.patience_s = None
        wait_for(lambda: not self.running, timeout_s, f"the end of job {self.name!r}")
        if self._handle is not None:
            self._handle.wait(KILL_TIMEOUT_S)
        self.fetch()
        # If its supervisor was killed, the record does not have the end yet.
        self._directory.settle()
        return self.report()

    def report(self) -> dict[str, Any]:
        """Return the report of an ended job.

        Raises
        ------
        PlanError
            The job still runs.
        StorageError
            The job has finished, but its report is missing, for example because the download from its cluster failed.
        """
        if self.running:
            raise PlanError(f"job {self.name!r} is running: it has no report yet")
        return ended_report(self._directory)

    def fetch(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """Download the results of an ended job on YARN.  Idempotent; does nothing for other jobs.

        Report and model are written to the job's directory, and, for a detached job, to ``report`` and ``export``.

        Parameters
        ----------
        tell : callable
            Called with a sentence before a step that may take long.

        Raises
        ------
        PlanError
            The job still runs.
        StorageError
            The job's folder on the cluster cannot be read, or a result cannot be written.
        """
        if self.running:
            raise PlanError(f"job {self.name!r} is still running: fetch its results when it has ended")
        if self._yarn is not None:
            self._yarn.fetch(tell)

    def export(self, path: str | Path) -> None:
        """Copy the trained model to ``path``, which may be on HDFS.

        Raises
        ------
        StorageError
            The job has no trained model, or ``path`` cannot be written.
        """
        if not self.running:
            self.fetch()
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
        """Remove workers by count (highest numbers first) or by name; see :meth:`change`."""
        return self.change(Operation.REMOVE_WORKERS, count_or_names, wait=wait, request_id=request_id)

    def remove_servers(
        self, count_or_names: int | Sequence[str], *, wait: bool = True, request_id: str = ""
    ) -> ChangeRecord:
        """Remove servers by count (highest numbers first) or by name; see :meth:`change`."""
        return self.change(Operation.REMOVE_SERVERS, count_or_names, wait=wait, request_id=request_id)

    def scale(
        self,
        *,
        workers: int = 0,
        servers: int = 0,
        reliable: int = 0,
        transient: int = 0,
        containers: Sequence[str] = (),
        wait: bool = True,
        request_id: str = "",
    ) -> ChangeRecord:
        """Change the number of workers and of servers by one plan: ``scale(workers=+2, servers=-1)``.

        For a job on reliable and transient containers change their number, ``scale(transient=+2)``, or remove
        ``containers`` by name.  Otherwise the latest members and containers are removed first; see :meth:`change`.
        """
        sizes = {"workers": workers, "servers": servers, "reliable": reliable, "transient": transient}
        if wrong := [f"{role} is {number!r}" for role, number in sizes.items() if type(number) is not int]:
            raise ConfigError(f"{wrong[0]}, but must be a whole number such as 2 or -1")
        parts = [f"{role}={number:+d}" for role, number in sizes.items() if number]
        text = ",".join([*parts, *([f"containers=-{','.join(containers)}"] if containers else [])])
        return self.change(Operation.SCALE, text, wait=wait, request_id=request_id)

    def change(
        self,
        operation: Operation | str,
        count_or_names: int | Sequence[str],
        *,
        wait: bool = True,
        request_id: str = "",
        on_news: Callable[[ChangeRecord], None] | None = None,
        manager: str = "",
    ) -> ChangeRecord:
        """Change the job's size.

        Parameters
        ----------
        operation : Operation
            ``add-workers``, ``add-servers``, ``remove-workers``, ``remove-servers`` or ``scale``.
        count_or_names : int or sequence of str
            Number of members; to remove, also their names.  For ``scale`` a text such as ``workers=+2,servers=-1``.
        wait : bool
            Whether to wait until the change has taken effect; otherwise return once it is queued.
        request_id : str, optional
            Repeating a call with the same id has no effect.  By default a new id.
        on_news : callable, optional
            Called with the change, repeatedly while it is carried out.
        manager : str
            Name of the scheduler that decides the job's size, if it calls.

        Returns
        -------
        dict
            The change as in the report's ``changes``; ``plan_id`` is its number.

        Raises
        ------
        PlanError
            The change was refused (UnknownMemberError, JobFinishedError), or aborted before its commit.
        PeerUnavailableError
            The master does not answer.
        """
        change = change_of(operation, count_or_names)
        reply = self._ask(change, request_id or uuid.uuid4().hex, manager=manager)
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
                # The report has its final state.
                record = self.plan(reply.plan_id)
                if record["phase"] not in (Phase.ABORTED, Phase.RELEASED):
                    raise JobFinishedError(
                        f"job {self.name!r} ended before plan {reply.plan_id} ({operation}) was complete"
                    )
                continue
            record = self.plan(reply.plan_id, PLAN_NEWS_S)

    def dry_run(self, operation: Operation | str, count_or_names: int | Sequence[str]) -> str:
        """Return what a change would move, as text; nothing happens.  Errors are those of :meth:`change`."""
        return str(self._ask(change_of(operation, count_or_names), uuid.uuid4().hex, dry_run=True).text)

    def _ask(self, change: Change, request_id: str, **more: Any) -> pb.ChangeReply:
        check_request_id(request_id)
        operation = change.operation
        request: pb.AddRequest | pb.RemoveRequest | pb.ScaleRequest
        if change.by_scale:
            operation = Operation.SCALE
        if operation in (Operation.SCALE, Operation.TIERS):
            request = pb.ScaleRequest(sizes=str(change), request_id=request_id, **more)
        elif operation.adds:
            request = pb.AddRequest(count=change.count, request_id=request_id, **more)
        else:
            count = 0 if change.names else change.count
            request = pb.RemoveRequest(count=count, names=change.names, request_id=request_id, **more)
        self.wait_until_trains()
        reply: pb.ChangeReply = self._link.call(_METHODS[operation], request, f"{operation} of job {self.name!r}")
        return reply

    def wait_until_trains(self, timeout_s: float = 60.0, tell: Callable[[str], None] = lambda text: None) -> None:
        """Wait until the job trains or has ended; ``tell`` is called with what it waits for.

        Raises
        ------
        DeadlineError
            The job does not train within ``timeout_s`` seconds.
        """
        try:
            what = f"the start of job {self.name!r}"
            waits = WaitNews(tell)
            wait_for(lambda: self._link.answers() and not waits.is_waiting(self.status()), timeout_s, what)
        except DeadlineError as error:
            why = "it is starting"
            with suppress(EpsError):
                why = self.status()["reason"] or why
            raise DeadlineError(f"{error}; {why}") from None

    def plan(self, plan_id: int, wait_s: float = 0.0) -> ChangeRecord:
        """Return a change; wait at most ``wait_s`` seconds for its end.

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
        """Abort a change before its commit.

        Parameters
        ----------
        plan_id : int, optional
            Default: the first change that was requested and has not ended.

        Returns
        -------
        int
            The aborted plan.

        Raises
        ------
        PlanError
            There is no such change, or it is committed.
        """
        if plan_id is None:
            status = self.status()
            waiting = [record for record in (status["plan"], *status["queued"]) if record]
            asked = [record["plan_id"] for record in waiting if record["asked_by"] == "user"]
            if not asked:
                own = f"; plan {waiting[0]['plan_id']} is the job's own (see eps status {self.name})" if waiting else ""
                raise PlanError(f"job {self.name!r} has no pending change to cancel{own}")
            plan_id = int(asked[0])
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
        """Kill the job and wait until its processes have exited.  Idempotent.

        :meth:`resume` can continue a killed job.

        Parameters
        ----------
        reason : str
        timeout_s : float
            Time for each of three steps: the job master ends the job, the supervisor ends it, the supervisor is killed.
            On YARN the wait takes a minute at least.
        tell : callable
            On YARN, called with what the call waits for.

        Raises
        ------
        DeadlineError
            The processes have not exited; call it again.
        PeerUnavailableError
            The ResourceManager does not answer; call it again.
        """
        if not self.running:
            return
        if not self._end_in_order(reason, timeout_s):
            if self._yarn is None:
                self._end_here(timeout_s)
                self._look_for_application()
            if self._yarn is not None:
                self._yarn.kill(reason, timeout_s, tell)
        if self._handle is not None:
            self._handle.wait(timeout_s)

    def _end_in_order(self, reason: str, timeout_s: float) -> bool:
        """Ask the job master to end the job with a report; return whether it has ended in time."""
        link = MasterLink(self._directory, self._where, give_up_s=0.0)
        try:
            request = pb.KillRequest(reason=reason)
            if link.call("Kill", request, f"kill job {self.name!r}", timeout_s=2.0, waits=False) is not None:
                wait_for(lambda: not self.running, timeout_s, f"the end of job {self.name!r}")
        except EpsError:
            # Without a master, the supervisor or YARN ends the job.
            pass
        finally:
            link.close()
        return not self.running

    def _end_here(self, timeout_s: float) -> None:
        """End a job of this machine by its supervisor, unless it turns out to be submitted to YARN."""
        job, what, told = self._directory, f"the end of job {self.name!r}", False

        def has_ended_or_gone() -> bool:
            nonlocal told
            # A process that submits the job to YARN may note its application at any moment.
            if job.is_on_yarn() or not job.is_running():
                return True
            # Repeat until it succeeds: a supervisor that is just starting cannot be found yet.
            told = told or kill_supervisor(job)
            return not job.is_running()

        try:
            wait_for(has_ended_or_gone, timeout_s, what)
        except DeadlineError as error:
            if not told:
                raise DeadlineError(f"{error}; {BEING_STARTED.format(name=self.name)}") from None
            # The supervisor hangs, or is suspended.
            kill_supervisor(job, signal.SIGKILL)
            wait_for(has_ended_or_gone, timeout_s, what)

    def kill_at_once(self) -> bool:
        """Kill the supervisor, and with it all processes of a job that this object started.

        Returns
        -------
        bool
            Whether the job has ended; False on YARN, which is asked to kill the application.
        """
        if self._yarn is not None:
            self._untie()
            self._yarn.tell_to_end("ended at once")
            return False
        if self._handle is not None and self._handle.poll() is None:
            self._handle.kill()
            self._handle.wait(KILL_TIMEOUT_S)
        return True

    def close(self) -> None:
        """Close the connections; end the job if it is tied to this process.  Idempotent.

        Raises
        ------
        EpsError
            The tied job cannot be ended.
        """
        try:
            if self._handle is not None:
                self._handle.close()
            if self._yarn is not None and self._untie() and self.running:
                self._yarn.kill("its client has exited", KILL_TIMEOUT_S)
        finally:
            self._link.close()
            if self._yarn is not None:
                self._yarn.close()

    def _untie(self) -> bool:
        """Let the application outlive this process; return whether it was tied to it."""
        was_tied, self._tied_pid = self._tied_pid == os.getpid(), 0
        atexit.unregister(self._end_with_us)
        return was_tied

    def __repr__(self) -> str:
        return f"<Job {self.name!r} in {self._directory.path}>"

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run(**settings: Any) -> dict[str, Any]:
    """Train a model and return the report of the job.

    Parameters
    ----------
    **settings
        ``name``, ``report`` (file for the report), ``export`` (file for the trained model), ``anew`` (replace a stopped
        job of that name), and :data:`~eps.spec.job_spec.SETTINGS`, which are the flags of ``eps run``.
        ``data`` is a file, a NumPy array, a SciPy sparse matrix or a pandas frame.  With an array or matrix, ``labels``
        is an array; with a frame, an array or the name of a column.  ``test`` is a file, a fraction, data like ``data``
        with ``test_labels``, or a pair of test data and labels.

    Returns
    -------
    dict
        What ``eps run --report`` writes: ``state``, ``metrics``, ``history``, ``changes`` and more.

    Raises
    ------
    ConfigError, DataError
        See :meth:`Job.start`.
    TrainingError
        The job failed or was killed.
    StoppedEarlyError
        A scheduler stopped the job because of its early feedback.
    StorageError
        The job finished, but its results cannot be downloaded from its cluster or written.

    Examples
    --------
    ::

        report = eps.run(data="sklearn:digits", model="softmax", test=0.2, export="digits.npz")
        report["metrics"]["test"]["accuracy"]
    """
    try:
        with _array_files(settings) as values:
            return _run(RunRequest.from_values(values))
    except KeyboardInterrupt as error:
        # Without the traceback of the wait in here, which tells the user nothing.
        raise error.with_traceback(None) from None


def _array_files(settings: dict[str, Any]) -> AbstractContextManager[dict[str, Any]]:
    given = [settings.get(name) for name in ("data", "labels", "test", "test_labels")]
    if not any(hasattr(value, "shape") or isinstance(value, tuple) for value in given):
        return nullcontext(settings)
    # Slow to import, and not needed for data in files.
    from eps.data.arrays import array_files
    from eps.ml.models import MODELS

    model = MODELS.get(str(settings.get("model")))
    return array_files(settings, cache_dir, needs_labels=model is None or model.task != "topics")


def _run(request: RunRequest) -> dict[str, Any]:
    check_results(request)
    submit = submit_instead.get()
    if request.spec.folds and request.spec.fold < 0:
        from eps.job.folds import run_folds

        if submit is not None:
            return run_folds(request, submit)
        return run_folds(
            request,
            lambda fold: _report_of(Job.start_request(fold)),
            lambda name: _report_of(continue_fold(name)),
        )
    if submit is not None:
        return submit(request)
    with Job.start_request(request) as job:
        with telling(f"{job.name}: interrupted, and ended; eps resume {job.name} continues it"):
            report = job.wait()
        deliver_results(job.directory, request)
    if report["state"] != "finished":
        raise TrainingError(f"job {job.name!r} {report['state']}: {report.get('reason') or 'no reason given'}")
    return report


def continue_fold(name: str, on_begin: Callable[[str, Sequence[str]], None] | None = None) -> Job:
    """Return the job of a fold that an earlier run has left; resume it unless it has finished.

    Parameters and errors are those of :meth:`Job.resume`.
    """
    job = Job.find(name)
    if can_be_resumed(job.directory):
        return Job.resume(name, on_begin=on_begin)
    if on_begin is not None:
        on_begin(f"{name}: finished before, with the same settings (--anew trains it again)", ())
    return job


def _report_of(started: Job) -> dict[str, Any]:
    with started as job:
        return job.wait()


def _plan_id(number: int) -> int:
    if not 0 <= number < 2**32:
        raise PlanError(f"there is no such plan: plans have numbers from 1 to {2**32 - 1}")
    return number


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise RpcError(f"the job master answered with a {type(value).__name__}, expected an object")
    return value


def find_directory(name: str) -> JobDir:
    """Return the directory of a job; if it is missing, restore it from the cluster of ``HADOOP_CONF_DIR``.

    Without that variable, only this machine is searched.

    Raises
    ------
    ConfigError
        The name is not a valid name of a job.
    JobNotFoundError
        There is no such job; the message lists what YARN has of that name.
    StorageError
        The directory cannot be restored.
    """
    try:
        return find_job(name)
    except JobNotFoundError as error:
        if not os.environ.get("HADOOP_CONF_DIR"):
            near = did_you_mean(name, [job.name for job in list_jobs()])
            raise JobNotFoundError(f"{error}; no cluster was asked: HADOOP_CONF_DIR is not set{near}") from None
        from eps.job.yarn.staged_jobs import restore

        return restore(name, error)
