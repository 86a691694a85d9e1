"""What follows for one real job from its orders and from what is seen of it: events in, actions out.

The shell (:mod:`hscheduler.live.job`) tells what happens, says the events that a method returns to the scheduler, and
carries out what :meth:`JobState.next_action` returns, one action after the other.

Source: EPS §5.1 (the scheduler calls the four operations of each job's master); EPS §5.2 and :mod:`eps.core.evictions`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from eps.core.reconfig import Operation
from eps.core.reconfig import Phase as PlanPhase
from eps.errors import TrainingError
from eps.job.status import WAITING_STATES
from eps.storage.record import SUPERVISOR_KILLED
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Container, Role
from hscheduler.reports.history import feedback_of, number, some_losses

#: A change whose outcome is not known is asked for again so often.
_MOST_TRIES = 3
_PHASES = {"finished": Phase.FINISHED, "killed": Phase.KILLED}
_ADD = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}
_REMOVE = {Role.WORKER: Operation.REMOVE_WORKERS, Role.SERVER: Operation.REMOVE_SERVERS}
#: Outcomes of an eviction whose member is gone: see :class:`eps.core.evictions.EvictionOutcome`.
_GONE = ("drained", "late", "lost")
#: Who asked for changes that bring members which have places of their own.
_USER = "user"


@dataclass(frozen=True, slots=True)
class Seat:
    """Who is in a container."""

    name: str
    role: Role


class Places:
    """Which member of a job is in which of the containers that it was granted, and whom of them the cluster has taken.

    A job that loses a member without a warning puts another in its place by itself: the container stays its own.  Of
    those that the cluster took away with one it replaces nobody but the last of a role: the others' containers are
    gone.
    """

    def __init__(self) -> None:
        #: By container id.
        self._seats: dict[str, Seat] = {}

    def __contains__(self, place: str) -> bool:
        return place in self._seats

    def items(self) -> tuple[tuple[str, str], ...]:
        """Return all containers and members."""
        return tuple((place, seat.name) for place, seat in self._seats.items())

    def set(self, seats: Mapping[str, Seat]) -> None:
        """Say who is where, instead of what was known."""
        self._seats = dict(seats)

    def put(self, places: Iterable[str], names: Iterable[str], role: Role) -> None:
        """Note which members of a role are in these containers, as far as both go."""
        self._seats.update((place, Seat(name, role)) for place, name in zip(places, names, strict=False))

    def drop(self, places: Iterable[str]) -> None:
        """Note that containers are gone; harmless for those that are not known."""
        for place in places:
            self._seats.pop(place, None)

    def members(self, places: Sequence[str]) -> list[str]:
        """Return the members in these containers, but for those that are gone."""
        return [self._seats[place].name for place in places if place in self._seats]

    def by_role(self, places: Sequence[str]) -> tuple[dict[Role, list[str]], list[str]]:
        """Return containers by what is in them, and those in which there is nobody."""
        found: dict[Role, list[str]] = {}
        empty = []
        for place in places:
            if place in self._seats:
                found.setdefault(self._seats[place].role, []).append(place)
            else:
                empty.append(place)
        return found, empty

    def find_replacements(self, role: Role, status: Mapping[str, Any]) -> None:
        """Put the members of a role that have no place into those of members that the status does not have."""
        there = names_of(role, status)
        seated = self._names()
        free = [name for name in there if name not in seated]
        for place, seat in self._seats.items():
            if seat.role is role and seat.name not in there and free:
                self._seats[place] = Seat(free.pop(0), role)

    def take_away(self, status: Mapping[str, Any]) -> dict[str, list[str]]:
        """Find out which containers the cluster has taken, and forget them; put whom the job replaced into theirs.

        Parameters
        ----------
        status : mapping
            Of the job, as ``eps status --json`` prints it.

        Returns
        -------
        dict
            Why, as a sentence, -> the containers.
        """
        evictions = (status.get("evictions") or {}).get("members", ())
        gone = {each["name"]: str(each["reason"]) for each in evictions if each["outcome"] in _GONE}
        taken: dict[str, list[str]] = {}
        if not gone:
            return taken
        for place, seat in list(self._seats.items()):
            mine = names_of(seat.role, status)
            if seat.name not in gone or seat.name in mine:
                continue
            new = [other for other in mine if other not in self._names() and other not in _added(status)]
            if new:
                # The job has put it there itself, as it had nobody else of that role.
                self._seats[place] = replace(seat, name=new[0])
            elif mine:
                del self._seats[place]
                taken.setdefault(f"its container {gone[seat.name]}", []).append(place)
        return taken

    def _names(self) -> list[str]:
        return [seat.name for seat in self._seats.values()]


def names_of(role: Role, status: Mapping[str, Any]) -> list[str]:
    """Return the members of a role that a job's status has."""
    return [str(member["name"]) for member in status["members"] if member["role"] == role]


