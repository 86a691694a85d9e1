"""State of one real job of a sweep: events in, actions out.

The shell (:mod:`hscheduler.live.job`) reports orders and observations to :class:`JobState`.  It passes the events that
a method returns to the scheduler, and carries out the actions of :meth:`JobState.next_action` one after the other.

Source: EPS §5.1 (the scheduler calls the four operations of each job's master); EPS §5.2 and :mod:`eps.core.evictions`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from eps.core.reconfig import Operation
from eps.core.reconfig import Phase as PlanPhase
from eps.core.tiers import deltas_text, without_text
from eps.core.types import Tier
from eps.errors import DIVERGED, TrainingError
from eps.job.status import WAITING_STATES
from eps.ml.metrics import APPROXIMATE
from eps.storage.record import SUPERVISOR_KILLED
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Container, Role
from hscheduler.core.rungs import NO_RUNGS, Rungs
from hscheduler.reports.history import feedback_of, number, some_losses, some_values
from hscheduler.stopping.divergence import LossWatch

#: How long a job that is to pause may wait for the checkpoint of its rung, seconds; then it pauses with an earlier one.
PAUSE_LIMIT_S = 10.0
#: Attempts to request a change whose outcome is unknown.
_MOST_TRIES = 3
_PHASES = {"finished": Phase.FINISHED, "killed": Phase.KILLED}
_ADD = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}
_REMOVE = {Role.WORKER: Operation.REMOVE_WORKERS, Role.SERVER: Operation.REMOVE_SERVERS}
#: Outcomes of an eviction after which the member no longer runs: see :class:`eps.core.evictions.EvictionOutcome`.
_GONE = ("drained", "late", "lost")
#: The requester of changes whose new members run in containers that the scheduler granted.
_USER = "user"


@dataclass(frozen=True, slots=True)
class Seat:
    """The member that runs in a container."""

    #: Of a container that hosts a worker and a server, its own name in the job.
    name: str
    role: Role


class Places:
    """The member in each granted container of a job, and which containers the cluster has taken.

    A job that loses a member without a warning starts a new one in the same container.  After an eviction the container
    is lost: the job replaces the member only if no other one has the same role.
    """

    def __init__(self) -> None:
        #: By container id.
        self._seats: dict[str, Seat] = {}

    def __contains__(self, place: str) -> bool:
        return place in self._seats

    def items(self) -> tuple[tuple[str, str], ...]:
        """Return pairs of container and member."""
        return tuple((place, seat.name) for place, seat in self._seats.items())

    def set(self, seats: Mapping[str, Seat]) -> None:
        """Replace all entries."""
        self._seats = dict(seats)

    def put(self, places: Iterable[str], names: Iterable[str], role: Role) -> None:
        """Add members of a role to containers, pairwise; ignore what is left of the longer list."""
        self._seats.update((place, Seat(name, role)) for place, name in zip(places, names, strict=False))

    def drop(self, places: Iterable[str]) -> None:
        """Remove containers; ignore unknown ones."""
        for place in places:
            self._seats.pop(place, None)

    def members(self, places: Sequence[str]) -> list[str]:
        """Return the members in these containers; skip containers without a member."""
        return [self._seats[place].name for place in places if place in self._seats]

    def by_role(self, places: Sequence[str]) -> tuple[dict[Role, list[str]], list[str]]:
        """Return the containers with a member by its role, and those without one."""
        found: dict[Role, list[str]] = {}
        empty = []
        for place in places:
            if place in self._seats:
                found.setdefault(self._seats[place].role, []).append(place)
            else:
                empty.append(place)
        return found, empty

    def find_replacements(self, role: Role, status: Mapping[str, Any]) -> None:
        """Assign members without a container to the containers of members that the status no longer lists."""
        there = names_of(role, status)
        seated = self._names()
        free = [name for name in there if name not in seated]
        for place, seat in self._seats.items():
            if seat.role is role and seat.name not in there and free:
                self._seats[place] = Seat(free.pop(0), role)

    def take_away(self, status: Mapping[str, Any]) -> dict[str, list[str]]:
        """Remove the containers that the cluster has taken; assign replacements to the containers of evicted members.

        Parameters
        ----------
        status : mapping
            Of the job, as ``eps status --json`` prints it.

        Returns
        -------
        dict
            Reason of the eviction, as a sentence -> containers.
        """
        evictions = (status.get("evictions") or {}).get("members", ())
        key = "container" if _hosts(status) else "name"
        gone = {each[key]: str(each["reason"]) for each in evictions if each["outcome"] in _GONE}
        taken: dict[str, list[str]] = {}
        if not gone:
            return taken
        for place, seat in list(self._seats.items()):
            mine = names_of(seat.role, status)
            if seat.name not in gone or seat.name in mine:
                continue
            new = [other for other in mine if other not in self._names() and other not in _added(status)]
            if new:
                # The job replaced it, because no other member had this role.
                self._seats[place] = replace(seat, name=new[0])
            elif mine:
                del self._seats[place]
                taken.setdefault(f"its container {gone[seat.name]}", []).append(place)
        return taken

    def _names(self) -> list[str]:
        return [seat.name for seat in self._seats.values()]


def names_of(role: Role, status: Mapping[str, Any]) -> list[str]:
    """Return the names of the members of a role in a job's status, or of containers that host a worker and a server."""
    if _hosts(status):
        return sorted({str(member["container"]) for member in status["members"]})
    return [str(member["name"]) for member in status["members"] if member["role"] == role]


