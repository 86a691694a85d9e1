"""The size of a job: members that it wants, holds, has lent and requests, and with how many it starts.  Pure.

For each role ``wanted = held + lent + pending``.

wanted
    The size that users requested.
held
    Members of the membership that have their containers.
lent
    Members that are not requested at once, because they were preempted for *others*, or because the cluster had no room
    for them at the *start*.  They are requested when the cluster has idle capacity, and only for a few seconds: a
    standing request would take containers that are meant for others.
pending
    The rest: members that crashed or left a drained node.  They are requested at once.

At the start a job requests all containers.  When no grant arrives for a while, a job that holds ``start_with`` of each
role starts.  A job that holds less releases all containers, waits, and then requests only that minimum (a gang).
Otherwise jobs that start together on a full cluster could deadlock.  The pause differs from job to job and doubles each
time (Metcalfe and Boggs, Ethernet, CACM 1976).

A scheduler decides the size of a *managed* job: such a job does not replace what its cluster takes away.

Source: EPS Algorithm 1 lines 17-27 (what is removed for a submitted job) and 29-40 (what is added when nothing waits).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from zlib import crc32

from eps.core import events as e
from eps.core.members import Member, containers_waited_for
from eps.core.reconfig import OPERATIONS, Phase, Plan, Purpose
from eps.core.retries import Backoff
from eps.core.types import Role

#: A job fails if one of its first members was launched and has not registered after this time.
START_PATIENCE_S = 300.0
#: Seconds without a grant after which a job starts with the containers that it has, or releases them.
START_TIMEOUT_S = 20.0
#: First and longest pause before containers are requested in place of ones that ended before their process registered.
REQUEST_S, LONGEST_REQUEST_S = 0.5, 2.0
#: Bounds of the factor that makes the pauses of gangs differ from job to job.
GANG_SPREAD = (0.5, 1.5)
#: The longest pause of a gang.
GANG_LONGEST_S = 160.0

Counts = Mapping[Role, int]


class Borrower(StrEnum):
    """The reason why containers are lent."""

    #: The cluster preempted them for others.
    OTHERS = "others"
    #: The cluster had no room for them when the job started.
    START = "start"


class StartStep(StrEnum):
    """The next step of a starting job."""

    WAIT = "wait"
    #: Request all first containers.
    ASK = "ask"
    #: Start without those that were not granted.
    BEGIN = "begin"
    #: Release all containers.
    GIVE_BACK = "give-back"
    #: Fail: a first member was launched and does not register.
    FAIL = "fail"


def least_of(wanted: int, start_with: float) -> int:
    """Return the minimum number of a role for a start: the share ``start_with`` of ``wanted``, at least 1."""
    # Rounded first, because 0.28 * 25 is slightly more than 7 in binary.
    return max(1, math.ceil(round(start_with * wanted, 9)))


def ready_of(members: Iterable[Member]) -> dict[Role, int]:
    """Return with how many of these members a job may start, by role."""
    found = dict.fromkeys(Role, 0)
    for member in members:
        for role in member.roles:
            found[role] += member.is_ready
    return found


class Size:
    """The size of a job.

    Parameters
    ----------
    workers, servers : int
    managed : bool
        Whether a scheduler decides the job's size.
    follows : bool
        Whether the job's containers decide it (:mod:`eps.core.tiers`): then it is always what the job holds.
    """

    def __init__(self, workers: int, servers: int, *, managed: bool = False, follows: bool = False) -> None:
        self.wanted = {Role.WORKER: workers, Role.SERVER: servers}
        self._follows = follows
        self.lent = {borrower: dict.fromkeys(Role, 0) for borrower in Borrower}
        self._managed = managed

    # ---- changes

    def begun(self, held: Counts) -> None:
        """Record that the job starts with ``held`` members; the missing ones count as lent."""
        for role in Role:
            self.lent[Borrower.START][role] = self.wanted[role] - held[role]
        self.settle(held)

    def committed(self, plan: Plan, held: Counts) -> None:
        """Record that a plan has changed the members."""
        if not plan.purpose.own or (self._managed and plan.purpose is Purpose.DRAIN):
            for role in Role:
                self.wanted[role] += len(plan.coming.of_role(role)) - len(plan.going.of_role(role))
        self.settle(held)

    def taken(self, roles: Iterable[Role], held: Counts, *, for_others: bool, lost: bool) -> None:
        """Record that the cluster took a container away after a warning.

        Parameters
        ----------
        roles : iterable of Role
            Of the member that ran in it.
        for_others : bool
            Whether its resources go to other applications.
        lost : bool
            Whether its member was lost before it could leave.
        """
        for role in roles:
            if self._managed:
                self.wanted[role] = max(1, self.wanted[role] - lost)
            else:
                self.lent[Borrower.OTHERS][role] += for_others
        self.settle(held)

    def settle(self, held: Counts) -> None:
        """Reduce what is lent by members that came back; the oldest loans are settled first."""
        for role in Role if self._follows else ():
            # A role without a member is about to get one.
            self.wanted[role] = max(1, held[role])
            self.lent = {borrower: dict.fromkeys(Role, 0) for borrower in Borrower}
        if self._follows:
            return
        for role in Role:
            left = self.wanted[role] - held[role]
            for borrower in Borrower:
                self.lent[borrower][role] = max(0, min(self.lent[borrower][role], left))
                left -= self.lent[borrower][role]

    # ---- what to ask for

    def pending(self, held: Counts) -> dict[Role, int]:
        """Return how many members of each role to request at once."""
        return {role: self.wanted[role] - held[role] - self._num_lent(role) for role in Role}

    @property
    def lacks_room(self) -> bool:
        """Return whether members are lent, to be requested when the cluster has idle capacity."""
        return any(number for lent in self.lent.values() for number in lent.values())

    def to_regain(self, fits: Counts) -> tuple[Role, int] | None:
        """Return the role and number of lent members that fit; one role only, because both would use the same room."""
        for role in Role:
            number = min(self._num_lent(role), fits.get(role, 0))
            if number > 0:
                return role, number
        return None

    def _num_lent(self, role: Role) -> int:
        return sum(self.lent[borrower][role] for borrower in Borrower)

    def asked(self, plans: Iterable[Plan]) -> dict[Role, int]:
        """Return the size of the job after a resume: what users requested, uncommitted changes included.

        Parameters
        ----------
        plans : iterable of Plan
            The uncommitted ones.
        """
        found = dict(self.wanted)
        for plan in plans:
            if plan.purpose.own:
                continue
            if plan.phase is not Phase.QUEUED:
                for role in Role:
                    found[role] += len(plan.coming.of_role(role)) - len(plan.going.of_role(role))
                continue
            for part in plan.change.parts or (plan.change,):
                if part.operation in OPERATIONS:
                    found[part.operation.role] += part.count if part.adds_members else -part.count
        return found

    def validate(self, held: Counts) -> None:
        """Assert that ``wanted = held + lent + pending`` for each role, and that nothing is negative."""
        for role, pending in self.pending(held).items():
            assert self.wanted[role] >= 1 and pending >= 0, (role, self.wanted, held, self.lent)
            assert all(self.lent[borrower][role] >= 0 for borrower in Borrower), self.lent


class Startup:
    """The start of a job: its first containers, and with how many of them it starts.

    Parameters
    ----------
    wanted : mapping
        Members of each role that users requested.
    managed : bool
        Whether a scheduler decides the job's size.
    start_with : float
        The share of its workers, and of its servers, with which the job may start, 0 to 1.
    seed : str
        Differs from job to job.
    reliable : mapping, optional
        Of a job on two tiers: members of each role on reliable containers, to which ``start_with`` applies.  The others
        join when their containers come.
    """

    def __init__(
        self,
        wanted: Counts,
        *,
        managed: bool = False,
        start_with: float = 0.5,
        seed: str = "",
        reliable: Counts | None = None,
    ) -> None:
        self._wanted = dict(wanted)
        self._counted = dict(wanted if reliable is None else reliable)
        self._managed, self._start_with, self._seed = managed, start_with, seed
        #: Counts as failures how often the gang released its containers.
        self._gang = Backoff(START_TIMEOUT_S, GANG_LONGEST_S)
        #: When a gang that released its containers requests them again; None while they are requested.
        self._asks_again_s: float | None = None
        #: When the resource manager last failed to answer.
        self._unanswered_s = 0.0

    def first(self) -> dict[Role, int]:
        """Return how many containers of each role to request: all at first, the minimum after a pause."""
        return {role: self._least(role) if self._gang.failures else self._wanted[role] for role in Role}

    def step(self, first: Collection[Member], silent: bool, now_s: float) -> tuple[StartStep, str]:
        """Return what a job that has not started does next, and why if it fails.

        Parameters
        ----------
        first : collection of Member
            Those that were requested.
        silent : bool
            Whether the resource manager does not answer: then it grants nothing, however much room there is.
        """
        late = next((member.name for member in first if member.is_late(now_s, START_PATIENCE_S)), "")
        if late:
            return StartStep.FAIL, f"{late} did not register within {START_PATIENCE_S:g} s"
        if silent:
            self._unanswered_s = now_s
        if self._asks_again_s is not None:
            if now_s < self._asks_again_s:
                return StartStep.WAIT, ""
            self._asks_again_s = None
            return StartStep.ASK, ""
        ready = ready_of(first)
        last_s = max((max(member.asked_s, member.granted_s) for member in first), default=0.0)
        waited_s = now_s - max(0.0, last_s, self._unanswered_s)
        complete = all(ready[role] >= number for role, number in self.first().items())
        if self._managed or complete or waited_s < START_TIMEOUT_S:
            return StartStep.WAIT, ""
        if self.may_begin(first):
            return StartStep.BEGIN, ""
        # A gang holds its containers longer each time: on a busy cluster grants seldom come close together.
        starting = all(member.granted for member in first)
        if starting or not any(ready.values()) or waited_s < self._gang.pause_s:
            return StartStep.WAIT, ""
        self._gang = self._gang.failed(now_s + self._spread_s())
        self._asks_again_s = self._gang.due_s
        return StartStep.GIVE_BACK, ""

    def _spread_s(self) -> float:
        """Return the deviation of the next pause from the usual one; deterministic, so that a restored state agrees."""
        least, most = GANG_SPREAD
        share = crc32(f"{self._seed} {self._gang.failures}".encode()) / 2**32
        return self._gang.pause_s * (least - 1 + share * (most - least))

    def may_begin(self, first: Collection[Member]) -> bool:
        """Return whether enough of the first members are ready for the job to start."""
        ready = ready_of(first)
        return not self._managed and all(ready[role] >= self._least(role) for role in Role)

    def _least(self, role: Role) -> int:
        return least_of(self._counted[role], self._start_with)

    def pause_left_s(self, now_s: float) -> float | None:
        """Return the remaining pause of a gang in seconds; None if it does not pause."""
        return None if self._asks_again_s is None else max(0.0, self._asks_again_s - now_s)

    def waits_for(self, first: Collection[Member], now_s: float) -> str:
        """Return a sentence about what the start waits for; empty if the wait is short."""
        left_s, given_back = self.pause_left_s(now_s), self._gang.failures
        if left_s is None:
            return containers_waited_for([member for member in first if not member.granted], now_s)
        return (
            "released its containers, which were too few to start with, so that other jobs can use them "
            f"({given_back} time{'s' if given_back > 1 else ''} so far); requests them again in {left_s:.0f} s"
        )

    def validate(self) -> None:
        """Assert that only an unmanaged job that has released its containers pauses."""
        assert self._asks_again_s is None or (self._gang.failures and not self._managed)


class PacedRequests:
    """Requests of a start or a recovery for containers in place of ended ones.

    After a container that ended before its process registered, they wait: the next one would probably end, too.
    """

    def __init__(self) -> None:
        self._retry = Backoff(REQUEST_S, LONGEST_REQUEST_S)
        self._waiting: list[e.Command] = []

    def failed(self, now_s: float) -> None:
        """Record that a container ended before its process registered; those that end during a pause count as one."""
        if self._retry.is_due(now_s):
            self._retry = self._retry.failed(now_s)

    def succeeded(self) -> None:
        """Record that the start or the recovery is complete."""
        self._retry = Backoff(REQUEST_S, LONGEST_REQUEST_S)

    def add(self, requests: Iterable[e.Command]) -> None:
        """Take requests, which :meth:`due` returns once they may be made."""
        self._waiting += requests

    def due(self, containers: Collection[str], now_s: float) -> list[e.Command]:
        """Return the requests to make now, once each; those for containers that the job has given up are dropped."""
        if not self._waiting or not self._retry.is_due(now_s):
            return []
        requests, self._waiting = self._waiting, []
        return [each for each in requests if isinstance(each, e.RequestContainer) and each.container_id in containers]

    def waits_for(self, now_s: float) -> str:
        """Return a sentence about the pause; empty if there is none."""
        number, left_s = len(self._waiting), self._retry.due_s - now_s
        if not number or left_s <= 0:
            return ""
        ended = "a container ended" if number == 1 else f"{number} containers ended"
        return f"{ended} before registering: requests {'it' if number == 1 else 'them'} again in {left_s:.0f} s"

    def drop(self) -> None:
        """Drop all requests: a new master repeats those of all containers that do not run."""
        self._waiting.clear()
