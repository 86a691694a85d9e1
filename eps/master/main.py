"""The job master's process: one owner thread steps the pure state and executes its commands.

Every event is logged before its commands are executed (:class:`~eps.master.state_log.LoggedJob`), so another process
can take over at any moment.  It restores the state, takes the next generation and repeats outstanding orders.

Source: EPS §3.1.3, §5.2; design sections 2, 4 and 7.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from eps.cluster.api import NO_NEWS, ResourceManager
from eps.cluster.choice import open_resources
from eps.cluster.local import LocalResourceManager
from eps.core import events as e
from eps.core.events import JobState
from eps.core.job import Job
from eps.errors import ConfigError, ResourceError, StorageError
from eps.master import records
from eps.master.checkpoints import CheckpointFinisher, pending_name
from eps.master.export import BRINGING_S, Exporter, why_no_report
from eps.master.resources import Containers, Pulse
from eps.master.service import Announcements, Endpoint, JobMasterService, Requests, open_place
from eps.master.sessions import Sessions
from eps.master.state_log import SYNC_PATIENCE_S, LoggedJob, StateLog
from eps.net.arrays.memory import raise_descriptor_limit, tune_malloc
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.calls.call import BoundServer
from eps.net.control.report_queue import BEATS
from eps.net.security.credentials import NO_SECURITY, Security
from eps.spec.results import deliver_detached
from eps.spec.runtime import Runtime
from eps.storage.checkpoint import open_checkpoints
from eps.storage.jobdir import JobDir
from eps.system.logs import set_up_logging

if TYPE_CHECKING:
    from eps.cluster.supervisor.process import ContainerContext

logger = logging.getLogger(__name__)

LOOK_S = 0.25
#: Time for members to exit at the end of the job, before the supervisor kills them.
FAREWELL_S = 3.0
#: Interval of heartbeats to the supervisor.
BEAT_S = 0.5
#: Longest time without progress of the owner thread during an export, when the user's model may hold the interpreter.
EXPORT_PATIENCE_S = 10.0
#: Time to retry HDFS for checkpoints; while a master starts, its members wait for it.
STORE_PATIENCE_S = 20.0
REPORT_PATIENCE_S = 60.0
#: Report and model may be uploaded to HDFS.
RESULTS_PATIENCE_S = 300.0
START_PATIENCE_S = 30.0


class Host(Protocol):
    """The parts of a job master that differ between one machine and YARN."""

    def add_to(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return the status with entries that only this host knows."""

    def bring_model(self) -> None:
        """Upload the model to where the next job master finds it: after the job has finished, it cannot be exported.

        Raises
        ------
        StorageError
            The model cannot be written.
        """

    def deliver(self) -> str:
        """Deliver report and model of a detached job; return why that failed, empty if it did not."""


