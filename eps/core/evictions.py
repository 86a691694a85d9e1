"""Containers that are to be taken away, and what became of who worked in them.  Values and questions about them.  L0.

Source: Proteus §3.3 (an *eviction* is announced, a *failure* is not, and an *effective failure* is announced too late).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from eps.core.membership import Membership
from eps.core.reconfig import Operation, Plan
from eps.core.types import MemberId, Role, member_number

#: Why a container is taken away, where nobody said.
TAKEN_AWAY = "is to be taken away"


class Outcome(StrEnum):
    """What became of an eviction that was announced."""

    #: Its member is still there.
    WARNED = "warned"
    #: Its member left in order, before the deadline.
    DRAINED = "drained"
    #: Its member left in order after the deadline, which was not kept.
    LATE = "late"
    #: Its member ended before it could leave; others took over (an effective failure).
    LOST = "lost"
    #: Nobody that the job counts on worked there.
    WITHDRAWN = "withdrawn"


@dataclass
class Eviction:
    """A container that is to be taken away."""

    name: MemberId
    role: Role
    container_id: str
    #: As words after the container's name.
    reason: str
    warned_s: float
    #: When it will be taken away, on the master's clock.
    deadline_s: float
    #: The plan that drains it; 0 before there is one.
    plan_id: int = 0
    outcome: Outcome = Outcome.WARNED
    #: When it had been given back, or was gone.
    ended_s: float | None = None
    #: Somebody else waits for its room.
    for_others: bool = False

    def warn_again(self, deadline_s: float, now_s: float, reason: str = "", for_others: bool = False) -> None:
        """Take a further warning in: it makes the deadline earlier, or takes the place of one that was not kept."""
        self.for_others = self.for_others or for_others
        if deadline_s < self.deadline_s or self.deadline_s < now_s:
            self.deadline_s, self.reason = deadline_s, reason or self.reason

    def end(self, outcome: Outcome, now_s: float) -> None:
        """Note what became of it; a drain counts by whether it was in time."""
        late = outcome is Outcome.DRAINED and now_s > self.deadline_s
        self.outcome, self.ended_s = Outcome.LATE if late else outcome, now_s


def counts(evictions: Iterable[Eviction]) -> dict[str, int]:
    """Return how many were announced (``asked``), and how many had which outcome."""
    found = Counter(str(eviction.outcome) for eviction in evictions)
    return {"asked": found.total(), **{str(outcome): found[str(outcome)] for outcome in Outcome}}


def next_to_drain(membership: Membership, warned: Collection[MemberId]) -> tuple[MemberId, ...]:
    """Return who leaves next of the members that must.

    All at once: workers and servers in one plan, for each plan waits for a commit clock.  But who is among the last of
    a role needs somebody in its place, who may be long in coming: it goes after those that need nobody.
    """
    going = {role: tuple(name for name in membership.of_role(role) if name in warned) for role in Role}
    at_once = [name for role, names in going.items() if names != membership.of_role(role) for name in names]
    return tuple(at_once) or going[Role.WORKER] + going[Role.SERVER]


def gives_room(workers: Sequence[MemberId], going: Collection[MemberId]) -> MemberId | None:
    """Return the worker whose container is given up so that a server can be had in its room; None where none is.

    The newest of those that stay, never the last: what it computed others can compute, but nobody can without a server.
    The other way round it is not so: a server takes partitions along.
    """
    staying = sorted((name for name in workers if name not in going), key=member_number)
    return staying[-1] if len(staying) > 1 else None


def is_all_of_a_role(membership: Membership, names: Collection[MemberId]) -> bool:
    """Return whether nobody of some role would be left without ``names``."""
    return any(set(membership.of_role(role)) <= set(names) for role in Role)


def may_go_on(plan: Plan, membership: Membership, names: Collection[MemberId]) -> bool:
    """Return whether an undecided plan is no obstacle to the drain of ``names``.

    It takes them away itself; or the drain needs somebody in their place, and the plan brings one, or needs no
    container and is over soon.
    """
    if set(names) <= set(plan.removed):
        return True
    if not is_all_of_a_role(membership, names) or plan.change.operation is Operation.DRAIN:
        return False
    lacking = [role for role in Role if set(membership.of_role(role)) <= set(names)]
    return not plan.added or any(plan.coming.of_role(role) for role in lacking)
