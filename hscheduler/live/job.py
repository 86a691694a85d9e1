"""One real job under H-scheduler: starts it, changes its size, watches it, ends it.

Orders are obeyed one after the other on a thread of the job, but for the one to end, which waits for nothing, and one
to shrink, which has the growth before it aborted; another thread watches the job.  What happens is said as events of
the scheduler's state, whatever it is: a job of which something unforeseen is found is killed, and said to have failed.

Source: EPS §5.1 (the scheduler calls the four operations of each job's master).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from queue import SimpleQueue
from typing import Any

from eps.cluster.supervisor.start import WarmSupervisor
from eps.core.reconfig import Operation
from eps.errors import (
    DeadlineError,
    EpsError,
    JobFinishedError,
    PeerUnavailableError,
    TrainingError,
    UnknownMemberError,
)
from eps.job.client import ChangeRecord, Job, SpareSupervisor
from eps.job.status import WAITING_STATES
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import read_json
from eps.storage.record import NO_WORD
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Container, Role
from hscheduler.live.growth import Growth
from hscheduler.live.places import Places, Seat, names_of
from hscheduler.live.standstill import Standstill
from hscheduler.reports.history import feedback_of, number, some_losses

logger = logging.getLogger(__name__)

#: A job has this long to end after it was told to; then its processes are ended.
END_TIMEOUT_S = 10.0
#: One that is not of this host: what it leaves is fetched when its cluster says that it has ended.
END_ELSEWHERE_TIMEOUT_S = 60.0
#: A change whose outcome is not known is asked for again so often.
_MOST_TRIES = 3
_PHASES = {"finished": Phase.FINISHED, "killed": Phase.KILLED}
_ADD = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}
_REMOVE = {Role.WORKER: Operation.REMOVE_WORKERS, Role.SERVER: Operation.REMOVE_SERVERS}


class LiveJob:
    """A job of this host.

    Parameters
    ----------
    job_id : str
        In the sweep.
    name : str
        Of the job under ``EPS_HOME``.
    spec : JobSpec
        Its size is that of the containers that it is started in.
    metric : str
        ``loss``, or a metric of the test data as the report's history names it.
    feedback_iteration : int
    say : callable
        Takes events, from any thread.
    restart_s : float, seconds
        A declared delay of a restart, from the order to end until the end is said; 0.0 is what it takes.
    detached : bool
        It goes on when this process ends.
    manager : str
        In whose name its size is changed; nobody else may: its containers are granted by one scheduler.
    spare : SpareSupervisor, optional
        For the next job of this process; without one every job waits for the imports of its processes.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        spec: JobSpec,
        metric: str,
        feedback_iteration: int,
        say: Callable[[e.Event], None],
        restart_s: float = 0.0,
        detached: bool = False,
        manager: str = "H-scheduler",
        spare: SpareSupervisor | None = None,
    ) -> None:
        self.job_id = job_id
        self.name = name
        #: Its own report, once it has ended.
        self.report: dict[str, Any] | None = None
        #: Seconds that changes of its size cost, as its own reports have them.
        self._changes_s = 0.0
        self._spec = spec
        self._metric = metric
        self._feedback_iteration = feedback_iteration
        self._say = say
        self._restart_s = restart_s
        self._end_timeout_s = END_TIMEOUT_S if spec.on == "local" else END_ELSEWHERE_TIMEOUT_S
        #: Its threads have this long to come to an end after that.
        self._join_s = 2 * self._end_timeout_s
        self._detached = detached
        self._manager = manager
        self._spare = spare
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._job: Job | None = None
        #: A start was ordered and has not been carried out: an end has to wait for it.
        self._starting = False
        self._places = Places()
        self._growth = Growth(self._abort)
        self._has_feedback = False
        #: The last clock that was seen, and the last one during which a change of size went on.
        self._seen_clock = self._changed_clock = -1
        #: When the last clock ended that was seen of this part of the job; NaN before the first.
        self._seen_s = math.nan
        self._why = ""
        self._gave_up = False
        self._standstill = Standstill()
        self._closing = threading.Event()
        self._leaving = False
        #: Ends the part of the job that is to be started again.
        self._ending: threading.Thread | None = None
        #: It is said which members are in which containers: nobody is to grow or shrink it before.
        self._placed = threading.Event()
        #: Whether another process may have carried out the first start.
        self._may_be_there = False
        self._thread = threading.Thread(target=self._serve, name=f"orders of {name}", daemon=True)
        self._watcher: threading.Thread | None = None
        self._thread.start()

    def obey(self, number: int, order: e.Order) -> None:
        """Take an order; returns at once.

        Parameters
        ----------
        number : int
            The same number again is the same order: it is carried out once.
        order : Order
        """
        with self._lock:
            if isinstance(order, e.StartJob):
                self._starting = True
            elif isinstance(order, e.EndJob) and self._job is not None and not self._starting:
                # Not behind a change that waits for the end of a long iteration.
                self._ending = threading.Thread(target=self._end, args=(order,), name=f"end {self.name}", daemon=True)
                self._ending.start()
                return
            elif isinstance(order, e.GrowJob):
                self._growth.ordered()
            elif isinstance(order, e.ShrinkJob):
                # Nobody waits for the end of a growth that is not wanted any more.
                self._growth.give_up()
        self._orders.put(lambda: self._do(number, order))

    def go_on(self, iteration: int, seats: Mapping[str, Seat], has_feedback: bool, has_started: bool) -> None:
        """Take up a job that another process may have started; returns at once.

        Parameters
        ----------
        iteration : int
            How far it was.
        seats : mapping
            Container -> who is in it.
        has_feedback : bool
            Its early feedback is known.
        has_started : bool
            It is known to have started; else an order to start it follows.
        """
        self._has_feedback = has_feedback
        self._places.set(seats)
        # Of the rest nobody was told.
        self._seen_clock = iteration - 1 if has_feedback else -1
        self._changed_clock = iteration
        self._may_be_there = True
        if has_started:
            with self._lock:
                self._starting = True
            self._orders.put(self._take_up)

    @property
    def pause_s(self) -> float:
        """Seconds that changes of its size cost: those that it went on during, and those for which it was restarted."""
        return self._changes_s + self._standstill.total_s

    @property
    def is_alive(self) -> bool:
        """Whether any of its threads is there: that of its orders is until it is let go of, or ended."""
        return self._thread.is_alive() or (self._watcher is not None and self._watcher.is_alive())

    def retire(self) -> None:
        """Let go of a job that has ended; returns at once."""
        self._orders.put(None)

    def leave(self) -> None:
        """Let go of the job, which goes on, after what it is told to do just now."""
        self._leaving = True
        self._orders.put(None)
        self._thread.join(self._join_s)

    def close(self) -> None:
        """End the job, wherever it is, and wait for its threads."""
        self._closing.set()
        self._orders.put(None)
        with self._lock:
            job = None if self._starting else self._job
        if job is not None:
            self._kill("the sweep ends")
        self._thread.join(self._join_s)
        if self._watcher is not None:
            self._watcher.join(self._join_s)

    # ---- orders

    def _serve(self) -> None:
        try:
            while (task := self._orders.get()) is not None and not self._leaving:
                task()
        finally:
            if self._job is not None:
                if not self._leaving:
                    self._kill("the sweep ends")
                self._job.close()

    def _give_up(self, why: str) -> None:
        """End a job of which nobody knows how it is."""
        logger.exception("%s: %s", self.name, why)
        self._why, self._gave_up = self._why or why, True
        self._placed.set()
        if self._job is None:
            self._say(e.JobEnded(self.job_id, Phase.FAILED, why))
        else:
            # Its watcher says that it has ended.
            self._kill(why)

    def _do(self, number: int, order: e.Order) -> None:
        try:
            match order:
                case e.StartJob(_, containers, resumes):
                    self._start(containers, resumes)
                case e.GrowJob(_, containers):
                    self._grow(number, containers)
                case e.ShrinkJob(_, containers):
                    self._shrink(number, containers)
                case e.EndJob():
                    self._end(order)
        except JobFinishedError:
            # Its watcher says so.
            logger.info("%s ended before it was told: %s", self.name, type(order).__name__)
        except Exception as error:
            self._give_up(f"{type(order).__name__} failed: {type(error).__name__}: {error}")

    def _take_up(self) -> None:
        """Watch a job that is there already."""
        try:
            self._find_again()
        except Exception as error:
            with self._lock:
                self._starting = False
            self._give_up(f"it cannot go on: {_told(error)}")

    def _find_again(self) -> None:
        self._may_be_there = False
        found = Job.find(self.name)
        if found.running or self._end_of(found) is not None:
            self._placed.set()
            self._begin_to_watch(found)
            return
        # It was lost without a word, with the machine, say.
        found.close()
        by_role, _ = self._places.by_role([place for place, _ in self._places.items()])
        places = {role: by_role.get(role, []) for role in (Role.WORKER, Role.SERVER)}
        self._begin_to_watch(self._resumed(places))
        self._find_members(places)
        self._say_members()

    @staticmethod
    def _end_of(job: Job) -> str | None:
        """Return how a job ended; None where no process has seen that."""
        end = job.directory.ended()
        return None if end is None or end.is_lost else end.state

    def _is_there(self, resumes: bool) -> bool:
        """Return whether a start that was ordered before was carried out then."""
        may, self._may_be_there = self._may_be_there, False
        if not may:
            return False
        try:
            found = Job.find(self.name)
        except EpsError:
            return False
        with closing(found):
            # Before a restart it was killed; what has ended in another way is what was started then.
            state = (read_json(found.directory.report) or {}).get("state") or self._end_of(found)
            return found.running or (state is not None and not (resumes and state == "killed"))

    def _begin_to_watch(self, job: Job) -> None:
        with self._lock:
            self._job, self._starting = job, False
        self._watcher = threading.Thread(target=self._watch, name=f"watch {self.name}", daemon=True)
        self._watcher.start()

    def _start(self, containers: Sequence[Container], resumes: bool) -> None:
        members = {role: [c.container_id for c in containers if c.role is role] for role in (Role.WORKER, Role.SERVER)}
        workers, servers = members[Role.WORKER], members[Role.SERVER]
        self._why, self._gave_up = "", False
        if self._ending is not None:
            # It would take what is started now for what it is to end.
            self._ending.join(self._join_s)
        self._placed.clear()
        again = self._may_be_there
        try:
            if self._closing.is_set():
                raise TrainingError("the sweep ends")
            if self._is_there(resumes):
                started = Job.find(self.name)
            elif resumes:
                if self._job is not None:
                    # The part before has ended, and nobody watches it any more.
                    self._job.close()
                    self._job = None
                started = self._resumed(members)
            else:
                spec = dataclasses.replace(self._spec, workers=len(workers), servers=len(servers))
                # Of a start that was cut short there may be a directory; of one that a journal forgot when the power
                # went there may be checkpoints.
                anew = again or self._detached
                request = RunRequest.of_spec(spec, self.name, anew=anew, manager=self._manager)
                started = Job.start_request(request, detach=self._detached, warm=self._warm())
        except EpsError as error:
            with self._lock:
                self._starting = False
            self._say(e.JobEnded(self.job_id, Phase.FAILED, f"it could not be started: {error}"))
            return
        self._places.set({} if resumes else self._numbered(members))
        self._begin_to_watch(started)
        if resumes:
            # The numbers of members go on.
            self._find_members(members)
        self._say_members()

    def _resumed(self, places: Mapping[Role, Sequence[str]]) -> Job:
        workers, servers = len(places[Role.WORKER]), len(places[Role.SERVER])
        return Job.resume(self.name, workers=workers, servers=servers, detach=self._detached, warm=self._warm())

    def _warm(self) -> WarmSupervisor | None:
        # One of this host begins no job elsewhere.
        return None if self._spare is None or self._spec.on != "local" else self._spare.take()

    @staticmethod
    def _numbered(members: dict[Role, list[str]]) -> dict[str, Seat]:
        return {
            container_id: Seat(f"{role}-{number}", role)
            for role, container_ids in members.items()
            for number, container_id in enumerate(container_ids, 1)
        }

    def _find_members(self, places: Mapping[Role, Sequence[str]]) -> None:
        assert self._job is not None
        self._job.wait_until_trains()
        status = self._job.status()
        for role, there in places.items():
            self._places.put(there, names_of(role, status), role)

    def _say_members(self) -> None:
        self._say(e.MembersFound(self.job_id, self._places.items()))
        self._placed.set()

    def _grow(self, number: int, containers: Sequence[Container]) -> None:
        failed: list[str] = []
        why = ""
        for role, places in _by_role(containers).items():
            try:
                # Also where it is not wanted any more: another process may have carried it out before.
                record = self._change(number, _ADD[role], len(places), on_news=self._growth.note)
            except JobFinishedError:
                raise
            except (DeadlineError, PeerUnavailableError):
                # Whether it happened is not known.
                raise
            except EpsError as error:
                failed, why = failed + places, str(error)
                continue
            self._places.put(places, record["added"], role)
        self._growth.over()
        members = self._places.items()
        if failed:
            self._say(e.GrowthFailed(self.job_id, tuple(failed), why, members))
        else:
            self._say(e.GrowthDone(self.job_id, members))

    def _abort(self, plan_id: int) -> None:
        # Over a line of its own: the job's is waiting for the end of this plan.
        try:
            with closing(Job.find(self.name)) as job:
                job.cancel(plan_id)
        except EpsError as error:
            # It is committed: the shrink comes after it.
            logger.info("%s: plan %d goes on: %s", self.name, plan_id, error)

    def _shrink(self, number: int, places: Sequence[str]) -> None:
        by_role, nobody_there = self._places.by_role(places)
        for role, group in by_role.items():
            try:
                self._remove(number, role, group)
            except (JobFinishedError, DeadlineError, PeerUnavailableError):
                raise
            except EpsError as error:
                self._say(e.ShrinkFailed(self.job_id, tuple(group), str(error)))
            else:
                self._places.drop(group)
                self._say(e.ContainersGone(self.job_id, tuple(group)))
        if nobody_there:
            # As where a growth was said to have failed meanwhile, or the cluster took it: somebody may be waiting for
            # the place all the same.
            self._say(e.ContainersGone(self.job_id, tuple(nobody_there)))

    def _remove(self, number: int, role: Role, places: Sequence[str]) -> None:
        try:
            self._change(number, _REMOVE[role], self._places.members(places))
        except UnknownMemberError:
            # Lost members were replaced: in their places are others.  It is another change then.
            assert self._job is not None
            status = self._job.status()
            self._say_taken(status)
            self._places.find_replacements(role, status)
            self._say_members()
            if there := self._places.members(places):
                self._change(number, _REMOVE[role], there, "-of-others")

    def _say_taken(self, status: Mapping[str, Any]) -> None:
        """Say which of the job's containers the cluster has taken since this was asked last."""
        for why, places in self._places.take_away(status).items():
            self._say(e.ContainersGone(self.job_id, tuple(places), why))

    def _change(
        self,
        number: int,
        operation: Operation,
        what: int | list[str],
        more: str = "",
        on_news: Callable[[ChangeRecord], None] | None = None,
    ) -> ChangeRecord:
        """Change the job's size; where nobody answers, ask again for the same change."""
        assert self._job is not None
        # The same in every process that carries out this order.
        request_id = f"{self.name}-order-{number}-{operation}{more}"
        for tries_left in reversed(range(_MOST_TRIES)):
            try:
                record = self._job.change(
                    operation, what, request_id=request_id, on_news=on_news, manager=self._manager
                )
                break
            except (DeadlineError, PeerUnavailableError):
                if not tries_left:
                    raise
        self._changed_clock = max(self._changed_clock, int(record["committed_clock"] or 0))
        return record

    def _end(self, order: e.EndJob) -> None:
        self._why = order.why
        self._standstill.told(order.restarts)
        if self._job is not None:
            self._kill(order.why)

    def _kill(self, why: str) -> None:
        try:
            if self._job is not None and self._job.directory.ended() is not None:
                # Whoever finds it would have fetched what it has left, and wait for that.
                return
            # Over a line of its own: others may be waiting for an answer on the job's.
            job = Job.find(self.name)
            try:
                job.kill(why, self._end_timeout_s)
            finally:
                job.close()
        except EpsError as error:
            logger.warning("%s: %s; it is ended at once", self.name, error)
            if self._job is not None:
                self._job.kill_at_once()

    # ---- news

    def _watch(self) -> None:
        job: Job | None = None
        try:
            job = Job.find(self.name)
            self._follow(job)
            self._ended(job.wait(self._end_timeout_s))
        except Exception as error:
            why = _told(error)
            _log(error, f"{self.name} cannot be watched")
            self._kill(why)
            phase = Phase.KILLED if self._is_ended_for_good() else Phase.FAILED
            self._say(e.JobEnded(self.job_id, phase, self._why or why))
        finally:
            if job is not None:
                job.close()

    def _is_ended_for_good(self) -> bool:
        """Return whether the job was told to end, not to start again: it is not tried again, whatever it has left."""
        return bool(self._why) and not self._gave_up and self._standstill.told_before_s() is None

    def _follow(self, job: Job) -> None:
        started, self._seen_s = False, math.nan
        part, iterated = self._standstill.begun(), False
        for progress in job.watch(self._seen_clock):
            if not started and progress.status["state"] not in WAITING_STATES:
                started = True
                # In this order: a scheduler that is killed between them has it started again, and looks for members.
                self._placed.wait(self._join_s)
                self._say(e.JobStarted(self.job_id))
                if self._spare is not None:
                    # For the next job, now that this one does without the processors that it takes.
                    self._spare.refill()
            if started:
                self._say_taken(progress.status)
            if not progress.history:
                continue
            if started and not iterated:
                iterated = True
                self._standstill.iterated(part)
            self._say_iterated(progress.history)
            self._seen_clock = int(progress.history[-1]["clock"])
            self._look_for_feedback(progress.history)

    def _say_iterated(self, history: Sequence[dict[str, Any]]) -> None:
        """Say what has not been seen before: iterations, how long they took, their losses."""
        durations = []
        for entry in history:
            now_s = float(entry["seconds"])
            # Of an iteration during which the size was changed nothing can be learnt.
            if now_s >= self._seen_s and entry["clock"] > self._changed_clock + 1:
                durations.append(now_s - self._seen_s)
            self._seen_s = now_s
        self._say(e.Iterated(self.job_id, int(history[-1]["clock"]) + 1, tuple(durations), some_losses(history)))

    def _look_for_feedback(self, history: Sequence[dict[str, Any]]) -> None:
        for entry in history:
            # Clocks are counted from 0.
            if self._has_feedback or entry["clock"] + 1 < self._feedback_iteration:
                continue
            feedback = feedback_of(entry, self._metric)
            if feedback is not None:
                self._has_feedback = True
                self._say(e.FeedbackGiven(self.job_id, feedback))

    def _ended(self, report: dict[str, Any]) -> None:
        self.report = report
        self._changes_s += sum(change["pause_s"] for change in report["changes"] if change.get("pause_s"))
        # Of those whose supervisor has crashed nobody has ended any.
        crashed = self._gave_up or (not self._why and report.get("reason") == NO_WORD)
        phase = Phase.FAILED if crashed else _PHASES.get(report["state"], Phase.FAILED)
        history = report["history"]
        unseen = [entry for entry in history if entry["clock"] > self._seen_clock]
        if unseen:
            # It may be over before anybody has looked.
            self._say_iterated(unseen)
        found = [(entry["clock"] + 1, entry[self._metric]) for entry in history if self._metric in entry]
        feedback = loss = None
        if phase is Phase.FINISHED and found:
            loss = number(found[-1][1])
            if not self._has_feedback:
                asked = (value for iteration, value in found if iteration >= self._feedback_iteration)
                # It had fewer iterations, or is evaluated less often.
                feedback = number(next(asked, found[-1][1]))
        told_before_s = self._standstill.told_before_s()
        if phase is not Phase.KILLED or told_before_s is None:
            self._standstill.over()
        else:
            self._closing.wait(max(0.0, self._restart_s - told_before_s))
        why = self._why or str(report.get("reason") or "")
        self._say(e.JobEnded(self.job_id, phase, why, feedback, loss, self.pause_s))


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, EpsError) else f"{type(error).__name__}: {error}"


def _log(error: Exception, what: str) -> None:
    """Log an error, one of ours without a traceback: why a job failed is said to whoever watches."""
    if isinstance(error, EpsError):
        logger.info("%s: %s", what, error)
    else:
        logger.error("%s", what, exc_info=error)


def _by_role(containers: Sequence[Container]) -> dict[Role, list[str]]:
    found: dict[Role, list[str]] = {}
    for container in containers:
        found.setdefault(container.role, []).append(container.container_id)
    return found