def _hosts(status: Mapping[str, Any]) -> bool:
    """Return whether the containers of a job host a worker and a server each."""
    return "tiers" in status


def _added(status: Mapping[str, Any]) -> set[str]:
    """Return the members that a user's changes added, not those that the job added as replacements."""
    plans = [plan for plan in (status.get("plan"), *status.get("queued", ()), *status.get("changes", ())) if plan]
    return {str(name) for plan in plans if plan["asked_by"] == _USER for name in added_by(plan)}


def added_by(change: Mapping[str, Any]) -> Sequence[str]:
    """Return the members that a change added, or the containers that host a worker and a server."""
    containers = change.get("containers")
    found: Sequence[str] = change["added"] if containers is None else containers["added"]
    return found


class HistoryReader:
    """Derive events from a job's history; remember which entries were read.

    Parameters
    ----------
    job_id : str
    metric : str
        ``loss``, or a metric of the test data as the report's history names it.
    feedback_iteration : int
    rungs : Rungs
        Iterations at which the stopping rule judges the job.
    iterations : int, optional
        Its total: the evaluation of the final parameters, which a job reports as one clock more, is no iteration.
    """

    def __init__(
        self,
        job_id: str,
        metric: str,
        feedback_iteration: int,
        rungs: Rungs = NO_RUNGS,
        iterations: int | None = None,
    ) -> None:
        self._job_id, self._metric, self._feedback_iteration = job_id, metric, feedback_iteration
        self._rungs, self._iterations = rungs, iterations
        #: The number of the next rung.
        self._next_rung = 0
        #: Values at rungs, by iteration; a paused job reports those again that it passed before it stopped.
        self._values: dict[int, float] = {}
        self.has_feedback = False
        self._losses = LossWatch()
        self._has_diverged = False
        #: The last clock that was read.
        self.seen_clock = -1
        #: End of the last clock that was read of this attempt, in seconds; NaN before the first.
        self._seen_s = math.nan

    def restore(self, iteration: int, has_feedback: bool, num_rungs: int = 0) -> None:
        """Resume from the state that another process recorded."""
        self.has_feedback, self._next_rung = has_feedback, num_rungs
        # Read the history again from where feedback or a rung is missing: that part may have been read before.
        rung = self._rungs.at(num_rungs)
        seen = iteration if rung is None else min(iteration, rung - 1)
        self.seen_clock = seen - 1 if has_feedback else -1

    def rewind(self, rung: int) -> None:
        """Return to a rung, in iterations: the job resumes from there and reports what follows again."""
        while self._next_rung and (self._rungs.at(self._next_rung - 1) or 0) > rung:
            self._next_rung -= 1
        self.seen_clock = min(self.seen_clock, rung - 1)

    def attempt_started(self) -> None:
        """Note that an attempt of the job starts."""
        self._seen_s = math.nan
        self._losses.restart()

    def iterated(self, history: Sequence[dict[str, Any]], changed_clock: int) -> e.Iterated:
        """Return the new iterations, their durations and their losses.

        Parameters
        ----------
        history : sequence
        changed_clock : int
            The last clock during which a change of size was in progress.
        """
        durations = []
        for entry in history:
            now_s, clock = float(entry["seconds"]), int(entry["clock"])
            # The duration of an iteration during which the size changed says nothing about either size.
            if now_s >= self._seen_s and clock > changed_clock + 1:
                # A callable may report every tenth iteration.
                durations.append((now_s - self._seen_s) / max(1, clock - self.seen_clock))
            self._seen_s, self.seen_clock = now_s, clock
        losses, values = some_losses(history), some_values(history, self._metric)
        complete = self.seen_clock + 1 if self._iterations is None else min(self.seen_clock + 1, self._iterations)
        return e.Iterated(self._job_id, complete, tuple(durations), losses, values)

    def feedback(self, history: Sequence[dict[str, Any]]) -> list[e.Event]:
        """Return the early feedback once it is available.  Raises TrainingError if the history has no such metric."""
        for entry in history:
            # Clocks are counted from 0.
            if not self.has_feedback and entry["clock"] + 1 >= self._feedback_iteration:
                value = feedback_of(entry, self._metric)
                if value is not None:
                    self.has_feedback = True
                    return [e.FeedbackGiven(self._job_id, value)]
        return []

    def reached(self, history: Sequence[dict[str, Any]]) -> list[e.Event]:
        """Return the rungs that the job has reached.  Raises TrainingError if the history has no such metric."""
        said: list[e.Event] = []
        for entry in history:
            # Test data may be evaluated later than the rung.
            while (rung := self._rungs.at(self._next_rung)) is not None and entry["clock"] + 1 >= rung:
                value = self._values.get(rung)
                value = feedback_of(entry, self._metric) if value is None else value
                if value is None:
                    break
                self._values[rung] = value
                self._next_rung += 1
                said.append(e.RungReached(self._job_id, rung, value))
        return said

    def diverged(self, history: Sequence[dict[str, Any]]) -> list[e.Event]:
        """Return that the training loss has diverged, once."""
        for entry in history:
            loss = number(entry["loss"])
            if not self._has_diverged and self._losses.take(loss):
                self._has_diverged = True
                grew = f"its loss grew from {self._losses.first:g} to {loss:g} by iteration {entry['clock'] + 1}"
                return [e.LossDiverged(self._job_id, f"{DIVERGED}: {grew}")]
        return []

    def ends_with(
        self, history: Sequence[dict[str, Any]], exact: Mapping[str, Any]
    ) -> tuple[float | None, float | None]:
        """Return the early feedback, if it is not known yet, and the final value of a job that finished.

        Parameters
        ----------
        history : sequence
        exact : mapping
            Metrics of the test data of the final model.
        """
        found = [(entry["clock"] + 1, entry[self._metric]) for entry in history if self._metric in entry]
        if not found:
            return None, None
        # Use the final value if the job had fewer iterations, or is evaluated less often.
        asked = next((value for iteration, value in found if iteration >= self._feedback_iteration), found[-1][1])
        final = exact.get(self._metric, found[-1][1]) if self._metric in APPROXIMATE else found[-1][1]
        return None if self.has_feedback else number(asked), number(final)