class OneMachine:
    """The host of a job whose processes are all on this machine."""

    def __init__(self, job_dir: JobDir) -> None:
        self._job_dir = job_dir

    def add_to(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return the status unchanged."""
        return status

    def bring_model(self) -> None:
        """Do nothing: the next master finds the model on this machine."""

    def deliver(self) -> str:
        """See :meth:`Host.deliver`."""
        return deliver_detached(self._job_dir)


class Events:
    """The queue of events for the owner thread, which also checks timers every :data:`LOOK_S`, however busy it is."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
        self._look_s = 0.0

    def put(self, *events: e.Event) -> None:
        """Queue events in order, from any thread; never blocks."""
        for event in events:
            self._queue.put(event)

    def next(self) -> e.Event | None:
        """Wait for the next event and return it; None when it is time to check timers."""
        wait_s = self._look_s - time.monotonic()
        if wait_s > 0:
            try:
                return self._queue.get(timeout=wait_s)
            except queue.Empty:
                pass
        self._look_s = time.monotonic() + LOOK_S
        return None


class Master:
    """The job master: owner of one job's state, connected to its members, clients, disk and resource manager.

    Parameters
    ----------
    runtime : Runtime
    job_dir : JobDir
    resources : ResourceManager
    security : Security
        Credentials that members and clients must have.
    watch : callable, optional
        Called with the state after each step, before its commands are executed (False) and after (True).
    server : BoundServer, optional
        The socket for members and clients; by default a free port of the loopback interface.
    log : StateLog, optional
        The log that the masters of this job share; by default in its directory.
    announcements : Announcements, optional
        Where to announce the address of this master; by default ``master.json`` in the job's directory.
    host : Host, optional
        By default one machine.

    Raises
    ------
    StorageError
        There was a job master before this one, and its state cannot be restored.
    """

    def __init__(
        self,
        runtime: Runtime,
        job_dir: JobDir,
        resources: ResourceManager,
        security: Security = NO_SECURITY,
        watch: Callable[[Job, bool], None] | None = None,
        *,
        server: BoundServer | None = None,
        log: StateLog | None = None,
        announcements: Announcements | None = None,
        host: Host | None = None,
    ) -> None:
        server = BoundServer(security=security) if server is None else server
        announcements = Announcements(job_dir) if announcements is None else announcements
        log = StateLog(job_dir.state) if log is None else log
        self._runtime = runtime
        self._resources = resources
        self._watch = watch
        self._host: Host = OneMachine(job_dir) if host is None else host
        self._ended: e.EndJob | None = None
        beat_s = runtime.spec.recovery.member_timeout_s / BEATS
        self._pulse = Pulse(self._beat, min(BEAT_S, beat_s))
        self._job = LoggedJob(runtime, job_dir, log, announcements.generation, resources.adopt, self._pulse)
        self.events = Events()
        state, put = self._job.state, self.events.put
        self._notes = records.Notes(job_dir)
        self._exporter = Exporter(
            runtime,
            NegotiatedVan(security, runtime.spec.network.van),
            job_dir.model,
            self._host.bring_model,
            state,
            self._job.changed,
            put,
        )
        self._checkpoints = CheckpointFinisher(
            runtime,
            open_checkpoints(runtime.checkpoints, STORE_PATIENCE_S),
            lambda clock: state.progress.history.before(clock),
            put,
        )
        self._sessions = Sessions(put, runtime.to_json(), state.masters, beat_s=beat_s)
        address = str(server.address)
        self._containers = Containers(resources, runtime.spec, address, put, self._sessions, self._job.adopted)
        self._requests = Requests(runtime, self._job, put)
        service = JobMasterService(self._requests, self.status, put, runtime.manager)
        self._endpoint = Endpoint(server, announcements, service)
        # Members of an earlier master that do not connect again count as silent.
        self._sessions.expect(r.seat for r in state.members.by_name.values() if r.address is not None)

    def status(self) -> dict[str, Any]:
        """Return what ``eps status`` shows; may be called from any thread."""
        with self._job.changed:
            found = records.status(self._runtime, self._job.state, 0.0, self._job.now())
            errors = [self._job.log.error, self._notes.error, self._exporter.waits]
            silent_s = self._resources.silent_s()
            hangs = silent_s >= self._runtime.spec.recovery.member_timeout_s
            return self._host.add_to(
                {
                    **found,
                    "generation": self._job.state.masters.generation,
                    "storage_error": "; ".join(filter(None, errors)),
                    "resources_error": records.RESOURCES_HANG.format(silent_s=silent_s) if hangs else "",
                }
            )

    def history(self, most: int) -> list[dict[str, Any]]:
        """See :meth:`Requests.history_at_most`; may be called from any thread."""
        return self._requests.history_at_most(most)

    # ---- the owner thread

    def run(self) -> int:
        """Serve until the job has ended; return the exit code."""
        state = self._job.state
        self._endpoint.listen(self._sessions)
        metrics = records.serve_metrics(self._runtime.spec.monitoring.metrics_port, self.status)
        self._containers.listen()
        self._endpoint.announce(state.masters.generation)
        self._checkpoints.begin(pending_name(state.checkpoints))
        self._pulse.start()
        self._carry_out(self._job.first_commands)
        while self._ended is None:
            self._step_next()
        self._farewell()
        with self._pulse.patience(SYNC_PATIENCE_S):
            self._exporter.close(BRINGING_S)
        with self._pulse.patience(SYNC_PATIENCE_S):
            self._checkpoints.close()
        with self._pulse.patience(REPORT_PATIENCE_S):
            self._write_report()
        with self._pulse.patience(RESULTS_PATIENCE_S):
            self._deliver()
        if metrics is not None:
            metrics.close()
        self._sessions.close()
        self._endpoint.close()
        # Waits for a snapshot that is being written.
        with self._pulse.patience(SYNC_PATIENCE_S):
            self._job.log.close()
        self._pulse.stop()
        return self._finish()

    def _step_next(self) -> None:
        """Process the next event, or check timers: the status file, silent members, free capacity, the state's tick."""
        self._pulse.note()
        if (event := self.events.next()) is not None:
            self._step(event)
            return
        if self._notes.status_is_due(self._job.num_news):
            with self._pulse.patience(SYNC_PATIENCE_S):
                self._notes.status(self.status())
        self._containers.kill_silent(self._runtime.spec.recovery.member_timeout_s)
        self._containers.look_for_room(self._job.state)
        if self._job.tick_is_due():
            self._step(e.Tick(self._resources.silent_s()))

    def _beat(self) -> None:
        """Send the supervisor a heartbeat with the job's progress; called on the thread of the pulse."""
        state = self._job.state
        clock = state.progress.completed
        patience_s = EXPORT_PATIENCE_S if state.state is JobState.EXPORTING else 0.0
        self._resources.beat(clock + len(state.members.memberships), patience_s, clock=clock)

    def _step(self, event: e.Event) -> None:
        self._carry_out(self._job.step(event))

    def _carry_out(self, commands: list[e.Command]) -> None:
        """Execute the commands of one step."""
        if self._watch is not None:
            self._watch(self._job.state, False)
        self._execute(commands)
        if self._watch is not None:
            self._watch(self._job.state, True)

    def _execute(self, commands: list[e.Command]) -> None:
        for command in commands:
            self._pulse.note()
            match command:
                case e.Send(to, order):
                    self._sessions.send(to, order)
                case e.Journal(record, sync):
                    with self._pulse.patience(SYNC_PATIENCE_S):
                        self._write_record(record, sync)
                case e.RequestContainer(container_id, roles, tier):
                    self._containers.request(container_id, roles, tier)
                case e.ReleaseContainer(container_id):
                    self._containers.release(container_id)
                case e.KillContainer(container_id):
                    # One that the job still uses fails on request: as if it crashed.
                    fails = container_id in self._job.state.members.containers
                    self._containers.kill(container_id, "" if fails else "other members cannot connect to it")
                case e.Name(seat, name):
                    membership = self._job.state.membership
                    servers = () if membership is None else [membership.addresses[s] for s in membership.servers]
                    self._sessions.name(seat, name, servers)
                case e.Answer():
                    self._requests.answer(command)
                case e.StartExport(number):
                    self._exporter.start(number)
                case e.FinishCheckpoint():
                    self._checkpoints.finish(command)
                case e.RemoveEarlier(checkpoint_id):
                    self._checkpoints.remove_earlier(checkpoint_id)
                case e.DiscardCheckpoint():
                    self._checkpoints.discard(command)
                case e.EndJob():
                    self._ended = command
                    self._containers.end()

    def _write_record(self, record: Mapping[str, Any], sync: bool) -> None:
        logger.info("M %s", records.line_of(record))
        if sync:
            self._job.log.sync(self._job.now())

    # ---- the end

    def _farewell(self) -> None:
        """Wait for members to exit; after :data:`FAREWELL_S` the supervisor kills the rest."""
        deadline = time.monotonic() + FAREWELL_S
        while self._containers and time.monotonic() < deadline:
            self._step_next()

    def _write_report(self) -> None:
        assert self._ended is not None
        with self._job.changed:
            state, exported = self._job.state, self._job.state.export.found
            report = records.report(
                self._runtime,
                state,
                records.Ledger(**exported["ledger"]) if exported else None,
                exported["model_sha256"] if exported else "",
                exported["test_metrics"] if exported else {},
                0.0,
                self._job.now(),
            )
        try:
            self._notes.report(report)
        except StorageError as error:
            logger.exception("M the report cannot be written")
            model = self._exporter.path if exported else None
            self._ended = e.EndJob(JobState.FAILED, why_no_report(error, model, self._ended.reason))

    def _deliver(self) -> None:
        """Deliver report and model of a detached job; add a failure to the job's reason."""
        assert self._ended is not None
        if failed := self._host.deliver():
            self._ended = replace(self._ended, reason="; ".join(filter(None, [self._ended.reason, failed])))

    def _finish(self) -> int:
        assert self._ended is not None
        exit_code = 0 if self._ended.state is JobState.FINISHED else 1
        self._resources.end_job(exit_code, str(self._ended.state), self._ended.reason)
        return exit_code


def run(context: ContainerContext, watch: Callable[[Job, bool], None] | None = None) -> int:
    """Run the job master's process; for ``watch`` see :class:`Master`."""
    prepare_process()
    job_dir = JobDir(context.job_dir)
    assert context.supervisor_fd is not None
    most = Runtime.of_job(job_dir).spec.containers.max_containers
    supervisor = LocalResourceManager(context.supervisor_fd, most, context.running)
    try:
        return serve(job_dir, supervisor, context.entry_points, watch)
    finally:
        supervisor.close()


def prepare_process() -> None:
    """Set up logging, malloc and the descriptor limit of a process for job masters."""
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()


def serve(
    job_dir: JobDir,
    supervisor: ResourceManager,
    entry_points: Mapping[str, str],
    watch: Callable[[Job, bool], None] | None = None,
    made: Callable[[Master], None] = lambda master: None,
) -> int:
    """Run a job's master on this thread; return the job's exit code.

    Parameters
    ----------
    job_dir : JobDir
    supervisor : ResourceManager
        Receives heartbeats and the outcome of the job; the caller closes it.
    entry_points : mapping
        Role -> ``module:function``.
    watch : callable, optional
        See :class:`Master`.
    made : callable
        Called with the master before it serves.
    """
    runtime = Runtime.of_job(job_dir)
    supervisor.beat(NO_NEWS, START_PATIENCE_S)
    resources = supervisor
    try:
        resources = open_resources(runtime, job_dir, supervisor, entry_points)
        security = Security.of_job(job_dir.path)
        server, announcements = open_place(job_dir, security)
        master = Master(runtime, job_dir, resources, security, watch, server=server, announcements=announcements)
        made(master)
        return master.run()
    except (StorageError, ResourceError, ConfigError) as error:
        logger.exception("M failed")
        resources.end_job(1, str(JobState.FAILED), f"the job master failed: {error}")
        return 1
    finally:
        if resources is not supervisor:
            resources.close()
