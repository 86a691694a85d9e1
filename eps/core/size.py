"""How many members a job wants, holds, has lent and is to ask for; and with how many it begins.  Pure.

Of each role ``wanted = held + lent + pending``.

wanted
    What users asked for.
held
    Members that take part and have their containers.
lent
    Members that are not asked for at once.  Those that were preempted for *others*, and those that the cluster had no
    room for at the *start*, are asked for when it has room that no other application wants, and for a few seconds only:
    a request that stands takes what others are given meanwhile.
pending
    The rest: members that crashed, or left a node that is drained.  They are asked for at once.

At the start a job asks for all containers.  When none was granted for a while, a job that holds ``start_with`` of each
role begins.  One that holds less gives all back, waits, and asks for that least number (a gang): else jobs that start
together on a full cluster could wait for each other for ever.  The pause differs from job to job and doubles each time
(Metcalfe and Boggs, Ethernet, CACM 1976).

The size of a *managed* job is decided by a scheduler: what its cluster takes away is not asked for again.

Source: EPS Algorithm 1 lines 17-27 (what is removed for a submitted job) and 29-40 (what is added when nothing waits).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from zlib import crc32

from eps.core.members import Member, containers_waited_for
from eps.core.reconfig import OPERATIONS, Phase, Plan, Purpose
from eps.core.retries import Backoff
from eps.core.types import Role

#: A job has failed if one of its first members was started and has not registered after this long.
START_PATIENCE_S = 300.0
#: Seconds without a grant after which a job that starts begins with what it has, or gives it back.
START_TIMEOUT_S = 20.0
#: A gang that could not begin waits for as long, times a number between these bounds that differs from job to job.
GANG_SPREAD = (0.5, 1.5)
#: The longest pause of a gang.
GANG_LONGEST_S = 160.0

Counts = Mapping[Role, int]


class Borrower(StrEnum):
    """Who has the containers that a job has lent."""

    #: The cluster preempted them for others.
    OTHERS = "others"
    #: The cluster had no room for them when the job started.
    START = "start"


class StartStep(StrEnum):
    """What a job that starts does next."""

    WAIT = "wait"
    #: Ask for all first containers.
    ASK = "ask"
    #: Begin without those that were not granted.
    BEGIN = "begin"
    #: Give everything back.
    GIVE_BACK = "give-back"
    #: A first member was started and does not register.
    FAIL = "fail"


def least_of(wanted: int, start_with: float) -> int:
    """Return the number of a role with which a job may begin that wants so many and may start with that part."""
    # As it was written: 0.28 of 25 is 7, and as products of binary fractions a little more.
    return max(1, math.ceil(round(start_with * wanted, 9)))


def granted_of(members: Iterable[Member]) -> dict[Role, int]:
    """Return how many of these members have their containers, by role."""
    found = dict.fromkeys(Role, 0)
    for member in members:
        for role in member.roles:
            found[role] += member.granted
    return found


class Size:
    """The size of a job.

    Parameters
    ----------
    workers, servers : int
    managed : bool
        A scheduler decides about the job's size.
    """

    def __init__(self, workers: int, servers: int, *, managed: bool = False) -> None:
        self.wanted = {Role.WORKER: workers, Role.SERVER: servers}
        self.lent = {borrower: dict.fromkeys(Role, 0) for borrower in Borrower}
        self._managed = managed

    # ---- changes

    def begun(self, held: Counts) -> None:
        """Take in that the job begins with so many members: it lacks what the cluster had no room for."""
        for role in Role:
            self.lent[Borrower.START][role] = self.wanted[role] - held[role]
        self.settle(held)

    def committed(self, plan: Plan, held: Counts) -> None:
        """Take in that a plan has changed the members."""
        if not plan.purpose.own or (self._managed and plan.purpose is Purpose.DRAIN):
            for role in Role:
                self.wanted[role] += len(plan.coming.of_role(role)) - len(plan.going.of_role(role))
        self.settle(held)

    def taken(self, roles: Iterable[Role], held: Counts, *, for_others: bool, lost: bool) -> None:
        """Take in that the cluster took a container away, after it had warned the job.

        Parameters
        ----------
        roles : iterable of Role
            Of the member that was in it.
        for_others : bool
            Others are to get its room.
        lost : bool
            Its member had not left before.
        """
        for role in roles:
            if self._managed:
                self.wanted[role] = max(1, self.wanted[role] - lost)
            else:
                self.lent[Borrower.OTHERS][role] += for_others
        self.settle(held)

    def settle(self, held: Counts) -> None:
        """Note who has come back: members that came are in the place of those that are lent for longest."""
        for role in Role:
            left = self.wanted[role] - held[role]
            for borrower in Borrower:
                self.lent[borrower][role] = max(0, min(self.lent[borrower][role], left))
                left -= self.lent[borrower][role]

    # ---- what to ask for

    def pending(self, held: Counts) -> dict[Role, int]:
        """Return how many members of each role to ask for at once."""
        return {role: self.wanted[role] - held[role] - self._num_lent(role) for role in Role}

    @property
    def lacks_room(self) -> bool:
        """True while there are members to ask for when the cluster has room that no other application wants."""
        return any(map(self._num_lent, Role))

    def to_regain(self, fits: Counts) -> tuple[Role, int] | None:
        """Return which lent members fit into the room that there is: one role, since both would fit into the same."""
        for role in Role:
            number = min(self._num_lent(role), fits.get(role, 0))
            if number > 0:
                return role, number
        return None

    def _num_lent(self, role: Role) -> int:
        return sum(self.lent[borrower][role] for borrower in Borrower)

    def asked(self, plans: Iterable[Plan]) -> dict[Role, int]:
        """Return the size that a job is to have after it is resumed: what users want, with changes on their way.

        Parameters
        ----------
        plans : iterable of Plan
            Those that are not committed.
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
                    found[part.operation.role] += part.count if part.adds else -part.count
        return found

    def validate(self, held: Counts) -> None:
        """Assert that ``wanted = held + lent + pending`` for each role, and that nothing is negative."""
        for role, pending in self.pending(held).items():
            assert self.wanted[role] >= 1 and pending >= 0, (role, self.wanted, held, self.lent)
            assert all(self.lent[borrower][role] >= 0 for borrower in Borrower), self.lent