# ---- actions


@dataclass(frozen=True)
class Start:
    """Start the job, or resume it from its checkpoint."""

    #: Role -> containers.
    places: Mapping[Role, Sequence[str]]
    resumes: bool
    #: A previous scheduler process may have carried out the same order.
    may_be_there: bool


@dataclass(frozen=True)
class Attach:
    """Watch a job that another process has started.  If its processes were lost, resume it in these containers."""

    places: Mapping[Role, Sequence[str]]


@dataclass(frozen=True)
class Request:
    """Request a change of size from the job's master."""

    operation: Operation
    what: int | list[str] | str
    #: The same in every process that carries out the order.
    request_id: str


@dataclass(frozen=True)
class Poll:
    """Poll the state of a change."""

    plan_id: int


@dataclass(frozen=True)
class Cancel:
    """Abort a change."""

    plan_id: int


@dataclass(frozen=True)
class Kill:
    """End the job."""

    why: str


@dataclass(frozen=True)
class Answer:
    """Answer the current order: it needs no request to the job."""


Action = Start | Attach | Request | Poll | Cancel | Kill | Answer


class Stage(Enum):
    """State of a job, as this process knows it."""

    #: No process of the job is watched: it has not started, or it has ended and may restart.
    IDLE = "idle"
    #: The job is watched and does not train yet.
    WAITS = "waits"
    TRAINS = "trains"
    #: The job is ending.
    ENDS = "ends"


