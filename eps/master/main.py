"""The job master's process: one owner thread steps the pure state and does what it says.

Every event is logged before anything is done about it (:mod:`eps.master.state_log`), so another process can take over
at any moment: it has the state of this one, takes the next generation, and says what is outstanding once more.

Source: EPS §3.1.3, §5.2; design sections 2, 4 and 7.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from eps.cluster.api import NO_NEWS, ResourceManager
from eps.cluster.choice import open_resources
from eps.cluster.local import LocalResourceManager
from eps.core import events as e
from eps.core.events import ENDED_STATES, JobState
from eps.core.job import Job
from eps.core.types import Role
from eps.errors import ConfigError, ResourceError, StorageError
from eps.master import records
from eps.master.checkpoints import CheckpointFinisher, earlier_history, pending_name
from eps.master.containers import Containers
from eps.master.export import why_no_report
from eps.master.exporter import BRINGING_S, Exporter
from eps.master.first_state import first_state
from eps.master.leaving import leave_supervisor
from eps.master.metrics import serve_metrics
from eps.master.notes import Notes
from eps.master.place import Announcements, open_place
from eps.master.pulse import Pulse
from eps.master.requests import Requests
from eps.master.service import JobMasterService
from eps.master.sessions import Sessions
from eps.master.state_log import StateLog
from eps.net.arrays.memory import raise_descriptor_limit, tune_malloc
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.calls.call import BoundServer
from eps.net.control.report_queue import BEATS
from eps.net.security.credentials import NO_SECURITY, Security
from eps.pb.control_pb2_grpc import add_JobMasterServicer_to_server
from eps.spec.results import deliver_detached
from eps.spec.runtime import Runtime
from eps.storage.atomic import write_json_atomic
from eps.storage.checkpoint import open_checkpoints
from eps.storage.jobdir import JobDir
from eps.system.logs import set_up_logging

if TYPE_CHECKING:
    from eps.cluster.supervisor.process import ContainerContext

logger = logging.getLogger(__name__)

TICK_S = 0.25
#: Members that were told to end get this long before the supervisor ends them.
FAREWELL_S = 3.0
#: The supervisor hears this often that the owner thread lives.
BEAT_S = 0.5
#: What keeps the owner thread longer than a beat, at worst: a slow disk, a user's model while it is measured, a long
#: report.
SYNC_PATIENCE_S = 60.0
EXPORT_PATIENCE_S = 10.0
#: For checkpoints on HDFS that does not answer: a master that starts keeps its members waiting meanwhile.
STORE_PATIENCE_S = 20.0
REPORT_PATIENCE_S = 60.0
#: Two files, which may go to HDFS.
RESULTS_PATIENCE_S = 300.0
START_PATIENCE_S = 30.0


class Master:
    """Owner of one job's membership and plans.

    Parameters
    ----------
    runtime : Runtime
    job_dir : JobDir
    resources : ResourceManager
    security : Security
        What members and clients must prove.
    watch : callable, optional
        Called with the state after each step, before its commands are executed (False) and after (True).
    server : BoundServer, optional
        Where members and clients reach this master; by default a free port of the loopback interface.
    log : StateLog, optional
        What the masters of this job share; by default in its directory.
    announcements : Announcements, optional
        Say where this master listens; by default ``master.json`` in its directory.

    Raises
    ------
    StorageError
        Another process was master before this one, and did not leave what is needed to take over.
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
    ) -> None:
        self._server = BoundServer(security=security) if server is None else server
        self._announcements = Announcements(job_dir) if announcements is None else announcements
        self._runtime = runtime
        self._job_dir = job_dir
        self._resources = resources
        self._events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._ended: e.EndJob | None = None
        self._started_s = time.monotonic()
        self._now: Callable[[], float] = lambda: time.monotonic() - self._started_s
        self._notes = Notes(job_dir)
        self._log = StateLog(job_dir.state) if log is None else log
        self._state, self._first_commands = self._restore()
        self._watch = watch
        self._exporter = Exporter(
            runtime,
            NegotiatedVan(security, runtime.spec.van),
            job_dir.model,
            self._bring_model,
            self._state,
            self._changed,
            self.put,
        )
        self._checkpoints = CheckpointFinisher(
            runtime,
            open_checkpoints(runtime.checkpoints, STORE_PATIENCE_S),
            lambda clock: self._state.progress.history.before(clock),
            self.put,
        )
        beat_s = runtime.spec.member_timeout_s / BEATS
        self._pulse = Pulse(self._beat, min(BEAT_S, beat_s))
        self._sessions = Sessions(self.put, runtime.to_json(), self._state.masters, beat_s=beat_s)
        self._containers = Containers(resources, runtime.spec, str(self._server.address), self.put, self._sessions)
        self._requests = Requests(runtime, self._state, self._changed, self.put, self._now)
        self._service = JobMasterService(self._requests, self.status, self.put, runtime.manager)
        # A member that does not come back is as lost as one that falls silent.
        self._sessions.expect(r.container for r in self._state.members.by_name.values() if r.address is not None)
        self._tick_due_s = 0.0

    def _restore(self) -> tuple[Job, list[e.Command]]:
        """Return the state that the process before left, or a new one, and what is to be done first."""
        restored = self._log.restore()
        if restored is not None:
            logger.info("M takes over: %d events, %.3f s after the last", restored.num_events, restored.away_s)
            self._started_s -= restored.now_s + restored.away_s
            state = restored.state
            # One before may have been announced that could log nothing; a generation is used once.
            last = max(state.masters.generation, self._announcements.generation)
            event = e.MasterRestarted(last + 1, self._resources.adopted)
            self._log.record(event, self._now())
            return state, state.step(event, self._now())
        if self._resources.adopted:
            raise StorageError(f"{self._job_dir.state}: containers run, but nothing was logged")
        state = first_state(self._runtime, self._announcements.generation + 1)
        history = earlier_history(self._runtime, self._job_dir)
        state.progress.restore(history)
        if history:
            # The time of a job that was resumed goes on where its history ends.
            self._started_s -= history[-1].completed_s
        commands = list(state.start(self._now()))
        self._log.begin(state, self._now())
        return state, commands

    # ---- asked by servicers, on their threads

    def put(self, *events: e.Event) -> None:
        """Queue events, in order."""
        for event in events:
            self._events.put(event)

    def status(self) -> dict[str, Any]:
        """Return what ``eps status`` shows."""
        with self._changed:
            return self._status()

    def _status(self) -> dict[str, Any]:
        found = records.status(self._runtime, self._state, 0.0, self._now())
        errors = [error for error in (self._log.error, *self._notes.errors.values(), self._exporter.waits) if error]
        silent_s = self._resources.silent_s()
        hangs = silent_s >= self._runtime.spec.member_timeout_s
        return {
            **found,
            "generation": self._state.masters.generation,
            "storage_error": "; ".join(errors),
            "resources_error": records.RESOURCES_HANG.format(silent_s=silent_s) if hangs else "",
        }

    # ---- the owner thread

    def run(self) -> int:
        """Serve until the job has ended; return the exit code."""

        def register(server: Any) -> None:
            add_JobMasterServicer_to_server(self._service, server)
            self._sessions.register(server)

        server = self._server.start(register)
        metrics = serve_metrics(self._runtime.spec.metrics_port, self.status)
        self._containers.listen()
        place = self._server.address
        self._announcements.add(
            {"host": place.host, "port": place.port, "pid": os.getpid(), "generation": self._state.masters.generation}
        )
        self._checkpoints.begin(pending_name(self._state.checkpoints))
        self._pulse.start()
        self._execute(self._first_commands)
        while self._ended is None:
            self._step(self._next_event())
        self._farewell()
        self._patiently(partial(self._exporter.close, BRINGING_S), SYNC_PATIENCE_S)
        self._patiently(self._checkpoints.close, SYNC_PATIENCE_S)
        self._patiently(self._write_report, REPORT_PATIENCE_S)
        self._patiently(self._bring_results, RESULTS_PATIENCE_S)
        if metrics is not None:
            metrics.close()
        self._sessions.close()
        server.stop(0.5).wait(2.0)
        self._notes.close()
        # A snapshot that is being written ends first.
        self._patiently(self._log.close, SYNC_PATIENCE_S)
        self._pulse.stop()
        return self._finish()

    def _next_event(self) -> e.Event:
        """Return the next event; a tick is due every :data:`TICK_S`, however busy the queue is."""
        self._pulse.note()
        wait_s = self._tick_due_s - time.monotonic()
        if wait_s > 0:
            try:
                return self._events.get(timeout=wait_s)
            except queue.Empty:
                pass
        self._tick_due_s = time.monotonic() + TICK_S
        if self._notes.status_is_due:
            self._patiently(lambda: self._notes.status(self.status()), SYNC_PATIENCE_S)
        self._look_for_silence()
        self._look_for_room()
        return e.Tick(self._resources.silent_s())

    def _look_for_room(self) -> None:
        """Let a job that has made room for others grow back when no other application wants that room any more."""
        if self._state.looks_for_room:
            fits = {Role(role): number for role, number in self._resources.room().items() if number}
            if fits:
                self.put(e.RoomSeen(fits))

    def _look_for_silence(self) -> None:
        """Give up the members that hang, and kill them: what they still did could harm."""
        for container_id, reason in self._sessions.silent(self._runtime.spec.member_timeout_s):
            if self._ended is None:
                logger.warning("M %s %s: it is lost", container_id, reason)
                self.put(e.MemberLost(container_id, reason))
                self._sessions.dismiss(container_id, f"declared lost: it {reason}")
                self._resources.kill(container_id)

    def _beat(self) -> None:
        """Tell the supervisor that the owner thread lives, and how far the job is; on the thread that beats."""
        progress = self._state.progress.completed + len(self._state.members.memberships)
        exports = self._state.state is JobState.EXPORTING
        self._resources.beat(progress, EXPORT_PATIENCE_S if exports else 0.0)

    def _step(self, event: e.Event) -> None:
        now_s = self._now()
        self._patiently(partial(self._log.record, event, now_s), SYNC_PATIENCE_S)
        with self._changed:
            before = self._state.state, self._state.plans.driver and self._state.plans.driver.plan.phase
            commands = self._state.step(event, now_s)
            after = self._state.state, self._state.plans.driver and self._state.plans.driver.plan.phase
            if before != after or any(isinstance(c, e.Answer | e.EndJob) for c in commands):
                self._changed.notify_all()
            parts = None if self._state.state in ENDED_STATES else self._log.due(self._state, now_s)
        if parts is not None:
            self._patiently(partial(self._log.shorten, parts, now_s), SYNC_PATIENCE_S)
        if self._watch is not None:
            self._watch(self._state, False)
        self._execute(commands)
        if self._watch is not None:
            self._watch(self._state, True)

    def _execute(self, commands: list[e.Command]) -> None:
        for command in commands:
            self._pulse.note()
            match command:
                case e.Send(to, order):
                    self._sessions.send(to, order)
                case e.Journal(record, sync):
                    self._patiently(partial(self._write_record, record, sync), SYNC_PATIENCE_S)
                case e.RequestContainer(container_id, roles):
                    self._containers.request(container_id, roles)
                case e.ReleaseContainer(container_id):
                    # Its process ends by itself as well, where the resource manager cannot reach it.
                    self._sessions.dismiss(container_id, "the job does not count on this process any more")
                    self._resources.release(container_id)
                case e.KillContainer(container_id):
                    self._sessions.dismiss(container_id, "declared lost: other members cannot reach it")
                    self._resources.kill(container_id)
                case e.Name(container_id, name):
                    membership = self._state.membership
                    servers = () if membership is None else [membership.addresses[s] for s in membership.servers]
                    self._sessions.name(container_id, name, servers)
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
        logger.info("M %s", record)
        if sync:
            self._log.sync(self._now())
        self._notes.journal(record, sync=sync)

    def _patiently(self, work: Callable[[], None], most_s: float) -> None:
        """Do what the disk, or another process, may keep waiting for that long: the supervisor is told meanwhile."""
        with self._pulse.patience(most_s):
            work()

    def _bring_model(self) -> None:
        """Bring the model where the next master's is, too: when the job has finished, it cannot be made again."""

    # ---- the end

    def _farewell(self) -> None:
        """Wait until the members that were told to end have ended; the supervisor ends the rest."""
        deadline = time.monotonic() + FAREWELL_S
        while self._containers and time.monotonic() < deadline:
            event = self._next_event()
            if not isinstance(event, e.Tick):
                self._step(event)

    def _write_report(self) -> None:
        with self._changed:
            exported = self._state.export.found
            report = records.report(
                self._runtime,
                self._state,
                records.Ledger(**exported["ledger"]) if exported else None,
                exported["model_sha256"] if exported else "",
                exported["test_metrics"] if exported else {},
                0.0,
                self._now(),
            )
        try:
            write_json_atomic(self._job_dir.report, report, sync=False)
        except StorageError as error:
            logger.exception("M the report cannot be written")
            model = self._job_dir.model if exported else None
            before = self._ended.reason if self._ended is not None else ""
            self._ended = e.EndJob(JobState.FAILED, why_no_report(error, model, before))

    def _bring_results(self) -> None:
        """Bring report and model of a detached job to their places; where that fails, the job's end says so."""
        assert self._ended is not None
        if failed := self._deliver():
            self._ended = replace(self._ended, reason="; ".join(filter(None, [self._ended.reason, failed])))

    def _deliver(self) -> str:
        return deliver_detached(self._job_dir)

    def _finish(self) -> int:
        assert self._ended is not None
        exit_code = 0 if self._ended.state is JobState.FINISHED else 1
        self._resources.end_job(exit_code, str(self._ended.state), self._ended.reason)
        return exit_code


def run(context: ContainerContext, watch: Callable[[Job, bool], None] | None = None) -> int:
    """Run the job master's process; ``watch`` as of :class:`Master`."""
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    job_dir = JobDir(context.job_dir)
    runtime = Runtime.of_job(job_dir)
    assert context.supervisor_fd is not None
    supervisor = LocalResourceManager(context.supervisor_fd, runtime.spec.max_containers, context.running)
    supervisor.beat(NO_NEWS, START_PATIENCE_S)
    resources: ResourceManager = supervisor
    try:
        resources = open_resources(runtime.spec, runtime.dataset_dir, job_dir, supervisor, context.entry_points)
        security = Security.of_job(job_dir.path)
        server, announcements = open_place(job_dir, security)
        return Master(runtime, job_dir, resources, security, watch, server=server, announcements=announcements).run()
    except (StorageError, ResourceError, ConfigError) as error:
        logger.exception("M cannot go on")
        resources.end_job(1, str(JobState.FAILED), f"the job master cannot go on: {error}")
        return 1
    finally:
        leave_supervisor(supervisor, runtime.spec.member_timeout_s)
        resources.close()
        supervisor.close()