def _added(status: Mapping[str, Any]) -> set[str]:
    """Return the members that changes brought which somebody asked for, and not the job itself."""
    plans = [plan for plan in (status.get("plan"), *status.get("queued", ()), *status.get("changes", ())) if plan]
    return {str(name) for plan in plans if plan["asked_by"] == _USER for name in plan["added"]}


class Standstill:
    """How long a job stands still because it is started again: from the order until its next iteration.

    A job may be told to start again before it has iterated: then it stands still since the first order.  Times are
    seconds of one clock that is never set.

    Source: EPS §7.4 (Table 2 counts what restarts cost).
    """

    def __init__(self) -> None:
        #: Seconds of those that are over.
        self.total_s = 0.0
        self._since_s: float | None = None
        self._told_s: float | None = None
        #: Both, as they were when the part of the job began that runs.
        self._part: tuple[float | None, float | None] = None, None

    def told(self, restarts: bool, now_s: float) -> None:
        """Note an order to end, for a restart or for good."""
        self._told_s = now_s if restarts else None
        if self._since_s is None:
            self._since_s = self._told_s

    def begun(self) -> None:
        """Note that a part of the job begins: its news end what was before it, and not what it is told itself."""
        self._part = self._since_s, self._told_s

    def iterated(self, now_s: float) -> None:
        """Note the first iteration of a part."""
        since_s, told_s = self._part
        if since_s is None:
            return
        self.total_s += now_s - since_s
        if self._told_s == told_s:
            self._since_s = self._told_s = None
        else:
            # It was told to start again meanwhile, or to end.
            self._since_s = None if self._told_s is None else now_s

    def told_before_s(self, now_s: float) -> float | None:
        """Return how long ago the job was told to start again, which it has not; None if it was not."""
        return None if self._told_s is None else now_s - self._told_s

    def over(self, now_s: float) -> None:
        """Note that the job has ended and is not started again."""
        if self._since_s is not None:
            self.total_s += now_s - self._since_s
        self._since_s = self._told_s = None