@dataclass
class _Change:
    """An order to grow or to shrink in progress, role by role."""

    order: e.GrowJob | e.ShrinkJob
    request: str
    #: Remaining roles and containers; the first one is requested now.
    groups: deque[tuple[Role, list[str]]]
    #: Of a shrink: containers without a member.
    empty: list[str] = field(default_factory=list)
    plan_id: int | None = None
    is_cancelled: bool = False
    tries: int = 0
    #: Of a growth: containers that the job did not take, and the reason.
    failed: list[str] = field(default_factory=list)
    why: str = ""
    #: Of a shrink: the request names the replacements of lost members.  That is another change.
    of_others: bool = False


class Resize:
    """The change of size in progress, if any: which request comes next, and which events its outcome leads to.

    Methods other than ``is_on``, ``begin`` and ``drop`` need a change in progress.

    Parameters
    ----------
    job_id, name : str
        As of :class:`JobState`.
    places : Places
    hosts : bool
        Whether each container hosts a worker and a server.
    """

    def __init__(self, job_id: str, name: str, places: Places, hosts: bool) -> None:
        self._job_id, self._name, self._places, self._hosts = job_id, name, places, hosts
        self._now: _Change | None = None
        #: The last clock during which a change of size was in progress.
        self.last_clock = -1

    @property
    def is_on(self) -> bool:
        """Whether a change is in progress."""
        return self._now is not None

    def begin(self, number: int, order: e.GrowJob | e.ShrinkJob) -> None:
        """Begin to carry out an order."""
        request = f"{self._name}-order-{number}"
        if isinstance(order, e.GrowJob):
            self._now = _Change(order, request, deque(_by_role(order.containers).items()))
        else:
            by_role, empty = self._places.by_role(order.containers)
            self._now = _Change(order, request, deque(by_role.items()), empty)

    def drop(self) -> None:
        """Forget the change: the job has ended or is ending."""
        self._now = None

    def next_action(self, *, is_wanted: bool) -> Action:
        """Return the next action; abort a growth that is no longer wanted, if it has been requested."""
        change = self._change
        if change.plan_id is None:
            return self._ask() or Answer()
        if isinstance(change.order, e.GrowJob) and not is_wanted and not change.is_cancelled:
            change.is_cancelled = True
            return Cancel(change.plan_id)
        return Poll(change.plan_id)

    def changed(self, record: Mapping[str, Any]) -> list[e.Event]:
        """Update from the master's record of the change; return events."""
        self._change.plan_id = plan_id = int(record["plan_id"])
        if record["phase"] == PlanPhase.ABORTED:
            why = record["reason"] or "no reason"
            return self.refused(f"plan {plan_id} ({record['operation']}) was aborted: {why}")
        if record["phase"] != PlanPhase.RELEASED:
            return []
        self.last_clock = max(self.last_clock, int(record["committed_clock"] or 0))
        if isinstance(self._change.order, e.ShrinkJob):
            return self._gone()
        role, group = self._change.groups[0]
        self._places.put(group, added_by(record), role)
        self._next_group()
        return self._over()

    def refused(self, why: str) -> list[e.Event]:
        """Note that the master refused or aborted the change; return events."""
        group = self._next_group()
        if isinstance(self._change.order, e.ShrinkJob):
            return [e.ShrinkFailed(self._job_id, tuple(group), why), *self._over()]
        self._change.failed, self._change.why = [*self._change.failed, *group], why
        return self._over()

    def unknown(self) -> bool:
        """Note that the outcome of the request is unknown; return whether to request it again."""
        self._change.tries, self._change.plan_id = self._change.tries + 1, None
        return self._change.tries < _MOST_TRIES

    def replaced(self, status: Mapping[str, Any]) -> list[e.Event]:
        """Assign the replacements of members that no longer exist to their containers; return events."""
        role, _ = self._change.groups[0]
        said = taken_of(self._job_id, self._places, status)
        self._places.find_replacements(role, status)
        self._change.of_others = True
        return [*said, e.MembersFound(self._job_id, self._places.items())]

    def answered(self) -> list[e.Event]:
        """Note that the order needs no request; return events."""
        return self._gone() if self._change.groups else self._over()

    @property
    def _change(self) -> _Change:
        assert self._now is not None
        return self._now

    def _ask(self) -> Request | None:
        change = self._change
        if not change.groups:
            return None
        role, group = change.groups[0]
        if isinstance(change.order, e.GrowJob):
            if self._hosts:
                more = deltas_text(((Tier.RELIABLE, len(group)),))
                return Request(Operation.SCALE, more, f"{change.request}-{Operation.SCALE}")
            return Request(_ADD[role], len(group), f"{change.request}-{_ADD[role]}")
        names = self._places.members(group)
        if not names:
            return None
        operation = Operation.SCALE if self._hosts else _REMOVE[role]
        others = "-of-others" if change.of_others else ""
        return Request(
            operation, without_text(names) if self._hosts else names, f"{change.request}-{operation}{others}"
        )

    def _next_group(self) -> list[str]:
        """Continue with the next role; return the containers of the one that is done."""
        change = self._change
        change.plan_id, change.is_cancelled, change.tries, change.of_others = None, False, 0, False
        return change.groups.popleft()[1]

    def _gone(self) -> list[e.Event]:
        group = self._next_group()
        self._places.drop(group)
        return [e.ContainersGone(self._job_id, tuple(group)), *self._over()]

    def _over(self) -> list[e.Event]:
        """Return the answer to the order once all roles are done."""
        change = self._change
        # Containers without a member are answered last.
        if change.groups:
            return []
        self._now = None
        if isinstance(change.order, e.ShrinkJob):
            # A growth may have failed meanwhile, or the cluster may have taken the container.  A grant may still wait
            # for it.
            return [e.ContainersGone(self._job_id, tuple(change.empty))] if change.empty else []
        members = self._places.items()
        if change.failed:
            return [e.GrowthFailed(self._job_id, tuple(change.failed), change.why, members)]
        return [e.GrowthDone(self._job_id, members)]