class Startup:
    """The start of a job: the first containers, and with how many of them it begins.

    Parameters
    ----------
    wanted : mapping
        Members of each role that users asked for.
    managed : bool
        A scheduler decides about the job's size.
    start_with : float
        The part of its workers, and of its servers, with which the job may begin, 0 to 1.
    seed : str
        Differs from job to job.
    """

    def __init__(self, wanted: Counts, *, managed: bool = False, start_with: float = 0.5, seed: str = "") -> None:
        self._wanted = dict(wanted)
        self._managed, self._start_with, self._seed = managed, start_with, seed
        #: Its failures are how often a gang gave everything back.
        self._gang = Backoff(START_TIMEOUT_S, GANG_LONGEST_S)
        #: When a gang that gave everything back asks again; None while its containers are asked for.
        self._asks_again_s: float | None = None
        #: When the resource manager did not answer last.
        self._unanswered_s = 0.0

    def first(self) -> dict[Role, int]:
        """Return how many containers of each role to ask for: all, or after a pause the least to begin with."""
        return {role: self._least(role) if self._gang.failures else self._wanted[role] for role in Role}

    def step(self, first: Collection[Member], silent: bool, now_s: float) -> tuple[StartStep, str]:
        """Return what a job does that has not begun, and why where it fails.

        Parameters
        ----------
        first : collection of Member
            Those that were asked for.
        silent : bool
            The resource manager does not answer: it grants nothing, however much room there is.
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
        granted = granted_of(first)
        last_s = max((max(member.asked_s, member.granted_s) for member in first), default=0.0)
        waited_s = now_s - max(0.0, last_s, self._unanswered_s)
        complete = all(granted[role] >= number for role, number in self.first().items())
        if self._managed or complete or waited_s < START_TIMEOUT_S:
            return StartStep.WAIT, ""
        if self.may_begin(first):
            return StartStep.BEGIN, ""
        # A gang holds longer each time: on a busy cluster containers seldom come free shortly after each other.
        if not any(granted.values()) or waited_s < self._gang.pause_s:
            return StartStep.WAIT, ""
        self._gang = self._gang.failed(now_s + self._spread_s())
        self._asks_again_s = self._gang.due_s
        return StartStep.GIVE_BACK, ""

    def _spread_s(self) -> float:
        """Return by how much the next pause differs from the usual one; the same where a state is restored."""
        least, most = GANG_SPREAD
        share = crc32(f"{self._seed} {self._gang.failures}".encode()) / 2**32
        return self._gang.pause_s * (least - 1 + share * (most - least))

    def may_begin(self, first: Collection[Member]) -> bool:
        """Return whether the job may begin with those of its first members that have their containers."""
        granted = granted_of(first)
        return not self._managed and all(granted[role] >= self._least(role) for role in Role)

    def _least(self, role: Role) -> int:
        return least_of(self._wanted[role], self._start_with)

    def pause_left_s(self, now_s: float) -> float | None:
        """Return for how long a gang still waits that gave everything back; None where it does not."""
        return None if self._asks_again_s is None else max(0.0, self._asks_again_s - now_s)

    def waits_for(self, first: Collection[Member], now_s: float) -> str:
        """Return what the start waits for, and for how long, as a sentence; empty where that is not long."""
        left_s, given_back = self.pause_left_s(now_s), self._gang.failures
        if left_s is None:
            return containers_waited_for([member for member in first if not member.granted], now_s)
        return (
            "has given back the containers with which it could not begin, so that others can, "
            f"{given_back} time{'s' if given_back > 1 else ''} so far; asks again in {left_s:.0f} s"
        )

    def validate(self) -> None:
        """Assert that only a gang waits, and one that has given back."""
        assert self._asks_again_s is None or (self._gang.failures and not self._managed)