class Reading:
    """What of a job's history was seen, and what that says.

    Parameters
    ----------
    job_id : str
    metric : str
        ``loss``, or a metric of the test data as the report's history names it.
    feedback_iteration : int
    """

    def __init__(self, job_id: str, metric: str, feedback_iteration: int) -> None:
        self._job_id, self._metric, self._feedback_iteration = job_id, metric, feedback_iteration
        self.has_feedback = False
        #: The last clock that was seen.
        self.seen_clock = -1
        #: When the last clock ended that was seen of this part of the job; NaN before the first.
        self._seen_s = math.nan

    def go_on(self, iteration: int, has_feedback: bool) -> None:
        """Go on where another process was."""
        self.has_feedback = has_feedback
        # Of the rest nobody was told.
        self.seen_clock = iteration - 1 if has_feedback else -1

    def begun(self) -> None:
        """Note that a part of the job begins."""
        self._seen_s = math.nan

    def iterated(self, history: Sequence[dict[str, Any]], changed_clock: int) -> e.Iterated:
        """Return the news of what has not been seen before: iterations, how long they took, their losses.

        Parameters
        ----------
        history : sequence
        changed_clock : int
            The last one during which a change of size went on.
        """
        durations = []
        for entry in history:
            now_s = float(entry["seconds"])
            # Of an iteration during which the size was changed nothing can be learnt.
            if now_s >= self._seen_s and entry["clock"] > changed_clock + 1:
                durations.append(now_s - self._seen_s)
            self._seen_s = now_s
        self.seen_clock = int(history[-1]["clock"])
        return e.Iterated(self._job_id, self.seen_clock + 1, tuple(durations), some_losses(history))

    def feedback(self, history: Sequence[dict[str, Any]]) -> list[e.Event]:
        """Return the early feedback, where it has come; raises TrainingError where there is no such metric."""
        for entry in history:
            # Clocks are counted from 0.
            if not self.has_feedback and entry["clock"] + 1 >= self._feedback_iteration:
                value = feedback_of(entry, self._metric)
                if value is not None:
                    self.has_feedback = True
                    return [e.FeedbackGiven(self._job_id, value)]
        return []

    def ends_with(self, history: Sequence[dict[str, Any]]) -> tuple[float | None, float | None]:
        """Return the early feedback, where it is not known yet, and what a job that finished has ended with."""
        found = [(entry["clock"] + 1, entry[self._metric]) for entry in history if self._metric in entry]
        if not found:
            return None, None
        # It had fewer iterations, or is evaluated less often.
        asked = next((value for iteration, value in found if iteration >= self._feedback_iteration), found[-1][1])
        return None if self.has_feedback else number(asked), number(found[-1][1])


# ---- actions


@dataclass(frozen=True)
class Start:
    """Start the job, or have it go on from its checkpoint."""

    #: Role -> containers.
    places: Mapping[Role, Sequence[str]]
    resumes: bool
    #: Another process may have carried out this very order.
    may_be_there: bool


@dataclass(frozen=True)
class TakeUp:
    """Watch a job that another process has started; where it was lost, have it go on in these containers."""

    places: Mapping[Role, Sequence[str]]


@dataclass(frozen=True)
class Ask:
    """Ask the job's master for a change of size."""

    operation: Operation
    what: int | list[str]
    #: The same in every process that carries out the order.
    request_id: str


@dataclass(frozen=True)
class Look:
    """Look how far a change is."""

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
    """Answer the order that is carried out: there is nothing to ask the job for."""


Action = Start | TakeUp | Ask | Look | Cancel | Kill | Answer


class Stage(Enum):
    """Where a job is, as this process knows it."""

    #: None of its processes is watched: it has not begun, or has ended and may begin again.
    IDLE = "idle"
    #: It is watched, and has not begun to train.
    WAITS = "waits"
    TRAINS = "trains"
    #: It was told to end.
    ENDS = "ends"


@dataclass
class _Change:
    """An order to grow or to shrink that is carried out, role by role."""

    order: e.GrowJob | e.ShrinkJob
    request: str
    #: Roles and containers that are left, the first of which is asked for.
    groups: deque[tuple[Role, list[str]]]
    #: Of a shrink: containers in which there is nobody.
    empty: list[str] = field(default_factory=list)
    plan_id: int | None = None
    is_cancelled: bool = False
    tries: int = 0
    #: Of a growth: what could not be had, and why.
    failed: list[str] = field(default_factory=list)
    why: str = ""
    #: Of a shrink: those in the places of lost members are asked for, which is another change.
    of_others: bool = False