def taken_of(job_id: str, places: Places, status: Mapping[str, Any]) -> list[e.Event]:
    """Return the containers that the cluster has taken from a job since the last call, as events."""
    return [e.ContainersGone(job_id, tuple(gone), why) for why, gone in places.take_away(status).items()]


class JobState:
    """State of one job.

    Parameters
    ----------
    job_id : str
        In the sweep.
    name : str
        Of the job under ``EPS_HOME``.
    reading : HistoryReader
    hosts : bool
        Whether each of its containers hosts a worker and a server.
    """

    def __init__(self, job_id: str, name: str, reading: HistoryReader, hosts: bool = False) -> None:
        self._job_id = job_id
        self.reading = reading
        self.places = Places()
        self.stage = Stage.IDLE
        #: Seconds that changes of size took, by the job's own reports.
        self._changes_s = 0.0
        #: Time of an order to restart that the job has not completed.
        self._stop_s: float | None = None
        self._orders: deque[tuple[int, e.Order | None]] = deque()
        self._hosts = hosts
        self.resize = Resize(job_id, name, self.places, hosts)
        #: Why the job is to end; empty while it is not.
        self._why = ""
        #: Iteration of its latest checkpoint.
        self._saved_at = 0
        #: It is to end once it has a checkpoint of this iteration or a later one; 0: at once.
        self._pauses_at = 0
        #: When it ends at the latest, seconds.
        self._pause_limit_s = 0.0
        #: An unexpected error ended the job: it has failed, even if its report says otherwise.
        self._gave_up = False
        #: A previous scheduler process may have carried out its first order.
        self._may_be_there = False
        #: Role -> containers of a resumed job, whose members get new numbers, or of one whose containers host both: the
        #: job may request others while it starts.  Its status shows them once it trains.
        self._unplaced: Mapping[Role, Sequence[str]] = {}
        #: The rung, in iterations, from which a paused job resumes; 0: it was not paused.
        self._resumes_at = 0
        #: History that a resumed job has before it trains again: it had trained beyond its rung until it was paused.
        self._early: list[dict[str, Any]] = []

    # ---- orders

    def restore(
        self, iteration: int, seats: Mapping[str, Seat], has_feedback: bool, has_started: bool, num_rungs: int = 0
    ) -> None:
        """Resume a job that another process may have started; see :meth:`hscheduler.live.job.LiveJob.restore`."""
        self.reading.restore(iteration, has_feedback, num_rungs)
        self.resize.last_clock = iteration
        self.places.set(seats)
        self._may_be_there = True
        if has_started:
            self._orders.append((0, None))

    def obey(self, number: int, order: e.Order, now_s: float) -> None:
        """Accept an order."""
        if not isinstance(order, e.EndJob):
            self._orders.append((number, order))
        elif self.stage is not Stage.IDLE or self._is_to_start():
            self._why = order.why
            self._pauses_at = order.after if self._saved_at < order.after else 0
            self._pause_limit_s = now_s + PAUSE_LIMIT_S
            self._stop_s = now_s if order.restarts and not order.after else None
        if isinstance(order, e.EndJob) and order.after:
            self._resumes_at = order.after

    def end(self, why: str) -> None:
        """End the job, if it runs or is about to start."""
        if not self.is_done:
            self._why = self._why or why

    @property
    def is_done(self) -> bool:
        """Whether the job does not run and no order is open."""
        return self.stage is Stage.IDLE and not self._orders

    def pause_left_s(self, now_s: float) -> float | None:
        """Return how long a job that pauses may wait for its checkpoint; None if it does not wait."""
        if not self._pauses_at:
            return None
        left_s = self._pause_limit_s - now_s
        if left_s <= 0:
            # It resumes from an earlier checkpoint.
            self._pauses_at = 0
        return max(0.0, left_s)

    def next_action(self) -> Action | None:
        """Return the next action, or None."""
        if self._why and not self._pauses_at and self.stage in (Stage.WAITS, Stage.TRAINS):
            # Kill at once: a change would wait for the end of the current iteration.
            self.stage = Stage.ENDS
            self.resize.drop()
            return Kill(self._why)
        while not self.resize.is_on and self._orders:
            number, order = self._orders[0]
            if self.stage is Stage.ENDS or (self.stage is Stage.WAITS and isinstance(order, e.GrowJob | e.ShrinkJob)):
                # The end of the job answers the order, or it is carried out once the job trains.
                return None
            self._orders.popleft()
            match order:
                case None:
                    by_role, _ = self.places.by_role([place for place, _ in self.places.items()])
                    return Attach({role: by_role.get(role, []) for role in (Role.WORKER, Role.SERVER)})
                case e.StartJob(_, containers, resumes):
                    by_role = _by_role(containers)
                    places = {role: by_role.get(role, []) for role in (Role.WORKER, Role.SERVER)}
                    may, self._may_be_there = self._may_be_there, False
                    return Start(places, resumes, may)
                case e.GrowJob() | e.ShrinkJob() if self.stage is Stage.TRAINS:
                    self.resize.begin(number, order)
                # Other orders belong to a job that has ended; its end answers them.
        # Abort a growth if a shrink is queued behind it.
        return self.resize.next_action(is_wanted=not self._is_to_shrink()) if self.resize.is_on else None

    def _is_to_start(self) -> bool:
        return any(order is None or isinstance(order, e.StartJob) for _, order in self._orders)

    def _is_to_shrink(self) -> bool:
        return any(isinstance(order, e.ShrinkJob) for _, order in self._orders)

    # ---- results of actions

    def started(self, start: Start | Attach, *, is_resumed: bool) -> list[e.Event]:
        """Note that the job was started, or found running; return events."""
        self.stage, self._gave_up, self._early = Stage.WAITS, False, []
        self._may_be_there = False
        if isinstance(start, Start) and not start.resumes:
            self._saved_at = 0
        if self._resumes_at and isinstance(start, Start):
            self.reading.rewind(self._resumes_at)
            self._resumes_at = 0
        self.reading.attempt_started()
        is_new = isinstance(start, Start) and (start.resumes or self._hosts)
        if is_resumed or is_new:
            self.places.set({})
            self._unplaced = start.places
            return []
        if isinstance(start, Attach):
            return []
        self.places.set(
            {
                place: Seat(f"{role}-{number}", role)
                for role, places in start.places.items()
                for number, place in enumerate(places, 1)
            }
        )
        return [e.MembersFound(self._job_id, self.places.items())]

    def start_failed(self, why: str) -> list[e.Event]:
        """Note that the job could not be started."""
        self._why = ""
        return [e.JobEnded(self._job_id, Phase.FAILED, why)]

    # ---- observations

    def progressed(self, status: Mapping[str, Any], history: Sequence[dict[str, Any]]) -> list[e.Event]:
        """Take a status and history of the job; return events."""
        said: list[e.Event] = []
        if self.stage is Stage.WAITS and status["state"] not in WAITING_STATES:
            self.stage = Stage.TRAINS
            if self._unplaced:
                for role, places in self._unplaced.items():
                    self.places.put(places, names_of(role, status), role)
                self._unplaced = {}
                # MembersFound goes first: a scheduler killed between the two repeats the order to start, and finds the
                # members again.
                said.append(e.MembersFound(self._job_id, self.places.items()))
            said.append(e.JobStarted(self._job_id))
        if self.stage is not Stage.WAITS:
            said += taken_of(self._job_id, self.places, status)
        latest = (status.get("checkpoints") or {}).get("latest_clock")
        self._saved_at = max(self._saved_at, latest or 0)
        if self._saved_at >= self._pauses_at:
            self._pauses_at = 0
        if self.stage is Stage.WAITS:
            # The scheduler heeds no rung of a job that has not started.
            self._early += history
            return said
        history, self._early = [*self._early, *history], []
        if history:
            if not self._why:
                self._stop_s = None
            said.append(self.reading.iterated(history, self.resize.last_clock))
            said += self.reading.diverged(history)
            try:
                said += self.reading.feedback(history)
                said += self.reading.reached(history)
            except TrainingError as error:
                self.give_up(str(error))
        return said

    def give_up(self, why: str) -> list[e.Event]:
        """End a job after an unexpected error; return events if it does not run."""
        self.resize.drop()
        if self.stage is Stage.IDLE:
            return self.start_failed(why)
        self._why, self._gave_up = self._why or why, True
        return []

    def waits_s(self, report: Mapping[str, Any], restart_s: float, now_s: float) -> float:
        """Return how many seconds to hold back the end of a job that restarts, by the declared delay."""
        if self._stop_s is None or report["state"] != "killed":
            return 0.0
        return max(0.0, self._stop_s + restart_s - now_s)

    def ended(self, report: Mapping[str, Any]) -> list[e.Event]:
        """Take the last report of the job or of an attempt; return events."""
        self._changes_s += sum(change["pause_s"] for change in report["changes"] if change.get("pause_s"))
        # Without an order to end, a report without the supervisor's last word means that the supervisor crashed.
        crashed = self._gave_up or (not self._why and report.get("reason") == SUPERVISOR_KILLED)
        phase = Phase.FAILED if crashed else _PHASES.get(report["state"], Phase.FAILED)
        history = report["history"]
        unseen = [entry for entry in history if entry["clock"] > self.reading.seen_clock]
        # The job may have ended before its history was read.
        said: list[e.Event] = []
        if unseen:
            said.append(self.reading.iterated(unseen, self.resize.last_clock))
            said += self.reading.diverged(unseen)
            # If the metric is missing, the end without feedback tells.
            with suppress(TrainingError):
                said += self.reading.reached(unseen)
        tested = (report.get("metrics") or {}).get("test") or {}
        feedback, loss = self.reading.ends_with(history, tested) if phase is Phase.FINISHED else (None, None)
        why = self._why or str(report.get("reason") or "")
        has_diverged = phase is Phase.FAILED and DIVERGED in why
        return [*said, *self._end(phase, why, feedback, loss, has_diverged)]

    def lost(self, why: str) -> list[e.Event]:
        """Note that the job cannot be watched and was killed; return events."""
        is_wanted = self._why and not self._gave_up and self._stop_s is None
        return self._end(Phase.KILLED if is_wanted else Phase.FAILED, self._why or why)

    def _end(
        self,
        phase: Phase,
        why: str,
        feedback: float | None = None,
        loss: float | None = None,
        has_diverged: bool = False,
    ) -> list[e.Event]:
        if phase is not Phase.KILLED:
            self._stop_s = None
        self.stage, self._why, self._pauses_at = Stage.IDLE, "", 0
        self.resize.drop()
        return [e.JobEnded(self._job_id, phase, why, feedback, loss, self._changes_s, has_diverged)]


def _by_role(containers: Iterable[Container]) -> dict[Role, list[str]]:
    found: dict[Role, list[str]] = {}
    for container in containers:
        found.setdefault(container.role, []).append(container.container_id)
    return found