class Resize:
    """The change of size that is on its way, if any: what is to be asked for, and what became of that.

    Its methods return what is to be said.  But for the first three, there is a change.

    Parameters
    ----------
    job_id, name : str
        As of :class:`JobState`.
    places : Places
    """

    def __init__(self, job_id: str, name: str, places: Places) -> None:
        self._job_id, self._name, self._places = job_id, name, places
        self._now: _Change | None = None
        #: The last clock during which a change of size went on.
        self.last_clock = -1

    @property
    def is_on(self) -> bool:
        """Whether there is one."""
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
        """Forget it: the job has ended, or is to."""
        self._now = None

    def next_action(self, *, is_wanted: bool) -> Action:
        """Return what is to be done next; a growth that is not wanted is aborted, where it can be."""
        change = self._change
        if change.plan_id is None:
            return self._ask() or Answer()
        if isinstance(change.order, e.GrowJob) and not is_wanted and not change.is_cancelled:
            change.is_cancelled = True
            return Cancel(change.plan_id)
        return Look(change.plan_id)

    def changed(self, record: Mapping[str, Any]) -> list[e.Event]:
        """Note how far it is."""
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
        self._places.put(group, record["added"], role)
        self._next_group()
        return self._over()

    def refused(self, why: str) -> list[e.Event]:
        """Note that it is refused, or was aborted."""
        group = self._next_group()
        if isinstance(self._change.order, e.ShrinkJob):
            return [e.ShrinkFailed(self._job_id, tuple(group), why), *self._over()]
        self._change.failed, self._change.why = [*self._change.failed, *group], why
        return self._over()

    def unknown(self) -> bool:
        """Note that nobody knows what became of it; return whether it is asked for again."""
        self._change.tries, self._change.plan_id = self._change.tries + 1, None
        return self._change.tries < _MOST_TRIES

    def replaced(self, status: Mapping[str, Any]) -> list[e.Event]:
        """Note that members that are to go are not there: lost ones were replaced, in whose places are others."""
        role, _ = self._change.groups[0]
        said = taken_of(self._job_id, self._places, status)
        self._places.find_replacements(role, status)
        self._change.of_others = True
        return [*said, e.MembersFound(self._job_id, self._places.items())]

    def answered(self) -> list[e.Event]:
        """Note that there is nothing to ask for."""
        return self._gone() if self._change.groups else self._over()

    @property
    def _change(self) -> _Change:
        assert self._now is not None
        return self._now

    def _ask(self) -> Ask | None:
        change = self._change
        if not change.groups:
            return None
        role, group = change.groups[0]
        if isinstance(change.order, e.GrowJob):
            return Ask(_ADD[role], len(group), f"{change.request}-{_ADD[role]}")
        more, names = "-of-others" if change.of_others else "", self._places.members(group)
        return Ask(_REMOVE[role], names, f"{change.request}-{_REMOVE[role]}{more}") if names else None

    def _next_group(self) -> list[str]:
        """Go on to the next role; return the containers of the one that is done."""
        change = self._change
        change.plan_id, change.is_cancelled, change.tries, change.of_others = None, False, 0, False
        return change.groups.popleft()[1]

    def _gone(self) -> list[e.Event]:
        group = self._next_group()
        self._places.drop(group)
        return [e.ContainersGone(self._job_id, tuple(group)), *self._over()]

    def _over(self) -> list[e.Event]:
        """Return the answer to the order, where all of it is done."""
        change = self._change
        # Those without anybody are answered last.
        if change.groups:
            return []
        self._now = None
        if isinstance(change.order, e.ShrinkJob):
            # As where a growth was said to have failed meanwhile, or the cluster took it: somebody may be waiting for
            # the place all the same.
            return [e.ContainersGone(self._job_id, tuple(change.empty))] if change.empty else []
        members = self._places.items()
        if change.failed:
            return [e.GrowthFailed(self._job_id, tuple(change.failed), change.why, members)]
        return [e.GrowthDone(self._job_id, members)]


def taken_of(job_id: str, places: Places, status: Mapping[str, Any]) -> list[e.Event]:
    """Return which of a job's containers the cluster has taken since this was asked last."""
    return [e.ContainersGone(job_id, tuple(gone), why) for why, gone in places.take_away(status).items()]


class JobState:
    """One job.

    Parameters
    ----------
    job_id : str
        In the sweep.
    name : str
        Of the job under ``EPS_HOME``.
    reading : Reading
    """

    def __init__(self, job_id: str, name: str, reading: Reading) -> None:
        self._job_id = job_id
        self.reading = reading
        self.places = Places()
        self.stage = Stage.IDLE
        #: Seconds that changes of its size cost, as its own reports have them.
        self._changes_s = 0.0
        self._standstill = Standstill()
        self._orders: deque[tuple[int, e.Order | None]] = deque()
        self.resize = Resize(job_id, name, self.places)
        #: Why it is to end; empty while it is not.
        self._why = ""
        #: Something unforeseen was found of it.
        self._gave_up = False
        #: Another process may have carried out its first order.
        self._may_be_there = False
        #: Role -> containers whose members are known when it trains: the numbers of members go on.
        self._unplaced: Mapping[Role, Sequence[str]] = {}
        self._has_iterated = False

    @property
    def pause_s(self) -> float:
        """Seconds that changes of its size cost: those that it went on during, and those for which it was restarted."""
        return self._changes_s + self._standstill.total_s

    # ---- orders

    def go_on(self, iteration: int, seats: Mapping[str, Seat], has_feedback: bool, has_started: bool) -> None:
        """Take up a job that another process may have started; see :meth:`hscheduler.live.job.LiveJob.go_on`."""
        self.reading.go_on(iteration, has_feedback)
        self.resize.last_clock = iteration
        self.places.set(seats)
        self._may_be_there = True
        if has_started:
            self._orders.append((0, None))

    def obey(self, number: int, order: e.Order, now_s: float) -> None:
        """Take an order."""
        if not isinstance(order, e.EndJob):
            self._orders.append((number, order))
        elif self.stage is not Stage.IDLE or self._is_to_start():
            self._why = order.why
            self._standstill.told(order.restarts, now_s)

    def end(self, why: str) -> None:
        """Have the job end, where it is there or is about to be."""
        if not self.is_done:
            self._why = self._why or why

    @property
    def is_done(self) -> bool:
        """Whether the job is not there, and nothing is to be done about it."""
        return self.stage is Stage.IDLE and not self._orders

    def next_action(self) -> Action | None:
        """Return what is to be done now, if anything."""
        if self._why and self.stage in (Stage.WAITS, Stage.TRAINS):
            # Not behind a change that waits for the end of a long iteration.
            self.stage = Stage.ENDS
            self.resize.drop()
            return Kill(self._why)
        while not self.resize.is_on and self._orders:
            number, order = self._orders[0]
            if self.stage is Stage.ENDS or (self.stage is Stage.WAITS and isinstance(order, e.GrowJob | e.ShrinkJob)):
                # It is answered by the job's end, or carried out when the job trains.
                return None
            self._orders.popleft()
            match order:
                case None:
                    by_role, _ = self.places.by_role([place for place, _ in self.places.items()])
                    return TakeUp({role: by_role.get(role, []) for role in (Role.WORKER, Role.SERVER)})
                case e.StartJob(_, containers, resumes):
                    by_role = _by_role(containers)
                    places = {role: by_role.get(role, []) for role in (Role.WORKER, Role.SERVER)}
                    may, self._may_be_there = self._may_be_there, False
                    return Start(places, resumes, may)
                case e.GrowJob() | e.ShrinkJob() if self.stage is Stage.TRAINS:
                    self.resize.begin(number, order)
                # One of a job that has ended is answered by its end.
        # Nobody waits for the end of a growth that a shrink is behind.
        return self.resize.next_action(is_wanted=not self._is_to_shrink()) if self.resize.is_on else None

    def _is_to_start(self) -> bool:
        return any(order is None or isinstance(order, e.StartJob) for _, order in self._orders)

    def _is_to_shrink(self) -> bool:
        return any(isinstance(order, e.ShrinkJob) for _, order in self._orders)

    # ---- what became of actions

    def begun(self, start: Start | TakeUp, *, is_resumed: bool) -> list[e.Event]:
        """Note that the job was started, or found; return what is to be said."""
        self.stage, self._has_iterated, self._gave_up = Stage.WAITS, False, False
        self._may_be_there = False
        self.reading.begun()
        self._standstill.begun()
        if is_resumed or (isinstance(start, Start) and start.resumes):
            self.places.set({})
            self._unplaced = start.places
            return []
        if isinstance(start, TakeUp):
            return []
        self.places.set(
            {
                place: Seat(f"{role}-{number}", role)
                for role, places in start.places.items()
                for number, place in enumerate(places, 1)
            }
        )
        return [e.MembersFound(self._job_id, self.places.items())]

    def not_begun(self, why: str) -> list[e.Event]:
        """Note that the job could not be started."""
        self._why = ""
        return [e.JobEnded(self._job_id, Phase.FAILED, why)]

    # ---- what is seen of it

    def progressed(self, status: Mapping[str, Any], history: Sequence[dict[str, Any]], now_s: float) -> list[e.Event]:
        """Take news of the job."""
        said: list[e.Event] = []
        if self.stage is Stage.WAITS and status["state"] not in WAITING_STATES:
            self.stage = Stage.TRAINS
            if self._unplaced:
                for role, places in self._unplaced.items():
                    self.places.put(places, names_of(role, status), role)
                self._unplaced = {}
                # In this order: a scheduler that is killed between them has it started again, and looks for members.
                said.append(e.MembersFound(self._job_id, self.places.items()))
            said.append(e.JobStarted(self._job_id))
        if self.stage is not Stage.WAITS:
            said += taken_of(self._job_id, self.places, status)
        if history:
            if not self._has_iterated:
                self._has_iterated = True
                self._standstill.iterated(now_s)
            said.append(self.reading.iterated(history, self.resize.last_clock))
            try:
                said += self.reading.feedback(history)
            except TrainingError as error:
                self.give_up(str(error))
        return said

    def give_up(self, why: str) -> list[e.Event]:
        """Have a job end of which something unforeseen was found; return what is to be said where it is not there."""
        self.resize.drop()
        if self.stage is Stage.IDLE:
            return self.not_begun(why)
        self._why, self._gave_up = self._why or why, True
        return []

    def waits_s(self, report: Mapping[str, Any], restart_s: float, now_s: float) -> float:
        """Return how long the end of a job is not said yet, that is to start again."""
        told_before_s = self._standstill.told_before_s(now_s)
        if told_before_s is None or report["state"] != "killed":
            return 0.0
        return max(0.0, restart_s - told_before_s)

    def ended(self, report: Mapping[str, Any], now_s: float) -> list[e.Event]:
        """Take the last report of the job, or of a part of it."""
        self._changes_s += sum(change["pause_s"] for change in report["changes"] if change.get("pause_s"))
        # Of those whose supervisor has crashed nobody has ended any.
        crashed = self._gave_up or (not self._why and report.get("reason") == SUPERVISOR_KILLED)
        phase = Phase.FAILED if crashed else _PHASES.get(report["state"], Phase.FAILED)
        history = report["history"]
        unseen = [entry for entry in history if entry["clock"] > self.reading.seen_clock]
        # It may be over before anybody has looked.
        said: list[e.Event] = [self.reading.iterated(unseen, self.resize.last_clock)] if unseen else []
        feedback, loss = self.reading.ends_with(history) if phase is Phase.FINISHED else (None, None)
        why = self._why or str(report.get("reason") or "")
        return [*said, *self._end(phase, why, feedback, loss, now_s)]

    def lost(self, why: str, now_s: float) -> list[e.Event]:
        """Note that the job cannot be watched, and was killed."""
        is_wanted = self._why and not self._gave_up and self._standstill.told_before_s(now_s) is None
        phase = Phase.KILLED if is_wanted else Phase.FAILED
        return self._end(phase, self._why or why, None, None, now_s)

    def _end(self, phase: Phase, why: str, feedback: float | None, loss: float | None, now_s: float) -> list[e.Event]:
        if phase is not Phase.KILLED or self._standstill.told_before_s(now_s) is None:
            self._standstill.over(now_s)
        self.stage, self._why = Stage.IDLE, ""
        self.resize.drop()
        return [e.JobEnded(self._job_id, phase, why, feedback, loss, self.pause_s)]


def _by_role(containers: Iterable[Container]) -> dict[Role, list[str]]:
    found: dict[Role, list[str]] = {}
    for container in containers:
        found.setdefault(container.role, []).append(container.container_id)
    return found
